# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import functools
import ipaddress
import json
import os
import time
import typing as t
import urllib.parse

from ansible.errors import AnsibleActionFail
from ansible.module_utils.basic import missing_required_lib
from ansible.plugins.action import ActionBase
from ansible_collections.tandem.spark.plugins.plugin_utils import _acceptance
from ansible_collections.tandem.spark.plugins.plugin_utils._acceptance import Reply, Verdict

try:
    import requests
except ImportError:
    HAS_REQUESTS = False
else:
    HAS_REQUESTS = True

WRONG_KEY = "tandem-not-the-key"


class Service:
    """The API as a client sees it. Proxies of the controller are for other places than one's own nodes."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url.rstrip("/")
        self.session = requests.Session()
        self.session.trust_env = False
        self.key = key

    def ask(
        self,
        path: str,
        body: dict[str, t.Any] | None,
        timeout_s: float,
        key: str | None = None,
        *,
        anonymous: bool = False,
    ) -> Reply:
        """One request; a *timeout_s* for the whole answer, streamed or not."""
        headers = {} if anonymous else {"Authorization": f"Bearer {key or self.key}"}
        deadline = time.monotonic() + timeout_s
        try:
            with self.session.request(
                "GET" if body is None else "POST",
                self.url + path,
                json=body,
                headers=headers,
                timeout=timeout_s,
                stream=True,
                allow_redirects=False,
            ) as answer:
                pieces = []
                # Byte by byte, or a server that trickles would keep the reader inside one piece, past the deadline.
                for piece in answer.iter_content(1):
                    pieces.append(piece)
                    if time.monotonic() > deadline:
                        return Reply(0, f"no complete answer within {timeout_s} s")
                # A server may repeat what it was sent; the key must not come into the report.
                text = b"".join(pieces).decode("utf-8", "replace").replace(self.key, "***")
                return Reply(answer.status_code, text)
        except requests.Timeout:
            return Reply(0, f"no answer within {timeout_s} s")
        except requests.RequestException as error:
            return Reply(0, f"no answer: {type(error).__name__}: {error}")


class ServiceOnNode(Service):
    """An API that only its own node reaches: the node asks, and the controller judges.

    Asked from the controller, 127.0.0.1 is the controller, which would be sent the key and be judged instead.
    """

    def __init__(self, url: str, key: str, execute: t.Callable[..., dict[str, t.Any]]) -> None:
        self.url = url.rstrip("/")
        self.key = key
        self.execute = execute

    def ask(
        self,
        path: str,
        body: dict[str, t.Any] | None,
        timeout_s: float,
        key: str | None = None,
        *,
        anonymous: bool = False,
    ) -> Reply:
        words = {"url": self.url + path, "timeout_s": timeout_s}
        if body is not None:
            words["body"] = json.dumps(body)
        if not anonymous:
            words["key"] = key or self.key
        result = self.execute(module_name="tandem.spark.api_request", module_args=words)
        if "status" not in result:
            return Reply(0, f"no answer: {result.get('msg', 'the node could not be asked')}".replace(self.key, "***"))
        return Reply(int(result["status"]), str(result["text"]).replace(self.key, "***"))


def only_on_its_node(url: str) -> bool:
    """Whether the host of *url* is a loopback address, which on every machine means the machine itself."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def run_check(
    service: Service, model: str, check: dict[str, t.Any], ranks: dict[str, dict[str, t.Any]]
) -> tuple[Verdict, dict[str, Reply]]:
    """Send what *check* asks for and judge the replies, which are the evidence."""
    kind, limit, chat = check["check"], check["timeout_s"], "/v1/chat/completions"
    if kind == "ready":
        reply = service.ask("/health", None, limit)
        return _acceptance.judge_ready(reply, ranks), {"health": reply}
    if kind == "models":
        reply = service.ask("/v1/models", None, limit)
        return _acceptance.judge_models(reply, model), {"models": reply}
    if kind == "unauthorised":
        body = _acceptance.chat_body(model, {"max_tokens": 4})
        replies = {
            "models without a key": service.ask("/v1/models", None, limit, anonymous=True),
            "chat without a key": service.ask(chat, body, limit, anonymous=True),
            "chat with a wrong key": service.ask(chat, body, limit, key=WRONG_KEY),
        }
        return _acceptance.judge_unauthorised(replies), replies
    if kind == "stream":
        reply = service.ask(chat, _acceptance.chat_body(model, check, stream=True), limit)
        return _acceptance.judge_stream(reply), {"stream": reply}
    reply = service.ask(chat, _acceptance.chat_body(model, check), limit)
    if kind == "tool_call":
        return _acceptance.judge_tool_call(reply, check["tool"]["name"], check["arguments"]), {"chat": reply}
    return _acceptance.judge_chat(reply, check["expect"]), {"chat": reply}


class ActionModule(ActionBase):
    """Asks the running service the recipe's questions, in order, and writes the report on the controller."""

    _requires_connection = False
    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        _result, args = self.validate_argument_spec(
            argument_spec={
                "url": {"type": "str", "required": True},
                "key": {"type": "str", "required": True, "no_log": True},
                "model": {"type": "str", "required": True},
                "name": {"type": "str", "required": True},
                "checks": {"type": "list", "elements": "dict", "required": True},
                "ranks": {"type": "dict", "default": {}},
                "report_directory": {"type": "path", "required": True},
                "record": {"type": "dict", "default": {}},
                "from_node": {"type": "bool", "default": False},
            }
        )
        if not args["checks"]:
            return {"failed": True, "results": [], "msg": "checks: found none, wanted at least one to accept by"}
        if self._task.check_mode:
            return {
                "changed": False,
                "msg": f"not checked: {len(args['checks'])} acceptance check(s) ask the running service, which check "
                "mode leaves alone",
                "results": [],
            }
        if not HAS_REQUESTS:
            raise AnsibleActionFail(missing_required_lib("requests"))
        if args["from_node"] and only_on_its_node(args["url"]):
            execute = functools.partial(self._execute_module, task_vars=task_vars or {})
            service: Service = ServiceOnNode(args["url"], args["key"], execute)
        else:
            service = Service(args["url"], args["key"])
        results: list[dict[str, t.Any]] = []
        stopped = ""
        for check in args["checks"]:
            if stopped:
                results.append(entry(check, "not checked", f"since {stopped} failed", 0.0, {}))
                continue
            began = time.monotonic()
            verdict, evidence = run_check(service, args["model"], check, args["ranks"])
            status = "passed" if verdict.ok else "failed"
            results.append(entry(check, status, verdict.detail, time.monotonic() - began, evidence))
            self._display.display(f"  {status}: {check['name']}: {verdict.detail}")
            # Nothing else can be said of a service that is not ready.
            stopped = check["name"] if check["check"] == "ready" and not verdict.ok else ""
        bad = [result for result in results if result["status"] != "passed"]
        paths = write_report(args, results, accepted=not bad)
        answer: dict[str, t.Any] = {
            "changed": False,
            "results": [{key: value for key, value in result.items() if key != "evidence"} for result in results],
            "report": paths["json"],
            "msg": f"{len(results) - len(bad)} of {len(results)} acceptance checks passed; report: {paths['json']}",
        }
        if bad:
            answer["failed"] = True
            answer["msg"] = (
                f"{args['name']} on {args['url']} is not accepted: {len(bad)} of {len(results)} checks did not pass.\n"
                f"{_acceptance.table(results)}\nEvidence: {paths['json']}"
            )
        return answer


def entry(
    check: dict[str, t.Any], status: str, detail: str, seconds: float, evidence: dict[str, Reply]
) -> dict[str, t.Any]:
    return {
        "name": check["name"],
        "check": check["check"],
        "status": status,
        "detail": detail,
        "seconds": round(seconds, 3),
        "evidence": {what: {"status": reply.status, "text": reply.text[:20000]} for what, reply in evidence.items()},
    }


def write_report(args: dict[str, t.Any], results: list[dict[str, t.Any]], accepted: bool) -> dict[str, str]:
    """Write JSON and JUnit XML in one rename each; readable by their owner only, since answers are in them."""
    directory = os.path.abspath(os.path.expanduser(args["report_directory"]))
    os.makedirs(directory, exist_ok=True)
    report = {
        "deployment": args["name"],
        "endpoint": args["url"],
        "model": args["model"],
        "accepted": accepted,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "record": args["record"],
        "results": results,
    }
    texts = {
        "json": json.dumps(report, indent=2, ensure_ascii=False) + "\n",
        "junit": _acceptance.junit(args["name"], results),
    }
    paths = {
        "json": os.path.join(directory, "acceptance.json"),
        "junit": os.path.join(directory, "acceptance.junit.xml"),
    }
    for kind, path in paths.items():
        # A half of a surrogate pair, which JSON allows, has no UTF-8 form.
        descriptor = os.open(f"{path}.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as handle:
            os.fchmod(descriptor, 0o600)
            handle.write(texts[kind])
        os.replace(f"{path}.part", path)
    return paths

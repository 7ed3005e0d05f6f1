# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import http.server
import json
import stat
import threading
import time
import types
import xml.etree.ElementTree as xml

import pytest
from ansible_collections.tandem.spark.plugins.action import acceptance
from ansible_collections.tandem.spark.plugins.modules import api_request

KEY = "a-key-of-sixteen-or-more"
TOOL = {"name": "get_weather", "parameters": {}}
CHECKS = [
    {"check": "ready", "name": "ready", "timeout_s": 5},
    {"check": "unauthorised", "name": "no key", "timeout_s": 5},
    {"check": "models", "name": "models", "timeout_s": 5},
    {"check": "chat", "name": "chat", "prompt": "17*23?", "expect": "391", "timeout_s": 5},
    {
        "check": "tool_call",
        "name": "tool",
        "prompt": "p",
        "tool": TOOL,
        "arguments": {"city": "Madrid"},
        "timeout_s": 5,
    },
    {"check": "stream", "name": "stream", "prompt": "p", "timeout_s": 5},
]
UP = {"active": True, "running": "d", "wanted": "d"}


@pytest.fixture
def api():
    """A small OpenAI API that keeps its own key; ``content`` is what it answers, ``broken`` how it misbehaves."""
    state = {"content": "391", "broken": None, "bodies": []}

    class Handler(http.server.BaseHTTPRequestHandler):
        def send(self, status, body, headers=()):
            raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def do_GET(self):
            if state["broken"] == "unhealthy":
                return self.send(503, {})
            if state["broken"] == "redirect":
                return self.send(302, {}, [("Location", "/elsewhere")])
            if self.path == "/health":
                return self.send(200, {})
            if self.headers.get("Authorization") != f"Bearer {KEY}" and state["broken"] != "open":
                return self.send(401, {})
            return self.send(200, {"data": [{"id": "m"}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state["bodies"].append(body)
            if self.headers.get("Authorization") != f"Bearer {KEY}" and state["broken"] != "open":
                return self.send(401, {})
            if state["broken"] == "echo":
                return self.send(500, f"what is {self.headers['Authorization']}?")
            if state["broken"] == "trickle":
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(BrokenPipeError):  # the client gives up
                    for _count in range(100):
                        self.wfile.write(b" ")
                        self.wfile.flush()
                        time.sleep(0.05)
                return None
            if body.get("stream"):
                events = [{"choices": [{"delta": {"content": c}}]} for c in ("a", "b")]
                events.append({"choices": [], "usage": {"completion_tokens": 2}})
                return self.send(200, "".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n")
            message = {"content": state["content"]}
            if body.get("tools"):
                call = {"function": {"name": "get_weather", "arguments": '{"city": "Madrid"}'}}
                message = {"content": None, "tool_calls": [call]}
            return self.send(200, {"choices": [{"message": message}]})

        def log_message(self, *_arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state["url"] = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def accept(api, tmp_path, monkeypatch):
    def run(check_mode=False, **options):
        arguments = {
            "url": api["url"],
            "key": KEY,
            "model": "m",
            "name": "small",
            "checks": CHECKS,
            "ranks": {"spark-a": UP, "spark-b": UP},
            "report_directory": str(tmp_path / "reports"),
            "record": {"digest": "x"},
            **options,
        }
        action = object.__new__(acceptance.ActionModule)
        task = types.SimpleNamespace(check_mode=check_mode, args=arguments, async_val=0, diff=False)
        task.action = "tandem.spark.acceptance"
        action._task = task
        action._display = types.SimpleNamespace(display=shown.append)
        monkeypatch.setattr(acceptance.ActionBase, "run", lambda *_arguments, **_options: {})
        return action.run(None, {})

    shown = []
    run.shown = shown
    return run


def report(tmp_path):
    return json.loads((tmp_path / "reports/acceptance.json").read_text())


def test_everything_passes(accept, api, tmp_path):
    result = accept()
    assert not result.get("failed") and "6 of 6" in result["msg"]
    assert [entry["status"] for entry in result["results"]] == ["passed"] * 6
    written = report(tmp_path)
    assert written["accepted"] is True and written["record"] == {"digest": "x"}
    assert written["results"][3]["evidence"]["chat"]["status"] == 200
    for name in ("acceptance.json", "acceptance.junit.xml"):
        assert stat.S_IMODE((tmp_path / "reports" / name).stat().st_mode) == 0o600
    assert sorted(path.name for path in (tmp_path / "reports").iterdir()) == ["acceptance.json", "acceptance.junit.xml"]
    assert xml.parse(tmp_path / "reports/acceptance.junit.xml").getroot().get("tests") == "6"
    assert len(accept.shown) == 6


def test_c51_the_key_is_in_no_report_and_no_line(accept, api, tmp_path):
    api["broken"] = "echo"
    result = accept()
    assert result["failed"]
    text = json.dumps(result) + json.dumps(report(tmp_path)) + "".join(accept.shown)
    assert KEY not in text and "Bearer ***" in text


def test_c54_a_wrong_answer_is_not_accepted(accept, api, tmp_path):
    api["content"] = "381 \x1b[31m\ud800"
    result = accept()
    assert result["failed"] and "1 of 6 checks did not pass" in result["msg"]
    assert "found '381" in result["msg"] and "wanted 391" in result["msg"]
    assert report(tmp_path)["accepted"] is False
    xml.parse(tmp_path / "reports/acceptance.junit.xml")


def test_c44_what_is_not_ready_is_asked_nothing_more(accept, api, tmp_path):
    result = accept(ranks={"spark-a": UP, "spark-b": {}})
    assert result["failed"] and [e["status"] for e in result["results"]] == ["failed"] + ["not checked"] * 5
    assert "spark-b" in result["results"][0]["detail"] and "since ready failed" in result["results"][1]["detail"]
    assert api["bodies"] == []
    api["broken"] = "unhealthy"
    assert "503" in accept()["results"][0]["detail"]


def test_c50_an_open_api_is_not_accepted(accept, api):
    api["broken"] = "open"
    result = accept()
    assert result["failed"] and result["results"][1]["status"] == "failed"
    assert "chat with a wrong key answered 200" in result["results"][1]["detail"]


def test_a_redirect_is_not_followed(accept, api):
    api["broken"] = "redirect"
    assert "302" in accept()["results"][0]["detail"]


def test_the_limit_is_for_the_whole_answer(api):
    api["broken"] = "trickle"
    began = time.monotonic()
    reply = acceptance.Service(api["url"], KEY).ask("/v1/chat/completions", {}, 0.3)
    assert reply.status == 0 and "0.3 s" in reply.text
    assert time.monotonic() - began < 2


def test_nobody_listens():
    reply = acceptance.Service("http://127.0.0.1:9", KEY).ask("/health", None, 1)
    assert reply.status == 0 and reply.text.startswith("no answer") and KEY not in reply.text


@pytest.mark.parametrize("url", ["http://", "127.0.0.1:1", "http://[", "ftp://x"])
def test_a_url_that_cannot_be(url):
    assert acceptance.Service(url, KEY).ask("/health", None, 1).status == 0


def test_proxies_are_for_other_places(api, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert acceptance.Service(api["url"], KEY).ask("/health", None, 1).status == 200


def test_check_mode_asks_nobody_and_says_so(accept, api, tmp_path):
    result = accept(check_mode=True)
    assert "not checked: 6" in result["msg"] and not result.get("failed") and not (tmp_path / "reports").exists()


def test_nothing_to_ask_is_nothing_accepted(accept):
    assert accept(checks=[])["failed"]


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://127.1.2.3:8000", True),
        ("http://[::1]:8000", True),
        ("http://localhost:8000", True),
        ("http://192.0.2.11:8000", False),
        ("http://[2001:db8::1]:8000", False),
        ("http://spark-a:8000", False),
    ],
)
def test_which_api_only_its_node_reaches(url, own):
    assert acceptance.only_on_its_node(url) is own


def test_an_api_on_loopback_is_asked_by_its_node(accept, api, monkeypatch):
    asked = []

    def execute(_self, module_name, module_args, task_vars):
        asked.append((module_name, module_args))
        given = {"body": None, "key": None, **module_args}
        status, text = api_request.ask(given["url"], given["body"], given["key"], given["timeout_s"])
        return {"status": status, "text": text}

    monkeypatch.setattr(acceptance.ActionModule, "_execute_module", execute)
    monkeypatch.setattr(acceptance.requests, "Session", None)  # the controller itself asks nothing
    result = accept(from_node=True)
    assert not result.get("failed") and "6 of 6" in result["msg"]
    assert {name for name, _arguments in asked} == {"tandem.spark.api_request"}
    assert sum("key" not in arguments for _name, arguments in asked) == 2


def test_a_node_that_cannot_ask_is_no_acceptance(accept, monkeypatch):
    monkeypatch.setattr(
        acceptance.ActionModule, "_execute_module", lambda *_a, **_k: {"unreachable": True, "msg": f"gone, {KEY}"}
    )
    result = accept(from_node=True)
    assert result["failed"] and "gone" in result["results"][0]["detail"]
    assert KEY not in json.dumps(result)


def test_an_api_that_everybody_reaches_is_asked_by_the_controller(accept, monkeypatch):
    monkeypatch.setattr(acceptance, "only_on_its_node", lambda _url: False)
    monkeypatch.setattr(acceptance.ActionModule, "_execute_module", None)
    assert not accept(from_node=True).get("failed")

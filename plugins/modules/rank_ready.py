#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_ready
short_description: Wait until the group really answers
description:
  - Waits on the head until the health path answers 200 and one real completion comes back with text.
  - 503 and a refused connection mean that the engine is still loading. 401 or 404 end the wait at once, and so does the
    end of the rank's process, with its last log lines.
version_added: 0.1.0
author:
  - The tandem.spark contributors (@tandem-spark)
extends_documentation_fragment:
  - tandem.spark._attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
options:
  url:
    description: Base URL of the API.
    type: str
    required: true
  health:
    description: Health path.
    type: str
    default: /health
  chat:
    description: Chat completion path.
    type: str
    default: /v1/chat/completions
  model:
    description: Served model name.
    type: str
    required: true
  key:
    description: API key.
    type: str
    required: true
  unit:
    description: The rank's unit.
    type: str
    default: tandem-rank.service
  timeout_s:
    description: Seconds to wait in all.
    type: int
    default: 1800
  answer_timeout_s:
    description: Seconds that the first completion may take. It compiles kernels on the way.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Wait for the group
  tandem.spark.rank_ready:
    url: http://192.168.1.11:8000
    model: ling
    key: "{{ tandem_api_key }}"
"""

RETURN = r"""
seconds:
  description: How long it took until the first completion was there.
  returned: success
  type: float
phase:
  description: How far it came, C(not checked) in check mode.
  returned: always
  type: str
"""

import contextlib
import http.client
import json
import time
import typing as t
import urllib.error
import urllib.request

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _systemd

POLL_S = 1.0
HEALTH_TIMEOUT_S = 30
LOG_LINES = 25


def ask(url: str, body: dict[str, t.Any] | None, key: str, timeout_s: float) -> tuple[int, str]:
    """(status, text); status 0 when there was no answer at all. Never through a proxy: nodes are neighbours."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            return answer.status, answer.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return error.code, error.read(1 << 16).decode("utf-8", "replace")
        return error.code, ""
    except (OSError, http.client.HTTPException) as error:
        # The second: the engine ended in the middle of its answer.
        return 0, str(error)


def completion_text(answer: str) -> str | None:
    """The text of a completion, wherever the engine put it."""
    try:
        message = json.loads(answer)["choices"][0]["message"]
        return message.get("content") or message.get("reasoning_content") or message.get("reasoning")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "health": {"type": "str", "default": "/health"},
            "chat": {"type": "str", "default": "/v1/chat/completions"},
            "model": {"type": "str", "required": True},
            "key": {"type": "str", "required": True, "no_log": True},
            "unit": {"type": "str", "default": "tandem-rank.service"},
            "timeout_s": {"type": "int", "default": 1800},
            "answer_timeout_s": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    parameters = module.params
    if module.check_mode:
        module.exit_json(changed=False, seconds=0.0, phase="not checked")
    began = time.monotonic()
    url: str = parameters["url"].rstrip("/")
    phase = "waiting for the engine to listen"

    def stop(why: str) -> t.NoReturn:
        invocation = properties.get("InvocationID", "")
        _code, log, _err = module.run_command(_systemd.journal_command(parameters["unit"], LOG_LINES, invocation))
        seconds = round(time.monotonic() - began, 1)
        module.fail_json(
            msg=f"not ready after {seconds} s, {phase}: {why}\nlast lines of the rank here:\n{log.strip()}",
            phase=phase,
            seconds=seconds,
        )

    while True:
        _code, out, _err = module.run_command(_systemd.show_command(parameters["unit"]))
        properties = _systemd.parse_show(out)
        if not _systemd.is_active(properties):
            stop(
                f"the rank ended (state {properties.get('ActiveState')}, result {properties.get('Result')}, exit "
                f"status {properties.get('ExecMainStatus')})"
            )
        status, answer = ask(url + parameters["health"], None, parameters["key"], HEALTH_TIMEOUT_S)
        if status == 200:
            phase = "waiting for the first completion"
            status, answer = ask(
                url + parameters["chat"],
                {"model": parameters["model"], "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]},
                parameters["key"],
                parameters["answer_timeout_s"],
            )
            if status == 200 and completion_text(answer):
                module.exit_json(changed=False, seconds=round(time.monotonic() - began, 1), phase="ready")
        elif status:
            phase = "loading"
        if status in (401, 403):
            stop(f"{url} refused the key (status {status})")
        if status == 404:
            stop(f"{url} has no such path or model (status 404): {answer[:200]}")
        if time.monotonic() - began > parameters["timeout_s"]:
            stop(f"gave up after {parameters['timeout_s']} s; last answer: {status or 'none'} {answer[:200]}")
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import shlex
import time
import typing as t

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.tandem.spark.plugins.plugin_utils import _waiting

# A connection that breaks is made again for so long; the job does not notice.
RECONNECT_S = 120.0


class ActionModule(ActionBase):
    """Has the job started on the node, and shows how far it is until it ends: one short command for each look."""

    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        answer: dict[str, t.Any] = self._execute_module(
            module_name="tandem.spark.job", module_args=self._task.args, task_vars=variables
        )
        if answer.get("failed") or self._task.check_mode or answer.get("state") in (None, "absent"):
            return answer
        if self._task.args.get("state", "started") != "started":
            return answer
        node, name = str(variables.get("inventory_hostname", "")), str(self._task.args["name"])
        how = answer["state"]
        if how == "attached":
            self._display.display(f"{name} on {node}: it was running already")
        now: dict[str, t.Any] = answer if how == "finished" else self.wait(answer, name, node)
        if now["state"] != "finished":
            log = f"\nlast lines of {answer['unit']}:\n{now['log']}" if now.get("log") else ""
            return {
                "failed": True,
                "state": "failed",
                "unit": answer["unit"],
                "log": now.get("log", ""),
                "msg": f"{now['outcome'].get('message', 'nothing is known of its end')}{log}",
            }
        result = now["outcome"]["result"]
        return {
            "changed": bool(result.get("changed", True)),
            "state": how,
            "unit": answer["unit"],
            "python": answer["python"],
            "result": result,
            "seconds": now["outcome"]["seconds"],
        }

    def wait(self, answer: dict[str, t.Any], name: str, node: str) -> dict[str, t.Any]:
        """Look until the job has ended. The unit has a limit of its own, and the connection has one here."""
        command = shlex.join([answer["python"], "-I", answer["program"], "status", name])
        meter, speaker = _waiting.Meter(), _waiting.Speaker()
        interval, heard = 0.0, time.monotonic()
        while True:
            interval = _waiting.next_poll(interval)
            time.sleep(interval)
            try:
                now = status_of(self._low_level_execute_command(command))
                heard = time.monotonic()
            except AnsibleConnectionFailure as error:
                if time.monotonic() - heard > RECONNECT_S:
                    raise AnsibleConnectionFailure(
                        f"{node}: found no connection for {RECONNECT_S:.0f} s while {answer['unit']} runs there on its "
                        "own; run this stage again when the node answers, and it attaches to the job"
                    ) from error
                continue
            if now["state"] != "running":
                return now
            if now["progress"]:
                meter.add(now["progress"])
                if speaker.due(now["progress"]["stage"], time.monotonic()):
                    self._display.display(_waiting.line(name, node, now["progress"], meter.rate()))


def status_of(answer: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The line of JSON in the output of a look; other lines are a shell's greeting."""
    for text in reversed(str(answer.get("stdout", "")).splitlines()):
        if text.startswith("{"):
            return dict(json.loads(text))
    said = str(answer.get("stderr", "")).strip() or str(answer.get("stdout", "")).strip()
    message = f"the job cannot be asked (status {answer.get('rc')}): {said[-500:]}"
    return {"state": "failed", "progress": {}, "outcome": {"ok": False, "message": message}, "log": ""}

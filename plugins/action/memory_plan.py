# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import time
import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.tandem.spark.plugins.plugin_utils import _memory_table


class ActionModule(ActionBase):
    """Prints a memory plan, writes it on the controller, and fails when the model does not fit. Contacts nobody."""

    _requires_connection = False
    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        _result, args = self.validate_argument_spec(
            argument_spec={
                "fit": {"type": "dict", "required": True},
                "report_directory": {"type": "path", "required": True},
            }
        )
        fit = args["fit"]
        text = _memory_table.table(fit)
        path = write(args["report_directory"], fit)
        self._display.display(text)
        result: dict[str, t.Any] = {"changed": False, "report": path, "plan": text.splitlines(), "fits": fit["fits"]}
        if fit["fits"] is False:
            lines = [f"{fit['recipe']} on {', '.join(fit['nodes'])}: {fit['refusal']}. Nothing was changed."]
            lines += [f"- would fit: {entry['change']}" for entry in fit["alternatives"]]
            return {**result, "failed": True, "msg": "\n".join([*lines, f"The whole plan: {path}"])}
        if fit["fits"] is None:
            result["warnings"] = [fit["refusal"]]
        return {**result, "msg": f"{fit['recipe']}: {_memory_table.VERDICTS[fit['fits']]}; {path}"}


def write(directory: str, fit: dict[str, t.Any]) -> str:
    """Write the plan as JSON, in one rename."""
    directory = os.path.abspath(os.path.expanduser(directory))
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, "plan.json")
    report = {"finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **fit}
    with open(f"{path}.part", "w", encoding="utf-8") as handle:
        json.dump(report, handle, indent=2, ensure_ascii=False)
        handle.write("\n")
    os.replace(f"{path}.part", path)
    return path

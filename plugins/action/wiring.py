# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.tandem.spark.plugins.plugin_utils import _fabric_plan, _wiring


class ActionModule(ActionBase):
    """Draws the wiring that the nodes saw beside the one that is declared. Contacts nobody."""

    _requires_connection = False
    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        _result, args = self.validate_argument_spec(
            argument_spec={
                "group": {"type": "str", "default": "spark"},
                "result": {"type": "str", "required": True},
                "strict": {"type": "bool", "default": True},
            }
        )
        names = variables.get("groups", {}).get(args["group"], [])
        hostvars = variables["hostvars"]
        nodes = [_fabric_plan.node_of(name, hostvars[name]) for name in names]
        declared: list[list[str]] = []
        problems: list[str] = []
        if any(node[key] for node in nodes for key in ("links", "cables", "switch")):
            plan, problems = _fabric_plan.plan(nodes)
            declared = [] if problems else plan["cables"]
        found = _wiring.seen({name: hostvars[name].get(args["result"]) for name in names})
        differences, unchecked = _wiring.compare(declared, found)
        text = _wiring.draw(declared, found)
        suggestion = "" if declared else _wiring.suggest(found)
        if suggestion:
            text += f"\nTo declare what was seen, write into the group's variables:\n{suggestion}"
        self._display.display(text)
        problems += differences
        result: dict[str, t.Any] = {
            "changed": False,
            "wiring": text.splitlines(),
            "problems": problems,
            "not_checked": unchecked,
            "suggestion": suggestion,
        }
        if unchecked:
            result["warnings"] = unchecked
        if problems and args["strict"]:
            count = f"{len(problems)} differences" if len(problems) > 1 else "a difference"
            lines = [f"The cables and the inventory have {count}; nothing was changed.", *(f"- {p}" for p in problems)]
            return {"failed": True, "changed": False, "msg": "\n".join(lines)}
        return {
            **result,
            "msg": "; ".join(problems) or ("the wiring is as declared" if declared else "nothing declared"),
        }

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import time
import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.tandem.spark.plugins.plugin_utils import _findings, _preflight, _table


class ActionModule(ActionBase):
    """Judges the facts of all nodes together. Contacts nobody; writes the findings on the controller."""

    _requires_connection = False
    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        _result, args = self.validate_argument_spec(
            argument_spec={
                "deployment": {"type": "dict", "required": True},
                "waivers": {"type": "dict", "default": {}},
                "probe": {"type": "str", "required": True},
                "started": {"type": "float"},
                "ended": {"type": "float"},
                "report_directory": {"type": "path", "required": True},
            }
        )
        deployment, waivers = args["deployment"], args["waivers"]
        wrong = _preflight.waiver_problems(waivers, _findings.CATALOGUE)
        if wrong:
            return {"failed": True, "msg": "; ".join(wrong) + ". Nothing was changed."}
        hostvars = (task_vars or {})["hostvars"]
        clock = (args["started"], args["ended"])
        nodes = {
            node["name"]: _preflight.node_facts(hostvars[node["name"]], args["probe"], clock)
            for node in deployment["nodes"]
        }
        found = _findings.findings(nodes, _preflight.still_needed(deployment, nodes), waivers)
        path = write(args["report_directory"], deployment["name"], found)
        blocking = _findings.blocking(found)
        if found:
            self._display.display(_table.table(found))
        counts = _findings.summary(found)
        text = (
            f"{counts['blocked']} blocked, {counts['slow']} slow, {counts['note']} note(s), {counts['waived']} waived"
        )
        answer: dict[str, t.Any] = {"changed": False, "report": path, "findings": _table.as_data(found)}
        if blocking:
            lines = [
                f"- {finding.id} on {', '.join(finding.nodes)}: found {finding.found}; wanted {finding.wanted}; "
                f"{finding.remedy}"
                for finding in blocking
            ]
            return {
                "failed": True,
                "msg": "\n".join([f"{text}. Nothing was changed.", *lines, f"All findings: {path}"]),
                "report": path,
            }
        return dict(answer, msg=f"{text}; {path}")


def write(directory: str, name: str, found: list[_findings.Finding]) -> str:
    """Write the findings as JSON, in one rename."""
    directory = os.path.abspath(os.path.expanduser(directory))
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, "findings.json")
    report = {
        "deployment": name,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "summary": _findings.summary(found),
        "findings": _table.as_data(found),
    }
    with open(f"{path}.part", "w", encoding="utf-8") as handle:
        json.dump(report, handle, indent=2, ensure_ascii=False)
        handle.write("\n")
    os.replace(f"{path}.part", path)
    return path

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Between the variables of a run and the findings function: which facts of which node, what a waiver may be."""

from __future__ import annotations

import copy
import difflib
import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils._review import NOT_IN_THE_RUN

FACTS = ("spark_gpu", "spark_memory", "spark_platform", "spark_fabric")


def waiver_problems(waivers: t.Mapping[str, t.Any], known: t.Collection[str]) -> list[str]:
    """Waivers that name no finding, or give no reason."""
    found = []
    for name, reason in waivers.items():
        if name not in known:
            near = difflib.get_close_matches(name, list(known), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            found.append(f"preflight_waivers: found {name!r}, which is no finding{hint}")
        elif not isinstance(reason, str) or not reason.strip():
            found.append(f"preflight_waivers: {name} has no reason, wanted a sentence that says why it may pass")
    return found


def node_facts(variables: t.Any, probe: str, clock: tuple[float | None, float | None]) -> dict[str, t.Any]:
    """The facts of one node, or why there are none.

    *probe* names the registered result of the task that reached the node first; *clock* is the controller's time around
    that task.
    """
    result = variables.get(probe)
    if result is None:
        return {"unreachable": NOT_IN_THE_RUN}
    if result.get("unreachable"):
        return {"unreachable": " ".join(str(result.get("msg", "no reason given")).split())}
    gathered = variables.get("ansible_facts", {})
    facts: dict[str, t.Any] = {name: gathered[name] for name in FACTS if name in gathered}
    if None not in clock:
        facts["collected"] = {"before": clock[0], "after": clock[1]}
    return facts


def still_needed(deployment: dict[str, t.Any], nodes: dict[str, dict[str, t.Any]]) -> dict[str, t.Any]:
    """The deployment with the disk space that is still to be filled: releases that every node has need none."""
    result = copy.deepcopy(deployment)
    for part in ("model", "engine"):
        path = deployment[part]["path"]
        if all(path in _existing(facts) for facts in nodes.values()):
            result["disk_needed_bytes"][deployment["root"]] -= deployment[part]["size_bytes"]
    return result


def _existing(facts: dict[str, t.Any]) -> set[str]:
    platform = facts.get("spark_platform") or {}
    return {entry["path"] for entry in platform.get("disk") or [] if entry.get("exists")}

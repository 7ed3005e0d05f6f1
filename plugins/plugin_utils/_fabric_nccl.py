# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Whether nccl-tests may run on the nodes, with which environment, and what came out. Pure functions."""

from __future__ import annotations

import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _fabric
from ansible_collections.tandem.spark.plugins.plugin_utils import _deployment, _fabric_loss
from ansible_collections.tandem.spark.plugins.plugin_utils._engines import _common

QUERY, RUN, COMMAND = "__fabric_nccl_query", "__fabric_nccl_run", "__fabric_nccl"


def refusals(hostvars: t.Mapping[str, t.Any], deployment: t.Mapping[str, t.Any], message_bytes: int) -> list[str]:
    """Why the collective benchmark must not run; empty when it may. Every node is asked before anything is built.

    The buffers come out of the memory that GPU and processor share, and running out of it freezes a node (case C21).
    """
    found = []
    for node in deployment["nodes"]:
        asked = hostvars[node["name"]].get(QUERY) or {}
        reasons = list(asked.get("cannot_run") or []) if "cannot_run" in asked else ["it was not asked what it has"]
        if node["name"] == deployment["head"] and not asked.get("present"):
            reasons += asked.get("cannot_build") or []
        if "cannot_run" in asked:
            memory = _fabric.refuse_message(message_bytes, asked.get("available_bytes"))
            reasons += [f"{memory}; stop the engine or lower fabric_nccl_max_bytes"] if memory else []
        found += [f"{node['name']}: {reason}" for reason in reasons]
    return found


def receivers(hostvars: t.Mapping[str, t.Any], deployment: t.Mapping[str, t.Any]) -> list[str]:
    """Nodes that need the programs of the head, because theirs are missing or others; all of them when it has none."""
    digests = {node["name"]: (hostvars[node["name"]].get(QUERY) or {}).get("digest") for node in deployment["nodes"]}
    head = deployment["head"]
    return [name for name in digests if name != head and (digests[head] is None or digests[name] != digests[head])]


def environment(hostvars: t.Mapping[str, t.Any], deployment: dict[str, t.Any], name: str) -> dict[str, str]:
    """The variables of node *name*: the exact interface, and both halves of its cage."""
    node = _deployment.node_of(deployment, name)
    rdma = (hostvars[name].get(QUERY) or {}).get("rdma") or {}
    return _common.network_environment(node, rdma, deployment["fabric"])


def figures(
    hostvars: t.Mapping[str, t.Any], deployment: dict[str, t.Any], name: str, message_bytes: int
) -> dict[str, t.Any] | str:
    """The verdict over the collective benchmark for the record of node *name*, or why there is none."""
    if name != deployment["head"]:
        return f"see the record of {deployment['head']}, whose rank prints the figures"
    own, topology = hostvars[name], deployment["fabric"]["topology"]
    if "rc" in (own.get(COMMAND) or {}):
        return _fabric_loss.nccl_verdict(own[COMMAND], topology)
    if QUERY not in own:
        return "not checked: fabric_nccl is false and fabric_nccl_command is empty"
    against = refusals(hostvars, deployment, message_bytes)
    if against:
        return f"not checked: {'; '.join(against)}"
    results = {node["name"]: hostvars[node["name"]].get(RUN) or {} for node in deployment["nodes"]}
    if "rc" not in results[name]:
        return "not checked: the rank of the head did not end"
    logs = {
        other: "\n".join(str(result.get(key) or "") for key in ("stdout", "stderr", "msg"))
        for other, result in results.items()
    }
    found = _fabric_loss.nccl_verdict(results[name], topology, logs)
    said = [
        f"{other}: {_last(logs[other]) or 'said nothing'} (exit status {result.get('rc')})"
        for other, result in results.items()
        if result.get("rc") != 0
    ]
    if said:
        found["hint"] = "; ".join([*([found["hint"]] if found["hint"] else []), *said])
    return found


def _last(content: str) -> str:
    """The line that says what went wrong: the last one that is not part of NCCL's own log."""
    lines = [line.strip() for line in content.splitlines() if line.strip() and " NCCL INFO " not in line]
    return lines[-1][:300] if lines else ""

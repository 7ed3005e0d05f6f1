# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What the loss of a node does to the others, and what to say when the fabric stage fails. Pure functions."""

from __future__ import annotations

import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _throughput


def neighbours(nodes: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, set[str]]:
    """Who is joined to whom by a cable or a switch."""
    return {node["name"]: {peer["node"] for link in node["links"] for peer in link["peers"]} for node in nodes}


def islands(nodes: t.Sequence[t.Mapping[str, t.Any]], lost: t.Collection[str]) -> list[list[str]]:
    """The groups of nodes that still reach each other without the *lost* ones, each in rank order."""
    joined = neighbours(nodes)
    left = [node["name"] for node in nodes if node["name"] not in lost]
    found: list[list[str]] = []
    while left:
        island, edge = {left[0]}, [left[0]]
        while edge:
            new = joined[edge.pop()] - set(lost) - island
            island |= new
            edge += sorted(new)
        found.append([name for name in left if name in island])
        left = [name for name in left if name not in island]
    return found


def cut_off(nodes: t.Sequence[t.Mapping[str, t.Any]], lost: t.Collection[str]) -> list[str]:
    """Sentences that name who can no longer reach whom; empty when the others still all reach each other."""
    parts = islands(nodes, lost)
    if not lost or len(parts) < 2:
        return []
    names = ", ".join(sorted(lost))
    return [
        f"without {names}, {' and '.join(island)} {'is' if len(island) == 1 else 'are'} cut off from "
        f"{', '.join(name for other in parts if other is not island for name in other)} on the fabric"
        for island in parts[1:]
    ]


def refusal(
    deployment: t.Mapping[str, t.Any],
    results: t.Mapping[str, t.Mapping[str, t.Any]],
    lost: t.Collection[str],
    limit_s: int,
) -> str:
    """What the stage says at its end: the problems of all nodes, who is cut off, and what became of the change.

    *results*: per node ``problems`` (texts), ``closed`` (where a firewall there drops packets of the fabric) and
    ``reverted`` (whether a change was taken back there).
    """
    lines = [f"- {problem}" for result in results.values() for problem in result.get("problems", []) if problem]
    lines += [f"- {text}" for result in results.values() for text in result.get("closed", [])]
    for name in lost:
        lines.append(f"- {name}: was not reached on its management address; wanted an answer. Is it up?")
    lines += [f"- {sentence}" for sentence in cut_off(deployment["nodes"], lost)]
    reverted = [name for name, result in results.items() if result.get("reverted")]
    if reverted:
        lines.append(f"- the change was taken back on {', '.join(reverted)}: the old configuration is there again")
    if lost:
        lines.append(f"- {', '.join(lost)}: takes an unconfirmed change back by itself, {limit_s} s after it came")
    return "\n".join(["The fabric is not proven.", *(lines or ["- see the failed task above"])])


def results(
    hostvars: t.Mapping[str, t.Any], deployment: t.Mapping[str, t.Any], keys: t.Sequence[str], reverted: str
) -> dict[str, dict[str, t.Any]]:
    """For :func:`refusal`: the messages of the registered results *keys* that failed, and of *reverted*; and whether
    any of them changed something.
    """
    found = {}
    for node in deployment["nodes"]:
        variables = hostvars[node["name"]]
        taken = [variables.get(key) or {} for key in keys]
        found[node["name"]] = {
            "problems": [str(r["msg"]) for r in taken if r.get("failed") and r.get("msg") and not r.get("unreachable")],
            "closed": [str(text) for r in taken for text in r.get("closed") or []],
            "changed": any(r.get("changed") for r in taken),
            "reverted": bool((variables.get(reverted) or {}).get("changed")),
        }
    return found


def lost(hostvars: t.Mapping[str, t.Any], deployment: t.Mapping[str, t.Any], key: str) -> list[str]:
    """Nodes that the last task, which registered *key*, did not reach."""
    found = {node["name"]: hostvars[node["name"]].get(key) for node in deployment["nodes"]}
    return [name for name, result in found.items() if not result or result.get("unreachable")]


def nccl_verdict(
    result: t.Mapping[str, t.Any], topology: str, logs: t.Mapping[str, str | None] | None = None
) -> dict[str, t.Any]:
    """The verdict over the registered *result* of an nccl-tests program, and the *logs* of all its ranks."""
    found = _throughput.nccl(f"{result.get('stdout', '')}\n{result.get('stderr', '')}", topology, logs)
    if result["rc"] != 0 and found["verdict"] != _throughput.NOT_MEASURED:
        found.update(verdict="failed", hint=f"the command ended with status {result['rc']}")
    return found

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Who copies a model from whom, over which addresses. Pure functions.

A receiver copies from its neighbours that are one cable nearer to a node that has the model, over every rail of the
cable. In a pair, on a switch and in a ring of three that is the source itself: what bounds a receiver is its own disk,
so nothing is gained by handing on. In a chain or a ring of four the nodes in between hand every file on as soon as it
is proven there: each cable carries the model once, where copying past them would send it over the first cable once per
node behind it.
"""

from __future__ import annotations

import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _replicate
from ansible_collections.tandem.spark.plugins.plugin_utils import _fabric_routes

STREAMS = 2


def plan(
    deployment: dict[str, t.Any],
    receivers: t.Sequence[str],
    *,
    release: str,
    staging: str,
    holders: t.Sequence[str] | None = None,
    streams: int = STREAMS,
    files: t.Sequence[tuple[str, int]] | None = None,
) -> dict[str, t.Any]:
    """The plan of one replication.

    *receivers*: names of the nodes that are to get it. *holders*: those that have it (default: all others), in
    *release*; receivers gather it in *staging*. *streams*: rsyncs per rail, default 2: one of them is bound by one core
    (reference: hardware, section 3). *files*: path and bytes of each, where they are known.

    Returns ``order`` (receivers by their distance from a holder: a list of lists), ``lanes`` (by receiver: see
    ``_replicate.Lane``), ``shares`` (by node that offers: ``path``, ``relay``, and ``listen`` with an ``address`` per
    rail and its ``peers``), ``unreached`` (receivers without a way), and with *files* ``streams`` (by receiver: the
    files of each stream, in the order of the lanes).
    """
    nodes = deployment["nodes"]
    names = [node["name"] for node in nodes]
    wanted = [name for name in names if name in receivers]
    have = [name for name in names if name not in receivers and (holders is None or name in holders)]
    distance = _distances(_fabric_routes.neighbours(nodes), have, wanted)
    lanes: dict[str, list[dict[str, t.Any]]] = {}
    for node in nodes:
        if node["name"] not in wanted:
            continue
        own = _from_neighbours(node, distance) or _from_afar(nodes, node, have)
        lanes[node["name"]] = [
            {
                **lane,
                "path": release if lane["node"] in have else staging,
                "relay": lane["node"] not in have,
                "streams": streams,
            }
            for lane in own
        ]
    result = {
        "order": _order(wanted, lanes, distance),
        "lanes": lanes,
        "shares": _shares(names, lanes, release, staging),
        "unreached": [name for name in wanted if not lanes[name]],
    }
    if files is not None:
        result["streams"] = {name: _replicate.assign(files, streams * len(own)) for name, own in lanes.items() if own}
    return result


def _distances(graph: _fabric_routes.Graph, have: list[str], wanted: list[str]) -> dict[str, int]:
    """Cables between each receiver and the nearest holder, over receivers only: others have nothing to hand on."""
    found = dict.fromkeys(have, 0)
    waiting = list(have)
    while waiting:
        at = waiting.pop(0)
        for name in wanted:
            if name in graph[at] and name not in found:
                found[name] = found[at] + 1
                waiting.append(name)
    return found


def _from_neighbours(node: dict[str, t.Any], distance: dict[str, int]) -> list[dict[str, t.Any]]:
    nearer = distance.get(node["name"], 0) - 1
    return [
        {"node": peer["node"], "address": peer["ip"], "local": link["ip"], "rail": link["rail"], "hops": 1}
        for link in node["links"]
        for peer in link["peers"]
        if distance.get(peer["node"]) == nearer
    ]


def _from_afar(nodes: list[dict[str, t.Any]], node: dict[str, t.Any], have: list[str]) -> list[dict[str, t.Any]]:
    """Past nodes that take no part, over the planned routes, from the holder with the shortest way."""
    far = [entry for entry in node["far"] if entry["node"] in have]
    nearest = min(far, key=lambda entry: (entry["hops"], have.index(entry["node"])), default=None)
    lanes = []
    for entry in far:
        if nearest is None or entry["node"] != nearest["node"]:
            continue
        way = _fabric_routes.follow(nodes, node["name"], entry["ip"])
        out = next((link for link in node["links"] if len(way) > 1 and link["interface"] == way[0][2]), None)
        if out is not None:
            lanes.append(
                {
                    "node": entry["node"],
                    "address": entry["ip"],
                    "local": out["ip"],
                    "rail": entry["rail"],
                    "hops": entry["hops"],
                }
            )
    return lanes


def _order(wanted: list[str], lanes: dict[str, list[dict[str, t.Any]]], distance: dict[str, int]) -> list[list[str]]:
    # Past others that take no part it comes straight from a holder, so nothing has to be there before.
    steps = {name: distance.get(name, 1) for name in wanted if lanes[name]}
    return [[name for name in wanted if steps.get(name) == step] for step in sorted(set(steps.values()))]


def _shares(
    names: list[str], lanes: dict[str, list[dict[str, t.Any]]], release: str, staging: str
) -> dict[str, dict[str, t.Any]]:
    shares: dict[str, dict[str, t.Any]] = {}
    for name in names:
        peers: dict[str, list[str]] = {}
        used = [lane for own in lanes.values() for lane in own if lane["node"] == name]
        for lane in used:
            allowed = peers.setdefault(lane["address"], [])
            if lane["local"] not in allowed:
                allowed.append(lane["local"])
        if used:
            shares[name] = {
                "path": used[0]["path"],
                "relay": used[0]["relay"],
                "listen": [{"address": address, "peers": allowed} for address, allowed in peers.items()],
            }
    return shares

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What a topology can carry, and what NCCL has to be told of it. Pure functions over a plan of the fabric."""

from __future__ import annotations

import itertools
import re
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _version
from ansible_collections.tandem.spark.plugins.plugin_utils import _fabric_routes, _wiring

# What NCCL needs to be told of a topology; nothing where its own choice is right (reference: hardware, 3.8 and 4).
NCCL_OF_RINGS = {"NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_NET_PLUGIN": "none"}
NCCL: dict[str, dict[str, str]] = {
    # As NVIDIA's own script for three nodes sets it.
    "ring3": {**NCCL_OF_RINGS, "NCCL_IB_MERGE_NICS": "0"},
    # No node has a cable to its opposite, so that only the ring algorithm may run: not trees, PAT, NVLS or CollNet.
    "ring4": {
        **NCCL_OF_RINGS,
        "NCCL_ALGO": "Ring",
        "NCCL_RUNTIME_CONNECT": "1",
        "NCCL_CUMEM_ENABLE": "1",
        "NCCL_PAT_ENABLE": "0",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_COLLNET_ENABLE": "0",
    },
}
# The first release with which rings were seen to work; 2.29.7 ends in ncclCommInitRank (hardware, 3.8 and 12.3).
NCCL_OLDEST = "2.30.7"


def nccl_of(lock: str) -> str | None:
    """The version of NCCL in the text of a lock; None when it has none of its own."""
    match = re.search(r"^nvidia-nccl-cu\d+==([\w.]+)", lock, re.MULTILINE | re.ASCII)
    return match[1] if match else None


def nccl_problems(plan_: dict[str, t.Any], engine: str, version: str | None) -> list[str]:
    """Whether the engine's NCCL is too old for a ring. An unknown one is not judged here."""
    if plan_["topology"] not in NCCL or _version.compare(version, NCCL_OLDEST) != -1:
        return []
    return [
        f"engine: found NCCL {version} in the lock of {engine}, wanted {NCCL_OLDEST} or newer on a ring of "
        f"{len(plan_['nodes'])}; choose a newer release of the engine, or join the nodes with a switch"
    ]


def carries(plan_: dict[str, t.Any], engine: str, tensor_parallel: int, *, by_layers: bool = False) -> list[str]:
    """Why this fabric cannot carry an engine, with the ways out; empty when it can.

    *by_layers*: the engine splits a model by its layers and speaks TCP, so that any fabric with routes will do.
    """
    nodes, kind, order = plan_["nodes"], plan_["topology"], plan_["order"]
    if tensor_parallel < 2 or by_layers or kind in ("single", "pair", "switch"):
        return []
    asks = f"{engine} with tensor parallelism {tensor_parallel}"
    if kind in ("ring3", "ring4"):
        names = [node["name"] for node in nodes]
        turned = order[:1] + order[:0:-1]
        if names in (order, turned):
            return []
        return [
            f"ring {' - '.join(order)} - {order[0]}: found the ranks in the order {', '.join(names)}, wanted that of "
            f"the cables ({', '.join(order)}), since {asks} passes everything from rank to rank; reorder the hosts of "
            "the group"
        ]
    graph = _fabric_routes.neighbours(nodes)
    head = nodes[0]["name"]
    beyond = [node["name"] for node in nodes[1:]]
    apart = [
        f"{a['name']} and {b['name']}" for a, b in itertools.combinations(nodes, 2) if b["name"] not in graph[a["name"]]
    ]
    if not apart:
        return []
    lines = {"chain": "an open chain", "ring": f"a ring of {len(nodes)}"}.get(kind, "cables that do not join all nodes")
    return [
        f"{lines} ({' - '.join(order)}): no link of {head} reaches every other node ({', '.join(beyond)}) in one hop, "
        f"and {' or '.join(apart[:3])}{' and others' if len(apart) > 3 else ''} have no cable between them; {asks} "
        f"wants that, since its ranks all talk to each other over RDMA, which no node passes on. {_ways_out(plan_)}"
    ]


def _ways_out(plan_: dict[str, t.Any]) -> str:
    """What one can do on a fabric that cannot carry all-to-all traffic."""
    order = plan_["order"]
    ways = []
    if plan_["topology"] == "chain" and len(order) <= 4:
        cables = [
            (_end(cable[0]), _end(cable[1]))
            for cable in plan_["cables"]
            if len(cable) == 2 and _wiring.SWITCH not in cable
        ]
        free = dict(_wiring.free_ends(cables, order)) if cables else {}
        ends = [_wiring.end_text((name, free[name])) if name in free else name for name in (order[-1], order[0])]
        ways.append(f"close the ring with a cable from {ends[0]} to {ends[1]}")
    ways += ["join all nodes with a switch", "use an engine that splits the model by layers (llama.cpp over RPC)"]
    return f"Either {', or '.join(ways)}"


def _end(text: str) -> _wiring.End:
    name, _dot, cage = text.rpartition(".")
    return name, int(cage)

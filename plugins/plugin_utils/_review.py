# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What every check of the preflight needs: the facts of all nodes, the deployment, and where findings go."""

from __future__ import annotations

import ipaddress
import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils._advisories import value
from ansible_collections.tandem.spark.plugins.plugin_utils._catalogue import CATALOGUE, Finding

# Why a node could not be asked when nobody tried.
NOT_IN_THE_RUN = "this node is not part of the run (is it left out by --limit?)"
FACTS = ("spark_gpu", "spark_memory", "spark_platform", "spark_fabric")
OWN_UNITS = "tandem-"
KERNEL_COMPILERS = ("vllm", "sglang", "tensorrt_llm")  # engines that compile kernels while they run
GIB = 1024**3
GB = 1000**3


class Review:
    """Everything that one call of :func:`findings` needs to know, and the findings so far."""

    def __init__(self, nodes: t.Mapping[str, t.Any], deployment: t.Mapping[str, t.Any]) -> None:
        self.deployment = deployment
        self.all_names = [str(name) for name in nodes]
        self.facts: dict[str, dict[str, t.Any]] = {}
        self.unreachable: dict[str, str] = {}
        self.found: list[Finding] = []
        self.unchecked: dict[str, list[str]] = {}
        for name, facts in nodes.items():
            if isinstance(facts, t.Mapping) and not facts.get("unreachable"):
                self.facts[str(name)] = dict(facts)
            else:
                reason = facts.get("unreachable") if isinstance(facts, t.Mapping) else facts
                self.unreachable[str(name)] = reason if isinstance(reason, str) and reason else "no reason given"
        recipe = deployment.get("recipe")
        self.recipe: t.Mapping[str, t.Any] = recipe if isinstance(recipe, t.Mapping) else deployment
        self.engine = as_map(self.recipe, "engine") or as_map(deployment, "engine")
        self.fabric = as_map(deployment, "fabric")
        self.size = max(len(self.all_names), len(deployment.get("nodes") or []))

    def add(self, id_: str, severity: str, nodes: t.Iterable[str], found: str, wanted: str, remedy: str) -> None:
        self.found.append(Finding(id_, severity, tuple(nodes), found, wanted, remedy, CATALOGUE[id_][1]))

    def not_checked(self, what: str, node: str) -> None:
        names = self.unchecked.setdefault(what, [])
        if node not in names:
            names.append(node)

    def running_here(self, name: str) -> bool:
        """Whether this collection's own engine runs on the node, which then has less free memory than it will have."""
        processes = as_list(self.facts[name], "spark_gpu.compute_processes")
        ports = as_list(self.facts[name], "spark_platform.ports")
        return any(own_unit(value(entry, "unit")) for entry in processes) or any(
            own_unit(value(entry, "process.unit")) for entry in ports
        )

    def compiles_kernels(self) -> bool:
        """Whether the engine compiles kernels while it runs, and so needs a compiler on the node."""
        return str(self.engine.get("name") or "").lower() in KERNEL_COMPILERS


def ports_of(deployment: t.Mapping[str, t.Any]) -> dict[str, tuple[int, list[str] | None]]:
    """The TCP ports that the deployment needs: name -> (port, nodes, or None for all of them)."""
    head = [str(deployment["head"])] if deployment.get("head") else None
    found: dict[str, tuple[int, list[str] | None]] = {}
    api = value(deployment, "api.port")
    rendezvous = value(deployment, "serve.rendezvous_port")
    if isinstance(api, int):
        found["api"] = (api, head)
    if isinstance(rendezvous, int) and len(deployment.get("nodes") or []) > 1:
        found["rendezvous"] = (rendezvous, head)
    for name, entry in (deployment.get("ports") or {}).items():
        if isinstance(entry, t.Mapping):
            port, where = entry.get("port"), entry.get("nodes")
        else:
            port, where = entry, (head if name in ("api", "rendezvous") else None)
        if isinstance(port, int) and not isinstance(port, bool):
            found[str(name)] = (port, list(where) if where else None)
    return found


def gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"


def gb(size: float) -> str:
    return f"{size / GB:.1f} GB"


def conjoin(names: t.Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def own_unit(unit: t.Any) -> bool:
    return isinstance(unit, str) and unit.startswith(OWN_UNITS)


def as_list(facts: t.Any, path: str) -> list[t.Any]:
    found = value(facts, path)
    return [entry for entry in found if entry is not None] if isinstance(found, list) else []


def as_map(facts: t.Any, path: str) -> dict[str, t.Any]:
    found = value(facts, path)
    return dict(found) if isinstance(found, t.Mapping) else {}


def as_maps(facts: t.Any, path: str) -> dict[str, dict[str, t.Any]]:
    return {name: dict(entry) for name, entry in as_map(facts, path).items() if isinstance(entry, t.Mapping)}


def address_of(text: t.Any) -> ipaddress.IPv4Interface | None:
    try:
        return ipaddress.IPv4Interface(str(text)) if text is not None and "/" in str(text) else None
    except ValueError:
        return None


def wider(a: ipaddress.IPv4Interface, b: ipaddress.IPv4Interface) -> str:
    return str(min(a.network, b.network, key=lambda network: network.prefixlen))

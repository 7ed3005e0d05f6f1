# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What every node has to do for the fabric: addresses, routes, forwarding, allowances, environment. Pure functions.

``plan`` takes the wiring (``tandem_links`` per node, or ``tandem_cables`` / ``tandem_switch``), the pool, and what the
nodes say of themselves where that is known (``spark_fabric``). It returns the plan and every problem found. The plan:

``topology``
    ``single``, ``pair``, ``ring3``, ``ring4``, ``ring`` (five and more), ``chain`` (three and more, open), ``switch``
    (one network joins all), ``mesh`` (anything else that hangs together).
``order``
    Node names along the cables: of a chain from the end with the lower rank, of a ring from the head.
``cables``
    ``[[spark-a.1, spark-b.0], …]``, the wiring that was declared; ``[spark-a.0, switch]`` on a switch; empty where
    links were given whose interfaces do not tell their cage.
``rendezvous``
    ``fabric`` or ``management``: on which network the ranks find each other, with its ``rendezvous_ip`` (of the head).
``environment``
    NCCL settings of this topology, for nodes that have RDMA devices.
``nodes``, in rank order, each with
    ``name``, ``rank``, ``address`` (management)
    ``links``
        One per rail: ``interface``, ``address`` (with prefix length), ``ip``, ``network``, ``mtu``, ``rail`` (the half
        of the cage: 0, 1, or null), ``cage`` (0, 1, or null), ``peers`` (``node``, ``interface``, ``ip``: all that
        are reached without a hop).
    ``routes``
        One per network or address that is no neighbour's: ``destination`` (``10.100.128.8/30`` or ``10.100.128.9/32``),
        ``via`` (a neighbour's address), ``interface`` (own), ``rail``, ``nodes`` (whom it leads to). Never a default.
    ``forwarding``
        Pairs ``[interface, interface]`` between which this node passes packets on, both ways; and between no others.
        Empty: no forwarding is needed here.
    ``firewall``
        Per link: ``interface``, ``rail``, ``sources`` (networks from which input is to be accepted: those of the whole
        fabric, own ones included, because relayed packets keep the sender's address, and ranks choose their ports).
    ``far``
        Nodes that are reached over others, one entry per rail: ``node``, ``ip``, ``rail``, ``hops`` (cables on the
        way), ``through`` (node names in order), ``mtu`` (the smallest on the way). An end-to-end proof pings these.
    ``fabric_ip``
        The node's one address towards the group: on its link that leads to the head. Every other node has a way to it.
        Null without a fabric.
    ``source_ip``
        The head's ``fabric_ip``, from which copies are fetched; null on the head itself.
    ``socket_interface``
        Interface that rendezvous traffic uses (NCCL's and Gloo's sockets).

No dummy interface carries the identity: an address of a real link and routes to it do the same with one kind of device
less, and the way to a node then ends where its cable ends (reference: hardware, section 3.6).
"""

from __future__ import annotations

import ipaddress
import re
import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils import (
    _fabric_carry,
    _fabric_links,
    _fabric_pool,
    _fabric_routes,
    _wiring,
)
from ansible_collections.tandem.spark.plugins.plugin_utils._addresses import is_address

RENDEZVOUS = ("auto", "fabric", "management")
RINGS = ("ring3", "ring4", "ring")


def node_of(name: str, hostvars: t.Any) -> dict[str, t.Any]:
    """What :func:`plan` needs of a host's variables."""
    return {
        "name": name,
        "address": hostvars.get("ansible_host", name),
        "links": hostvars.get("tandem_links", []),
        "cables": hostvars.get("tandem_cables", []),
        "switch": hostvars.get("tandem_switch", {}),
        # What the node said of its network, where it was asked before: names of interfaces, addresses in use.
        "facts": hostvars.get("ansible_facts", {}).get("spark_fabric"),
    }


# -- the wiring that is declared --------------------------------------------------------------------------------------


def _declared(nodes: list[dict[str, t.Any]]) -> tuple[list[_wiring.Cable], dict[str, int], list[str]]:
    """Cables and switch cages of the inventory. Both empty: the nodes have links with addresses, or nothing."""
    names = [str(node["name"]) for node in nodes]
    linked = [node["name"] for node in nodes if node.get("links")]
    cabled = [node["name"] for node in nodes if node.get("cables")]
    switched = [node["name"] for node in nodes if node.get("switch")]
    kinds = {"tandem_links": linked, "tandem_cables": cabled, "tandem_switch": switched}
    if sum(map(bool, kinds.values())) > 1:
        told = "; ".join(f"{kind} on {', '.join(where)}" for kind, where in kinds.items() if where)
        return [], {}, [f"wiring: found {told}; wanted one of them, for all nodes"]
    if cabled:
        if any(node.get("cables") != nodes[0].get("cables") for node in nodes):
            return [], {}, ["tandem_cables differs between nodes, wanted one list for the whole group (group_vars)"]
        cables, problems = _wiring.parse_cables(nodes[0]["cables"], names)
        return cables, {}, problems
    cages: dict[str, int] = {}
    problems = []
    for node in nodes if switched else []:
        cage, problem = _wiring.parse_switch(node.get("switch"), node["name"])
        problems += [problem] if problem else []
        if cage is not None:
            cages[node["name"]] = cage
    return [], cages, problems


def _planned_links(
    nodes: list[dict[str, t.Any]],
    built: list[dict[str, t.Any]],
    cables: list[_wiring.Cable],
    cages: dict[str, int],
    mtu: int,
    pool: t.Any,
) -> list[str]:
    """Give *built* its links from the cables, with addresses from the pool."""
    bytes_ = _fabric_links.mtu_of(mtu)
    if bytes_ is None:
        low, high = _fabric_links.MTU_RANGE
        return [f"tandem_mtu: found {mtu!r}, wanted a number from {low} to {high}"]
    try:
        space = ipaddress.IPv4Network(str(pool))
    except ValueError as error:
        return [f"tandem_fabric_pool: found {pool!r} ({error}), wanted an IPv4 network, such as {_fabric_pool.POOL}"]
    if not space.is_private or space.is_loopback or space.is_link_local:
        return [f"tandem_fabric_pool: found {space}, wanted a private range, such as {_fabric_pool.POOL}"]
    wanted = _fabric_pool.segments(nodes, cables, cages)
    addresses, problems = _fabric_pool.assign(nodes, wanted, space)
    by_name = {node["name"]: node for node in built}
    for number, ((_prefix, ends), given) in enumerate(zip(wanted, addresses)):
        for (name, cage, interface), address in zip(ends, given):
            entry = _fabric_links.link(interface, address, bytes_, (cage, number % 2))
            by_name[name]["links"].append(entry)
    for node in built:
        node["links"].sort(key=lambda link: (link["cage"], link["rail"]))
    return problems


# -- topology ---------------------------------------------------------------------------------------------------------


def topology(nodes: list[dict[str, t.Any]]) -> tuple[str, list[str], list[str]]:
    """(kind, node names along the cables, problems) of nodes that know their neighbours."""
    names = [node["name"] for node in nodes]
    graph = _fabric_routes.neighbours(nodes)
    if len(nodes) == 1:
        return "single", names, []
    reached = _fabric_routes.distances(graph, names[0])
    cut = [name for name in names if name not in reached]
    if cut:
        return (
            "split",
            names,
            [
                f"wiring: found no way from {', '.join(reached)} to {', '.join(cut)}, wanted a cable between them: one "
                "group is one fabric"
            ],
        )
    if len(nodes) == 2:
        return "pair", names, []
    if _everyone(nodes):
        return "switch", names, []
    degrees = sorted(len(others) for others in graph.values())
    if degrees == [2] * len(nodes):
        kind = f"ring{len(nodes)}" if len(nodes) < 5 else "ring"
        return kind, _along(graph, names, names[0]), []
    if degrees == [1, 1] + [2] * (len(nodes) - 2):
        return "chain", _along(graph, names, next(name for name in names if len(graph[name]) == 1)), []
    return "mesh", names, []


def _along(graph: _fabric_routes.Graph, names: list[str], start: str) -> list[str]:
    order = [start]
    while True:
        ahead = [name for name in names if name in graph[order[-1]] and name not in order]
        if not ahead:
            return order
        order.append(ahead[0])


def _everyone(nodes: list[dict[str, t.Any]]) -> dict[str, t.Any] | None:
    """The head's first link to whose network every other node belongs."""
    others = {node["name"] for node in nodes[1:]}
    return next((link for link in nodes[0]["links"] if {peer["node"] for peer in link["peers"]} >= others), None)


def identities(nodes: list[dict[str, t.Any]]) -> None:
    """Give each node its ``fabric_ip`` and ``source_ip``: its address on its way to the head, and the head's.

    Every node lists its rails in an order of its own, so the link is found by the head's address, not by its place.
    """
    head, meeting = nodes[0], _everyone(nodes) if len(nodes) > 1 else None
    first = meeting or (head["links"][0] if head["links"] else None)
    head["fabric_ip"], head["source_ip"] = (first["ip"] if first else None), None
    for node in nodes[1:]:
        node["fabric_ip"] = node["links"][0]["ip"] if node["links"] else None
        node["source_ip"] = None
        if first is None:
            continue
        own = next((link for link in node["links"] if link["network"] == first["network"]), None)
        if own is None:
            way = _fabric_routes.follow(nodes, node["name"], first["ip"])
            out = way[0][2] if len(way) > 1 else None
            own = next((link for link in node["links"] if link["interface"] == out), None)
        if own is not None:
            node["fabric_ip"], node["source_ip"] = own["ip"], first["ip"]


def _meet(plan_: dict[str, t.Any], nodes: list[dict[str, t.Any]], asked: str) -> list[str]:
    """Decide where the ranks find each other, and over which interface of each node they do."""
    built = plan_["nodes"]
    seen = [
        ((node.get("facts") or {}).get("management_interface"), (node.get("facts") or {}).get("management_address"))
        for node in nodes
    ]
    head = str(built[0]["address"])
    plain = is_address(head) and not ipaddress.ip_address(head).is_loopback
    address = head if plain else seen[0][1]
    wired = [bool(interface) and not str(interface).startswith("wl") for interface, _address in seen]
    usable = bool(address) and all(wired)
    if asked == "management" and not usable:
        unfit = [
            f"{node['name']} ({interface or 'unknown'})"
            for node, (interface, _address), fits in zip(built, seen, wired)
            if not fits
        ] or [f"{built[0]['name']} (its address is {head})"]
        return [
            f"tandem_rendezvous: found management, and no wired management interface on {', '.join(unfit)}; wanted one "
            "on every node; set tandem_rendezvous: fabric"
        ]
    # In a ring a link's address leads to one neighbour only; NVIDIA's tools and the reports that work meet on the
    # management network. Wi-Fi is too slow for that (reference: hardware, section 3.6).
    manage = asked == "management" or (asked == "auto" and plan_["topology"] in RINGS and usable)
    plan_["rendezvous"] = "management" if manage else "fabric"
    plan_["rendezvous_ip"] = address if manage else built[0]["fabric_ip"]
    for node, (interface, _address) in zip(built, seen):
        own = next((link["interface"] for link in node["links"] if link["ip"] == node["fabric_ip"]), None)
        node["socket_interface"] = interface if manage else own
    return []


# -- the plan ---------------------------------------------------------------------------------------------------------


def plan(
    nodes: list[dict[str, t.Any]],
    *,
    mtu: int = 9000,
    pool: t.Any = _fabric_pool.POOL,
    gid_index: t.Any = None,
    rendezvous: str = "auto",
) -> tuple[dict[str, t.Any], list[str]]:
    """Return the plan (above) and every problem found; with problems the plan must not be used.

    *nodes*: in rank order, each with ``name``, ``address`` (management), one of ``links``, ``cables`` and ``switch``,
    and ``facts`` (``spark_fabric``, where it is known).
    """
    cables, cages, problems = _declared(nodes)
    built: list[dict[str, t.Any]] = [
        {"name": node["name"], "rank": rank, "address": str(node.get("address") or node["name"]), "links": []}
        for rank, node in enumerate(nodes)
    ]
    if rendezvous not in RENDEZVOUS:
        problems.append(f"tandem_rendezvous: found {rendezvous!r}, wanted one of {', '.join(RENDEZVOUS)}")
    pinned = "" if gid_index is None else str(gid_index).strip()
    if not re.fullmatch(r"(\d{1,3})?", pinned, re.ASCII):
        problems.append(f"tandem_gid_index: found {gid_index!r}, wanted a number, or nothing to let NCCL find it")
    if not problems and (cables or cages):
        problems += _planned_links(nodes, built, cables, cages, mtu, pool)
    elif not problems:
        for node, given in zip(built, nodes):
            node["links"], own = _fabric_links.given(given, mtu)
            problems += own
        if len(built) > 1:
            problems += [
                f"{node['name']}: tandem_links is empty, wanted the address of at least one cable (or tandem_cables or "
                f"tandem_switch for the group): {len(built)} nodes meet on the fabric, never on the management network "
                "or loopback alone"
                for node, given in zip(built, nodes)
                if not given.get("links")
            ]
    problems += _fabric_links.join(built)
    result: dict[str, t.Any] = {"nodes": built}
    if problems or not built:
        return result, problems
    result["topology"], result["order"], problems = topology(built)
    if problems:
        return result, problems
    _fabric_routes.complete(built)
    identities(built)
    problems += _meet(result, nodes, rendezvous)
    if not cables and not cages:
        cables, cages = _cables_of(built)
    result["cables"] = [[_wiring.end_text(end) for end in cable] for cable in cables]
    result["cables"] += [[_wiring.end_text(end), _wiring.SWITCH] for end in cages.items()]
    result["environment"] = dict(_fabric_carry.NCCL.get(result["topology"], {}))
    if pinned:
        result["environment"]["NCCL_IB_GID_INDEX"] = pinned
    return result, problems


def _cables_of(nodes: list[dict[str, t.Any]]) -> tuple[list[_wiring.Cable], dict[str, int]]:
    """Cables and switch cages behind links that were given with addresses, where interfaces tell their cage."""
    links = {(node["name"], link["interface"]): link for node in nodes for link in node["links"]}
    cables: list[_wiring.Cable] = []
    cages: dict[str, int] = {}
    for (name, _interface), link in links.items():
        for peer in link["peers"] if link["cage"] is not None else []:
            other = links[peer["node"], peer["interface"]]["cage"]
            cable = ((name, link["cage"]), (peer["node"], other))
            if len(link["peers"]) > 1:
                cages[name] = link["cage"]
            elif other is not None and cable not in cables and cable[::-1] not in cables:
                cables.append(cable)
    return cables, cages


def unsettled(hostvars: t.Mapping[str, t.Any], deployment: t.Mapping[str, t.Any]) -> list[str]:
    """Nodes of which is known that a link has no carrier, or not the address or MTU that is planned for it.

    Only there it is worth while to look at the cables before anything is changed.
    """
    found = []
    for node in deployment["nodes"]:
        facts = hostvars[node["name"]].get("ansible_facts", {}).get("spark_fabric") or {}
        for link in node["links"]:
            entry = (facts.get("interfaces") or {}).get(link["interface"])
            there = entry and (entry.get("carrier"), entry.get("addresses"), entry.get("mtu"))
            if facts and there != (True, [link["address"]], link["mtu"]) and node["name"] not in found:
                found.append(node["name"])
    return found

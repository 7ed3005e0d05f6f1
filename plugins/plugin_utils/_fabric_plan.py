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
    ``[[spark-a.1, spark-b.0], …]``, the wiring that was declared; ``[spark-a.0, switch]`` on a switch; empty where links
    were given whose interfaces do not tell their cage.
``rendezvous``
    ``fabric`` or ``management``: on which network the ranks find each other, with its ``rendezvous_ip`` (of the head).
``environment``
    NCCL settings of this topology, for nodes that have RDMA devices.
``nodes``, in rank order, each with
    ``name``, ``rank``, ``address`` (management)
    ``links``
        One per rail: ``interface``, ``address`` (with prefix length), ``ip``, ``network``, ``mtu``, ``rail`` (the half of
        the cage: 0, 1, or null), ``cage`` (0, 1, or null), ``peers`` (``node``, ``interface``, ``ip``: all that are
        reached without a hop).
    ``routes``
        One per network or address that is no neighbour's: ``destination`` (``10.100.128.8/30`` or ``10.100.128.9/32``),
        ``via`` (a neighbour's address), ``interface`` (own), ``rail``, ``nodes`` (whom it leads to). Never a default.
    ``forwarding``
        Pairs ``[interface, interface]`` between which this node passes packets on, both ways; and between no others.
        Empty: no forwarding is needed here.
    ``firewall``
        Per link: ``interface``, ``rail``, ``sources`` (networks from which input is to be accepted: those of the whole
        fabric, own ones included, because relayed packets keep the sender's address and ranks use ports of their choice).
    ``far``
        Nodes that are reached over others, one entry per rail: ``node``, ``ip``, ``rail``, ``hops`` (cables on the
        way), ``through`` (node names in order), ``mtu`` (the smallest on the way). What an end-to-end proof has to ping.
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
import itertools
import re
import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils import _fabric_links, _fabric_routes, _wiring
from ansible_collections.tandem.spark.plugins.plugin_utils._addresses import is_address

Network = ipaddress.IPv4Network
Facts = t.Mapping[str, t.Any]

POOL = "10.100.128.0/20"
CABLE_PREFIX, SWITCH_PREFIX = 30, 24
RAILS = (0, 1)
RENDEZVOUS = ("auto", "fabric", "management")
# The names that the halves of a cage have on every Spark (reference: hardware, section 3.1).
NAMES = ("enp1s0f{cage}np{cage}", "enP2p1s0f{cage}np{cage}")

# What NCCL needs to be told of a topology; nothing where its own choice is right (reference: hardware, sections 3.8, 4).
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
RINGS = ("ring3", "ring4", "ring")


# -- addresses from the pool ------------------------------------------------------------------------------------------


def interface_of(facts: Facts | None, cage: int, rail: int) -> str:
    """The interface of one half of a cage: as its node says, else as it is called on every Spark."""
    for name, entry in ((facts or {}).get("interfaces") or {}).items():
        if isinstance(entry, t.Mapping) and (entry.get("cage"), entry.get("half")) == (cage, rail):
            return str(name)
    return NAMES[rail].format(cage=cage)


def segments(
    nodes: list[dict[str, t.Any]], cables: list[_wiring.Cable], cages: dict[str, int]
) -> list[tuple[int, list[tuple[str, int, str]]]]:
    """The networks to be made: (prefix length, ends as (node, cage, interface)); both rails of a cable in turn."""
    facts = {node["name"]: node.get("facts") for node in nodes}
    found = []
    for cable in cables:
        for rail in RAILS:
            ends = [(name, cage, interface_of(facts[name], cage, rail)) for name, cage in cable]
            found.append((CABLE_PREFIX, ends))
    if cages:
        for rail in RAILS:
            ends = [(name, cage, interface_of(facts[name], cage, rail)) for name, cage in cages.items()]
            found.append((SWITCH_PREFIX, ends))
    return found


def _network(text: t.Any) -> Network | None:
    try:
        return ipaddress.IPv4Interface(str(text)).network
    except ValueError:
        return None


def used_networks(node: t.Mapping[str, t.Any], planned: t.Container[str]) -> set[Network]:
    """Networks that a node uses for other things than the *planned* interfaces: addresses, routes, gateway."""
    facts = node.get("facts") or {}
    texts: list[t.Any] = [node.get("address")]
    for group in ("interfaces", "other_interfaces"):
        for name, entry in (facts.get(group) or {}).items():
            if name not in planned:
                texts += entry.get("addresses") or []
    for route in facts.get("routes") or []:
        # The way over a planned interface is one of this plan, or goes away with it.
        if route.get("interface") not in planned:
            texts += [route.get("destination"), route.get("gateway")]
    return {network for text in texts if (network := _network(text)) and network.prefixlen}


def present(facts: Facts | None, interface: str) -> ipaddress.IPv4Interface | None:
    """The address that an interface has now, if it can stay: exactly one, in a network of two or more hosts."""
    entry = ((facts or {}).get("interfaces") or {}).get(interface) or {}
    found = []
    for text in entry.get("addresses") or []:
        try:
            found.append(ipaddress.IPv4Interface(text))
        except ValueError:
            continue  # IPv6
    if len(found) != 1 or found[0].network.prefixlen > 30:
        return None
    address = found[0]
    edges = (address.network.network_address, address.network.broadcast_address)
    if address.is_loopback or address.is_link_local or address.ip in edges:
        return None
    return address


def keep(
    ends: list[tuple[str, int, str]], facts: t.Mapping[str, Facts | None], taken: t.Iterable[Network]
) -> list[ipaddress.IPv4Interface] | None:
    """Addresses for *ends* in a network that one of them has already; None when there is none that can stay."""
    have = [present(facts[name], interface) for name, _cage, interface in ends]
    for candidate in dict.fromkeys(address.network for address in have if address):
        if any(candidate.overlaps(other) for other in taken) or candidate.num_addresses - 2 < len(ends):
            continue
        fixed: list[ipaddress.IPv4Interface | None] = []
        for address in have:
            stays = address is not None and address.network == candidate and address not in fixed
            fixed.append(address if stays else None)
        left = (host for host in candidate.hosts() if host not in {address.ip for address in fixed if address})
        return [a or ipaddress.IPv4Interface(f"{next(left)}/{candidate.prefixlen}") for a in fixed]
    return None


def assign(
    nodes: list[dict[str, t.Any]], wanted: list[tuple[int, list[tuple[str, int, str]]]], pool: Network
) -> tuple[list[list[ipaddress.IPv4Interface]], list[str]]:
    """Addresses for every end of every segment; first those that can stay, then new ones from the *pool*."""
    facts = {node["name"]: node.get("facts") for node in nodes}
    rank = {node["name"]: number for number, node in enumerate(nodes)}
    planned: dict[str, set[str]] = {node["name"]: set() for node in nodes}
    for _prefix, ends in wanted:
        for name, _cage, interface in ends:
            planned[name].add(interface)
    foreign = set[Network]().union(*(used_networks(node, planned[node["name"]]) for node in nodes))
    result: list[list[ipaddress.IPv4Interface] | None] = []
    taken = list(foreign)
    for _prefix, ends in wanted:
        kept = keep(ends, facts, taken)
        taken += [kept[0].network] if kept else []
        result.append(kept)
    lacking = 0
    for number, (prefix, ends) in enumerate(wanted):
        if result[number] is not None:
            continue
        free = (n for n in pool.subnets(new_prefix=prefix) if not any(n.overlaps(o) for o in taken))
        network = next(free, None) if pool.prefixlen <= prefix else None
        if network is None:
            lacking += 1
            continue
        taken.append(network)
        # On a switch the host number is the node's own, so that it can be told from the address.
        numbers = [rank[name] + 1 for name, _c, _i in ends] if prefix == SWITCH_PREFIX else range(1, len(ends) + 1)
        result[number] = [ipaddress.IPv4Interface(f"{network[host]}/{prefix}") for host in numbers]
    if lacking:
        busy = ", ".join(str(network) for network in sorted(foreign) if network.overlaps(pool)) or "nothing"
        return [], [
            f"tandem_fabric_pool: found {pool}, which lacks room for {lacking} of {len(wanted)} networks (in use by "
            f"other things: {busy}), wanted a private range that is free on every node, such as {POOL}"
        ]
    return [addresses for addresses in result if addresses is not None], []


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
        return [f"tandem_fabric_pool: found {pool!r} ({error}), wanted an IPv4 network, such as {POOL}"]
    if not space.is_private or space.is_loopback or space.is_link_local:
        return [f"tandem_fabric_pool: found {space}, wanted a private range, such as {POOL}"]
    wanted = segments(nodes, cables, cages)
    addresses, problems = assign(nodes, wanted, space)
    by_name = {node["name"]: node for node in built}
    for number, ((_prefix, ends), given) in enumerate(zip(wanted, addresses)):
        for (name, cage, interface), address in zip(ends, given):
            entry = _fabric_links.link(interface, address, bytes_, (cage, RAILS[number % len(RAILS)]))
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
    pool: t.Any = POOL,
    gid_index: t.Any = None,
    rendezvous: str = "auto",
) -> tuple[dict[str, t.Any], list[str]]:
    """Return the plan (above) and every problem found; with problems the plan must not be used.

    *nodes*: in rank order, each with ``name``, ``address`` (management), one of ``links``, ``cables`` and ``switch``, and
    ``facts`` (``spark_fabric``, where it is known).
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
    ends = [[(name, cage), (_wiring.SWITCH, 0)] for name, cage in cages.items()]
    result["cables"] = [[_wiring.end_text(end) for end in cable] for cable in cables or _cables_of(built)]
    result["cables"] += [[_wiring.end_text(ends_[0]), _wiring.SWITCH] for ends_ in ends]
    result["environment"] = dict(NCCL.get(result["topology"], {}))
    if pinned:
        result["environment"]["NCCL_IB_GID_INDEX"] = pinned
    return result, problems


def _cables_of(nodes: list[dict[str, t.Any]]) -> list[_wiring.Cable]:
    """The cables behind links that were given with addresses; none where an interface does not tell its cage."""
    links = {(node["name"], link["interface"]): link for node in nodes for link in node["links"]}
    found = []
    for (name, _interface), link in links.items():
        for peer in link["peers"]:
            other = links[peer["node"], peer["interface"]]
            if len(link["peers"]) > 1 or link["cage"] is None or other["cage"] is None:
                return []
            cable = ((name, link["cage"]), (peer["node"], other["cage"]))
            if cable not in found and (cable[1], cable[0]) not in found:
                found.append(cable)
    return found


# -- what it can carry ------------------------------------------------------------------------------------------------


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
            f"ring {' - '.join(order)} - {order[0]}: found the ranks in the order {', '.join(names)}, wanted that of the "
            f"cables ({', '.join(order)}), since {asks} passes everything from rank to rank; reorder the hosts of the "
            "group"
        ]
    graph = _fabric_routes.neighbours(nodes)
    head = nodes[0]["name"]
    beyond = [node["name"] for node in nodes[1:]]
    apart = [f"{a['name']} and {b['name']}" for a, b in itertools.combinations(nodes, 2) if b["name"] not in graph[a["name"]]]
    if not apart:
        return []
    lines = {"chain": "an open chain", "ring": f"a ring of {len(nodes)}"}.get(kind, "cables that do not join all nodes")
    return [
        f"{lines} ({' - '.join(order)}): no link of {head} reaches every other node ({', '.join(beyond)}) in one hop, and "
        f"{' or '.join(apart[:3])}{' and others' if len(apart) > 3 else ''} have no cable between them; {asks} wants "
        f"that, since its ranks all talk to each other over RDMA, which no node passes on. {_ways_out(plan_)}"
    ]


def _ways_out(plan_: dict[str, t.Any]) -> str:
    """What one can do on a fabric that cannot carry all-to-all traffic."""
    order = plan_["order"]
    ways = []
    if plan_["topology"] == "chain" and len(order) <= 4:
        cables = [
            (_end(cable[0]), _end(cable[1])) for cable in plan_["cables"] if len(cable) == 2 and _wiring.SWITCH not in cable
        ]
        free = dict(_wiring.free_ends(cables, order)) if cables else {}
        ends = [_wiring.end_text((name, free[name])) if name in free else name for name in (order[-1], order[0])]
        ways.append(f"close the ring with a cable from {ends[0]} to {ends[1]}")
    ways += ["join all nodes with a switch", "use an engine that splits the model by layers (llama.cpp over RPC)"]
    return f"Either {', or '.join(ways)}"


def _end(text: str) -> _wiring.End:
    name, _dot, cage = text.rpartition(".")
    return name, int(cage)

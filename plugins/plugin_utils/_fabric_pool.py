# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Addresses for cables and switch: those that nodes have where they can stay, else from a pool. Pure functions."""

from __future__ import annotations

import ipaddress
import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils import _wiring

Network = ipaddress.IPv4Network
Facts = t.Mapping[str, t.Any]
Segment = tuple[int, list[tuple[str, int, str]]]  # prefix length, ends as (node, cage, interface)

# Used by a published routed ring of four; home routers do not (reference: hardware, section 3.6).
POOL = "10.100.128.0/20"
CABLE_PREFIX, SWITCH_PREFIX = 30, 24
RAILS = (0, 1)
# The names that the halves of a cage have on every Spark (reference: hardware, section 3.1).
NAMES = ("enp1s0f{cage}np{cage}", "enP2p1s0f{cage}np{cage}")


def interface_of(facts: Facts | None, cage: int, rail: int) -> str:
    """The interface of one half of a cage: as its node says, else as it is called on every Spark."""
    for name, entry in ((facts or {}).get("interfaces") or {}).items():
        if isinstance(entry, t.Mapping) and (entry.get("cage"), entry.get("half")) == (cage, rail):
            return str(name)
    return NAMES[rail].format(cage=cage)


def segments(nodes: list[dict[str, t.Any]], cables: list[_wiring.Cable], cages: dict[str, int]) -> list[Segment]:
    """The networks to be made, both rails of a cable in turn."""
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
    nodes: list[dict[str, t.Any]], wanted: list[Segment], pool: Network
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
        busy = ", ".join(str(n) for n in ipaddress.collapse_addresses(foreign) if n.overlaps(pool)) or "nothing"
        return [], [
            f"tandem_fabric_pool: found {pool}, which lacks room for {lacking} of {len(wanted)} networks (in use by "
            f"other things: {busy}), wanted a private range that is free on every node, such as {POOL}"
        ]
    return [addresses for addresses in result if addresses is not None], []

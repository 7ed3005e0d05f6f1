# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Fabric links as an inventory gives them, with addresses: read strictly, and joined to each other. Pure functions."""

from __future__ import annotations

import ipaddress
import itertools
import re
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _fabric
from ansible_collections.tandem.spark.plugins.plugin_utils._addresses import AddressError, parse_link_address

INTERFACE = re.compile(r"[A-Za-z0-9_.@-]{1,15}")
# IPv6's least MTU, and the most that a ConnectX-7 takes.
MTU_RANGE = (1280, 9978)


def mtu_of(value: t.Any) -> int | None:
    """An MTU as a number of bytes, ``None`` when it cannot be one."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if not isinstance(value, bool) and MTU_RANGE[0] <= number <= MTU_RANGE[1] else None


def place(interface: str, facts: t.Mapping[str, t.Any] | None) -> tuple[int | None, int | None]:
    """(cage, rail) of an interface: as its node says, else as its name says."""
    entry = ((facts or {}).get("interfaces") or {}).get(interface) or {}
    named = _fabric.fabric_name(interface) or (None, None)
    cage, rail = entry.get("cage"), entry.get("half")
    return (cage if cage is not None else named[0], rail if rail is not None else named[1])


def link(
    interface: str, address: ipaddress.IPv4Interface, mtu: int | None, at: tuple[int | None, int | None]
) -> dict[str, t.Any]:
    """One link of a plan."""
    return {
        "interface": interface,
        "address": str(address),
        "ip": str(address.ip),
        "network": str(address.network),
        "mtu": mtu,
        "cage": at[0],
        "rail": at[1],
        "peers": [],
    }


def given(node: t.Mapping[str, t.Any], mtu: int) -> tuple[list[dict[str, t.Any]], list[str]]:
    """The ``tandem_links`` of *node*, and what is wrong with them."""
    links: list[dict[str, t.Any]] = []
    problems: list[str] = []
    raw = node.get("links") or []
    if not isinstance(raw, list) or not all(isinstance(entry, dict) for entry in raw):
        return [], [f"{node['name']}: tandem_links: found {raw!r}, wanted a list of {{interface, address}}"]
    for number, entry in enumerate(raw):
        where = f"{node['name']}: tandem_links[{number}]"
        unknown = sorted(map(str, set(entry) - {"interface", "address", "mtu"}))
        missing = sorted({"interface", "address"} - {key for key, value in entry.items() if value})
        if unknown or missing:
            what = [f"unknown key {key}" for key in unknown] + [f"no {key}" for key in missing]
            problems.append(f"{where}: {', '.join(what)}; wanted interface and address")
            continue
        try:
            address = parse_link_address(entry["address"])
        except AddressError as error:
            problems.append(f"{where} ({entry['interface']}): {error}")
            continue
        interface, bytes_ = str(entry["interface"]), mtu_of(entry.get("mtu") or mtu)
        if not INTERFACE.fullmatch(interface):
            problems.append(f"{where}: found {interface!r}, wanted an interface's name")
        if bytes_ is None:
            problems.append(
                f"{where} ({interface}): mtu: found {entry.get('mtu') or mtu!r}, wanted a number from {MTU_RANGE[0]} "
                f"to {MTU_RANGE[1]}"
            )
        links.append(link(interface, address, bytes_, place(interface, node.get("facts"))))
    return links, problems + _own_problems(str(node["name"]), links)


def _own_problems(name: str, links: list[dict[str, t.Any]]) -> list[str]:
    problems = []
    for a, b in itertools.combinations(links, 2):
        if a["interface"] == b["interface"]:
            problems.append(f"{name}: tandem_links: {a['interface']} stands twice, wanted each interface once")
        elif a["ip"] == b["ip"]:
            problems.append(
                f"{name}: {a['interface']} and {b['interface']} both have {a['ip']}, wanted different addresses"
            )
        elif ipaddress.ip_network(a["network"]).overlaps(ipaddress.ip_network(b["network"])):
            problems.append(
                f"{name}: {a['interface']} ({a['address']}) and {b['interface']} ({b['address']}) share the network "
                f"{min(a['network'], b['network'], key=lambda n: ipaddress.ip_network(n).prefixlen)}, wanted one "
                "network per rail (two equal routes send traffic out of the wrong port); give each rail a /24 or /30 "
                "of its own"
            )
    return problems


def join(nodes: list[dict[str, t.Any]]) -> list[str]:
    """Tell every link who is at its other end: the links of other nodes in the same network."""
    problems = []
    everything = [(node, link_) for node in nodes for link_ in node["links"]]
    for (node_a, a), (node_b, b) in itertools.combinations(everything, 2):
        if node_a is node_b:
            continue
        if a["ip"] == b["ip"]:
            problems.append(
                f"{node_a['name']} ({a['interface']}) and {node_b['name']} ({b['interface']}) both have the link "
                f"address {a['ip']} (as {a['address']} and {b['address']}), wanted a different one on each node"
            )
        elif a["network"] == b["network"]:
            if a["mtu"] != b["mtu"]:
                problems.append(
                    f"{node_a['name']} {a['interface']} has mtu {a['mtu']} and {node_b['name']} {b['interface']} has "
                    f"mtu {b['mtu']}, wanted the same on both ends of {a['network']}"
                )
            a["peers"].append({"node": node_b["name"], "interface": b["interface"], "ip": b["ip"]})
            b["peers"].append({"node": node_a["name"], "interface": a["interface"], "ip": a["ip"]})
    if problems:
        return problems
    return [
        f"{node['name']}: {link_['interface']} ({link_['address']}) has no node at its other end, wanted a second node "
        f"with an address in {link_['network']}"
        for node, link_ in everything
        if not link_["peers"]
    ]

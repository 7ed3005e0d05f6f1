# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""The ways over a fabric whose nodes do not all have a cable to each other. Pure functions.

A rail's packets stay on their rail: each rail is a graph of its own, and only where it does not reach is the other one
used. Everywhere the next hop is nearer to the destination than the node itself, so no packet goes round in circles.
"""

from __future__ import annotations

import collections
import ipaddress
import typing as t

Nodes = t.Sequence[dict[str, t.Any]]
Graph = dict[str, set[str]]
Way = list[tuple[str, t.Optional[str], t.Optional[str]]]  # (node, interface in, interface out)


def rail_of(network: str, nodes: Nodes) -> int:
    """The rail that a network belongs to: that of its links; 0 where interfaces do not tell."""
    rails = [link["rail"] for node in nodes for link in node["links"] if link["network"] == network]
    return min((rail for rail in rails if rail is not None), default=0)


def neighbours(nodes: Nodes, networks: t.Container[str] | None = None) -> Graph:
    """Who reaches whom without a hop, over these *networks* (all of them by default)."""
    return {
        node["name"]: {
            peer["node"]
            for link in node["links"]
            if networks is None or link["network"] in networks
            for peer in link["peers"]
        }
        for node in nodes
    }


def distances(graph: Graph, target: str) -> dict[str, int]:
    """How many cables each node is away from *target*; without those that have no way to it."""
    found, waiting = {target: 0}, collections.deque([target])
    while waiting:
        at = waiting.popleft()
        for name in sorted(graph.get(at, ())):
            if name not in found:
                found[name] = found[at] + 1
                waiting.append(name)
    return found


class Ways:
    """Next hops over one fabric."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.rank = {node["name"]: number for number, node in enumerate(nodes)}
        networks = sorted({link["network"] for node in nodes for link in node["links"]})
        self.rail = {network: rail_of(network, nodes) for network in networks}
        self.members = {
            network: [(node, link) for node in nodes for link in node["links"] if link["network"] == network]
            for network in networks
        }
        self.everywhere = neighbours(nodes)
        self.of_rail = {
            rail: neighbours(nodes, {network for network in networks if self.rail[network] == rail})
            for rail in set(self.rail.values())
        }
        self._distances: dict[tuple[int | None, str], dict[str, int]] = {}

    def distance(self, rail: int | None, target: str) -> dict[str, int]:
        if (rail, target) not in self._distances:
            graph = self.everywhere if rail is None else self.of_rail[rail]
            self._distances[rail, target] = distances(graph, target)
        return self._distances[rail, target]

    def hop(
        self, node: dict[str, t.Any], target: str, network: str
    ) -> tuple[dict[str, t.Any], dict[str, t.Any]] | None:
        """(own link, peer) on the shortest way from *node* to the address of *target* in *network*.

        Of two equally long ways (the far side of a ring) the one is taken that comes along the network itself, so that
        one route can stand for both of its ends; then the neighbour with the lower rank.
        """
        rail: int | None = self.rail[network]
        away = self.distance(rail, target)
        if node["name"] not in away:
            rail, away = None, self.distance(None, target)
        if node["name"] not in away:
            return None
        others = [member["name"] for member, _link in self.members[network] if member["name"] != target]
        choices = []
        for number, link in enumerate(node["links"]):
            if rail is not None and self.rail[link["network"]] != rail:
                continue
            for peer in link["peers"]:
                if away.get(peer["node"], len(self.nodes)) < away[node["name"]]:
                    along = min((self.distance(rail, name).get(peer["node"], 99) for name in others), default=99)
                    same_rail = self.rail[link["network"]] == self.rail[network]
                    key = (away[peer["node"]], along, self.rank[peer["node"]], not same_rail, number)
                    choices.append((key, link, peer))
        if not choices:
            return None
        _key, link, peer = min(choices, key=lambda choice: choice[0])
        return link, peer

    def routes(self, node: dict[str, t.Any]) -> list[dict[str, t.Any]]:
        """Routes of *node* to every address of others that is on none of its own networks."""
        own = {link["network"] for link in node["links"]}
        found: list[dict[str, t.Any]] = []
        for network in sorted(set(self.members) - own, key=lambda text: (self.rail[text], ipaddress.ip_network(text))):
            ways = []
            for member, link in self.members[network]:
                hop = self.hop(node, member["name"], network)
                if hop:
                    ways.append((member["name"], link["ip"], hop[0]["interface"], hop[1]["ip"]))
            same = len({(interface, via) for _name, _ip, interface, via in ways}) == 1
            if same and len(ways) == len(self.members[network]):
                targets = [(network, [way[0] for way in ways], ways[0])]
            else:
                targets = [(f"{way[1]}/32", [way[0]], way) for way in ways]
            for destination, names, (_name, _ip, interface, via) in targets:
                found.append(
                    {
                        "destination": destination,
                        "via": via,
                        "interface": interface,
                        "rail": self.rail[network],
                        "nodes": names,
                    }
                )
        return found


def follow(nodes: Nodes, start: str, address: str) -> Way:
    """The way of a packet from *start* to *address* by the routes of the plan: (node, interface in, interface out).

    The last entry has no way out: it owns the address. Empty when a node on the way has no route, or after as many hops
    as there are nodes.
    """
    by_name = {node["name"]: node for node in nodes}
    owner = {link["ip"]: (node["name"], link["interface"]) for node in nodes for link in node["links"]}
    way: Way = []
    at: str = start
    came: str | None = None
    target = ipaddress.ip_address(address)
    for _hop in range(len(nodes) + 1):
        node = by_name[at]
        if owner.get(address, ("", ""))[0] == at:
            return [*way, (at, came, None)]
        table = [(ipaddress.ip_network(link["network"]), address, link["interface"]) for link in node["links"]]
        table += [
            (ipaddress.ip_network(route["destination"]), route["via"], route["interface"]) for route in node["routes"]
        ]
        fitting = [entry for entry in table if target in entry[0]]
        if not fitting:
            return []
        _network, via, interface = max(fitting, key=lambda entry: entry[0].prefixlen)
        if via not in owner:
            return []
        way.append((at, came, interface))
        at, came = owner[via]
    return []


def complete(nodes: list[dict[str, t.Any]]) -> None:
    """Give each node its ``routes``, ``forwarding``, ``firewall`` and ``far``. *nodes* know their neighbours."""
    ways = Ways(nodes)
    joined = any({node["name"] for node in nodes} == {m["name"] for m, _l in ms} for ms in ways.members.values())
    # Where one network joins all nodes, every one of them is a neighbour, and further routes would only be in the way.
    for node in nodes:
        node["routes"] = [] if joined else ways.routes(node)
        node["forwarding"], node["far"] = [], []
    networks = sorted(ways.members, key=ipaddress.ip_network)
    for node in nodes:
        node["firewall"] = [
            {"interface": link["interface"], "rail": ways.rail[link["network"]], "sources": networks}
            for link in node["links"]
        ]
    if joined:
        return
    by_name = {node["name"]: node for node in nodes}
    for node in nodes:
        for other in nodes:
            if other is not node:
                found = [(link, follow(nodes, node["name"], link["ip"])) for link in other["links"]]
                _note_relays(by_name, [way for _link, way in found])
                if other["name"] not in ways.everywhere[node["name"]]:
                    node["far"] += _far(by_name, ways, other["name"], [(link, way) for link, way in found if way])
    for node in nodes:
        node["forwarding"].sort(key=lambda pair: [_place(node, name) for name in pair])


def _place(node: dict[str, t.Any], interface: str | None) -> int:
    return next(number for number, link in enumerate(node["links"]) if link["interface"] == interface)


def _note_relays(by_name: dict[str, t.Any], found: list[Way]) -> None:
    """Forwarding on the nodes between the ends of each way."""
    for way in found:
        for name, came, out in way[1:-1]:
            node = by_name[name]
            pair = sorted((came, out), key=lambda interface: _place(node, interface))
            if pair not in node["forwarding"]:
                node["forwarding"].append(pair)


def _far(by_name: dict[str, t.Any], ways: Ways, name: str, found: list[tuple[dict[str, t.Any], Way]]) -> list[t.Any]:
    """The node *name* as seen from where the ways in *found* begin: per rail the address that is nearest."""
    entries = []
    for rail in sorted({ways.rail[link["network"]] for link, _way in found}):
        link, way = min(
            ((link, way) for link, way in found if ways.rail[link["network"]] == rail), key=lambda pair: len(pair[1])
        )
        crossed = [by_name[at]["links"][_place(by_name[at], out)]["mtu"] for at, _came, out in way[:-1]]
        entries.append(
            {
                "node": name,
                "ip": link["ip"],
                "rail": rail,
                "hops": len(way) - 1,
                "through": [at for at, _came, _out in way[1:-1]],
                "mtu": min(crossed),
            }
        )
    return entries

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""A deployment: a recipe on an inventory, with everything that follows from the two and from nothing else.

Pure functions. Per-node values come from that node's own variables; nothing of the head is copied to a worker.
"""

from __future__ import annotations

import hashlib
import ipaddress
import itertools
import json
import re
import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils import _engines
from ansible_collections.tandem.spark.plugins.plugin_utils._addresses import (
    NOT_A_PEER_ADDRESS,
    AddressError,
    parse_link_address,
)

COMMIT = re.compile(r"[0-9a-f]{40}")
INTERFACE = re.compile(r"[A-Za-z0-9_.@-]{1,15}")
MINIMUM_KEY_LENGTH = 16
NOT_STARTED_FROM = ("title", "sources", "acceptance", "disk_needed_bytes")
# IPv6's least MTU, and the most that a ConnectX-7 takes.
MTU_RANGE = (1280, 9978)


def problems_of_key(key: str) -> list[str]:
    """Say what is wrong with an API key, never the key itself."""
    wanted = f"wanted {MINIMUM_KEY_LENGTH} or more printable ASCII characters without spaces or quotes"
    if not key:
        return [f"tandem_api_key: found nothing, {wanted}"]
    if len(key) < MINIMUM_KEY_LENGTH:
        return [f"tandem_api_key: found {len(key)} characters, {wanted}"]
    # It travels in an HTTP header, where other characters than ASCII have no agreed form.
    if any(c.isspace() or not c.isprintable() or not c.isascii() or c in "\"'\\" for c in key):
        return [
            "tandem_api_key: found a space, a quote, a backslash, a control character or one outside ASCII in it, "
            f"{wanted}"
        ]
    return []


def clean_key(text: t.Any) -> str:
    """A key as read from a file: without the line end (LF or CRLF) that editors add."""
    return "" if text is None else str(text).rstrip("\r\n")


def release_name(name: str, version: str) -> str:
    """A directory name for an immutable release: safe characters only, never hidden."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{name}-{version}").strip(".-")


def _links(node: dict[str, t.Any], mtu: int) -> tuple[list[dict[str, t.Any]], list[str]]:
    links: list[dict[str, t.Any]] = []
    problems: list[str] = []
    raw = node.get("links") or []
    if not isinstance(raw, list) or not all(isinstance(link, dict) for link in raw):
        return [], [f"{node['name']}: tandem_links: found {raw!r}, wanted a list of {{interface, address}}"]
    for number, link in enumerate(raw):
        unknown = sorted(map(str, set(link) - {"interface", "address", "mtu"}))
        missing = sorted({"interface", "address"} - {key for key, value in link.items() if value})
        if unknown or missing:
            what = [f"unknown key {key}" for key in unknown] + [f"no {key}" for key in missing]
            problems.append(f"{node['name']}: tandem_links[{number}]: {', '.join(what)}; wanted interface and address")
            continue
        try:
            address = parse_link_address(link["address"])
        except AddressError as error:
            problems.append(f"{node['name']}: tandem_links[{number}] ({link['interface']}): {error}")
            continue
        interface, bytes_ = str(link["interface"]), _mtu(link.get("mtu") or mtu)
        if not INTERFACE.fullmatch(interface):
            problems.append(f"{node['name']}: tandem_links[{number}]: found {interface!r}, wanted an interface's name")
        if bytes_ is None:
            problems.append(
                f"{node['name']}: tandem_links[{number}] ({interface}): mtu: found {link.get('mtu') or mtu!r}, wanted "
                f"a number from {MTU_RANGE[0]} to {MTU_RANGE[1]}"
            )
        links.append(
            {
                "interface": interface,
                "address": str(address),
                "ip": str(address.ip),
                "network": str(address.network),
                "mtu": bytes_,
                "peers": [],
            }
        )
    return links, problems


def _mtu(value: t.Any) -> int | None:
    """An MTU as a number of bytes, ``None`` when it cannot be one."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if not isinstance(value, bool) and MTU_RANGE[0] <= number <= MTU_RANGE[1] else None


def _own_link_problems(name: str, links: list[dict[str, t.Any]]) -> list[str]:
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


def _join(nodes: list[dict[str, t.Any]]) -> list[str]:
    """Tell every link who is at its other end: the links of other nodes in the same network."""
    problems = []
    everything = [(node, link) for node in nodes for link in node["links"]]
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
        f"{node['name']}: {link['interface']} ({link['address']}) has no node at its other end, wanted a second node "
        f"with an address in {link['network']}"
        for node, link in everything
        if not link["peers"]
    ]


def _meeting_address(nodes: list[dict[str, t.Any]]) -> tuple[str | None, list[str]]:
    """The head's link address that every worker reaches in one hop; rendezvous and copies go there."""
    head = nodes[0]
    for link in head["links"]:
        if {peer["node"] for peer in link["peers"]} >= {node["name"] for node in nodes[1:]}:
            return link["ip"], []
    return None, [
        f"{head['name']}: no link of the head reaches every other node ({', '.join(n['name'] for n in nodes[1:])}) in "
        "one hop, which tensor-parallel engines need; close the chain with a switch, or use an engine that only needs "
        "its neighbours"
    ]


def api(address: str, port: int) -> dict[str, t.Any]:
    """Where the API is: address and port to bind, URL to ask."""
    host = f"[{address}]" if ":" in address else address
    return {"address": address, "port": port, "url": f"http://{host}:{port}"}


def build(
    group: str,
    nodes: list[dict[str, t.Any]],
    recipe: dict[str, t.Any],
    *,
    root: str = "/var/lib/tandem",
    mtu: int = 9000,
    port: int = 8000,
    api_address: str | None = None,
    revision: str | None = None,
    lock_sha256: str = "",
) -> tuple[dict[str, t.Any], list[str]]:
    """Return the deployment and every problem found; with problems the deployment must not be used.

    *nodes*: in rank order, each with ``name``, ``address`` (management) and ``links`` (``interface``, ``address``,
    ``mtu``).
    """
    problems: list[str] = []
    wanted = recipe["nodes"]
    if len(nodes) != wanted:
        problems.append(
            f"group {group}: found {len(nodes)} node(s) ({', '.join(n['name'] for n in nodes) or 'none'}), recipe "
            f"{recipe['name']} wants {wanted}; add or remove hosts in the group, or choose a recipe for {len(nodes)}"
        )
    built: list[dict[str, t.Any]] = []
    for rank, node in enumerate(nodes):
        links, own = _links(node, mtu)
        problems += own + _own_link_problems(node["name"], links)
        address = str(node.get("address") or node["name"])
        built.append({"name": node["name"], "rank": rank, "address": address, "links": links})
    by_address: dict[str, list[str]] = {}
    for node in built:
        by_address.setdefault(node["address"], []).append(node["name"])
    for address, names in by_address.items():
        if len(names) > 1:
            problems.append(f"{' and '.join(names)} have the same ansible_host {address}, wanted one address per node")
    if len(built) > 1:
        problems += [
            f"{node['name']}: tandem_links is empty, wanted the address of at least one cable: {len(built)} nodes meet "
            "on the fabric, never on the management network or loopback"
            for node, given in zip(built, nodes)
            if not given.get("links")
        ]
    problems += _join(built)
    meeting: str | None = None
    if len(built) > 1 and not problems:
        meeting, trouble = _meeting_address(built)
        if recipe["tensor_parallel"] > 1:
            problems += trouble
    if meeting and meeting.startswith(NOT_A_PEER_ADDRESS):
        problems.append(f"rendezvous: found {meeting}, wanted an address of the head that the workers can reach")
    for node in built:
        node["fabric_ip"], node["source_ip"] = _fabric_addresses(node, built[0], meeting)

    if not root.startswith("/"):
        problems.append(f"tandem_root: found {root!r}, wanted an absolute path below /, such as /var/lib/tandem")
    if not 0 < port < 65536 or (len(built) > 1 and port == recipe["serve"]["rendezvous_port"]):
        problems.append(
            f"tandem_api_port: found {port}, wanted a port from 1 to 65535 other than the recipe's rendezvous_port "
            f"({recipe['serve']['rendezvous_port']})"
        )
    revision = revision or recipe["model"]["revision"]
    if not revision or not COMMIT.fullmatch(revision):
        problems.append(
            f"model revision of {recipe['model']['id']}: found {revision or 'none'}, wanted a full commit id (40 hex "
            "digits): a branch name can move between two nodes; set tandem_model_revision"
        )
    adapter = _engines.ADAPTERS.get(recipe["engine"]["name"])
    if adapter is None:
        problems.append(
            f"engine: found {recipe['engine']['name']!r} in recipe {recipe['name']}, wanted one that this release can "
            f"launch: {', '.join(sorted(_engines.ADAPTERS))}"
        )
    else:
        problems += adapter.problems(recipe)
    if problems:
        return {}, problems

    model = dict(recipe["model"], revision=revision)
    engine = dict(recipe["engine"])
    engine_id = release_name(engine["name"], f"{engine['version']}-{lock_sha256[:12]}")
    model_id = release_name(model["id"].split("/")[-1], t.cast("str", revision)[:12])
    deployment: dict[str, t.Any] = {
        "name": recipe["name"],
        "title": recipe["title"],
        "group": group,
        "head": built[0]["name"],
        "nodes": built,
        "rendezvous": f"{meeting}:{recipe['serve']['rendezvous_port']}" if meeting else None,
        "api": api(api_address or built[0]["address"], port),
        "model": dict(model, release=model_id, path=f"{root}/models/{model_id}"),
        "engine": dict(engine, release=engine_id, path=f"{root}/engines/{engine_id}", lock_sha256=lock_sha256),
        "serve": recipe["serve"],
        "memory": recipe["memory"],
        "acceptance": recipe["acceptance"],
        "tensor_parallel": recipe["tensor_parallel"],
        "root": root,
        # Weights are written once per node; an engine release is its wheels plus the environment made of them.
        "disk_needed_bytes": {root: model["size_bytes"] + engine["size_bytes"]},
        "sources": recipe["sources"],
    }
    # What the ranks are started from: another question of the acceptance must not restart them.
    started_from = {key: value for key, value in deployment.items() if key not in NOT_STARTED_FROM}
    deployment["digest"] = hashlib.sha256(json.dumps(started_from, sort_keys=True).encode()).hexdigest()
    return deployment, []


def _fabric_addresses(
    node: dict[str, t.Any], head: dict[str, t.Any], meeting: str | None
) -> tuple[str | None, str | None]:
    """(this node's address on the rail where the group meets, the head's address on it).

    Every node lists its rails in an order of its own, so the rail is found by the meeting address, not by its place.
    Without one it is the first rail that the node shares with the head.
    """
    if node is head:
        return meeting or (node["links"][0]["ip"] if node["links"] else None), None
    for link in node["links"]:
        for peer in link["peers"]:
            if peer["node"] == head["name"] and meeting in (None, peer["ip"]):
                return link["ip"], peer["ip"]
    return (node["links"][0]["ip"] if node["links"] else None), None


def node_of(deployment: dict[str, t.Any], name: str) -> dict[str, t.Any]:
    """The node *name* of a deployment."""
    return next(node for node in deployment["nodes"] if node["name"] == name)


def rank_order(deployment: dict[str, t.Any]) -> list[str]:
    """Node names in the order in which their ranks are started: workers by rank, the head last. Stop is the reverse."""
    names = [node["name"] for node in deployment["nodes"]]
    return names[1:] + names[:1]


def hosts_map(deployment: dict[str, t.Any]) -> str:
    """Lines for /etc/hosts: every node by its management address and by its address on each rail.

    The rails are in it because Gloo looks the peer's address up backwards at every connection, and waits for seconds
    when nobody answers (reference: engines, section 1).
    """
    lines = []
    for node in deployment["nodes"]:
        if _literal(node["address"]):
            lines.append(f"{node['address']} {node['name']}")
        lines += [f"{link['ip']} {node['name']}-rail{number}" for number, link in enumerate(node["links"])]
    return "\n".join(lines)


def _literal(address: str) -> bool:
    try:
        return not ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False

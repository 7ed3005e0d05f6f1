# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Who is at the other end of a cable, without addresses: the frames that nodes send each other, and what follows.

Pure functions. A frame is JSON behind an Ethernet header with the second EtherType that IEEE 802 leaves to local
experiments (the first one is what NVIDIA's own script uses). It goes to all stations: on a direct cable that is the
other end, and a switch passes it on to everyone. Nothing routes it.
"""

from __future__ import annotations

import json
import struct
import typing as t

ETHERTYPE = 0x88B6
EVERYONE = b"\xff" * 6
MAGIC = "tandem.spark/1"
SHORTEST = 60  # bytes that Ethernet wants in a frame without its checksum
LONGEST = 1514  # fits every MTU
NAMES = 64  # of nodes that one frame can tell


def address_bytes(mac: str) -> bytes:
    """``4c:bb:47:00:00:01`` as six bytes."""
    raw = bytes.fromhex(mac.replace(":", ""))
    if len(raw) != 6:
        raise ValueError(f"found {mac!r}, wanted a hardware address of six bytes")
    return raw


def frame(mac: str, hello: t.Mapping[str, t.Any]) -> bytes:
    """The frame from the interface with the address *mac* that says *hello*."""
    body = json.dumps({"magic": MAGIC, **hello}, separators=(",", ":")).encode()
    raw = EVERYONE + address_bytes(mac) + struct.pack("!HH", ETHERTYPE, len(body)) + body
    if len(raw) > LONGEST:
        raise ValueError(f"found {len(raw)} bytes to say, wanted at most {LONGEST}: too many nodes, or too long names")
    return raw.ljust(SHORTEST, b"\0")


def read(raw: bytes, run: str) -> dict[str, t.Any] | None:
    """What a frame says; None for one that is foreign, damaged, or of another *run*."""
    if len(raw) < 16:
        return None
    kind, length = struct.unpack("!HH", raw[12:16])
    body = raw[16 : 16 + length]
    if kind != ETHERTYPE or len(body) < length:
        return None
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or said.get("magic") != MAGIC or said.get("run") != run:
        return None
    node, interface, heard, known = (said.get(key) for key in ("node", "interface", "heard", "known"))
    if not all(isinstance(text, str) and text for text in (node, interface)):
        return None
    lists = [names for names in (heard, known) if isinstance(names, list) and all(isinstance(n, str) for n in names)]
    if len(lists) < 2:
        return None
    numbers = {key: _number(said.get(key)) for key in ("cage", "rail")}
    return {"node": node, "interface": interface, "heard": lists[0], "known": lists[1][:NAMES], **numbers}


def _number(value: t.Any) -> int | None:
    """A whole number; a truth value is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class Ear:
    """What one node has heard on all of its interfaces, and whether there is more to wait for."""

    def __init__(self, node: str, run: str, nodes: int) -> None:
        self.node = node
        self.run = run
        self.nodes = nodes  # how many there are; 0 when that is not known
        self.known = {node}
        self.heard: dict[str, dict[tuple[str, str], dict[str, t.Any]]] = {}
        self.answered: set[str] = set()  # interfaces of ours whose frames somebody has heard

    def hello(self, interface: str, cage: int | None, rail: int | None) -> dict[str, t.Any]:
        """What to say on *interface*: who is there, who was heard on it, and which nodes are known of at all."""
        heard = sorted({f"{node} {name}" for node, name in self.heard.get(interface, {})})
        said = {"run": self.run, "node": self.node, "interface": interface, "cage": cage, "rail": rail}
        return {**said, "heard": heard[:NAMES], "known": sorted(self.known)[:NAMES]}

    def listen(self, interface: str, raw: bytes) -> bool:
        """Take in a frame that came to *interface*; True when it told something new."""
        said = read(raw, self.run)
        # Both halves of a cage can be on one segment, so that a node hears its own other half.
        if said is None or said["node"] == self.node:
            return False
        before = (len(self.known), len(self.answered), len(self.heard.get(interface, {})))
        peer = {key: said[key] for key in ("node", "interface", "cage", "rail")}
        self.heard.setdefault(interface, {})[said["node"], said["interface"]] = peer
        self.known |= {said["node"], *said["known"]}
        if f"{self.node} {interface}" in said["heard"]:
            self.answered.add(interface)
        return before != (len(self.known), len(self.answered), len(self.heard[interface]))

    def content(self, interfaces: t.Iterable[str]) -> bool:
        """Whether all nodes are known of and every one of *interfaces* was heard and has heard somebody."""
        return 0 < self.nodes <= len(self.known) and all(
            name in self.heard and name in self.answered for name in interfaces
        )

    def neighbours(self, interface: str) -> list[dict[str, t.Any]]:
        return [peer for _key, peer in sorted(self.heard.get(interface, {}).items())]


def lldp(content: str | None) -> dict[str, list[dict[str, t.Any]]]:
    """``lldpctl -f json0``: by own interface the names of the neighbour's system and port."""
    try:
        parsed = json.loads(content or "")
    except (ValueError, RecursionError):
        return {}
    found: dict[str, list[dict[str, t.Any]]] = {}
    for part in _dicts(parsed.get("lldp") if isinstance(parsed, dict) else None):
        for entry in _dicts(part.get("interface")):
            if isinstance(entry.get("name"), str):
                peer = {
                    "system": _first(entry, "chassis", "name") or _first(entry, "chassis", "id"),
                    "port": _first(entry, "port", "descr") or _first(entry, "port", "id"),
                }
                found.setdefault(entry["name"], []).append(peer)
    return found


def _dicts(value: t.Any) -> list[dict[str, t.Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _first(entry: dict[str, t.Any], part: str, key: str) -> str | None:
    for inner in _dicts(entry.get(part)):
        for one in _dicts(inner.get(key)):
            if isinstance(one.get("value"), str) and one["value"]:
                return str(one["value"])
    return None

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""The fabric's netplan file, and what other netplan files say about the same interfaces."""

from __future__ import annotations

import fnmatch
import json
import re
import typing as t

_MATCH = re.compile(r"""(?:^|[\s{,])["']?name["']?\s*:\s*["']?([^"'\s,}]+)""")
HEADER = "# Written by tandem.spark (fabric stage). Changes are overwritten; set tandem_links in the inventory.\n"


def render(
    links: list[dict[str, t.Any]],
    routes: t.Sequence[dict[str, t.Any]] = (),
    backend: str | None = None,
    zone: str | None = None,
) -> str:
    """The whole file for *links* (``interface``, ``address``, ``mtu``) and *routes* (``destination``, ``via``,
    ``interface``).

    *backend* says who shall carry it out (``networkd``, ``NetworkManager``); left out, the system's own default does.
    NetworkManager is told in its own words what netplan does not pass on: no IPv6, and the *zone* of firewalld.

    Addresses and MTU stand together in one file. No link-local address and no IPv6: both add entries to the RoCE GID
    table. No default route ever: a fabric cable leads to another node, not to the network outside.
    JSON is YAML, so the standard library can write it and netplan can read it.
    """
    own = {"ipv6.method": "disabled", **({"connection.zone": zone} if zone else {})}
    more = {"networkmanager": {"passthrough": own}} if backend == "NetworkManager" else {}
    ethernets: dict[str, dict[str, t.Any]] = {
        link["interface"]: {
            **({"renderer": backend} if backend else {}),
            **more,
            "dhcp4": False,
            "dhcp6": False,
            "accept-ra": False,
            "link-local": [],
            "optional": True,
            "mtu": link["mtu"],
            "addresses": [link["address"]],
        }
        for link in links
    }
    for route in routes:
        way = {"to": route["destination"], "via": route["via"]}
        ethernets[route["interface"]].setdefault("routes", []).append(way)
    body = json.dumps({"network": {"version": 2, "ethernets": ethernets}}, indent=2)
    return f"{HEADER}{body}\n"


def addresses_elsewhere(files: dict[str, str], links: list[dict[str, t.Any]]) -> list[str]:
    """Other files that mention an interface of ours; netplan would add their addresses to ours.

    netplan joins the ``addresses`` lists of all files, so an old address would stay beside the new one. The standard
    library has no YAML parser: an interface's name as a key, or as what ``match: {name: …}`` stands for, is enough to
    call it a conflict. NetworkManager writes its profiles in that second form.
    """
    found = []
    for path, text in sorted(files.items()):
        lines = [line.split("#", 1)[0] for line in text.splitlines()]
        patterns = [pattern for line in lines for pattern in _MATCH.findall(line)]
        for link in links:
            key = re.compile(rf"""(^|[\s{{,])["']?{re.escape(link["interface"])}["']?\s*:""")
            matched = any(fnmatch.fnmatchcase(link["interface"], pattern) for pattern in patterns)
            if matched or any(key.search(line) for line in lines):
                found.append(f"{path} also configures {link['interface']}")
    return found


SECTIONS: tuple[str, ...] = ("ethernets", "wifis", "modems", "bonds", "bridges", "vlans", "vrfs", "tunnels")
SECTIONS += ("dummy-devices", "virtual-ethernets", "openvswitch", "nm-devices")


def devices(text: str) -> list[str] | None:
    """Names of the devices that a netplan file configures (by their ``match: name`` where they have one).

    Reads the indented form that people and tools write, and JSON. None when it is written in another way: then what
    else stands in the file is not known.
    """
    lines = [line.split("#", 1)[0].rstrip() for line in text.splitlines()]
    plain = "\n".join(lines)
    if plain.lstrip().startswith("{"):
        try:
            network = json.loads(plain)["network"]
            return sorted(name for section in SECTIONS for name in network.get(section, {}))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
    found: list[str] = []
    section_at: int | None = None
    device_at: int | None = None
    for line in lines:
        if not line.strip() or line.strip() in ("---", "..."):
            continue
        indent, words = len(line) - len(line.lstrip()), line.strip()
        key, _colon, value = words.partition(":")
        key = key.strip("\"'")
        if section_at is not None and indent <= section_at:
            section_at = device_at = None
        if section_at is None:
            if key in SECTIONS:
                if value.strip() not in ("", "{}"):
                    return None
                section_at, device_at = indent, None
            elif key == "network" and value.strip():
                return None
            continue
        device_at = indent if device_at is None else device_at
        if indent == device_at:
            found.append(key)
        elif key == "name" and value.strip() and found:
            found[-1] = value.strip().strip("\"'")
        elif key == "match" and value.strip():
            return None
    return sorted(found)


def route_drift(routes: t.Sequence[dict[str, t.Any]], shown: list[dict[str, t.Any]]) -> list[str]:
    """Which of *routes* the kernel lacks; *shown* is ``ip -j -4 route show``."""
    have = {(_network(str(r.get("dst"))), r.get("gateway"), r.get("dev")) for r in shown}
    return [
        f"{route['interface']}: no route to {route['destination']} via {route['via']}"
        for route in routes
        if (_network(route["destination"]), route["via"], route["interface"]) not in have
    ]


def without_carrier(shown: list[dict[str, t.Any]]) -> set[str]:
    """Interfaces that are switched on and have no carrier."""
    flags = {str(entry.get("ifname")): entry.get("flags") or [] for entry in shown}
    return {name for name, have in flags.items() if "UP" in have and "NO-CARRIER" in have}


def _network(text: str) -> str:
    # iproute2 leaves the /32 out.
    return text[: -len("/32")] if text.endswith("/32") else text


def drift(links: list[dict[str, t.Any]], shown: list[dict[str, t.Any]]) -> list[str]:
    """How the running interfaces differ from *links*; *shown* is ``ip -j addr show``."""
    by_name = {entry.get("ifname"): entry for entry in shown}
    dark = without_carrier(shown)  # they get their address with the carrier
    found = []
    for link in links:
        entry = by_name.get(link["interface"])
        if entry is None:
            found.append(f"{link['interface']}: not there")
            continue
        have = [
            f"{a['local']}/{a['prefixlen']}"
            for a in entry.get("addr_info", [])
            if a.get("family") == "inet" and a.get("scope") == "global"
        ]
        if have != [link["address"]] and (have or link["interface"] not in dark):
            found.append(f"{link['interface']}: address {', '.join(have) or 'none'}, wanted {link['address']}")
        if entry.get("mtu") != link["mtu"]:
            found.append(f"{link['interface']}: mtu {entry.get('mtu')}, wanted {link['mtu']}")
        if "UP" not in entry.get("flags", []):
            found.append(f"{link['interface']}: down, wanted up")
    return found

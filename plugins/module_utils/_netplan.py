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


def render(links: list[dict[str, t.Any]]) -> str:
    """The whole file for *links* (``interface``, ``address``, ``mtu``).

    Addresses and MTU stand together in one file. No link-local address and no IPv6: both add entries to the RoCE GID
    table. No default route ever: a fabric cable leads to another node, not to the network outside.
    JSON is YAML, so the standard library can write it and netplan can read it.
    """
    ethernets = {
        link["interface"]: {
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


def drift(links: list[dict[str, t.Any]], shown: list[dict[str, t.Any]]) -> list[str]:
    """How the running interfaces differ from *links*; *shown* is ``ip -j addr show``."""
    by_name = {entry.get("ifname"): entry for entry in shown}
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
        if have != [link["address"]]:
            found.append(f"{link['interface']}: address {', '.join(have) or 'none'}, wanted {link['address']}")
        if entry.get("mtu") != link["mtu"]:
            found.append(f"{link['interface']}: mtu {entry.get('mtu')}, wanted {link['mtu']}")
        if "UP" not in entry.get("flags", []):
            found.append(f"{link['interface']}: down, wanted up")
    return found

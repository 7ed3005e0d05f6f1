# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Who configures a node's interfaces, and the files that tell it so. Pure functions.

netplan where it is there (addresses and MTU in one file, C15), else NetworkManager by keyfiles, else systemd-networkd.
Under netplan, NetworkManager carries it out only where it already owns the interface: on DGX OS it calls the fabric's
"unmanaged", and then networkd is in charge.
"""

from __future__ import annotations

import configparser
import fnmatch
import typing as t
import uuid

from ansible_collections.tandem.spark.plugins.module_utils import _netplan

HEADER = "# Written by tandem.spark (fabric stage). Changes are overwritten; set tandem_links in the inventory.\n"
KEYFILES = "/etc/NetworkManager/system-connections"
NETWORKD = "/etc/systemd/network"
PREFIX = "60-tandem-fabric-"
_NAMESPACE = uuid.UUID("6c1f3c52-3f0e-5d0b-9a53-5f1b8c2f9a10")

Links = t.Sequence[t.Mapping[str, t.Any]]


def choose(
    *, netplan: bool, networkmanager: bool, networkd: bool, states: t.Mapping[str, str] | None, interfaces: list[str]
) -> dict[str, t.Any]:
    """The renderer and its backend; *states* is what ``nmcli -t -f DEVICE,STATE device`` says, by interface."""
    owned = [i for i in interfaces if (states or {}).get(i, "unmanaged") != "unmanaged"] if networkmanager else []
    problem = None
    if owned and len(owned) < len(interfaces) and networkd:
        others = ", ".join(sorted(set(interfaces) - set(owned)))
        problem = (
            f"NetworkManager manages {', '.join(owned)} and leaves {others} alone, wanted one owner of all fabric "
            "interfaces; set unmanaged-devices in its configuration, or let it manage all of them"
        )
    if netplan:
        backend = "NetworkManager" if networkmanager and (owned or not networkd) else "networkd"
        return {"renderer": "netplan", "backend": backend, "problem": problem}
    if networkmanager and (owned or not networkd):
        return {"renderer": "networkmanager", "backend": "NetworkManager", "problem": problem}
    if networkd:
        return {"renderer": "networkd", "backend": "networkd", "problem": problem}
    return {
        "renderer": None,
        "backend": None,
        "problem": "found no netplan, NetworkManager or systemd-networkd in charge, wanted one of them; run the "
        "baseline stage, or install netplan.io",
    }


def device_states(text: str) -> dict[str, str]:
    """``nmcli --terse --fields DEVICE,STATE device``: ``enp1s0f0np0:unmanaged``."""
    lines = [line.replace("\\:", "\0").split(":") for line in text.splitlines()]
    return {words[0].replace("\0", ":"): words[1].split(" ")[0] for words in lines if len(words) == 2}


def files(
    chosen: t.Mapping[str, t.Any], links: Links, routes: Links, netplan_path: str, zone: str | None = None
) -> dict[str, tuple[bytes, int]]:
    """Path to content and mode of the network files of *links*; *zone*: that of firewalld, where it is active."""
    if not links:
        return {}
    if chosen["renderer"] == "netplan":
        text = _netplan.render(list(links), list(routes), chosen["backend"], zone)  # type: ignore[arg-type]
        return {netplan_path: (text.encode(), 0o600)}
    found = {}
    for link in links:
        ways = [route for route in routes if route["interface"] == link["interface"]]
        if chosen["renderer"] == "networkmanager":
            path = f"{KEYFILES}/{PREFIX}{link['interface']}.nmconnection"
            found[path] = (keyfile(link, ways, zone).encode(), 0o600)
        else:
            found[f"{NETWORKD}/{PREFIX}{link['interface']}.network"] = (network_file(link, ways).encode(), 0o644)
    return found


def keyfile(link: t.Mapping[str, t.Any], routes: Links, zone: str | None = None) -> str:
    """A NetworkManager profile. The uuid follows from the name, so that a second run writes the same bytes."""
    name = link["interface"]
    lines = [f"address1={link['address']}", "never-default=true", "may-fail=false"]
    lines += [f"route{number}={route['destination']},{route['via']}" for number, route in enumerate(routes, 1)]
    return "\n".join(
        [
            HEADER.rstrip("\n"),
            "[connection]",
            f"id={PREFIX}{name}",
            f"uuid={uuid.uuid5(_NAMESPACE, name)}",
            "type=ethernet",
            f"interface-name={name}",
            "autoconnect=true",
            # Above whatever else claims the interface.
            "autoconnect-priority=100",
            # NetworkManager puts each of its connections into a zone, whatever firewalld's own files say.
            *([f"zone={zone}"] if zone else []),
            "",
            "[ethernet]",
            f"mtu={link['mtu']}",
            "",
            "[ipv4]",
            "method=manual",
            *lines,
            "",
            "[ipv6]",
            # Each IPv6 address adds an entry to the RoCE GID table.
            "method=disabled",
            "",
        ]
    )


def network_file(link: t.Mapping[str, t.Any], routes: Links) -> str:
    """A networkd .network file."""
    parts = [
        f"{HEADER}[Match]\nName={link['interface']}\n",
        f"[Link]\nMTUBytes={link['mtu']}\nRequiredForOnline=no\n",
        f"[Network]\nLinkLocalAddressing=no\nIPv6AcceptRA=no\nDHCP=no\nAddress={link['address']}\n",
    ]
    parts += [f"[Route]\nDestination={route['destination']}\nGateway={route['via']}\n" for route in routes]
    return "\n".join(parts)


def reload(chosen: t.Mapping[str, t.Any], links: Links) -> list[list[str]]:
    """Commands that make the renderer read its files again; the same ones lead back."""
    if chosen["renderer"] == "netplan":
        return [["netplan", "generate"], ["netplan", "apply"]]
    names = [link["interface"] for link in links]
    if chosen["renderer"] == "networkmanager":
        up = [["nmcli", "--wait", "20", "connection", "up", f"{PREFIX}{name}", "ifname", name] for name in names]
        return [["nmcli", "connection", "reload"], *up]
    return [["networkctl", "reload"], ["networkctl", "reconfigure", *names]]


def reload_after_return(chosen: t.Mapping[str, t.Any], links: Links) -> list[list[str]]:
    """The same after the old files came back, which may be none: then there is no profile of ours to bring up."""
    names = [link["interface"] for link in links]
    if chosen["renderer"] == "netplan":
        # NetworkManager keeps the profile of a netplan file that is gone, until it is told to look again.
        manager = chosen["backend"] == "NetworkManager"
        return [["netplan", "apply"], *([["nmcli", "connection", "reload"]] if manager else [])]
    if chosen["renderer"] == "networkmanager":
        return [["nmcli", "connection", "reload"], *(["nmcli", "device", "reapply", name] for name in names)]
    return [["networkctl", "reload"], *(["networkctl", "reconfigure", name] for name in names)]


def conflicts(others: t.Mapping[str, str], links: Links) -> list[dict[str, t.Any]]:
    """Files of others that configure an interface of *links*: ``path``, ``interfaces``, ``also`` (what else it does).

    ``also`` is None where that cannot be told. Such a file is never moved aside.
    """
    names = [str(link["interface"]) for link in links]
    found = []
    for path, text in sorted(others.items()):
        if path.endswith((".yaml", ".yml")):
            ours = [n for n in names if _netplan.addresses_elsewhere({path: text}, [{"interface": n}])]
            everything = _netplan.devices(text)
            also = None
            if everything is not None:
                also = [d for d in everything if not any(fnmatch.fnmatchcase(n, d) for n in ours)]
        else:
            ours, also = _claimed(path, text, names)
        if ours:
            found.append({"path": path, "interfaces": ours, "also": also})
    return found


def _claimed(path: str, text: str, names: list[str]) -> tuple[list[str], list[str] | None]:
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True, comment_prefixes=("#", ";"))
    try:
        parser.read_string(text)
    except configparser.Error:
        return [], None
    if path.endswith(".nmconnection"):
        # NetworkManager makes a profile of its own for each wired device that has none, and ours goes before it.
        if parser.get(".nmmeta", "nm-generated", fallback="") == "true":
            return [], None
        name = parser.get("connection", "interface-name", fallback="")
        return [n for n in names if n == name], []
    patterns = parser.get("Match", "Name", fallback="").split()
    ours = [n for n in names if any(fnmatch.fnmatchcase(n, p) for p in patterns if not p.startswith("!"))]
    return ours, [pattern for pattern in patterns if pattern not in ours]


def conflict_sentence(conflict: t.Mapping[str, t.Any], backend: str | None) -> str:
    """What is wrong with one file, and the way out."""
    path, names = conflict["path"], ", ".join(conflict["interfaces"])
    if path.endswith((".yaml", ".yml")):
        what = f"{path} also configures {names}: netplan would use both sets of addresses"
    else:
        what = f"{path} also configures {names}, so {backend or 'the node'} may use it instead of ours"
    if conflict["also"] is None:
        return f"{what}. What else it does cannot be told, so it is not moved aside: take {names} out of it by hand"
    if conflict["also"]:
        also = ", ".join(conflict["also"])
        return f"{what}. It configures {also} too, so it is not moved aside: take {names} out of it by hand"
    return f"{what}. Set fabric_take_over: true to move it aside (fabric_restore puts it back), or remove it"

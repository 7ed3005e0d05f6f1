# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Networks of a lab: the management bridge with NAT, the cables, the switch, and what a reboot resets.

A node's network namespace outlives the guest in it. That keeps cables (and the neighbour's end of them) alive over
reboots and power loss, but it would also keep what a role did and did not persist: `reset` puts a namespace back to
what a machine has after power-on.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
from pathlib import Path
from typing import Any

from . import LabError
from .config import Cable, Lab
from .host import in_netns, locked, run, run_json
from .names import CAGES, MANAGEMENT, Names, cage_interfaces, check_ifname

JUMBO = 9216  # what a switch port carries; a cable's own limit is far above
STANDARD_MTU = 1500
FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
# What ip_forward was before the first lab of this machine, and the lock around it: one for all users and caches.
SHARED = Path("/run/tandem-lab")


# ---- looking -------------------------------------------------------------------------------------------------------


def namespaces(names: Names) -> list[str]:
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.glob(f"{names.netns_prefix}*")) if folder.is_dir() else []


def host_links(names: Names) -> list[str]:
    found = [entry.name for entry in Path("/sys/class/net").iterdir()]
    return sorted(name for name in found if name == names.bridge or name.startswith(f"{names.id}-m"))


def tables(prefix: str) -> list[str]:
    lines = run("nft", "list", "tables", check=False).stdout.splitlines()
    return [words[2] for words in (line.split() for line in lines) if len(words) == 3 and words[2].startswith(prefix)]


def uplink_mtu() -> int:
    """The management network must not promise more than the host's own way out carries."""
    routes = run_json("ip", "-j", "route", "show", "default")
    if not routes or "dev" not in routes[0]:
        return STANDARD_MTU
    return min(STANDARD_MTU, int(run_json("ip", "-j", "link", "show", routes[0]["dev"])[0]["mtu"]))


def check_subnet(names: Names) -> None:
    """Refuse a management subnet that this machine knows a way to already."""
    for route in run_json("ip", "-j", "-4", "route", "show", "table", "all"):
        if route.get("dst", "default") == "default" or route.get("dev") == names.bridge:
            continue
        try:
            network = ipaddress.IPv4Network(route["dst"], strict=False)
        except ValueError:
            continue
        if network.overlaps(names.subnet) and network.prefixlen > 8:
            raise LabError(
                f"the lab's management subnet {names.subnet} is in use: {network} is routed through "
                f"{route.get('dev', 'another table')}; set TANDEM_LAB_ID to another id (the subnet follows from it)"
            )


# ---- building ------------------------------------------------------------------------------------------------------


def up(names: Names, lab: Lab, air: bool) -> None:
    check_subnet(names)
    mtu = uplink_mtu()
    run("ip", "link", "add", names.bridge, "type", "bridge", "forward_delay", "0")
    with contextlib.suppress(OSError):  # guests need no IPv6 from the host; keep the bridge quiet
        Path(f"/proc/sys/net/ipv6/conf/{names.bridge}/disable_ipv6").write_text("1")
    run("ip", "addr", "add", f"{names.gateway}/{names.subnet.prefixlen}", "dev", names.bridge)
    run("ip", "link", "set", names.bridge, "mtu", str(mtu), "up")
    _forwarding_on()
    set_air(names, air)
    for node in lab.nodes:
        netns = names.netns(node.name)
        run("ip", "netns", "add", netns)
        run("ip", "-n", netns, "link", "set", "lo", "up")
        run(
            *("ip", "link", "add", names.port(node.rank), "mtu", str(mtu), "type", "veth"),
            *("peer", "name", MANAGEMENT, "netns", netns, "mtu", str(mtu), "address", names.mac(node.name, MANAGEMENT)),
        )
        run("ip", "link", "set", names.port(node.rank), "master", names.bridge, "up")
    if lab.has_switch:
        _switch_up(names)
    for cable in lab.cables:
        for rail in range(len(cage_interfaces(CAGES[0]))):
            plug(names, lab, cable, rail)


def _switch_up(names: Names) -> None:
    """One bridge per rail, in a namespace of its own: the two halves are different networks."""
    run("ip", "netns", "add", names.switch_netns)
    for rail in range(len(cage_interfaces(CAGES[0]))):
        run("ip", "-n", names.switch_netns, "link", "add", f"rail{rail}", "type", "bridge", "forward_delay", "0")
        run("ip", "-n", names.switch_netns, "link", "set", f"rail{rail}", "mtu", str(JUMBO), "up")


def switch_port(lab: Lab, cable: Cable, rail: int) -> str:
    return check_ifname(f"p{lab.node(cable.a.node).rank}c{cable.a.cage}r{rail}")


def plug(names: Names, lab: Lab, cable: Cable, rail: int) -> None:
    """Put one half of a cable in: both ends appear, down, at MTU 1500 and without address, as after a hot plug."""
    assert cable.a.cage is not None
    a, interface = names.netns(cable.a.node), cage_interfaces(cable.a.cage)[rail]
    end = ("name", interface, "address", names.mac(cable.a.node, interface))
    if cable.b.cage is None:
        port = switch_port(lab, cable, rail)
        run("ip", "-n", names.switch_netns, "link", "add", port, "mtu", str(JUMBO), "type", "veth", "peer", *end,
            "netns", a)  # fmt: skip
        run("ip", "-n", names.switch_netns, "link", "set", port, "master", f"rail{rail}", "up")
        return
    b, other = names.netns(cable.b.node), cage_interfaces(cable.b.cage)[rail]
    run("ip", "-n", a, "link", "add", *end, "type", "veth", "peer", "name", other, "netns", b,
        "address", names.mac(cable.b.node, other))  # fmt: skip


def unplug(names: Names, cable: Cable, rail: int) -> None:
    """Pull one half of a cable: the devices disappear on both sides, as the ConnectX-7's do without a cable."""
    assert cable.a.cage is not None
    run("ip", "-n", names.netns(cable.a.node), "link", "del", cage_interfaces(cable.a.cage)[rail])


def set_air(names: Names, on: bool) -> None:
    """Open or close the air gap. The gateway's own address answers in both cases: the lab's services live there."""
    bridge, subnet = names.bridge, names.subnet
    if on:
        rules = f"""
        chain input {{
            type filter hook input priority filter; policy accept;
            iifname "{bridge}" ip daddr != {{ {names.gateway}, {subnet.broadcast_address}, 224.0.0.0/4 }} \
reject with icmp type net-unreachable
        }}
        chain forward {{
            type filter hook forward priority filter; policy accept;
            iifname "{bridge}" oifname "{bridge}" accept
            iifname "{bridge}" reject with icmp type net-unreachable
            oifname "{bridge}" drop
        }}"""
    else:
        rules = f"""
        chain forward {{
            type filter hook forward priority filter; policy accept;
            iifname "{bridge}" oifname "{bridge}" accept
            iifname "{bridge}" oifname "br-*" reject with icmp type net-unreachable
        }}
        chain source {{
            type nat hook postrouting priority srcnat; policy accept;
            ip saddr {subnet} oifname != "{bridge}" masquerade
        }}"""
    table = f"table ip {names.table}"
    # declare, delete, declare: one transaction that also works when there is no table yet
    run("nft", "-f", "-", text_in=f"{table}\ndelete {table}\n{table} {{{rules}\n}}\n")


def _forwarding_on() -> None:
    SHARED.mkdir(exist_ok=True)
    with locked(SHARED / "lock"):
        before = SHARED / "ip_forward"
        if not before.exists():
            before.write_text(FORWARD.read_text())
        FORWARD.write_text("1")


def _forwarding_back() -> None:
    """Put ip_forward back to what it was, unless another lab still needs it."""
    if not SHARED.is_dir():
        return
    with locked(SHARED / "lock"):
        before = SHARED / "ip_forward"
        if before.exists() and not tables("lab_"):
            FORWARD.write_text(before.read_text())
            before.unlink()


def forwarding_refused() -> bool:
    """Whether another firewall (Docker's, for example) drops what the guests send out; ours cannot overrule it."""
    answer = run("nft", "list", "chain", "ip", "filter", "FORWARD", check=False)
    return answer.returncode == 0 and "policy drop" in answer.stdout


def down(names: Names) -> None:
    """Remove every network object that carries the id; needs no state."""
    for netns in namespaces(names):
        run("ip", "netns", "del", netns)
    for link in host_links(names):
        run("ip", "link", "del", link, check=False)
    if names.table in tables(names.table):
        run("nft", "delete", "table", "ip", names.table)
    _forwarding_back()


# ---- power on and off ----------------------------------------------------------------------------------------------


def management_on(names: Names, rank: int, node: str) -> None:
    """The management side is the lab's: address and default route are there before the guest boots."""
    netns = names.netns(node)
    run("ip", "-n", netns, "link", "set", "lo", "up")
    run("ip", "-n", netns, "link", "set", MANAGEMENT, "mtu", str(uplink_mtu()), "up")
    run("ip", "-n", netns, "addr", "replace", f"{names.address(rank)}/{names.subnet.prefixlen}", "dev", MANAGEMENT)
    run("ip", "-n", netns, "route", "replace", "default", "via", names.gateway)


def _sysctls(wanted: set[str] | None = None) -> dict[str, str]:
    """The per-namespace sysctls of the current network namespace that can be set back."""
    found: dict[str, str] = {}
    for folder, _folders, files in os.walk("/proc/sys/net"):
        for name in files:
            path = f"{folder}/{name}"
            if (wanted is not None and path not in wanted) or name.startswith(("stable_secret", "flush")):
                continue
            with contextlib.suppress(OSError, UnicodeDecodeError):
                if os.stat(path).st_mode & 0o200:
                    found[path] = Path(path).read_text()
    return found


def snapshot(names: Names, node: str, file: Path) -> None:
    """Remember a namespace as it is at power-on."""
    file.write_text(json.dumps(in_netns(names.netns(node), _sysctls)))


def _restore_sysctls(values: dict[str, str]) -> None:
    # ip_forward and the all/default entries change others: a second round settles those
    order = sorted(values, key=lambda path: (not path.endswith("/ip_forward"), "/conf/all/" not in path, path))
    for _round in range(2):
        now = _sysctls(set(values))
        for path in order:
            if path in now and now[path] != values[path]:
                with contextlib.suppress(OSError):
                    Path(path).write_text(values[path])


def reset(names: Names, lab: Lab, node: str, file: Path) -> None:
    """Undo at power-off what a guest did to its namespace; cables stay, without carrier."""
    netns = names.netns(node)
    own = {"lo", MANAGEMENT, *lab.interfaces(node)}
    links: list[dict[str, Any]] = run_json("ip", "-j", "-n", netns, "link", "show")
    for link in links:
        name = link["ifname"]
        if name not in own:
            run("ip", "-n", netns, "link", "del", name, check=False)
            continue
        run("ip", "-n", netns, "link", "set", name, "down", "nomaster", check=False)
        run("ip", "-n", netns, "addr", "flush", "dev", name, check=False)
        clear_qdiscs(netns, name)
        if name not in {"lo", MANAGEMENT}:
            run("ip", "-n", netns, "link", "set", name, "mtu", str(STANDARD_MTU), "arp", "on", "promisc", "off",
                "address", names.mac(node, name), check=False)  # fmt: skip
    run("ip", "-n", netns, "route", "flush", "table", "all", check=False)
    rules = {rule["priority"] for rule in run_json("ip", "-j", "-n", netns, "rule", "show")}
    for priority in rules - {0, 32766, 32767}:
        run("ip", "-n", netns, "rule", "del", "priority", str(priority), check=False)
    run("ip", "netns", "exec", netns, "nft", "flush", "ruleset", check=False)
    with contextlib.suppress(OSError, ValueError):
        values: dict[str, str] = json.loads(file.read_text())
        in_netns(netns, lambda: _restore_sysctls(values))


def clear_qdiscs(netns: str, interface: str) -> None:
    for where in ("root", "ingress"):
        run("tc", "-n", netns, "qdisc", "del", "dev", interface, where, check=False)


def close_connections(address: str) -> None:
    """Reset the host's TCP connections to a node that is gone: a kept-open SSH master would hang on it for a minute."""
    run("ss", "-K", "dst", address, check=False)


def link_state(names: Names, node: str, interfaces: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """MTU and state of each fabric device of a node; a pulled cable has none."""
    listing: list[dict[str, Any]] = run_json("ip", "-j", "-n", names.netns(node), "link", "show")
    by_name = {link["ifname"]: link for link in listing}
    state: dict[str, dict[str, Any]] = {}
    for name in interfaces:
        link = by_name.get(name)
        if link is None:
            state[name] = {"plugged": False}
            continue
        flags = link.get("flags", [])
        state[name] = {"plugged": True, "up": "UP" in flags, "carrier": "LOWER_UP" in flags, "mtu": link["mtu"]}
    return state

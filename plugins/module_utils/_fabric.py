# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""The ConnectX-7 network of a Spark: cages, rails, RDMA devices and GIDs. Pure functions.

A Spark has two QSFP cages. Each cage is reached over two PCIe halves, so it shows as two network interfaces and two
RDMA devices: ``enp1s0f0np0`` and ``enP2p1s0f0np0`` are the two halves (rails) of cage 0.
"""

from __future__ import annotations

import ipaddress
import json
import re
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _values

MELLANOX = "15b3"
DRIVER = "mlx5_core"
GIB = 1024**3
GID_ROCE_V2 = "RoCE v2"

_NAME = re.compile(r"^en[pP](\d+)?(?:p(\d+))?s\d+f(\d+)np(\d+)$", re.ASCII)
_PORT = re.compile(r"^p(\d+)$", re.ASCII)
_FUNCTION = re.compile(r"^([0-9a-fA-F]{4,8}):[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.([0-7])$", re.ASCII)
_GID = re.compile(r"^([0-9a-f]{4}:){7}[0-9a-f]{4}$", re.ASCII)
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_MAPPED = "0000:0000:0000:0000:0000:ffff:"
_SPEED = re.compile(r"^(\d+(?:\.\d+)?)\s*GT/s", re.ASCII)


def fabric_name(name: str) -> tuple[int, int] | None:
    """Cage and half of an interface that is named as on a Spark, else None.

    ``enp1s0f1np1`` is cage 1, half 0; the halves of the second PCIe domain carry a capital P: ``enP2p1s0f1np1``.
    """
    match = _NAME.match(name)
    if match is None:
        return None
    return int(match.group(4)), (1 if name.startswith("enP") else 0)


def place(name: str, pci: str | None, port_name: str | None) -> dict[str, t.Any]:
    """Cage and half of one interface, and what tells so.

    The port name that the driver gives decides, then the PCI function (``.0`` is cage 0), then the interface's name.
    """
    by_name = fabric_name(name)
    port = _PORT.match(port_name or "")
    function = _FUNCTION.match(pci or "")
    cage: int | None = None
    source = None
    if port:
        cage, source = int(port.group(1)), "phys_port_name"
    elif function:
        cage, source = int(function.group(2)), "pci_function"
    elif by_name:
        cage, source = by_name[0], "name"
    half: int | None = None
    if function:
        half = 1 if int(function.group(1), 16) else 0
    elif by_name:
        half = by_name[1]
    return {"cage": cage, "half": half, "cage_source": source}


def cages(interfaces: t.Mapping[str, t.Mapping[str, t.Any]]) -> list[dict[str, t.Any]]:
    """Group interfaces (with ``cage``, ``half``, ``cage_source``) into QSFP cages, the first half first."""
    found: dict[int, list[str]] = {}
    for name, interface in interfaces.items():
        if interface.get("cage") is not None:
            found.setdefault(interface["cage"], []).append(name)
    result = []
    for index, names in sorted(found.items()):
        names.sort(key=lambda name: (interfaces[name].get("half") is None, interfaces[name].get("half") or 0, name))
        sources = sorted({str(interfaces[name].get("cage_source")) for name in names})
        result.append({"index": index, "interfaces": names, "source": ", ".join(sources)})
    return result


# -- GIDs -------------------------------------------------------------------------------------------------------------


def gid(index: int, value: str | None, kind: str | None, interface: str | None) -> dict[str, t.Any] | None:
    """One slot of a GID table, or None when it is empty or unreadable."""
    text = (value or "").strip().lower()
    if not _GID.match(text) or text == _NO_GID:
        return None
    return {
        "index": index,
        "gid": text,
        "type": _values.text(kind),
        "interface": _values.text(interface),
        "ipv4": mapped_ipv4(text),
    }


def mapped_ipv4(text: str) -> str | None:
    """The IPv4 address in a GID of the form ``0000:0000:0000:0000:0000:ffff:c0a8:640a``, else None."""
    if not text.startswith(_MAPPED):
        return None
    digits = text[len(_MAPPED) :].replace(":", "")
    try:
        return str(ipaddress.IPv4Address(int(digits, 16)))
    except ValueError:
        return None


def roce_index(gids: t.Sequence[t.Mapping[str, t.Any]] | None, address: str | None = None) -> int | None:
    """The index of the RoCE v2 entry that carries an IPv4 address (or *address*); None when there is none.

    The index moves after reboots and address changes and differs between HCAs, so it is looked up and never assumed.
    """
    for entry in gids or []:
        if not isinstance(entry, t.Mapping) or entry.get("type") != GID_ROCE_V2 or not entry.get("ipv4"):
            continue
        if address in (None, entry["ipv4"]):
            index = entry.get("index")
            return index if isinstance(index, int) else None
    return None


def roce_indexes(devices: t.Mapping[str, t.Mapping[str, t.Any]]) -> dict[str, int | None]:
    """:func:`roce_index` for every HCA of ``spark_fabric.rdma_devices``."""
    return {name: roce_index(device.get("gids")) for name, device in devices.items()}


# -- iproute2 ---------------------------------------------------------------------------------------------------------


def _entries(content: str | None) -> list[dict[str, t.Any]] | None:
    try:
        parsed = json.loads(content) if content is not None and content.strip() else ([] if content == "" else None)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, list):
        return None
    return [entry for entry in parsed if isinstance(entry, dict)]


def ip_addresses(content: str | None) -> dict[str, dict[str, t.Any]] | None:
    """``ip -j addr show`` by interface: addresses with prefix length, MTU, MAC, kind of link. None when unreadable."""
    entries = _entries(content)
    if entries is None:
        return None
    found: dict[str, dict[str, t.Any]] = {}
    for entry in entries:
        name = entry.get("ifname")
        if not isinstance(name, str):
            continue
        infos = entry.get("addr_info")
        addresses = [
            f"{info['local']}/{info['prefixlen']}"
            for info in (infos if isinstance(infos, list) else [])
            if isinstance(info, dict) and isinstance(info.get("local"), str) and isinstance(info.get("prefixlen"), int)
        ]
        flags = entry.get("flags") if isinstance(entry.get("flags"), list) else None
        found[name] = {
            "addresses": [address for address in addresses if not address.startswith("fe80:")],
            "link_local": [address for address in addresses if address.startswith("fe80:")],
            "mtu": entry.get("mtu") if isinstance(entry.get("mtu"), int) else None,
            "mac": entry.get("address") if isinstance(entry.get("address"), str) else None,
            "admin_up": None if flags is None else "UP" in flags,
            "master": entry.get("master") if isinstance(entry.get("master"), str) else None,
        }
    return found


def ip_routes(content: str | None) -> list[dict[str, t.Any]] | None:
    """``ip -j route show``: destination, interface, gateway, source, metric, protocol. None when unreadable."""
    entries = _entries(content)
    if entries is None:
        return None
    return [
        {
            "destination": entry.get("dst"),
            "interface": entry.get("dev"),
            "gateway": entry.get("gateway"),
            "source": entry.get("prefsrc"),
            "metric": entry.get("metric", 0),
            "protocol": entry.get("protocol"),
            "flags": entry.get("flags") if isinstance(entry.get("flags"), list) else [],
        }
        for entry in entries
        if isinstance(entry.get("dst"), str)
    ]


def ip_neighbours(content: str | None, interface: str | None = None) -> list[dict[str, t.Any]] | None:
    """``ip -j neigh show``. With a ``dev`` filter iproute2 leaves the interface out: it is *interface* then."""
    entries = _entries(content)
    if entries is None:
        return None
    return [
        {
            "address": entry.get("dst"),
            "interface": entry.get("dev") or interface,
            "mac": entry.get("lladdr"),
            "state": [str(state) for state in entry["state"]] if isinstance(entry.get("state"), list) else [],
        }
        for entry in entries
        if isinstance(entry.get("dst"), str)
    ]


def reachable(neighbours: t.Sequence[t.Mapping[str, t.Any]] | None, address: str) -> bool | None:
    """Whether a neighbour is known to answer. FAILED, INCOMPLETE and an empty list mean that it is not."""
    if neighbours is None:
        return None
    good = {"REACHABLE", "STALE", "DELAY", "PROBE", "PERMANENT", "NOARP"}
    return any(entry.get("address") == address and good & set(entry.get("state") or []) for entry in neighbours)


def route_to(content: str | None, source: str, interface: str | None = None) -> dict[str, t.Any]:
    """``ip -j route get``: whether the way is direct and leaves with *source*.

    The source stands in ``prefsrc``, or in ``from`` when the question had a ``from``.
    """
    entries = _entries(content)
    if not entries:
        return {"ok": None if entries is None else False, "problem": "no route", "interface": None, "source": None}
    entry = entries[0]
    used, through = entry.get("prefsrc") or entry.get("from"), entry.get("dev")
    problem = None
    if entry.get("gateway") or entry.get("via"):
        problem = f"goes through the gateway {entry.get('gateway') or entry.get('via')}"
    elif used != source:
        problem = f"leaves with the address {used}, wanted {source}"
    elif interface is not None and through != interface:
        problem = f"leaves through {through}, wanted {interface}"
    return {"ok": problem is None, "problem": problem, "interface": through, "source": used}


def management(
    routes: t.Sequence[t.Mapping[str, t.Any]] | None,
    addresses: t.Mapping[str, t.Mapping[str, t.Any]] | None,
    connection: str | None,
) -> dict[str, str | None]:
    """The interface of the management network: where this SSH connection ends, else that of the default route."""
    words = (connection or "").split()
    if len(words) == 4:
        for name, entry in (addresses or {}).items():
            if any(address.split("/")[0] == words[2] for address in entry.get("addresses", [])):
                return {"interface": name, "address": words[2], "source": "SSH_CONNECTION"}
    defaults = [route for route in routes or [] if route.get("destination") == "default" and route.get("interface")]
    if defaults:
        best = min(defaults, key=lambda route: route.get("metric") or 0)
        name = str(best["interface"])
        own = [a for a in ((addresses or {}).get(name) or {}).get("addresses", []) if ":" not in a]
        return {"interface": name, "address": own[0].split("/")[0] if own else None, "source": "default route"}
    return {"interface": None, "address": None, "source": None}


# -- other tools ------------------------------------------------------------------------------------------------------


def ibdev2netdev(content: str | None) -> list[dict[str, t.Any]]:
    """``roceP2p1s0f1 port 1 ==> enP2p1s0f1np1 (Up)``."""
    found = []
    for line in (content or "").splitlines():
        match = re.match(r"^\s*(\S+) port (\d+) ==> (\S+) \((\w+)\)\s*$", line, re.ASCII)
        if match:
            up = {"up": True, "down": False}.get(match.group(4).lower())
            found.append(
                {"rdma_device": match.group(1), "port": int(match.group(2)), "interface": match.group(3), "up": up}
            )
    return found


def rdma_links(content: str | None) -> list[dict[str, t.Any]]:
    """``rdma link show``: ``link rocep1s0f0/1 state ACTIVE physical_state LINK_UP netdev enp1s0f0np0``."""
    found = []
    for line in (content or "").splitlines():
        words = line.split()
        if len(words) < 2 or words[0] != "link" or "/" not in words[1]:
            continue
        device, _slash, port = words[1].partition("/")
        values = dict(zip(words[2::2], words[3::2]))
        found.append(
            {
                "rdma_device": device,
                "port": _values.integer(port),
                "state": values.get("state"),
                "physical_state": values.get("physical_state"),
                "interface": values.get("netdev"),
            }
        )
    return found


def port_state(content: str | None) -> str | None:
    """``4: ACTIVE`` in sysfs is ``ACTIVE``."""
    match = re.match(r"^\d+:\s*(\S.*?)\s*$", content or "")
    return match.group(1) if match else None


def link_speed(content: str | None) -> float | None:
    """``32.0 GT/s PCIe`` is 32.0; ``Unknown`` is None."""
    match = _SPEED.match((content or "").strip())
    return float(match.group(1)) if match else None


def nccl_conf(content: str | None) -> list[str]:
    """The names that /etc/nccl.conf sets for every process on the machine."""
    return sorted(name for name in _values.assignments(content) if name.upper() == name)


def forward_policy(content: str | None) -> str | None:
    """The policy of the FORWARD chain in ``iptables -S FORWARD``; Docker sets it to DROP."""
    match = re.search(r"^-P FORWARD (\w+)", content or "", re.MULTILINE | re.ASCII)
    return match.group(1) if match else None


def packet_filter(content: str | None) -> dict[str, t.Any]:
    """``nft -j list ruleset``: policies of the input and forward hooks, and the interfaces whose input is accepted.

    A hook with several chains has the policy ``drop`` as soon as one of them drops. None when it could not be read.
    """
    nothing: dict[str, t.Any] = {"input_policy": None, "forward_policy": None, "input_accepts": None}
    try:
        parsed = json.loads(content or "")
    except (ValueError, RecursionError):
        return nothing
    objects = parsed.get("nftables") if isinstance(parsed, dict) else None
    if not isinstance(objects, list):
        return nothing
    policies: dict[str, str] = {"input": "accept", "forward": "accept"}
    accepted: set[str] = set()
    for entry in objects:
        chain = entry.get("chain") if isinstance(entry, dict) else None
        if isinstance(chain, dict) and (chain.get("type"), chain.get("policy")) == ("filter", "drop"):
            policies.update({hook: "drop" for hook in policies if hook == chain.get("hook")})
        rule = entry.get("rule") if isinstance(entry, dict) else None
        expressions = rule.get("expr") if isinstance(rule, dict) else None
        if isinstance(expressions, list) and any(isinstance(e, dict) and "accept" in e for e in expressions):
            for expression in expressions:
                accepted |= _matched_interfaces(expression)
    return {
        "input_policy": policies["input"],
        "forward_policy": policies["forward"],
        "input_accepts": sorted(accepted),
    }


def _matched_interfaces(expression: t.Any) -> set[str]:
    match = expression.get("match") if isinstance(expression, dict) else None
    left = match.get("left") if isinstance(match, dict) else None
    meta = left.get("meta") if isinstance(left, dict) else None
    if match is None or match.get("op") != "==" or not isinstance(meta, dict):
        return set()
    if meta.get("key") not in ("iifname", "iif"):
        return set()
    right = match.get("right")
    values = right.get("set") if isinstance(right, dict) else [right]
    return {value for value in values if isinstance(value, str)} if isinstance(values, list) else set()


def mentions(content: str, names: t.Iterable[str]) -> list[str]:
    """Interface names that a configuration file mentions as whole words."""
    words = set(re.findall(r"[A-Za-z0-9_.-]+", content))
    return sorted(set(names) & {word.rstrip(":.") for word in words})


# -- judgements -------------------------------------------------------------------------------------------------------


def rail_verdict(negotiated_mbps: float | None, measured_gbps: float | None) -> str:
    """Judge a measured RDMA bandwidth against the negotiated speed of the link.

    ``ok``; ``below_expected`` (between half of what one rail gives and what it gives, 92-112 Gb/s);
    ``degraded_init`` (the link says 200G and the card gives far less: reboot with the cable in, or cut the power for 60
    s); ``link_speed`` (the link itself came up slow); ``not_measured``.
    """
    if measured_gbps is None or measured_gbps < 0:
        return "not_measured"
    if negotiated_mbps is not None and negotiated_mbps < SPEED_EXPECTED:
        return "link_speed"
    if measured_gbps < RAIL_FAILED:
        return "degraded_init"
    return "ok" if measured_gbps >= RAIL_EXPECTED else "below_expected"


SPEED_EXPECTED = 200000  # Mb/s, ethtool on both halves
RAIL_EXPECTED = 90.0  # Gb/s; healthy rails give 92-112 (cluster-guide 01 and 10, connect-two-sparks)
RAIL_FAILED = 50.0  # Gb/s; below this the card is in its 13 Gb/s state

MESSAGE_DEFAULT = GIB  # largest message of a bandwidth test unless more is asked for
MESSAGE_BUFFERS = 3  # to send, to receive, and nccl-tests keeps what it expects


def refuse_message(message_bytes: int, available_bytes: int | None, reserve_bytes: int = 8 * GIB) -> str | None:
    """Why a bandwidth test with this message size must not run on a machine with unified memory, or None.

    The buffers are taken from the machine's own memory, and running out of it does not fail but freezes the machine
    (NVIDIA/dgx-spark-playbooks#102).
    """
    if available_bytes is None:
        if message_bytes <= MESSAGE_DEFAULT:
            return None
        return f"message of {message_bytes / GIB:.1f} GiB wanted, and MemAvailable could not be read"
    needed = MESSAGE_BUFFERS * message_bytes + reserve_bytes
    if needed <= available_bytes:
        return None
    return (
        f"message of {message_bytes / GIB:.1f} GiB needs {needed / GIB:.1f} GiB of memory ({MESSAGE_BUFFERS} buffers,"
        f" {reserve_bytes / GIB:.1f} GiB to spare), MemAvailable is {available_bytes / GIB:.1f} GiB"
    )

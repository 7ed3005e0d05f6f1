# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Read everything that ``spark_fabric`` is made of."""

from __future__ import annotations

import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _fabric, _gather, _values
from ansible_collections.tandem.spark.plugins.module_utils._host import Host, pci_address

NET = "/sys/class/net"
RDMA = "/sys/class/infiniband"
COUNTERS = ("port_xmit_data", "port_rcv_data", "port_rcv_errors", "port_xmit_discards", "link_downed")
HW_COUNTERS = (
    "packet_seq_err",
    "out_of_sequence",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "np_cnp_sent",
    "rp_cnp_handled",
    "roce_adp_retrans",
)
STATISTICS = ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors")
IP_SETTINGS = ("rp_filter", "arp_ignore", "arp_announce", "forwarding")
HOTPLUG_ENABLED = "/etc/nvidia/cx7-hotplug-enabled"
HOTPLUG_DISABLED = "/etc/nvidia/cx7-hotplug-disabled"
HOTPLUG_HANDLER = "/opt/nvidia/dgx-spark-mlnx-hotplug"
CONFIGURATION = (
    "/etc/netplan",
    "/etc/systemd/network",
    "/etc/NetworkManager/system-connections",
    "/run/NetworkManager/system-connections",
)


def rdma_devices(host: Host) -> dict[str, dict[str, t.Any]] | None:
    """RDMA devices with their PCI function, port, firmware, GIDs and counters.

    None when /sys/class cannot be listed; empty when there is no RDMA device (no cable, or no driver).
    """
    names = host.names(RDMA)
    if names is None:
        classes = host.names("/sys/class")
        return {} if classes is not None and "infiniband" not in classes else None
    found = {}
    for name in names:
        base = f"{RDMA}/{name}"
        port = f"{base}/ports/1"
        gids = None
        slots = host.names(f"{port}/gids")
        if slots is not None:
            gids = []
            for slot in sorted((s for s in slots if s.isdigit()), key=int):
                value = host.line(f"{port}/gids/{slot}")
                if _fabric.gid(int(slot), value, None, None) is None:
                    continue
                kind = host.line(f"{port}/gid_attrs/types/{slot}")
                entry = _fabric.gid(int(slot), value, kind, host.line(f"{port}/gid_attrs/ndevs/{slot}"))
                gids.extend([entry] if entry else [])
        attached = host.names(f"{base}/device/net") or [g["interface"] for g in gids or [] if g["interface"]]
        found[name] = {
            "interface": attached[0] if attached else None,
            "pci_address": pci_address(host.link(f"{base}/device")),
            "state": _fabric.port_state(host.line(f"{port}/state")),
            "physical_state": _fabric.port_state(host.line(f"{port}/phys_state")),
            "rate": host.line(f"{port}/rate"),
            "firmware": _values.text(host.line(f"{base}/fw_ver")),
            "board_id": _values.text(host.line(f"{base}/board_id")),
            "gids": gids,
            "roce_gid_index": _fabric.roce_index(gids),
            "counters": {c: _values.integer(host.line(f"{port}/counters/{c}")) for c in COUNTERS},
            "hw_counters": {c: _values.integer(host.line(f"{port}/hw_counters/{c}")) for c in HW_COUNTERS},
        }
    return found


def interface(host: Host, name: str, known: t.Mapping[str, t.Any] | None) -> dict[str, t.Any]:
    """One fabric interface, without its RDMA device."""
    base = f"{NET}/{name}"
    device = host.link(f"{base}/device")
    pci = pci_address(device)
    port_name = _values.text(host.line(f"{base}/phys_port_name"))
    driver = host.link(f"{base}/device/driver")
    listed = host.names(base)
    flags = host.line(f"{base}/flags")
    admin_up = known.get("admin_up") if known else None
    if flags is not None and flags.startswith("0x"):
        try:
            admin_up = bool(int(flags, 16) & 1)
        except ValueError:
            admin_up = None
    speed = _values.integer(host.line(f"{base}/speed"))
    return {
        **_fabric.place(name, pci, port_name),
        "pci_address": pci,
        "driver": driver.rsplit("/", 1)[-1] if driver else None,
        "virtual": None if listed is None else ("device" not in listed),
        "phys_port_name": port_name,
        "phys_switch_id": _values.text(host.line(f"{base}/phys_switch_id")),
        "admin_up": admin_up,
        "carrier": _values.flag(_values.integer(host.line(f"{base}/carrier"))),
        "operstate": _values.text(host.line(f"{base}/operstate")),
        "speed_mbps": speed if speed is not None and speed > 0 else None,
        "mtu": _values.integer(host.line(f"{base}/mtu")) or (known.get("mtu") if known else None),
        "mac": host.line(f"{base}/address") or (known.get("mac") if known else None),
        "master": known.get("master") if known else None,
        "addresses": list(known["addresses"]) if known else None,
        "carrier_down_count": _values.integer(host.line(f"{base}/carrier_down_count")),
        "carrier_up_count": _values.integer(host.line(f"{base}/carrier_up_count")),
        "pcie": {
            "speed_gts": _fabric.link_speed(host.line(f"{base}/device/current_link_speed")),
            "width": _values.integer(host.line(f"{base}/device/current_link_width")) or None,
            "maximum_speed_gts": _fabric.link_speed(host.line(f"{base}/device/max_link_speed")),
            "maximum_width": _values.integer(host.line(f"{base}/device/max_link_width")) or None,
        },
        "statistics": {s: _values.integer(host.line(f"{base}/statistics/{s}")) for s in STATISTICS},
        "ip_settings": {s: _values.integer(host.line(f"/proc/sys/net/ipv4/conf/{name}/{s}")) for s in IP_SETTINGS},
    }


def is_fabric(host: Host, name: str) -> bool:
    """Whether an interface belongs to the fabric: a ConnectX card is behind it, or it is named as on a Spark."""
    driver = host.link(f"{NET}/{name}/device/driver") or ""
    vendor = host.line(f"{NET}/{name}/device/vendor") or ""
    if driver.rsplit("/", 1)[-1] == _fabric.DRIVER or vendor.lower() == f"0x{_fabric.MELLANOX}":
        return True
    return _fabric.fabric_name(name) is not None


def leftovers(host: Host, names: t.Sequence[str]) -> dict[str, t.Any]:
    """What earlier attempts and other software left behind and what changes how the fabric behaves."""
    answers = host.together(
        {
            "nft": lambda: host.run(["nft", "-j", "list", "ruleset"]),
            "iptables": lambda: host.run(["iptables", "-S", "FORWARD"]),
        }
    )
    ufw = _values.truth(_values.assignments(host.read("/etc/ufw/ufw.conf")).get("ENABLED"))
    if host.exists("/etc/ufw/ufw.conf") is False:
        ufw = False
    rules = host.read("/etc/ufw/user.rules") or ""
    files = []
    for directory in CONFIGURATION:
        for name in host.names(directory) or []:
            mentioned = _fabric.mentions(host.read(f"{directory}/{name}") or "", names)
            if mentioned:
                files.append({"path": f"{directory}/{name}", "interfaces": mentioned})
    home = host.environ.get("HOME") or "/root"
    settings = {
        name: _fabric.nccl_conf(host.read(name))
        for name in ("/etc/nccl.conf", f"{home}/.nccl.conf")
        if host.exists(name) is not False
    }
    environment = _values.assignments(host.read("/etc/environment"))
    return {
        "nccl_conf": settings,
        "nccl_environment": sorted(name for name in environment if name.startswith(("NCCL_", "GLOO_"))),
        "ufw_enabled": ufw,
        "ufw_accepts": [name for name in names if f"-i {name} " in rules or f"on_{name}" in rules],
        "packet_filter": _fabric.packet_filter(answers["nft"].output),
        "docker_forward_policy": _fabric.forward_policy(answers["iptables"].output),
        "configuration": files,
    }


def describe(host: Host) -> dict[str, t.Any]:
    """The value of ``spark_fabric``."""
    answers = host.together(
        {
            "addresses": lambda: host.run(["ip", "-j", "addr", "show"]),
            "routes": lambda: host.run(["ip", "-j", "route", "show"]),
            "neighbours": lambda: host.run(["ip", "-j", "neigh", "show"]),
        }
    )
    addresses = _fabric.ip_addresses(answers["addresses"].output)
    routes = _fabric.ip_routes(answers["routes"].output)
    neighbours = _fabric.ip_neighbours(answers["neighbours"].output)
    listed = host.names(NET)
    names = listed if listed is not None else sorted(addresses or {})
    fabric = [name for name in names if is_fabric(host, name)]
    interfaces = {name: interface(host, name, (addresses or {}).get(name)) for name in fabric}
    devices = rdma_devices(host)
    for name, entry in interfaces.items():
        entry["rdma_device"] = None
        entry["gids"] = None
        for device, rdma in (devices or {}).items():
            same = entry["pci_address"] is not None and rdma["pci_address"] == entry["pci_address"]
            if same or rdma["interface"] == name:
                rdma["interface"] = rdma["interface"] or name
                entry["rdma_device"], entry["gids"] = device, rdma["gids"]
                break
    ports = _gather.pci_devices(host, (_fabric.MELLANOX,))
    others = {
        name: {"addresses": entry["addresses"], "mtu": entry["mtu"], "mac": entry["mac"], "admin_up": entry["admin_up"]}
        for name, entry in (addresses or {}).items()
        if name not in interfaces and name != "lo"
    }
    chosen = _fabric.management(routes, addresses, host.environ.get("SSH_CONNECTION"))
    forwarding = _values.integer(host.line("/proc/sys/net/ipv4/ip_forward"))
    return {
        "cages": _fabric.cages(interfaces),
        "interfaces": interfaces,
        "interfaces_known": listed is not None,
        "other_interfaces": None if addresses is None else others,
        "rdma_devices": devices,
        "rdma_present": None if devices is None else bool(devices),
        "pci_functions": ports,
        "management_interface": chosen["interface"],
        "management_address": chosen["address"],
        "management_source": chosen["source"],
        "routes": routes,
        "neighbours": None if neighbours is None else [n for n in neighbours if n["interface"] in interfaces],
        "hotplug_marker": host.exists(HOTPLUG_ENABLED),
        "hotplug": {"disabled": host.exists(HOTPLUG_DISABLED), "handler": host.exists(HOTPLUG_HANDLER)},
        "ip_forward": _values.flag(forwarding),
        "managers": {
            "networkd": host.exists("/run/systemd/netif/links"),
            "networkmanager": host.exists("/run/NetworkManager"),
            "netplan": bool(host.names("/etc/netplan")) if host.exists("/etc/netplan") is not None else None,
        },
        "leftovers": leftovers(host, fabric),
    }

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Checks of the network between the nodes."""

from __future__ import annotations

import ipaddress
import itertools
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _fabric
from ansible_collections.tandem.spark.plugins.plugin_utils._addresses import AddressError, parse_link_address
from ansible_collections.tandem.spark.plugins.plugin_utils._advisories import value
from ansible_collections.tandem.spark.plugins.plugin_utils._review import (
    Review,
    address_of,
    as_list,
    as_map,
    as_maps,
    conjoin,
    wider,
)

CARRIER_LOSSES = 3  # reference: hardware, section 3.1
LOSSES = 1000  # section 3.9
PCIE_SPEED, PCIE_WIDTH = 32.0, 4  # section 3.1


def planned(review: Review, name: str) -> list[dict[str, t.Any]]:
    """The links of a node in the deployment, with the facts of their interfaces."""
    for node in review.deployment.get("nodes") or []:
        if isinstance(node, t.Mapping) and node.get("name") == name:
            return [dict(link) for link in node.get("links") or [] if isinstance(link, t.Mapping)]
    return []


def interface(review: Review, name: str, wanted: t.Any) -> dict[str, t.Any]:
    return as_map({"i": as_map(review.facts.get(name), "spark_fabric.interfaces").get(str(wanted))}, "i")


def links(review: Review) -> None:
    for name in review.all_names:
        for link in planned(review, name):
            link_present(review, name, link)
    for name in review.facts:
        rails(review, name)
        node_fabric(review, name)
    addresses(review)
    ends(review)
    pinned_gid(review)


def link_present(review: Review, name: str, link: dict[str, t.Any]) -> None:
    facts = as_map(review.facts.get(name), "spark_fabric")
    if not facts:
        return
    wanted, entry = str(link.get("interface")), interface(review, name, link.get("interface"))
    known = {**as_map(facts, "other_interfaces"), **as_map(facts, "interfaces")}
    if wanted not in known:
        if facts.get("interfaces_known") is not True or not isinstance(facts.get("interfaces"), t.Mapping):
            review.not_checked(f"interface {wanted}", name)
        elif facts.get("rdma_present") is False and not as_map(facts, "interfaces"):
            review.add(
                "fabric.no_cable",
                "blocked",
                [name],
                f"no ConnectX interface at all, so no {wanted}",
                f"{wanted} with a cable in it",
                "without a cable the card removes itself: plug the cable in, wait 20 s; if the card stays away, reboot"
                " all nodes together with the cable in",
            )
        else:
            there = ", ".join(as_map(facts, "interfaces")) or "none"
            review.add(
                "fabric.interface_missing",
                "blocked",
                [name],
                f"no interface {wanted}; there are {there}",
                f"{wanted}, which the inventory names",
                "correct the interface in the inventory, or plug the cable into the other cage",
            )
        return
    if not entry:
        return
    if entry.get("carrier") is None:
        review.not_checked(
            f"link of {wanted}" + (", which is switched off" if entry.get("admin_up") is False else ""), name
        )
    elif entry["carrier"] is False:
        end = other_end(review, name, link)
        if end and interface(review, *end).get("admin_up") is False:
            review.not_checked(f"link of {wanted}, because {end[1]} on {end[0]} is switched off", name)
        else:
            review.add(
                "fabric.no_carrier",
                "blocked",
                [name],
                f"{wanted} has no link",
                "a link" + (f" to {end[1]} on {end[0]}" if end else ""),
                "check both ends of the cable and the cage; if only one node was rebooted, reboot all of them together",
            )
    quality(review, name, wanted, entry, facts.get("rdma_present"))


def quality(review: Review, name: str, wanted: str, entry: dict[str, t.Any], rdma_present: bool | None) -> None:
    """Speed, PCIe, RDMA and stability of one interface that is there."""
    virtual = entry.get("virtual") is True
    speed = entry.get("speed_mbps")
    if entry.get("carrier") and not virtual and isinstance(speed, int) and speed < _fabric.SPEED_EXPECTED:
        review.add(
            "fabric.speed",
            "slow",
            [name],
            f"{wanted} at {speed} Mb/s",
            f"{_fabric.SPEED_EXPECTED} Mb/s",
            "use a 200G cable; behind a switch set the speed of the port by hand",
        )
    pcie, width = value(entry, "pcie.speed_gts"), value(entry, "pcie.width")
    if (isinstance(pcie, (int, float)) and pcie < PCIE_SPEED) or (isinstance(width, int) and width < PCIE_WIDTH):
        review.add(
            "fabric.pcie",
            "slow",
            [name],
            f"{wanted} on a PCIe link of {pcie or 'unknown'} GT/s x{width or 'unknown'}",
            f"{PCIE_SPEED:g} GT/s x{PCIE_WIDTH}",
            "cut the power of this node for 60 s; if it stays, the unit is defective",
        )
    if entry.get("rdma_device") is None and review.fabric.get("transport", "roce") != "socket":
        if rdma_present is None:
            review.not_checked(f"RDMA device of {wanted}", name)
        else:
            review.add(
                "fabric.rdma_missing",
                "blocked",
                [name],
                f"no RDMA device for {wanted}{' (virtual)' if virtual else ''}",
                "one RDMA device for each rail",
                "sudo modprobe mlx5_ib, and install rdma-core; without RDMA the ranks talk over TCP, four to five times"
                " slower",
            )
    has_ipv4 = any(":" not in str(address) for address in entry.get("addresses") or [])
    gids = entry.get("gids") if entry.get("rdma_device") and has_ipv4 and entry.get("carrier") else None
    if gids is not None and _fabric.roce_index(gids) is None:
        review.add(
            "fabric.gid_missing",
            "slow",
            [name],
            f"{entry['rdma_device']} has no RoCE v2 entry for {', '.join(entry['addresses'])}",
            "one slot of type RoCE v2 with the IPv4 address",
            "take the address off and put it on again (tandem.spark.fabric); if the slot stays empty, reboot",
        )
    losses = entry.get("carrier_down_count")
    if not virtual and isinstance(losses, int) and losses > CARRIER_LOSSES:
        review.add(
            "fabric.carrier_losses",
            "slow",
            [name],
            f"{wanted} lost its link {losses} times since boot",
            f"at most {CARRIER_LOSSES}",
            "plug the cable in again at both ends, or use another one",
        )


def other_end(review: Review, name: str, link: dict[str, t.Any]) -> tuple[str, str] | None:
    """The other end of a link: the one interface of another node in the same network."""
    own = address_of(link.get("address"))
    if own is None:
        return None
    ends = [
        (other, str(entry.get("interface")))
        for other in review.all_names
        if other != name
        for entry in planned(review, other)
        for address in [address_of(entry.get("address"))]
        if address is not None and address.network == own.network
    ]
    return ends[0] if len(ends) == 1 else None


def rails(review: Review, name: str) -> None:
    facts = as_map(review.facts[name], "spark_fabric")
    used = {str(link.get("interface")) for link in planned(review, name)}
    for cage in as_list(facts, "cages"):
        states = {n: interface(review, name, n).get("carrier") for n in cage.get("interfaces") or []}
        up = [n for n, carrier in states.items() if carrier is True]
        down = [n for n, carrier in states.items() if carrier is False]
        if up and down and (not used or used & set(states)):
            review.add(
                "fabric.half_down",
                "slow",
                [name],
                f"cage {cage.get('index')}: {conjoin(up)} has a link, {conjoin(down)} has none",
                "both halves of a cage up, since they share one cable",
                "a fault of driver or configuration, not of the wire: reboot all nodes together with the cable in",
            )


def node_fabric(review: Review, name: str) -> None:
    facts = as_map(review.facts[name], "spark_fabric")
    if not facts:
        return
    interfaces = as_map(facts, "interfaces")
    used = [str(link.get("interface")) for link in planned(review, name)] or list(interfaces)
    for route in as_list(facts, "routes"):
        if route.get("destination") == "default" and route.get("interface") in interfaces:
            review.add(
                "fabric.default_route",
                "slow",
                [name],
                f"default route through {route.get('gateway') or 'no gateway'} on {route['interface']}",
                "no default route over the fabric",
                "take the gateway out of the network configuration of this interface (dhcp4: false)",
            )
    if facts.get("hotplug_marker") is True:
        review.add(
            "fabric.hotplug_armed",
            "note",
            [name],
            "/etc/nvidia/cx7-hotplug-enabled is there",
            "to be known",
            "reboot all nodes of a ring together, since rebooting one can detach the neighbour's card; moving the"
            " marker aside avoids that and costs about 17 W",
        )
    lost = []
    for device, entry in as_maps(facts, "rdma_devices").items():
        for counter in ("packet_seq_err", "out_of_sequence"):
            count = value(entry, f"hw_counters.{counter}")
            if isinstance(count, int) and count > LOSSES:
                lost.append(f"{device} {counter} {count}")
    if lost:
        review.add(
            "fabric.packet_losses",
            "slow",
            [name],
            ", ".join(lost),
            f"at most {LOSSES} since boot",
            "check cable and switch (MTU and flow control on every port); watch whether the counters grow",
        )
    hot = value(review.facts[name], "spark_platform.kernel_log.this_boot.cable_high_temperature")
    if isinstance(hot, int) and hot > 0:
        review.add(
            "fabric.cable_hot",
            "slow",
            [name],
            f"the card reported an overheated cable {hot} times in this boot",
            "none",
            "use a passive copper cable; optical ones overheat in the exhaust",
        )
    settings = [f"{file}: {', '.join(names)}" for file, names in as_map(facts, "leftovers.nccl_conf").items() if names]
    environment = as_list(facts, "leftovers.nccl_environment")
    if environment:
        settings.append(f"/etc/environment: {', '.join(str(n) for n in environment)}")
    if settings:
        review.add(
            "fabric.nccl_settings",
            "slow",
            [name],
            "; ".join(settings),
            "no settings outside of the deployment",
            "remove them: they change every rank, and nothing of this collection shows it",
        )
    firewall(review, name, facts, used)
    relays = str(review.fabric.get("topology") or "") in ("chain", "ring", "ring3", "ring4")
    policy = str(value(facts, "leftovers.docker_forward_policy") or "")
    if relays and policy == "DROP":
        review.add(
            "fabric.docker_forward",
            "note",
            [name],
            "policy DROP in the FORWARD chain",
            "ACCEPT between fabric interfaces",
            "the fabric stage adds rules to DOCKER-USER; a restart of Docker removes rules that were added by hand",
        )


def firewall(review: Review, name: str, facts: dict[str, t.Any], used: list[str]) -> None:
    filter_ = as_map(facts, "leftovers.packet_filter")
    ufw = value(facts, "leftovers.ufw_enabled")
    closed: list[str] = []
    who = ""
    if filter_.get("input_policy") == "drop":
        accepted = set(filter_.get("input_accepts") or [])
        closed, who = [n for n in used if n not in accepted], "the packet filter drops input"
    if ufw is True and not closed:
        accepted = set(as_list(facts, "leftovers.ufw_accepts")) | set(filter_.get("input_accepts") or [])
        closed, who = [n for n in used if n not in accepted], "ufw is enabled"
    if closed:
        review.add(
            "fabric.firewall",
            "slow",
            [name],
            f"{who}, and no rule for {conjoin(closed)} was seen",
            "input from all nodes accepted on the fabric, the own node included",
            f"sudo ufw allow in on {closed[0]} (and for each of the others)",
        )


def addresses(review: Review) -> None:
    """Addresses of the deployment against each other and against those that are there."""
    known: list[tuple[str, str, str, ipaddress.IPv4Interface]] = []
    for name in review.all_names:
        for link in planned(review, name):
            if link.get("address") is None:
                continue
            try:
                address = parse_link_address(link["address"])
            except AddressError as error:
                review.add(
                    "fabric.address_malformed",
                    "blocked",
                    [name],
                    f"{link.get('interface')}: {error}",
                    "an IPv4 address with its prefix length",
                    f"correct the link address of {name} in the inventory",
                )
                continue
            known.append((name, str(link.get("interface")), str(link["address"]), address))
    for (a, i, text_a, own), (b, j, text_b, other) in itertools.combinations(known, 2):
        if own.ip != other.ip:
            continue
        where = f"{a} ({i} and {j})" if a == b else f"{a} ({i}) and {b} ({j})"
        review.add(
            "fabric.duplicate_address",
            "blocked",
            [a] if a == b else [a, b],
            f"{own.ip} twice: {where}, as {text_a} and {text_b}",
            "a different address for each interface",
            "correct one of them in the inventory",
        )
    for name in review.facts:
        overlaps(review, name, [(i, address) for node, i, _text, address in known if node == name])


def overlaps(review: Review, name: str, wanted: list[tuple[str, ipaddress.IPv4Interface]]) -> None:
    facts = as_map(review.facts[name], "spark_fabric")
    rails = list(wanted)
    named = {device for device, _address in wanted}
    for device, entry in as_maps(facts, "interfaces").items():
        if device not in named:
            rails += [(device, a) for text in entry.get("addresses") or [] for a in [address_of(text)] if a]
    others = [
        (device, a)
        for device, entry in as_maps(facts, "other_interfaces").items()
        if device not in named
        for text in entry.get("addresses") or []
        for a in [address_of(text)]
        if a
    ]
    for (i, a), (j, b) in itertools.combinations(rails, 2):
        if i != j and a.network.overlaps(b.network):
            allowed = review.fabric.get("allow_shared_subnet") is True
            review.add(
                "fabric.subnet_overlap",
                "note" if allowed else "blocked",
                [name],
                f"the rails {i} ({a}) and {j} ({b}) share the network {wider(a, b)}",
                "one network for each rail",
                "shared on purpose (allow_shared_subnet)"
                if allowed
                else "give each rail a /24 or /30 of its own; with two equal routes traffic leaves by the wrong port",
            )
    for (i, a), (j, b) in itertools.product(rails, others):
        if a.network.overlaps(b.network):
            review.add(
                "fabric.subnet_overlap",
                "blocked",
                [name],
                f"{i} ({a}) and {j} ({b}) share the network {wider(a, b)}",
                "a fabric network that nothing else uses",
                "choose another network for the fabric in the inventory; traffic would leave by the wrong port",
            )


def ends(review: Review) -> None:
    """Both ends of each link: MTU and cage."""
    seen = set()
    for name in review.all_names:
        for link in planned(review, name):
            own = address_of(link.get("address"))
            if own is None:
                continue
            for other in review.all_names:
                for entry in planned(review, other):
                    address = address_of(entry.get("address"))
                    pair = frozenset([(name, str(link.get("interface"))), (other, str(entry.get("interface")))])
                    if other == name or address is None or address.network != own.network or pair in seen:
                        continue
                    seen.add(pair)
                    end_pair(review, name, link, other, entry, str(own.network))


def end_pair(review: Review, a: str, link: dict[str, t.Any], b: str, entry: dict[str, t.Any], network: str) -> None:
    i, j = str(link.get("interface")), str(entry.get("interface"))
    first, second = interface(review, a, i), interface(review, b, j)
    mtus = first.get("mtu"), second.get("mtu")
    if None not in mtus and mtus[0] != mtus[1]:
        managed = review.fabric.get("managed")
        if managed is None:
            managed = bool(link.get("mtu") and link.get("mtu") == entry.get("mtu"))
        review.add(
            "fabric.mtu_mismatch",
            "note" if managed else "blocked",
            [a, b],
            f"MTU {mtus[0]} on {a} ({i}), {mtus[1]} on {b} ({j})",
            f"the same on both ends of {network}",
            f"the fabric stage sets {link.get('mtu') or 'one value'} on both"
            if managed
            else "run tandem.spark.fabric, which sets one value on both; small packets pass and large ones are lost",
        )
    cages = first.get("cage"), second.get("cage")
    if review.size == 2 and None not in cages and cages[0] != cages[1]:
        review.add(
            "fabric.crossed_cages",
            "note",
            [a, b],
            f"cage {cages[0]} on {a} ({i}) is joined to cage {cages[1]} on {b} ({j})",
            "the same cage on both nodes",
            "it works, since each node gets its own names; NVIDIA's tools expect the same cage",
        )


def pinned_gid(review: Review) -> None:
    pinned = pinned_value(review)
    if pinned is None:
        return
    if pinned == "":
        review.add(
            "fabric.gid_pinned",
            "blocked",
            review.all_names,
            "NCCL_IB_GID_INDEX is set to nothing, which counts as 0",
            "no NCCL_IB_GID_INDEX at all",
            "remove it from the environment of the engine",
        )
        return
    for name in review.facts:
        used = {str(link.get("interface")) for link in planned(review, name)}
        wrong = []
        for device, entry in as_maps(review.facts[name], "spark_fabric.rdma_devices").items():
            if used and entry.get("interface") not in used:
                continue
            index = _fabric.roce_index(entry.get("gids"))
            if index is not None and str(index) != pinned:
                wrong.append(f"{index} on {device}")
        if wrong:
            review.add(
                "fabric.gid_pinned",
                "blocked",
                [name],
                f"NCCL_IB_GID_INDEX is {pinned}, the RoCE v2 entry is {conjoin(wrong)}",
                "no fixed index, since it moves after reboots and differs between devices",
                "remove NCCL_IB_GID_INDEX; NCCL finds the entry itself (NCCL_IB_ROCE_VERSION_NUM=2)",
            )


def pinned_value(review: Review) -> str | None:
    # A recipe's own setting comes last, so it counts; then that of the inventory (tandem_gid_index).
    places = (as_map(review.engine, "environment"), as_map(review.deployment, "environment"))
    for environment in (*places, as_map(review.fabric, "environment")):
        if "NCCL_IB_GID_INDEX" in environment:
            text = str(environment["NCCL_IB_GID_INDEX"] if environment["NCCL_IB_GID_INDEX"] is not None else "").strip()
            return None if text == "-1" else text
    return None

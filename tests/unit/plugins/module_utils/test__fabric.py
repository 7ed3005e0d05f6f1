# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _fabric, _nccl_log

GIB = 1024**3
RAILS = {
    "enp1s0f0np0": "0000:01:00.0",
    "enP2p1s0f0np0": "0002:01:00.0",
    "enp1s0f1np1": "0000:01:00.1",
    "enP2p1s0f1np1": "0002:01:00.1",
}
TWO = [["enp1s0f0np0", "enP2p1s0f0np0"], ["enp1s0f1np1", "enP2p1s0f1np1"]]


def grouped(port_names=None, pci=None):
    pci = RAILS if pci is None else pci
    port_names = port_names or {}
    return _fabric.cages({name: _fabric.place(name, pci.get(name), port_names.get(name)) for name in RAILS})


def test_c05_one_receptacle_with_two_pci_functions():
    found = grouped()
    assert [cage["interfaces"] for cage in found] == TWO
    assert {cage["source"] for cage in found} == {"pci_function"}


def test_c05_the_port_name_wins_over_the_address():
    swapped = {"enp1s0f0np0": "p1", "enP2p1s0f0np0": "p1", "enp1s0f1np1": "p0", "enP2p1s0f1np1": "p0"}
    found = grouped(swapped)
    assert [cage["interfaces"] for cage in found] == TWO[::-1]
    assert {cage["source"] for cage in found} == {"phys_port_name"}


def test_c05_the_name_is_enough_for_a_virtual_interface():
    found = grouped(pci={})
    assert [cage["interfaces"] for cage in found] == TWO
    assert {cage["source"] for cage in found} == {"name"}


@pytest.mark.parametrize("name", ["enP7s7", "eth0", "wlP9s9", "enp1s0f0", "lo", "enp1s0f0np0.100", "docker0"])
def test_c05_other_interfaces_have_no_cage(name):
    assert _fabric.fabric_name(name) is None
    assert _fabric.place(name, None, None)["cage"] is None


def table(*slots):
    return [g for g in (_fabric.gid(i, value, kind, "enp1s0f0np0") for i, value, kind in slots) if g]


MAPPED = "0000:0000:0000:0000:0000:ffff:c0a8:640a"


def test_c13_the_index_is_looked_up_for_each_device():
    zero = "0000:0000:0000:0000:0000:0000:0000:0000"
    first = table(
        (0, "fe80:0000:0000:0000:0000:00ff:fe00:0001", "RoCE v2"), (2, MAPPED, "IB/RoCE v1"), (3, MAPPED, "RoCE v2")
    )
    second = table((3, zero, "RoCE v2"), (4, MAPPED, "RoCE v2"))
    devices = {"HCA1": {"gids": first}, "HCA2": {"gids": second}, "HCA3": {"gids": []}, "HCA4": {"gids": None}}
    assert _fabric.roce_indexes(devices) == {"HCA1": 3, "HCA2": 4, "HCA3": None, "HCA4": None}
    assert _fabric.roce_index(first, "192.168.100.10") == 3 and _fabric.roce_index(first, "192.168.100.11") is None


@pytest.mark.parametrize("value", [None, "", "zero", "::1", "0000:0000:0000:0000:0000:0000:0000:0000", MAPPED[:-1]])
def test_c13_an_empty_slot_is_no_entry(value):
    assert _fabric.gid(3, value, "RoCE v2", "x") is None


def test_c17_neighbours_asked_with_an_interface(read):
    found = _fabric.ip_neighbours(read("ip/neigh-dev.json"), "enp1s0f0np0")
    assert found[0]["interface"] == "enp1s0f0np0" and _fabric.reachable(found, "192.168.100.11") is True
    for file in ("ip/neigh-dev-failed.json", "ip/neigh-dev-incomplete.json", "ip/neigh-dev-none.json"):
        assert _fabric.reachable(_fabric.ip_neighbours(read(file), "enp1s0f0np0"), "192.168.100.99") is False
    assert _fabric.reachable(None, "192.168.100.11") is None


@pytest.mark.parametrize(
    ("state", "expected"),
    [("REACHABLE", True), ("STALE", True), ("DELAY", True), ("FAILED", False), ("INCOMPLETE", False)],
)
def test_c17_states(state, expected):
    content = json.dumps([{"dst": "192.168.100.11", "lladdr": "02:00:00:00:00:02", "state": [state]}])
    assert _fabric.reachable(_fabric.ip_neighbours(content), "192.168.100.11") is expected


def test_c17_both_shapes_of_a_route(read):
    for file in ("ip/route-get.json", "ip/route-get-from.json"):
        found = _fabric.route_to(read(file), "192.168.100.10", "enp1s0f0np0")
        assert found["ok"] is True and found["source"] == "192.168.100.10"
    assert _fabric.route_to(read("ip/route-get.json"), "192.168.100.99")["ok"] is False
    assert (
        "wanted enP2p1s0f0np0"
        in _fabric.route_to(read("ip/route-get.json"), "192.168.100.10", "enP2p1s0f0np0")["problem"]
    )


def test_c17_a_gateway_is_not_direct(read):
    found = _fabric.route_to(read("ip/route-get-gateway.json"), "192.0.2.11")
    assert found["ok"] is False and "192.0.2.1" in found["problem"]
    assert _fabric.route_to("[]", "192.0.2.11")["ok"] is False
    assert _fabric.route_to(None, "192.0.2.11")["ok"] is None


def test_addresses_and_routes(read):
    addresses = _fabric.ip_addresses(read("ip/addr.json"))
    assert addresses["enp1s0f0np0"]["addresses"] == ["192.168.100.10/24"] and addresses["enp1s0f0np0"]["mtu"] == 9000
    assert addresses["enp1s0f0np0"]["admin_up"] is True
    routes = _fabric.ip_routes(read("ip/route.json"))
    assert routes[0]["destination"] == "default" and routes[0]["gateway"] == "192.0.2.1"
    assert _fabric.management(routes, addresses, None)["interface"] == "enP7s7"
    assert _fabric.management(routes, addresses, "198.51.100.1 1 192.168.100.10 22")["interface"] == "enp1s0f0np0"
    assert _fabric.management(None, None, "broken") == {"interface": None, "address": None, "source": None}


def test_c19_sockets_instead_of_rdma(read):
    found = _nccl_log.transport(read("nccl/log-socket.txt"))
    assert found["transport"] == "socket" and found["interfaces"] == ["enp1s0f0np0"]
    verdict = _nccl_log.judge({"rank 0": read("nccl/log-socket.txt")})
    assert verdict["ok"] is False and "rank 0" in verdict["problems"][0]


def test_c19_rdma_with_both_rails(read):
    found = _nccl_log.transport(read("nccl/log-ib.txt"))
    assert found["transport"] == "roce" and found["devices"] == ["rocep1s0f0:1", "roceP2p1s0f0:1"]
    assert _nccl_log.judge({"rank 0": read("nccl/log-ib.txt")})["ok"] is True


def test_c19_the_rank_that_differs_is_named(read):
    verdict = _nccl_log.judge({"rank 0": read("nccl/log-ib.txt"), "rank 1": read("nccl/log-socket.txt")})
    assert verdict["ok"] is False and verdict["wrong"] == ["rank 1"]
    one = _nccl_log.judge({"rank 0": read("nccl/log-ib.txt") + read("nccl/log-socket.txt")})
    assert one["ranks"]["rank 0"]["transport"] == "mixed" and one["ok"] is False


def test_c19_a_silent_log_is_not_determined(read):
    for content in (read("nccl/log-silent.txt"), "", None):
        verdict = _nccl_log.judge({"rank 0": read("nccl/log-ib.txt"), "rank 1": content})
        assert verdict["ok"] is None and verdict["not_determined"] == ["rank 1"]
    assert _nccl_log.judge({})["ok"] is None


def test_c19_infiniband_is_not_roce():
    assert _nccl_log.transport("NCCL INFO NET/IB : Using [0]mlx5_0:1/IB")["transport"] == "infiniband"


def test_hw12_results(read):
    content = read("nccl/all-gather-dell.txt")
    assert _nccl_log.average_bus_bandwidth(content) == 22.9611
    assert _nccl_log.results(content) == [
        {"bytes": 17179869184, "microseconds": 374425.0, "algbw": 45.88, "busbw": 22.94}
    ]
    assert _nccl_log.average_bus_bandwidth("") is None and _nccl_log.results(None) == []


@pytest.mark.parametrize(
    ("negotiated", "measured", "verdict"),
    [
        (200000, 13.23, "degraded_init"),
        (200000, 12.74, "degraded_init"),
        (200000, 92.57, "ok"),
        (200000, 111.86, "ok"),
        (200000, 60, "below_expected"),
        (10000, 3.1, "link_speed"),
        (None, 97.98, "ok"),
        (200000, None, "not_measured"),
    ],
)
def test_c20_a_link_that_says_200g_and_gives_13(negotiated, measured, verdict):
    assert _fabric.rail_verdict(negotiated, measured) == verdict


def test_c21_the_default_message_is_small():
    assert _fabric.MESSAGE_DEFAULT <= GIB
    assert _fabric.refuse_message(_fabric.MESSAGE_DEFAULT, 24 * GIB) is None


def test_c21_a_test_that_would_freeze_the_node_is_refused_with_both_numbers():
    text = _fabric.refuse_message(16 * GIB, 24 * GIB)
    assert "16.0 GiB" in text and "24.0 GiB" in text
    assert _fabric.refuse_message(16 * GIB, 100 * GIB) is None


def test_c21_memory_that_cannot_be_read_allows_only_the_default():
    assert _fabric.refuse_message(GIB, None) is None
    assert "could not be read" in _fabric.refuse_message(2 * GIB, None)


def test_hw09_ibdev2netdev(read):
    found = _fabric.ibdev2netdev(read("ibdev2netdev/cage1.txt"))
    assert len(found) == 4
    assert found[1] == {"rdma_device": "roceP2p1s0f1", "port": 1, "interface": "enP2p1s0f1np1", "up": True}
    assert [entry["up"] for entry in found] == [False, True, False, True]


def test_hw10_rdma_link_show(read):
    found = _fabric.rdma_links(read("rdma/link-show.txt"))
    assert found[0]["state"] == "ACTIVE" and found[0]["interface"] == "enp1s0f0np0"
    assert found[1]["physical_state"] == "DISABLED"


@pytest.mark.parametrize(
    ("content", "speed"), [("32.0 GT/s PCIe", 32.0), ("2.5 GT/s PCIe\n", 2.5), ("Unknown", None), (None, None)]
)
def test_pcie_speed(content, speed):
    assert _fabric.link_speed(content) == speed


@pytest.mark.parametrize(
    ("content", "state"), [("4: ACTIVE", "ACTIVE"), ("1: DOWN\n", "DOWN"), ("ACTIVE", None), (None, None)]
)
def test_port_state(content, state):
    assert _fabric.port_state(content) == state


def test_packet_filter(read):
    found = _fabric.packet_filter(read("nft/input-drop.json"))
    assert found == {"input_policy": "drop", "forward_policy": "drop", "input_accepts": ["enP7s7", "lo", "wlP9s9"]}
    assert _fabric.packet_filter(read("nft/empty.json"))["input_policy"] == "accept"
    for content in (None, "", "[]", '{"nftables": 3}', '{"nftables": [3, {"chain": 1}, {"rule": {"expr": [1]}}]}'):
        _fabric.packet_filter(content)
    assert _fabric.packet_filter(None)["input_policy"] is None


@pytest.mark.parametrize(
    ("content", "policy"),
    [("-P FORWARD DROP\n-A x", "DROP"), ("-P FORWARD ACCEPT", "ACCEPT"), ("", None), (None, None)],
)
def test_forward_policy(content, policy):
    assert _fabric.forward_policy(content) == policy


def test_files_that_mention_an_interface():
    content = "network:\n  ethernets:\n    enp1s0f0np0:\n      mtu: 9000\n    enp1s0f0np0.100: {}\n"
    assert _fabric.mentions(content, ["enp1s0f0np0", "enp1s0f0", "enp1s0f1np1"]) == ["enp1s0f0np0"]

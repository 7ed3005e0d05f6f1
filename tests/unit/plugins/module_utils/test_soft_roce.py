# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parsers against what the real RDMA tools print (fixtures of ``make rdma-lane``)."""

from __future__ import annotations

import json

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _fabric, _throughput

RAILS = {"rocep1s0f0": "enp1s0f0np0", "roceP2p1s0f0": "enP2p1s0f0np0"}


@pytest.mark.parametrize(
    ("name", "average"),
    [("ib_write_bw", 7.201e-2), ("ib_write_bw-duration", 0.21), ("ib_write_bw-both-ways", 9.8297e-2)],
)
def test_bandwidth(read, name, average):
    content = read(f"rdma/{name}.txt")
    assert _throughput.write_bandwidth(content) == average and _throughput.perftest_error(content) is None


@pytest.mark.parametrize(("name", "typical"), [("ib_write_lat", 346.39), ("ib_write_lat-duration", 384.09)])
def test_latency(read, name, typical):
    content = read(f"rdma/{name}.txt")
    assert _throughput.write_latency(content) == typical and _throughput.perftest_error(content) is None


def test_no_server(read):
    content = read("rdma/ib_write_bw-no-server.txt")
    assert _throughput.write_bandwidth(content) is None
    assert _throughput.perftest_error(content) == "Couldn't connect to 192.168.100.11:18515"


def test_links_as_text_and_as_json_say_the_same(read):
    links = _fabric.rdma_links(read("rdma/rdma-link.txt"))
    assert {link["rdma_device"]: link["interface"] for link in links} == RAILS
    assert {(link["state"], link["physical_state"], link["port"]) for link in links} == {("ACTIVE", "LINK_UP", 1)}
    assert {entry["ifname"]: entry["netdev"] for entry in json.loads(read("rdma/rdma-link.json"))} == RAILS


def test_facts_of_a_node_with_soft_roce(read):
    facts = json.loads(read("rdma/fabric_facts.json"))
    assert facts["rdma_present"] is True and set(facts["rdma_devices"]) == set(RAILS)
    for name, device in facts["rdma_devices"].items():
        assert device["interface"] == RAILS[name] and device["state"] == "ACTIVE"
        address = facts["interfaces"][RAILS[name]]["addresses"][0].split("/")[0]
        assert _fabric.roce_index(device["gids"], address) == device["roce_gid_index"] == 1
        assert facts["interfaces"][RAILS[name]]["rdma_device"] == name
        # virtio says no speed: that is unknown, and not slow
        assert facts["interfaces"][RAILS[name]]["speed_mbps"] is None
        assert _throughput.port_gbps(device["rate"]) == 2.5
    assert _fabric.cages(facts["interfaces"]) == facts["cages"]


def test_the_verdict_over_soft_roce_is_that_its_port_is_slow(read):
    found = _throughput.rail(_throughput.write_bandwidth(read("rdma/ib_write_bw.txt")), "2.5 Gb/sec (1X SDR)", 2, None)
    assert found["verdict"] == "link_speed" and found["expected_gbps"] == 1.25

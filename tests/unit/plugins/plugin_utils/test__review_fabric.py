# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _findings

RAILS = ("enp1s0f0np0", "enP2p1s0f0np0")


def node(name, *links):
    return {"name": name, "links": [{"interface": i, "address": a} for i, a in links]}


def cable(first="enp1s0f0np0", second="enp1s0f0np0", **extra):
    return {
        "nodes": [
            node("spark-a", (first, "192.168.100.10/24")),
            node("spark-b", (second, "192.168.100.11/24")),
        ],
        **extra,
    }


@pytest.fixture
def pair(healthy):
    return {"spark-a": healthy(10), "spark-b": healthy(11)}


def ids(found):
    return [f.id for f in found]


def one(found, id_):
    (finding,) = [f for f in found if f.id == id_]
    return finding


def rail(facts, name="enp1s0f0np0"):
    return facts["spark_fabric"]["interfaces"][name]


def test_c10_one_address_on_two_nodes(pair):
    for second in ("192.168.100.10/24", "192.168.100.10/30"):
        deployment = {
            "nodes": [
                node("spark-a", ("enp1s0f0np0", "192.168.100.10/24")),
                node("spark-b", ("enp1s0f0np0", second)),
            ]
        }
        finding = one(_findings.findings(pair, deployment), "fabric.duplicate_address")
        assert finding.nodes == ("spark-a", "spark-b") and finding.blocks
        for text in ("spark-a", "spark-b", "192.168.100.10"):
            assert text in finding.found


def test_c10_one_address_on_two_interfaces_of_a_node(pair):
    deployment = {
        "nodes": [
            node("spark-a", ("enp1s0f0np0", "192.168.100.10/24"), ("enP2p1s0f0np0", "192.168.100.10/24")),
            node("spark-b", ("enp1s0f0np0", "192.168.100.11/24")),
        ]
    }
    finding = one(_findings.findings(pair, deployment), "fabric.duplicate_address")
    assert finding.nodes == ("spark-a",) and "enp1s0f0np0" in finding.found and "enP2p1s0f0np0" in finding.found


@pytest.mark.parametrize(
    "address", ["192.168.100.010/24", "192.168.100.10", "192.168.100.300/24", "x", "192.168.100.10/33", ""]
)
def test_c10_not_an_address(pair, address):
    deployment = cable()
    deployment["nodes"][1]["links"][0]["address"] = address
    finding = one(_findings.findings(pair, deployment), "fabric.address_malformed")
    assert finding.nodes == ("spark-b",) and address in finding.found and finding.blocks


def test_c11_fabric_and_management_in_one_network(pair):
    pair["spark-a"]["spark_fabric"]["other_interfaces"]["enP7s7"]["addresses"] = ["192.168.3.12/20"]
    deployment = cable()
    deployment["nodes"][0]["links"][0]["address"] = "192.168.5.12/20"
    deployment["nodes"][1]["links"][0]["address"] = "192.168.5.13/20"
    finding = one(_findings.findings(pair, deployment), "fabric.subnet_overlap")
    assert finding.nodes == ("spark-a",) and finding.blocks
    for text in ("enp1s0f0np0", "enP7s7", "192.168.0.0/20"):
        assert text in finding.found


def test_c11_separate_networks_pass(pair):
    pair["spark-a"]["spark_fabric"]["other_interfaces"]["enP7s7"]["addresses"] = ["192.168.3.12/24"]
    assert "fabric.subnet_overlap" not in ids(_findings.findings(pair, cable()))


def rails_in_one_network():
    return {
        "nodes": [
            node(name, ("enp1s0f0np0", f"192.168.100.{n}/24"), ("enP2p1s0f0np0", f"192.168.100.{n + 10}/24"))
            for name, n in (("spark-a", 10), ("spark-b", 11))
        ]
    }


def test_c11_two_rails_in_one_network(pair):
    found = [f for f in _findings.findings(pair, rails_in_one_network()) if f.id == "fabric.subnet_overlap"]
    assert len(found) == 2 and all(f.blocks and "rails" in f.found for f in found)


def test_c11_two_rails_in_one_network_on_purpose(pair):
    deployment = {**rails_in_one_network(), "fabric": {"allow_shared_subnet": True}}
    found = [f for f in _findings.findings(pair, deployment) if f.id == "fabric.subnet_overlap"]
    assert {f.severity for f in found} == {"note"}


def test_c11_addresses_that_are_there_and_not_planned(pair):
    rail(pair["spark-a"], "enp1s0f1np1")["addresses"] = ["192.168.100.77/24"]
    finding = one(_findings.findings(pair, cable()), "fabric.subnet_overlap")
    assert "enp1s0f1np1" in finding.found


def test_c13_a_pinned_index(pair):
    device = pair["spark-b"]["spark_fabric"]["rdma_devices"]["roceP2p1s0f0"]
    for entry in device["gids"]:
        if entry["index"] == 3:
            entry["index"] = 4
    both = {
        "nodes": [
            node(name, *((i, f"192.168.{100 + k}.{n}/24") for k, i in enumerate(RAILS)))
            for name, n in (("spark-a", 10), ("spark-b", 11))
        ],
        "engine": {"environment": {"NCCL_IB_GID_INDEX": 3}},
    }
    finding = one(_findings.findings(pair, both), "fabric.gid_pinned")
    assert finding.nodes == ("spark-b",) and "roceP2p1s0f0" in finding.found and "4" in finding.found
    both["engine"]["environment"] = {"NCCL_IB_GID_INDEX": "-1"}
    assert "fabric.gid_pinned" not in ids(_findings.findings(pair, both))


@pytest.mark.parametrize("empty", ["", " ", None])
def test_c13_an_index_that_is_set_to_nothing_counts_as_zero(pair, empty):
    found = _findings.findings(pair, cable(environment={"NCCL_IB_GID_INDEX": empty}))
    assert "counts as 0" in one(found, "fabric.gid_pinned").found


def test_c14_mtu_of_one_side_is_back_at_1500(pair):
    rail(pair["spark-b"])["mtu"] = 1500
    finding = one(_findings.findings(pair, cable()), "fabric.mtu_mismatch")
    assert finding.blocks and finding.nodes == ("spark-a", "spark-b")
    for text in ("9000 on spark-a (enp1s0f0np0)", "1500 on spark-b (enp1s0f0np0)"):
        assert text in finding.found


def test_c14_an_mtu_that_this_run_will_set_is_a_note(pair):
    rail(pair["spark-b"])["mtu"] = 1500
    deployment = cable()
    for entry in deployment["nodes"]:
        entry["links"][0]["mtu"] = 9000
    assert one(_findings.findings(pair, deployment), "fabric.mtu_mismatch").severity == "note"
    deployment["fabric"] = {"managed": False}
    assert one(_findings.findings(pair, deployment), "fabric.mtu_mismatch").blocks


def test_c14_an_mtu_that_is_not_known_differs_from_nothing(pair):
    rail(pair["spark-b"])["mtu"] = None
    assert "fabric.mtu_mismatch" not in ids(_findings.findings(pair, cable()))


def test_crossed_cages(pair):
    rail(pair["spark-b"], "enp1s0f1np1").update(carrier=True, speed_mbps=200000)
    rail(pair["spark-b"], "enP2p1s0f1np1").update(carrier=True, speed_mbps=200000)
    finding = one(_findings.findings(pair, cable(second="enp1s0f1np1")), "fabric.crossed_cages")
    assert finding.severity == "note"


def test_no_cable(pair):
    pair["spark-b"]["spark_fabric"].update(cages=[], interfaces={}, rdma_devices={}, rdma_present=False)
    finding = one(_findings.findings(pair, cable()), "fabric.no_cable")
    assert finding.nodes == ("spark-b",) and "enp1s0f0np0" in finding.found and "cable" in finding.remedy


def test_an_interface_of_the_inventory_that_does_not_exist(pair):
    finding = one(_findings.findings(pair, cable(second="enp9s0f0np0")), "fabric.interface_missing")
    assert finding.nodes == ("spark-b",) and "enp9s0f0np0" in finding.found and "enp1s0f0np0" in finding.found


def test_interfaces_that_could_not_be_listed_are_not_checked(pair):
    pair["spark-b"]["spark_fabric"].update(cages=[], interfaces={}, interfaces_known=False, rdma_present=None)
    found = _findings.findings(pair, cable())
    assert "fabric.interface_missing" not in ids(found) and "fabric.no_cable" not in ids(found)
    assert "interface enp1s0f0np0 (spark-b)" in one(found, "preflight.not_checked").found


def test_no_link(pair):
    rail(pair["spark-a"]).update(carrier=False, speed_mbps=None)
    rail(pair["spark-a"], "enP2p1s0f0np0").update(carrier=False, speed_mbps=None)
    finding = one(_findings.findings(pair, cable()), "fabric.no_carrier")
    assert finding.blocks and finding.nodes == ("spark-a",) and "spark-b" in finding.wanted


def test_a_link_that_is_switched_off_is_not_checked(pair):
    for name in RAILS:
        rail(pair["spark-b"], name).update(carrier=None, admin_up=False)
        rail(pair["spark-a"], name).update(carrier=False)
    found = _findings.findings(pair, cable())
    assert "fabric.no_carrier" not in ids(found)
    text = one(found, "preflight.not_checked").found
    assert "switched off (spark-b)" in text and "enp1s0f0np0 on spark-b is switched off (spark-a)" in text


def test_one_half_without_a_link_is_no_matter_of_the_wire(pair):
    rail(pair["spark-a"], "enP2p1s0f0np0")["carrier"] = False
    finding = one(_findings.findings(pair, cable()), "fabric.half_down")
    assert finding.severity == "slow" and "not of the wire" in finding.remedy


@pytest.mark.parametrize(
    ("changes", "id_"),
    [
        ({"speed_mbps": 100000}, "fabric.speed"),
        ({"pcie": {"speed_gts": 2.5, "width": 4}}, "fabric.pcie"),
        ({"pcie": {"speed_gts": 32.0, "width": 1}}, "fabric.pcie"),
        ({"carrier_down_count": 21}, "fabric.carrier_losses"),
        ({"gids": []}, "fabric.gid_missing"),
        ({"rdma_device": None}, "fabric.rdma_missing"),
    ],
)
def test_one_thing_wrong_with_a_rail(pair, changes, id_):
    rail(pair["spark-a"]).update(changes)
    found = _findings.findings(pair, cable())
    assert ids(found) == [id_] and found[0].nodes == ("spark-a",) and "enp1s0f0np0" in found[0].found + "enp1s0f0np0"


def test_the_speed_of_a_virtual_interface_says_nothing(pair):
    for facts in pair.values():
        rail(facts).update(
            virtual=True, speed_mbps=10000, pci_address=None, rdma_device=None, gids=None, carrier_down_count=9
        )
    found = _findings.findings(pair, cable())
    assert ids(found) == ["fabric.rdma_missing"] and "virtual" in found[0].found
    assert _findings.findings(pair, cable(fabric={"transport": "socket"})) == []


def test_rdma_that_could_not_be_asked_is_not_checked(pair):
    pair["spark-a"]["spark_fabric"].update(rdma_present=None, rdma_devices=None)
    rail(pair["spark-a"]).update(rdma_device=None, gids=None)
    assert ids(_findings.findings(pair, cable())) == ["preflight.not_checked"]


def test_what_else_can_be_wrong_on_a_node(pair):
    fabric = pair["spark-a"]["spark_fabric"]
    fabric["hotplug_marker"] = True
    fabric["routes"].append({"destination": "default", "interface": "enp1s0f0np0", "gateway": "192.168.100.1"})
    fabric["rdma_devices"]["rocep1s0f0"]["hw_counters"].update(packet_seq_err=5500, out_of_sequence=None)
    fabric["leftovers"].update(
        nccl_conf={"/etc/nccl.conf": ["NCCL_IB_GID_INDEX"], "/root/.nccl.conf": []},
        nccl_environment=["NCCL_DEBUG"],
        docker_forward_policy="DROP",
    )
    fabric["leftovers"]["packet_filter"] = {"input_policy": "drop", "forward_policy": "accept", "input_accepts": ["lo"]}
    pair["spark-a"]["spark_platform"]["kernel_log"] = {"this_boot": {"cable_high_temperature": 2}}
    found = _findings.findings(pair, cable(fabric={"topology": "ring"}))
    assert sorted(ids(found)) == [
        "fabric.cable_hot",
        "fabric.default_route",
        "fabric.docker_forward",
        "fabric.firewall",
        "fabric.hotplug_armed",
        "fabric.nccl_settings",
        "fabric.packet_losses",
    ]
    assert {f.nodes for f in found} == {("spark-a",)}
    assert "enp1s0f0np0" in one(found, "fabric.firewall").found


def test_a_firewall_that_lets_the_fabric_through(pair):
    leftovers = pair["spark-a"]["spark_fabric"]["leftovers"]
    leftovers.update(ufw_enabled=True, ufw_accepts=["enp1s0f0np0"])
    assert _findings.findings(pair, cable()) == []
    leftovers.update(ufw_accepts=[])
    assert "sudo ufw allow in on enp1s0f0np0" in one(_findings.findings(pair, cable()), "fabric.firewall").remedy


def test_one_node_needs_no_fabric(healthy):
    facts = healthy()
    facts["spark_fabric"].update(cages=[], interfaces={}, rdma_devices={}, rdma_present=False)
    assert _findings.findings({"spark-a": facts}, {}) == []


def test_a_node_that_is_gone_does_not_hide_the_other(pair):
    rail(pair["spark-a"]).update(carrier=False)
    rail(pair["spark-a"], "enP2p1s0f0np0").update(carrier=False)
    found = _findings.findings({**pair, "spark-b": None}, cable())
    assert ids(found)[:1] == ["node.unreachable"] and "fabric.no_carrier" in ids(found)

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import shutil

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.tandem.spark.plugins.module_utils import _gather_fabric
from ansible_collections.tandem.spark.plugins.module_utils._host import Host
from ansible_collections.tandem.spark.plugins.modules import fabric_facts


@pytest.fixture
def run(capsys):
    def call(machine, **args):
        with patch_module_args({"root": str(machine.root), **args}), pytest.raises(SystemExit) as stop:
            fabric_facts.main()
        result = json.loads(capsys.readouterr().out)
        assert stop.value.code == 0 and result["changed"] is False
        return result["ansible_facts"]["spark_fabric"]

    return call


def test_a_healthy_spark(run, spark):
    found = run(spark)
    assert found["cages"] == [
        {"index": 0, "interfaces": ["enp1s0f0np0", "enP2p1s0f0np0"], "source": "phys_port_name"},
        {"index": 1, "interfaces": ["enp1s0f1np1", "enP2p1s0f1np1"], "source": "phys_port_name"},
    ]
    rail = found["interfaces"]["enP2p1s0f0np0"]
    assert rail["pci_address"] == "0002:01:00.0" and rail["driver"] == "mlx5_core" and rail["half"] == 1
    assert rail["carrier"] is True and rail["speed_mbps"] == 200000 and rail["mtu"] == 9000
    assert rail["addresses"] == ["192.168.101.10/24"] and rail["rdma_device"] == "roceP2p1s0f0"
    assert rail["pcie"]["speed_gts"] == 32.0 and rail["pcie"]["width"] == 4
    assert rail["virtual"] is False
    assert found["interfaces"]["enp1s0f1np1"]["carrier"] is False
    assert found["interfaces"]["enp1s0f1np1"]["speed_mbps"] is None  # -1 is no speed
    assert found["rdma_present"] is True
    device = found["rdma_devices"]["rocep1s0f0"]
    assert device["state"] == "ACTIVE" and device["firmware"] == "28.45.4028" and device["roce_gid_index"] == 3
    assert device["interface"] == "enp1s0f0np0" and device["counters"]["port_xmit_data"] == 1234
    assert device["counters"]["link_downed"] is None
    assert found["management_interface"] == "enP7s7" and found["management_address"] == "192.0.2.11"
    assert found["management_source"] == "default route"
    assert found["other_interfaces"]["enP7s7"]["addresses"] == ["192.0.2.11/24"]
    assert found["hotplug_marker"] is False
    assert {n["address"]: n["state"] for n in found["neighbours"]}["192.168.100.11"] == ["REACHABLE"]
    assert found["leftovers"]["ufw_enabled"] is False
    assert found["leftovers"]["configuration"] == [
        {"path": "/etc/netplan/40-cx7.yaml", "interfaces": ["enP2p1s0f0np0", "enp1s0f0np0"]}
    ]
    assert len(found["pci_functions"]) == 4


def test_nothing_is_there(run, empty_machine):
    found = run(empty_machine)
    assert found["cages"] == [] and found["interfaces"] == {} and found["interfaces_known"] is False
    assert found["rdma_present"] is None and found["rdma_devices"] is None
    assert found["routes"] is None and found["neighbours"] is None and found["other_interfaces"] is None
    assert found["management_interface"] is None and found["pci_functions"] is None
    assert found["leftovers"]["packet_filter"]["input_policy"] is None


def test_no_cable_means_no_card(run, spark):
    for name in ("enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1"):
        spark.remove(f"/sys/class/net/{name}")
    shutil.rmtree(spark.path("/sys/class/infiniband"))
    spark.write("/etc/nvidia/cx7-hotplug-enabled", "")
    found = run(spark)
    assert found["interfaces"] == {} and found["interfaces_known"] is True
    assert found["rdma_present"] is False and found["hotplug_marker"] is True


def test_virtual_interfaces_are_grouped_by_their_names(run, spark):
    shutil.rmtree(spark.path("/sys"))
    for name in ("enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "lo", "eth0"):
        spark.write(f"/sys/class/net/{name}/mtu", "9000\n")
    found = run(spark)
    assert found["cages"] == [
        {"index": 0, "interfaces": ["enp1s0f0np0", "enP2p1s0f0np0"], "source": "name"},
        {"index": 1, "interfaces": ["enp1s0f1np1"], "source": "name"},
    ]
    assert found["interfaces"]["enp1s0f0np0"]["virtual"] is True
    assert found["interfaces"]["enp1s0f0np0"]["pci_address"] is None
    assert found["rdma_present"] is False


def test_a_card_with_other_names(run, spark):
    spark.interface("fabric0", "0000:01:00.0", 0, phys_port_name=None)
    spark.remove("/sys/class/net/enp1s0f0np0")
    found = run(spark)
    assert found["interfaces"]["fabric0"]["cage_source"] == "pci_function"
    assert found["cages"][0]["interfaces"] == ["fabric0", "enP2p1s0f0np0"]
    assert found["cages"][0]["source"] == "pci_function, phys_port_name"


def test_an_interface_that_is_switched_off(run, spark):
    spark.write("/sys/class/net/enp1s0f0np0/flags", "0x1002\n")
    spark.remove("/sys/class/net/enp1s0f0np0/carrier")  # the kernel refuses the read
    found = run(spark)["interfaces"]["enp1s0f0np0"]
    assert found["admin_up"] is False and found["carrier"] is None


def test_without_ip_the_rest_still_tells(run, spark):
    spark.remove("/usr/bin/ip")
    found = run(spark)
    assert found["interfaces"]["enp1s0f0np0"]["addresses"] is None and found["interfaces"]["enp1s0f0np0"]["mtu"] == 9000
    assert found["routes"] is None and found["management_interface"] is None


@pytest.mark.parametrize("output", ["", "[", "{}", "null", '[{"ifname": 3}, 7]', "[]"])
def test_ip_that_prints_something_else(run, spark, output):
    spark.tool("ip", f"printf '%s' '{output}'")
    found = run(spark)
    assert found["interfaces"]["enp1s0f0np0"]["mtu"] == 9000
    assert found["management_interface"] is None


def test_management_from_the_ssh_connection(spark):
    host = Host(str(spark.root), environ={"SSH_CONNECTION": "192.0.2.1 50000 192.168.100.10 22"})
    found = _gather_fabric.describe(host)
    assert found["management_interface"] == "enp1s0f0np0" and found["management_source"] == "SSH_CONNECTION"


def test_leftovers(run, spark):
    spark.write("/etc/nccl.conf", "NCCL_IB_GID_INDEX=3\n# NCCL_DEBUG=INFO\n")
    spark.write("/etc/environment", "NCCL_SOCKET_IFNAME=eth0\nPATH=/usr/bin\n")
    spark.write("/etc/ufw/ufw.conf", "ENABLED=yes\n")
    spark.write("/etc/ufw/user.rules", "-A ufw-user-input -i enp1s0f0np0 -j ACCEPT\n")
    spark.prints("nft", ("*", "nft/input-drop.json"))
    spark.tool("iptables", "echo '-P FORWARD DROP'")
    found = run(spark)["leftovers"]
    assert found["nccl_conf"]["/etc/nccl.conf"] == ["NCCL_IB_GID_INDEX"]
    assert found["nccl_environment"] == ["NCCL_SOCKET_IFNAME"]
    assert found["ufw_enabled"] is True and found["ufw_accepts"] == ["enp1s0f0np0"]
    assert found["packet_filter"]["input_policy"] == "drop"
    assert found["packet_filter"]["input_accepts"] == ["enP7s7", "lo", "wlP9s9"]
    assert found["docker_forward_policy"] == "DROP"


def test_c13_each_device_has_its_own_gid_index(run, spark):
    shutil.rmtree(spark.path("/sys/class/infiniband/roceP2p1s0f0"))
    mapped = "0000:0000:0000:0000:0000:ffff:c0a8:650a"
    spark.rdma("roceP2p1s0f0", "0002:01:00.0", "enP2p1s0f0np0", {4: (mapped, "RoCE v2")})
    found = run(spark)["rdma_devices"]
    assert found["rocep1s0f0"]["roce_gid_index"] == 3 and found["roceP2p1s0f0"]["roce_gid_index"] == 4
    assert found["rocep1s0f1"]["roce_gid_index"] is None and found["rocep1s0f1"]["gids"] == []
    assert found["roceP2p1s0f0"]["gids"][0]["ipv4"] == "192.168.101.10"

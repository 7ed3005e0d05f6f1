# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

RAILS = {"enp1s0f0np0": "192.168.100", "enP2p1s0f0np0": "192.168.101"}
HOSTS = {"spark-a": 10, "spark-b": 11}


@pytest.mark.parametrize(("interface", "network"), RAILS.items())
def test_address_and_mtu(host, interface, network):
    own = HOSTS[host.check_output("hostname")]
    assert host.interface(interface).addresses[:1] == [f"{network}.{own}"]
    assert host.file(f"/sys/class/net/{interface}/mtu").content_string.strip() == "9000"


@pytest.mark.parametrize("network", RAILS.values())
def test_full_packets_reach_the_other_node(host, network):
    other = next(number for name, number in HOSTS.items() if name != host.check_output("hostname"))
    assert host.run(f"ping -c 1 -W 2 -M do -s 8972 {network}.{other}").rc == 0


def test_the_file_is_for_root_only(host):
    file = host.file("/etc/netplan/60-tandem-fabric.yaml")
    assert file.user == "root"
    assert file.mode == 0o600


def test_nothing_is_left_to_revert(host):
    assert host.run("systemctl is-active tandem-fabric-revert.timer").rc != 0


def test_no_default_route_over_the_fabric(host):
    routes = host.check_output("ip -4 route show default")
    assert not any(interface in routes for interface in RAILS)

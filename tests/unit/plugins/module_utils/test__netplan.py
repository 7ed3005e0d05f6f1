# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
import yaml
from ansible_collections.tandem.spark.plugins.module_utils import _netplan
from hypothesis import given
from hypothesis import strategies as st

LINK = {"interface": "enp1s0f0np0", "address": "192.168.100.10/24", "mtu": 9000}
ASCII = st.text(st.characters(max_codepoint=127), min_size=1)
OTHER = {"interface": "enP2p1s0f0np0", "address": "192.168.101.10/24", "mtu": 9000}


def test_c15_addresses_and_mtu_stand_together():
    network = yaml.safe_load(_netplan.render([LINK, OTHER]))["network"]
    assert network["version"] == 2 and list(network["ethernets"]) == ["enp1s0f0np0", "enP2p1s0f0np0"]
    for link in (LINK, OTHER):
        entry = network["ethernets"][link["interface"]]
        assert entry["addresses"] == [link["address"]] and entry["mtu"] == 9000
        assert entry["dhcp4"] is entry["dhcp6"] is False and entry["link-local"] == []
        assert not {"gateway4", "routes", "nameservers"} & set(entry)


@pytest.mark.parametrize(
    "text",
    [
        "network:\n  ethernets:\n    enp1s0f0np0:\n      addresses: [192.168.100.12/24]\n",
        'network: {ethernets: {"enp1s0f0np0": {dhcp4: true}}}\n',
        "network: {ethernets: {other: {}, enp1s0f0np0: {}}}",
        "network:\n  ethernets:\n    'enp1s0f0np0' :\n      dhcp4: true\n",
        # What NetworkManager writes on Ubuntu 24.04.
        'network:\n  ethernets:\n    NM-1234:\n      match:\n        name: "enp1s0f0np0"\n      dhcp4: true\n',
        "network:\n  ethernets:\n    all:\n      match: {name: en*}\n      dhcp4: true\n",
        "network: {ethernets: {all: {match: {name: 'enp1s0f?np0'}}}}",
    ],
)
def test_c16_another_file_with_our_interface(text):
    (found,) = _netplan.addresses_elsewhere({"/etc/netplan/40-cx7.yaml": text}, [LINK])
    assert "/etc/netplan/40-cx7.yaml" in found and "enp1s0f0np0" in found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "network: {version: 2, renderer: NetworkManager}\n",
        "network:\n  ethernets:\n    enp1s0f0np0.100:\n      dhcp4: true\n",
        "network:\n  ethernets:\n    xenp1s0f0np0:\n      dhcp4: true\n",
        "network:\n  ethernets:\n    #enp1s0f0np0:\n    eth0: {}  # enp1s0f0np0: old\n",
        "network:\n  ethernets:\n    wired:\n      match: {name: enx*}\n",
        "network:\n  vlans:\n    v100: {id: 100, link: enp1s0f0np0}\n",
        'network:\n  wifis:\n    w: {access-points: {"enp1": {}}}\n',
    ],
)
def test_c16_other_files_that_are_no_conflict(text):
    assert _netplan.addresses_elsewhere({"/etc/netplan/x.yaml": text}, [LINK]) == []


@given(st.text(), st.text(min_size=1, max_size=5))
def test_conflicts_take_any_text(text, name):
    _netplan.addresses_elsewhere({"f": text}, [dict(LINK, interface=name)])


@given(
    st.lists(
        st.fixed_dictionaries({"interface": ASCII, "address": ASCII, "mtu": st.integers(1280, 9978)}),
        unique_by=lambda link: link["interface"],
    )
)
def test_whatever_is_rendered_is_the_yaml_that_was_meant(links):
    ethernets = yaml.safe_load(_netplan.render(links))["network"]["ethernets"]
    assert {name: entry["addresses"] for name, entry in ethernets.items()} == {
        link["interface"]: [link["address"]] for link in links
    }


def shown(**changes):
    entry = {
        "ifname": "enp1s0f0np0",
        "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"],
        "mtu": 9000,
        "addr_info": [
            {"family": "inet", "local": "192.168.100.10", "prefixlen": 24, "scope": "global"},
            {"family": "inet6", "local": "fe80::1", "prefixlen": 64, "scope": "link"},
            {"family": "inet", "local": "169.254.1.1", "prefixlen": 16, "scope": "link"},
        ],
    }
    entry.update(changes)
    return [{}, entry]


def address(*texts):
    parts = [text.split("/") for text in texts]
    return [{"family": "inet", "local": ip, "prefixlen": int(p), "scope": "global"} for ip, p in parts]


def test_c14_drift():
    assert _netplan.drift([LINK], shown()) == []
    assert _netplan.drift([LINK], shown(mtu=1500)) == ["enp1s0f0np0: mtu 1500, wanted 9000"]
    assert _netplan.drift([LINK], shown(flags=["BROADCAST"])) == ["enp1s0f0np0: down, wanted up"]
    assert "none" in _netplan.drift([LINK], shown(addr_info=[]))[0]
    assert "192.168.100.10/16" in _netplan.drift([LINK], shown(addr_info=address("192.168.100.10/16")))[0]
    both = shown(addr_info=address("192.168.100.10/24", "192.168.200.1/30"))
    assert "192.168.200.1/30" in _netplan.drift([LINK], both)[0]
    assert _netplan.drift([LINK], [{}]) == ["enp1s0f0np0: not there"]
    assert len(_netplan.drift([LINK], shown(mtu=None, flags=[], addr_info=[]))) == 3

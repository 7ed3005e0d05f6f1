# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import configparser

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _netplan, _renderers

LINKS = [
    {"interface": "enp1s0f0np0", "address": "192.168.100.10/24", "mtu": 9000},
    {"interface": "enP2p1s0f0np0", "address": "192.168.101.10/24", "mtu": 9000},
]
NAMES = [link["interface"] for link in LINKS]
ROUTES = [{"destination": "10.0.2.0/30", "via": "192.168.101.11", "interface": "enP2p1s0f0np0"}]


@pytest.mark.parametrize(
    ("netplan", "manager", "networkd", "states", "wanted"),
    [
        (True, False, True, None, ("netplan", "networkd")),
        (True, True, False, None, ("netplan", "NetworkManager")),
        # DGX OS: NetworkManager is there and leaves the fabric alone.
        (True, True, True, dict.fromkeys(NAMES, "unmanaged"), ("netplan", "networkd")),
        (True, True, True, dict.fromkeys(NAMES, "disconnected"), ("netplan", "NetworkManager")),
        (False, True, False, None, ("networkmanager", "NetworkManager")),
        (False, True, True, dict.fromkeys(NAMES, "connected"), ("networkmanager", "NetworkManager")),
        (False, True, True, {}, ("networkd", "networkd")),
        (False, False, True, None, ("networkd", "networkd")),
    ],
)
def test_who_configures_the_interfaces(netplan, manager, networkd, states, wanted):
    found = _renderers.choose(
        netplan=netplan, networkmanager=manager, networkd=networkd, states=states, interfaces=NAMES
    )
    assert (found["renderer"], found["backend"]) == wanted and found["problem"] is None


def test_nobody_or_two_owners():
    nobody = _renderers.choose(netplan=False, networkmanager=False, networkd=False, states=None, interfaces=NAMES)
    assert nobody["renderer"] is None and "netplan.io" in nobody["problem"]
    states = {NAMES[0]: "connected", NAMES[1]: "unmanaged"}
    two = _renderers.choose(netplan=True, networkmanager=True, networkd=True, states=states, interfaces=NAMES)
    assert NAMES[0] in two["problem"] and NAMES[1] in two["problem"]


def test_device_states():
    text = "enP7s7:connected\nenp1s0f0np0:connected (externally)\nwith\\:colon:unmanaged\nbroken\n"
    assert _renderers.device_states(text) == {
        "enP7s7": "connected",
        "enp1s0f0np0": "connected",
        "with:colon": "unmanaged",
    }


def test_c15_netplan_is_one_file_with_everything():
    files = _renderers.files({"renderer": "netplan", "backend": "networkd"}, LINKS, ROUTES, "/etc/netplan/60.yaml")
    content, mode = files["/etc/netplan/60.yaml"]
    assert list(files) == ["/etc/netplan/60.yaml"] and mode == 0o600
    assert b"9000" in content and b"192.168.100.10/24" in content and b'"to": "10.0.2.0/30"' in content


def test_c15_keyfiles_where_networkmanager_is_alone():
    files = _renderers.files({"renderer": "networkmanager"}, LINKS, ROUTES, "/etc/netplan/60.yaml")
    assert all(path.startswith("/etc/NetworkManager/system-connections/60-tandem-fabric-") for path in files)
    assert {mode for _content, mode in files.values()} == {0o600}
    parser = configparser.RawConfigParser()
    parser.read_string(files[next(p for p in files if "enP2p1" in p)][0].decode())
    assert parser["ethernet"]["mtu"] == "9000" and "mtu" not in parser["ipv4"]
    assert parser["ipv4"]["never-default"] == "true" and parser["ipv6"]["method"] == "disabled"
    assert parser["ipv4"]["route1"] == "10.0.2.0/30,192.168.101.11"
    assert files == _renderers.files({"renderer": "networkmanager"}, LINKS, ROUTES, "")  # a second run: the same uuid
    words = [word for step in _renderers.reload({"renderer": "networkmanager"}, LINKS) for word in step]
    assert "modify" not in words and "ipv4.mtu" not in words


def test_networkmanager_is_told_the_zone_and_no_ipv6_through_netplan_too():
    files = _renderers.files({"renderer": "networkmanager"}, LINKS, [], "", zone="tandem-fabric")
    assert all(b"\nzone=tandem-fabric\n" in content for content, _mode in files.values())
    chosen = {"renderer": "netplan", "backend": "NetworkManager"}
    text = _renderers.files(chosen, LINKS, [], "/p", zone="tandem-fabric")["/p"][0].decode()
    assert '"connection.zone": "tandem-fabric"' in text and '"ipv6.method": "disabled"' in text
    assert "passthrough" not in _renderers.files(dict(chosen, backend="networkd"), LINKS, [], "/p")["/p"][0].decode()
    assert _renderers.reload_after_return(chosen, LINKS)[-1] == ["nmcli", "connection", "reload"]


def test_a_profile_that_networkmanager_made_itself_is_no_conflict():
    text = "[connection]\nid=Wired connection 3\nautoconnect-priority=-999\ninterface-name=enp1s0f0np0\n\n"
    path = "/run/NetworkManager/system-connections/Wired connection 3.nmconnection"
    assert _renderers.conflicts({path: text + "[.nmmeta]\nnm-generated=true\n"}, LINKS) == []
    assert len(_renderers.conflicts({path: text}, LINKS)) == 1


def test_networkd_files():
    files = _renderers.files({"renderer": "networkd"}, LINKS, ROUTES, "")
    text = files["/etc/systemd/network/60-tandem-fabric-enP2p1s0f0np0.network"][0].decode()
    assert "Name=enP2p1s0f0np0\n" in text and "MTUBytes=9000\n" in text and "Address=192.168.101.10/24\n" in text
    assert "Destination=10.0.2.0/30\nGateway=192.168.101.11\n" in text and "LinkLocalAddressing=no" in text
    assert _renderers.reload({"renderer": "networkd"}, LINKS)[1] == ["networkctl", "reconfigure", *NAMES]
    assert _renderers.files({"renderer": "networkd"}, [], [], "") == {}


CX7 = """\
network:
  version: 2
  # a comment
  ethernets:
    enp1s0f0np0:
      addresses: [192.168.100.9/24]
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (CX7, ["enp1s0f0np0"]),
        (CX7 + "    enP7s7: {dhcp4: true}\n", ["enP7s7", "enp1s0f0np0"]),
        (CX7 + "  wifis:\n    wlan0:\n      dhcp4: true\n", ["enp1s0f0np0", "wlan0"]),
        ("network:\n  ethernets:\n    NM-1:\n      match:\n        name: enp1s0f0np0\n", ["enp1s0f0np0"]),
        (_netplan.render(LINKS), sorted(NAMES)),
        ("network: {ethernets: {enp1s0f0np0: {}}}\n", None),
        ("network:\n  ethernets: {enp1s0f0np0: {}}\n", None),
        ("network:\n  ethernets:\n    x:\n      match: {name: en*}\n", None),
        ("{broken", None),
        ("network:\n  version: 2\n  renderer: NetworkManager\n", []),
    ],
)
def test_devices_of_a_netplan_file(text, wanted):
    assert _netplan.devices(text) == wanted


def test_c16_conflicts():
    others = {
        "/etc/netplan/40-cx7.yaml": CX7,
        "/etc/netplan/50-all.yaml": "network:\n  ethernets:\n    enP7s7:\n      dhcp4: true\n",
        "/etc/NetworkManager/system-connections/a.nmconnection": "[connection]\ninterface-name=enP2p1s0f0np0\n",
        "/etc/systemd/network/10-all.network": "[Match]\nName=en*\n[Network]\nDHCP=yes\n",
        "/etc/systemd/network/20-other.network": "[Match]\nName=eth0\n",
        "/etc/systemd/network/30-broken.network": "no section",
    }
    found = {conflict["path"].rsplit("/", 1)[1]: conflict for conflict in _renderers.conflicts(others, LINKS)}
    assert set(found) == {"40-cx7.yaml", "a.nmconnection", "10-all.network"}
    assert found["40-cx7.yaml"]["also"] == [] and found["10-all.network"]["also"] == ["en*"]
    assert "fabric_take_over" in _renderers.conflict_sentence(found["40-cx7.yaml"], "networkd")
    by_hand = _renderers.conflict_sentence(found["10-all.network"], "networkd")
    assert "by hand" in by_hand and "en*" in by_hand
    assert "by hand" in _renderers.conflict_sentence(dict(found["40-cx7.yaml"], also=None), "networkd")


def test_route_drift():
    shown = [
        {"dst": "10.0.2.0/30", "gateway": "192.168.101.11", "dev": "enP2p1s0f0np0"},
        {"dst": "10.0.9.9", "dev": "x"},
    ]
    assert _netplan.route_drift(ROUTES, shown) == []
    host = {"destination": "10.0.9.9/32", "via": "1.2.3.4", "interface": "x"}
    assert _netplan.route_drift([host], [dict(shown[1], gateway="1.2.3.4")]) == []
    assert _netplan.route_drift([host], shown) == ["x: no route to 10.0.9.9/32 via 1.2.3.4"]


def test_without_carrier():
    shown = [
        {"ifname": "a", "flags": ["UP", "NO-CARRIER"]},
        {"ifname": "b", "flags": ["UP"]},
        {"ifname": "c", "flags": []},
    ]
    assert _netplan.without_carrier(shown) == {"a"}

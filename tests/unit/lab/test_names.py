# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from sparklab import LabError, names


def test_default_ids_differ_by_checkout_and_lab() -> None:
    ids = {
        names.default_id(lab, Path(checkout))
        for lab in ("pair", "chain4", "ring3", "ring4", "switch")
        for checkout in ("/srv/one", "/srv/two")
    }
    assert len(ids) == 10
    assert all(names.ID_RE.fullmatch(one) for one in ids)


def test_default_id_tells_the_lab() -> None:
    assert names.default_id("pair", Path("/x")).startswith("pair")
    assert names.default_id("4", Path("/x")).startswith("lab")


def test_id_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.ID_ENV, "ci7")
    assert names.lab_id("pair") == "ci7"


@pytest.mark.parametrize("wrong", ["toolong99", "A1", "x", "1ab", "a-b", "a b", "ab\n"])
def test_unusable_ids_are_refused(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv(names.ID_ENV, wrong)
    with pytest.raises(LabError, match=r"TANDEM_LAB_ID is .*; wanted 2 to 8 characters.*; unset it or shorten it"):
        names.lab_id("pair")


def test_interface_names_fit_with_the_longest_id() -> None:
    longest = names.Names("abcdefgh")
    assert len(longest.bridge) <= names.IFNAME_MAX
    assert all(len(longest.port(rank)) <= names.IFNAME_MAX for rank in range(names.MAX_NODES))


def test_a_long_interface_name_is_refused_not_cut() -> None:
    with pytest.raises(LabError, match="16 characters; Linux allows 15"):
        names.check_ifname("x" * 16)


def test_every_name_carries_the_id() -> None:
    one = names.Names("ab1")
    for text in (
        one.bridge,
        one.port(0),
        one.netns("spark-a"),
        one.switch_netns,
        one.table,
        one.cgroup,
        one.unit("hub"),
        one.machine("spark-a"),
        str(one.state_dir),
        str(one.lock_file),
    ):
        assert "ab1" in text


def test_subnets_follow_from_the_id() -> None:
    subnets = [names.Names(f"lab{number}").subnet for number in range(50)]
    pool = ipaddress.IPv4Network("10.64.0.0/10")
    assert all(subnet.subnet_of(pool) and subnet.prefixlen == 24 for subnet in subnets)
    assert len(set(subnets)) > 45
    assert names.Names("lab1").subnet == names.Names("lab1").subnet


def test_addresses_lie_in_the_subnet() -> None:
    one = names.Names("ab1")
    everyone = [one.gateway, *(one.address(rank) for rank in range(names.MAX_NODES))]
    assert len(set(everyone)) == names.MAX_NODES + 1
    assert all(ipaddress.IPv4Address(address) in one.subnet for address in everyone)


def test_mac_addresses_are_stable_local_unicast_and_distinct() -> None:
    one = names.Names("ab1")
    macs = {one.mac(node, port) for node in ("spark-a", "spark-b") for port in names.fabric_interfaces()}
    assert len(macs) == 8
    assert all(mac.startswith("02:") and len(mac) == 17 for mac in macs)
    assert one.mac("spark-a", "enP7s7") == one.mac("spark-a", "enP7s7")


def test_machine_ids_differ_by_lab_and_node() -> None:
    ids = {names.Names(one).machine_id(node) for one in ("aa", "bb") for node in ("spark-a", "spark-b")}
    assert len(ids) == 4
    assert all(len(one) == 32 for one in ids)


def test_a_cage_has_two_halves() -> None:
    assert names.cage_interfaces(0) == ("enp1s0f0np0", "enP2p1s0f0np0")
    assert names.cage_interfaces(1) == ("enp1s0f1np1", "enP2p1s0f1np1")


def test_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(names.CACHE_ENV, str(tmp_path))
    assert names.cache_dir() == tmp_path
    monkeypatch.setenv(names.CACHE_ENV, "")  # set to nothing is absent
    assert names.cache_dir() == Path.home() / ".cache" / "tandem"

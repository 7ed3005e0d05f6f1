# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _firewall, _forward, _journal
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures"
A, B = "enp1s0f0np0", "enP2p1s0f0np0"
ALLOWANCES = [{"interface": A, "sources": ["10.100.0.0/30"]}]
ADDED = (FIXTURES / "ufw/show-added.txt").read_text()


ZONE_IN = "filter_INPUT a rule in filter_IN_tandem-fabric says reject"
ZONE_FORWARD = "filter_FORWARD a rule in filter_FWD_tandem-fabric says reject"
PUBLIC_IN = "filter_INPUT a rule in filter_IN_public says reject"
WORDS = ["match", "op", "left", "right", "set", "meta", "key", "vmap", "data", "jump", "accept", "payload", "prefix"]
ANYTHING = st.recursive(
    st.none() | st.integers() | st.text(max_size=8), lambda e: st.lists(e) | st.dictionaries(st.sampled_from(WORDS), e)
)


def rules(name):
    return _firewall.Rules(_firewall.objects((FIXTURES / f"nft/{name}.json").read_text()))


def test_networks_that_hold_the_same_addresses():
    both = [
        dict(ALLOWANCES[0], sources=["10.100.0.4/30", "10.100.0.0/30"]),
        {"interface": B, "sources": ["10.1.2.3/32"]},
    ]
    assert _firewall.networks(both) == ["10.1.2.3/32", "10.100.0.0/29"]
    assert _firewall.both_ways([[A, B]]) == [(A, B), (B, A)]


# ---------------------------------------------------------------- ufw


def test_ufw_repeats_our_rules_word_for_word():
    wanted = _firewall.ufw_wanted(ALLOWANCES, [])
    assert wanted == [shlex.split(line) for line in ADDED.splitlines() if "10.100.0.0/30" in line]
    route = next(shlex.split(line) for line in ADDED.splitlines() if "route" in line)
    assert _firewall.ufw_difference(ADDED, wanted) == ([], [route])
    assert _firewall.ufw_difference(ADDED, [*wanted, route]) == ([], [])
    lacking, stale = _firewall.ufw_difference("Added user rules (see 'ufw status' for running firewall):\n", wanted)
    assert lacking == wanted and stale == []
    assert _firewall.ufw_text(wanted[0]) == f"allow in on {A} from 10.100.0.0/30"


def test_ufw_passes_on_both_ways_and_one_address_has_no_prefix():
    found = _firewall.ufw_wanted([dict(ALLOWANCES[0], sources=["10.1.2.3/32"])], [[A, B]])
    assert [_firewall.ufw_text(words) for words in found] == [
        f"allow in on {A} from 10.1.2.3",
        f"route allow in on {A} out on {B} from 10.1.2.3",
        f"route allow in on {B} out on {A} from 10.1.2.3",
    ]


def test_a_rule_of_somebody_else_that_says_the_same_serves_and_stays():
    theirs = f"ufw allow in on {A} from 10.100.0.0/30 comment 'the admin's own'\n"
    assert _firewall.ufw_difference(theirs, _firewall.ufw_wanted(ALLOWANCES, [])) == ([], [])


def test_the_way_back_for_ufw_touches_our_rules_only():
    ours = [words for words in _journal.ufw_commands(ADDED) if _journal.is_ours(words)]
    assert len(ours) == 2
    assert _journal.ufw_steps([], ours) == [
        ["ufw", "delete", "allow", "in", "on", A, "from", "10.100.0.0/30"],
        ["ufw", "route", "delete", "allow", "in", "on", A, "out", "on", B, "from", "10.100.0.0/29"],
    ]
    assert _journal.ufw_steps(ours, []) == ours and _journal.ufw_steps(ours, ours) == []


# ---------------------------------------------------------------- firewalld


def test_a_zone_of_our_own():
    zone = ElementTree.fromstring(_firewall.zone_text(ALLOWANCES, []))
    assert [e.get("name") for e in zone.findall("interface")] == [A] and zone.get("target") is None
    assert [e.get("address") for e in zone.findall("rule/source")] == ["10.100.0.0/30"]
    assert zone.find("rule/accept") is not None and zone.find("forward") is None
    assert ElementTree.fromstring(_firewall.zone_text(ALLOWANCES, [[A, B]])).find("forward") is not None
    assert len(_firewall.ZONE) <= 17


def test_interfaces_that_another_zone_has():
    files = {
        "/etc/firewalld/zones/trusted.xml": f'<zone target="ACCEPT">\n  <interface name="{A}"/></zone>',
        "/etc/firewalld/zones/home.xml": f"<zone>\n  <interface name='{B}'/><interface name='{B}.7'/></zone>",
        _firewall.ZONE_FILE: f'<zone><interface name="{A}"/></zone>',
    }
    assert _firewall.bound_elsewhere(files, [A, B, "eth0"]) == {A: ("trusted", True), B: ("home", False)}


def test_what_a_reload_of_firewalld_would_forget():
    running, permanent = ((FIXTURES / f"firewalld/{n}-zones.txt").read_text() for n in ("running", "permanent"))
    assert _firewall.only_running(running, permanent) == ["public: ports 99/tcp"]
    fewer, more = permanent, running
    assert _firewall.only_running(fewer, more) == []
    assert _firewall.only_running(running.replace("dhcpv6-client ssh\n  ports: 99", "ssh\n  ports: 99"), running) == []
    zone = _firewall.zones(permanent)["tandem-fabric"]
    assert (
        zone["rich rules"] == {'rule family="ipv4" source address="10.100.0.0/30" accept'} and "interfaces" not in zone
    )


# ---------------------------------------------------------------- loaded rules


@pytest.mark.parametrize(
    ("name", "hook", "packet", "where"),
    [
        # ufw: ours is accepted; another network, interface or the management net is not; routed only as the rule says.
        ("ufw", "input", (A, None, "10.100.0.0/30"), None),
        ("ufw", "input", (A, None, "10.100.0.0/29"), "INPUT policy drop"),
        ("ufw", "input", (B, None, "10.100.0.0/30"), "INPUT policy drop"),
        ("ufw", "input", ("enP7s7", None, "10.9.1.0/24"), "INPUT a rule in ufw-user-input says drop"),
        ("ufw", "input", ("lo", None, "127.0.0.0/8"), None),
        ("ufw", "forward", (A, B, "10.100.0.4/30"), None),
        ("ufw", "forward", (B, A, "10.100.0.4/30"), "FORWARD policy drop"),
        # firewalld: policies accept, and zones reject.
        ("firewalld", "input", (A, None, "10.100.0.0/30"), None),
        ("firewalld", "input", (A, None, "10.200.0.0/30"), ZONE_IN),
        ("firewalld", "input", ("enP7s7", None, "10.100.0.0/30"), PUBLIC_IN),
        ("firewalld", "forward", (A, B, "10.100.0.0/30"), None),
        ("firewalld", "forward", (A, "enP7s7", "10.100.0.0/30"), ZONE_FORWARD),
        # by hand: sets, ranges, maps, a limit, pings and SSH alone
        ("hand-written", "input", (A, None, "10.0.0.0/29"), None),
        ("hand-written", "input", (A, None, "1.2.3.4/31"), None),
        ("hand-written", "input", (A, None, "10.0.0.0/28"), "input policy drop"),
        ("hand-written", "input", (B, None, "10.0.0.0/29"), "input policy drop"),
        ("hand-written", "input", (B, None, "10.1.0.128/25"), None),
        ("hand-written", "input", ("docker0", None, "10.7.0.0/24"), None),
        ("hand-written", "input", ("wlan0", None, "10.7.0.0/24"), None),
        ("hand-written", "input", ("enP7s7", None, "10.7.0.0/24"), "input policy drop"),
        ("hand-written", "forward", (A, B, "10.7.0.0/24"), None),
        # Docker: one way is accepted by a rule of DOCKER-USER
        ("docker", "forward", (A, B, "10.0.0.0/8"), None),
        ("docker", "forward", (B, A, "10.0.0.0/8"), "FORWARD policy drop"),
        ("docker", "input", (B, None, "10.0.0.0/8"), None),
        ("input-drop", "input", ("lo", None, "127.0.0.0/8"), None),
        ("input-drop", "input", (A, None, "10.0.0.0/8"), "input policy drop"),
        ("empty", "input", (A, None, "10.0.0.0/8"), None),
    ],
)  # fmt: skip
def test_what_the_loaded_rules_do_with_a_packet(name, hook, packet, where):
    drops = rules(name).drops(hook, _firewall.Packet(*packet))
    assert [f"{drop.chain} {drop.why}" for drop in drops] == ([where] if where else [])


def test_whether_one_rule_is_loaded():
    ufw, packet = rules("ufw"), _firewall.Packet(A, None, "10.100.0.0/30")
    assert ufw.has(("ip", "filter", "ufw-user-input"), packet) is True
    assert ufw.has(("ip", "filter", "ufw-user-input"), packet._replace(iif=B)) is False
    assert rules("docker").has(("ip", "filter", "ufw-user-input"), packet) is None
    firewalld, hook = rules("firewalld"), ("inet", "firewalld", "filter_INPUT_ZONES")
    assert firewalld.sends(hook, A, "filter_IN_tandem-fabric") and not firewalld.sends(hook, "x", "filter_IN_public")


def test_whose_chain_it_is_and_what_to_do():
    for name, who in (("ufw", "ufw"), ("firewalld", "firewalld"), ("docker", "docker"), ("hand-written", "nobody")):
        read = rules(name)
        pairs = [[B, A]] if name == "docker" else []
        found = _firewall.closed(read, [{"interface": B, "sources": ["10.200.0.0/30", "10.200.0.8/30"]}], pairs)
        assert found and {_firewall.owner(drop, read) for _hook, drop in found} == {who}
    ((hook, drop), entry), *_none = found.items()
    text = _firewall.sentence(hook, drop, entry, "nobody", False)
    rule = f'`nft insert rule inet hand input iifname "{B}" ip saddr {{ 10.200.0.0/30, 10.200.0.8/30 }} accept`'
    assert "table inet hand, chain input (policy drop)" in text and rule in text
    assert "fabric_firewall: true" in _firewall.sentence(hook, drop, entry, "ufw", False)
    assert "before ours" in _firewall.sentence(hook, drop, entry, "ufw", True)
    legacy = _firewall.Drop("ip", "filter", "INPUT", "policy drop")
    rule = f"`iptables -I INPUT -i {B} -s 10.200.0.0/30 -j ACCEPT`"
    assert rule in _firewall.sentence("input", legacy, entry, "nobody", False)


@pytest.mark.parametrize("content", [None, "", "{}", "[]", '{"nftables": 3}', "x"])
def test_output_that_cannot_be_read(content):
    assert _firewall.objects(content) is None


@given(ANYTHING)
def test_no_rule_makes_it_fail(expression):
    chain = {"chain": {"family": "ip", "table": "t", "name": "c", "type": "filter", "hook": "input", "policy": "drop"}}
    rule = {"rule": {"family": "ip", "table": "t", "chain": "c", "expr": [expression, {"accept": None}]}}
    _firewall.Rules([chain, rule]).drops("input", _firewall.Packet(A, None, "10.0.0.0/8"))


# ---------------------------------------------------------------- our own table


PAIRS = [[A, "enp1s0f1np1"]]
OWN = _firewall.objects((FIXTURES / "nft/tandem-fabric.json").read_text())


def without(number):
    """The recorded table without its rule *number*."""
    at = [n for n, entry in enumerate(OWN) if "rule" in entry][number]
    return [entry for n, entry in enumerate(OWN) if n != at]


def test_our_table_as_nft_shows_it_is_what_was_written():
    assert _forward.table_drift(OWN, PAIRS) == []
    assert _forward.table_drift(OWN + _firewall.objects((FIXTURES / "nft/ufw.json").read_text()), PAIRS) == []
    assert _forward.table_drift([], []) == [] and _forward.table_drift(None, []) == []


def test_every_way_to_change_our_table_is_seen():
    assert _forward.table_drift([], PAIRS) == ["nftables: no table inet tandem_fabric"]
    assert _forward.table_drift(None, PAIRS) == ["nftables: table inet tandem_fabric cannot be read"]
    assert "wanted none" in _forward.table_drift(OWN, [])[0]
    for number, rule in enumerate(_forward.rules(PAIRS)):
        assert _forward.table_drift(without(number), PAIRS) == [f"nftables: tandem_fabric lacks `{rule}`"]
    text = json.dumps(OWN)
    (lacks, has) = _forward.table_drift(json.loads(text.replace('"wl*"', '"wx*"', 1)), PAIRS)
    assert 'lacks `iifname { "enp1s0f0np0", "enp1s0f1np1" } oifname "wl*" counter drop`' in lacks and '"wx*"' in has
    assert (
        "accept" in _forward.table_drift(json.loads(text.replace('"policy": "accept"', '"policy": "drop"')), PAIRS)[0]
    )
    assert "another order" in _forward.table_drift([*OWN[:3], *OWN[:2:-1]], PAIRS)[0]
    port = {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 22}}
    extra = {"rule": {"family": "inet", "table": "tandem_fabric", "chain": "forward", "expr": [port, {"drop": None}]}}
    assert "dport" in _forward.table_drift([*OWN, extra], PAIRS)[0]
    chain = {"chain": {"family": "inet", "table": "tandem_fabric", "name": "mine"}}
    assert _forward.table_drift([*OWN, chain], PAIRS) == ["nftables: tandem_fabric has a chain mine, wanted none"]
    one = {"set": {"family": "inet", "table": "tandem_fabric", "name": "s"}}
    assert _forward.table_drift([*OWN, one], PAIRS) == ["nftables: tandem_fabric has a set, wanted none"]

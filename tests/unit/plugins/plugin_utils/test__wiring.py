# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _wiring
from hypothesis import given
from hypothesis import strategies as st

NAMES = ("spark-a", "spark-b", "spark-c", "spark-d")
CHAIN = (("spark-a.1", "spark-b.0"), ("spark-b.1", "spark-c.0"), ("spark-c.1", "spark-d.0"))


def results(cables, *, names=NAMES, rails=(0, 1), switch=None, carrier=False):
    """What fabric_discover returns on every node with these cables; *switch*: ends on one switch."""
    found = {
        name: {
            "checked": True,
            "interfaces": {
                f"{cage}{rail}": {"cage": cage, "rail": rail, "carrier": carrier, "neighbours": [], "lldp": []}
                for cage in (0, 1)
                for rail in (0, 1)
            },
        }
        for name in names
    }

    def see(here, there):
        (name, cage), (peer, other) = (text.rsplit(".", 1) for text in (here, there))
        for rail in rails:
            entry = found[name]["interfaces"][f"{cage}{rail}"]
            entry["carrier"] = True
            entry["neighbours"].append({"node": peer, "interface": "x", "cage": int(other), "rail": rail})

    for a, b in cables:
        see(a, b)
        see(b, a)
    for a in switch or []:
        for b in switch:
            if a != b:
                see(a, b)
    return found


def compare(cables, declared=CHAIN, **options):
    return _wiring.compare(declared, _wiring.seen(results(cables, **options)))


def picture(cables, declared=CHAIN, **options):
    return _wiring.draw(declared, _wiring.seen(results(cables, **options))).splitlines()


def test_a_chain_as_declared():
    assert compare(CHAIN) == ([], [])
    assert picture(CHAIN) == [
        "Seen:",
        "  [0 spark-a 1]===[0 spark-b 1]===[0 spark-c 1]===[0 spark-d 1]",
        "Declared:",
        "  spark-a.1 - spark-b.0  seen, both rails",
        "  spark-b.1 - spark-c.0  seen, both rails",
        "  spark-c.1 - spark-d.0  seen, both rails",
    ]


def test_a_cable_declared_the_other_way_round():
    assert compare(CHAIN, [pair[::-1] for pair in CHAIN]) == ([], [])


def test_both_plugs_of_a_node_swapped():
    cables = [CHAIN[0], ["spark-b.1", "spark-c.1"], ["spark-c.0", "spark-d.0"]]
    problems, _unchecked = compare(cables)
    assert len(problems) == 2
    assert problems[0].startswith("spark-b.1 - spark-c.0: found that spark-b.1 is cabled to spark-c.1")
    assert "move the plug in spark-c.1 to spark-c.0" in problems[0]
    assert "move the plug in spark-c.0 to spark-c.1" in problems[1]
    lines = picture(cables)
    assert lines[1] == "  [0 spark-a 1]===[0 spark-b 1]===[1 spark-c 0]===[0 spark-d 1]"
    assert "  (not declared)         spark-c.0 - spark-d.0 seen" in lines


def test_two_cables_crossed_between_four_nodes():
    cables = [["spark-a.1", "spark-d.0"], CHAIN[1], ["spark-c.1", "spark-b.0"]]
    problems, _unchecked = compare(cables)
    assert len(problems) == 2 and "spark-a.1 is cabled to spark-d.0" in problems[0]
    assert "move the plug in spark-d.0 to spark-b.0" in problems[0]


def test_a_missing_cable():
    (problem,) = compare(CHAIN[:2])[0]
    assert problem.startswith("spark-c.1 - spark-d.0: found that spark-c.1 has no link and spark-d.0 has no link")
    assert "plug it" in problem
    assert "a link, and no answer" in compare(CHAIN[:2], carrier=True)[0][0]
    lines = picture(CHAIN[:2])
    assert "  spark-c.1 - spark-d.0  NOT SEEN" in lines
    assert "  [spark-d]  cage 0 has no link, cage 1 has no link" in lines


def test_one_rail_of_a_cable():
    problems, _unchecked = compare(CHAIN, rails=(1,))
    assert len(problems) == 3 and "rail 1 only, wanted rail 0 too" in problems[0]
    assert picture(CHAIN, rails=(0,))[1].count("---") == 3


def test_a_cable_that_nobody_declared():
    (problem,) = compare([*CHAIN, ["spark-d.1", "spark-a.0"]])[0]
    assert problem.startswith("spark-a.0 - spark-d.1: found a cable that is not declared")


def test_a_ring_is_drawn_until_it_meets_itself():
    ring = [*CHAIN, ["spark-d.1", "spark-a.0"]]
    assert compare(ring, ring) == ([], [])
    line = "  [0 spark-a 1]===[0 spark-b 1]===[0 spark-c 1]===[0 spark-d 1]===[0 spark-a …"
    assert picture(ring, ring)[1] == line
    assert picture([["spark-a.0", "spark-b.0"], ["spark-a.1", "spark-b.1"]], [], names=NAMES[:2])[1].startswith(
        "  [0 spa"
    )


def test_a_switch():
    ends = [f"{name}.0" for name in NAMES]
    declared = [[end, "switch"] for end in ends]
    assert compare([], declared, switch=ends) == ([], [])
    lines = picture([], declared, switch=ends)
    assert "  switch: spark-a.0, spark-b.0, spark-c.0, spark-d.0" in lines
    assert "  spark-a.0 - switch  hears spark-b, spark-c, spark-d" in lines
    problems, _unchecked = compare([], declared, switch=ends[:3])
    assert len(problems) == 4 and problems[3].startswith("spark-d.0 - switch: found spark-d.0 has no link")
    pair = [["spark-a.0", "switch"], ["spark-b.0", "switch"]]
    assert compare([], pair, names=NAMES[:2], switch=ends[:2]) == ([], [])


def test_a_node_that_did_not_answer_is_not_checked():
    found = results(CHAIN)
    found["spark-c"] = {"unreachable": True, "msg": "no route\nto host"}
    for entry in found["spark-b"]["interfaces"].values():
        entry["neighbours"] = [peer for peer in entry["neighbours"] if peer["node"] != "spark-c"]
    found["spark-d"] = {"checked": False, "msg": "spark-d: not checked, since this is check mode"}
    problems, unchecked = _wiring.compare(CHAIN, _wiring.seen(found))
    assert problems == [] and unchecked[0] == "spark-c: not checked (no route to host)" and len(unchecked) == 2
    lines = _wiring.draw(CHAIN, _wiring.seen(found)).splitlines()
    assert "  spark-c.1 - spark-d.0  not checked" in lines
    assert "  [spark-c]  not checked: no route to host" in lines


def test_what_was_not_looked_at_because_it_is_off():
    found = results([], names=NAMES[:2], carrier=None)
    (problem,) = _wiring.compare(CHAIN[:1], _wiring.seen(found))[0]
    assert "spark-a.1 is switched off" in problem
    del found["spark-b"]["interfaces"]["00"], found["spark-b"]["interfaces"]["01"]
    assert "no interface, as an empty cage" in _wiring.compare(CHAIN[:1], _wiring.seen(found))[0][0]


def test_lldp_says_who_is_there_when_the_node_itself_is_silent():
    found = results([], names=NAMES[:2], carrier=True)
    found["spark-a"]["interfaces"]["10"]["lldp"] = [{"system": "switch7", "port": "qsfp56-dd-1-1"}]
    assert "LLDP: switch7 qsfp56-dd-1-1" in _wiring.compare(CHAIN[:1], _wiring.seen(found))[0][0]


def test_what_was_seen_can_be_declared():
    assert _wiring.suggest(_wiring.seen(results(CHAIN[:1]))) == "tandem_cables:\n  - [spark-a.1, spark-b.0]"
    ends = [f"{name}.1" for name in NAMES]
    assert _wiring.suggest(_wiring.seen(results([], switch=ends))) == "tandem_switch: {cage: 1}"
    assert _wiring.suggest(_wiring.seen(results([]))) == ""
    assert picture([], [])[-1] == "Declared: nothing"


@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(0, 1), st.sampled_from(NAMES), st.integers(0, 1)).filter(
            lambda one: one[0] != one[2]
        ),
        max_size=8,
    )
)
def test_nothing_that_can_be_seen_raises_or_is_drawn_without_end(cables):
    found = _wiring.seen(results([[f"{a}.{i}", f"{b}.{j}"] for a, i, b, j in cables]))
    text = _wiring.draw(CHAIN, found)
    assert all(name in text for name in NAMES) and len(text.splitlines()) < 40
    _wiring.compare(CHAIN, found)
    _wiring.suggest(found)


@pytest.mark.parametrize("result", [None, {}, 3, {"checked": None}, {"failed": True, "msg": "x"}], ids=repr)
def test_results_that_are_none(result):
    assert list(_wiring.seen({"spark-a": result}).unchecked) == ["spark-a"]

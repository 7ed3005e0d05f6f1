# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _discovery
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures/lldpctl"
MAC = "4c:bb:47:00:00:01"


def ear(node="spark-a", nodes=2, run="r1"):
    return _discovery.Ear(node, run, nodes)


def say(speaker, interface, cage=0, rail=0):
    return _discovery.frame(MAC, speaker.hello(interface, cage, rail))


def test_a_frame_and_back():
    raw = say(ear(), "enp1s0f1np1", 1, 0)
    assert raw[:6] == b"\xff" * 6 and raw[6:12] == bytes.fromhex("4cbb47000001") and raw[12:14] == b"\x88\xb6"
    assert len(raw) >= 60
    assert _discovery.read(raw, "r1") == {
        "node": "spark-a",
        "interface": "enp1s0f1np1",
        "cage": 1,
        "rail": 0,
        "heard": [],
        "known": ["spark-a"],
    }
    assert _discovery.read(raw, "another") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw[:15],
        lambda raw: raw[:40],
        lambda raw: raw[:12] + b"\x08\x00" + raw[14:],
        lambda raw: raw.replace(b"tandem.spark/1", b"tandem.spark/9"),
        lambda raw: raw.replace(b'"known":["spark-a"]', b'"known":"-spark-a-"'),
        lambda raw: raw.replace(b'"heard":[]', b'"heard":{}'),
        lambda raw: raw.replace(b'"node":"spark-a"', b'"node":123456789'),
        lambda raw: raw.replace(b'{"magic', b'["magic'),
    ],
)
def test_frames_that_say_nothing(change):
    assert _discovery.read(change(say(ear(), "x")), "r1") is None


@given(st.binary(max_size=200))
def test_no_frame_raises(raw):
    _discovery.read(raw, "r1")
    _discovery.read(say(ear(), "x")[:16] + raw, "r1")


def test_a_cage_that_is_no_number_is_unknown():
    raw = say(ear(), "x", cage=True, rail=None)
    assert (_discovery.read(raw, "r1")["cage"], _discovery.read(raw, "r1")["rail"]) == (None, None)


def test_two_nodes_are_content_when_each_has_heard_the_other():
    a, b = ear("spark-a"), ear("spark-b")
    assert b.listen("x", say(a, "y"))
    assert not b.content({"x"}), "nobody has heard b yet"
    assert a.listen("y", say(b, "x"))
    assert a.content({"y"}) and not a.content({"y", "z"})
    assert b.listen("x", say(a, "y")) and b.content({"x"})
    assert not b.listen("x", say(a, "y")), "nothing new"
    assert b.neighbours("x") == [{"node": "spark-a", "interface": "y", "cage": 0, "rail": 0}]


def test_a_chain_learns_of_its_far_end():
    a, b, c = ear("spark-a", 3), ear("spark-b", 3), ear("spark-c", 3)
    for _round in range(3):
        b.listen("f0", say(a, "f1"))
        b.listen("f1", say(c, "f0"))
        a.listen("f1", say(b, "f0"))
        c.listen("f0", say(b, "f1"))
    assert a.known == {"spark-a", "spark-b", "spark-c"}
    assert a.content({"f1"}) and b.content({"f0", "f1"}) and c.content({"f0"})


def test_without_a_number_of_nodes_it_is_never_content():
    a, b = ear("spark-a", 0), ear("spark-b", 0)
    b.listen("x", say(a, "y"))
    a.listen("y", say(b, "x"))
    assert not a.content({"y"})


def test_the_own_other_half_is_nobody():
    a = ear()
    assert not a.listen("enP2p1s0f0np0", say(a, "enp1s0f0np0")) and a.neighbours("enP2p1s0f0np0") == []


def test_an_address_that_is_none_and_a_frame_that_is_too_long():
    with pytest.raises(ValueError, match="six bytes"):
        _discovery.frame("00:00", {})
    with pytest.raises(ValueError, match="at most"):
        _discovery.frame(MAC, {"node": "x" * 1500})


def test_lldp_as_lldpctl_shows_it():
    assert _discovery.lldp((FIXTURES / "json0-1.0.16.json").read_text()) == {
        "enP2p1s0f1np1": [{"system": "spark-b", "port": "enP2p1s0f0np0"}],
        "enp1s0f1np1": [{"system": "spark-b", "port": "enp1s0f0np0"}],
    }


@pytest.mark.parametrize("content", [None, "", "{}", "[]", '{"lldp": [{}]}', '{"lldp": [{"interface": [{}]}]}', "x"])
def test_lldp_without_neighbours(content):
    assert _discovery.lldp(content) == {}


@given(st.text(max_size=20))
def test_lldp_never_raises(content):
    _discovery.lldp(content)

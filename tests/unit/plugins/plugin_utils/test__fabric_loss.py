# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _fabric_loss


def nodes(*cables, names="abcd"):
    joined = {name: [] for name in names}
    for a, b in cables:
        joined[a].append({"peers": [{"node": b}]})
        joined[b].append({"peers": [{"node": a}]})
    return [{"name": name, "links": links} for name, links in joined.items()]


CHAIN = nodes("ab", "bc", "cd")
RING = nodes("ab", "bc", "cd", "da")


@pytest.mark.parametrize(
    ("plan", "lost", "wanted"),
    [
        (CHAIN, [], []),
        (CHAIN, ["d"], []),
        (CHAIN, ["b"], ["without b, c and d are cut off from a on the fabric"]),
        (CHAIN, ["c"], ["without c, d is cut off from a, b on the fabric"]),
        (RING, ["b"], []),
        (RING, ["b", "d"], ["without b, d, c is cut off from a on the fabric"]),
        (CHAIN, ["a", "b", "c", "d"], []),
    ],
)
def test_who_is_cut_off(plan, lost, wanted):
    assert _fabric_loss.cut_off(plan, lost) == wanted


def test_a_star_falls_apart():
    assert _fabric_loss.islands(nodes("ab", "ac", "ad"), ["a"]) == [["b"], ["c"], ["d"]]


def test_refusal():
    hostvars = {
        "a": {"x": {"failed": True, "msg": "a: no reply"}, "r": {"changed": True}},
        "b": {},
        "c": {"x": {"failed": True, "unreachable": True, "msg": "no route"}},
        "d": {"x": {"msg": "fine"}, "r": {"changed": False}},
    }
    results = _fabric_loss.results(hostvars, {"nodes": CHAIN}, ["x"], "r")
    text = _fabric_loss.refusal({"nodes": CHAIN}, results, ["b"], 120)
    assert text.splitlines() == [
        "The fabric is not proven.",
        "- a: no reply",
        "- b: was not reached on its management address; wanted an answer. Is it up?",
        "- without b, c and d are cut off from a on the fabric",
        "- the change was taken back on a: the old configuration is there again",
        "- b: takes an unconfirmed change back by itself, 120 s after it came",
    ]
    assert "failed task above" in _fabric_loss.refusal({"nodes": CHAIN}, {}, [], 120)


def test_lost():
    hostvars = {"a": {"r": {"changed": False}}, "b": {}, "c": {"r": {"unreachable": True}}, "d": {"r": {"rc": 0}}}
    assert _fabric_loss.lost(hostvars, {"nodes": CHAIN}, "r") == ["b", "c"]


def test_nccl_verdict():
    assert _fabric_loss.nccl_verdict({"rc": 127, "stdout": ""}, "pair")["verdict"] == "not measured"
    good = {"rc": 0, "stdout": "# Avg bus bandwidth    : 22.9\n"}
    assert _fabric_loss.nccl_verdict(good, "pair")["verdict"] == "ok"
    assert _fabric_loss.nccl_verdict({**good, "rc": 1}, "pair")["verdict"] == "failed"

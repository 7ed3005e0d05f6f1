# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _replicate
from ansible_collections.tandem.spark.plugins.plugin_utils import _replication

FIXTURES = Path(__file__).parents[2] / "fixtures"
PATHS = {"release": "/m/ling", "staging": "/m/.staging-ling"}
WIRINGS = sorted(path.stem for path in (FIXTURES / "fabric_plan").glob("*.json"))
FILES = [("model-1", 5_000), ("model-2", 5_000), ("model-3", 4_000), ("config.json", 10), ("tokenizer.json", 900)]


def fabric(name):
    return json.loads((FIXTURES / f"fabric_plan/{name}.json").read_text())


def workers(deployment):
    return [node["name"] for node in deployment["nodes"]][1:]


@pytest.mark.parametrize("wiring", WIRINGS)
def test_golden(wiring):
    """After a change on purpose: TANDEM_GOLDEN=write pytest …, and read the difference."""
    deployment = fabric(wiring)
    plan = _replication.plan(deployment, workers(deployment), files=FILES, **PATHS)
    path = FIXTURES / f"replication/{wiring}.json"
    if os.environ.get("TANDEM_GOLDEN") == "write":
        path.write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
    assert plan == json.loads(path.read_text())


@pytest.mark.parametrize("wiring", WIRINGS)
def test_what_holds_on_every_wiring(wiring):
    deployment = fabric(wiring)
    owner = {link["ip"]: node["name"] for node in deployment["nodes"] for link in node["links"]}
    network = {link["ip"]: link["network"] for node in deployment["nodes"] for link in node["links"]}
    plan = _replication.plan(deployment, workers(deployment), files=FILES, **PATHS)
    assert plan["unreached"] == []
    before = {deployment["nodes"][0]["name"]}
    for step in plan["order"]:
        for name in step:
            lanes = plan["lanes"][name]
            assert {lane["rail"] for lane in lanes} == {0, 1}
            for lane in lanes:
                assert (owner[lane["address"]], owner[lane["local"]]) == (lane["node"], name)
                # Both ends of a way are on one cable, and the other end has the file earlier.
                assert network[lane["address"]] == network[lane["local"]] and lane["node"] in before
                assert lane["relay"] == (lane["path"] == PATHS["staging"]) == (lane["node"] != "spark-a")
                listening = {x["address"]: x["peers"] for x in plan["shares"][lane["node"]]["listen"]}
                assert lane["local"] in listening[lane["address"]]
            assert sorted(path for files in plan["streams"][name] for path in files) == sorted(p for p, _s in FILES)
        before |= set(step)
    for name, share in plan["shares"].items():
        for entry in share["listen"]:
            assert owner[entry["address"]] == name
            assert {network[peer] for peer in entry["peers"]} == {network[entry["address"]]}


def test_in_a_chain_each_cable_carries_the_model_once():
    plan = _replication.plan(fabric("chain4"), ["spark-b", "spark-c", "spark-d"], **PATHS)
    assert plan["order"] == [["spark-b"], ["spark-c"], ["spark-d"]]
    sources = {name: {lane["node"] for lane in lanes} for name, lanes in plan["lanes"].items()}
    assert sources == {"spark-b": {"spark-a"}, "spark-c": {"spark-b"}, "spark-d": {"spark-c"}}
    assert "streams" not in plan


def test_the_far_node_of_a_ring_of_four_copies_from_both_neighbours():
    plan = _replication.plan(fabric("ring4"), ["spark-b", "spark-c", "spark-d"], **PATHS)
    assert plan["order"] == [["spark-b", "spark-d"], ["spark-c"]]
    assert {lane["node"] for lane in plan["lanes"]["spark-c"]} == {"spark-b", "spark-d"}
    assert len(plan["lanes"]["spark-c"]) == 4


def test_a_node_that_has_it_is_a_source_whatever_its_rank():
    plan = _replication.plan(fabric("chain4"), ["spark-d"], **PATHS)
    assert {lane["node"] for lane in plan["lanes"]["spark-d"]} == {"spark-c"}
    assert list(plan["shares"]) == ["spark-c"] and plan["shares"]["spark-c"]["path"] == PATHS["release"]
    both = _replication.plan(fabric("chain4"), ["spark-a", "spark-c"], **PATHS)
    assert both["order"] == [["spark-a", "spark-c"]]
    assert {lane["node"] for lane in both["lanes"]["spark-c"]} == {"spark-b", "spark-d"}


def test_past_nodes_that_take_no_part_it_comes_over_the_routes():
    plan = _replication.plan(fabric("chain4"), ["spark-d"], holders=["spark-a"], **PATHS)
    lanes = plan["lanes"]["spark-d"]
    assert [(lane["node"], lane["hops"], lane["rail"], lane["relay"]) for lane in lanes] == [
        ("spark-a", 3, 0, False),
        ("spark-a", 3, 1, False),
    ]
    assert {lane["local"] for lane in lanes} == {p for e in plan["shares"]["spark-a"]["listen"] for p in e["peers"]}
    assert plan["order"] == [["spark-d"]]


def test_nobody_has_it():
    plan = _replication.plan(fabric("pair"), ["spark-a", "spark-b"], **PATHS)
    assert plan["unreached"] == ["spark-a", "spark-b"] and plan["order"] == [] and plan["shares"] == {}


def test_two_cables_are_four_ways():
    deployment = fabric("pair")
    for node in deployment["nodes"]:
        for link in list(node["links"]):
            other = json.loads(json.dumps(link).replace('"10.100.128.', '"10.100.129.'))
            node["links"].append(dict(other, cage=1, interface=link["interface"].replace("0np0", "1np1")))
    assert len(_replication.plan(deployment, ["spark-b"], **PATHS)["lanes"]["spark-b"]) == 4


def test_files_are_spread_by_size_and_the_largest_come_first():
    lists = _replicate.assign([(f"m{n:02}", size) for n, size in enumerate([5, 5, 4, 3, 3, 2, 1, 1])], 3)
    assert lists == [["m00", "m04"], ["m01", "m05", "m06"], ["m02", "m03", "m07"]]
    assert _replicate.assign([("a", 1)], 3) == [["a"], [], []]
    assert _replicate.assign([], 2) == [[], []]

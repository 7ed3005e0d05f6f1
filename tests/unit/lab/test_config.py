# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sparklab import LabError, config

PAIR: dict[str, Any] = {"nodes": {"spark-a": None, "spark-b": {}}, "cables": [["spark-a.0", "spark-b.0"]]}
HALVES_0 = ("enp1s0f0np0", "enP2p1s0f0np0")
HALVES_1 = ("enp1s0f1np1", "enP2p1s0f1np1")


def parse(**changes: Any) -> config.Lab:
    return config.parse("test", {**PAIR, **changes}, "test.yml")


def test_the_shipped_labs() -> None:
    assert config.available() == ["chain4", "pair", "ring3", "ring4", "switch"]
    for name in config.available():
        lab = config.load(name)
        assert lab.services
        assert lab.description
        assert [node.name for node in lab.nodes] == [f"spark-{letter}" for letter in "abcd"[: len(lab.nodes)]]


def test_wirings() -> None:
    def interfaces(name: str) -> list[tuple[str, ...]]:
        lab = config.load(name)
        return [lab.interfaces(node.name) for node in lab.nodes]

    assert interfaces("pair") == [HALVES_0, HALVES_0]
    assert interfaces("chain4") == [HALVES_1, HALVES_0 + HALVES_1, HALVES_0 + HALVES_1, HALVES_0]
    assert interfaces("ring3") == [HALVES_0 + HALVES_1] * 3
    assert interfaces("ring4") == [HALVES_0 + HALVES_1] * 4
    assert interfaces("switch") == [HALVES_0] * 4
    assert [name for name in config.available() if config.load(name).has_switch] == ["switch"]


def test_ranks_follow_the_file() -> None:
    lab = config.parse("test", {"nodes": {"zeta": {}, "alpha": {}}}, "test.yml")
    assert [(node.name, node.rank) for node in lab.nodes] == [("zeta", 0), ("alpha", 1)]


def test_defaults_and_settings_of_a_node() -> None:
    lab = parse(
        defaults={"memory_mb": 1024, "driver_version": "580.95.05"},
        nodes={"spark-a": {"memory_mb": 2048, "disk_mb": 4096, "bind": ["/srv"]}, "spark-b": {}},
    )
    assert lab.node("spark-a") == config.Node("spark-a", 0, 2048, 4096, "580.95.05", None, ("/srv",))
    assert lab.node("spark-b") == config.Node("spark-b", 1, 1024, None, "580.95.05")


def test_a_lab_survives_json() -> None:
    for name in config.available():
        lab = config.load(name)
        assert config.Lab.from_dict(json.loads(json.dumps(lab.as_dict()))) == lab


def test_the_cable_behind_an_interface() -> None:
    lab = config.load("chain4")
    cable, rail = lab.cable_of("spark-b", "enP2p1s0f1np1")
    assert (str(cable.a), str(cable.b), rail) == ("spark-b.1", "spark-c.0", 1)


def test_an_interface_without_cable() -> None:
    with pytest.raises(LabError, match="has no fabric interface 'enp1s0f1np1'; it has enp1s0f0np0, enP2p1s0f0np0"):
        config.load("pair").cable_of("spark-a", "enp1s0f1np1")


def test_an_unknown_node() -> None:
    with pytest.raises(LabError, match="lab pair has no node 'spark-z'; its nodes are spark-a, spark-b"):
        config.load("pair").node("spark-z")


@pytest.mark.parametrize("name", ["nope", "../labs/pair", "", "Pair"])
def test_an_unknown_lab(name: str) -> None:
    with pytest.raises(LabError, match="there is no lab .*; known are chain4, pair, ring3, ring4, switch"):
        config.load(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": None}, "nodes is missing or empty"),
        ({"nodes": []}, "nodes is missing or empty"),
        ({"nodes": {"Spark_A": {}}, "cables": []}, "node name 'Spark_A' is not usable"),
        ({"nodes": {"switch": {}}, "cables": []}, "node name 'switch' is not usable"),
        ({"nodes": {f"n{i}": {} for i in range(9)}, "cables": []}, "9 nodes; at most 8"),
        ({"nodes": {"a": 5}, "cables": []}, "nodes.a is a int; wanted a mapping"),
        ({"nodes": {"a": {"memory": 5}}, "cables": []}, "nodes.a has an unknown key 'memory'; known are bind"),
        ({"nodes": {"a": {"memory_mb": 5}}, "cables": []}, "nodes.a.memory_mb is 5; wanted a whole number of at least"),
        ({"nodes": {"a": {"memory_mb": True}}, "cables": []}, "nodes.a.memory_mb is True"),
        ({"nodes": {"a": {"disk_mb": "1G"}}, "cables": []}, "nodes.a.disk_mb is '1G'"),
        ({"nodes": {"a": {"driver_version": 580.95}}, "cables": []}, "nodes.a.driver_version is 580.95"),
        ({"nodes": {"a": {"bind": ["srv"]}}, "cables": []}, "nodes.a.bind is"),
        ({"wires": []}, "the file has an unknown key 'wires'"),
        ({"services": "yes"}, "services is 'yes'; wanted true or false"),
        ({"suite": "../x"}, "suite is '../x'"),
        ({"cables": {}}, "cables is not a list"),
        ({"cables": [["spark-a.0"]]}, "cable 1 is .*; wanted two ends"),
        ({"cables": [["spark-a", "spark-b.0"]]}, "cable 1: end 'spark-a' names no cage"),
        ({"cables": [["spark-a.2", "spark-b.0"]]}, "cable 1: end 'spark-a.2' names no cage"),
        ({"cables": [["spark-a.0", "spark-z.0"]]}, "cable 1: 'spark-z' is not one of the nodes"),
        ({"cables": [["spark-a.0", "spark-a.1"]]}, "cable 1 joins spark-a to itself"),
        ({"cables": [["switch", "switch"]]}, "cable 1 joins switch to itself"),
        (
            {"cables": [["spark-a.0", "spark-b.0"], ["spark-b.0", "spark-a.1"]]},
            "cable 2 uses spark-b.0, which holds a cable already",
        ),
    ],
)
def test_bad_files(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LabError, match=f"^test.yml: .*{message}"):
        parse(**changes)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(LabError) as caught:
        parse(services=1, suite=2, cables=[["spark-a.0"]])
    assert str(caught.value).count(";") >= 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: {spark-a: {}\n", "is not usable YAML"),
        ("nodes: {spark-a: {}, spark-a: {}}\n", "'spark-a' is given twice"),
        ("- a\n", "the file is a list; wanted a mapping"),
        ("", "nodes is missing or empty"),
    ],
)
def test_bad_yaml(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.yml").write_text(text)
    with pytest.raises(LabError, match=message):
        config.load("x", tmp_path)

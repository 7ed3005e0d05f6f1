# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import json

from ansible_collections.tandem.spark.plugins.plugin_utils import _findings, _table
from ansible_collections.tandem.spark.plugins.plugin_utils._catalogue import CATALOGUE, SEVERITIES, Finding
from hypothesis import given, settings
from hypothesis import strategies as st

finding = st.builds(
    Finding,
    id=st.sampled_from(sorted(CATALOGUE)),
    severity=st.sampled_from(SEVERITIES),
    nodes=st.lists(st.text(max_size=70), max_size=5).map(tuple),
    found=st.text(max_size=200),
    wanted=st.text(max_size=120),
    remedy=st.text(max_size=300),
    source=st.text(max_size=20),
    waived=st.none() | st.text(min_size=1, max_size=80),
)
RED = Finding(
    "gpu.driver_lockstep",
    "blocked",
    ("spark-a", "spark-b"),
    "580.142 on spark-a, 580.126.09 on spark-b",
    "the same",
    "reboot",
    "x",
)


@settings(max_examples=80, deadline=None)
@given(st.lists(finding, max_size=6), st.integers(80, 160))
def test_no_line_is_wider_than_the_table(found, total):
    for line in _table.table(found, total).splitlines():
        assert _table.width(line) <= total
        assert line == line.rstrip()
        assert not any(ord(character) < 32 for character in line)


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=300), st.integers(2, 60))
def test_wrapping_loses_nothing(text, columns):
    lines = _table.wrap(text, columns)
    assert lines and all(_table.width(line) <= columns for line in lines)
    assert "".join(lines).replace(" ", "") == _table.clean(text).replace(" ", "")


def test_the_table():
    expected = """\
SEVERITY  FINDING                               NODES
--------  ------------------------------------  ----------------------------------------------------
BLOCKED   gpu.driver_lockstep                   spark-a, spark-b
          found   580.142 on spark-a, 580.126.09 on spark-b
          wanted  the same
          remedy  reboot
waived    gpu.driver_lockstep                   (none)
          found   580.142 on spark-a, 580.126.09 on spark-b
          wanted  the same
          remedy  reboot
          waived  tried for a week

1 blocked, 1 waived"""
    second = Finding(**{**RED.__dict__, "nodes": (), "waived": "tried for a week"})
    assert _table.table([RED, second]) == expected


def test_an_empty_table():
    assert _table.table([]) == "No findings."


def test_every_id_fits_on_its_line():
    assert max(map(len, CATALOGUE)) <= _table.FINDING


def test_wide_characters_take_two_columns():
    assert _table.width("日本") == 4 and _table.width("é") == 1 and _table.width("e\u0301") == 1
    assert _table.wrap("日本語 テスト", 6) == ["日本語", "テスト"]


def test_control_characters_do_not_reach_the_terminal():
    assert "\x1b" not in _table.table([Finding("gpu.timeout", "blocked", ("a",), "\x1b[31mred\x07", "w", "r", "s")])


def test_data_for_reports():
    (data,) = json.loads(json.dumps(_table.as_data([RED])))
    assert data["nodes"] == ["spark-a", "spark-b"] and data["title"] == "loaded driver differs"
    assert _findings.blocking([RED]) == [RED]


def paths(tree, prefix=()):
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield (*prefix, key)
        if isinstance(value, (dict, list)) and value:
            yield from paths(value, (*prefix, key))


@settings(max_examples=150, deadline=None, print_blob=False)
@given(data=st.data())
def test_c02_any_fact_may_be_null_without_becoming_a_block(data, healthy_pair):
    """A fact that could not be told never counts as a wrong value."""
    nodes, deployment = copy.deepcopy(healthy_pair)
    target = nodes["spark-b"]
    chosen = data.draw(st.lists(st.sampled_from(list(paths(target))), min_size=1, max_size=4))
    for path in chosen:
        place = target
        for part in path[:-1]:
            place = place[part] if isinstance(place, (dict, list)) and place else None
            if place is None:
                break
        if isinstance(place, (dict, list)):
            place[path[-1]] = None
    allowed = {
        "node.facts_missing",
        "platform.unidentified",
        "gpu.probe_failed",
        "memory.unknown",
        "disk.unknown",
        "fabric.rdma_missing",  # rdma_device: null is how the facts say that there is none
    }
    found = _findings.findings(nodes, deployment)
    assert {f.id for f in found if f.severity == "blocked"} <= allowed
    _table.table(found)

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.tandem.spark.plugins.plugin_utils import _rollback

NODES = ["spark-a", "spark-b"]


def state(deployment="d" * 64, **changes):
    previous = {"name": "small-0123", "deployment": deployment, "model": "/m", "engine": "/e"}
    pointers = {"current": None, "previous": previous}
    return {"pointers": pointers, "model": {"present": True}, "engine": {"present": True}, **changes}


def test_all_nodes_can_go_back():
    assert _rollback.problems(NODES, {name: state() for name in NODES}) == []
    skipped = state(engine={"skipped": True})
    assert _rollback.problems(NODES, {"spark-a": state(), "spark-b": skipped}) == []


def test_a_node_that_was_left_out_ends_it():
    (text,) = _rollback.problems(NODES, {"spark-a": state(), "spark-b": {}})
    assert text.startswith("spark-b: was not looked at") and "--limit" in text


def test_a_node_without_a_previous_release_is_named_with_the_remedy():
    (text,) = _rollback.problems(NODES, {"spark-a": state(), "spark-b": state(pointers={"previous": None})})
    assert "spark-b: found no previous release" in text and "site.yml" in text


def test_a_model_that_is_not_whole_is_named():
    broken = state(model={"present": False, "reason": "wrong: model.safetensors"})
    (text,) = _rollback.problems(NODES, {"spark-a": state(), "spark-b": broken})
    assert "spark-b: the model of small-0123 is not whole: wrong: model.safetensors" in text
    assert "tandem.spark.model" in text


def test_two_deployments_are_not_mixed():
    (text,) = _rollback.problems(NODES, {"spark-a": state("a" * 64), "spark-b": state("b" * 64)})
    assert "spark-a: aaaaaaaaaaaa" in text and "spark-b: bbbbbbbbbbbb" in text
    (text,) = _rollback.problems(["spark-a"], {"spark-a": state(None)})
    assert "not known" in text

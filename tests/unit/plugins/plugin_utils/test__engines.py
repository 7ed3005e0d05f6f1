# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _engines, _recipe
from ansible_collections.tandem.spark.plugins.plugin_utils._engines import _common, sglang
from hypothesis import given
from hypothesis import strategies as st


def test_flags_in_the_order_given():
    words = _common.flags({"b": 2, "a": "x y", "on": True, "list": [1, 2], "zero": 0, "part": 0.75})
    assert words == ["--b", "2", "--a", "x y", "--on", "--list", "1", "2", "--zero", "0", "--part", "0.75"]


def test_a_flag_set_to_nothing_is_absent():
    assert _common.flags({"a": None, "b": False, "c": "", "d": []}) == []


@pytest.mark.parametrize("value", [{}, {"a": 1}, [[1]], [None], [True], [{}]], ids=repr)
def test_flags_that_cannot_be_rendered(value):
    with pytest.raises(_common.ArgumentError, match="cuda-graph-bs"):
        _common.flags({"cuda-graph-bs": value})


@pytest.mark.parametrize("name", ["--dtype", "-d", "a b", "a=b", "", "a\nb"])
def test_names_that_are_no_flags(name):
    with pytest.raises(_common.ArgumentError):
        _common.flags({name: 1})


@given(
    st.dictionaries(st.text(max_size=8), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4))
)
def test_only_argument_errors_for_anything(arguments):
    try:
        words = _common.flags(arguments)
    except _common.ArgumentError:
        return
    assert all(isinstance(word, str) and word for word in words if word.startswith("--")) and "" not in words[:1]


def test_c13_an_environment_variable_set_to_nothing_is_absent():
    assert _common.settings({"A": None, "B": "", "C": 0, "D": "x"}) == {"C": "0", "D": "x"}
    for value in (True, [], {}):
        with pytest.raises(_common.ArgumentError, match="quotes"):
            _common.settings({"A": value})


@pytest.mark.parametrize("flag", sglang.OWNED)
def test_flags_that_follow_from_the_inventory(make_recipe, flag):
    recipe = _recipe.validate(make_recipe(engine__arguments={flag: "x"}), "here")
    assert any(flag in problem and "small" in problem for problem in sglang.problems(recipe))


def test_what_else_is_refused(make_recipe):
    recipe = _recipe.validate(
        make_recipe(engine__lock=None, engine__arguments={"page-size": {}}, engine__rank_environment=[{"A": True}, {}]),
        "here",
    )
    problems = sglang.problems(recipe)
    assert "lock" in problems[0] and "page-size" in problems[1]
    recipe["engine"]["arguments"] = {}
    assert "environment A" in sglang.problems(recipe)[1]


def test_every_adapter_has_the_same_functions():
    for adapter in _engines.ADAPTERS.values():
        assert callable(adapter.problems) and callable(adapter.rank)

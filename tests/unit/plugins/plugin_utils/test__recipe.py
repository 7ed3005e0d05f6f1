# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import string

import pytest
import yaml
from ansible_collections.tandem.spark.plugins.plugin_utils import _recipe
from hypothesis import example, given
from hypothesis import strategies as st


def refusal(data):
    with pytest.raises(_recipe.RecipeError) as stop:
        _recipe.validate(data, "here.yml")
    assert "here.yml" in str(stop.value)
    return str(stop.value)


def test_defaults_are_filled_in(make_recipe):
    recipe = _recipe.validate(make_recipe(), "here")
    assert recipe["serve"] == {"rendezvous_port": 25000, "ready_timeout_s": 1800, "first_answer_timeout_s": 300}
    assert recipe["memory"]["minimum_total_bytes"] == 0
    assert recipe["acceptance"][0]["max_tokens"] == 512


def test_an_option_set_to_nothing_is_absent(make_recipe):
    data = make_recipe(memory=None, serve=None, engine__arguments=None, engine__environment=None, model__licence=None)
    recipe = _recipe.validate(data, "here")
    assert recipe["serve"]["rendezvous_port"] == 25000
    assert recipe["engine"]["arguments"] == {} and recipe["model"]["licence"] == ""


def test_nulls_inside_free_data_stay(make_recipe):
    data = make_recipe()
    data["acceptance"].append(
        {"check": "chat", "name": "c", "prompt": "p", "expect": "e", "request": {"stop": None, "thinking": False}}
    )
    assert _recipe.validate(data, "here")["acceptance"][1]["request"] == {"stop": None, "thinking": False}


@pytest.mark.parametrize("key", ["name", "nodes", "tensor_parallel", "model", "engine", "acceptance"])
@pytest.mark.parametrize("null", [True, False], ids=["null", "absent"])
def test_what_must_be_there(make_recipe, key, null):
    data = make_recipe()
    data[key] = None
    if not null:
        del data[key]
    assert key in refusal(data)


def test_unknown_keys_are_named_with_their_place(make_recipe):
    assert "modle" in refusal(make_recipe(modle="x"))
    text = refusal(make_recipe(model__revison="x"))
    assert "revison" in text and "model" in text


def test_keys_that_yaml_reads_as_something_else(make_recipe):
    data = make_recipe()
    data.update(yaml.safe_load("{on: 1}"))
    assert "True" in refusal(data)
    assert "engine.arguments.8" in refusal(make_recipe(engine__arguments={8: "x"}))


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_no_mapping(data):
    assert "mapping" in refusal(data)


def test_c58_tensor_parallel_and_nodes_must_agree(make_recipe):
    text = refusal(make_recipe(nodes=1, tensor_parallel=2))
    assert "2 ranks on 1 node" in text and "wanted 1" in text
    assert "tensor_parallel" in refusal(make_recipe(nodes=3, tensor_parallel=2))
    assert "nodes" in refusal(make_recipe(nodes=0, tensor_parallel=0))


def test_versions_without_quotes(make_recipe):
    assert "3.1" in refusal(make_recipe(engine__python=3.10)) and "quotes" in refusal(make_recipe(engine__version=1.10))


def test_one_environment_per_rank_or_none(make_recipe):
    assert "rank_environment" in refusal(make_recipe(engine__rank_environment=[{"A": "1"}]))
    _recipe.validate(make_recipe(engine__rank_environment=[{"A": "1"}, {"A": "2"}]), "here")


@pytest.mark.parametrize(
    ("check", "missing"),
    [
        ({"check": "chat", "prompt": "p"}, "expect"),
        ({"check": "chat", "prompt": "p", "expect": ""}, "expect"),
        ({"check": "chat", "expect": "391"}, "prompt"),
        ({"check": "tool_call", "prompt": "p", "tool": {"name": "t"}}, "arguments"),
        ({"check": "tool_call", "prompt": "p", "tool": {}, "arguments": {}}, "name"),
        ({"check": "stream"}, "prompt"),
        ({"check": "guess"}, "guess"),
    ],
    ids=str,
)
def test_what_a_check_needs(make_recipe, check, missing):
    text = refusal(make_recipe(acceptance=[{"name": "mine", **check}]))
    assert missing in text and ("mine" in text or missing == "guess")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantization": 5}, ["model.quantization", "5", "mapping"]),
        ({"quantization": {"bits": 8}}, ["method", "quantization"]),
        ({"quantization": {"method": "fp8", "bits": "x"}}, ["bits", "x"]),
        ({"digest": "abc"}, ["model.digest", "abc", "64 hex digits"]),
    ],
)
def test_what_guards_the_precision(make_recipe, changes, words):
    text = refusal(make_recipe(**{f"model__{key}": value for key, value in changes.items()}))
    assert all(word in text for word in words)


def test_what_guards_the_precision_is_kept_and_else_absent(make_recipe):
    wanted = {"method": "fp8", "bits": 8}
    recipe = _recipe.validate(make_recipe(model__quantization=wanted, model__digest="a" * 64), "here")
    assert recipe["model"]["quantization"] == wanted and recipe["model"]["digest"] == "a" * 64
    model = _recipe.validate(make_recipe(model__quantization=None), "here")["model"]
    assert "quantization" not in model and "digest" not in model


def test_a_recipe_without_checks_would_accept_anything(make_recipe):
    assert "acceptance" in refusal(make_recipe(acceptance=[]))


def test_a_tool_without_arguments_is_fine(make_recipe):
    check = {"check": "tool_call", "name": "n", "prompt": "p", "tool": {"name": "now"}, "arguments": {}}
    _recipe.validate(make_recipe(acceptance=[check]), "here")


def test_two_checks_of_one_name(make_recipe):
    check = {"check": "ready", "name": "twice"}
    assert "twice" in refusal(make_recipe(acceptance=[check, dict(check)]))


def test_all_problems_stand_in_one_message(make_recipe):
    text = refusal(make_recipe(nodes=1, tensor_parallel=2, acceptance=[], engine__python=3.10))
    assert all(word in text for word in ("tensor_parallel", "acceptance", "engine.python"))


def test_the_users_directory_wins(tmp_path, make_recipe):
    (tmp_path / "small.yml").write_text(yaml.safe_dump(make_recipe(title="mine")))
    recipe = _recipe.load("small", [str(tmp_path)])
    assert recipe["title"] == "mine" and recipe["directory"] == str(tmp_path)


def test_dates_stay_text(tmp_path, make_recipe):
    data = make_recipe(
        acceptance=[
            {"check": "tool_call", "name": "n", "prompt": "p", "tool": {"name": "t"}, "arguments": {"day": "D"}}
        ]
    )
    (tmp_path / "small.yml").write_text(yaml.safe_dump(data).replace("day: D", "day: 2026-01-31"))
    assert _recipe.load("small", [str(tmp_path)])["acceptance"][0]["arguments"] == {"day": "2026-01-31"}


@pytest.mark.parametrize("name", ["", "absent", "../small", "sub/small", "small.yml", "."])
def test_an_unknown_recipe_names_those_that_are_there(tmp_path, name):
    (tmp_path / "small.yml").write_text("---\n")
    with pytest.raises(_recipe.RecipeError) as stop:
        _recipe.load(name, [str(tmp_path)])
    text = str(stop.value)
    assert "small" in text and "ling-3.0-flash-fp8" in text and str(tmp_path) in text and "tandem_recipe" in text


def test_a_recipe_in_two_directories_is_offered_once(tmp_path):
    (tmp_path / "ling-3.0-flash-fp8.yml").write_text("---\n")
    with pytest.raises(_recipe.RecipeError) as stop:
        _recipe.find("absent", [str(tmp_path), str(tmp_path)])
    assert str(stop.value).count("ling-3.0-flash-fp8,") == 1


@pytest.mark.parametrize(
    "content",
    [
        b"a: [",
        b"\xff\xfe\x00",
        b"a: \x07",
        b"{[a]: b}",
        b"day: 2026-13-99",
        b"!!int x",
        b"!!float x",
        b"!!bool x",
        b"!!python/object:os.system {}",
        b"[" * 1500,
        b"",
        b"--- 1\n--- 2\n",
    ],
    ids=lambda content: repr(content[:20]),
)
def test_a_file_that_is_no_recipe(tmp_path, content):
    (tmp_path / "small.yml").write_bytes(content)
    with pytest.raises(_recipe.RecipeError) as stop:
        _recipe.load("small", [str(tmp_path)])
    assert "small.yml" in str(stop.value) and "\n" not in str(stop.value)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(string.printable, max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "nodes", "model", "engine", "check", "id", "tool", "options", "arguments"])
            | st.integers()
            | st.booleans(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(_recipe.SPEC)), ANYTHING))
@example({"acceptance": None})
@example({"acceptance": [None]})
@example({"model": {1: 2, "x": 3}})
def test_only_recipe_errors_for_anything(data):
    try:
        _recipe.validate(data, "here")
    except _recipe.RecipeError as error:
        assert str(error).startswith("recipe here: ")


@given(st.sampled_from(sorted(_recipe.SPEC)), ANYTHING)
def test_only_recipe_errors_for_one_wrong_value(key, value):
    data = {
        "name": "small",
        "nodes": 1,
        "tensor_parallel": 1,
        "model": {"id": "owner/Model", "served_name": "model", "size_bytes": 1},
        "engine": {"name": "sglang", "version": "1", "python": "3.12"},
        "acceptance": [{"check": "ready", "name": "r"}],
        key: value,
    }
    with contextlib.suppress(_recipe.RecipeError):
        assert isinstance(_recipe.validate(data, "here")["nodes"], int)

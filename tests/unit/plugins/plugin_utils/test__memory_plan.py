# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import json
import math
import os
import re
from pathlib import Path

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import (
    _memory_choices,
    _memory_fit,
    _memory_plan,
    _memory_table,
    _model_shape,
    _model_source,
    _recipe,
    _table,
)

ROOT = Path(__file__).parents[4]
GOLDEN = ROOT / "tests/unit/fixtures/memory_fit"
SPARK = 130595926016
RECIPES = ["ling-3.0-flash-fp4", "ling-3.0-flash-fp8", "step-3.5-flash-fp8", "four-node-chain-bf16"]


def ask(name, total=SPARK, change=None, model=None):
    recipe = copy.deepcopy(_recipe.load(name, []))
    if change:
        recipe["engine"]["arguments"].update(change)
    found = _model_source.recorded(recipe["model"]["id"], [_recipe.COLLECTION_RECIPES])
    nodes = {f"spark-{letter}": total for letter in "abcd"[: recipe["nodes"]]}
    return _memory_plan.memory_fit({**found, **(model or {})}, recipe, nodes)


@pytest.mark.parametrize("name", RECIPES)
def test_the_table_of_every_recipe(name):
    text = _memory_table.table(ask(name))
    path = GOLDEN / f"table-{name}.txt"
    if os.environ.get("TANDEM_GOLDEN") == "write":
        path.write_text(text + "\n", encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text + "\n"
    assert max(_table.width(line) for line in text.splitlines()) <= _table.WIDTH


@pytest.mark.parametrize(("name", "fits"), list(zip(RECIPES, [True, True, None, True], strict=True)))
def test_whether_a_recipe_fits_on_sparks(name, fits):
    answer = ask(name)
    assert answer["fits"] is fits
    json.dumps(answer)


def test_without_facts_the_recipes_minimum_counts_and_it_is_said():
    answer = ask("ling-3.0-flash-fp8", None)
    assert answer["per_node"]["total_bytes"] == 118111600640
    assert answer["memory_from"].startswith("minimum_total_bytes of the recipe, since no facts")


def test_the_poorest_node_decides():
    recipe = _recipe.load("ling-3.0-flash-fp8", [])
    found = _model_source.recorded(recipe["model"]["id"], [_recipe.COLLECTION_RECIPES])
    answer = _memory_plan.fit(found, recipe, {"spark-a": SPARK, "spark-b": SPARK - 10**9})
    assert answer["memory_from"] == "MemTotal of spark-b" and answer["per_node"]["total_bytes"] == SPARK - 10**9
    # A node that was not read may be the poorest.
    answer = _memory_plan.fit(found, recipe, {"spark-a": SPARK, "spark-b": None})
    assert answer["per_node"]["total_bytes"] == 118111600640


def test_two_sources_that_disagree_are_no_answer():
    answer = ask("step-3.5-flash-fp8")
    assert answer["fits"] is None and answer["per_node"]["fits"] and not answer["per_node_upper"]["fits"]
    assert answer["refusal"].startswith("cannot tell: sources give 195.00 GiB to 208.00 GiB of weights")
    assert ask("step-3.5-flash-fp8", model={"weights_upper_bytes": None})["fits"] is True
    assert ask("step-3.5-flash-fp8", model={"weights_bytes": 208 * 1024**3})["fits"] is False


def test_a_shortfall_names_what_is_there_and_three_things_that_fit():
    answer = ask("ling-3.0-flash-fp8", 96 * 10**9)
    assert answer["fits"] is False and re.search(
        r"[\d.]+ GiB short per node: .* are needed .* are there", answer["refusal"]
    )
    assert len(answer["alternatives"]) == 3
    assert answer["alternatives"][0]["change"] == "mem-fraction-static 0.776 instead of 0.75"
    less = ask("ling-3.0-flash-fp8", 92 * 10**9)["alternatives"]
    assert len(less) == 3 and less[0]["change"] == "the weights of inclusionAI/Ling-3.0-flash-fp4"


def test_too_large_a_share_is_named_with_the_largest_that_may_be():
    answer = ask("ling-3.0-flash-fp8", change={"mem-fraction-static": 0.9})
    assert answer["fits"] is False and "mem-fraction-static 0.9 takes" in answer["refusal"]
    assert answer["alternatives"][0]["change"] == "mem-fraction-static 0.792 instead of 0.9"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mem-fraction-static": 75}, r"mem-fraction-static: found 75, wanted a fraction.*0\.75\?"),
        ({"kv-cache-dtype": "fp4_e2m1"}, "KV cache dtype: found fp4_e2m1, whose size is unknown"),
        ({"context-length": 1048576}, "found 1048576 tokens, wanted at most 262144"),
        ({"context-length": 0}, "context-length: found 0"),
        ({"pp-size": 2}, "pp-size: found 2, wanted 1"),
        ({"max-running-requests": "many"}, "max-running-requests: found 'many', wanted a number"),
    ],
)
def test_values_that_cannot_be_used_do_not_fit(change, message):
    answer = ask("ling-3.0-flash-fp8", change=change)
    assert answer["fits"] is False and re.search(message, answer["refusal"]), answer["refusal"]
    assert "DOES NOT FIT" in _memory_table.table(answer)


def test_c58_ranks_and_hosts_that_differ():
    recipe = _recipe.load("ling-3.0-flash-fp8", [])
    found = _model_source.recorded(recipe["model"]["id"], [_recipe.COLLECTION_RECIPES])
    answer = _memory_plan.memory_fit(found, recipe, {"spark-a": SPARK})
    assert "found 2 ranks, 1 host" in answer["refusal"] and answer["fits"] is False


def test_an_unknown_architecture_and_an_unknown_engine_do_not_fit():
    answer = ask("ling-3.0-flash-fp8", model={"config": {"architectures": ["NewForCausalLM"]}})
    assert answer["fits"] is False and answer["refusal"].startswith("architecture: found NewForCausalLM")
    recipe = _recipe.load("ling-3.0-flash-fp8", [])
    recipe["engine"]["name"] = "atlas"
    found = _model_source.recorded(recipe["model"]["id"], [_recipe.COLLECTION_RECIPES])
    assert "engine: found atlas" in _memory_plan.memory_fit(found, recipe, {})["refusal"]


def test_without_a_size_of_the_weights_the_recipes_counts():
    answer = ask("ling-3.0-flash-fp8", model={"weights_bytes": None})
    assert answer["model_totals"]["weights_bytes"] == 128500000000
    assert answer["model_totals"]["weights_from"] == "size_bytes of the recipe"


def test_memory_that_nobody_knows_is_no_memory():
    recipe = _recipe.load("ling-3.0-flash-fp8", [])
    recipe["memory"] = {}
    found = _model_source.recorded(recipe["model"]["id"], [_recipe.COLLECTION_RECIPES])
    answer = _memory_plan.memory_fit(found, recipe, {"spark-a": None, "spark-b": None})
    assert answer["refusal"].startswith("memory of spark-a, spark-b: found no facts")


def test_what_is_not_counted_is_said():
    answer = ask("ling-3.0-flash-fp8", change={"speculative-algorithm": "NEXTN"})
    assert any("speculative" in text for text in answer["assumed"])


@pytest.mark.parametrize(
    ("arguments", "share"),
    [({}, 0.8), ({"swa-full-tokens-ratio": 0.25}, 0.25), ({"disable-hybrid-swa-memory": True}, 1.0)],
)
def test_how_sglang_sizes_the_pool_of_sliding_layers(arguments, share):
    shape = _model_shape.read(
        _model_source.recorded("stepfun-ai/Step-3.5-Flash-FP8", [_recipe.COLLECTION_RECIPES])["config"]
    )
    recipe = {"engine": {"name": "sglang", "arguments": arguments}, "tensor_parallel": 2, "model": {"id": "x"}}
    plan, _assumed = _memory_plan.plan(shape, recipe, weights=1, total=SPARK)
    assert plan.window_share == share
    token = _memory_fit.evaluate(plan)["kv_bytes_per_token"]
    assert token == math.ceil((49152 + 135168 * share) / 2)


@pytest.mark.parametrize(
    ("engine", "arguments", "share"),
    [
        ("vllm", {}, None),
        ("vllm", {"disable-hybrid-kv-cache-manager": True}, 1.0),
        ("llama_cpp", {}, None),
        ("llama_cpp", {"swa-full": True}, 1.0),
    ],
)
def test_what_other_engines_keep_of_sliding_layers(engine, arguments, share):
    shape = _model_shape.read(
        _model_source.recorded("stepfun-ai/Step-3.5-Flash-FP8", [_recipe.COLLECTION_RECIPES])["config"]
    )
    recipe = {"engine": {"name": engine, "arguments": arguments}, "tensor_parallel": 2, "model": {"id": "x"}}
    assert _memory_plan.plan(shape, recipe, weights=1, total=SPARK)[0].window_share == share


@pytest.mark.parametrize("name", ["reserve_bytes", "runtime_bytes"])
@pytest.mark.parametrize("value", [-1, SPARK])
def test_a_reserve_that_cannot_be(name, value):
    recipe = _recipe.load("ling-3.0-flash-fp8", [])
    recipe["memory"][name] = value
    found = _model_source.recorded(recipe["model"]["id"], [_recipe.COLLECTION_RECIPES])
    answer = _memory_plan.memory_fit(found, recipe, {"spark-a": SPARK, "spark-b": SPARK})
    assert f"memory.{name}: found {value}, wanted 0 or more" in answer["refusal"]


def test_a_recipe_that_knows_better():
    recipe = _recipe.load("step-3.5-flash-fp8", [])
    recipe["memory"].update(reserve_bytes=10 * 1024**3, runtime_bytes=3 * 1024**3, kv_dtype="fp8")
    recipe["engine"]["arguments"]["gpu-memory-utilization"] = 0.91
    found = _model_source.recorded(recipe["model"]["id"], [_recipe.COLLECTION_RECIPES])
    answer = _memory_plan.fit(found, recipe, {"spark-a": SPARK, "spark-b": SPARK})
    assert answer["fits"] is True and answer["per_node"]["ceiling"] == 0.917
    assert answer["kv_dtype"] == {"name": "fp8", "why": "the setting"}
    assert answer["per_node"]["kv_bytes_per_token"] == 12288


# --- what would fit


def asked(**change):
    recipe = copy.deepcopy(_recipe.load("ling-3.0-flash-fp8", []))
    found = _model_source.recorded(recipe["model"]["id"], [_recipe.COLLECTION_RECIPES])
    shape = _model_shape.read(found["config"])
    recipe["engine"]["arguments"].update(change)
    return _memory_plan.plan(shape, recipe, weights=found["weights_bytes"], total=92 * 10**9)[0]


@pytest.mark.parametrize("total", [80, 84, 88, 90, 92, 96, 100, 110])
def test_every_alternative_fits_and_the_nearest_comes_first(total):
    answer = ask("ling-3.0-flash-fp8", total * 10**9)
    if answer["fits"]:
        assert answer["alternatives"] == []
        return
    assert answer["alternatives"]
    assert len({entry["change"] for entry in answer["alternatives"]}) == len(answer["alternatives"]) <= 3
    for entry in answer["alternatives"]:
        assert entry["longest_context"] >= entry["context"] > 0


def test_a_change_that_is_enough_is_not_joined_with_another():
    found = _memory_choices.alternatives(asked(), count=99)
    alone = [entry["change"] for entry in found if " and " not in entry["change"]]
    joined = [entry["change"] for entry in found if " and " in entry["change"]]
    assert alone and joined and not any(change in text for change in alone for text in joined)


def test_no_number_of_nodes_is_offered_that_cuts_the_model():
    for entry in _memory_choices.alternatives(asked(), count=99):
        assert entry["nodes"] in (2, 4)
        assert entry["nodes"] == 2 or "expert parallelism" in entry["change"]  # 768 / 4 is no whole block


def test_a_shorter_context_is_whole_and_fits():
    plan = asked(**{"mem-fraction-static": 0.79})
    for entry in _memory_choices.alternatives(plan, count=99):
        assert entry["context"] % 1024 == 0 or entry["context"] == plan.context

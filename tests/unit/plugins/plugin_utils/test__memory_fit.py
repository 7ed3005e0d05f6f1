# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import fractions
import json
from pathlib import Path

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _memory_fit as fit
from ansible_collections.tandem.spark.plugins.plugin_utils._memory_fit import FitError
from ansible_collections.tandem.spark.plugins.plugin_utils._model_shape import Attention, read
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[4]
FIXTURES = ROOT / "tests/unit/fixtures"
PUBLISHED = json.loads((FIXTURES / "memory_fit/published.json").read_text(encoding="utf-8"))
GIB = 1024**3
SPARK = 130595926016  # the smallest MemTotal seen (reference: hardware, section 1.3)
BF16 = fit.KvDtype("bfloat16", fractions.Fraction(2), "a test")


def shape_of(name):
    for path in (ROOT / f"recipes/shapes/{name}.json", FIXTURES / f"model_config/{name}.json"):
        if path.is_file():
            data = json.loads(path.read_text(encoding="utf-8"))
            return read(data.get("config", data))
    raise AssertionError(name)


@pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: f"{entry['model']}: {entry['figure']}")
def test_published_figures(entry):
    shape, ranks = shape_of(entry["model"]), entry.get("ranks", 1)
    size = fit.KV_BYTES[entry.get("kv", "bfloat16")]
    token, window = fit.kv_bytes(shape, size, ranks, window_share=entry.get("window_share"))
    found = {
        "token": token,
        "window": window,
        "sequence": token * entry.get("context", 0) + window,
        "state": fit.state_bytes(shape, ranks) * entry.get("slots", 1),
    }[entry["ask"]]
    assert found == pytest.approx(entry["wanted"], rel=entry.get("within", 0), abs=0)


# --- C55


@pytest.mark.parametrize(
    ("value", "hint"), [(112, r"is it in GB\?"), (85, r"0\.85\?"), (0, ""), (-0.5, ""), ("112", "GB"), (1.01, "")]
)
def test_c55_a_utilisation_of_another_unit_is_refused(value, hint):
    with pytest.raises(FitError, match=f"gpu-memory-utilization: found {value}, wanted a fraction.*{hint}"):
        fit.utilisation("gpu-memory-utilization", value)


@pytest.mark.parametrize("value", ["x", True, [0.8], "nan", "inf", {}])
def test_c55_a_utilisation_that_is_no_number(value):
    with pytest.raises(FitError, match="wanted a number"):
        fit.utilisation("gpu-memory-utilization", value)


def test_c55_a_fraction_as_text_and_gigabytes_by_their_own_name():
    assert fit.utilisation("u", "0.85") == 0.85
    assert fit.utilisation("u", 1) == 1
    assert fit.utilisation("u", None) is fit.utilisation("u", "") is None
    assert fit.utilisation("u", None, gigabytes=112, total_bytes=SPARK) == pytest.approx(0.8576, abs=1e-4)
    for wrong in (131, 0, -1):
        with pytest.raises(FitError, match=r"at most 130\.6 GB"):
            fit.utilisation("u", None, gigabytes=wrong, total_bytes=SPARK)
    with pytest.raises(FitError, match="one of the two"):
        fit.utilisation("u", 0.8, gigabytes=112, total_bytes=SPARK)
    with pytest.raises(FitError, match="the memory of the node too"):
        fit.utilisation("u", None, gigabytes=112)


# --- C56


def test_c56_bytes_follow_the_dtype():
    shape = dataclasses.replace(shape_of("Qwen3-0.6B"), attention=(Attention("full", 43, 64, 1, 512, 512),))
    assert fit.kv_bytes(shape, fit.KV_BYTES["bf16"])[0] * 200_000 == 17_612_800_000
    assert fit.kv_bytes(shape, fit.KV_BYTES["fp8"])[0] * 200_000 == 8_806_400_000


@pytest.mark.parametrize(
    "arguments",
    [
        {"kv-cache-dtype": "fp8"},
        "--kv-cache-dtype fp8 --page-size 64",
        "--page-size=64 --kv-cache-dtype=fp8",
        ["--kv-cache-dtype", "fp8"],
    ],
)
def test_c56_a_dtype_in_the_arguments_is_seen_in_every_form(arguments):
    shape = shape_of("Qwen3-0.6B")
    found = fit.kv_dtype(shape, "vllm", arguments)
    assert (found.name, found.size, found.why) == ("fp8", 1, "the engine's arguments")
    with pytest.raises(FitError, match="found bf16 in the setting and fp8 in the engine's arguments"):
        fit.kv_dtype(shape, "vllm", arguments, "bf16")
    assert fit.kv_dtype(shape, "vllm", arguments, "fp8_e4m3").size == 1


@pytest.mark.parametrize("name", ["fp8_ds_mla", "int3", "FP9", 8])
def test_c56_an_unknown_dtype_gives_no_number(name):
    for arguments, setting in (({"kv-cache-dtype": name}, None), ({}, name), ({"dtype": name}, None)):
        with pytest.raises(FitError, match=f"found {name}, whose size is unknown"):
            fit.kv_dtype(shape_of("Qwen3-0.6B"), "sglang", arguments, setting)


def test_c56_what_the_engine_takes_by_itself():
    shape = shape_of("Qwen3-0.6B")
    assert fit.kv_dtype(shape, "vllm").why == "the model's dtype"
    assert fit.kv_dtype(shape, "vllm", {"kv-cache-dtype": "auto", "dtype": "float32"}).size == 4
    assert fit.kv_dtype(shape, "llama_cpp").name == "f16"
    assert (
        fit.kv_dtype(dataclasses.replace(shape, kv_quantisation="fp8"), "vllm").why == "the checkpoint's quantisation"
    )
    with pytest.raises(FitError, match="config.json names no dtype"):
        fit.kv_dtype(shape_of("gpt-oss-20b"), "vllm")
    with pytest.raises(FitError, match="whose size is unknown"):
        fit.kv_dtype(dataclasses.replace(shape, kv_quantisation="nvfp4"), "vllm")


def test_c56_llama_cpp_has_two_flags_that_must_agree():
    shape = shape_of("Qwen3-0.6B")
    both = {"cache-type-k": "q8_0", "cache-type-v": "q8_0"}
    assert fit.kv_dtype(shape, "llama_cpp", both).size == fractions.Fraction(34, 32)
    for one in ({"cache-type-k": "q8_0", "cache-type-v": "f16"}, {"cache-type-v": "q8_0"}):
        with pytest.raises(FitError, match="wanted one dtype for both"):
            fit.kv_dtype(shape, "llama_cpp", one)


# --- C57


def test_c57_one_request_of_full_length_must_fit():
    token, sequence = fit.kv_bytes(shape_of("MiniMax-M2.5"), BF16.size, 2)
    pool = 24_159_191_040
    assert 196_608 * token - pool == 805_306_368
    assert fit.longest(pool, token, sequence) == 190_265
    assert fit.longest(pool, token, sequence, page=16) == 190_256  # whole blocks, never more than fits
    assert fit.longest(int(28.74 * GIB), token, sequence, limit=196_608) == 196_608


def test_c57_the_budget_says_what_is_short():
    plan = plan_of("MiniMax-M2.5", "vllm", ranks=2, weights=0, context=196_608, kv=BF16, pool_bytes=24_159_191_040)
    result = fit.evaluate(plan)
    assert (result["fits"], result["shortfall_bytes"]) == (False, 805_306_368)
    assert result["longest_context"] == 190_265
    assert fit.evaluate(dataclasses.replace(plan, pool_bytes=int(28.74 * GIB)))["fits"] is True


@given(
    pool=st.integers(-(10**12), 10**12),
    token=st.integers(1, 10**6),
    sequence=st.integers(0, 10**9),
    sequences=st.integers(1, 64),
    page=st.integers(1, 256),
)
def test_c57_the_longest_context_fits_and_the_next_page_does_not(pool, token, sequence, sequences, page):
    found = fit.longest(pool, token, sequence, sequences=sequences, page=page)
    assert found % page == 0 and found >= 0
    assert found == 0 or sequences * (found * token + sequence) <= pool
    assert sequences * ((found + page) * token + sequence) > pool


# --- C58


def test_c58_ranks_that_do_not_divide_the_heads_are_named_with_those_that_do():
    shape = dataclasses.replace(
        shape_of("MiniMax-M2.5"), attention=(Attention("full", 62, 64, 8, 128, 128),), block=None
    )
    (problem,) = fit.rank_problems(shape, 3)
    assert "found 3 ranks for 64 heads (full layers)" in problem and "ranks of 1, 2, 4, 8, 16" in problem
    many = dataclasses.replace(shape, attention=(Attention("full", 62, 96, 3, 128, 128),))
    assert fit.rank_problems(many, 3) == []
    assert fit.rank_problems(shape, 2, 1) == [
        "ranks: found 2 ranks, 1 host, wanted as many ranks as hosts: a Spark has one GPU"
    ]
    assert fit.rank_problems(shape, 3, 3, by_layers=True) == []


@pytest.mark.parametrize(
    ("name", "able"),
    [
        ("Ling-3.0-flash-fp8", [1, 2]),  # cookbook: TP 2; 768 / 3 is no share of 32 heads
        ("Step-3.5-Flash-FP8", [1, 2]),  # vLLM recipe: TP 4 fails
        ("Ling-3.0-flash", [1, 2, 4, 8, 16]),
        ("Qwen3-Next-80B-A3B-Thinking", [1, 2, 4, 8, 16]),
        ("gpt-oss-20b", [1, 2, 4, 8, 16]),
    ],
)
def test_c58_numbers_of_ranks_of_published_models(name, able):
    assert fit.rank_choices(shape_of(name)) == able


def test_c58_whole_experts_need_no_division():
    assert 4 in fit.rank_choices(shape_of("Step-3.5-Flash-FP8"), expert_parallel=True)


def test_c58_fewer_kv_heads_than_ranks_are_kept_by_several():
    token, _window = fit.kv_bytes(shape_of("Qwen3-Next-80B-A3B-Thinking"), BF16.size)
    assert token == 12 * 2 * 2 * 256 * 2
    assert [fit.kv_bytes(shape_of("Qwen3-Next-80B-A3B-Thinking"), BF16.size, n)[0] for n in (2, 4, 8)] == [
        token // 2
    ] * 3


# --- a whole budget


def plan_of(name, engine, **values):
    defaults = {"ranks": 1, "total": SPARK, "weights": 60 * GIB, "kv": BF16, "context": 32768, "slots": 1}
    defaults |= {"reserve": int(SPARK * fit.RESERVE_SHARE)}
    return fit.Plan(shape=shape_of(name), engine=engine, **{**defaults, **values})


def test_the_pool_of_the_cookbooks_log():
    """Weights of 64.88 GiB at 0.75 left 14.37 GiB for the KV cache beside 64 slots, on one Spark."""
    weights = int(64.88 * GIB)
    result = fit.evaluate(plan_of("Ling-3.0-flash-fp4", "sglang", weights=weights, fraction=0.75, state_slots=64))
    assert result["pool_bytes"] / GIB == pytest.approx(14.37, rel=0.03)
    assert result["longest_context"] == 262144 and result["fits"] is True


def test_weights_of_a_rank_with_its_output_layer_in_float32():
    """60.27 GiB per rank were reported for Ling-3.0-flash-fp8 on two Sparks."""
    shape = shape_of("Ling-3.0-flash-fp8")
    head = 2 * shape.vocabulary * shape.hidden
    result = fit.evaluate(
        plan_of("Ling-3.0-flash-fp8", "sglang", ranks=2, weights=128443021752, head_bytes=head, state_slots=8)
    )
    assert result["weights_bytes"] / GIB == pytest.approx(60.27, rel=0.005)


@pytest.mark.parametrize(("runtime", "low", "high"), [(3, 120_000, 132_000), (5, 35_000, 45_000)])
def test_the_room_that_step_has_at_085(runtime, low, high):
    """1 to 3 GiB, 40 to 125 thousand tokens (reference: serving, section 2.3)."""
    plan = plan_of("Step-3.5-Flash-FP8", "vllm", ranks=2, weights=195 * GIB, fraction=0.85, runtime=runtime * GIB)
    result = fit.evaluate(plan)
    assert low < result["longest_context"] < high and result["fits"] is True


def test_more_than_the_reserve_leaves_does_not_fit():
    """At 0.92 the KV cache gets 10 GiB, which froze the machine (reference: serving, section 2.3)."""
    plan = plan_of("Step-3.5-Flash-FP8", "vllm", ranks=2, weights=195 * GIB, fraction=0.92, runtime=4 * GIB)
    result = fit.evaluate(plan)
    assert result["pool_bytes"] / GIB == pytest.approx(10, rel=0.05)
    assert result["fits"] is False and result["ceiling"] == 0.85 and result["shortfall_bytes"] == 0
    assert result["over_reserve_bytes"] == pytest.approx(0.07 * SPARK, rel=0.001)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_ceiling_keeps_the_reserve_and_no_more(engine):
    plan = plan_of("MiniMax-M2.5", engine)
    at = fit.evaluate(dataclasses.replace(plan, fraction=plan.ceiling))
    above = fit.evaluate(dataclasses.replace(plan, fraction=plan.ceiling + 0.002))
    assert at["over_reserve_bytes"] == 0 < above["over_reserve_bytes"]
    assert fit.evaluate(plan)["fraction"] == plan.ceiling


def test_states_that_sglang_sizes_by_itself():
    plan = plan_of("Qwen3-Next-80B-A3B-Thinking", "sglang", fraction=0.7, state_share=0.9, slots=4)
    result = fit.evaluate(plan)
    rest = result["pool_bytes"] + result["state_bytes"]
    assert result["state_bytes"] == pytest.approx(rest * 0.9 / 1.9, rel=0.01)
    # It never has fewer than the sequences that run.
    assert fit.evaluate(dataclasses.replace(plan, state_share=0.0))["state_slots"] == 4


def test_a_pool_of_so_many_tokens():
    plan = plan_of("Meta-Llama-3.1-8B", "sglang", weights=16 * GIB, fraction=0.5, pool_tokens=8192, context=8192)
    token = 32 * 8 * 2 * 128 * 2
    assert fit.evaluate(plan)["pool_bytes"] == 8192 * token
    assert fit.evaluate(dataclasses.replace(plan, context=8193))["shortfall_bytes"] == token


def test_llama_cpp_takes_the_memory_of_all_slots_and_splits_layers():
    plan = plan_of("Meta-Llama-3.1-8B", "llama_cpp", ranks=4, by_layers=True, weights=64 * GIB, slots=4)
    result = fit.evaluate(plan)
    assert result["kv_bytes_per_token"] == 8 * 8 * 2 * 128 * 2 and result["weights_bytes"] == 16 * GIB
    assert result["needed_bytes"] == 4 * 32768 * result["kv_bytes_per_token"]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"a": 1}, 1),
        ({"a": None}, None),
        ({"a": False}, None),
        ({"a": 0}, 0),
        ({"a": ""}, None),
        ({}, None),
        (None, None),
        ("--a", True),
        ("--a --b", True),
        ("--a=x --b", "x"),
        ("--b a", None),
        ("-a x", "x"),
    ],
)
def test_arguments_in_every_form(arguments, wanted):
    assert fit.argument(arguments, "a") == wanted


def test_a_command_line_that_is_none():
    with pytest.raises(FitError, match="no command line"):
        fit.argument("--a 'x", "a")


@pytest.mark.parametrize("value", [0, -1, 1.5, "x", True])
def test_a_number_that_is_not_whole(value):
    with pytest.raises(FitError):
        fit.whole("max-num-seqs", value)
    assert fit.whole("max-num-seqs", "4") == 4

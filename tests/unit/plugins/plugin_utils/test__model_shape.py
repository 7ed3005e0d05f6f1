# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _model_shape
from ansible_collections.tandem.spark.plugins.plugin_utils._model_shape import ShapeError, read, weights_of
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[4]
FIXTURES = ROOT / "tests/unit/fixtures/model_config"


def config(name):
    recorded = ROOT / f"recipes/shapes/{name}.json"
    if recorded.is_file():
        return json.loads(recorded.read_text(encoding="utf-8"))["config"]
    return json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))


# layers that keep tokens as (kind, layers, query heads, KV heads, key size, window); layers that keep a state
SHAPES = {
    "Ling-3.0-flash": ([("latent", 7, 32, 1, 576, None)], [("kda", 35, 32, 128 * 128, 3 * 4096 * 3)]),
    "Step-3.5-Flash-FP8": ([("full", 12, 64, 8, 128, None), ("sliding", 33, 96, 8, 128, 512)], []),
    "DeepSeek-V3": ([("latent", 61, 128, 1, 576, None)], []),
    "Kimi-K2.5": ([("latent", 61, 64, 1, 576, None)], []),
    "Meta-Llama-3.1-8B": ([("full", 32, 32, 8, 128, None)], []),
    "Mixtral-8x7B-v0.1": ([("full", 32, 32, 8, 128, None)], []),
    "MiniMax-M2.5": ([("full", 62, 48, 8, 128, None)], []),
    "GLM-4.7": ([("full", 92, 96, 8, 128, None)], []),
    "Qwen3-0.6B": ([("full", 28, 16, 8, 128, None)], []),
    "Qwen3-30B-A3B-FP8": ([("full", 48, 32, 4, 128, None)], []),
    "Qwen3-Next-80B-A3B-Thinking": (
        [("full", 12, 16, 2, 256, None)],
        [("gated_delta", 36, 32, 128 * 128, (2 * 2048 + 4096) * 3)],
    ),
    "Qwen3.5-35B-A3B": ([("full", 10, 16, 2, 256, None)], [("gated_delta", 30, 32, 128 * 128, (2 * 2048 + 4096) * 3)]),
    "gpt-oss-20b": ([("full", 12, 64, 8, 64, None), ("sliding", 12, 64, 8, 64, 128)], []),
    "gemma-4-26B-A4B": ([("full", 5, 16, 2, 512, None), ("sliding", 25, 16, 8, 256, 1024)], []),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": (
        [("full", 6, 32, 2, 128, None)],
        [("mamba2", 23, 64, 64 * 128, (4096 + 2 * 8 * 128) * 3)],
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_what_the_layers_of_published_models_keep(name):
    shape = read(config(name))
    attention, state = SHAPES[name]
    found = [(a.kind, a.layers, a.query_heads, a.kv_heads, a.key_dim, a.window) for a in shape.attention]
    assert found == attention
    assert [(s.kind, s.layers, s.heads, s.matrix, s.convolution) for s in shape.state] == state
    assert all(a.value_dim == (0 if a.kind == "latent" else a.key_dim) for a in shape.attention)
    json.dumps(shape.as_dict())


def test_no_fixture_that_no_test_reads():
    unknown = {"DeepSeek-V3.2", "DeepSeek-V4-Flash", "Meta-Llama-3.1-405B"}
    names = {path.stem for path in FIXTURES.glob("*.json") if not path.stem.endswith(".quantisation")}
    assert names <= set(SHAPES) | unknown


@pytest.mark.parametrize("name", ["DeepSeek-V3.2", "DeepSeek-V4-Flash"])
def test_an_unknown_architecture_is_refused_by_its_name(name):
    (architecture,) = config(name)["architectures"]
    with pytest.raises(ShapeError, match=f"architecture: found {architecture}, wanted one of .*LlamaForCausalLM"):
        read(config(name))


@pytest.mark.parametrize("data", [None, [], "text", {}, {"architectures": []}, {"architectures": "LlamaForCausalLM"}])
def test_what_is_no_configuration(data):
    with pytest.raises(ShapeError):
        read(data)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        (name, field)
        for name, fields in {
            "Ling-3.0-flash": ["kv_lora_rank", "qk_rope_head_dim", "layer_group_size", "short_conv_kernel_size"],
            "Step-3.5-Flash-FP8": ["num_attention_groups", "attention_other_setting", "sliding_window", "layer_types"],
            "Meta-Llama-3.1-8B": ["num_hidden_layers", "num_key_value_heads", "hidden_size", "vocab_size"],
            "Qwen3-0.6B": ["head_dim", "max_position_embeddings"],
            "gpt-oss-20b": ["sliding_window", "layer_types"],
            "NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": ["hybrid_override_pattern", "ssm_state_size"],
        }.items()
        for field in fields
    ],
)
def test_every_missing_field_is_named(name, field):
    data = config(name)
    del data[field]
    with pytest.raises(ShapeError, match=field):
        read(data)


def test_missing_fields_are_named_together():
    data = config("Ling-3.0-flash")
    del data["kv_lora_rank"], data["head_dim"], data["num_attention_heads"]
    with pytest.raises(ShapeError, match="kv_lora_rank.*num_attention_heads|num_attention_heads.*kv_lora_rank"):
        read(data)


@pytest.mark.parametrize("value", [0, -1, "32", True, 3.5, [32]])
def test_a_field_of_another_kind_is_named(value):
    with pytest.raises(ShapeError, match="num_key_value_heads"):
        read({**config("Meta-Llama-3.1-8B"), "num_key_value_heads": value})


def test_an_unknown_dtype_is_refused():
    with pytest.raises(ShapeError, match="dtype .found 'float4'"):
        read({**config("Meta-Llama-3.1-8B"), "torch_dtype": "float4"})


def test_a_dtype_that_is_not_told_stays_unknown():
    assert read(config("gpt-oss-20b")).dtype is None


def test_c58_a_configuration_under_text_config_is_found():
    data = config("Meta-Llama-3.1-8B")
    nested = {"architectures": data.pop("architectures"), "text_config": data, "vision_config": {}}
    shape = read(nested)
    assert shape.vision and [a.query_heads for a in shape.attention] == [32]


def test_layer_types_may_list_the_layers_for_prediction_too():
    assert len(config("Step-3.5-Flash-FP8")["layer_types"]) == 48
    assert sum(entry.layers for entry in read(config("Step-3.5-Flash-FP8")).attention) == 45


@pytest.mark.parametrize("types", [["full_attention"], ["full_attention"] * 23 + ["chunked_attention"], "text"])
def test_layer_types_that_are_too_few_or_unknown(types):
    with pytest.raises(ShapeError, match="layer_types"):
        read({**config("gpt-oss-20b"), "layer_types": types})


def test_a_window_of_mistral_and_of_qwen():
    base = config("Meta-Llama-3.1-8B")
    mistral = {**base, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 4096}
    assert [(a.kind, a.window) for a in read(mistral).attention] == [("sliding", 4096)]
    qwen = {**config("Qwen3-0.6B"), "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}
    assert [(a.kind, a.layers) for a in read(qwen).attention] == [("full", 20), ("sliding", 8)]
    # Llama has a field of that name only by accident; it is not used.
    assert [a.kind for a in read({**base, "sliding_window": 4096}).attention] == ["full"]


def test_groups_that_do_not_end_with_a_full_layer_are_refused():
    with pytest.raises(ShapeError, match="no multiple of layer_group_size"):
        read({**config("Ling-3.0-flash"), "num_hidden_layers": 43})


def test_ling_25_keeps_no_convolution():
    (state,) = read({**config("Ling-3.0-flash"), "architectures": ["BailingMoeV2_5ForCausalLM"]}).state
    assert (state.kind, state.matrix, state.convolution) == ("lightning", 128 * 128, 0)


def test_kimi_linear_lists_its_layers():
    data = config("DeepSeek-V3")
    data["architectures"] = ["KimiLinearForCausalLM"]
    with pytest.raises(ShapeError, match="linear_attn_config"):
        read(data)
    given_ = {"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4}
    with pytest.raises(ShapeError, match=r"linear_attn_config\.full_attn_layers"):
        read({**data, "linear_attn_config": given_})
    given_ |= {"full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7]}
    shape = read({**data, "linear_attn_config": given_})
    assert [(a.kind, a.layers) for a in shape.attention] == [("latent", 2)]
    assert [(s.kind, s.layers) for s in shape.state] == [("kda", 6)]


def test_gemma_layers_that_share_keys_are_refused():
    data = config("gemma-4-26B-A4B")
    data["text_config"]["num_kv_shared_layers"] = 10
    with pytest.raises(ShapeError, match="num_kv_shared_layers"):
        read(data)


def test_quantisation_of_the_weights_and_of_the_cache():
    name = "NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4"
    assert read(config(name)).quantisation is None
    shape = read(config(name), json.loads((FIXTURES / f"{name}.quantisation.json").read_text(encoding="utf-8")))
    assert (shape.quantisation, shape.kv_quantisation) == ("NVFP4", "fp8")
    scheme = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    assert read({**config("Qwen3-0.6B"), "quantization_config": scheme}).kv_quantisation == "fp8"
    assert read(config("DeepSeek-V3")).block == 128


def test_sizes_of_experts_and_of_dense_layers():
    assert (read(config("Ling-3.0-flash")).expert_size, read(config("Ling-3.0-flash")).dense_size) == (768, 6144)
    assert (read(config("Mixtral-8x7B-v0.1")).expert_size, read(config("Mixtral-8x7B-v0.1")).dense_size) == (14336, 0)
    assert (read(config("Qwen3-0.6B")).expert_size, read(config("Qwen3-0.6B")).dense_size) == (0, 3072)


@given(st.data())
def test_no_configuration_makes_it_fall_over(data):
    name = data.draw(st.sampled_from(sorted(SHAPES)))
    changed = copy.deepcopy(config(name))
    inner = changed.get("text_config") or changed
    field = data.draw(st.sampled_from(sorted(inner)))
    inner[field] = data.draw(
        st.one_of(st.none(), st.integers(-2, 9), st.text(max_size=3), st.lists(st.none()), st.just({}))
    )
    try:
        shape = read(changed)
    except ShapeError:
        return
    assert all(entry.layers > 0 for entry in (*shape.attention, *shape.state))


def test_bytes_of_the_weights():
    files = [("model-1.safetensors", 10), ("model-2.safetensors", 20), ("original/a.safetensors", 30), ("x.bin", 5)]
    assert weights_of({"metadata": {"total_size": 25}}, files) == 25
    assert weights_of({"metadata": {}}, files) == weights_of(None, files) == 30
    assert weights_of({"metadata": {"total_size": True}}, []) is None
    assert weights_of(None, [("a-Q4.gguf", 1), ("a-Q8.gguf", 2)]) is None


def test_every_family_says_what_it_reads():
    assert all(family.read.__doc__ for family in _model_shape.FAMILIES.values())

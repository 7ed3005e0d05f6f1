# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""From a model's config.json to what of it costs memory: which layers keep what, per token and per sequence.

Pure functions. One adapter per family says which fields of config.json mean what. An architecture without an adapter,
and a field that an adapter needs and does not find, are refused by name: nothing here is guessed.
"""

from __future__ import annotations

import dataclasses
import typing as t

FLOAT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
FULL, SLIDING, LATENT = "full", "sliding", "latent"


class ShapeError(ValueError):
    """A model whose memory cannot be calculated; the text says what is missing."""


@dataclasses.dataclass(frozen=True)
class Attention:
    """Layers of one kind that keep keys and values of every token, or of the last *window* tokens."""

    kind: str  # full, sliding, latent
    layers: int
    query_heads: int
    kv_heads: int  # a latent counts as one head, which every rank keeps
    key_dim: int  # numbers per KV head and token
    value_dim: int  # 0 for a latent: the values are made of it
    window: int | None = None  # tokens


@dataclasses.dataclass(frozen=True)
class State:
    """Layers of one kind that keep a state of fixed size per sequence, however long it is."""

    kind: str  # kda, gated_delta, mamba2, lightning
    layers: int
    heads: int  # a rank keeps its share of them
    groups: int  # key heads, which are divided too
    matrix: int  # numbers of the recurrent state of one head
    convolution: int  # numbers kept for the short convolutions, all heads together
    matrix_bytes: int = 4  # SGLang's default is float32 (configs/mamba_utils.py)
    convolution_bytes: int = 2


@dataclasses.dataclass(frozen=True)
class Shape:
    """What of a model costs memory. Sizes are numbers (elements) unless the name says bytes."""

    architecture: str
    family: str
    layers: int
    hidden: int
    vocabulary: int
    context: int  # tokens that the model is made for
    dtype: str | None  # of unquantised numbers; None when config.json does not say
    attention: tuple[Attention, ...]
    state: tuple[State, ...]
    experts: int
    expert_size: int  # inner size of one expert, 0 without experts
    dense_size: int  # inner size of dense layers, 0 without them
    tied: bool
    vision: bool
    extra_layers: int  # layers for multi-token prediction
    quantisation: str | None
    block: int | None  # width of a quantised block, which no rank may cut
    kv_quantisation: str | None  # what the checkpoint asks for its KV cache
    windows_in_sglang: bool  # whether SGLang drops tokens that have left the window

    def as_dict(self) -> dict[str, t.Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)


class _Config:
    """Reads fields of the text part of a config.json and collects those that are missing."""

    def __init__(self, config: t.Mapping[str, t.Any]) -> None:
        nested = config.get("text_config")
        self.outer = config
        self.text: t.Mapping[str, t.Any] = nested if isinstance(nested, t.Mapping) else config
        self.missing: list[str] = []

    def get(self, name: str) -> t.Any:
        """A field of the text part, else of the outer one; None where it is absent or null."""
        value = self.text.get(name)
        return self.outer.get(name) if value is None and name not in self.text else value

    def number(self, *names: str, default: int | None = None) -> int:
        """The first of *names* that is a number of 0 or more."""
        for name in names:
            value = self.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                self.missing.append(f"{name} (found {value!r}, wanted a whole number)")
                return 1
            return value
        if default is not None:
            return default
        self.missing.append(" or ".join(names))
        return 1

    def positive(self, *names: str) -> int:
        """As :meth:`number`, and not 0."""
        value = self.number(*names)
        if value == 0:
            self.missing.append(f"{' or '.join(names)} (found 0, wanted 1 or more)")
        return value or 1

    def head_dim(self) -> int:
        """``head_dim``, or what transformers takes for it in the Llama family: hidden size by heads."""
        if self.get("head_dim") is not None:
            return self.positive("head_dim")
        hidden, heads = self.positive("hidden_size"), self.positive("num_attention_heads")
        if hidden % heads:
            self.missing.append(f"head_dim (hidden_size {hidden} is no multiple of {heads} heads)")
        return hidden // heads

    def layer_types(self, count: int) -> list[str] | None:
        """``layer_types`` of the first *count* layers: some configurations list MTP layers behind them."""
        value = self.get("layer_types")
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or len(value) < count:
            self.missing.append(f"layer_types (wanted one entry for each of {count} layers)")
            return None
        return [str(entry) for entry in value[:count]]

    def counts(self, count: int, known: t.Sequence[str]) -> dict[str, int]:
        """How many of *count* layers are of each of the *known* types."""
        types = self.layer_types(count)
        if types is None:
            if not any(text.startswith("layer_types") for text in self.missing):
                self.missing.append("layer_types")
            return dict.fromkeys(known, 0)
        strange = sorted(set(types) - set(known))
        if strange:
            self.missing.append(f"layer_types (found {', '.join(strange)}, known here: {', '.join(known)})")
        return {kind: types.count(kind) for kind in known}


Kept = tuple[list[Attention], list[State]]


def _full(config: _Config, layers: int, *, explicit: bool = False) -> Attention:
    heads, kv_heads = config.positive("num_attention_heads"), config.positive("num_key_value_heads")
    dim = config.positive("head_dim") if explicit else config.head_dim()
    return Attention(FULL, layers, heads, kv_heads, dim, dim)


def _windowed(entry: Attention, layers: int, window: int) -> Attention:
    return dataclasses.replace(entry, kind=SLIDING, layers=layers, window=window)


def _latent(config: _Config, layers: int) -> Attention:
    width = config.positive("kv_lora_rank") + config.positive("qk_rope_head_dim")
    return Attention(LATENT, layers, config.positive("num_attention_heads"), 1, width, 0)


def llama(config: _Config) -> Kept:
    """Llama and all that keep keys and values as it does; Mistral's window holds for every layer."""
    layers = config.positive("num_hidden_layers")
    entry = _full(config, layers)
    window = config.get("sliding_window")
    if config.get("layer_types") is not None:
        return _typed(config, entry, layers), []
    if window is None or config.get("model_type") not in ("mistral", "mixtral"):
        return [entry], []
    return [_windowed(entry, layers, config.positive("sliding_window"))], []


def qwen(config: _Config) -> Kept:
    """Qwen2 and Qwen3: windows only where ``use_sliding_window`` is true, from layer ``max_window_layers`` on."""
    layers = config.positive("num_hidden_layers")
    entry = _full(config, layers, explicit=str(config.get("model_type")).startswith("qwen3"))
    if config.get("use_sliding_window") is not True:
        return [entry], []
    if config.get("layer_types") is not None:
        return _typed(config, entry, layers), []
    first = min(config.number("max_window_layers"), layers)
    window = config.positive("sliding_window")
    return [dataclasses.replace(entry, layers=first), _windowed(entry, layers - first, window)], []


def _typed(config: _Config, entry: Attention, layers: int) -> list[Attention]:
    """Full and sliding layers as ``layer_types`` has them."""
    counts = config.counts(layers, ("full_attention", "sliding_attention"))
    found = [dataclasses.replace(entry, layers=counts["full_attention"])]
    if counts["sliding_attention"]:
        found.append(_windowed(entry, counts["sliding_attention"], config.positive("sliding_window")))
    return found


def full(config: _Config) -> Kept:
    """Every layer keeps everything, and config.json names the size of a head."""
    return [_full(config, config.positive("num_hidden_layers"), explicit=True)], []


def typed(config: _Config) -> Kept:
    """Full and sliding layers by ``layer_types`` (gpt-oss, Gemma 3)."""
    layers = config.positive("num_hidden_layers")
    return _typed(config, _full(config, layers, explicit=True), layers), []


def gemma4(config: _Config) -> Kept:
    """Gemma 4: full layers have heads of their own size and number."""
    layers = config.positive("num_hidden_layers")
    if config.number("num_kv_shared_layers", default=0):
        config.missing.append("an adapter for num_kv_shared_layers above 0")
    near = _full(config, layers, explicit=True)
    counts = config.counts(layers, ("full_attention", "sliding_attention"))
    dim, heads = config.positive("global_head_dim"), config.positive("num_global_key_value_heads")
    far = dataclasses.replace(near, layers=counts["full_attention"], kv_heads=heads, key_dim=dim, value_dim=dim)
    return [far, _windowed(near, counts["sliding_attention"], config.positive("sliding_window"))], []


def step(config: _Config) -> Kept:
    """Step-3.5: sliding layers have more query heads than full ones (``attention_other_setting``)."""
    layers = config.positive("num_hidden_layers")
    groups, dim = config.positive("num_attention_groups"), config.positive("head_dim")
    counts = config.counts(layers, ("full_attention", "sliding_attention"))
    other = config.get("attention_other_setting")
    if not isinstance(other, t.Mapping):
        config.missing.append("attention_other_setting")
        other = {"num_attention_heads": 1}
    inner = _Config({"num_attention_groups": groups, "head_dim": dim, **other})
    heads = config.positive("num_attention_heads")
    near = Attention(
        SLIDING,
        counts["sliding_attention"],
        inner.positive("num_attention_heads"),
        inner.positive("num_attention_groups"),
        inner.positive("head_dim"),
        inner.positive("head_dim"),
        config.positive("sliding_window"),
    )
    config.missing += [f"attention_other_setting.{name}" for name in inner.missing]
    return [Attention(FULL, counts["full_attention"], heads, groups, dim, dim), near], []


def deepseek(config: _Config) -> Kept:
    """Multi-head latent attention in every layer (DeepSeek V2 and V3, Kimi K2, GLM-4.7-Flash)."""
    return [_latent(config, config.positive("num_hidden_layers"))], []


def _groups(config: _Config) -> tuple[int, int]:
    """Linear and full layers where the last layer of every group is a full one."""
    layers, size = config.positive("num_hidden_layers"), config.positive("layer_group_size")
    if layers % size:
        config.missing.append(f"a layer order (num_hidden_layers {layers} is no multiple of layer_group_size {size})")
    return layers - layers // size, layers // size


def ling3(config: _Config) -> Kept:
    """Ling 3: Kimi Delta Attention, and multi-head latent attention in the last layer of every group."""
    linear, latent = _groups(config)
    heads, dim = config.positive("num_attention_heads"), config.positive("head_dim")
    kernel = config.positive("short_conv_kernel_size")
    # Queries, keys and values have a short convolution each.
    state = State("kda", linear, heads, heads, dim * dim, 3 * heads * dim * (kernel - 1))
    return [_latent(config, latent)], [state]


def ling25(config: _Config) -> Kept:
    """Ling and Ring 2.5: lightning attention, and multi-head latent attention in the last layer of every group."""
    linear, latent = _groups(config)
    heads, dim = config.positive("num_attention_heads"), config.positive("head_dim")
    return [_latent(config, latent)], [State("lightning", linear, heads, heads, dim * dim, 0)]


def kimi_linear(config: _Config) -> Kept:
    """Kimi Linear: the layers of both kinds are listed in ``linear_attn_config``."""
    given = config.get("linear_attn_config")
    if not isinstance(given, t.Mapping):
        config.missing.append("linear_attn_config")
        return [], []
    inner = _Config(given)
    latent, linear = given.get("full_attn_layers"), given.get("kda_layers")
    if not isinstance(latent, (list, tuple)) or not isinstance(linear, (list, tuple)):
        config.missing.append("linear_attn_config.full_attn_layers and kda_layers")
        return [], []
    heads, dim = inner.positive("num_heads"), inner.positive("head_dim")
    kernel = inner.positive("short_conv_kernel_size")
    config.missing += [f"linear_attn_config.{name}" for name in inner.missing]
    state = State("kda", len(linear), heads, heads, dim * dim, 3 * heads * dim * (kernel - 1))
    return [_latent(config, len(latent))], [state]


def qwen_next(config: _Config) -> Kept:
    """Qwen3-Next and Qwen3.5: gated delta layers, and full attention in every ``full_attention_interval``-th."""
    layers = config.positive("num_hidden_layers")
    if config.get("layer_types") is not None:
        counts = config.counts(layers, ("full_attention", "linear_attention"))
        complete, linear = counts["full_attention"], counts["linear_attention"]
    else:
        complete = layers // config.positive("full_attention_interval")
        linear = layers - complete
    keys, key_dim = config.positive("linear_num_key_heads"), config.positive("linear_key_head_dim")
    values, value_dim = config.positive("linear_num_value_heads"), config.positive("linear_value_head_dim")
    kernel = config.positive("linear_conv_kernel_dim")
    channels = 2 * keys * key_dim + values * value_dim
    matrix_bytes = _state_bytes(config, "mamba_ssm_dtype")
    state = State("gated_delta", linear, values, keys, key_dim * value_dim, channels * (kernel - 1), matrix_bytes)
    return [_full(config, complete, explicit=True)], [state]


def nemotron_h(config: _Config) -> Kept:
    """Nemotron-H and Nemotron 3: Mamba 2 (M), attention (*), experts (E) and dense layers (-) by a pattern."""
    layers = config.positive("num_hidden_layers")
    pattern = config.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or len(pattern) != layers or set(pattern) - set("M*E-"):
        config.missing.append(f"hybrid_override_pattern (wanted one of M, *, E, - for each of {layers} layers)")
        pattern = ""
    heads, dim = config.positive("mamba_num_heads"), config.positive("mamba_head_dim")
    size, groups, kernel = (
        config.positive("ssm_state_size"),
        config.positive("n_groups"),
        config.positive("conv_kernel"),
    )
    channels = heads * dim + 2 * groups * size
    matrix_bytes = _state_bytes(config, "mamba_ssm_cache_dtype")
    state = State("mamba2", pattern.count("M"), heads, groups, dim * size, channels * (kernel - 1), matrix_bytes)
    return [_full(config, pattern.count("*"), explicit=True)], [state]


def _state_bytes(config: _Config, name: str) -> int:
    found = config.get(name)
    if found is not None and str(found) not in FLOAT_BYTES:
        config.missing.append(f"{name} (found {found!r}, known here: {', '.join(FLOAT_BYTES)})")
    return FLOAT_BYTES.get(str(found), 4)


class _Family(t.NamedTuple):
    """An adapter, and whether SGLang keeps only the window of sliding layers (``is_hybrid_swa_model``)."""

    read: t.Callable[[_Config], Kept]
    windows_in_sglang: bool = False


_LLAMA, _QWEN, _FULL, _MLA = _Family(llama), _Family(qwen), _Family(full), _Family(deepseek)
_NEXT, _STEP, _GEMMA4 = _Family(qwen_next), _Family(step, True), _Family(gemma4, True)

# By the first of the architectures that config.json names.
FAMILIES: dict[str, _Family] = {
    "BailingMoeForCausalLM": _LLAMA,
    "BailingMoeV2ForCausalLM": _LLAMA,
    "BailingMoeV2_5ForCausalLM": _Family(ling25),
    "BailingMoeV3ForCausalLM": _Family(ling3),
    "DeepseekV2ForCausalLM": _MLA,
    "DeepseekV3ForCausalLM": _MLA,
    "Gemma3ForCausalLM": _Family(typed),
    "Gemma3ForConditionalGeneration": _Family(typed),
    "Gemma4ForCausalLM": _GEMMA4,
    "Gemma4ForConditionalGeneration": _GEMMA4,
    "Glm4MoeForCausalLM": _FULL,
    "Glm4MoeLiteForCausalLM": _MLA,
    "GptOssForCausalLM": _Family(typed, True),
    "KimiK25ForConditionalGeneration": _MLA,
    "KimiLinearForCausalLM": _Family(kimi_linear),
    "LlamaForCausalLM": _LLAMA,
    "MiniMaxM2ForCausalLM": _FULL,
    "MistralForCausalLM": _LLAMA,
    "MixtralForCausalLM": _LLAMA,
    "NemotronHForCausalLM": _Family(nemotron_h),
    "Qwen2ForCausalLM": _QWEN,
    "Qwen2MoeForCausalLM": _QWEN,
    "Qwen3ForCausalLM": _QWEN,
    "Qwen3MoeForCausalLM": _QWEN,
    "Qwen3NextForCausalLM": _NEXT,
    "Qwen3VLForConditionalGeneration": _QWEN,
    "Qwen3VLMoeForConditionalGeneration": _QWEN,
    "Qwen3_5ForConditionalGeneration": _NEXT,
    "Qwen3_5MoeForConditionalGeneration": _NEXT,
    "Step3p5ForCausalLM": _STEP,
    "Step3p7ForConditionalGeneration": _STEP,
}


def read(config: t.Any, companion: t.Any = None) -> Shape:
    """The shape of the model that *config* (parsed config.json) describes.

    *companion* is ModelOpt's ``hf_quant_config.json`` where the checkpoint has one. Raises ShapeError naming the
    architecture when no adapter knows it, and every field that is missing or unusable.
    """
    if not isinstance(config, t.Mapping):
        raise ShapeError(f"config.json: found {type(config).__name__}, wanted a mapping")
    reader = _Config(config)
    named = reader.outer.get("architectures") or reader.text.get("architectures")
    architecture = str(named[0]) if isinstance(named, (list, tuple)) and named else ""
    if not architecture:
        raise ShapeError("config.json: found no architectures, wanted the name of one; the memory cannot be calculated")
    family = FAMILIES.get(architecture)
    if family is None:
        raise ShapeError(
            f"architecture: found {architecture}, wanted one of {', '.join(FAMILIES)}; which of its layers keep what "
            "is not known here, so its memory cannot be calculated"
        )
    attention, state = family.read(reader)
    experts = reader.number("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", default=0)
    # Mixtral, gpt-oss and MiniMax have no other inner size than that of an expert.
    own_size = reader.get("moe_intermediate_size") is not None
    expert_size = reader.positive("moe_intermediate_size", "intermediate_size") if experts else 0
    dense = not experts or (own_size and reader.number("first_k_dense_replace", default=0) > 0)
    method, block, kept = _quantisation(config, reader, companion)
    shape = Shape(
        architecture=architecture,
        family=family.read.__name__,
        layers=reader.positive("num_hidden_layers"),
        hidden=reader.positive("hidden_size"),
        vocabulary=reader.positive("vocab_size"),
        context=reader.positive("max_position_embeddings"),
        dtype=_dtype(reader),
        attention=tuple(entry for entry in attention if entry.layers),
        state=tuple(entry for entry in state if entry.layers),
        experts=experts,
        expert_size=expert_size,
        dense_size=reader.positive("intermediate_size") if dense else 0,
        tied=reader.get("tie_word_embeddings") is True,
        vision=isinstance(config.get("vision_config"), t.Mapping),
        extra_layers=reader.number("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", default=0),
        quantisation=method,
        block=block,
        kv_quantisation=kept,
        windows_in_sglang=family.windows_in_sglang,
    )
    if reader.missing:
        missing = ", ".join(dict.fromkeys(reader.missing))
        raise ShapeError(f"config.json of a {architecture}: missing {missing}; the memory cannot be calculated without")
    return shape


def _dtype(reader: _Config) -> str | None:
    found = reader.get("dtype")
    found = reader.get("torch_dtype") if found is None else found
    if found is None:
        return None
    if str(found) not in FLOAT_BYTES:
        reader.missing.append(f"dtype (found {found!r}, known here: {', '.join(FLOAT_BYTES)})")
    return str(found)


def _quantisation(
    config: t.Mapping[str, t.Any], reader: _Config, companion: t.Any
) -> tuple[str | None, int | None, str | None]:
    """Method, block width and KV cache of ``quantization_config``, else of ModelOpt's own file."""
    given = config.get("quantization_config")
    if given is None:
        given = reader.text.get("quantization_config")
    if given is None and isinstance(companion, t.Mapping):
        given = companion.get("quantization")
    if not isinstance(given, t.Mapping):
        return None, None, None
    method = str(given.get("quant_method") or given.get("quant_algo") or "unnamed")
    width = given.get("weight_block_size")
    block = width[0] if isinstance(width, (list, tuple)) and width and isinstance(width[0], int) else None
    scheme = given.get("kv_cache_quant_algo") or given.get("kv_cache_scheme")
    if isinstance(scheme, t.Mapping):
        scheme = "fp8" if (scheme.get("num_bits"), scheme.get("type")) == (8, "float") else str(dict(scheme))
    return method, block, str(scheme).lower() if scheme else None


def weights_of(index: t.Any, files: t.Iterable[tuple[str, int | None]] = ()) -> int | None:
    """Bytes of the weights: what the safetensors *index* says, else the sum of the safetensors *files*.

    None where neither tells: a repository of GGUF files holds several quantisations, of which one is used, and
    not every source tells sizes.
    """
    metadata = index.get("metadata") if isinstance(index, t.Mapping) else None
    total = metadata.get("total_size") if isinstance(metadata, t.Mapping) else None
    if isinstance(total, (int, float)) and not isinstance(total, bool) and total > 0:
        return int(total)
    # Copies in other formats lie in directories of their own.
    sizes = [size for path, size in files if path.endswith(".safetensors") and "/" not in path]
    known = [size for size in sizes if size is not None]
    return sum(known) or None if len(known) == len(sizes) else None

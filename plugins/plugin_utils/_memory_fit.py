# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Whether a model fits: weights, KV cache and states of one rank against the memory of one node. Pure arithmetic.

All sizes are bytes of one rank (one node) unless the name says otherwise; lengths are tokens. Where a figure comes from
stands beside it. What an engine does by itself is followed, not what would be sensible: see :class:`Plan`.
"""

from __future__ import annotations

import dataclasses
import fractions
import math
import shlex
import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils._model_shape import LATENT, SLIDING, Shape

GIB = 1024**3
GB = 1000**3

# More than 0.85 of a Spark's memory in use froze it (reference: hardware, section 12.1), so 15 % stay free.
RESERVE_SHARE = 0.15
# Graphs, activations and what the runtime takes: 3 to 5 GiB (reference: serving, section 2.3); the larger is kept.
RUNTIME_BYTES = 5 * GIB
# What the system itself uses: of 121.69 GiB the cookbook's engine found 112.23 (reference: serving, section 1.3).
SYSTEM_SHARE = 0.0778

# Bytes of one number in the KV cache. What is not in it is unknown, not two bytes (spark-arena/sparkrun#248).
KV_BYTES: dict[str, fractions.Fraction] = {
    **dict.fromkeys(("bfloat16", "bf16", "float16", "fp16", "half", "f16"), fractions.Fraction(2)),
    **dict.fromkeys(("float32", "fp32", "f32"), fractions.Fraction(4)),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2"), fractions.Fraction(1)),
    # llama.cpp: blocks of 32 numbers and a scale of two bytes
    "q8_0": fractions.Fraction(34, 32),
    "q4_0": fractions.Fraction(18, 32),
}
AUTO = ("auto", "", None)

Arguments = t.Union[t.Mapping[str, t.Any], t.Sequence[str], str, None]


class FitError(ValueError):
    """A question that has no answer; the text says what was found and what is wanted."""


# -- what a person may write ------------------------------------------------------------------------------------------


def utilisation(name: str, value: t.Any, *, gigabytes: t.Any = None, total_bytes: int | None = None) -> float | None:
    """A share of memory as a fraction; None when nothing is set.

    *value* is the fraction itself, 0 < x <= 1, as number or text. *gigabytes* (GB, 10^9 bytes) says the same with a
    unit of its own and needs *total_bytes*. A number of another unit is refused: 112 GB read as 112 made 13,552 GB
    of memory (spark-arena/sparkrun#136).
    """
    if gigabytes not in (None, ""):
        if value not in (None, ""):
            raise FitError(f"{name}: found {value} and {gigabytes} GB, wanted one of the two")
        amount = number(f"{name} in GB", gigabytes)
        if not total_bytes:
            raise FitError(f"{name}: found {gigabytes} GB, wanted the memory of the node too, to make a fraction of it")
        if not 0 < amount * GB <= total_bytes:
            raise FitError(f"{name}: found {gigabytes} GB, wanted more than 0 and at most {total_bytes / GB:.1f} GB")
        return amount * GB / total_bytes
    if value in (None, ""):
        return None
    found = number(name, value)
    if 0 < found <= 1:
        return found
    hint = f"; {found / 100:g}?" if 1 < found <= 100 else "; is it in GB?" if found > 100 else ""
    raise FitError(f"{name}: found {value}, wanted a fraction above 0 and at most 1{hint}")


def number(name: str, value: t.Any) -> float:
    """A finite number."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise FitError(f"{name}: found {value!r}, wanted a number")
    return found


def argument(arguments: Arguments, *names: str) -> t.Any:
    """The value of the first flag of *names* in a mapping, a list of words, or a command line; None where absent."""
    if isinstance(arguments, t.Mapping):
        given = (arguments.get(name) for name in names)  # false leaves a flag out, as nothing does
        return next(
            (value for value in given if value is not None and value is not False and value not in ("", [])), None
        )
    if isinstance(arguments, str):
        try:
            arguments = shlex.split(arguments)
        except ValueError as error:
            raise FitError(f"arguments: found {arguments!r}, which is no command line: {error}") from error
    words = [str(word) for word in arguments or ()]
    for number, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag.lstrip("-") in names and flag.startswith("-"):
            after = words[number + 1] if number + 1 < len(words) else ""
            return value if equals else after if after and not after.startswith("--") else True
    return None


def whole(name: str, value: t.Any) -> int | None:
    """A whole number of 1 or more; None when nothing is set."""
    if value is None:
        return None
    found = number(name, value)
    if found < 1 or found != int(found):
        raise FitError(f"{name}: found {value}, wanted a whole number of 1 or more")
    return int(found)


@dataclasses.dataclass(frozen=True)
class KvDtype:
    """What one number of the KV cache takes, and who says so."""

    name: str
    size: fractions.Fraction
    why: str


KV_FLAGS = ("kv-cache-dtype", "cache-type-k")


def kv_dtype(shape: Shape, engine: str, arguments: Arguments = None, setting: t.Any = None) -> KvDtype:
    """The dtype of the KV cache that the engine will really use.

    *setting* is a variable that says it, *arguments* are the engine's; two that differ are refused. Without either it
    is the engine's default: llama.cpp takes f16; SGLang and vLLM take what the checkpoint asks for, else the model's
    dtype (vLLM config/cache.py). A dtype that is not in the table, or not told, is refused.
    """
    given = argument(arguments, *KV_FLAGS)
    other = argument(arguments, "cache-type-v")
    if other is not None and other != (given or "f16"):
        raise FitError(f"KV cache: found {given or 'f16'} for keys and {other} for values, wanted one dtype for both")
    if setting not in AUTO and given not in AUTO and _kv_bytes(setting) != _kv_bytes(given):
        raise FitError(
            f"KV cache dtype: found {setting} in the setting and {given} in the engine's arguments, wanted one of them"
        )
    for value, why in ((given, "the engine's arguments"), (setting, "the setting")):
        if value not in AUTO:
            return KvDtype(str(value), _kv_bytes(value), why)
    if engine == "llama_cpp":
        return KvDtype("f16", _kv_bytes("f16"), "the default of llama.cpp")
    if shape.kv_quantisation:
        return KvDtype(shape.kv_quantisation, _kv_bytes(shape.kv_quantisation), "the checkpoint's quantisation")
    dtype = argument(arguments, "dtype")
    if dtype not in AUTO:
        return KvDtype(str(dtype), _kv_bytes(dtype), "dtype in the engine's arguments")
    if shape.dtype is None:
        raise FitError(
            "KV cache dtype: found none (auto, and config.json names no dtype), wanted dtype or kv-cache-dtype in the "
            "engine's arguments"
        )
    return KvDtype(shape.dtype, _kv_bytes(shape.dtype), "the model's dtype")


def _kv_bytes(name: t.Any) -> fractions.Fraction:
    found = KV_BYTES.get(str(name).lower())
    if found is None:
        raise FitError(f"KV cache dtype: found {name}, whose size is unknown, wanted one of {', '.join(KV_BYTES)}")
    return found


# -- what can be divided ----------------------------------------------------------------------------------------------


def rank_problems(
    shape: Shape, ranks: int, hosts: int | None = None, *, expert_parallel: bool = False, by_layers: bool = False
) -> list[str]:
    """Why *ranks* ranks on *hosts* nodes cannot share this model, one sentence each.

    Tensor-parallel ranks share every layer and must divide it; *by_layers* they share the layers.
    """
    found = []
    if hosts is not None and ranks != hosts:
        found.append(
            f"ranks: found {ranks} ranks, {hosts} host{'s' if hosts != 1 else ''}, wanted as many ranks as hosts: a "
            "Spark has one GPU"
        )
    cut = [] if by_layers else uneven(shape, ranks, expert_parallel)
    if cut:
        able = ", ".join(str(number) for number in rank_choices(shape, expert_parallel=expert_parallel))
        found.append(
            f"tensor parallelism: found {ranks} ranks for {', '.join(cut)}, wanted a number of ranks of {able}"
        )
    return found


def rank_choices(shape: Shape, limit: int = 16, *, expert_parallel: bool = False) -> list[int]:
    """Every number of ranks up to *limit* that divides the model."""
    return [ranks for ranks in range(1, limit + 1) if not uneven(shape, ranks, expert_parallel)]


def uneven(shape: Shape, ranks: int, expert_parallel: bool) -> list[str]:
    """What *ranks* ranks cannot share evenly."""
    found = []
    for entry in shape.attention:
        if entry.query_heads % ranks:
            found.append(f"{entry.query_heads} heads ({entry.kind} layers)")
        # Fewer KV heads than ranks are kept several times; more must be divisible.
        if entry.kind != LATENT and entry.kv_heads % ranks and ranks % entry.kv_heads:
            found.append(f"{entry.kv_heads} KV heads ({entry.kind} layers)")
    for state in shape.state:
        if state.heads % ranks:
            found.append(f"{state.heads} heads ({state.kind} layers)")
        if state.groups % ranks and state.kind == "gated_delta":
            found.append(f"{state.groups} key heads ({state.kind} layers)")
    if shape.block:
        # A rank's slice must be whole blocks: 1280 / 4 = 320 is 2.5 blocks of 128 (vLLM's recipe for Step-3.5-Flash).
        sizes = [("dense", shape.dense_size), ("expert", 0 if expert_parallel else shape.expert_size)]
        for name, size in sizes:
            if size and (size % ranks or size // ranks % shape.block):
                found.append(f"{name} size {size} in blocks of {shape.block}")
    return list(dict.fromkeys(found))


# -- what is kept -----------------------------------------------------------------------------------------------------


def kv_bytes(
    shape: Shape, size: fractions.Fraction, ranks: int = 1, *, window_share: float | None = None
) -> tuple[int, int]:
    """Bytes per token, and bytes that a sequence takes besides however long it is, of one rank of *ranks*.

    *size* is that of one number. Sliding layers keep their window per sequence; with *window_share* the engine keeps
    that share of every token instead (1: it ignores windows). A latent is whole on every rank.
    """
    token, sequence = fractions.Fraction(0), fractions.Fraction(0)
    for entry in shape.attention:
        heads = 1 if entry.kind == LATENT else max(1, -(-entry.kv_heads // ranks))
        each = entry.layers * heads * (entry.key_dim + entry.value_dim) * size
        if entry.kind != SLIDING:
            token += each
        elif window_share is None:
            sequence += each * (entry.window or 0)
        else:
            token += each * fractions.Fraction(str(window_share))
    return math.ceil(token), math.ceil(sequence)


def state_bytes(shape: Shape, ranks: int = 1) -> int:
    """Bytes of the states of one sequence (one slot) on one rank of *ranks*."""
    total = 0
    for entry in shape.state:
        matrix = -(-entry.heads // ranks) * entry.matrix * entry.matrix_bytes
        total += entry.layers * (matrix + -(-entry.convolution // ranks) * entry.convolution_bytes)
    return total


def longest(
    pool: int, token: int, sequence: int = 0, *, sequences: int = 1, page: int = 1, limit: int | None = None
) -> int:
    """The most tokens that *sequences* sequences of one length may each have in *pool* bytes.

    Rounded down to whole pages of *page* tokens, and at most *limit*; 0 when not one page fits.
    """
    room = pool // max(1, sequences) - sequence
    found = room // token if token and room > 0 else 0
    found = found // page * page
    return max(0, found if limit is None else min(found, limit))


# -- a whole deployment -----------------------------------------------------------------------------------------------


# The flag that bounds an engine's memory, and of what it is a share.
FRACTIONS = {
    "sglang": ("mem-fraction-static", "what is available before the load"),
    "vllm": ("gpu-memory-utilization", "MemTotal"),
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that decides whether it fits, for one rank on one node.

    How each engine sizes its pools:

    - sglang: weights, states and KV cache get *fraction* of what was available before the load (psutil, on GB10), that
      is *total* less what the system uses; graphs and activations come out of the rest
      (model_runner_kv_cache_mixin.py).
      States: ``max-mamba-cache-size`` slots, else *state_share* of what the weights leave. Sliding layers:
      ``swa-full-tokens-ratio`` of all tokens, where the architecture is one that it does this for.
    - vllm: everything gets *fraction* of *total*; weights, graphs and activations are taken from it, the rest is pool.
    - llama_cpp: takes what is asked for, for all slots at once; layers are split, not heads.
    """

    shape: Shape
    engine: str
    ranks: int
    total: int
    weights: int  # of the whole model
    kv: KvDtype
    context: int
    slots: int  # sequences at a time
    state_slots: int | None = None  # None: the engine derives it
    state_share: float = 0.0
    window_share: float | None = None
    fraction: float | None = None  # None: as much as the reserve leaves
    pool_bytes: int | None = None  # a pool of fixed size
    pool_tokens: int | None = None
    page: int = 1
    reserve: int = 0
    runtime: int = RUNTIME_BYTES
    head_bytes: int = 0  # the whole output layer's additional bytes, when it is kept in float32
    by_layers: bool = False
    expert_parallel: bool = False

    @property
    def system(self) -> int:
        """What the system uses before the engine starts."""
        return int(self.total * SYSTEM_SHARE)

    @property
    def ceiling(self) -> float:
        """The largest fraction that keeps the reserve, in the engine's own terms; rounded down to 0.001."""
        room = self.total - self.reserve
        if self.engine == "sglang":
            share = (room - self.system - self.runtime) / (self.total - self.system)
        else:
            share = room / self.total
        return max(0.0, math.floor(share * 1000 + 1e-6) / 1000)


def evaluate(plan: Plan) -> dict[str, t.Any]:
    """The budget of one node, and whether one sequence of ``context`` tokens fits in it with the slots asked for.

    ``shortfall_bytes`` is what is missing in the pools; ``over_reserve_bytes`` is what the engine would take out of the
    reserve. It fits when both are 0.
    """
    shape, ranks = plan.shape, plan.ranks
    kept, split = (_slice(shape, ranks), 1) if plan.by_layers else (shape, ranks)
    token, sequence = kv_bytes(kept, plan.kv.size, split, window_share=plan.window_share)
    state = state_bytes(kept, split)
    weights = -(-(plan.weights + plan.head_bytes) // ranks)
    fraction = plan.ceiling if plan.fraction is None else plan.fraction
    managed = plan.engine in FRACTIONS and plan.pool_bytes is None
    if plan.engine == "sglang":
        engine_total = int((plan.total - plan.system) * fraction)
        taken = engine_total + plan.runtime + plan.system
        rest = engine_total - weights
    else:
        engine_total = int(plan.total * fraction) if managed else plan.total - plan.reserve
        taken = engine_total
        rest = engine_total - weights - plan.runtime
    state_slots = plan.state_slots
    if not state:
        state_slots = 0
    elif state_slots is None:
        state_slots = int(max(0, rest) * plan.state_share / (1 + plan.state_share)) // state
        state_slots = max(state_slots, plan.slots)
    pool = rest - state_slots * state
    # At least one request of full length (eugr/spark-vllm-docker#396); llama.cpp takes the memory of all at the start.
    sequences = plan.slots if plan.engine == "llama_cpp" else 1
    needed = sequences * (plan.context * token + sequence)
    size = plan.pool_bytes
    if plan.pool_tokens is not None:
        size = plan.pool_tokens * token + plan.slots * sequence
    shortfall = max(0, needed - (pool if size is None else min(pool, size)))
    if size is not None:
        if not managed:  # the engine takes all of it, or ends
            shortfall = max(shortfall, size - pool)
        pool = min(pool, size)
    over = max(0, taken - (plan.total - plan.reserve)) if managed else 0
    limit = shape.context
    return {
        "total_bytes": plan.total,
        "reserve_bytes": plan.reserve,
        "runtime_bytes": plan.runtime,
        "weights_bytes": weights,
        "kv_bytes_per_token": token,
        "kv_bytes_per_sequence": sequence,
        "state_bytes_per_slot": state,
        "state_slots": state_slots,
        "state_bytes": state_slots * state,
        "pool_bytes": max(0, pool),
        "needed_bytes": needed,
        "fraction": fraction if managed else None,
        "ceiling": plan.ceiling,
        "shortfall_bytes": shortfall,
        "over_reserve_bytes": over,
        "longest_context": longest(pool, token, sequence, sequences=sequences, page=plan.page, limit=limit),
        "longest_context_all_slots": longest(pool, token, sequence, sequences=plan.slots, page=plan.page, limit=limit),
        "fits": shortfall == 0 and over == 0 and plan.context <= limit,
    }


def _slice(shape: Shape, ranks: int) -> Shape:
    """The layers of one rank when *ranks* ranks share the layers of each kind evenly; the fullest one."""
    return dataclasses.replace(
        shape,
        attention=tuple(dataclasses.replace(entry, layers=-(-entry.layers // ranks)) for entry in shape.attention),
        state=tuple(dataclasses.replace(entry, layers=-(-entry.layers // ranks)) for entry in shape.state),
    )


def gib(size: float) -> str:
    """A size for people."""
    return f"{size / GIB:.2f} GiB"

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""From a recipe, a model and the nodes to the answer whether it fits. Pure functions."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils import _engines, _model_shape
from ansible_collections.tandem.spark.plugins.plugin_utils._memory_choices import alternatives
from ansible_collections.tandem.spark.plugins.plugin_utils._memory_fit import (
    FRACTIONS,
    RESERVE_SHARE,
    RUNTIME_BYTES,
    Arguments,
    FitError,
    Plan,
    argument,
    evaluate,
    gib,
    kv_bytes,
    kv_dtype,
    number,
    rank_problems,
    state_bytes,
    utilisation,
    whole,
)
from ansible_collections.tandem.spark.plugins.plugin_utils._model_shape import Shape

_CONTEXT = {
    "sglang": ("context-length",),
    "vllm": ("max-model-len",),
    "llama_cpp": ("ctx-size",),
}
_SLOTS = {"sglang": ("max-running-requests",), "vllm": ("max-num-seqs",), "llama_cpp": ("parallel",)}
# SGLang's own defaults (server_args.py, 0.5.23).
MAMBA_SHARE, WINDOW_SHARE = 0.9, 0.8
# Ways to share a model that put other sizes on a node than those calculated here.
_NOT_CALCULATED = (
    ("pp-size", "pipeline-parallel-size"),
    ("dp-size", "data-parallel-size"),
    ("attn-dp-size",),
    ("decode-context-parallel-size",),
)


def plan(
    shape: Shape,
    recipe: t.Mapping[str, t.Any],
    *,
    weights: int,
    total: int,
    hosts: int | None = None,
) -> tuple[Plan, list[str]]:
    """The plan of *recipe* for a model of *weights* bytes on nodes of *total* bytes, and what was assumed.

    Raises FitError when the engine is not known here, when a value cannot be used, or when the ranks cannot share it.
    """
    engine, memory = recipe["engine"]["name"], recipe.get("memory") or {}
    arguments: Arguments = recipe["engine"].get("arguments") or {}
    if engine not in _CONTEXT:
        raise FitError(f"engine: found {engine}, wanted one whose memory is known here: {', '.join(_CONTEXT)}")
    for flags in _NOT_CALCULATED:
        if (whole(flags[0], argument(arguments, *flags)) or 1) > 1:
            raise FitError(f"{flags[0]}: found {argument(arguments, *flags)}, wanted 1: this is not calculated here")
    ranks = recipe["tensor_parallel"]
    by_layers = _engines.by_layers(recipe)
    expert_parallel = (whole("ep-size", argument(arguments, "ep-size", "expert-parallel-size")) or 1) > 1
    expert_parallel = expert_parallel or argument(arguments, "enable-expert-parallel") is True
    problems = rank_problems(shape, ranks, hosts, expert_parallel=expert_parallel, by_layers=by_layers)
    if problems:
        raise FitError("; ".join(problems))
    assumed: list[str] = []
    slots = whole(_SLOTS[engine][0], argument(arguments, *_SLOTS[engine]))
    if slots is None:
        assumed.append(f"{_SLOTS[engine][0]} is not set: judged for one sequence at a time")
    slots = slots or 1
    context = whole(_CONTEXT[engine][0], argument(arguments, *_CONTEXT[engine]))
    if context is None:
        context = shape.context * (slots if engine == "llama_cpp" else 1)
        assumed.append(f"{_CONTEXT[engine][0]} is not set: the model's own {shape.context} tokens")
    if engine == "llama_cpp":
        context //= slots  # its context is that of all slots together
    if shape.context < context:
        raise FitError(
            f"{_CONTEXT[engine][0]}: found {context} tokens, wanted at most {shape.context}, the model's limit"
        )
    fraction = None
    flag = FRACTIONS.get(engine)
    if flag:
        fraction = utilisation(flag[0], argument(arguments, flag[0]))
        if fraction is None:
            assumed.append(f"{flag[0]} is not set: judged with as much as the reserve leaves; the engine may take more")
    if engine == "vllm":
        # torch's total_memory on a Spark (reference: hardware, section 0, fact 3)
        assumed.append("vLLM takes its share of what CUDA reports, 119.63 of 121.69 GiB on a Spark: up to 1.7 % less")
    reserve, runtime = memory.get("reserve_bytes"), memory.get("runtime_bytes")
    for name, value in (("reserve_bytes", reserve), ("runtime_bytes", runtime)):
        if value is not None and not 0 <= value < total:
            raise FitError(f"memory.{name}: found {value}, wanted 0 or more and less than the {total} bytes of a node")
    fp32_head = engine == "sglang" and argument(arguments, "enable-fp32-lm-head") is True
    state_slots, state_share = None, 0.0
    if engine == "sglang":
        state_slots = whole("max-mamba-cache-size", argument(arguments, "max-mamba-cache-size"))
        if state_slots is None and argument(arguments, "disable-radix-cache") is True:
            state_slots = slots
        share = argument(arguments, "mamba-full-memory-ratio")
        state_share = MAMBA_SHARE if share is None else number("mamba-full-memory-ratio", share)
    elif shape.state:
        state_slots = slots
    pool_bytes = argument(arguments, "kv-cache-memory-bytes", "kv-cache-memory") if engine == "vllm" else None
    pool_tokens = argument(arguments, "max-total-tokens") if engine == "sglang" else None
    on_cpu = argument(arguments, "device") == "cpu"
    return (
        Plan(
            shape=shape,
            engine="sglang_cpu" if on_cpu else engine,
            ranks=ranks,
            total=total,
            weights=weights,
            kv=kv_dtype(shape, engine, arguments, memory.get("kv_dtype")),
            context=context,
            slots=slots,
            state_slots=state_slots,
            state_share=state_share,
            window_share=_window_share(shape, engine, arguments),
            fraction=fraction,
            pool_bytes=whole("kv-cache-memory-bytes", pool_bytes),
            pool_tokens=whole("max-total-tokens", pool_tokens),
            page=whole("page-size", argument(arguments, "page-size", "block-size")) or 1,
            reserve=int(total * RESERVE_SHARE) if reserve is None else reserve,
            runtime=RUNTIME_BYTES if runtime is None else runtime,
            head_bytes=2 * shape.vocabulary * shape.hidden if fp32_head else 0,
            by_layers=by_layers,
            expert_parallel=expert_parallel,
        ),
        assumed + _uncounted(shape, arguments),
    )


def _window_share(shape: Shape, engine: str, arguments: Arguments) -> float | None:
    """What the engine keeps of tokens that have left the window; None when it drops them."""
    ignoring = {
        "sglang": "disable-hybrid-swa-memory",
        "vllm": "disable-hybrid-kv-cache-manager",
        "llama_cpp": "swa-full",
    }
    if argument(arguments, ignoring[engine]) is True:
        return 1.0
    if engine != "sglang":
        return None
    if not shape.windows_in_sglang:
        return 1.0
    share = argument(arguments, "swa-full-tokens-ratio")
    return WINDOW_SHARE if share is None else utilisation("swa-full-tokens-ratio", share)


def _uncounted(shape: Shape, arguments: Arguments) -> list[str]:
    """What takes memory and is not counted here."""
    found = []
    if shape.quantisation is None and argument(arguments, "quantization") is not None:
        found.append("not counted: that the engine quantises the weights itself, which makes them smaller")
    if argument(arguments, "speculative-algorithm", "speculative-config", "speculative_config") is not None:
        found.append("not counted: drafts of speculative decoding and their states")
    if shape.vision:
        found.append("not counted: what images take while they are read")
    return found


def fit(
    model: t.Mapping[str, t.Any],
    recipe: t.Mapping[str, t.Any],
    nodes: t.Mapping[str, int | None],
) -> dict[str, t.Any]:
    """Whether the *recipe* with this *model* fits into the memory of the *nodes*.

    *model*: ``config`` (parsed config.json), ``quantisation`` (hf_quant_config.json, or null), ``weights_bytes`` (null
    when unknown), ``weights_upper_bytes`` where sources disagree, ``source`` (who says so) and ``twins`` (a list of the
    same). *nodes*: MemTotal by name, null where it was not read; then the recipe's minimum_total_bytes counts.

    ``fits`` is true, false, or null when it depends on which of two sizes of the weights is right; ``refusal`` says
    what is short. Raises ShapeError or FitError when something is missing.
    """
    shape = _model_shape.read(model.get("config"), model.get("quantisation"))
    lower, upper, weights_from = _weights(model, recipe)
    total, totals_from = _total(recipe, nodes)
    asked, assumed = plan(shape, recipe, weights=lower, total=total, hosts=len(nodes) or None)
    result = evaluate(asked)
    worst = evaluate(dataclasses.replace(asked, weights=upper)) if upper > lower else result
    fits = result["fits"] if result["fits"] == worst["fits"] else None
    token, sequence = kv_bytes(shape, asked.kv.size)
    _whole_token, ignored = kv_bytes(shape, asked.kv.size, window_share=1.0)
    twins = [
        (str(twin["model"]), _model_shape.read(twin["config"], twin.get("quantisation")), int(twin["weights_bytes"]))
        for twin in model.get("twins") or []
    ]
    careful = dataclasses.replace(asked, weights=upper)
    flag = FRACTIONS.get(asked.engine)
    answer = {
        "recipe": recipe.get("name", ""),
        "engine": recipe["engine"]["name"],
        "model": recipe["model"]["id"],
        "source": model.get("source") or "",
        "shape": shape.as_dict(),
        "nodes": list(nodes),
        "ranks": asked.ranks,
        "split": "layers" if asked.by_layers else "tensor",
        "context": asked.context,
        "slots": asked.slots,
        "kv_dtype": {"name": asked.kv.name, "why": asked.kv.why},
        "model_totals": {
            "weights_bytes": lower,
            "weights_upper_bytes": upper,
            "weights_from": weights_from,
            "kv_bytes_per_token": token,
            "kv_bytes_per_sequence": sequence,
            "state_bytes_per_slot": state_bytes(shape),
        },
        "memory_from": totals_from,
        "per_node": result,
        "per_node_upper": worst if upper > lower else None,
        "limit": {"flag": flag[0], "of": flag[1], "set": asked.fraction is not None} if flag else None,
        "fits": fits,
        "alternatives": [] if fits else alternatives(careful, twins),
        "assumed": assumed,
    }
    return dict(answer, refusal="" if fits else refusal(answer))


def memory_fit(
    model: t.Mapping[str, t.Any],
    recipe: t.Mapping[str, t.Any],
    nodes: t.Mapping[str, int | None],
) -> dict[str, t.Any]:
    """Whether the *recipe* with this *model* fits into the memory of the *nodes*, as :func:`fit` says.

    What cannot be calculated does not fit: ``fits`` is false and ``refusal`` says what is missing.
    """
    try:
        return fit(model, recipe, nodes)
    except ValueError as error:
        return {
            "recipe": recipe.get("name", ""),
            "model": (recipe.get("model") or {}).get("id", ""),
            "source": model.get("source") or "",
            "nodes": list(nodes),
            "fits": False,
            "refusal": str(error),
            "alternatives": [],
        }


def refusal(answer: t.Mapping[str, t.Any]) -> str:
    """One sentence: what is found, what is wanted, per node."""
    worst = answer["per_node_upper"] or answer["per_node"]
    parts = []
    if worst["shortfall_bytes"]:
        needed = worst["weights_bytes"] + worst["state_bytes"] + worst["needed_bytes"]
        parts.append(
            f"{gib(worst['shortfall_bytes'])} short per node: {gib(needed)} are needed for weights, states and a "
            f"context of {answer['context']} tokens, {gib(needed - worst['shortfall_bytes'])} are there"
        )
    if worst["over_reserve_bytes"]:
        flag = (answer["limit"] or {}).get("flag", "the engine")
        parts.append(
            f"{flag} {worst['fraction']:g} takes {gib(worst['over_reserve_bytes'])} of the "
            f"{gib(worst['reserve_bytes'])} that stay free on a node, wanted at most {worst['ceiling']:g}"
        )
    text = "; ".join(parts)
    if answer["fits"] is None:
        totals = answer["model_totals"]
        return (
            f"cannot tell: sources give {gib(totals['weights_bytes'])} to {gib(totals['weights_upper_bytes'])} of "
            f"weights; with the larger one {text}"
        )
    return text


def _weights(model: t.Mapping[str, t.Any], recipe: t.Mapping[str, t.Any]) -> tuple[int, int, str]:
    lower = model.get("weights_bytes")
    if lower:
        said = model.get("weights_source") or model.get("source") or "the model's index"
        return int(lower), int(model.get("weights_upper_bytes") or lower), str(said)
    size = recipe["model"].get("size_bytes")
    if not size:
        raise FitError(f"weights of {recipe['model']['id']}: found no size, wanted the index or model.size_bytes")
    return int(size), int(size), "size_bytes of the recipe"


def _total(recipe: t.Mapping[str, t.Any], nodes: t.Mapping[str, int | None]) -> tuple[int, str]:
    """The smallest MemTotal of the nodes: every rank gets the same share, so the poorest decides."""
    known = {name: total for name, total in nodes.items() if total}
    if known and len(known) == len(nodes):
        name = min(known, key=lambda entry: known[entry])
        return known[name], f"MemTotal of {name}"
    memory = recipe.get("memory") or {}
    key = "minimum_total_bytes" if memory.get("minimum_total_bytes") else "minimum_available_bytes"
    minimum = memory.get(key) or 0
    if not minimum:
        unread = ", ".join(name for name in nodes if name not in known) or "the nodes"
        raise FitError(
            f"memory of {unread}: found no facts and no minimum_total_bytes in the recipe, wanted one of them; run "
            "preflight first, or set plan_memory_bytes"
        )
    return min([minimum, *known.values()]), f"{key} of the recipe, since no facts of the nodes are there"

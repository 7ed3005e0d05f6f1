# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What would fit when a plan does not: the nearest other contexts, slots, caches, weights and numbers of nodes."""

from __future__ import annotations

import dataclasses
import itertools
import math
import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils._memory_fit import (
    FRACTIONS,
    KV_BYTES,
    KvDtype,
    Plan,
    evaluate,
    uneven,
)
from ansible_collections.tandem.spark.plugins.plugin_utils._model_shape import Shape

# Two Sparks, multi-turn corruption and thinking without end (reference: serving, section 0).
FP8_WARNINGS = {"step": " (reported to corrupt long conversations of this model)"}
_STEP = 1024  # contexts are offered in whole multiples of it
NODE_CHOICES = (1, 2, 3, 4)  # what the fabric stage can join (README)


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of the plan: how far it is from what was asked, in words, and the plan after it."""

    kind: str
    distance: float
    text: str
    plan: Plan


def alternatives(
    asked: Plan, twins: t.Iterable[tuple[str, Shape, int]] = (), *, count: int = 3
) -> list[dict[str, t.Any]]:
    """The nearest *count* configurations that fit, the nearest first.

    *twins* are other releases of the same model: name, shape, bytes of the weights. Distance: halving the context or
    the slots counts 1, another share of memory 0.5, an fp8 cache 1.5, a twin 2, doubling the nodes 3. Changes add up.
    """
    singles = _changes(asked, twins)
    found = _fitting([Change("", 0.0, "", asked), *singles])
    if len(found) < count:
        # A change that is enough by itself needs no second one.
        short = [change for change in singles if not evaluate(change.plan)["fits"]]
        pairs = [_joined(first, second) for first, second in itertools.combinations(short, 2)]
        found += _fitting([pair for pair in pairs if pair is not None])
    nearest: dict[str, Change] = {}
    for change in sorted(found, key=lambda entry: (entry.distance, entry.text)):
        nearest.setdefault(change.text, change)
    chosen = list(nearest.values())[:count]
    return [
        {
            "change": change.text,
            "nodes": change.plan.ranks,
            "context": change.plan.context,
            "slots": change.plan.slots,
            "kv_dtype": change.plan.kv.name,
            "longest_context": evaluate(change.plan)["longest_context"],
        }
        for change in chosen
    ]


def _fitting(changes: t.Iterable[Change]) -> list[Change]:
    """Each change as it is where it fits, else with the longest context that fits."""
    found = []
    for change in changes:
        result = evaluate(change.plan)
        if result["fits"]:
            if change.kind:
                found.append(change)
            continue
        room = result["longest_context"] // _STEP * _STEP
        if result["over_reserve_bytes"] or not 0 < room < change.plan.context:
            continue
        shorter = dataclasses.replace(change.plan, context=room)
        if evaluate(shorter)["fits"]:
            text = f"a context of {room} tokens instead of {change.plan.context}"
            distance = change.distance + math.log2(change.plan.context / room)
            found.append(Change("context", distance, " and ".join(filter(None, (change.text, text))), shorter))
    return found


def _cut_of(plan: Plan) -> list[str]:
    """What the ranks of a plan cannot share evenly; by layers everything can."""
    return [] if plan.by_layers else uneven(plan.shape, plan.ranks, plan.expert_parallel)


def _changes(asked: Plan, twins: t.Iterable[tuple[str, Shape, int]]) -> list[Change]:
    """Single changes of the plan, whether they fit or not."""
    found = []
    flag = FRACTIONS.get(asked.engine)
    if flag and asked.fraction is not None and asked.fraction != asked.ceiling and asked.ceiling > 0:
        text = f"{flag[0]} {asked.ceiling:g} instead of {asked.fraction:g}"
        found.append(Change("fraction", 0.5, text, dataclasses.replace(asked, fraction=asked.ceiling)))
    slots = asked.slots
    while slots > 1:
        slots //= 2
        fewer = dataclasses.replace(asked, slots=slots)
        if asked.state_slots is not None:
            fewer = dataclasses.replace(fewer, state_slots=max(slots, asked.state_slots * slots // asked.slots))
        distance = math.log2(asked.slots / slots)
        found.append(Change("slots", distance, f"{slots} slots instead of {asked.slots}", fewer))
    if asked.state_slots is not None and asked.state_slots > asked.slots and asked.engine == "sglang":
        text = f"max-mamba-cache-size {asked.slots} instead of {asked.state_slots}"
        found.append(Change("slots", 0.75, text, dataclasses.replace(asked, state_slots=asked.slots)))
    if asked.kv.size > 1:
        name = "q8_0" if asked.engine == "llama_cpp" else "fp8"
        smaller = KvDtype(name, KV_BYTES[name], "an alternative")
        if smaller.size < asked.kv.size:
            text = f"a KV cache of {name} instead of {asked.kv.name}{FP8_WARNINGS.get(asked.shape.family, '')}"
            found.append(Change("kv", 1.5, text, dataclasses.replace(asked, kv=smaller)))
    for nodes in NODE_CHOICES:
        if nodes <= asked.ranks:
            continue
        distance = 3 * math.log2(nodes / asked.ranks)
        more = dataclasses.replace(asked, ranks=nodes)
        whole_experts = dataclasses.replace(more, expert_parallel=True)
        if not _cut_of(more):
            found.append(Change("nodes", distance, f"{nodes} nodes instead of {asked.ranks}", more))
        elif asked.shape.experts and asked.shape.experts % nodes == 0 and not _cut_of(whole_experts):
            text = f"{nodes} nodes instead of {asked.ranks}, with whole experts on each (expert parallelism)"
            found.append(Change("nodes", distance + 1, text, whole_experts))
    for name, shape, weights in twins:
        smaller_model = dataclasses.replace(asked, shape=shape, weights=weights)
        if weights < asked.weights and not _cut_of(smaller_model):
            found.append(Change("twin", 2.0, f"the weights of {name}", smaller_model))
    return found


# Which fields of a plan a kind of change sets.
_SETS = {
    "fraction": ("fraction",),
    "slots": ("slots", "state_slots"),
    "kv": ("kv",),
    "nodes": ("ranks", "expert_parallel"),
    "twin": ("shape", "weights"),
}


def _joined(first: Change, second: Change) -> Change | None:
    """Both changes together, where they do not speak about the same thing."""
    if first.kind == second.kind:
        return None
    joined = dataclasses.replace(first.plan, **{name: getattr(second.plan, name) for name in _SETS[second.kind]})
    if _cut_of(joined):
        return None
    return Change("pair", first.distance + second.distance, f"{first.text} and {second.text}", joined)

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What all engines share: flags from data, and the network environment of a rank from its node's own links."""

from __future__ import annotations

import re
import typing as t

# Every rank holds an equal share of heads and of FP8 blocks: powers of two divide them, 3 seldom does.
POWERS_OF_TWO = (1, 2, 4, 8)

# Nothing is fetched or reported while an engine runs: weights are on the node's disk.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

# What systemd gives a unit.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

HTTP = {"health": "/health", "models": "/v1/models", "chat": "/v1/chat/completions"}


class ArgumentError(ValueError):
    """Engine arguments that cannot be rendered."""


def flags(arguments: dict[str, t.Any]) -> list[str]:
    """Render ``{flag: value}`` as command-line words, in the order given.

    ``true`` gives the bare flag, ``false``, ``null``, an empty text and an empty list leave it out (an option set to
    nothing is absent, not empty), a list repeats its values behind one flag, anything else is one word.
    """
    words: list[str] = []
    for name, value in arguments.items():
        if value is None or value is False or value in ("", []):
            continue
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*", name):
            raise ArgumentError(
                f"argument {name}: wanted the flag's name without the leading dashes, such as page-size"
            )
        words.append(f"--{name}")
        if value is True:
            continue
        for item in value if isinstance(value, list) else [value]:
            if item is None or isinstance(item, (dict, list, bool)):
                raise ArgumentError(f"argument {name}: found {item!r}, wanted a string or a number")
            words.append(str(item))
    return words


def settings(environment: dict[str, t.Any]) -> dict[str, str]:
    """Variables as text. One set to nothing is absent: an empty one can mean zero (NVIDIA/nccl#1333)."""
    for name, value in environment.items():
        if isinstance(value, (bool, dict, list)):
            raise ArgumentError(f"environment {name}: found {value!r}, wanted a text; put it in quotes")
    return {name: str(value) for name, value in environment.items() if value is not None and value != ""}


def recipe_environment(engine: dict[str, t.Any], node: dict[str, t.Any]) -> dict[str, str]:
    """What the recipe sets for all ranks, then what it sets for the rank of *node*."""
    own = engine["rank_environment"][node["rank"]] if engine["rank_environment"] else {}
    return {**settings(engine["environment"]), **settings(own)}


def problems(
    recipe: dict[str, t.Any],
    *,
    owned: t.Sequence[str],
    backends: t.Sequence[str] = (),
    sizes: t.Sequence[int] = (),
    lock: bool = True,
) -> list[str]:
    """What every adapter asks of a recipe: a lock, flags that can be rendered and are the recipe's, a possible size."""
    engine, who = recipe["engine"], f"recipe {recipe['name']}"
    found = []
    if lock and not engine["lock"]:
        found.append(f"{who}: engine.lock: found none, wanted a lock with the wheels of the engine")
    if engine["backend"] and engine["backend"] not in backends:
        wanted = f"one of {', '.join(backends)}" if backends else "none"
        found.append(f"{who}: engine.backend: found {engine['backend']!r}, wanted {wanted} for {engine['name']}")
    taken = sorted(set(engine["arguments"]) & set(owned))
    if taken:
        found.append(f"{who}: engine.arguments sets {', '.join(taken)}, which follow from the inventory; remove them")
    try:
        for arguments in (engine["arguments"], engine["helper_arguments"]):
            flags(arguments)
        for environment in (engine["environment"], *engine["rank_environment"]):
            settings(environment)
    except ArgumentError as error:
        found.append(f"{who}: engine.{error}")
    return found + size_problems(recipe, sizes)


def size_problems(recipe: dict[str, t.Any], sizes: t.Sequence[int]) -> list[str]:
    """Whether a tensor-parallel group of that size can share the model's heads; unknown heads take a power of two."""
    size, heads, who = recipe["tensor_parallel"], recipe["model"]["attention_heads"], f"recipe {recipe['name']}"
    if not sizes:
        return []
    odd = [count for count in heads if count % size]
    if odd:
        return [
            f"{who}: tensor_parallel: found {size}, which does not divide {odd[0]} attention heads of "
            f"{recipe['model']['id']}; wanted a size that does, such as "
            f"{max(n for n in (1, 2, 4, 8) if not odd[0] % n)}"
        ]
    if not heads and size not in sizes:
        return [
            f"{who}: tensor_parallel: found {size}, wanted {', '.join(map(str, sizes[:-1]))} or {sizes[-1]}: the "
            "attention heads are shared evenly; take another number of nodes, or state model.attention_heads when "
            f"{size} divides them"
        ]
    return []


def network_environment(
    node: dict[str, t.Any], rdma: dict[str, str | None], fabric: t.Mapping[str, t.Any] | None = None
) -> dict[str, str]:
    """Environment that ties every library of a rank to the fabric, from this node's own interfaces.

    *rdma* maps interface to RDMA device (``None``: the node has none); *fabric* is the deployment's, whose
    ``environment`` is what this topology needs. ``NCCL_SOCKET_IFNAME`` takes an exact name only with a leading ``=``
    (NVIDIA/nccl-tests#9); Gloo takes the bare name. ``NCCL_IB_GID_INDEX`` is set only where the inventory asks for it:
    the table moves, and NCCL finds the right entry itself since 2.21 (NVIDIA/nccl#1333).
    """
    if not node["links"]:
        return {}
    meets = node["socket_interface"]
    environment = {
        "GLOO_SOCKET_IFNAME": meets,
        "NCCL_SOCKET_IFNAME": f"={meets}",
        "TP_SOCKET_IFNAME": meets,
        "UCX_NET_DEVICES": meets,
    }
    devices = [device for link in node["links"] if (device := rdma.get(link["interface"]))]
    if devices:
        environment["NCCL_IB_HCA"] = "=" + ",".join(devices)
        environment["NCCL_IB_ADDR_FAMILY"] = "AF_INET"
        environment["NCCL_IB_ROCE_VERSION_NUM"] = "2"
        # Fail closed: without it NCCL goes on over TCP, four times slower, and says nothing (sgl-project/sglang#1427).
        environment["NCCL_NET"] = "IB"
        environment.update((fabric or {}).get("environment") or {})
    return environment

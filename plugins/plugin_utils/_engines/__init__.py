# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this package, and it may change without notice.

"""Engine adapters: one module per engine, each an :class:`Adapter`. How to add one: docs/engines.md."""

from __future__ import annotations

import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils._engines import external, llama_cpp, sglang, vllm
from ansible_collections.tandem.spark.plugins.plugin_utils._engines._interface import Adapter, LogLine

__all__ = ["ADAPTERS", "Adapter", "LogLine", "by_layers", "explain", "problems"]

ADAPTERS: dict[str, Adapter] = {"external": external, "llama_cpp": llama_cpp, "sglang": sglang, "vllm": vllm}


def problems(recipe: dict[str, t.Any]) -> list[str]:
    """Why the engine of *recipe* cannot be launched as the recipe says, one sentence each."""
    adapter = ADAPTERS.get(recipe["engine"]["name"])
    if adapter is None:
        return [
            f"engine: found {recipe['engine']['name']!r} in recipe {recipe['name']}, wanted one that this release can "
            f"launch: {', '.join(sorted(ADAPTERS))}"
        ]
    return adapter.problems(recipe)


def by_layers(recipe: t.Mapping[str, t.Any]) -> bool:
    """Whether the engine splits the model by its layers and speaks TCP, so that any fabric with routes will do.

    All others, and those that nobody knows, let every rank talk to every other one over RDMA.
    """
    adapter = ADAPTERS.get(recipe["engine"]["name"])
    return adapter is not None and adapter.by_layers(recipe)


def explain(engine: str, log: str) -> list[str]:
    """What the known lines in a rank's *log* mean, each once, in the order in which the adapter lists them."""
    adapter = ADAPTERS.get(engine)
    lines = adapter.LOG_LINES if adapter else ()
    return [line.meaning for line in lines if line.trouble and line.pattern.search(log)]

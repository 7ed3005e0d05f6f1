# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""SGLang: ``python -m sglang.launch_server``, one rank per node, tensor parallel over all of them."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils._engines import _common
from ansible_collections.tandem.spark.plugins.plugin_utils._engines._interface import LogLine

OWNED = (
    "model-path",
    "model",
    "served-model-name",
    "tp-size",
    "tensor-parallel-size",
    "nnodes",
    "node-rank",
    "dist-init-addr",
    "nccl-init-addr",
    "host",
    "port",
    "api-key",
    "admin-api-key",
    "config",
)
BACKENDS: tuple[str, ...] = ()
TENSOR_PARALLEL = _common.POWERS_OF_TWO
# The head drains and is gone in 2 s; workers ignore SIGTERM and end 3 to 8 s after it (reference: engines, 6.1).
STOP_S = 10
METRICS = {
    "path": "/metrics",
    "running": "sglang:num_running_reqs",
    "waiting": "sglang:num_queue_reqs",
    "cache_used": "sglang:token_usage",
    "first_token": "sglang:time_to_first_token_seconds",
    "between_tokens": "sglang:inter_token_latency_seconds",
    "prompt_tokens": "sglang:prompt_tokens_total",
    "generated_tokens": "sglang:generation_tokens_total",
}
LOG_LINES = (
    LogLine(re.compile(r"The server is fired up and ready to roll!"), "the head serves", trouble=False),
    LogLine(re.compile(r"KV Cache is allocated\..*#tokens: \d+"), "size of the key-value cache", trouble=False),
    LogLine(
        re.compile(r"DistStoreError: Timed out after \d+ seconds waiting for clients"),
        "Not every rank came to the rendezvous in time: look at the log of the other nodes, and at the fabric stage.",
    ),
    LogLine(
        re.compile(r"number of ranks .*NUMA|SGLANG_CPU_OMP_THREADS_BIND"),
        "On CPU every rank needs its entry in SGLANG_CPU_OMP_THREADS_BIND: set engine.rank_environment in the recipe.",
    ),
    LogLine(
        re.compile(r"Please try to (?:increase|decrease) mem[-_]fraction[-_]static|Not enough memory"),
        "The weights leave no room for the key-value cache: raise mem-fraction-static or lower context-length.",
    ),
    LogLine(
        re.compile(r"is not defined for option '?gpu-name'?|Value 'sm_121a'"),
        "The ptxas in use does not know this GPU: set TRITON_PTXAS_PATH to that of CUDA 13.",
    ),
)


def problems(recipe: dict[str, t.Any]) -> list[str]:
    """What of *recipe* this engine cannot do, one sentence each."""
    return _common.problems(recipe, owned=OWNED, sizes=TENSOR_PARALLEL)


def by_layers(_recipe: t.Mapping[str, t.Any]) -> bool:
    """Its ranks share every layer."""
    return False


def rank(deployment: dict[str, t.Any], node: dict[str, t.Any], rdma: dict[str, str | None]) -> dict[str, t.Any]:
    """What the launcher on *node* needs."""
    engine, model, count = deployment["engine"], deployment["model"], len(deployment["nodes"])
    head = node["rank"] == 0
    arguments: dict[str, t.Any] = {
        "model-path": model["path"],
        "served-model-name": model["served_name"],
        "tp-size": deployment["tensor_parallel"],
        # Workers open a dummy server on the same port that says 200 before the head listens: keep it to themselves.
        "host": deployment["api"]["address"] if head else "127.0.0.1",
        "port": deployment["api"]["port"],
    }
    if count > 1:
        arguments.update({"nnodes": count, "node-rank": node["rank"], "dist-init-addr": deployment["rendezvous"]})
    arguments.update(engine["arguments"])

    environment = dict(_common.OFFLINE)
    if count > 1:
        environment.update(_common.network_environment(node, rdma, deployment["fabric"]))
        # SGLang's message queue advertises an address of its own choice, the Wi-Fi's for instance, unless told
        # (MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks#3).
        environment["SGLANG_HOST_IP"] = node["fabric_ip"]
    environment.update(_common.recipe_environment(engine, node))

    return {
        "argv": [f"{engine['path']}/venv/bin/python", "-m", "sglang.launch_server", *_common.flags(arguments)],
        "environment": environment,
        # --config keeps the key out of the command line; workers serve nobody and get none.
        "key": {"config_flag": "--config", "config_key": "api-key"} if head else None,
        "http": dict(_common.HTTP) if head else None,
    }

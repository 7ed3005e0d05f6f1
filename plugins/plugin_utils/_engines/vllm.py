# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""vLLM: ``vllm serve``, one rank per node, tensor parallel over all of them.

Two ways to join the nodes, ``engine.backend`` of the recipe: ``mp``, vLLM's own multi-node mode, and ``ray``. The
default is ``mp``: it needs no second cluster with some twenty open ports of its own, starts in less time and memory,
and Ray is no requirement of vLLM any more (0.33.0). ``ray`` is for those who have other Ray jobs to place.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils._engines import _common
from ansible_collections.tandem.spark.plugins.plugin_utils._engines._interface import LogLine

OWNED = (
    "model",
    "served-model-name",
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "nnodes",
    "node-rank",
    "master-addr",
    "master-port",
    "headless",
    "distributed-executor-backend",
    "host",
    "port",
    "api-key",
    "config",
)
BACKENDS = ("mp", "ray")
TENSOR_PARALLEL = _common.POWERS_OF_TWO
# A worker waits 5 s, asks its processes, waits 4 s and kills them; a Ray node drains for up to 30 s (engines, 6.1).
STOP_S = 40
METRICS = {
    "path": "/metrics",
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "cache_used": "vllm:kv_cache_usage_perc",
    "first_token": "vllm:time_to_first_token_seconds",
    "between_tokens": "vllm:inter_token_latency_seconds",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generated_tokens": "vllm:generation_tokens_total",
}
LOG_LINES = (
    LogLine(re.compile(r"Application startup complete\."), "the head serves", trouble=False),
    LogLine(re.compile(r"GPU KV cache size: [\d,]+ tokens"), "size of the key-value cache", trouble=False),
    LogLine(
        re.compile(r"DistStoreError: Timed out after \d+ seconds waiting for clients"),
        "Not every rank came to the rendezvous in time: look at the log of the other nodes, and at the fabric stage.",
    ),
    LogLine(
        re.compile(r"World size \(\d+\) is larger than the number of available GPUs"),
        "vLLM was started for one node: the recipe's launch line must come from this collection's vllm adapter.",
    ),
    LogLine(
        re.compile(r"Cannot provide a placement group"),
        "Ray has not one free GPU on each node: look at `ray status`; another Ray job may hold one.",
    ),
    LogLine(
        re.compile(r"does not support ray\."),
        "This build of vLLM cannot be placed by Ray: set engine.backend to mp.",
    ),
    LogLine(
        re.compile(r"No available memory for the cache blocks|larger than the available KV cache memory"),
        "The weights leave no room for the key-value cache: raise gpu-memory-utilization or lower max-model-len.",
    ),
    LogLine(
        re.compile(r"EngineDeadError"),
        "The engine's own process ended, often because another rank did: look at the log of the other nodes first.",
    ),
)
# RuntimeDirectory= of the unit, where the launcher writes "files".
RUN = "/run/tandem"
# Ray's own port on the head; ray start has no other default.
RAY_PORT = 6379
# Waits until every node is in Ray's cluster, then becomes the engine.
RAY_GATE = "/usr/local/libexec/tandem-ray"
# vLLM gives the head's whole environment to the ranks that Ray starts (v1/executor/ray_env_utils.py), over Ray's own
# connections, which have no authentication. What belongs to the head stays there.
STAYS_ON_THE_HEAD = ("VLLM_API_KEY", "VLLM_HOST_IP", "CREDENTIALS_DIRECTORY", "RUNTIME_DIRECTORY")


def problems(recipe: dict[str, t.Any]) -> list[str]:
    """What of *recipe* this engine cannot do, one sentence each."""
    found = _common.problems(recipe, owned=OWNED, backends=BACKENDS, sizes=TENSOR_PARALLEL)
    if recipe["engine"]["helper_arguments"] and _backend(recipe["engine"]) != "ray":
        found.append(
            f"recipe {recipe['name']}: engine.helper_arguments: found some for backend {_backend(recipe['engine'])}, "
            "wanted none: they are the flags of ray start"
        )
    if _backend(recipe["engine"]) == "ray" and recipe["nodes"] == 1:
        found.append(f"recipe {recipe['name']}: engine.backend: found 'ray' for one node, wanted mp: nothing to join")
    return found


def by_layers(_recipe: t.Mapping[str, t.Any]) -> bool:
    """Its ranks share every layer."""
    return False


def _backend(engine: dict[str, t.Any]) -> str:
    return engine["backend"] or BACKENDS[0]


def rank(deployment: dict[str, t.Any], node: dict[str, t.Any], rdma: dict[str, str | None]) -> dict[str, t.Any]:
    """What the launcher on *node* needs."""
    engine, count = deployment["engine"], len(deployment["nodes"])
    own: dict[str, str] = {}
    if count > 1:
        own = {**_common.network_environment(node, rdma, deployment["fabric"]), "VLLM_HOST_IP": node["fabric_ip"]}
    environment = {
        # Kernels are compiled at the first start with tools from the engine's own wheels, such as ninja.
        "PATH": f"{engine['path']}/venv/bin:{_common.PATH}",
        **_common.OFFLINE,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        **own,
    }
    environment.update(_common.recipe_environment(engine, node))
    head = node["rank"] == 0
    found = {
        "argv": _serve(deployment, node),
        "environment": environment,
        # Workers open no API port and get no key.
        "key": {"variable": "VLLM_API_KEY"} if head else None,
        "http": dict(_common.HTTP) if head else None,
    }
    if count > 1 and _backend(engine) == "ray":
        per_node = {*own, *(name for entry in engine["rank_environment"] for name in entry)}
        return _with_ray(deployment, node, found, per_node)
    return found


def _serve(deployment: dict[str, t.Any], node: dict[str, t.Any]) -> list[str]:
    engine, model, api, count = deployment["engine"], deployment["model"], deployment["api"], len(deployment["nodes"])
    head = node["rank"] == 0
    arguments: dict[str, t.Any] = {
        "served-model-name": model["served_name"],
        "tensor-parallel-size": deployment["tensor_parallel"],
        "distributed-executor-backend": _backend(engine) if count > 1 else None,
    }
    if count > 1 and _backend(engine) == "mp":
        address, _colon, port = deployment["rendezvous"].rpartition(":")
        arguments.update({"nnodes": count, "node-rank": node["rank"], "master-addr": address, "master-port": port})
    # Ranks beside the head have no API.
    arguments.update({"host": api["address"], "port": api["port"]} if head else {"headless": True})
    return [
        f"{engine['path']}/venv/bin/vllm",
        "serve",
        model["path"],
        *_common.flags({**arguments, **engine["arguments"]}),
    ]


def _with_ray(
    deployment: dict[str, t.Any], node: dict[str, t.Any], found: dict[str, t.Any], per_node: set[str]
) -> dict[str, t.Any]:
    """Every node starts its part of Ray; vLLM runs on the head only, and Ray starts the ranks."""
    engine, nodes = deployment["engine"], deployment["nodes"]
    cluster = f"{nodes[0]['fabric_ip']}:{RAY_PORT}"
    head = node["rank"] == 0
    arguments: dict[str, t.Any] = {
        **({"head": True, "port": RAY_PORT, "include-dashboard": "false"} if head else {"address": cluster}),
        # Without it Ray takes the address of the route to the Internet, and no rank is ever placed (C46).
        "node-ip-address": node["fabric_ip"],
        "num-gpus": 1,
        "disable-usage-stats": True,
        "block": True,
    }
    ray = [f"{engine['path']}/venv/bin/ray", "start", *_common.flags({**arguments, **engine["helper_arguments"]})]
    environment = {
        # Ray ends processes by the memory it sees used, which on unified memory is the weights.
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ADDRESS": cluster,
        **found["environment"],
    }
    if not head:
        return {**found, "argv": ray, "environment": environment, "wait_for": [cluster], "wait_s": _wait_s(deployment)}
    addresses = ",".join(each["fabric_ip"] for each in nodes)
    gate = [f"{engine['path']}/venv/bin/python", RAY_GATE, cluster, addresses, str(_wait_s(deployment))]
    return {
        **found,
        "argv": [*gate, *found["argv"]],
        "environment": {**environment, "VLLM_CONFIG_ROOT": f"{RUN}/vllm"},
        "beside": [ray],
        "wait_for": [cluster],
        "wait_s": _wait_s(deployment),
        "files": {"vllm/ray_non_carry_over_env_vars.json": sorted({*per_node, *STAYS_ON_THE_HEAD})},
    }


def _wait_s(deployment: dict[str, t.Any]) -> int:
    return int(deployment["serve"]["ready_timeout_s"])

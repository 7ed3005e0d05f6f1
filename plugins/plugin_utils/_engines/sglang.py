# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""SGLang: ``python -m sglang.launch_server``, one rank per node, tensor parallel over all of them."""

from __future__ import annotations

import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils._engines._common import (
    ArgumentError,
    flags,
    network_environment,
    settings,
)

# Flags that follow from the deployment; a recipe that sets one of them would say something else than the inventory.
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


def problems(recipe: dict[str, t.Any]) -> list[str]:
    """What of *recipe* this engine cannot do, one sentence each."""
    found = []
    if not recipe["engine"]["lock"]:
        found.append(f"recipe {recipe['name']}: engine.lock: found none, wanted a lock with the wheels of the engine")
    owned = sorted(set(recipe["engine"]["arguments"]) & set(OWNED))
    if owned:
        found.append(
            f"recipe {recipe['name']}: engine.arguments sets {', '.join(owned)}, which follow from the inventory; "
            "remove them"
        )
    try:
        flags(recipe["engine"]["arguments"])
        for environment in (recipe["engine"]["environment"], *recipe["engine"]["rank_environment"]):
            settings(environment)
    except ArgumentError as error:
        found.append(f"recipe {recipe['name']}: engine.{error}")
    return found


def rank(deployment: dict[str, t.Any], node: dict[str, t.Any], rdma: dict[str, str | None]) -> dict[str, t.Any]:
    """Return ``argv``, ``environment``, ``key`` and ``http`` for the rank of *node*."""
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

    environment: dict[str, str] = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if count > 1:
        environment.update(network_environment(node, rdma, deployment["fabric"]))
        # SGLang's message queue advertises an address of its own choice, the Wi-Fi's for instance, unless told
        # (MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks#3).
        environment["SGLANG_HOST_IP"] = node["fabric_ip"]
    environment.update(settings(engine["environment"]))
    if engine["rank_environment"]:
        environment.update(settings(engine["rank_environment"][node["rank"]]))

    return {
        "argv": [f"{engine['path']}/venv/bin/python", "-m", "sglang.launch_server", *flags(arguments)],
        "environment": environment,
        # --config keeps the key out of the command line; workers serve nobody and get none.
        "key": {"config_flag": "--config", "config_key": "api-key"} if head else None,
        "http": {"health": "/health", "models": "/v1/models", "chat": "/v1/chat/completions"} if head else None,
    }

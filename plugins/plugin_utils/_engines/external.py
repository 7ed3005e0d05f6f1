# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""An engine that this collection does not know: a program with a launch template, the same on every node.

The recipe says in ``engine.launch`` which program with which SHA-256, and the words of its command line for the head
and for a worker. ``{name}`` in a word stands for what the inventory says, see :data:`PLACEHOLDERS`.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils._engines import _common
from ansible_collections.tandem.spark.plugins.plugin_utils._engines._interface import LogLine

OWNED: tuple[str, ...] = ()
BACKENDS: tuple[str, ...] = ()
TENSOR_PARALLEL: tuple[int, ...] = ()
STOP_S = 50
METRICS: dict[str, str] = {"path": "/metrics"}
LOG_LINES: tuple[LogLine, ...] = ()

PLACEHOLDERS = (
    "api_address",
    "api_port",
    "fabric_ip",
    "head_ip",
    "interface",
    "model",
    "nodes",
    "rank",
    "rdma_devices",
    "rendezvous_ip",
    "rendezvous_port",
    "served_name",
    "worker_ips",
)
# Not JSON, which may stand in a word: its braces hold quotes.
PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
# What a template is delivered with and its user has to replace.
LEFT = re.compile(r"<[A-Z][A-Z0-9_ -]*>|\bCHANGE_?ME\b|\bTODO\b|\bFIXME\b")
SHA256 = re.compile(r"[0-9a-f]{64}")
KEYS = ("variable", "file_flag")


def problems(recipe: dict[str, t.Any]) -> list[str]:
    """What of *recipe* cannot be launched, one sentence each."""
    engine, launch, who = recipe["engine"], recipe["engine"]["launch"], f"recipe {recipe['name']}: engine.launch"
    if not launch:
        return [f"{who}: found none, wanted the program, its sha256 and the words of its command line"]
    found = _common.problems(recipe, owned=OWNED, lock=False)
    if engine["arguments"] or engine["helper_arguments"]:
        found.append(f"{who}: found engine.arguments besides, wanted all words in head and worker")
    if not launch["program"].startswith("/") and not left(launch["program"]):
        found.append(f"{who}.program: found {launch['program']!r}, wanted an absolute path on every node")
    if not SHA256.fullmatch(launch["sha256"]) and not left(launch["sha256"]):
        found.append(
            f"{who}.sha256: found {launch['sha256']!r}, wanted the SHA-256 of the program (64 hex digits, as sha256sum "
            "prints it): all nodes must run the same build"
        )
    if not launch["head"]:
        found.append(f"{who}.head: found no words, wanted the command line of rank 0")
    if recipe["nodes"] > 1 and not launch["worker"]:
        found.append(f"{who}.worker: found no words, wanted the command line of the other ranks")
    if bool(launch["key_variable"]) == bool(launch["key_file_flag"]):
        found.append(f"{who}: wanted one of key_variable and key_file_flag: how the API key reaches the engine")
    for place, text in _texts(launch, engine):
        unknown = sorted({name for name in PLACEHOLDER.findall(text) if name not in PLACEHOLDERS})
        if unknown:
            found.append(
                f"{who}.{place}: found {{{unknown[0]}}}, wanted one of {', '.join(PLACEHOLDERS)} between the braces"
            )
        if left(text):
            found.append(f"{who}.{place}: found the placeholder {left(text)!r} left in it, wanted your own value there")
    return found


def left(text: str) -> str:
    """The first thing in *text* that its author meant to be replaced, or nothing."""
    match = LEFT.search(text)
    return match[0] if match else ""


def _texts(launch: dict[str, t.Any], engine: dict[str, t.Any]) -> t.Iterator[tuple[str, str]]:
    """Every text of the template with its place."""
    for place in ("program", "sha256", "health", "models", "chat", "key_variable", "key_file_flag"):
        yield place, launch[place]
    for place in ("head", "worker"):
        yield from ((place, word) for word in launch[place])
    for environment in (engine["environment"], *engine["rank_environment"]):
        yield from ((f"environment {name}", str(value)) for name, value in environment.items())


def by_layers(recipe: t.Mapping[str, t.Any]) -> bool:
    """As the recipe says."""
    return bool(recipe["engine"]["launch"]) and recipe["engine"]["launch"]["split"] == "layers"


def rank(deployment: dict[str, t.Any], node: dict[str, t.Any], rdma: dict[str, str | None]) -> dict[str, t.Any]:
    """What the launcher on *node* needs."""
    engine, launch, count = deployment["engine"], deployment["engine"]["launch"], len(deployment["nodes"])
    head = node["rank"] == 0
    values = _values(deployment, node, rdma)

    def fill(text: str) -> str:
        return PLACEHOLDER.sub(lambda match: values[match[1]], text)

    environment = dict(_common.OFFLINE)
    if count > 1:
        environment.update(_common.network_environment(node, rdma, deployment["fabric"]))
    environment.update({name: fill(text) for name, text in _common.recipe_environment(engine, node).items()})
    key = {"variable": launch["key_variable"]} if launch["key_variable"] else {"file_flag": launch["key_file_flag"]}
    return {
        "argv": [launch["program"], *map(fill, launch["head" if head else "worker"])],
        "environment": environment,
        "key": key if head else None,
        "http": {name: launch[name] for name in ("health", "models", "chat")} if head else None,
    }


def _values(deployment: dict[str, t.Any], node: dict[str, t.Any], rdma: dict[str, str | None]) -> dict[str, str]:
    nodes = deployment["nodes"]
    address, _colon, port = (deployment["rendezvous"] or "").rpartition(":")
    devices = [device for link in node["links"] if (device := rdma.get(link["interface"]))]
    return {
        "api_address": deployment["api"]["address"],
        "api_port": str(deployment["api"]["port"]),
        "fabric_ip": node["fabric_ip"] or "",
        "head_ip": nodes[0]["fabric_ip"] or "",
        "interface": node["socket_interface"] or "",
        "model": deployment["model"]["path"],
        "nodes": str(len(nodes)),
        "rank": str(node["rank"]),
        "rdma_devices": ",".join(devices),
        "rendezvous_ip": address,
        "rendezvous_port": port,
        "served_name": deployment["model"]["served_name"],
        "worker_ips": ",".join(each["fabric_ip"] for each in nodes[1:]),
    }

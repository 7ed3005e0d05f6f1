# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What a node needs to run its rank: files to write, and the decision what the whole group has to do."""

from __future__ import annotations

import hashlib
import json
import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils import _deployment, _engines

UNIT = "tandem-rank.service"


def rdma_devices(fabric: dict[str, t.Any] | None) -> dict[str, str | None]:
    """Interface to RDMA device, from a node's ``spark_fabric`` facts."""
    interfaces = (fabric or {}).get("interfaces") or {}
    return {name: facts.get("rdma_device") for name, facts in interfaces.items()}


def specification(
    deployment: dict[str, t.Any],
    name: str,
    fabric: dict[str, t.Any] | None,
    api_key: str = "",
    parts: t.Mapping[str, str] | None = None,
) -> dict[str, t.Any]:
    """The content of ``rank.json`` on node *name*.

    A rank is started again when this changes, so whatever else it is started from stands in it by its digest: the API
    key, and the texts of *parts* (unit, launcher).
    """
    node = _deployment.node_of(deployment, name)
    rank = _engines.ADAPTERS[deployment["engine"]["name"]].rank(deployment, node, rdma_devices(fabric))
    return {
        "deployment": deployment["digest"],
        "rank": node["rank"],
        "wait_for_address": node["fabric_ip"] if len(deployment["nodes"]) > 1 else None,
        **rank,
        "key_sha256": _sha256(api_key) if rank["key"] else None,
        "parts_sha256": {part: _sha256(content) for part, content in sorted((parts or {}).items())},
    }


def _sha256(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def text(specification_: dict[str, t.Any]) -> str:
    """A specification as it stands in the file, for people to read."""
    return json.dumps(specification_, indent=2, ensure_ascii=False) + "\n"


def files(deployment: dict[str, t.Any], rank: dict[str, t.Any], user: str) -> list[dict[str, t.Any]]:
    """Entries for tandem.spark.files: the immutable release of this deployment, then the pointer to it.

    What the pointer named before is kept as ``previous``, which the rollback goes back to.

    *rank* is the node's specification.
    """
    root = deployment["root"]
    # Named after its content: a release never changes, another one takes its place.
    directory = f"{root}/releases/{_deployment.release_name(deployment['name'], digest(rank)[:12])}"
    return [
        {"path": directory, "state": "directory"},
        {"path": f"{directory}/rank.json", "content": text(rank), "mode": "0640", "group": user},
        {"path": f"{directory}/model", "state": "link", "target": deployment["model"]["path"]},
        {"path": f"{directory}/engine", "state": "link", "target": deployment["engine"]["path"]},
        {"path": f"{root}/current", "state": "link", "target": directory, "keep": f"{root}/previous"},
    ]


def digest(rank: dict[str, t.Any]) -> str:
    """What tandem-rank notes as running when it was started from the specification *rank*."""
    return _sha256(text(rank))


def group_action(states: dict[str, dict[str, t.Any]], deployment: dict[str, t.Any]) -> dict[str, t.Any]:
    """Decide over all ranks at once what the group has to do.

    *states*: per node ``active``, ``running`` and ``wanted`` (digests of the rank's specification). Half a group is
    never left alone: unless every rank runs what it shall run, all are stopped and all are started again. A node whose
    state is not known, because it was not reached or left out with ``--limit``, ends it here.
    """
    unseen = [node["name"] for node in deployment["nodes"] if "active" not in states.get(node["name"], {})]
    if unseen:
        raise ValueError(
            f"{', '.join(unseen)}: the state of its rank is not known, wanted that of every node, since the group is "
            "started as a whole; see to it that the node answers, and run without --limit. Nothing was stopped."
        )
    reasons = []
    for name, state in states.items():
        if not state["active"]:
            reasons.append(f"{name}: no rank is running")
        elif state["running"] != state["wanted"]:
            reasons.append(f"{name}: the running rank was started from another configuration")
    running = [name for name, state in states.items() if state["active"]]
    return {"restart": bool(reasons), "stop": running if reasons else [], "reasons": reasons}

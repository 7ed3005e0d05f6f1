# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""A deployment: a recipe on an inventory, with everything that follows from the two and from nothing else.

Pure functions. Per-node values come from that node's own variables; nothing of the head is copied to a worker.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils import _engines, _fabric_carry, _fabric_plan, _fabric_pool
from ansible_collections.tandem.spark.plugins.plugin_utils._addresses import NOT_A_PEER_ADDRESS

COMMIT = re.compile(r"[0-9a-f]{40}")
# The digest of a manifest, which pins a model of a source without commits.
DIGEST = re.compile(r"[0-9a-f]{64}")
HUBS = ("huggingface", "modelscope")
# Its place stands in a unit file, where spaces separate words, quotes and backslashes quote, and % begins a specifier.
ROOT = re.compile(r"(/[A-Za-z0-9._@+-]+)+")
# ProtectHome= and PrivateTmp= of the unit; /run is gone after a reboot.
HIDDEN_FROM_UNIT = ("/home", "/root", "/tmp", "/var/tmp", "/run")
MINIMUM_KEY_LENGTH = 16
NOT_STARTED_FROM = ("title", "sources", "acceptance", "disk_needed_bytes", "unserved")


def pinned(revision: str) -> bool:
    """Whether a revision cannot move: a commit, or the digest of a manifest."""
    return bool(COMMIT.fullmatch(revision) or DIGEST.fullmatch(revision))


def problems_of_key(key: str) -> list[str]:
    """Say what is wrong with an API key, never the key itself."""
    wanted = f"wanted {MINIMUM_KEY_LENGTH} or more printable ASCII characters without spaces or quotes"
    if not key:
        return [f"tandem_api_key: found nothing, {wanted}"]
    if len(key) < MINIMUM_KEY_LENGTH:
        return [f"tandem_api_key: found {len(key)} characters, {wanted}"]
    # It travels in an HTTP header, where other characters than ASCII have no agreed form.
    if any(c.isspace() or not c.isprintable() or not c.isascii() or c in "\"'\\" for c in key):
        return [
            "tandem_api_key: found a space, a quote, a backslash, a control character or one outside ASCII in it, "
            f"{wanted}"
        ]
    return []


def clean_key(text: t.Any) -> str:
    """A key as read from a file: without the line end (LF or CRLF) that editors add."""
    return "" if text is None else str(text).rstrip("\r\n")


def problems_of_root(root: str) -> list[str]:
    """Say why the unit could not be started from the directory *root*."""
    if not ROOT.fullmatch(root) or ".." in root.split("/"):
        return [
            f"tandem_root: found {root!r}, wanted an absolute path below / of letters, digits and . _ - @ + (it stands "
            "in a unit file), such as /var/lib/tandem"
        ]
    hidden = next((place for place in HIDDEN_FROM_UNIT if f"{root}/".startswith(f"{place}/")), None)
    if hidden:
        return [
            f"tandem_root: found {root!r}, wanted a directory outside {hidden}, which the service cannot see, such as "
            "/var/lib/tandem or /srv/tandem"
        ]
    return []


def release_name(name: str, version: str) -> str:
    """A directory name for an immutable release: safe characters only, never hidden."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{name}-{version}").strip(".-")


def api(address: str, port: int, management: str = "") -> dict[str, t.Any]:
    """Where the API is: address and port to bind, URL to ask.

    Bound to every address it is asked at the head's *management* address: 0.0.0.0 is nowhere, or the one who asks.
    """
    asked = management if management and address in ("0.0.0.0", "::") else address
    host = f"[{asked}]" if ":" in asked else asked
    return {"address": address, "port": port, "url": f"http://{host}:{port}"}


def build(
    group: str,
    nodes: list[dict[str, t.Any]],
    recipe: dict[str, t.Any],
    *,
    root: str = "/var/lib/tandem",
    mtu: int = 9000,
    pool: t.Any = _fabric_pool.POOL,
    gid_index: t.Any = None,
    rendezvous: str = "auto",
    port: int = 8000,
    api_address: str | None = None,
    revision: str | None = None,
    stands_for: str | None = None,
    lock_sha256: str = "",
    nccl: str | None = None,
) -> tuple[dict[str, t.Any], list[str]]:
    """Return the deployment and every problem found; with problems the deployment must not be used.

    *nodes*: in rank order, as :func:`_fabric_plan.plan` takes them. *stands_for*: what the hub says of a revision that
    can move. *nccl*: its version in the engine's lock.
    """
    problems: list[str] = []
    wanted = recipe["nodes"]
    if len(nodes) != wanted:
        problems.append(
            f"group {group}: found {len(nodes)} node(s) ({', '.join(n['name'] for n in nodes) or 'none'}), recipe "
            f"{recipe['name']} wants {wanted}; add or remove hosts in the group, or choose a recipe for {len(nodes)}"
        )
    fabric, trouble = network(nodes, mtu=mtu, pool=pool, gid_index=gid_index, rendezvous=rendezvous)
    problems += trouble
    built = fabric["nodes"]
    engine_name = recipe["engine"]["name"]
    if not trouble and built:
        problems += _fabric_carry.nccl_problems(fabric, engine_name, nccl)
        problems += _fabric_carry.carries(
            fabric, engine_name, recipe["tensor_parallel"], by_layers=_engines.by_layers(recipe)
        )
    meeting = fabric.get("rendezvous_ip") if len(built) > 1 else None
    if meeting and meeting.startswith(NOT_A_PEER_ADDRESS):
        problems.append(f"rendezvous: found {meeting}, wanted an address of the head that the workers can reach")

    problems += problems_of_root(root)
    if not 0 < port < 65536 or (len(built) > 1 and port == recipe["serve"]["rendezvous_port"]):
        problems.append(
            f"tandem_api_port: found {port}, wanted a port from 1 to 65535 other than the recipe's rendezvous_port "
            f"({recipe['serve']['rendezvous_port']})"
        )
    revision = revision or recipe["model"]["revision"]
    if not revision or not pinned(revision):
        problems.append(
            f"model revision of {recipe['model']['id']}: found {revision or 'none'}, wanted a full commit id (40 hex "
            "digits), or for sources without commits the manifest's digest (64): a branch name can move between two "
            f"nodes; {f'it stands for {stands_for} now; ' if stands_for else ''}set tandem_model_revision"
            + (", or model_revision_resolve: true to take and record what a branch stands for" if revision else "")
        )
    problems += _engines.problems(recipe)
    if problems:
        return {}, problems

    model = dict(recipe["model"], revision=revision)
    engine = dict(recipe["engine"])
    engine_id = release_name(engine["name"], f"{engine['version']}-{lock_sha256[:12]}")
    model_id = release_name(model["id"].split("/")[-1], t.cast("str", revision)[:12])
    deployment: dict[str, t.Any] = {
        "name": recipe["name"],
        "title": recipe["title"],
        "group": group,
        "head": built[0]["name"],
        "nodes": built,
        "fabric": _without_nodes(fabric),
        "rendezvous": f"{meeting}:{recipe['serve']['rendezvous_port']}" if meeting else None,
        "api": api(api_address or built[0]["address"], port, built[0]["address"]),
        "model": dict(model, release=model_id, path=f"{root}/models/{model_id}"),
        "engine": dict(engine, release=engine_id, path=f"{root}/engines/{engine_id}", lock_sha256=lock_sha256),
        "serve": recipe["serve"],
        "memory": recipe["memory"],
        "acceptance": recipe["acceptance"],
        "tensor_parallel": recipe["tensor_parallel"],
        "root": root,
        # Weights are written once per node; an engine release is its wheels plus the environment made of them.
        "disk_needed_bytes": {root: model["size_bytes"] + engine["size_bytes"]},
        "sources": recipe["sources"],
        "unserved": [],
    }
    return _with_digest(deployment), []


def network(nodes: list[dict[str, t.Any]], **options: t.Any) -> tuple[dict[str, t.Any], list[str]]:
    """The plan of the fabric, which needs no recipe, and every problem found in the inventory."""
    fabric, problems = _fabric_plan.plan(nodes, **options)
    by_address: dict[str, list[str]] = {}
    for node in fabric["nodes"]:
        by_address.setdefault(node["address"], []).append(node["name"])
    for address, names in by_address.items():
        if len(names) > 1:
            problems.append(f"{' and '.join(names)} have the same ansible_host {address}, wanted one address per node")
    return fabric, problems


def without_engine(
    group: str, fabric: dict[str, t.Any], *, root: str = "/var/lib/tandem", unserved: list[str]
) -> dict[str, t.Any]:
    """What the stages before the engine need of a deployment that cannot be served, and why it cannot."""
    deployment = {
        "name": "",
        "group": group,
        "head": fabric["nodes"][0]["name"],
        "nodes": fabric["nodes"],
        "fabric": _without_nodes(fabric),
        "engine": {"packages": []},
        "root": root,
        "unserved": unserved,
    }
    return _with_digest(deployment)


def _without_nodes(fabric: dict[str, t.Any]) -> dict[str, t.Any]:
    return {key: value for key, value in fabric.items() if key != "nodes"}


def _with_digest(deployment: dict[str, t.Any]) -> dict[str, t.Any]:
    # What the ranks are started from: another question of the acceptance must not restart them.
    started_from = {key: value for key, value in deployment.items() if key not in NOT_STARTED_FROM}
    return dict(deployment, digest=hashlib.sha256(json.dumps(started_from, sort_keys=True).encode()).hexdigest())


def node_of(deployment: dict[str, t.Any], name: str) -> dict[str, t.Any]:
    """The node *name* of a deployment."""
    return next(node for node in deployment["nodes"] if node["name"] == name)


def rank_order(deployment: dict[str, t.Any]) -> list[str]:
    """Node names in the order in which their ranks are started: workers by rank, the head last. Stop is the reverse."""
    names = [node["name"] for node in deployment["nodes"]]
    return names[1:] + names[:1]


def hosts_map(deployment: dict[str, t.Any]) -> str:
    """Lines for /etc/hosts: every node by its management address and by its address on each rail.

    The rails are in it because Gloo looks the peer's address up backwards at every connection, and waits for seconds
    when nobody answers (reference: engines, section 1).
    """
    lines = []
    for node in deployment["nodes"]:
        if _literal(node["address"]):
            lines.append(f"{node['address']} {node['name']}")
        lines += [f"{link['ip']} {node['name']}-rail{number}" for number, link in enumerate(node["links"])]
    return "\n".join(lines)


def _literal(address: str) -> bool:
    try:
        return not ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False

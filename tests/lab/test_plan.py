# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plan on two virtual Sparks: it asks the lab's hub and no node, and preflight judges the memory that is there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sparklab.names import ID_ENV, LAB_DIR

pytestmark = pytest.mark.lab

ID = f"tp{hashlib.sha256(str(LAB_DIR).encode()).hexdigest()[:5]}"
ROOT = LAB_DIR.parent.parent
ENV = {**os.environ, ID_ENV: ID, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml"}


def lab(verb: str, *words: str) -> str:
    argv = [str(LAB_DIR / "lab"), verb, "pair", *words]
    done = subprocess.run(argv, capture_output=True, text=True, env=ENV, check=False, timeout=600)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def play(name: str, reports: Path, **variables: Any) -> tuple[int, str]:
    given = {"plan_report_directory": str(reports), "preflight_report_directory": str(reports), **variables}
    argv = [str(ROOT / ".venv/bin/ansible-playbook"), f"tandem.spark.{name}", "-i", "inventories/lab_pair"]
    argv += ["-e", json.dumps(given)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, env=ENV, check=False, timeout=600)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def pair() -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    lab("down")
    lab("up")
    yield
    lab("down")


def test_the_hub_is_asked_and_no_node(pair: None, tmp_path: Path) -> None:
    # Nothing listens there: a node that is connected to would end the play.
    code, out = play("plan", tmp_path, ansible_port=9)
    assert code == 0 and "changed=0" in out and "unreachable=0" in out, out
    report = json.loads((tmp_path / "plan.json").read_text())
    assert report["fits"] is True and report["ranks"] == 2
    # 30 layers, 4 KV heads of 64, keys and values of two bytes; half of it on each of two ranks
    assert (
        report["model_totals"]["kv_bytes_per_token"]
        == 30 * 4 * 2 * 64 * 2
        == 2 * report["per_node"]["kv_bytes_per_token"]
    )
    assert re.fullmatch(r"http://\S+, tandem-lab/smollm2-135m-taught at [0-9a-f]{40}", report["source"])
    assert 280_000_000 < report["model_totals"]["weights_bytes"] < 290_000_000


def test_a_hub_without_that_revision_is_named(pair: None, tmp_path: Path) -> None:
    code, out = play("plan", tmp_path, plan_origin="hub", tandem_model_revision="0" * 40)
    assert code == 2 and "answered 404" in out and "Nothing was changed" in out, out
    assert not (tmp_path / "plan.json").exists()


def test_too_little_memory_is_refused_with_what_would_fit(pair: None, tmp_path: Path) -> None:
    code, out = play("plan", tmp_path, plan_memory_bytes=1_950_000_000)
    assert code == 2 and "short per node" in out and "DOES NOT FIT" in out, out


def test_preflight_judges_the_memory_of_the_nodes(pair: None, tmp_path: Path) -> None:
    code, out = play("preflight", tmp_path)
    assert code == 0 and "memory.does_not_fit" not in out, out
    (tmp_path / "shapes").mkdir()
    known = json.loads((LAB_DIR / "recipes/shapes/smollm2-135m-taught.json").read_text())
    known["weights_bytes"] = 10**15
    (tmp_path / "shapes/big.json").write_text(json.dumps(known))
    code, out = play("preflight", tmp_path, tandem_recipe_paths=[str(tmp_path), str(LAB_DIR / "recipes")])
    assert code == 2 and "memory.does_not_fit on spark-a, spark-b" in out and "Nothing was changed" in out, out

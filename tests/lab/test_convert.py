# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verifying and converting on two virtual Sparks of their own, with the real llm-compressor on the processor.

The tests of this file build on each other in their order: the model is published, damaged, repaired and converted once.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INVENTORY = "inventories/lab_pair"
LOCK = ROOT / "tests/lab/engines/llmcompressor/requirements.lock"
STAGES = ("baseline", "fabric", "model")
CONVERT = {"convert_lock": str(LOCK), "convert_python": "3.11", "convert_device": "cpu"}
CONVERT["convert_reserve_bytes"] = str(1 << 30)

pytestmark = pytest.mark.lab


class Pair:
    """A pair of virtual Sparks with a published model."""

    def __init__(self) -> None:
        digest = hashlib.sha256(str(ROOT).encode()).hexdigest()
        self.environment = {**os.environ, "TANDEM_LAB_ID": f"tc{digest[:5]}", "ANSIBLE_NOCOLOR": "1"}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )

    def lab(self, *verb: str) -> str:
        done = self.run(str(ROOT / "tests/lab/lab"), *verb)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def ssh(self, node: str, command: str) -> str:
        return self.lab("ssh", "pair", node, command)

    def play(self, *playbooks: str, **variables: str) -> subprocess.CompletedProcess[str]:
        extra = [word for name, value in variables.items() for word in ("-e", f"{name}={value}")]
        binary = str(Path(sys.executable).parent / "ansible-playbook")
        return self.run(binary, *[f"playbooks/{name}.yml" for name in playbooks], "-i", INVENTORY, *extra)

    def models(self) -> list[str]:
        return self.ssh("spark-a", "ls -1 /var/lib/tandem/models").split()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    pair = Pair()
    pair.lab("down", "pair")
    pair.lab("up", "pair")
    done = pair.play(*STAGES)
    assert done.returncode == 0, done.stdout
    yield pair
    pair.lab("down", "pair")


def shown(done: subprocess.CompletedProcess[str]) -> str:
    """The output in one line, as ansible folds long messages."""
    return " ".join(done.stdout.split())


def test_every_node_is_verified(pair: Pair) -> None:
    done = pair.play("model_verify")
    assert done.returncode == 0, done.stdout
    assert all(f"{node}: /var/lib/tandem/models/" in shown(done) for node in ("spark-a", "spark-b"))
    assert shown(done).count("verified, all") == 2
    trusting = shown(pair.play("model_verify", verify_trust="true"))
    assert trusting.count("trusted, not re-read") == 2 and "verified, all" not in trusting


def test_c23_damage_on_both_nodes_is_named_in_one_run(pair: Pair) -> None:
    (model,) = pair.models()
    place = f"/var/lib/tandem/models/{model}"
    flip = (
        f"f={place}/model-00002-of-00002.safetensors; t=$(stat -c %y $f); printf '\\377' | dd of=$f bs=1 conv=notrunc "
    )
    pair.ssh("spark-a", flip + 'seek=$(($(stat -c %s $f) - 1)) status=none; touch -d "$t" $f')
    pair.ssh("spark-b", f"mv {place}/config.json {place}/other.json")
    structure = pair.play("model_verify", verify_mode="structure")
    done = pair.play("model_verify")
    assert "spark-a: " in shown(structure) and "no verification" in shown(structure)
    for output in (structure, done):
        assert output.returncode != 0
        assert "config.json: found nothing, wanted a file of the manifest" in shown(output)
        assert "other.json: found a file that is not in the manifest" in shown(output)
    assert "model-00002-of-00002.safetensors: found sha256" in shown(done) and "Run tandem.spark.model again" in shown(
        done
    )
    # What the message says to do helps.
    repaired = pair.play("model", "model_verify")
    assert repaired.returncode == 0, repaired.stdout
    assert shown(repaired).count("verified, all") == 2


def test_too_little_memory_is_refused_before_anything_is_written(pair: Pair) -> None:
    before = pair.models()
    done = pair.play("convert", **{**CONVERT, "convert_reserve_bytes": str(1 << 50)})
    assert done.returncode != 0 and "memory: found" in shown(done) and "The models are as they were" in shown(done)
    assert pair.models() == before


def test_the_model_is_converted_and_published_beside_its_source(pair: Pair) -> None:
    done = pair.play("convert", **CONVERT)
    assert done.returncode == 0, done.stdout
    source, result = sorted(pair.models(), key=len)
    assert result.startswith(f"{source}-fp8-dynamic-")
    place = f"/var/lib/tandem/models/{result}"
    provenance = json.loads(pair.ssh("spark-a", f"cat {place}/tandem-conversion.json"))
    manifest = json.loads(pair.ssh("spark-a", f"cat /var/lib/tandem/models/{source}/tandem-manifest.json"))
    made = json.loads(pair.ssh("spark-a", f"cat {place}/tandem-manifest.json"))
    assert provenance["source"] == manifest and provenance["versions"]["llmcompressor"] == "0.14.0.1"
    assert made["model"]["source"] == "conversion" and made["model"]["id"] == manifest["model"]["id"]
    config = json.loads(pair.ssh("spark-a", f"cat {place}/config.json"))
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    sizes = {
        name: sum(file["size"] for file in one["files"] if file["path"].endswith(".safetensors"))
        for name, one in (("before", manifest), ("after", made))
    }
    assert sizes["after"] < 0.8 * sizes["before"]
    again = pair.play("convert", **CONVERT)
    assert again.returncode == 0 and "changed=0" in again.stdout.rpartition("spark-a")[2], again.stdout


def test_what_is_quantised_is_not_converted_again(pair: Pair) -> None:
    _source, result = sorted(pair.models(), key=len)
    done = pair.play("convert", **CONVERT, convert_source=f"/var/lib/tandem/models/{result}")
    assert done.returncode != 0
    assert "found compressed-tensors, 8 bits (config.json), wanted weights that are not quantised" in shown(done)

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ast
import hashlib
import json
import pathlib
import struct

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _convert, _manifest
from ansible_collections.tandem.spark.plugins.modules import model_convert

REVISION = "a" * 40
INACTIVE = (0, "ActiveState=inactive\nResult=success\n", "")


def shard(dtype, width):
    header = json.dumps({"w": {"dtype": dtype, "shape": [8], "data_offsets": [0, 8 * width]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\1" * 8 * width


def publish(directory, files):
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_bytes(content)
    entries = [{"path": n, "size": len(c), "sha256": hashlib.sha256(c).hexdigest()} for n, c in files.items()]
    model = {"id": "o/m", "revision": REVISION, "source": "huggingface", "licence": "MIT"}
    made = _manifest.make(model, entries)
    (directory / _manifest.FILE_NAME).write_bytes(_manifest.dump(made))
    return made


@pytest.fixture
def source(tmp_path):
    publish(tmp_path / "m-1", {"model.safetensors": shard("BF16", 2), "config.json": b"{}"})
    return tmp_path / "m-1"


@pytest.fixture
def convert(run_module, source):
    base = {"source": str(source), "environment": "/opt/c", "environment_digest": "e", "reserve_bytes": 0}

    def run(check_mode=False, **options):
        return run_module(model_convert, {**base, **options}, check_mode=check_mode)

    return run


def converted(words, _options):
    """What the unit leaves."""
    job = json.loads(pathlib.Path(words[-1]).read_text())
    config = {"quantization_config": {"quant_method": "compressed-tensors"}}
    with open(f"{job['staging']}/config.json", "w", encoding="utf-8") as handle:
        json.dump(config, handle)
    with open(f"{job['staging']}/model.safetensors", "wb") as handle:
        handle.write(shard("F8_E4M3", 1))
    with open(job["done"], "w", encoding="utf-8") as handle:
        json.dump({"llmcompressor": "0.14.0.1"}, handle)
    return 0, "", ""


@pytest.fixture
def systemd(commands):
    commands["systemctl show"] = INACTIVE
    commands["systemctl reset-failed"] = (1, "", "not loaded")
    commands["systemd-run"] = converted
    commands["journalctl"] = (0, "Killed\n", "")
    return commands


def started(systemd):
    return [words for words in systemd["ran"] if words[0] == "systemd-run"]


def test_convert_leaves_manifest_and_provenance(convert, systemd, source):
    found = convert()
    assert (found["changed"], found["published"]) == (True, False)
    staging = source.parent / found["staging"].rpartition("/")[2]
    made = _manifest.load((staging / _manifest.FILE_NAME).read_text(), "here")
    provenance = json.loads((staging / _convert.PROVENANCE).read_text())
    assert made["digest"] == found["digest"] and made["model"]["revision"] == found["revision"]
    assert made["model"]["source"] == "conversion" and made["model"]["licence"] == "MIT"
    assert [file["path"] for file in made["files"]] == ["config.json", "model.safetensors", _convert.PROVENANCE]
    assert provenance["source"]["model"]["revision"] == REVISION and provenance["versions"]["llmcompressor"]
    assert not list(source.parent.glob(".converting-*"))
    (words,) = started(systemd)
    assert {"--property=MemorySwapMax=0", "--setenv=HF_HUB_OFFLINE=1"} <= set(words)
    assert any(word.startswith("--property=MemoryMax=") for word in words)


def test_c38_a_second_run_waits_for_the_unit_that_is_at_work(convert, systemd, source):
    found = convert(check_mode=True)
    job = {
        "staging": found["staging"],
        "done": f"{found['release']}".replace("m-1-", ".converting-m-1-") + "/done.json",
    }
    answers = iter([(0, "ActiveState=active\n", ""), (0, "ActiveState=active\n", "")])

    def show(_words, _options):
        answer = next(answers, None)
        if answer is None:
            return INACTIVE
        return answer

    for directory in (job["staging"], job["done"].rpartition("/")[0]):
        model_convert.os.makedirs(directory)
    (source.parent / "job.json").write_text(json.dumps(job))
    converted([str(source.parent / "job.json")], {})
    systemd["systemctl show"] = show
    again = convert()
    assert again["changed"] and again["digest"] and started(systemd) == []


def test_c38_a_result_that_nobody_waited_for_is_taken(convert, systemd, monkeypatch):
    def lost(*_arguments):
        raise OSError("session lost")

    with monkeypatch.context() as patch:
        patch.setattr(model_convert, "finish", lost)
        assert "session lost" in convert()["msg"]
    assert convert()["digest"] and len(started(systemd)) == 1


def test_check_mode_starts_nothing(convert, systemd, source):
    found = convert(check_mode=True)
    assert found["changed"] and found["digest"] is None and started(systemd) == []
    assert [path.name for path in source.parent.iterdir()] == ["m-1"]


def test_a_published_result_is_left_alone(convert, systemd, source):
    first = convert()
    model_convert.os.rename(first["staging"], first["release"])
    second = convert()
    assert (second["changed"], second["published"]) == (False, True)
    assert (second["digest"], second["revision"]) == (first["digest"], first["revision"])
    assert convert(scheme="FP8_BLOCK", check_mode=True)["release"] != first["release"]
    assert convert(environment_digest="other", check_mode=True)["changed"]


@pytest.mark.parametrize(
    "files",
    [
        {"model.safetensors": shard("BF16", 2), "config.json": b'{"quantization_config": {"quant_method": "fp8"}}'},
        {"model.safetensors": shard("F8_E4M3", 1), "config.json": b"{}"},
    ],
    ids=["by its configuration", "by its weights"],
)
def test_what_is_quantised_is_refused(convert, systemd, tmp_path, files):
    publish(tmp_path / "q", files)
    found = convert(source=str(tmp_path / "q"))
    assert found["failed"] and "wanted weights that are not quantised" in found["msg"] and started(systemd) == []


def test_a_source_that_is_not_what_its_manifest_says(convert, systemd, source):
    (source / "config.json").write_bytes(b"[]")
    found = convert()
    assert found["failed"] and "config.json" in found["msg"] and started(systemd) == []


def test_too_little_memory(convert, systemd):
    found = convert(reserve_bytes=1 << 50)
    assert found["failed"] and "memory: found" in found["msg"] and "The models are as they were" in found["msg"]
    assert started(systemd) == []


def test_the_memory_that_is_wanted():
    gib = 1 << 30
    assert _convert.memory_problem(60 * gib, 8 * gib, 5 * gib, 3) is not None
    assert _convert.memory_problem(60 * gib, 8 * gib, 5 * gib, 1) is None
    assert "MemAvailable" in (_convert.memory_problem(None, 0, 1, 1) or "")


def test_a_unit_that_fails_says_why(convert, systemd):
    systemd["systemd-run"] = (0, "", "")
    systemd["systemctl show"] = (0, "ActiveState=failed\nResult=oom-kill\nExecMainStatus=9\n", "")
    found = convert()
    assert found["failed"] and all(word in found["msg"] for word in ("oom-kill", "convert_workers", "Killed"))


def test_a_result_that_is_not_quantised_is_refused(convert, systemd):
    def nothing(words, options):
        answer = converted(words, options)
        job = json.loads(pathlib.Path(words[-1]).read_text())
        with open(f"{job['staging']}/model.safetensors", "wb") as handle:
            handle.write(shard("BF16", 2))
        with open(f"{job['staging']}/config.json", "w", encoding="utf-8") as handle:
            handle.write("{}")
        return answer

    systemd["systemd-run"] = nothing
    found = convert()
    assert found["failed"] and "not quantised" in found["msg"]


def test_bad_input(convert, systemd):
    assert "workers: found 0" in convert(workers=0)["msg"]
    assert "scheme" in convert(scheme="INT3")["msg"]


def test_the_script_is_python():
    assert ast.parse(_convert.SCRIPT)

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _manifest
from ansible_collections.tandem.spark.plugins.modules import model_release

REVISION = "a" * 40
HEADER = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
SHARD = struct.pack("<Q", len(HEADER)) + HEADER + b"\1" * 16
FILES = {"model.safetensors": SHARD, "config.json": b"{}", "sub/tokenizer.json": b"[]"}


def stage(directory, files=None, manifest=True):
    files = FILES if files is None else files
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    entries = [{"path": p, "size": len(c), "sha256": hashlib.sha256(c).hexdigest()} for p, c in files.items()]
    made = _manifest.make({"id": "o/m", "revision": REVISION}, entries)
    if manifest:
        (directory / _manifest.FILE_NAME).write_bytes(_manifest.dump(made))
    return made["digest"]


@pytest.fixture(autouse=True)
def files_count_as_settled(monkeypatch):
    """They are written a moment before they are read, for which they would not be trusted the next time."""
    monkeypatch.setattr(_manifest, "TICK_NS", 0)


@pytest.fixture
def release(run_module, tmp_path):
    base = {"path": str(tmp_path / "release"), "revision": REVISION}

    def run(check_mode=False, **options):
        return run_module(model_release, {**base, **options}, check_mode=check_mode)

    return run


@pytest.fixture
def publish(release, tmp_path):
    def run(check_mode=False, **options):
        return release(check_mode, state="published", staging=str(tmp_path / "staging"), **options)

    return run


def test_publish_query_and_publish_again(release, publish, tmp_path):
    digest = stage(tmp_path / "staging")
    assert "no manifest" in release()["reason"]
    assert publish(check_mode=True)["changed"] is True and not (tmp_path / "release").exists()
    first = publish()
    assert (first["changed"], first["present"], first["digest"], first["files_read"]) == (True, True, digest, 3)
    assert first["checked"] == "full" and first["bytes"] == sum(map(len, FILES.values()))
    assert sorted(os.listdir(tmp_path)) == [".release.verified.json", "release"]
    second = publish()
    assert (second["changed"], second["present"], second["files_read"], second["checked"]) == (
        False,
        True,
        0,
        "trusted",
    )
    full = release(full=True)
    assert (full["present"], full["files_read"], full["checked"]) == (True, 3, "full")


def test_whatever_the_umask_was_everybody_may_read_it(publish, tmp_path):
    stage(tmp_path / "staging")
    for path in (tmp_path / "staging").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    (tmp_path / "staging").chmod(0o700)
    publish()
    for path in [tmp_path / "release", *(tmp_path / "release").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o755 if path.is_dir() else 0o644)


def test_c23_a_flipped_byte_with_the_old_time_is_found_even_without_reading_everything(release, publish, tmp_path):
    stage(tmp_path / "staging")
    publish()
    shard = tmp_path / "release/model.safetensors"
    times = shard.stat()
    content = bytearray(SHARD)
    content[-1] ^= 1
    shard.write_bytes(content)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    for full in (False, True):
        result = release(full=full)
        assert result["present"] is False and result["digest"] is None
        assert all(
            text in result["reason"]
            for text in ("model.safetensors", hashlib.sha256(SHARD).hexdigest(), hashlib.sha256(content).hexdigest())
        )


def test_c23_a_wrong_copy_is_not_published_and_the_old_release_stays(publish, release, tmp_path):
    stage(tmp_path / "staging")
    publish()
    (tmp_path / "release/config.json").write_bytes(b"[]")
    stage(tmp_path / "staging")
    (tmp_path / "staging/config.json").write_bytes(b"()")
    result = publish()
    assert result["failed"] and "config.json" in result["msg"] and "left as it is" in result["msg"]
    assert (tmp_path / "release/config.json").read_bytes() == b"[]"
    (tmp_path / "staging/config.json").write_bytes(b"{}")
    assert publish()["changed"] is True and release()["present"] is True


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda path: (path / "model.safetensors").unlink(), "missing: model.safetensors"),
        (lambda path: (path / "model.safetensors").write_bytes(SHARD[:-1]), "model.safetensors (55 bytes"),
        (lambda path: (path / "extra.bin").write_bytes(b""), "not in the manifest: extra.bin"),
        (lambda path: (path / "tandem-manifest.json").unlink(), "no manifest"),
        (lambda path: (path / "tandem-manifest.json").write_text("{}"), "not a manifest"),
        (lambda path: (path / ".rsync-partial").mkdir() or (path / ".rsync-partial/x").touch(), ".rsync-partial/x"),
    ],
    ids=["absent", "short", "extra", "no manifest", "empty manifest", "partial"],
)
def test_stagings_that_are_not_published(publish, tmp_path, change, word):
    stage(tmp_path / "staging")
    change(tmp_path / "staging")
    result = publish()
    assert result["failed"] and word.split(" (")[0] in result["msg"] and not (tmp_path / "release").exists()


def test_c22_a_dangling_link_is_named_with_its_target(publish, tmp_path):
    stage(tmp_path / "staging")
    (tmp_path / "staging/model.safetensors").unlink()
    (tmp_path / "staging/model.safetensors").symlink_to("../../blobs/1")
    assert "model.safetensors -> ../../blobs/1" in publish()["msg"]


def test_c24_c26_what_the_manifest_calls_right_can_still_be_no_model(publish, tmp_path):
    index = json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}).encode()
    stage(tmp_path / "staging", {"model.safetensors": b"<!DOCTYPE html>", "model.safetensors.index.json": index})
    result = publish()
    assert result["failed"] and len(result["problems"]) == 2
    assert "HTML page" in result["msg"] and "model-2.safetensors" in result["msg"]


def test_another_revision_or_digest(release, publish, tmp_path):
    digest = stage(tmp_path / "staging")
    assert REVISION in publish(revision="b" * 40)["msg"]
    assert digest in publish(digest="0" * 64)["msg"]
    assert publish(digest=digest)["changed"] is True
    assert "revision" in release(revision="b" * 40)["reason"]
    assert release(digest="0" * 64)["present"] is False


@pytest.mark.parametrize("kind", ["file", "manifest is a directory"])
def test_something_else_in_its_place(release, tmp_path, kind):
    if kind == "file":
        (tmp_path / "release").write_text("x")
    else:
        (tmp_path / "release/tandem-manifest.json").mkdir(parents=True)
    result = release()
    assert result["present"] is False and result["reason"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"digest": 1}', '{"files": 5}', None])
def test_a_note_of_trust_that_cannot_be_read_means_reading_everything(release, publish, tmp_path, text):
    digest = stage(tmp_path / "staging")
    publish()
    note = tmp_path / ".release.verified.json"
    if text is None:
        note.write_text(json.dumps({"digest": digest, "files": [1]}))
    else:
        note.write_text(text)
    result = release()
    assert result["present"] is True and result["files_read"] == 3
    assert release()["files_read"] == 0


def test_check_mode_leaves_no_note(release, publish, tmp_path):
    stage(tmp_path / "staging")
    publish()
    (tmp_path / ".release.verified.json").unlink()
    assert release(check_mode=True)["files_read"] == 3
    assert not (tmp_path / ".release.verified.json").exists()


def test_publishing_needs_a_staging(run_module, tmp_path):
    result = run_module(model_release, {"path": str(tmp_path / "r"), "state": "published"})
    assert result["failed"] and "staging" in result["msg"]

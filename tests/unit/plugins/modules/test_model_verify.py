# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import json
import os
import struct
import time

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _manifest, _verify
from ansible_collections.tandem.spark.plugins.modules import model_verify

REVISION = "a" * 40


def shard(names, dtype="BF16", fill=1):
    header = {
        name: {"dtype": dtype, "shape": [8], "data_offsets": [16 * number, 16 * number + 16]}
        for number, name in enumerate(names)
    }
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes([fill]) * 16 * len(names)


SHARDS = {f"model-{n:05d}-of-00002.safetensors": shard([f"w{n}"], fill=n) for n in (1, 2)}
FILES = {
    **SHARDS,
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {f"w{n}": f"model-{n:05d}-of-00002.safetensors" for n in (1, 2)}}
    ).encode(),
    "config.json": b"{}",
}
SECOND = "model-00002-of-00002.safetensors"


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def model(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
    entries = [{"path": name, "size": len(c), "sha256": sha256(c)} for name, c in FILES.items()]
    made = _manifest.make({"id": "o/m", "revision": REVISION}, entries)
    (directory / _manifest.FILE_NAME).write_bytes(_manifest.dump(made))
    wait_for_a_tick()
    return directory


def wait_for_a_tick():
    """Until a file written before is older than the kernel's clock can tell from now."""
    end = time.time_ns() + 2 * _manifest.TICK_NS
    while time.time_ns() < end:
        os.sched_yield()


@pytest.fixture
def verify(run_module, model):
    def run(check_mode=False, **options):
        return run_module(model_verify, {"path": str(model), **options}, check_mode=check_mode)

    return run


def flip(path, keep_times=True):
    """One bit of the last byte, size and times as before."""
    times = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    if keep_times:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return bytes(content)


def test_a_whole_model(verify, model):
    found = verify(revision=REVISION, quantization={"method": "none"})
    assert (found["agrees"], found["verified"], found["checked"], found["changed"]) == (True, True, "full", False)
    assert found["problems"] == found["notes"] == [] and found["files"] == found["files_read"] == 4
    assert found["bytes"] == found["bytes_read"] == sum(map(len, FILES.values()))
    assert found["precision"]["method"] == "none" and found["precision"]["bytes_by_dtype"] == {"BF16": 32}
    assert found["text"] == f"{model}: verified, all 4 files were read"


@pytest.mark.parametrize("mode", ["structure", "size"])
def test_c23_a_look_without_reading_is_never_called_verified(verify, model, mode):
    flip(model / SECOND)
    found = verify(mode=mode)
    assert (found["agrees"], found["verified"], found["checked"]) == (True, False, mode)
    assert found["files_read"] == found["bytes_read"] == 0 and "no verification" in found["text"]


def test_c23_a_flipped_byte_is_named_with_both_digests(verify, model):
    content = flip(model / SECOND)
    found = verify()
    assert not found["agrees"] and not found["verified"]
    assert found["problems"] == [
        {
            "kind": "wrong",
            "file": SECOND,
            "found": f"sha256 {sha256(content)}",
            "wanted": f"sha256 {sha256(FILES[SECOND])}",
        }
    ]
    assert SECOND in found["text"] and "Run tandem.spark.model again" in found["text"]


def test_missing_wrong_and_extra_files_are_listed_exactly(verify, model):
    (model / SECOND).unlink()
    (model / "config.json").write_bytes(b"{} ")
    (model / "extra.bin").write_bytes(b"x")
    for mode in ("full", "size"):
        kinds = [(problem["kind"], problem["file"]) for problem in verify(mode=mode)["problems"]]
        assert kinds == [("missing", SECOND), ("wrong", "config.json"), ("extra", "extra.bin")]


def test_c27_an_empty_download_is_called_empty(verify, model):
    (model / SECOND).write_bytes(b"")
    (problem,) = verify()["problems"]
    assert problem["kind"] == "empty" and problem["found"] == "0 bytes"


def test_c27_the_digest_of_nothing_is_called_empty(run_module, tmp_path):
    (tmp_path / "m.safetensors").write_bytes(b"")
    (tmp_path / "sums").write_text(f"{sha256(b'x')}  m.safetensors\n")
    found = run_module(model_verify, {"path": str(tmp_path), "checksums": str(tmp_path / "sums")})
    assert sha256(b"") == _verify.EMPTY
    assert [(p["kind"], p["found"]) for p in found["problems"]] == [("empty", "an empty file (0 bytes)")]


def test_c24_the_structure_is_read_even_where_no_byte_is(verify, model):
    entries = [{"path": name, "size": len(c), "sha256": sha256(c)} for name, c in FILES.items() if name != SECOND]
    made = _manifest.make({"id": "o/m", "revision": REVISION}, entries)
    (model / _manifest.FILE_NAME).write_bytes(_manifest.dump(made))
    (model / SECOND).unlink()
    for mode in ("full", "structure"):
        (problem,) = verify(mode=mode)["problems"]
        assert problem["kind"] == "structure" and problem["file"] == SECOND


def test_trust_says_that_it_did_not_read(verify, model):
    first = verify()
    assert first["verified"] and os.listdir(model.parent) and (model.parent / ".model.verified.json").is_file()
    trusting = verify(trust=True)
    assert (trusting["agrees"], trusting["verified"]) == (True, False)
    assert (trusting["checked"], trusting["files_read"], trusting["files_trusted"]) == ("trusted, not re-read", 0, 4)
    assert "trusted, not re-read" in trusting["text"]


def test_c23_a_changed_file_is_not_trusted_although_its_times_are_put_back(verify, model):
    verify()
    flip(model / SECOND)
    found = verify(trust=True)
    assert [problem["file"] for problem in found["problems"]] == [SECOND] and found["files_read"] == 1


def test_bad_bytes_under_an_unchanged_inode_end_all_trust(verify, model):
    verify()
    flip(model / SECOND)
    note = model.parent / ".model.verified.json"
    statement = json.loads(note.read_text())
    # As when the disk itself went bad: nothing about the file looks changed.
    statement["files"][SECOND] = _manifest.trust_key(os.stat(model / SECOND))
    note.write_text(json.dumps(statement))
    assert verify(trust=True)["agrees"]
    assert not verify()["agrees"] and not note.exists()
    assert not verify(trust=True)["agrees"]


def test_a_file_written_a_moment_ago_is_not_remembered(verify, model, monkeypatch):
    monkeypatch.setattr(_manifest, "TICK_NS", 3_600_000_000_000)
    verify()
    assert verify(trust=True)["files_read"] == 4


def test_check_mode_writes_nothing(verify, model):
    assert verify(check_mode=True)["verified"] and os.listdir(model.parent) == ["model"]


def test_a_file_that_changes_while_it_is_read(verify, model, monkeypatch):
    status, changed = os.fstat, []

    def fstat(descriptor):
        found = status(descriptor)
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(SECOND) and not changed:
            changed.append(1)
            (model / SECOND).write_bytes(FILES[SECOND])
        return found

    monkeypatch.setattr(os, "fstat", fstat)
    (problem,) = verify()["problems"]
    assert problem["file"] == SECOND and "changed while it was read" in problem["found"]


def test_files_changed_under_the_same_name(verify, model):
    """Another model with a manifest of its own in the place of the one that was wanted."""
    digest = verify()["digest"]
    content = flip(model / SECOND)
    entries = [{"path": n, "size": len(c), "sha256": sha256(c)} for n, c in {**FILES, SECOND: content}.items()]
    made = _manifest.make({"id": "o/m", "revision": "b" * 40}, entries)
    (model / _manifest.FILE_NAME).write_bytes(_manifest.dump(made))
    assert verify()["agrees"]
    found = verify(digest=digest, revision=REVISION, trust=True)
    assert [problem["wanted"] for problem in found["problems"]] == [digest, REVISION]


def test_an_unnoticed_quantised_copy_is_refused(verify, model):
    assert verify(quantization={"method": "none"}, mode="structure")["agrees"]
    found = verify(quantization={"method": "fp8", "bits": 8}, mode="structure")
    assert [(p["kind"], p["file"]) for p in found["problems"]] == [("precision", "config.json")]
    assert "publisher's own repository" in found["text"]


def test_c25_nothing_there(run_module, tmp_path):
    found = run_module(model_verify, {"path": str(tmp_path / "absent")})
    (problem,) = found["problems"]
    assert problem["kind"] == "manifest" and found["files"] is None and str(tmp_path / "absent") in found["text"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": []}'])
def test_a_manifest_that_cannot_be_used(verify, model, text):
    (model / _manifest.FILE_NAME).write_text(text)
    (problem,) = verify()["problems"]
    assert problem["kind"] == "manifest" and _manifest.FILE_NAME in problem["found"]


def test_c28_listed_but_absent_and_present_but_unlisted_are_two_findings(verify, model):
    lines = [f"{sha256(content)} *{name}\r\n" for name, content in FILES.items() if name != SECOND]
    lines.append(f"SHA256 (gone.safetensors) = {sha256(b'x')}\n")
    (model / "SHA256SUMS").write_text("".join(lines))
    (model / "README.md").write_text("a card")
    found = verify(checksums=str(model / "SHA256SUMS"), mode="size")
    assert [(p["kind"], p["file"]) for p in found["problems"]] == [("missing", "gone.safetensors"), ("extra", SECOND)]
    assert [note["file"] for note in found["notes"]] == ["README.md"] and found["bytes"] is None


def test_c28_a_checksum_file_is_as_good_as_a_manifest_for_reading(verify, model):
    (model.parent / "sums").write_text("".join(f"{sha256(c)}  {name}\n" for name, c in FILES.items()))
    assert verify(checksums=str(model.parent / "sums"))["verified"]
    flip(model / SECOND)
    assert [p["file"] for p in verify(checksums=str(model.parent / "sums"))["problems"]] == [SECOND]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"digest": "abc"}, ["digest", "abc", "64 hex digits"]),
        ({"workers": 0}, ["workers", "0", "1 or more"]),
        ({"mode": "fast"}, ["mode", "fast", "structure"]),
        ({"quantization": {"bits": 8}}, ["method"]),
    ],
)
def test_bad_input(verify, options, words):
    found = verify(**options)
    assert found["failed"] and all(word in found["msg"] for word in words)


def test_a_pipe_in_place_of_a_file_is_named(verify, model):
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")
    problems = verify()["problems"]
    assert ("wrong", "config.json", "something that is no file") in [
        (p["kind"], p["file"], p["found"]) for p in problems
    ]

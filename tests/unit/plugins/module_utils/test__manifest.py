# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import hashlib
import json
import os

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _manifest
from hypothesis import example, given
from hypothesis import strategies as st

MODEL = {"id": "owner/Model", "revision": "a" * 40}


def entry(path, content=b"x"):
    return {"path": path, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def write(directory, files):
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return _manifest.make(MODEL, [entry(path, content) for path, content in files.items()])


def test_dump_and_load():
    manifest = _manifest.make(MODEL, [entry("b"), entry("a/ü")])
    assert [file["path"] for file in manifest["files"]] == ["a/ü", "b"]
    assert _manifest.load(_manifest.dump(manifest).decode(), "here") == manifest


def test_the_digest_is_what_sha256sum_would_print():
    files = [entry("b", b"2"), entry("a", b"1")]
    lines = "".join(sorted(f"{file['sha256']}  {file['path']}\n" for file in files))
    assert _manifest.digest(files) == hashlib.sha256(lines.encode()).hexdigest() == _manifest.digest(files[::-1])


@pytest.mark.parametrize(
    "path", ["", "/a", "../a", "a/../b", "./a", "a//b", "a/", "a\\b", "a\0b", ".", "..", None, 5, ["a"]], ids=repr
)
def test_c24_paths_that_leave_the_directory(path):
    with pytest.raises(_manifest.ManifestError):
        _manifest.safe_path(path)


def changed(**changes):
    manifest = _manifest.make(MODEL, [entry("a")])
    manifest.update(changes)
    return json.dumps(manifest)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "not a manifest"),
        ("[]", "not a manifest"),
        ("null", "not a manifest"),
        ("[" * 100000, "not a manifest"),
        (changed(files=[]), "digest"),
        (changed(files=[], digest=_manifest.digest([])), "no entries"),
        (changed(files=None), "not a manifest"),
        (changed(files=[entry("../a")]), "leave"),
        (changed(files=[{"path": "a"}]), "not a manifest"),
        (changed(files=[dict(entry("a"), sha256="0" * 63)]), "a has no usable"),
        (changed(files=[dict(entry("a"), sha256="Z" * 64)]), "a has no usable"),
        (changed(files=[dict(entry("a"), sha256=["0"] * 64)]), "not a manifest"),
        (changed(files=[dict(entry("a"), size="1")]), "a has no usable"),
        (changed(files=[entry("a"), entry("a")]), "twice"),
        (changed(format=2), "format 2"),
        (changed(digest="0" * 64), "digest"),
        (changed(model="owner/Model"), "model"),
        (changed(model=None), "model"),
    ],
    ids=lambda value: value[:40],
)
def test_manifests_that_cannot_be_used(text, word):
    with pytest.raises(_manifest.ManifestError) as stop:
        _manifest.load(text, "here.json")
    assert "here.json" in str(stop.value) or "path" in str(stop.value)
    assert word in str(stop.value)


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["files", "path", "sha256", "size", "model", "format", "digest"]), inner)
    ),
    max_leaves=10,
)


@given(JSON)
@example({"files": [{"path": "\ud800", "sha256": "0" * 64, "size": 1}], "model": {}})
def test_only_manifest_errors_for_anything(data):
    with contextlib.suppress(_manifest.ManifestError):
        _manifest.load(json.dumps(data), "here")


def test_a_directory_that_agrees(tmp_path):
    manifest = write(tmp_path, {"a": b"1", "b/c": b"22"})
    difference, read = _manifest.compare(str(tmp_path), manifest)
    assert not difference and read == 2 and difference.text() == ""


def test_c22_c24_missing_wrong_and_extra_files_are_named(tmp_path):
    manifest = write(tmp_path, {"a": b"1", "b": b"22", "c": b"333"})
    (tmp_path / "a").unlink()
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / "extra").write_bytes(b"")
    (tmp_path / "c").unlink()
    (tmp_path / "c").symlink_to("../blobs/c")
    difference, _read = _manifest.compare(str(tmp_path), manifest)
    assert difference.missing == ["a", "c -> ../blobs/c"]
    assert difference.wrong == ["b (1 bytes, wanted 2)"] and difference.extra == ["extra"]
    assert "c -> ../blobs/c" in difference.text()


def test_links_that_lead_in_a_circle(tmp_path):
    manifest = write(tmp_path, {"a": b"1"})
    (tmp_path / "a").unlink()
    (tmp_path / "a").symlink_to("a")
    assert _manifest.compare(str(tmp_path), manifest)[0].missing == ["a -> a"]


def test_c22_a_hub_cache_of_links_is_a_whole_model(tmp_path):
    blob, snapshot = tmp_path / "blobs/1", tmp_path / "snapshot"
    blob.parent.mkdir()
    snapshot.mkdir()
    blob.write_bytes(b"weights")
    (snapshot / "a").symlink_to(blob)
    assert not _manifest.compare(str(snapshot), _manifest.make(MODEL, [entry("a", b"weights")]))[0]


def test_c23_right_size_wrong_bytes(tmp_path):
    manifest = write(tmp_path, {"shard": b"0123456789"})
    keys = {"shard": _manifest.trust_key(os.stat(tmp_path / "shard"))}
    times = os.stat(tmp_path / "shard")
    (tmp_path / "shard").write_bytes(b"0123456780")
    os.utime(tmp_path / "shard", ns=(times.st_atime_ns, times.st_mtime_ns))
    for trusted in (None, keys):  # the time of the last change of the inode cannot be put back
        difference, read = _manifest.compare(str(tmp_path), manifest, trusted)
        assert read == 1
        (text,) = difference.wrong
        assert text.startswith("shard (sha256 ")
        assert hashlib.sha256(b"0123456780").hexdigest() in text and manifest["files"][0]["sha256"] in text


def test_unchanged_files_are_not_read_again(tmp_path):
    manifest = write(tmp_path, {"a": b"1", "b": b"2"})
    keys = {name: _manifest.trust_key(os.stat(tmp_path / name)) for name in "ab"}
    assert _manifest.compare(str(tmp_path), manifest, keys) == (_manifest.Difference([], [], []), 0)
    (tmp_path / "b").touch()
    assert _manifest.compare(str(tmp_path), manifest, keys)[1] == 1


@pytest.mark.parametrize("leftover", _manifest.CLIENT_LEFTOVERS)
def test_c27_what_clients_leave_is_no_part_of_a_model(tmp_path, leftover):
    manifest = write(tmp_path, {"a": b"1"})
    (tmp_path / leftover).mkdir()
    (tmp_path / leftover / "a.safetensors").write_bytes(b"half")
    (tmp_path / _manifest.FILE_NAME).write_bytes(b"{}")
    assert not _manifest.compare(str(tmp_path), manifest)[0]


def test_a_leftovers_name_deeper_down_is_a_file_like_others(tmp_path):
    manifest = write(tmp_path, {"a": b"1"})
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/.lock").write_bytes(b"")
    assert _manifest.compare(str(tmp_path), manifest)[0].extra == ["sub/.lock"]


def test_long_lists_are_shortened():
    text = _manifest.Difference([f"f{number}" for number in range(7)], [], []).text()
    assert text == "missing: f0, f1, f2, f3, f4 and 2 more"


def test_reading_reports_every_byte_and_starts_with_the_largest(tmp_path, monkeypatch):
    monkeypatch.setattr(_manifest, "BEHIND", 4 << 20)
    sizes = {"small": 10, "large": 9 << 20, "none": 0}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * size)
    seen = []
    found = _manifest.hash_all(str(tmp_path), sizes, seen.append, workers=1)
    assert {name: one.sha256 for name, one in found.items()} == {
        name: hashlib.sha256(b"x" * size).hexdigest() for name, size in sizes.items()
    }
    assert [progress.detail for progress in seen[:3]] == ["large"] * 3 and seen[0].done >= 4 << 20
    assert seen[-1].done == seen[-1].total == sum(sizes.values()) and {progress.stage for progress in seen} == {
        "verify"
    }


def test_a_file_that_cannot_be_read_does_not_hide_the_others(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    os.mkfifo(tmp_path / "pipe")
    found = _manifest.hash_all(str(tmp_path), {"a": 1, "pipe": 0, "gone": 5})
    assert found["a"].sha256 == hashlib.sha256(b"1").hexdigest()
    assert isinstance(found["gone"], FileNotFoundError) and "no file" in str(found["pipe"])


def test_c23_the_page_cache_is_emptied_before_the_reading_and_behind_it(tmp_path, monkeypatch):
    monkeypatch.setattr(_manifest, "BEHIND", 2 << 20)
    (tmp_path / "a").write_bytes(b"x" * (5 << 20))
    told = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, offset, length, _advice: told.append((offset, length)))
    _manifest.hash_file(str(tmp_path / "a"))
    assert told == [(0, 0), (0, 2 << 20), (2 << 20, 2 << 20), (0, 0)]


def test_a_plan_of_a_large_manifest_reads_no_file(tmp_path, monkeypatch):
    entries = []
    for number in range(50):
        with (tmp_path / f"f{number}").open("wb") as handle:
            handle.truncate(1 << 33)
        entries.append({"path": f"f{number}", "size": 1 << 33, "sha256": "0" * 64})
    monkeypatch.setattr(_manifest, "hash_file", lambda *_arguments: pytest.fail("a file was read"))
    planned = _manifest.plan(str(tmp_path), _manifest.make(MODEL, entries))
    assert sum(planned.to_read.values()) == 50 << 33 and not planned.missing and not planned.extra

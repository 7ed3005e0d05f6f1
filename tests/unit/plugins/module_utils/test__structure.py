# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import socket
import struct

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _structure
from hypothesis import given
from hypothesis import strategies as st


def shard(size=16, header=None):
    if header is None:
        header = {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [4], "data_offsets": [0, size]}}
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + b"\1" * size


def write(directory, files):
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)


def index(*names):
    return json.dumps({"weight_map": {f"w{number}": name for number, name in enumerate(names)}}).encode()


def indexed(*present):
    names = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
    return {
        "model.safetensors.index.json": index(*names),
        **{names[number - 1]: shard() for number in present},
    }


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_args, **_options):
        raise AssertionError("a structural check asked the network")

    monkeypatch.setattr(socket, "socket", refuse)


@pytest.mark.parametrize(
    "files",
    [
        indexed(1, 2, 3),
        {"model.safetensors": shard()},
        {f"x-{n:05d}-of-00003.gguf": b"GGUF\3\0\0\0" for n in (1, 2, 3)},
        {"x.gguf": b"GGUF\3\0\0\0"},
        {"sub/model.safetensors": shard(), "sub/model.safetensors.index.json": index("model.safetensors")},
        {"model.safetensors": shard(0, {})},
        {"model.safetensors": shard(), "training_args.bin": b"\x80"},
    ],
    ids=["indexed", "single", "gguf set", "gguf", "sub", "empty tensor list", "other weights"],
)
def test_c25_complete_models(tmp_path, files):
    write(tmp_path, files)
    assert _structure.problems(str(tmp_path)) == []


def test_c24_only_the_missing_shard_is_named(tmp_path):
    write(tmp_path, indexed(1, 3))
    (text,) = _structure.problems(str(tmp_path))
    assert text.startswith("model-00002-of-00003.safetensors:") and "index.json" in text


def test_c24_a_file_that_no_index_names_is_fine(tmp_path):
    write(tmp_path, {**indexed(1, 2, 3), "consolidated.safetensors": shard()})
    assert _structure.problems(str(tmp_path)) == []


def test_c24_a_shard_without_bytes_is_named(tmp_path):
    write(tmp_path, {**indexed(1, 3), "model-00002-of-00003.safetensors": b""})
    (text,) = _structure.problems(str(tmp_path))
    assert text == "model-00002-of-00003.safetensors: empty (0 bytes)"


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "a/../b", "", None, 5], ids=repr)
def test_c24_an_index_that_points_out_of_the_model(tmp_path, name):
    write(tmp_path, {"model.safetensors": shard(), "model.safetensors.index.json": index(name)})
    (text,) = _structure.problems(str(tmp_path))
    assert "no plain path" in text and repr(name) in text


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"weight_map": []}', b'{"weight_map": {"a": []}}', b"\xff", b"[" * 100000]
)
def test_an_index_that_cannot_be_read(tmp_path, content):
    write(tmp_path, {"model.safetensors": shard(), "model.safetensors.index.json": content})
    (text,) = _structure.problems(str(tmp_path))
    assert text.startswith("model.safetensors.index.json: cannot be read")


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_c25_a_gguf_set_needs_all_of_its_parts(tmp_path, missing):
    write(tmp_path, {f"x-{n:05d}-of-00003.gguf": b"GGUF\3\0\0\0" for n in (1, 2, 3) if n != missing})
    (text,) = _structure.problems(str(tmp_path))
    assert text.startswith(f"x-{missing:05d}-of-00003.gguf:")


@pytest.mark.parametrize("files", [{}, {"config.json": b"{}"}], ids=["empty", "no weights"])
def test_c25_no_weights(tmp_path, files):
    write(tmp_path, files)
    (text,) = _structure.problems(str(tmp_path))
    assert str(tmp_path) in text
    (text,) = _structure.problems(str(tmp_path / "absent"))
    assert "absent" in text


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 5\n"


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (shard()[:-1], "its header wants"),
        (shard() + b"1234", "its header wants"),
        (b"", "empty"),
        (b"<!DOCTYPE html><html></html>", "HTML page"),
        (b"\n  <html>", "HTML page"),
        (LFS, "Git LFS pointer"),
        (b"1234567", "too small"),
        (struct.pack("<Q", 1 << 60) + b"x" * 20, "says its header has"),
        (shard(0, b"{"), "cannot be read"),
        (shard(0, b"[]"), "cannot be read"),
        (shard(0, {"w": []}), "cannot be read"),
        (shard(0, {"w": {"data_offsets": [0]}}), "cannot be read"),
        (shard(0, {"w": {"data_offsets": [0, "x"]}}), "cannot be read"),
        (shard(0, {"w": {"data_offsets": [0, None]}}), "cannot be read"),
        (shard(0, b'{"w": {"data_offsets": [0, 1e999]}}'), "cannot be read"),
        (shard(0, {"w": {"data_offsets": {"1": 1}}}), "cannot be read"),
        (shard(0, b"[" * 100000), "cannot be read"),
        (shard(0, b"\xff\xfe"), "cannot be read"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_c26_junk_under_a_shards_name(tmp_path, content, word):
    write(tmp_path, {"model.safetensors": content})
    (text,) = _structure.problems(str(tmp_path))
    assert text.startswith("model.safetensors:") and word in text


@pytest.mark.parametrize("name", ["model.gguf", "pytorch_model.bin", "model.pth"])
def test_c26_junk_under_other_names(tmp_path, name):
    for content, word in ((LFS, "Git LFS pointer"), (b"<html>", "HTML page"), (b"", "empty")):
        write(tmp_path, {name: content})
        (text,) = _structure.problems(str(tmp_path))
        assert text.startswith(f"{name}:") and word in text


def test_c26_a_gguf_file_without_its_mark(tmp_path):
    write(tmp_path, {"model.gguf": b"PK\3\4"})
    assert "GGUF" in _structure.problems(str(tmp_path))[0]


def test_c22_a_dangling_link_is_named_with_its_target(tmp_path):
    (tmp_path / "model.safetensors").symlink_to("../../blobs/abc")
    texts = _structure.problems(str(tmp_path))
    assert any("model.safetensors -> ../../blobs/abc" in text for text in texts)


def test_c27_partials_are_no_weights(tmp_path):
    write(tmp_path, {"model.safetensors": shard(), "._____temp/model-00002.safetensors": b"half"})
    assert _structure.problems(str(tmp_path)) == []


@given(st.binary(max_size=80) | st.binary(max_size=40).map(lambda header: shard(3, header)))
def test_no_bytes_make_it_raise(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(content)
    found = _structure.weight_problems(str(path), "any.safetensors")
    assert all(text.startswith("any.safetensors:") for text in found) and len(found) <= 1

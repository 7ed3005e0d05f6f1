# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
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


def text_of(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


GGUF_TYPES = {"H": 2, "i": 5, "I": 4}


def gguf(tensors=1, content=64, version=3, **metadata):
    """A GGUF file of F32 tensors of 16 elements each, its keys with ``__`` for the dot."""
    raw = b"GGUF" + struct.pack("<IQQ", version, tensors, len(metadata) + 2)
    raw += text_of("general.architecture") + struct.pack("<I", 8) + text_of("llama")
    raw += text_of("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text_of("a") + text_of("b")
    for key, (code, value) in metadata.items():
        raw += text_of(key.replace("__", ".")) + struct.pack(f"<I{code}", GGUF_TYPES[code], value)
    for number in range(tensors):
        raw += text_of(f"w{number}") + struct.pack("<IQIQ", 1, 16, 0, 64 * number)
    raw += b"\0" * (-len(raw) % 32)
    return raw + b"\1" * (content * tensors)


def part(number, count=3, **changes):
    split = {
        "split__no": ("H", number - 1),
        "split__count": ("H", count),
        "split__tensors__count": ("i", count),
    }
    return gguf(**{**split, **changes})


def gguf_set(*numbers):
    return {f"x-{n:05d}-of-00003.gguf": part(n) for n in numbers}


def write(directory, files):
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)


def index(*names, tensors=("w",)):
    """Tensors w1, w2, … in the shards of these names; a single one holds w."""
    names_of = [f"w{number}" for number in range(1, len(names) + 1)] if len(names) > 1 else tensors
    return json.dumps({"weight_map": dict(zip(names_of, names))}).encode()


def holding(*names):
    """A shard with tensors of these names, 16 bytes each."""
    header = {
        name: {"dtype": "F32", "shape": [4], "data_offsets": [16 * number, 16 * number + 16]}
        for number, name in enumerate(names)
    }
    return shard(16 * len(names), header)


def indexed(*present):
    names = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
    return {
        "model.safetensors.index.json": index(*names),
        **{names[number - 1]: holding(f"w{number}") for number in present},
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
        gguf_set(1, 2, 3),
        {"x.gguf": gguf()},
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
    (note,) = _structure.inspect(str(tmp_path)).notes
    assert note.file == "consolidated.safetensors" and "no index names" in note.found


def test_c24_a_shard_without_bytes_is_named(tmp_path):
    write(tmp_path, {**indexed(1, 3), "model-00002-of-00003.safetensors": b""})
    (text,) = _structure.problems(str(tmp_path))
    assert text == "model-00002-of-00003.safetensors: found an empty file (0 bytes), wanted content"


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "a/../b", "", None, 5], ids=repr)
def test_c24_an_index_that_points_out_of_the_model(tmp_path, name):
    write(tmp_path, {"model.safetensors": shard(), "model.safetensors.index.json": index(name)})
    (text,) = _structure.problems(str(tmp_path))
    assert "plain path inside" in text and repr(name) in text


def test_c24_index_and_shards_are_compared_both_ways(tmp_path):
    files = indexed(1, 2, 3)
    files["model-00002-of-00003.safetensors"] = holding("w1", "other")
    write(tmp_path, files)
    found = _structure.inspect(str(tmp_path))
    (lacking,) = found.problems
    assert lacking.file == "model-00002-of-00003.safetensors"
    assert lacking.found == "no tensor w2" and "index.json" in lacking.wanted
    unnamed, twice = found.notes
    assert unnamed.found == "the tensor other" and unnamed.file == twice.file == lacking.file
    assert twice.found == "the tensor w1" and "model-00001-of-00003.safetensors only" in twice.wanted


def test_long_lists_of_tensors_are_shortened(tmp_path):
    names = [f"t{number}" for number in range(9)]
    weight_map = json.dumps({"weight_map": dict.fromkeys(names, "m.safetensors")}).encode()
    write(tmp_path, {"m.safetensors": shard(), "m.safetensors.index.json": weight_map})
    (text,) = _structure.problems(str(tmp_path))
    assert "no tensor t0, t1, t2 and 6 more" in text


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"weight_map": []}', b'{"weight_map": {"a": []}}', b"\xff", b"[" * 100000]
)
def test_an_index_that_cannot_be_read(tmp_path, content):
    write(tmp_path, {"model.safetensors": shard(), "model.safetensors.index.json": content})
    (text,) = _structure.problems(str(tmp_path))
    assert text.startswith("model.safetensors.index.json: found something that cannot be read")


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_c25_a_gguf_set_needs_all_of_its_parts(tmp_path, missing):
    write(tmp_path, gguf_set(*{1, 2, 3} - {missing}))
    (text,) = _structure.problems(str(tmp_path))
    assert text.startswith(f"x-{missing:05d}-of-00003.gguf:")


@pytest.mark.parametrize("files", [{}, {"config.json": b"{}"}], ids=["empty", "no weights"])
def test_c25_no_weights(tmp_path, files):
    write(tmp_path, files)
    (text,) = _structure.problems(str(tmp_path))
    assert str(tmp_path) in text
    (text,) = _structure.problems(str(tmp_path / "absent"))
    assert "absent" in text


def one(**changes):
    entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **changes}
    return {"w": {key: value for key, value in entry.items() if value is not None}}


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 5\n"


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (shard()[:-1], "by its header"),
        (shard() + b"1234", "by its header"),
        (b"", "empty"),
        (b"<!DOCTYPE html><html></html>", "HTML page"),
        (b"\n  <html>", "HTML page"),
        (LFS, "Git LFS pointer"),
        (b"1234567", "too small"),
        (struct.pack("<Q", 1 << 60) + b"x" * 20, "says its header has"),
        (shard(0, one(dtype=None)), "cannot be read"),
        (shard(0, one(shape=[-1])), "cannot be read"),
        (shard(0, one(shape=[True])), "cannot be read"),
        (shard(0, one(shape=4)), "cannot be read"),
        (shard(16, {"w": {"data_offsets": [0, 16]}}), "cannot be read"),
        (shard(12, one(data_offsets=[0, 12])), "12 bytes for 4 x F32"),
        (shard(24, one(data_offsets=[8, 24])), "leaves a hole of 8 bytes"),
        (
            shard(
                16,
                one(data_offsets=[16, 0]),
            ),
            "by its header",
        ),
        (shard(24, {**one(), "v": one(data_offsets=[8, 24])["w"]}), "v overlaps"),
        (shard(40, {**one(), "v": one(data_offsets=[24, 40])["w"]}), "v leaves a hole of 8"),
        (shard(16, {**one(), "v": one(data_offsets=[16, 8])["w"]}), "before it begins"),
        (shard(16, json.dumps(one())[:-1].encode() + b"," + json.dumps(one())[1:].encode()), "w twice"),
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


def test_c22_a_link_out_of_the_model_is_noted(tmp_path):
    write(tmp_path, {"blobs/1": shard(), "model/config.json": b"{}"})
    (tmp_path / "model/model.safetensors").symlink_to("../blobs/1")
    found = _structure.inspect(str(tmp_path / "model"))
    (note,) = found.notes
    assert found.problems == [] and note.file == "model.safetensors" and str(tmp_path / "blobs/1") in note.found


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model", "chat_template.jinja"])
def test_c26_junk_under_the_names_of_other_files(tmp_path, name):
    for content, word in ((LFS, "Git LFS pointer"), (b"<!DOCTYPE html>", "HTML page")):
        write(tmp_path, {"model.safetensors": shard(), name: content})
        (text,) = _structure.problems(str(tmp_path))
        assert text.startswith(f"{name}:") and word in text


def test_files_that_may_be_empty_or_html_are(tmp_path):
    write(tmp_path, {"model.safetensors": shard(), "code/__init__.py": b"", "README.md": b"<html>"})
    found = _structure.inspect(str(tmp_path))
    assert found.problems == [] and [note.file for note in found.notes] == ["code/__init__.py"]


def test_a_pipe_is_no_file(tmp_path):
    write(tmp_path, {"model.safetensors": shard()})
    os.mkfifo(tmp_path / "config.json")
    texts = _structure.problems(str(tmp_path))
    assert texts and texts[0].startswith("config.json: found something that is no file")


def test_a_dtype_that_is_not_known_is_said_to_be_unchecked(tmp_path):
    write(tmp_path, {"model.safetensors": shard(16, one(dtype="F8_NEW"))})
    found = _structure.inspect(str(tmp_path))
    assert found.problems == [] and "F8_NEW" in found.notes[0].found and "not checked" in found.notes[0].found


def test_bytes_by_dtype(tmp_path):
    write(tmp_path, {"a.safetensors": holding("a", "b"), "b.gguf": gguf(2)})
    assert _structure.inspect(str(tmp_path)).dtypes == {"F32": 32 + 128}


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (gguf()[:-1], "by its header"),
        (gguf()[:40], "GGUF header"),
        (gguf(version=1), "version 1"),
        (b"GGUF\0\0\0\3" + b"\0" * 20, "big-endian"),
        (b"GGUF\3", "GGUF header"),
        (b"GGUF\3\0\0\0" + b"\xff" * 16, "tensors"),
        (gguf().replace(text_of("llama"), struct.pack("<Q", 1 << 40) + b"llama"), "a text of"),
        (gguf().replace(struct.pack("<IIQ", 9, 8, 2), struct.pack("<IIQ", 9, 9, 2)), "array"),
        (gguf().replace(struct.pack("<IIQ", 9, 8, 2), struct.pack("<IIQ", 77, 8, 2)), "type 77"),
        (gguf(general__alignment=("I", 0)), "alignment of 0"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_c26_gguf_files_that_are_not_whole(tmp_path, content, word):
    write(tmp_path, {"m.gguf": content})
    (text,) = _structure.problems(str(tmp_path))
    assert text.startswith("m.gguf:") and word in text


def test_bytes_behind_the_last_gguf_tensor_are_noted(tmp_path):
    write(tmp_path, {"m.gguf": gguf() + b"1234"})
    found = _structure.inspect(str(tmp_path))
    assert found.problems == [] and found.notes[0].found == "4 bytes after the last tensor"


def test_c25_parts_of_another_gguf_set(tmp_path):
    files = gguf_set(1, 2, 3)
    write(tmp_path, {**files, "x-00002-of-00003.gguf": files["x-00003-of-00003.gguf"]})
    (text,) = _structure.problems(str(tmp_path))
    assert text.startswith("x-00002-of-00003.gguf: found split.no 2 and split.count 3") and "wanted 1 and 3" in text


def test_c25_the_parts_of_a_gguf_set_have_all_of_its_tensors(tmp_path):
    write(tmp_path, {**gguf_set(1, 2), "x-00003-of-00003.gguf": part(3, tensors=0)})
    (text,) = _structure.problems(str(tmp_path))
    assert "found 2 tensors in all parts, wanted 3" in text


def test_c27_partials_are_no_weights(tmp_path):
    write(tmp_path, {"model.safetensors": shard(), "._____temp/model-00002.safetensors": b"half"})
    assert _structure.problems(str(tmp_path)) == []


SOME = st.binary(max_size=80)


@given(SOME | SOME.map(lambda header: shard(3, header)), SOME | SOME.map(lambda rest: gguf()[:24] + rest))
def test_no_bytes_make_it_raise(tmp_path_factory, one_file, other_file):
    directory = tmp_path_factory.getbasetemp() / "any"
    directory.mkdir(exist_ok=True)
    write(directory, {"any.safetensors": one_file, "any.gguf": other_file, "x.safetensors.index.json": one_file})
    found = _structure.inspect(str(directory)).problems
    assert all(problem.file in os.listdir(directory) for problem in found) and len(found) <= 4

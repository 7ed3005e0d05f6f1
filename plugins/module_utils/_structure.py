# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Structural checks of a model directory without torch: what an index names is there, what is there is whole."""

from __future__ import annotations

import json
import os
import re
import struct
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils._manifest import ManifestError, safe_path, walk

INDEX = re.compile(r"\.safetensors\.index\.json$")
GGUF_PART = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
HEADER_LIMIT = 100 << 20


def problems(directory: str) -> list[str]:
    """Everything that makes the model in *directory* unusable, one sentence each naming the file."""
    present, dangling = walk(directory)
    names = sorted(present)
    weights = [name for name in names if name.endswith(WEIGHTS)]
    found = [f"{link}: a link that leads nowhere" for link in dangling]
    if not weights:
        return [*found, f"{directory}: found no weight file, wanted *.safetensors or *.gguf"]
    for name in weights:
        found += weight_problems(os.path.join(directory, name), name)
    for name in names:
        if INDEX.search(name):
            found += index_problems(directory, name, set(names))
    return found + gguf_set_problems(weights)


def weight_problems(path: str, name: str) -> list[str]:
    """What is wrong with one weight file."""
    size = os.path.getsize(path)
    if size == 0:
        return [f"{name}: empty (0 bytes)"]
    with open(path, "rb") as handle:
        start = handle.read(64)
        if start.startswith(LFS_POINTER):
            return [f"{name}: a Git LFS pointer, not the weights"]
        if start.lstrip()[:9].lower().startswith((b"<!doctype", b"<html")):
            return [f"{name}: an HTML page, not the weights"]
        if name.endswith(".gguf"):
            return [] if start.startswith(b"GGUF") else [f"{name}: does not start with GGUF"]
        if not name.endswith(".safetensors"):
            return []
        return safetensors_problems(handle, name, size)


def safetensors_problems(handle: t.BinaryIO, name: str, size: int) -> list[str]:
    """Check that the header's arithmetic fits the size: 8 + header + the end of the last tensor."""
    handle.seek(0)
    raw = handle.read(8)
    if len(raw) < 8:
        return [f"{name}: {size} bytes, too small for a safetensors header"]
    (length,) = struct.unpack("<Q", raw)
    if length > min(HEADER_LIMIT, size - 8):
        return [f"{name}: says its header has {length} bytes, but the file has {size}"]
    try:
        header = json.loads(handle.read(length))
        ends = [int(entry["data_offsets"][1]) for key, entry in header.items() if key != "__metadata__"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError):
        return [f"{name}: the safetensors header cannot be read"]
    wanted = 8 + length + max(ends, default=0)
    return [] if wanted == size else [f"{name}: {size} bytes, its header wants {wanted}"]


def index_problems(directory: str, name: str, present: set[str]) -> list[str]:
    """Files that an index names and that are absent or outside the directory."""
    try:
        with open(os.path.join(directory, name), encoding="utf-8") as handle:
            shards = sorted(set(json.load(handle)["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return [f"{name}: cannot be read as a safetensors index"]
    found = []
    for shard in shards:
        try:
            safe_path(shard)
        except ManifestError:
            found.append(f"{name}: names {shard!r}, which is no plain path inside the model")
            continue
        if os.path.join(os.path.dirname(name), shard) not in present:
            found.append(f"{shard}: named by {name}, but absent")
    return found


def gguf_set_problems(weights: list[str]) -> list[str]:
    """Parts that a split GGUF set lacks."""
    sets: dict[tuple[str, int], set[int]] = {}
    for name in weights:
        match = GGUF_PART.match(name)
        if match:
            sets.setdefault((match["stem"], int(match["count"])), set()).add(int(match["number"]))
    return [
        f"{stem}-{number:05d}-of-{count:05d}.gguf: part of a split set, but absent"
        for (stem, count), numbers in sorted(sets.items())
        for number in range(1, count + 1)
        if number not in numbers
    ]

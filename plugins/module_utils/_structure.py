# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Structural checks of a model directory without torch: what an index names is there, what is there is whole."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _gguf, _precision, _safetensors
from ansible_collections.tandem.spark.plugins.module_utils._manifest import ManifestError, safe_path, walk

INDEX = ".safetensors.index.json"
GGUF_PART = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
HTML = (b"<!doctype", b"<html")
# Pages and cards begin like that rightly.
HTML_NAMES = (".html", ".htm", ".md")
# The largest published indexes have some 20 MB; this much is still read in 200 MiB.
INDEX_LIMIT = 32 << 20
SHOWN = 3


class Problem(t.NamedTuple):
    """What is wrong with one file."""

    file: str
    found: str
    wanted: str

    def text(self) -> str:
        """One sentence for a message."""
        return f"{self.file}: found {self.found}, wanted {self.wanted}"


class Structure(t.NamedTuple):
    """What a look at every header gave."""

    problems: list[Problem]  # the model cannot be used
    notes: list[Problem]  # engines read it all the same
    dtypes: dict[str, int]  # bytes of the weights by dtype
    precision: _precision.Precision


class Index(t.NamedTuple):
    """An index: which shard each tensor is in."""

    name: str
    shard_of: dict[str, str]  # by tensor; paths from the model's directory on
    names_of: dict[str, list[str]]  # the other way round
    problems: list[Problem]


def problems(directory: str) -> list[str]:
    """Everything that makes the model in *directory* unusable, one sentence each naming the file."""
    return [problem.text() for problem in inspect(directory).problems]


def inspect(directory: str) -> Structure:
    """Look at every header and index below *directory*; the weights themselves are not read."""
    present, dangling = walk(directory)
    look = _Look(directory, present)
    for link in dangling:
        look.problems.append(Problem(link, "a link that leads nowhere", "a file"))
    if not any(name.endswith(WEIGHTS) for name in present):
        look.problems.append(Problem(directory, "no weight file", "*.safetensors or *.gguf"))
    look.indexes = [read_index(directory, name) for name in sorted(present) if name.endswith(INDEX)]
    for name in sorted(present):
        look.at(name)
    for index in look.indexes:
        look.problems += index.problems
        for shard in sorted(set(index.names_of) - set(present)):
            look.problems.append(Problem(shard, "nothing", f"the shard that {index.name} names"))
    look.problems += gguf_set_problems(look.parts)
    try:
        precision = _precision.read(directory)
    except (OSError, ValueError) as error:
        look.problems.append(Problem(directory, str(error), "a configuration that can be read"))
        precision = _precision.Precision(None, None, None)
    return Structure(look.problems, look.notes, look.dtypes, precision)


class _Look:
    """One walk over the files of a model, a header at a time: no more than one is in memory."""

    def __init__(self, directory: str, present: dict[str, os.stat_result]) -> None:
        self.directory = directory
        self.root = os.path.realpath(directory)
        self.present = present
        self.indexes: list[Index] = []
        self.problems: list[Problem] = []
        self.notes: list[Problem] = []
        self.dtypes: dict[str, int] = {}
        self.parts: dict[str, _gguf.Header | None] = {}

    def at(self, name: str) -> None:
        status = self.present[name]
        path = os.path.join(self.directory, name)
        if not stat.S_ISREG(status.st_mode):
            self.problems.append(Problem(name, "something that is no file", "a file"))
            return
        target = os.path.realpath(path)
        if os.path.commonpath([target, self.root]) != self.root:
            self.notes.append(Problem(name, f"a link out of the model, to {target}", "a file, which copies take along"))
        if status.st_size == 0:
            # Other files, such as a package's __init__.py, can be meant to be empty.
            (self.problems if name.endswith(WEIGHTS) else self.notes).append(
                Problem(name, "an empty file (0 bytes)", "content")
            )
            if name.endswith(".gguf"):
                self.parts[name] = None
            return
        with open(path, "rb") as handle:
            start = handle.read(64)
            if start.startswith(LFS_POINTER):
                self.problems.append(Problem(name, "a Git LFS pointer", "the file itself"))
            elif start.lstrip().lower().startswith(HTML) and not name.endswith(HTML_NAMES):
                self.problems.append(Problem(name, "an HTML page", "the file itself"))
            elif name.endswith(".safetensors"):
                self._safetensors(name, _safetensors.read(handle, status.st_size))
                return
            elif name.endswith(".gguf"):
                self._gguf(name, _gguf.read(handle, status.st_size))
                return
        if name.endswith(".gguf"):
            self.parts[name] = None

    def _safetensors(self, name: str, header: _safetensors.Header) -> None:
        if header.found is not None:
            self.problems.append(Problem(name, header.found, header.wanted))
        if header.unknown_dtypes:
            unknown = f"the dtypes {', '.join(header.unknown_dtypes)}, of which the lengths were not checked"
            self.notes.append(Problem(name, unknown, f"known ones: {', '.join(_safetensors.DTYPES)}"))
        for tensor in header.tensors.values():
            self._count(tensor.dtype, tensor.end - tensor.begin)
        beside = [index for index in self.indexes if os.path.dirname(index.name) == os.path.dirname(name)]
        naming = [index for index in beside if name in index.names_of]
        if beside and not naming and not any(index.problems for index in beside):
            self.notes.append(Problem(name, "a file that no index names", f"a shard of {beside[0].name}"))
        if not header.tensors and header.found is not None:
            return
        for index in naming:
            lacking = [tensor for tensor in index.names_of[name] if tensor not in header.tensors]
            if lacking:
                self.problems.append(Problem(name, f"no tensor {_few(lacking)}", f"it, as {index.name} says"))
            unnamed = [tensor for tensor in header.tensors if tensor not in index.shard_of]
            if unnamed:
                self.notes.append(Problem(name, f"the tensor {_few(unnamed)}", f"only those of {index.name}"))
            twice = [tensor for tensor in header.tensors if index.shard_of.get(tensor, name) != name]
            if twice:
                self.notes.append(
                    Problem(name, f"the tensor {_few(twice)}", f"it in {index.shard_of[twice[0]]} only ({index.name})")
                )

    def _gguf(self, name: str, header: _gguf.Header) -> None:
        self.parts[name] = header
        if header.found is not None:
            self.problems.append(Problem(name, header.found, header.wanted))
        if header.trailing:
            self.notes.append(Problem(name, f"{header.trailing} bytes after the last tensor", "none"))
        for label, length in header.types.items():
            self._count(label, length)

    def _count(self, dtype: str, length: int) -> None:
        self.dtypes[dtype] = self.dtypes.get(dtype, 0) + max(0, length)


def _few(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def read_index(directory: str, name: str) -> Index:
    """Read an index; shards whose names leave the model's directory are named among its problems."""
    try:
        with open(os.path.join(directory, name), "rb") as handle:
            raw = handle.read(INDEX_LIMIT + 1)
        if len(raw) > INDEX_LIMIT:
            return Index(name, {}, {}, [Problem(name, f"more than {INDEX_LIMIT} bytes", "an index of at most that")])
        weight_map: dict[str, t.Any] = json.loads(raw, object_pairs_hook=_interned)["weight_map"]
        shards = set(weight_map.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Index(name, {}, {}, [Problem(name, "something that cannot be read as an index", "JSON with weight_map")])
    del raw
    wrong, place_of = [], {}
    for shard in sorted(shards, key=repr):
        try:
            place_of[shard] = os.path.join(os.path.dirname(name), safe_path(shard))
        except ManifestError:
            wrong.append(Problem(name, f"the shard {shard!r}", "a plain path inside the model"))
    shard_of = {key: place_of[shard] for key, shard in weight_map.items() if shard in place_of}
    names_of: dict[str, list[str]] = {}
    for key, place in shard_of.items():
        names_of.setdefault(place, []).append(key)
    return Index(name, shard_of, names_of, wrong)


def _interned(pairs: list[tuple[str, t.Any]]) -> dict[str, t.Any]:
    """Each shard's name once in memory, not once per tensor."""
    return {key: sys.intern(value) if isinstance(value, str) else value for key, value in pairs}


def gguf_set_problems(parts: dict[str, _gguf.Header | None]) -> list[Problem]:
    """Parts that a split GGUF set lacks, and parts that say themselves that they are of another set.

    A header that could not be read is None or has ``found``, and was named already.
    """
    sets: dict[tuple[str, int], dict[int, str]] = {}
    for name in parts:
        match = GGUF_PART.match(name)
        if match:
            sets.setdefault((match["stem"], int(match["count"])), {})[int(match["number"])] = name
    wrong = []
    for (stem, count), numbers in sorted(sets.items()):
        missing = [number for number in range(1, count + 1) if number not in numbers]
        wrong += [
            Problem(f"{stem}-{number:05d}-of-{count:05d}.gguf", "nothing", "this part of a split set")
            for number in missing[:1000]
        ]
        headers = {number: parts[name] for number, name in numbers.items()}
        whole = {number: header for number, header in headers.items() if header is not None and header.found is None}
        for number, header in sorted(whole.items()):
            says = (header.metadata.get("split.no"), header.metadata.get("split.count"))
            if says not in ((number - 1, count), (None, None)):
                wrong.append(
                    Problem(
                        numbers[number],
                        f"split.no {says[0]} and split.count {says[1]} in it",
                        f"{number - 1} and {count} by its name",
                    )
                )
        totals = {
            header.metadata["split.tensors.count"]
            for header in whole.values()
            if "split.tensors.count" in header.metadata
        }
        have = sum(header.tensors for header in whole.values())
        if len(whole) == count and totals and totals != {have}:
            wanted = " or ".join(map(str, sorted(totals, key=repr)))
            wrong.append(Problem(f"{stem}-*-of-{count:05d}.gguf", f"{have} tensors in all parts", wanted))
    return wrong

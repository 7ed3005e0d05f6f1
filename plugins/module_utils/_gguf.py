# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""The header of a GGUF file: version, counts, split metadata, and where the last tensor ends.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; sizes of the types as in gguf-py 0.19 (constants.py).
"""

from __future__ import annotations

import struct
import typing as t

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
STRING, ARRAY = 8, 9
# Bytes of a metadata value by its type: u8 i8 u16 i16 u32 i32 f32 bool - - u64 i64 f64.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# Type: (name, elements of a block, bytes of a block).
TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
# More than any tokenizer or model has; a wrong count must not keep the check busy for hours.
COUNT_LIMIT = 10_000_000
TEXT_LIMIT = 16 << 20


class Header(t.NamedTuple):
    """What a header says, or why it cannot be used (*found* and *wanted*)."""

    found: str | None = None
    wanted: str = ""
    metadata: dict[str, t.Any] = {}  # the scalars and strings of general.* and split.*
    tensors: int = 0
    types: dict[str, int] = {}  # bytes by type
    trailing: int = 0  # bytes after the last tensor


class _Broken(ValueError):
    """The text says what is wrong."""


def read(handle: t.BinaryIO, size: int) -> Header:
    """Read and check the header of a file of *size* bytes. Never raises for what is in the file."""
    handle.seek(0)
    start = handle.read(8)
    if not start.startswith(MAGIC):
        return Header(f"a file that begins with {start[:4]!r}", "GGUF")
    if len(start) < 8:
        return Header(f"{size} bytes", "a GGUF header")
    (version,) = struct.unpack("<I", start[4:])
    if version not in VERSIONS:
        big = version & 0xFFFF == 0
        return Header(
            "a big-endian GGUF file" if big else f"GGUF version {version}",
            "a little-endian one" if big else f"version {' or '.join(map(str, VERSIONS))}",
        )
    try:
        return _Reader(handle, size).header()
    except _Broken as error:
        return Header(str(error), "a whole GGUF header")
    except (struct.error, UnicodeDecodeError, OverflowError):
        return Header("a GGUF header that ends too early or cannot be read", "a whole one")


class _Reader:
    def __init__(self, handle: t.BinaryIO, size: int) -> None:
        self.handle, self.size = handle, size

    def scalar(self, code: str) -> t.Any:
        return struct.unpack(f"<{code}", self.handle.read(struct.calcsize(f"<{code}")))[0]

    def count(self, what: str) -> int:
        number: int = self.scalar("Q")
        if number > COUNT_LIMIT:
            raise _Broken(f"{number} {what}")
        return number

    def bytes_(self) -> bytes:
        length: int = self.scalar("Q")
        if length > TEXT_LIMIT:
            raise _Broken(f"a text of {length} bytes")
        text = self.handle.read(length)
        if len(text) < length:
            raise _Broken(f"a text of {length} bytes, {len(text)} of them there")
        return text

    def value(self, kind: int) -> t.Any:
        """A scalar or a text; an array is stepped over and is None."""
        if kind == STRING:
            return self.bytes_().decode("utf-8", "replace")
        if kind in SCALARS:
            return self.scalar(SCALARS[kind])
        if kind != ARRAY:
            raise _Broken(f"metadata of the unknown type {kind}")
        inner: int = self.scalar("I")
        number = self.count("entries in an array")
        if inner in SCALARS:
            self.handle.seek(number * struct.calcsize(f"<{SCALARS[inner]}"), 1)
            return None
        if inner != STRING:
            raise _Broken(f"an array of the type {inner}")
        for _each in range(number):
            self.bytes_()
        return None

    def header(self) -> Header:
        tensors = self.count("tensors")
        entries = self.count("metadata entries")
        metadata: dict[str, t.Any] = {}
        for _each in range(entries):
            key = self.bytes_().decode("utf-8", "replace")
            value = self.value(self.scalar("I"))
            if key.startswith(("general.", "split.")) and value is not None:
                metadata[key] = value
        types: dict[str, int] = {}
        end = 0
        known = True
        for _each in range(tensors):
            name = self.bytes_().decode("utf-8", "replace")
            dimensions: int = self.scalar("I")
            if dimensions > 8:
                raise _Broken(f"a tensor {name} of {dimensions} dimensions")
            elements = 1
            for _axis in range(dimensions):
                elements *= self.scalar("Q")
            kind, offset = self.scalar("I"), self.scalar("Q")
            label, block, width = TYPES.get(kind, (f"type {kind}", 0, 0))
            known = known and block > 0
            length = elements // block * width if block else 0
            types[label] = types.get(label, 0) + length
            end = max(end, offset + length)
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise _Broken(f"an alignment of {alignment!r}")
        start = -(-self.handle.tell() // alignment) * alignment if tensors else self.handle.tell()
        if start + end > self.size:
            return Header(f"{self.size} bytes", f"{start + end} by its header", metadata, tensors, types)
        # The last tensor is padded by some writers and not by others.
        padded = start + -(-end // alignment) * alignment
        trailing = max(0, self.size - max(padded, start)) if known else 0
        return Header(metadata=metadata, tensors=tensors, types=types, trailing=trailing)

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""The header of a safetensors file: what it must say to be read by an engine, checked without torch.

The rules are those of the format's own library: offsets that begin at 0 and follow each other without a hole or an
overlap, each as long as shape and dtype say, the last one ending with the file.
Source: https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import struct
import sys
import typing as t

# Bits of an element.
DTYPES = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
# The library refuses more than 100 MB. A shard of today's largest models has 2; this much is still read in 200 MiB.
HEADER_LIMIT = 24 << 20
SHOWN = 3


class Tensor(t.NamedTuple):
    """One entry of a header. Offsets count from the end of the header."""

    dtype: str
    elements: int
    begin: int
    end: int


class Header(t.NamedTuple):
    """What a header says, or why it cannot be used (*found* and *wanted*)."""

    tensors: dict[str, Tensor]
    found: str | None = None
    wanted: str = ""
    unknown_dtypes: tuple[str, ...] = ()


class _Repeated(ValueError):
    """A name that stands twice."""


def read(handle: t.BinaryIO, size: int) -> Header:
    """Read and check the header of a file of *size* bytes. Never raises for what is in the file."""
    handle.seek(0)
    raw = handle.read(8)
    if len(raw) < 8:
        return Header({}, f"{size} bytes", "a safetensors file, this is too small for its header")
    (length,) = struct.unpack("<Q", raw)
    if length > size - 8:
        return Header({}, f"{size} bytes", f"more: it says its header has {length}")
    if length > HEADER_LIMIT:
        return Header({}, f"it says its header has {length} bytes", f"at most {HEADER_LIMIT}, which this check reads")
    try:
        tensors = _parse(handle.read(length))
    except _Repeated as error:
        return Header({}, f"the tensor {error} twice in its header", "each tensor once")
    except (ValueError, TypeError, RecursionError):
        return Header({}, "a safetensors header that cannot be read", "JSON with dtype, shape and data_offsets")
    wanted = 8 + length + max((tensor.end for tensor in tensors.values()), default=0)
    if wanted != size:
        return Header(tensors, f"{size} bytes", f"{wanted} by its header")
    wrong = _misplaced(tensors)
    unknown = tuple(sorted({tensor.dtype for tensor in tensors.values()} - set(DTYPES)))
    if wrong:
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        return Header(tensors, "; ".join(wrong[:SHOWN]) + more, "tensors that follow each other", unknown)
    return Header(tensors, unknown_dtypes=unknown)


def _parse(raw: bytes) -> dict[str, Tensor]:
    header = json.loads(raw, object_pairs_hook=_object)
    if not isinstance(header, tuple) or isinstance(header, Tensor):
        raise ValueError("no mapping")
    tensors: dict[str, Tensor] = {}
    for name, entry in header:
        if name == "__metadata__":
            continue
        if not isinstance(entry, Tensor):
            raise ValueError(name)
        if name in tensors:
            raise _Repeated(name)
        tensors[name] = entry
    return tensors


def _object(pairs: list[tuple[str, t.Any]]) -> t.Any:
    """A tensor's entry as four words: hundreds of thousands of mappings would take more memory than may be used."""
    entry = dict(pairs)
    if set(entry) != {"dtype", "shape", "data_offsets"}:
        return tuple(pairs)
    shape, (begin, end) = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not isinstance(entry["dtype"], str):
        raise ValueError("dtype or shape")
    elements = 1
    for number in (*shape, begin, end):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 63:
            raise ValueError("no size")
    for number in shape:
        elements *= number
    return Tensor(sys.intern(entry["dtype"]), elements, begin, end)


def _misplaced(tensors: dict[str, Tensor]) -> list[str]:
    """Tensors that overlap, leave a hole, or are not as long as dtype and shape say."""
    wrong = []
    place = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        span = tensor.end - tensor.begin
        bits = DTYPES.get(tensor.dtype)
        if span < 0:
            wrong.append(f"tensor {name} ends at {tensor.end} before it begins at {tensor.begin}")
            continue
        if tensor.begin != place:
            what = (
                "overlaps the one before" if tensor.begin < place else f"leaves a hole of {tensor.begin - place} bytes"
            )
            wrong.append(f"tensor {name} {what}")
        if bits is not None and span * 8 != bits * tensor.elements:
            wrong.append(f"tensor {name} has {span} bytes for {tensor.elements} x {tensor.dtype}")
        place = max(place, tensor.end)
    return wrong

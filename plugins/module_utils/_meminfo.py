# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What the kernel says about memory, and what an engine may take of it on a machine with one memory for CPU and GPU.

The driver of a GB10 takes memory that is free in the kernel's sense (MemFree) and does not make the kernel give up page
cache for it. So two numbers matter before a start: MemFree (will an allocation succeed now) and MemAvailable (what is
there once the page cache has been dropped). Both forms of the reporting are described in
https://docs.nvidia.com/dgx/dgx-spark/known-issues.html and measured in unslothai/unsloth#10704.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _values

KIB = 1024
BLOCK = 2 * 1024 * 1024  # the driver asks the page allocator for blocks of 2 MiB
_COUNTS = ("HugePages_Total", "HugePages_Free", "HugePages_Rsvd", "HugePages_Surp")
_NAME = re.compile(r"^[A-Za-z0-9_()]+$", re.ASCII)
_ZONE = re.compile(r"^Node\s+(\d+),\s+zone\s+(\S+)\s+((?:\d+\s*)+)$", re.ASCII)


def parse(content: str | None) -> dict[str, int]:
    """/proc/meminfo with every size in bytes (counts of huge pages stay counts), without lines that say nothing."""
    found: dict[str, int] = {}
    for name, value in _values.pairs(content).items():
        if not _NAME.match(name):
            continue
        number = _values.integer(value) if name in _COUNTS else _size(value)
        if number is not None and number >= 0:
            found[name] = number
    return found


def _size(value: str) -> int | None:
    return _values.size(value) if value.lower().endswith("kb") else None


def buddy(content: str | None, page_size: int | None) -> dict[str, t.Any]:
    """/proc/buddyinfo: free bytes in blocks of at least 2 MiB, and the number of free blocks by their size in bytes.

    Everything is None when the file or the page size is not known; a line that is cut off is left out.
    """
    nothing: dict[str, t.Any] = {"large_free_bytes": None, "blocks": None}
    if not content or not page_size or page_size < 1:
        return nothing
    blocks: dict[int, int] = {}
    for line in content.splitlines():
        match = _ZONE.match(line.strip())
        if match is None:
            continue
        for order, count in enumerate(match.group(3).split()):
            size = page_size << order
            blocks[size] = blocks.get(size, 0) + int(count)
    if not blocks:
        return nothing
    return {
        "large_free_bytes": sum(size * count for size, count in blocks.items() if size >= BLOCK),
        "blocks": {str(size): count for size, count in sorted(blocks.items())},
    }


def droppable(memory: t.Mapping[str, int]) -> int | None:
    """Bytes that dropping the page cache would free at least.

    Buffers + Cached + SReclaimable - Shmem - Mapped - Dirty - Writeback: shared memory is part of Cached and cannot be
    dropped, mapped pages are in use, dirty ones have to be written first. Never below zero.
    """
    if not all(name in memory for name in ("Buffers", "Cached")):
        return None
    gain = memory["Buffers"] + memory["Cached"] + memory.get("SReclaimable", 0)
    return max(0, gain - sum(memory.get(name, 0) for name in ("Shmem", "Mapped", "Dirty", "Writeback")))


def engine_share(memory: t.Mapping[str, int], unified: bool | None) -> dict[str, t.Any]:
    """What an engine on a unified-memory machine may allocate: now, and after the page cache has been dropped.

    Only for unified memory: elsewhere the engine allocates from the GPU's own memory, and every number is None.
    """
    now = memory.get("MemFree") if unified else None
    available = memory.get("MemAvailable") if unified else None
    gain = droppable(memory) if unified else None
    after: int | None = None
    if now is not None and gain is not None:
        after = now + gain if available is None else max(now, min(available, now + gain))
    huge = memory.get("HugePages_Free", 0) * memory.get("Hugepagesize", 0)
    vendor: int | None = None
    if unified and memory.get("HugePages_Total"):
        vendor = huge
    elif available is not None:
        vendor = available + memory.get("SwapFree", 0)
    return {
        "now_bytes": now,
        "after_drop_caches_bytes": after,
        "vendor_estimate_bytes": vendor,
        "arithmetic": {
            "now_bytes": "MemFree",
            "after_drop_caches_bytes": (
                "the smaller of MemAvailable and MemFree + Buffers + Cached + SReclaimable - Shmem - Mapped - Dirty"
                " - Writeback, and at least MemFree"
            ),
            "vendor_estimate_bytes": (
                "MemAvailable + SwapFree, or HugePages_Free x Hugepagesize when huge pages are set up"
                " (https://docs.nvidia.com/dgx/dgx-spark/known-issues.html)"
            ),
        },
    }


def contiguous(memory: t.Mapping[str, int]) -> dict[str, t.Any]:
    """CMA totals. CmaFree above CmaTotal is the sign of a kexec-handover reserve (NVIDIA/NV-Kernels#591)."""
    total, free = memory.get("CmaTotal"), memory.get("CmaFree")
    known = total is not None and free is not None
    excess = max(0, free - total) if total is not None and free is not None else None
    return {
        "total_bytes": total,
        "free_bytes": free,
        "excess_bytes": excess,
        "exceeds": (bool(excess) if known else None),
    }


def kernel_option(cmdline: str | None, name: str) -> str | None:
    """The last value of ``name=value`` on the kernel command line; an option without a value is an empty string."""
    value = None
    for word in (cmdline or "").split():
        option, _equals, rest = word.partition("=")
        if option == name:
            value = rest
    return value


def assemble(
    meminfo: str | None,
    buddyinfo: str | None,
    page_size: int | None,
    cmdline: str | None,
    unified: bool | None,
    unified_source: str | None,
) -> dict[str, t.Any]:
    """The value of ``ansible_facts.spark_memory`` without the settings of the kernel."""
    memory = parse(meminfo)
    blocks = buddy(buddyinfo, page_size)
    handover = None if cmdline is None else (kernel_option(cmdline, "kho") or None)
    return {
        "unified": unified,
        "unified_source": unified_source,
        "total_bytes": memory.get("MemTotal"),
        "available_bytes": memory.get("MemAvailable"),
        "free_bytes": memory.get("MemFree"),
        "buffers_bytes": memory.get("Buffers"),
        "cached_bytes": memory.get("Cached"),
        "shared_bytes": memory.get("Shmem"),
        "mapped_bytes": memory.get("Mapped"),
        "dirty_bytes": memory.get("Dirty"),
        "slab_reclaimable_bytes": memory.get("SReclaimable"),
        "reclaimable_bytes": droppable(memory),
        "locked_bytes": memory.get("Mlocked"),
        "swap_total_bytes": memory.get("SwapTotal"),
        "swap_free_bytes": memory.get("SwapFree"),
        "commit_limit_bytes": memory.get("CommitLimit"),
        "committed_bytes": memory.get("Committed_AS"),
        "hugepages": {
            "total": memory.get("HugePages_Total"),
            "free": memory.get("HugePages_Free"),
            "size_bytes": memory.get("Hugepagesize"),
        },
        "cma": {**contiguous(memory), "kho_option": handover, "cmdline_known": cmdline is not None},
        "buddy": {"page_size_bytes": page_size, **blocks},
        "engine": engine_share(memory, unified),
        "source": "/proc/meminfo" if memory else None,
    }

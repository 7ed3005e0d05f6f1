# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _meminfo

GIB = 1024**3


def share(content, unified=True):
    return _meminfo.engine_share(_meminfo.parse(content), unified)


def test_hw08_page_cache_counts_as_used_for_the_driver(read):
    before, after = read("meminfo/before-60gb-file.txt"), read("meminfo/after-60gb-file.txt")
    # cuda_free was 103.25 and 41.52 GiB: MemFree, not MemAvailable
    assert round(share(before)["now_bytes"] / GIB, 2) == 103.25
    assert round(share(after)["now_bytes"] / GIB, 2) == 41.52
    # dropping the page cache gives back what MemAvailable promises, and no more
    for content, available, cached, free in ((before, 115.85, 12.64, 103.25), (after, 115.65, 72.64, 41.52)):
        given = share(content)["after_drop_caches_bytes"] / GIB
        assert round(given, 2) == round(min(available, free + cached), 2)


def test_the_arithmetic_of_dropping_caches():
    memory = {"MemFree": 100, "MemAvailable": 10**6, "Buffers": 10, "Cached": 1000, "SReclaimable": 50}
    memory.update(Shmem=200, Mapped=100, Dirty=30, Writeback=5)
    assert _meminfo.droppable(memory) == 10 + 1000 + 50 - 200 - 100 - 30 - 5
    assert _meminfo.engine_share(memory, True)["after_drop_caches_bytes"] == 100 + 725
    memory["MemAvailable"] = 300
    assert _meminfo.engine_share(memory, True)["after_drop_caches_bytes"] == 300
    memory["MemAvailable"] = 50  # never below what is free now
    assert _meminfo.engine_share(memory, True)["after_drop_caches_bytes"] == 100


def test_the_estimate_of_the_vendor():
    memory = {"MemFree": 1, "MemAvailable": 100, "SwapFree": 50}
    assert _meminfo.engine_share(memory, True)["vendor_estimate_bytes"] == 150
    memory.update(HugePages_Total=4, HugePages_Free=3, Hugepagesize=2048)
    assert _meminfo.engine_share(memory, True)["vendor_estimate_bytes"] == 3 * 2048


@pytest.mark.parametrize("unified", [False, None])
def test_nothing_is_said_about_a_machine_that_is_not_known_to_be_unified(read, unified):
    found = share(read("meminfo/gb10.txt"), unified)
    assert {found[k] for k in ("now_bytes", "after_drop_caches_bytes", "vendor_estimate_bytes")} == {None}


def test_c01_128_gb_is_wrong_in_both_units(read):
    total = _meminfo.parse(read("meminfo/gb10.txt"))["MemTotal"]
    assert total == 130663165952
    assert round(total / GIB, 2) == 121.69 and round(total / 1e9, 2) == 130.66


@pytest.mark.parametrize(
    "content", [None, "", "MemTotal:", "MemTotal: [N/A] kB", "MemTotal: -5 kB", "MemTotal: 12 MB", "\0\0"]
)
def test_c02_an_unreadable_total_is_none(content):
    found = _meminfo.assemble(content, None, 4096, None, True, "test")
    assert found["total_bytes"] is None and found["source"] is None and found["engine"]["now_bytes"] is None


@pytest.mark.parametrize(
    ("file", "exceeds", "excess"),
    [
        ("meminfo/kho.txt", True, 9961472 * 1024),
        ("meminfo/ubuntu-7.0.0-31-kho.txt", True, (9751757 - 32768) * 1024),
        ("meminfo/gb10.txt", False, 0),
        ("meminfo/before-60gb-file.txt", None, None),
    ],
)
def test_c09_more_contiguous_memory_free_than_there_is(read, file, exceeds, excess):
    found = _meminfo.contiguous(_meminfo.parse(read(file)))
    assert found["exceeds"] is exceeds and found["excess_bytes"] == excess


@pytest.mark.parametrize(
    ("cmdline", "value"),
    [("a kho=off quiet", "off"), ("kho=on kho=off", "off"), ("kho", ""), ("xkho=off", None), ("", None), (None, None)],
)
def test_c09_the_option_on_the_kernel_command_line(cmdline, value):
    assert _meminfo.kernel_option(cmdline, "kho") == value


def test_buddy_blocks_of_two_mebibytes(read):
    found = _meminfo.buddy(read("h200/proc-buddyinfo.txt"), 4096)
    # orders 9 and 10 of the zones DMA, DMA32 and Normal
    assert found["large_free_bytes"] == (1 + 0 + 47) * 2 * 1024**2 + (3 + 753 + 67) * 4 * 1024**2
    assert found["blocks"]["4194304"] == 3 + 753 + 67


def test_buddy_with_large_pages():
    line = "Node 0, zone   Normal   1 1 1 1 1 7"
    assert _meminfo.buddy(line, 65536)["large_free_bytes"] == 7 * 2 * 1024**2


@pytest.mark.parametrize(
    ("content", "page"),
    [
        (None, 4096),
        ("", 4096),
        ("nonsense", 4096),
        ("Node 0, zone Normal 1 2", None),
        ("Node 0, zone Normal 1 x", 4096),
    ],
)
def test_buddy_that_cannot_be_read(content, page):
    assert _meminfo.buddy(content, page) == {"large_free_bytes": None, "blocks": None}

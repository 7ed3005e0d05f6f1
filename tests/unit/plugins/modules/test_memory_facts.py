# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import time

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.tandem.spark.plugins.modules import memory_facts

GIB = 1024**3


def run(capsys, machine, **args):
    with patch_module_args({"root": str(machine.root), **args}), pytest.raises(SystemExit) as stop:
        memory_facts.main()
    result = json.loads(capsys.readouterr().out)
    assert stop.value.code == 0 and result["changed"] is False
    return result["ansible_facts"]["spark_memory"]


def test_a_healthy_spark(capsys, spark):
    found = run(capsys, spark)
    assert found["unified"] is True and found["unified_source"] == "PCI 10de:2e12"
    assert found["total_bytes"] == 130663165952
    assert found["swap_total_bytes"] == 16777212 * 1024
    assert found["engine"]["now_bytes"] == found["free_bytes"]
    assert found["free_bytes"] < found["engine"]["after_drop_caches_bytes"] <= found["available_bytes"]
    assert found["buddy"]["large_free_bytes"] == (26000 * 2 + 67 * 4) * 1024**2
    assert found["cma"]["exceeds"] is False and found["cma"]["kho_option"] is None


@pytest.mark.parametrize(
    ("take_away", "source"),
    [
        (["/sys/bus/pci/devices"], "/proc/driver/nvidia/gpus"),
        (["/sys/bus/pci/devices", "/proc/driver/nvidia/gpus"], "known name of an integrated GPU"),
        (["/sys/bus/pci/devices", "/proc/driver/nvidia/gpus", "/usr/bin/nvidia-smi"], None),
    ],
)
def test_where_unified_comes_from(capsys, spark, take_away, source):
    for name in take_away:
        spark.remove(name)
    found = run(capsys, spark)
    assert found["unified_source"] == source
    assert found["unified"] is (True if source else None)


def test_a_discrete_gpu_is_not_unified(capsys, spark):
    spark.remove("/sys/bus/pci/devices")
    spark.remove("/proc/driver/nvidia/gpus")
    spark.tool("nvidia-smi", "echo '0, NVIDIA RTX 6000, 24564'")
    found = run(capsys, spark)
    assert found["unified"] is False and found["unified_source"] == "nvidia-smi memory.total"
    assert found["engine"]["now_bytes"] is None and found["engine"]["after_drop_caches_bytes"] is None


def test_an_unknown_gpu_without_a_size_is_not_called_unified(capsys, spark):
    spark.remove("/sys/bus/pci/devices")
    spark.remove("/proc/driver/nvidia/gpus")
    spark.tool("nvidia-smi", "echo '0, NVIDIA X1, [N/A]'")
    assert run(capsys, spark)["unified"] is None


def test_nothing_is_there(capsys, empty_machine):
    found = run(capsys, empty_machine)
    assert found["unified"] is None and found["source"] is None
    for field in (
        "total_bytes",
        "available_bytes",
        "free_bytes",
        "cached_bytes",
        "swap_total_bytes",
        "swap_free_bytes",
    ):
        assert found[field] is None
    assert found["cma"]["exceeds"] is None and found["buddy"]["large_free_bytes"] is None
    assert found["cma"]["cmdline_known"] is False


def test_a_hanging_nvidia_smi_does_not_hold_it_up(capsys, spark):
    spark.remove("/sys/bus/pci/devices")
    spark.remove("/proc/driver/nvidia/gpus")
    spark.tool("nvidia-smi", "sleep 60")
    start = time.monotonic()
    found = run(capsys, spark, timeout=0.3)
    assert time.monotonic() - start < 3
    assert found["unified"] is None and found["total_bytes"] == 130663165952


def test_settings_and_pressure(capsys, spark):
    spark.write("/proc/sys/vm/swappiness", "60\n")
    spark.write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    spark.write(
        "/proc/pressure/memory",
        "some avg10=1.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.10 avg60=0 avg300=0 total=1\n",
    )
    found = run(capsys, spark)
    assert found["settings"]["swappiness"] == 60 and found["settings"]["transparent_hugepage"] == "madvise"
    assert found["settings"]["min_free_kbytes"] is None
    assert found["pressure"]["some"]["avg10"] == 1.5 and found["pressure"]["full"]["avg10"] == 0.1


def test_huge_pages_change_the_estimate_of_the_vendor(capsys, spark, read):
    memory = read("meminfo/gb10.txt").replace("HugePages_Total:       0", "HugePages_Total:    1024")
    spark.write("/proc/meminfo", memory.replace("HugePages_Free:        0", "HugePages_Free:     1000"))
    found = run(capsys, spark)
    assert found["engine"]["vendor_estimate_bytes"] == 1000 * 2 * 1024**2
    assert found["hugepages"] == {"total": 1024, "free": 1000, "size_bytes": 2 * 1024**2}

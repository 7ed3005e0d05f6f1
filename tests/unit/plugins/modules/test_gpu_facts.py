# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import time

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.tandem.spark.plugins.modules import gpu_facts

STANDINS = pathlib.Path(__file__).parents[3] / "lab" / "standins"


def run(capsys, machine, **args):
    with patch_module_args({"root": str(machine.root), **args}), pytest.raises(SystemExit) as stop:
        gpu_facts.main()
    result = json.loads(capsys.readouterr().out)
    assert stop.value.code == 0
    assert result["changed"] is False
    return result["ansible_facts"]["spark_gpu"]


def compiler():
    return shutil.which("cc") or pytest.skip("needs a C compiler")


def library(machine, source, tmp_path):
    (tmp_path / "fake.c").write_text(source, encoding="utf-8")
    target = machine.path("/usr/lib/aarch64-linux-gnu/libcuda.so.1")
    target.unlink(missing_ok=True)
    subprocess.run([compiler(), "-shared", "-fPIC", "-o", target, tmp_path / "fake.c"], check=True)


def test_a_healthy_spark(capsys, spark):
    found = run(capsys, spark)
    device = found["devices"][0]
    assert found["count"] == 1 and found["probe"] == "ok"
    assert device["name"] == "NVIDIA GB10"
    assert device["compute_capability"] == "12.1" and device["architecture"] == "sm_121"
    assert device["memory_unified"] is True and device["memory_total_bytes"] == 130663165952
    assert device["memory_used_bytes"] is None and device["memory_free_bytes"] is None
    assert device["addressing_mode"] == "ATS" and device["c2c_mode"] == "Enabled"
    assert device["sources"]["memory_total_bytes"] == "/proc/meminfo MemTotal"
    assert found["driver"]["loaded"] == found["driver"]["installed"] == "580.142"
    assert found["driver"]["reboot_required"] is False and found["driver"]["kernel_module"] == "open"
    assert found["compute_processes"] == []
    assert found["pci_devices"] == [{"address": "000f:01:00.0", "id": "10de:2e12", "class": "0x030000"}]
    assert found["disagreements"] == []


def test_nothing_is_there(capsys, empty_machine):
    found = run(capsys, empty_machine)
    assert found["probe"] == "tool_missing" and found["cuda_probe"] == "library_missing"
    assert found["count"] is None and found["devices"] == [] and found["compute_processes"] is None
    assert found["driver"]["loaded"] is None and found["driver"]["reboot_required"] is None
    assert found["pci_devices"] is None


def test_check_mode_gives_the_same(capsys, spark):
    assert run(capsys, spark, _ansible_check_mode=True)["devices"] == run(capsys, spark)["devices"]


def test_a_hanging_nvidia_smi_is_stopped_and_named(capsys, spark):
    spark.tool("nvidia-smi", "sleep 60 & sleep 60")
    start = time.monotonic()
    found = run(capsys, spark, timeout=0.3)
    assert time.monotonic() - start < 3
    assert found["probe"] == "timeout"
    assert found["probe_detail"]["tool"] == "nvidia-smi" and found["probe_detail"]["seconds"] >= 0.3
    assert found["count"] is None and found["compute_processes"] is None
    assert found["driver"]["loaded"] == "580.142"  # the files of the driver still tell


def test_the_timeout_is_ten_seconds_by_default():
    assert gpu_facts.ROOT_OPTIONS["timeout"]["default"] == 10


@pytest.mark.parametrize("output", ["hello", "\\000\\001\\377", "{}", ",,,,", "0", "Field, Field\\n1, 2"])
def test_garbage_of_nvidia_smi(capsys, spark, output):
    spark.tool("nvidia-smi", f"printf '{output}\\n'")
    found = run(capsys, spark)
    assert found["probe"] == "garbage"
    assert found["devices"] == [] or found["cuda_probe"] == "ok"
    assert found["count"] is None


def test_a_tool_that_may_not_be_run(capsys, spark):
    spark.path("/usr/bin/nvidia-smi").write_bytes(b"\x7fELF")
    found = run(capsys, spark)
    assert found["probe"] in ("failed", "denied") and found["count"] is None


def test_an_unknown_field_is_left_out(capsys, spark, read):
    row = read("nvidia-smi/gb10-query-gpu.csv").replace(", P8", "").strip()
    spark.tool(
        "nvidia-smi",
        'case "$*" in *--query-gpu=*pstate*)'
        " echo 'Field \"pstate\" is not a valid field to query.'; exit 2 ;;"
        f" *--query-gpu=*) echo '{row}' ;; *) : ;; esac",
    )
    device = run(capsys, spark)["devices"][0]
    assert device["compute_capability"] == "12.1" and device["performance_state"] is None
    assert device["persistence_mode"] is True


def test_processes_name_their_unit(capsys, spark):
    spark.prints(
        "nvidia-smi",
        ("-q", "nvidia-smi/gb10-q.txt"),
        ("*compute-apps*", "nvidia-smi/gb10-query-compute-apps-vllm.csv"),
        ("*", "nvidia-smi/gb10-query-gpu.csv"),
    )
    spark.write("/proc/4711/cgroup", "0::/system.slice/tandem-rank.service\n")
    assert run(capsys, spark)["compute_processes"] == [
        {"pid": 4711, "name": "VLLM::EngineCore", "used_memory_bytes": 89093 * 1024**2, "unit": "tandem-rank.service"}
    ]


def test_an_unreadable_sys(capsys, spark):
    if os.geteuid() == 0:
        shutil.rmtree(spark.path("/sys"))
    else:
        spark.path("/sys").chmod(0)
    found = run(capsys, spark)
    assert found["pci_devices"] is None and found["count"] == 1
    assert found["driver"]["loaded_source"] == "/proc/driver/nvidia/version"


def test_the_cuda_library_of_the_lab_is_a_spark(capsys, spark, tmp_path):
    if not (STANDINS / "libcuda.c").exists():
        pytest.skip("the lab's stand-in is not here")
    library(spark, (STANDINS / "libcuda.c").read_text(encoding="utf-8"), tmp_path)
    found = run(capsys, spark)
    if found["cuda_probe"] != "ok":
        pytest.skip(f"the stand-in wants files of the lab: {found['cuda_probe_detail']['message']}")
    device = found["devices"][0]
    assert device["multiprocessors"] == 48 and device["integrated"] is True
    assert device["cuda_total_bytes"] == 128452014080
    assert device["gpu_direct_rdma"] is False and device["dma_buf"] is False
    assert found["driver"]["cuda"] == "13.0"


def test_the_nvidia_smi_of_the_lab_is_a_spark(capsys, spark):
    standin = STANDINS / "nvidia_smi.py"
    if not standin.exists() or not os.path.exists("/usr/bin/python3"):
        pytest.skip("the lab's stand-in is not here")
    for name, content in (("driver_version", "580.142"), ("gpu", "present"), ("compute_apps", "4711, sglang, 512")):
        spark.write(f"/etc/tandem-lab/{name}", content + "\n")
    spark.tool("nvidia-smi", f"TANDEM_STANDIN_ROOT='{spark.root}' exec /usr/bin/python3 -I '{standin}' \"$@\"")
    found = run(capsys, spark)
    device = found["devices"][0]
    assert found["probe"] == "ok" and found["count"] == 1 and found["disagreements"] == []
    assert device["name"] == "NVIDIA GB10" and device["compute_capability"] == "12.1"
    assert device["memory_unified"] is True and device["memory_used_bytes"] is None
    assert [(p["name"], p["used_memory_bytes"]) for p in found["compute_processes"]] == [("sglang", 512 * 1024**2)]
    spark.write("/etc/tandem-lab/driver_version", "580.173.02\n")  # replaced on the disk, not loaded
    status = spark.path("/var/lib/dpkg/status")
    status.write_text(status.read_text().replace("580.142", "580.173.02"))
    for library in ("libnvidia-ml.so", "libcuda.so"):
        spark.link(f"/usr/lib/aarch64-linux-gnu/{library}.1", f"{library}.580.173.02")
    found = run(capsys, spark)
    assert found["probe"] == "version_mismatch" and found["driver"]["loaded"] == "580.142"
    assert found["disagreements"] == []
    assert found["driver"]["installed"] == "580.173.02" and found["driver"]["reboot_required"] is True


def test_a_driver_that_hangs_takes_only_the_child(capsys, spark, tmp_path):
    source = """#include <unistd.h>
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuInit(unsigned f) { sleep(60); return 0; }
"""
    library(spark, source, tmp_path)
    start = time.monotonic()
    found = run(capsys, spark, timeout=0.7)
    assert time.monotonic() - start < 3
    assert found["cuda_probe"] == "timeout" and found["probe"] == "ok" and found["count"] == 1
    assert found["devices"][0]["multiprocessors"] is None
    assert found["devices"][0]["memory_unified"] is True  # the name tells


def test_a_driver_that_crashes_takes_only_the_child(capsys, spark, tmp_path):
    library(spark, "#include <stdlib.h>\nint cuDriverGetVersion(int *v) { abort(); }\n", tmp_path)
    found = run(capsys, spark)
    assert found["cuda_probe"] == "crashed" and found["count"] == 1


def test_a_driver_that_refuses(capsys, spark, tmp_path):
    library(
        spark,
        "int cuDriverGetVersion(int *v) { *v = 13000; return 0; }\nint cuInit(unsigned f) { return 803; }\n",
        tmp_path,
    )
    found = run(capsys, spark)
    assert found["cuda_probe"] == "failed" and found["cuda_probe_detail"]["message"] == "cuInit: 803"


def test_no_context_is_ever_created():
    from ansible_collections.tandem.spark.plugins.module_utils import _cuda

    assert "Ctx" not in _cuda.PROGRAM and "Primary" not in _cuda.PROGRAM and "MemAlloc" not in _cuda.PROGRAM

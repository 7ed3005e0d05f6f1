# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the facts say about a real GPU against what nvidia-smi -q and PyTorch said on the same machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _cuda, _gather, _gpu, _meminfo, _nvidia_smi, _platform
from ansible_collections.tandem.spark.plugins.module_utils._host import Host, Outcome


@pytest.fixture
def torch(read):
    return json.loads(read("h200/torch-properties.json"))


@pytest.fixture
def section(read):
    return _nvidia_smi.query(read("h200/nvidia-smi-q.txt"))["00000000:00:06.0"]


@pytest.fixture
def facts(read):
    return _gpu.assemble(
        _gpu.Sources(
            query=Outcome("ok", 0, read("h200/nvidia-smi-query-gpu.csv")),
            details=Outcome("ok", 0, read("h200/nvidia-smi-q.txt")),
            applications=Outcome("ok", 0, read("h200/nvidia-smi-query-compute-apps-busy.csv")),
            cuda=Outcome("ok", 0, read("h200/cuda-driver-api.json")),
            nvrm=read("h200/proc-driver-nvidia-version.txt"),
            memory_total=_meminfo.parse(read("h200/proc-meminfo.txt"))["MemTotal"],
        )
    )


def test_the_recording_is_what_the_module_said_on_the_machine(facts, read):
    live = json.loads(read("h200/facts.json"))["idle"]
    changing = ("power_draw_watts", "clock_sm_mhz", "temperature_celsius", "utilisation_percent", "sources")
    ours = {k: v for k, v in facts["devices"][0].items() if k not in changing}
    assert ours == {k: v for k, v in live["devices"][0].items() if k not in changing}
    assert facts["driver"]["loaded"] == live["driver"]["loaded"] == live["driver"]["installed"] == "580.159.04"
    assert live["disagreements"] == [] and live["probe"] == live["cuda_probe"] == "ok"


def test_a_discrete_gpu_is_reported_as_such(facts):
    device = facts["devices"][0]
    assert device["integrated"] is False and device["memory_unified"] is False
    assert device["compute_capability"] == "9.0" and device["architecture"] == "sm_90"
    assert device["sources"]["memory_unified"] == "CUDA driver API integrated"
    assert facts["disagreements"] == []


def test_it_is_no_spark(facts):
    marker = _platform.gpu_marker(facts["probe"], facts["devices"])
    assert marker is False
    markers = dict.fromkeys(("dgx_release", "fastos_release"), False)
    assert _platform.identify({**markers, "gpu": marker}, "x86_64")["is_spark"] is False
    assert _platform.identify({**markers, "gpu": marker}, "aarch64")["is_spark"] is False


def test_against_torch(facts, torch):
    device = facts["devices"][0]
    assert device["name"] == torch["name"]
    assert device["compute_capability"] == f"{torch['major']}.{torch['minor']}"
    assert device["multiprocessors"] == torch["multi_processor_count"]
    assert device["integrated"] is torch["is_integrated"]
    assert device["cuda_total_bytes"] == torch["total_memory"] == torch["mem_get_info"][1]
    assert facts["driver"]["cuda"] == torch["cuda"]


def test_against_nvidia_smi_q(facts, section):
    device = facts["devices"][0]
    assert device["name"] == section["Product Name"]
    assert device["uuid"] == section["GPU UUID"]
    assert device["vbios"] == section["VBIOS Version"]
    assert device["gsp_firmware"] == section["GSP Firmware Version"] == facts["driver"]["loaded"]
    assert device["addressing_mode"] == section["Addressing Mode"]
    assert device["c2c_mode"] == section["GPU C2C Mode"]
    assert f"{device['memory_total_bytes'] // 1024**2} MiB" == section["FB Memory Usage/Total"]
    assert f"{device['clock_sm_maximum_mhz']} MHz" == section["Max Clocks/SM"]
    assert f"{device['power_limit_watts']:.2f} W" == section["GPU Power Readings/Current Power Limit"]
    assert device["persistence_mode"] is (section["Persistence Mode"] == "Enabled")


def test_nvidia_smi_and_cuda_differ_by_what_the_driver_keeps(facts):
    device = facts["devices"][0]
    kept = device["memory_total_bytes"] - device["cuda_total_bytes"]
    assert 0 < kept < 0.01 * device["memory_total_bytes"]


def test_a_computing_process(facts, read):
    (process,) = facts["compute_processes"]
    assert process["name"].endswith("python3") and process["used_memory_bytes"] == 1542 * 1024**2
    (row,) = _nvidia_smi.table(read("h200/nvidia-smi-busy.txt"))["processes"]
    assert (row["pid"], row["used_memory_bytes"]) == (process["pid"], process["used_memory_bytes"])
    assert _nvidia_smi.processes(read("h200/nvidia-smi-query-compute-apps-idle.csv")) == []


def test_the_memory_of_the_host_is_not_unified(read):
    memory = json.loads(read("h200/facts.json"))["memory"]
    assert memory["unified"] is False and memory["unified_source"] == "nvidia-smi memory.total"
    assert memory["engine"]["now_bytes"] is None


def test_the_header_form(read):
    (row,) = _nvidia_smi.rows(read("h200/nvidia-smi-query-gpu-header.csv"))
    found = _nvidia_smi.device(row)
    assert found["name"] == "NVIDIA H200" and found["memory_total_bytes"] == 143771 * 1024**2


def test_the_boxed_view(read):
    assert _nvidia_smi.table(read("h200/nvidia-smi.txt"))["cuda"] == "13.0"


def test_the_recording_of_the_reference(read):
    """The start of this -q output is missing: nothing is read from it, and nothing breaks."""
    cut = read("h200/nvidia-smi-q.txt").split("Product Name", 1)[1]
    assert _nvidia_smi.query(cut) == {}


def test_the_numbers_of_the_attributes_are_those_of_the_header(read):
    numbers = dict(line.split(" = ") for line in read("cuda/enum-13.0.txt").splitlines())
    names = {
        "multiprocessors": "MULTIPROCESSOR_COUNT",
        "integrated": "INTEGRATED",
        "can_map_host_memory": "CAN_MAP_HOST_MEMORY",
        "unified_addressing": "UNIFIED_ADDRESSING",
        "capability_major": "COMPUTE_CAPABILITY_MAJOR",
        "capability_minor": "COMPUTE_CAPABILITY_MINOR",
        "managed_memory": "MANAGED_MEMORY",
        "host_native_atomics": "HOST_NATIVE_ATOMIC_SUPPORTED",
        "pageable_memory_access": "PAGEABLE_MEMORY_ACCESS",
        "concurrent_managed_access": "CONCURRENT_MANAGED_ACCESS",
        "shared_memory_per_block_optin_bytes": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
        "pageable_uses_host_page_tables": "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES",
        "direct_managed_access_from_host": "DIRECT_MANAGED_MEM_ACCESS_FROM_HOST",
        "virtual_memory_management": "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
        "gpu_direct_rdma_with_vmm": "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED",
        "gpu_direct_rdma": "GPU_DIRECT_RDMA_SUPPORTED",
        "dma_buf": "DMA_BUF_SUPPORTED",
    }
    assert set(names) == set(_cuda.ATTRIBUTES)
    for ours, theirs in names.items():
        assert _cuda.ATTRIBUTES[ours] == int(numbers[f"CU_DEVICE_ATTRIBUTE_{theirs}"])


@pytest.mark.gpu
def test_live_against_nvidia_smi_and_torch():
    found = _gather.gpu(Host())
    section = next(
        iter(
            _nvidia_smi.query(
                subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, check=False).stdout
            ).values()
        )
    )
    device = found["devices"][0]
    assert device["name"] == section["Product Name"] and device["uuid"] == section["GPU UUID"]
    program = (
        "import json, torch; p = torch.cuda.get_device_properties(0)\n"
        "print(json.dumps([p.total_memory, p.multi_processor_count]))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if told.returncode == 0:
        assert [device["cuda_total_bytes"], device["multiprocessors"]] == json.loads(told.stdout)

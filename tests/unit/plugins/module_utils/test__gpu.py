# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _gpu, _nvidia_smi
from ansible_collections.tandem.spark.plugins.module_utils._host import Outcome

C01_FIELDS = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "memory.total",
    "memory.used",
    "memory.free",
    "compute_cap",
    "pci.bus_id",
)
GB10_ROW = (
    "0, NVIDIA GB10, GPU-00000000-0000-0000-0000-000000000001, 580.142, [N/A], [N/A], [N/A], 12.1, 0000000F:01:00.0"
)
RTX_ROW = "1, NVIDIA RTX, GPU-00000000-0000-0000-0000-000000000002, 580.142, 24564, 1, 24563, 12.0, 00000000:02:00.0"
MEM_TOTAL = 127600748 * 1024


def assemble(stdout, memory_total=MEM_TOTAL, fields=C01_FIELDS, **sources):
    return _gpu.assemble(
        _gpu.Sources(query=Outcome("ok", 0, stdout), query_fields=fields, memory_total=memory_total, **sources)
    )


def test_c01_memory_columns_are_not_available():
    found = assemble(GB10_ROW + "\n" + RTX_ROW + "\n")
    gb10, rtx = found["devices"]
    assert found["count"] == 2
    assert gb10["memory_unified"] is True and gb10["memory_total_bytes"] == 130663165952
    assert gb10["compute_capability"] == "12.1" and gb10["pci_address"] == "0000000F:01:00.0"
    assert gb10["memory_used_bytes"] is None and gb10["memory_free_bytes"] is None
    assert rtx["memory_unified"] is False and rtx["memory_total_bytes"] == 25757220864


def test_c02_unknown_is_not_zero():
    found = assemble(GB10_ROW, memory_total=None)
    assert found["count"] == 1
    assert found["devices"][0]["memory_unified"] is True
    assert found["devices"][0]["memory_total_bytes"] is None


@pytest.mark.parametrize("token", ["[N/A]", "N/A", "[Not Supported]", "Not Supported", "[Unknown Error]", ""])
def test_c02_a_size_that_is_not_told_makes_no_gpu_unified(token):
    found = assemble(RTX_ROW.replace("24564", token))
    assert found["devices"][0]["memory_unified"] is None
    assert found["devices"][0]["memory_total_bytes"] is None


def test_c03_no_tool_is_no_answer():
    found = _gpu.assemble(_gpu.Sources(query=Outcome("missing")))
    assert found["probe"] == "tool_missing" and found["count"] is None and found["compute_processes"] is None
    assert found["probe_detail"]["tool"] == "nvidia-smi"


@pytest.mark.parametrize(("rc", "state"), [(0, "ok"), (6, "failed")])
def test_no_devices_is_zero_with_either_exit_status(rc, state, read):
    found = _gpu.assemble(_gpu.Sources(query=Outcome(state, rc, read("nvidia-smi/no-devices.txt"))))
    assert found["probe"] == "no_devices" and found["count"] == 0 and found["compute_processes"] == []


def test_c06_driver_half_upgraded(read):
    found = _gpu.assemble(
        _gpu.Sources(
            query=Outcome("failed", 18, read("nvidia-smi/version-mismatch.txt")),
            nvrm="NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.126.09  Release Build\n",
            packages={"libnvidia-compute-580": {"version": "580.142-0ubuntu0.24.04.1", "held": False}},
        )
    )
    assert found["probe"] == "version_mismatch" and found["count"] is None
    assert found["driver"]["loaded"] == "580.126.09"
    assert found["driver"]["installed"] == "580.142"
    assert found["driver"]["installed_source"] == "package libnvidia-compute-580"
    assert found["driver"]["reboot_required"] is True


@pytest.mark.parametrize(
    ("loaded", "installed", "reboot"),
    [
        ("580.142", "580.142-0ubuntu1", False),
        ("580.142", "580.142.00-0ubuntu1", False),
        ("580.126.09", "580.142-0ubuntu1", True),
        ("580.142", "580.126.09-0ubuntu1", True),
        (None, "580.142-0ubuntu1", None),
        ("580.142", None, None),
        (None, None, None),
    ],
)
def test_c06_reboot_is_known_only_when_both_are(loaded, installed, reboot):
    packages = {"libnvidia-compute-580": {"version": installed}} if installed else {}
    found = _gpu.assemble(_gpu.Sources(query=Outcome("missing"), module=loaded, packages=packages))
    assert found["driver"]["reboot_required"] is reboot


def test_a_library_newer_than_its_package_is_a_disagreement():
    found = _gpu.assemble(
        _gpu.Sources(
            query=Outcome("missing"),
            packages={"libnvidia-compute-580": {"version": "580.126.09-0ubuntu1"}},
            library_links={"/usr/lib/aarch64-linux-gnu/libcuda.so.1": "libcuda.so.580.142"},
        )
    )
    assert found["driver"]["installed"] == "580.142"
    assert found["disagreements"][0]["field"] == "driver.installed"


def test_c08_no_memory_clock_and_no_power_limit(read):
    row = _nvidia_smi.rows(
        "35, 11.17, [N/A], [N/A]\n", ("temperature.gpu", "power.draw", "power.limit", "clocks.max.mem")
    )
    found = _nvidia_smi.device({"index": "0", "name": "NVIDIA GB10", **row[0]})
    assert found["temperature_celsius"] == 35 and found["power_draw_watts"] == 11.17
    assert found["power_limit_watts"] is None and found["clock_memory_maximum_mhz"] is None
    device = assemble(read("nvidia-smi/gb10-query-gpu.csv"), fields=_nvidia_smi.FIELDS)["devices"][0]
    assert device["power_limit_watts"] is None and device["clock_memory_mhz"] is None
    assert device["clock_memory_maximum_mhz"] is None and device["power_draw_watts"] == 11.17


def test_hw01_the_boxed_view(read):
    found = _nvidia_smi.table(read("nvidia-smi/gb10-table-580.95.05.txt"))
    assert (found["tool"], found["driver"], found["cuda"]) == ("580.95.05", "580.95.05", "13.0")
    assert found["processes"] == [
        {"gpu": 0, "pid": 4174, "type": "G", "name": "/usr/lib/xorg/Xorg", "used_memory_bytes": 84 * 1024**2}
    ]
    assert _nvidia_smi.table(None) == {"tool": None, "driver": None, "cuda": None, "processes": []}


def test_hw02_csv_rows(read):
    row = _nvidia_smi.rows(
        read("nvidia-smi/gb10-name-580.159.03.csv"), ("name", "compute_cap", "driver_version", "memory.total")
    )
    assert row == [
        {"name": "NVIDIA GB10", "compute_cap": "12.1", "driver_version": "580.159.03", "memory.total": "[N/A]"}
    ]
    header = _nvidia_smi.rows(read("nvidia-smi/gb10-header-580.173.02.csv"))
    assert (
        header[0]["memory.total"] == "[N/A]"
        and header[0]["power.draw"] == "11.17 W"
        and header[0]["temperature.gpu"] == "35"
    )
    found = _nvidia_smi.devices(read("nvidia-smi/gb10-index.csv"), ("index", "name", "memory.total", "memory.used"))
    assert found[0]["name"] == "NVIDIA GB10" and found[0]["memory_total_bytes"] is None


def test_a_cut_row_keeps_what_it_has():
    found = assemble("0, NVIDIA GB10, GPU-0000", memory_total=None)
    assert found["count"] == 1 and found["probe"] == "ok"
    assert found["devices"][0]["uuid"] is None and found["devices"][0]["compute_capability"] is None


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Outcome("missing"), "tool_missing"),
        (Outcome("timeout", None, "", "", 10.0), "timeout"),
        (Outcome("denied"), "denied"),
        (
            Outcome("failed", 9, "", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
            "driver_not_loaded",
        ),
        (Outcome("failed", 255, "Failed to initialize NVML: Insufficient Permissions"), "not_permitted"),
        (Outcome("failed", 1, "", "Segmentation fault"), "failed"),
        (Outcome("ok", 0, "anything"), "ok"),
    ],
)
def test_why_nothing_was_told(outcome, state):
    assert _nvidia_smi.state(outcome) == state


def test_a_rejected_field_is_named(read):
    outcome = Outcome("failed", 2, read("h200/nvidia-smi-query-gpu-bad-field.txt"))
    assert _nvidia_smi.invalid_field(outcome) == "no_such_field"
    assert _nvidia_smi.state(outcome) == "invalid_field"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", []),
        (None, None),
        ("[N/A], x, 3", None),
        ("no processes here", None),
        ("4711, [Insufficient Permissions], [N/A]", [{"pid": 4711, "name": None, "used_memory_bytes": None}]),
    ],
)
def test_processes(content, expected):
    assert _nvidia_smi.processes(content) == expected


def test_sources_that_disagree_are_listed(read):
    cuda = Outcome("ok", 0, read("cuda/gb10.json").replace('"capability_minor": 1', '"capability_minor": 0'))
    found = assemble(GB10_ROW, cuda=cuda)
    entry = next(e for e in found["disagreements"] if e["field"] == "compute_capability")
    assert entry == {
        "field": "compute_capability",
        "device": 0,
        "values": {"nvidia-smi": "12.1", "CUDA driver API": "12.0"},
    }
    assert found["devices"][0]["compute_capability"] == "12.1"


def test_a_gb10_that_the_driver_calls_discrete_is_a_disagreement(read):
    cuda = Outcome("ok", 0, read("cuda/gb10.json").replace('"integrated": 1', '"integrated": 0'))
    found = assemble(GB10_ROW, cuda=cuda)
    assert any(e["field"] == "memory_unified" for e in found["disagreements"])


def test_the_cuda_library_alone_is_enough(read):
    found = _gpu.assemble(
        _gpu.Sources(query=Outcome("missing"), cuda=Outcome("ok", 0, read("cuda/gb10.json")), memory_total=MEM_TOTAL)
    )
    device = found["devices"][0]
    assert found["probe"] == "tool_missing" and found["count"] == 1 and found["count_source"] == "CUDA driver API"
    assert device["name"] == "NVIDIA GB10" and device["memory_unified"] is True
    assert device["sources"]["name"] == "CUDA driver API"


def test_nvidia_smi_q_alone_is_enough(read):
    found = _gpu.assemble(
        _gpu.Sources(query=Outcome("failed", 2), details=Outcome("ok", 0, read("nvidia-smi/gb10-q.txt")))
    )
    assert found["devices"][0]["name"] == "NVIDIA GB10" and found["devices"][0]["addressing_mode"] == "ATS"


def test_pci_addresses_with_short_and_long_domain():
    assert _gpu.same_address("0000000F:01:00.0", "000f:01:00.0")
    assert not _gpu.same_address("0000000F:01:00.0", "0000:01:00.0")
    assert not _gpu.same_address(None, None)


@pytest.mark.parametrize(
    ("content", "unit"),
    [
        ("0::/system.slice/tandem-rank.service\n", "tandem-rank.service"),
        ("0::/system.slice/docker-0123.scope\n", "docker-0123.scope"),
        ("12:memory:/user.slice\n0::/user.slice/user-0.slice/session-3.scope\n", "session-3.scope"),
        ("0::/\n", None),
        (None, None),
    ],
)
def test_unit_of_a_process(content, unit):
    assert _gpu.unit_of(content) == unit


def test_c06_the_library_version_in_the_message_is_cut_after_two_numbers():
    mismatch = Outcome(
        "failed", 18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.173\n"
    )
    alone = _gpu.assemble(_gpu.Sources(query=mismatch, module="580.142"))
    assert alone["driver"]["installed"] == "580.173" and alone["driver"]["reboot_required"] is True
    packages = {"libnvidia-compute-580": {"version": "580.173.02-0ubuntu1"}}
    found = _gpu.assemble(_gpu.Sources(query=mismatch, module="580.142", packages=packages))
    assert found["driver"]["installed"] == "580.173.02" and found["disagreements"] == []

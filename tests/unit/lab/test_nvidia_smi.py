# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nvidia-smi stand-in, run as a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sparklab.names import LAB_DIR

TOOL = LAB_DIR / "standins" / "nvidia_smi.py"
UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc/tandem-lab").mkdir(parents=True)
    (tmp_path / "etc/machine-id").write_text("00112233445566778899aabbccddeeff\n")
    (tmp_path / "etc/tandem-lab/driver_version").write_text("580.173.02\n")
    return tmp_path


def smi(root: Path, *arguments: str) -> tuple[int, str]:
    environment = {**os.environ, "TANDEM_STANDIN_ROOT": str(root)}
    done = subprocess.run(
        [sys.executable, "-IS", str(TOOL), *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def load(root: Path, version: str) -> None:
    (root / "proc/driver/nvidia").mkdir(parents=True)
    line = f"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  {version}  Release Build  (x)\n"
    (root / "proc/driver/nvidia/version").write_text(line)


@pytest.mark.parametrize(
    ("query", "options", "answer"),
    [
        (
            "name,compute_cap,driver_version,memory.total",
            "csv,noheader",
            "NVIDIA GB10, 12.1, 580.173.02, [N/A]\n",
        ),
        (
            "memory.total,memory.used,memory.free,utilization.gpu,power.draw,temperature.gpu",
            "csv",
            "memory.total [MiB], memory.used [MiB], memory.free [MiB], utilization.gpu [%], power.draw [W], "
            "temperature.gpu\n[N/A], [N/A], [N/A], 0 %, 11.17 W, 35\n",
        ),
        ("index,name,memory.total,memory.used", "csv,noheader", "0, NVIDIA GB10, [N/A], [N/A]\n"),
        # `nounits` keeps the unit in the header; an alias answers under its full name
        ("power.draw,clocks.sm", "csv,nounits", "power.draw [W], clocks.current.sm [MHz]\n11.17, 208\n"),
        ("gpu_uuid, pci.bus_id", "csv,noheader", f"{UUID}, 0000000F:01:00.0\n"),
        ("fan.speed,power.limit,serial", "csv,noheader,nounits", "[N/A], [N/A], [N/A]\n"),
    ],
)
def test_query_gpu(root: Path, query: str, options: str, answer: str) -> None:
    assert smi(root, f"--query-gpu={query}", f"--format={options}") == (0, answer)


def test_an_unknown_field(root: Path) -> None:
    answer = (2, 'Field "foo" is not a valid field to query.\n\n')
    assert smi(root, "--query-gpu=name,foo", "--format=csv") == answer
    assert smi(root, "--query-compute-apps=foo", "--format=csv") == answer


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (("--query-gpu=name", "--format=xml"), (2, "Format modifier is not recognized.\n")),
        (("--nonsense",), (255, "ERROR: Option --nonsense is not recognized. Please run 'nvidia-smi -h'.\n\n")),
        (("-i", "7", "--query-gpu=name"), (6, "No devices were found\n")),
        (("-i", "0", "--query-gpu=name"), (0, "name\nNVIDIA GB10\n")),
        (("-L",), (0, f"GPU 0: NVIDIA GB10 (UUID: {UUID})\n")),
    ],
)
def test_other_calls(root: Path, arguments: tuple[str, ...], answer: tuple[int, str]) -> None:
    assert smi(root, *arguments) == answer


def test_compute_apps(root: Path) -> None:
    query = "--query-compute-apps=pid,process_name,used_memory"
    assert smi(root, query, "--format=csv") == (0, "pid, process_name, used_gpu_memory [MiB]\n")
    (root / "etc/tandem-lab/compute_apps").write_text("4174, VLLM::EngineCore, 89093\n")
    assert smi(root, query, "--format=csv,noheader") == (0, "4174, VLLM::EngineCore, 89093 MiB\n")
    assert smi(root, query, "--format=csv,noheader,nounits") == (0, "4174, VLLM::EngineCore, 89093\n")


def test_the_table(root: Path) -> None:
    code, text = smi(root)
    assert code == 0
    assert "| NVIDIA-SMI 580.173.02             Driver Version: 580.173.02     CUDA Version: 13.0     |" in text
    assert "|   0  NVIDIA GB10                    On  |   0000000F:01:00.0  On |                  N/A |" in text
    assert "| Not Supported          |" in text
    assert {len(line) for line in text.splitlines()[1:] if line} == {91}


def test_the_long_query(root: Path) -> None:
    code, text = smi(root, "-q")
    assert code == 0
    for key, value in (
        ("Driver Version", "580.173.02"),
        ("Product Name", "NVIDIA GB10"),
        ("Addressing Mode", "ATS"),
        ("GPU C2C Mode", "Enabled"),
    ):
        assert any(line.split(":")[0].strip() == key and line.endswith(f": {value}") for line in text.splitlines())


def test_library_and_module_of_one_version(root: Path) -> None:
    load(root, "580.173.02")
    assert smi(root, "-L")[0] == 0


def test_library_and_module_of_two_versions(root: Path) -> None:
    load(root, "580.159.03")
    answer = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.173\n"
    assert smi(root, "-L") == (18, answer)


def test_no_gpu(root: Path) -> None:
    (root / "etc/tandem-lab/gpu").write_text("absent\n")
    assert smi(root) == (6, "No devices were found\n")

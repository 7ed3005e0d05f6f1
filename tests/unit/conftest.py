# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A whole Spark as a directory: fake /proc, /sys, /etc and tools that print recorded outputs."""

from __future__ import annotations

import copy
import os
import pathlib
import stat
import typing as t

import pytest

FIXTURES = pathlib.Path(__file__).parent / "fixtures"


class Machine:
    """A directory that stands for a machine. Tools are shell scripts below its /usr/bin."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root

    def path(self, name: str) -> pathlib.Path:
        return self.root / name.lstrip("/")

    def write(self, name: str, content: str) -> None:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")

    def link(self, name: str, target: str) -> None:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def remove(self, name: str) -> None:
        path = self.path(name)
        if path.is_dir() and not path.is_symlink():
            for entry in sorted(path.rglob("*"), reverse=True):
                entry.rmdir() if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            path.rmdir()
        else:
            path.unlink(missing_ok=True)

    def tool(self, name: str, script: str) -> None:
        """A tool with this shell script as its body."""
        self.write(f"/usr/bin/{name}", f"#!/bin/sh\n{script}\n")
        path = self.path(f"/usr/bin/{name}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def prints(self, name: str, *cases: tuple[str, str], rc: int = 0) -> None:
        """A tool that prints a recorded file for the first pattern (of ``case``) that its arguments match."""
        branches = [f"{pattern.replace(' ', chr(92) + ' ')}) cat '{FIXTURES / file}' ;;" for pattern, file in cases]
        self.tool(name, f'case "$*" in\n{os.linesep.join(branches)}\n*) exit 9 ;;\nesac\nexit {rc}')

    def interface(self, name: str, address: str, cage: int, **values: t.Any) -> None:
        """One half of a cage with its RDMA device."""
        base, domain = f"/sys/class/net/{name}", address.split(":", 1)[0]
        device = f"../../../devices/pci{domain}:00/{address}"
        files = {
            "carrier": 1,
            "operstate": "up",
            "speed": 200000,
            "mtu": 9000,
            "address": "02:00:00:00:00:01",
            "flags": "0x1003",
            "phys_port_name": f"p{cage}",
            "phys_switch_id": "385af50003b1e09c",
            "carrier_down_count": 0,
            "carrier_up_count": 1,
            **values,
        }
        for file, content in files.items():
            if content is not None:
                self.write(f"{base}/{file}", f"{content}\n")
        real = f"/sys/devices/pci{domain}:00/{address}"
        for file, content in (("vendor", "0x15b3"), ("device", "0x1021"), ("class", "0x020000")):
            self.write(f"{real}/{file}", f"{content}\n")
        for file, content in (("current_link_speed", "32.0 GT/s PCIe"), ("current_link_width", "4")):
            self.write(f"{real}/{file}", f"{content}\n")
        self.link(f"{real}/driver", "../../../bus/pci/drivers/mlx5_core")
        self.link(f"{base}/device", device)
        self.link(f"/sys/bus/pci/devices/{address}", f"../../../devices/pci{domain}:00/{address}")
        self.write(f"{real}/net/{name}/ifindex", "2\n")

    def rdma(self, name: str, address: str, interface: str, gids: dict[int, tuple[str, str]]) -> None:
        """An RDMA device with the GIDs of its table: slot -> (gid, type)."""
        base, domain = f"/sys/class/infiniband/{name}", address.split(":", 1)[0]
        self.link(f"{base}/device", f"../../../devices/pci{domain}:00/{address}")
        self.write(f"{base}/fw_ver", "28.45.4028\n")
        self.write(f"{base}/board_id", "NVD0000000087\n")
        port = f"{base}/ports/1"
        self.write(f"{port}/state", "4: ACTIVE\n")
        self.write(f"{port}/phys_state", "5: LinkUp\n")
        self.write(f"{port}/rate", "200 Gb/sec (4X HDR)\n")
        self.write(f"{port}/counters/port_xmit_data", "1234\n")
        self.write(f"{port}/hw_counters/packet_seq_err", "0\n")
        for slot in range(6):
            gid, kind = gids.get(slot, ("0000:0000:0000:0000:0000:0000:0000:0000", ""))
            self.write(f"{port}/gids/{slot}", f"{gid}\n")
            if kind:
                self.write(f"{port}/gid_attrs/types/{slot}", f"{kind}\n")
                self.write(f"{port}/gid_attrs/ndevs/{slot}", f"{interface}\n")


def gids(address: str, slot: int = 3) -> dict[int, tuple[str, str]]:
    """A GID table as on a Spark: link-local entries first, the IPv4 address as RoCE v1 and v2."""
    digits = "".join(f"{int(part):02x}" for part in address.split("."))
    mapped = f"0000:0000:0000:0000:0000:ffff:{digits[:4]}:{digits[4:]}"
    local = "fe80:0000:0000:0000:0000:00ff:fe00:0001"
    return {
        0: (local, "IB/RoCE v1"),
        1: (local, "RoCE v2"),
        2: (mapped, "IB/RoCE v1"),
        slot: (mapped, "RoCE v2"),
    }


TCP_HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
RAILS = (
    ("enp1s0f0np0", "0000:01:00.0", 0, "rocep1s0f0", "192.168.100.10"),
    ("enP2p1s0f0np0", "0002:01:00.0", 0, "roceP2p1s0f0", "192.168.101.10"),
    ("enp1s0f1np1", "0000:01:00.1", 1, "rocep1s0f1", None),
    ("enP2p1s0f1np1", "0002:01:00.1", 1, "roceP2p1s0f1", None),
)


def build_spark(root: pathlib.Path) -> Machine:
    """A healthy DGX Spark with one cable in cage 0."""
    machine = Machine(root)
    copies = {
        "/etc/dgx-release": "dgx-release/founders.txt",
        "/etc/fastos-release": "fastos-release/oem.txt",
        "/proc/meminfo": "meminfo/gb10.txt",
        "/var/lib/dpkg/status": "dpkg/status-gb10.txt",
    }
    for name, file in copies.items():
        machine.write(name, (FIXTURES / file).read_text(encoding="utf-8"))
    files = {
        "/etc/os-release": 'ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n',
        "/proc/sys/kernel/arch": "aarch64\n",
        "/proc/sys/kernel/osrelease": "6.17.0-1021-nvidia\n",
        "/proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz-6.17.0-1021-nvidia root=/dev/nvme0n1p2 quiet\n",
        "/proc/buddyinfo": "Node 0, zone Normal 1744 883 752 507 321 235 164 109 84 26000 67\n",
        "/proc/net/tcp": TCP_HEADER,
        "/proc/driver/nvidia/version": (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.142  Release Build  (dvs-builder@U22-I3)\n"
        ),
        "/proc/driver/nvidia/gpus/000f:01:00.0/information": "Model: \t\t NVIDIA GB10\nVideo BIOS: \t 9a.0b.2d.00.00\n",
        "/sys/module/nvidia/version": "580.142\n",
        "/sys/class/dmi/id/sys_vendor": "NVIDIA\n",
        "/sys/class/dmi/id/product_name": "NVIDIA_DGX_Spark\n",
        "/sys/class/dmi/id/product_family": "DGX Spark\n",
        "/sys/class/dmi/id/bios_version": "5.36_0ACUM027\n",
        "/sys/devices/pci000f:00/000f:01:00.0/vendor": "0x10de\n",
        "/sys/devices/pci000f:00/000f:01:00.0/device": "0x2e12\n",
        "/sys/devices/pci000f:00/000f:01:00.0/class": "0x030000\n",
        "/boot/vmlinuz-6.17.0-1021-nvidia": "",
        "/boot/vmlinuz-6.17.0-1014-nvidia": "",
        "/etc/apt/apt.conf.d/20auto-upgrades": 'APT::Periodic::Unattended-Upgrade "1";\n',
        "/etc/apt/apt.conf.d/51tandem": ('Unattended-Upgrade::Package-Blacklist { "nvidia"; "libnvidia"; "cuda"; };\n'),
        "/etc/ufw/ufw.conf": "ENABLED=no\n",
        "/etc/netplan/40-cx7.yaml": "network: {ethernets: {enp1s0f0np0: {}, enP2p1s0f0np0: {}}}\n",
        "/usr/local/cuda/bin/.keep": "",
        "/var/lib/tandem/.keep": "",
        "/proc/1/comm": "systemd\n",
    }
    for name, content in files.items():
        machine.write(name, content)
    machine.link("/sys/bus/pci/devices/000f:01:00.0", "../../../devices/pci000f:00/000f:01:00.0")
    for library in ("libnvidia-ml.so", "libcuda.so"):
        machine.write(f"/usr/lib/aarch64-linux-gnu/{library}.580.142", "not a library\n")
        machine.link(f"/usr/lib/aarch64-linux-gnu/{library}.1", f"{library}.580.142")
    for name, address, cage, device, ip in RAILS:
        down = {} if ip else {"carrier": 0, "operstate": "down", "speed": -1}
        machine.interface(name, address, cage, **down)
        machine.rdma(device, address, name, gids(ip) if ip else {})
    machine.prints(
        "nvidia-smi",
        ("-q", "nvidia-smi/gb10-q.txt"),
        ("*--query-compute-apps*", "nvidia-smi/gb10-query-compute-apps-idle.csv"),
        ("*--query-gpu=index,name,compute_cap*", "nvidia-smi/gb10-index-name-compute-cap.csv"),
        ("*--query-gpu=index,name,memory.total*", "nvidia-smi/gb10-index.csv"),
        ("*--query-gpu=*", "nvidia-smi/gb10-query-gpu.csv"),
    )
    machine.prints(
        "ip",
        ("-j addr*", "ip/addr-two-rails.json"),
        ("-j route*", "ip/route.json"),
        ("-j neigh*", "ip/neigh.json"),
    )
    machine.prints("chronyc", ("*tracking*", "chronyc/tracking-synchronised.csv"))
    machine.prints("lscpu", ("*", "lscpu/gb10.txt"))
    return machine


def run_recorded(
    argv: t.Sequence[str], timeout: float, environment: t.Mapping[str, str], directory: str | None = None
) -> t.Any:
    """Run commands as they are, except that the CUDA library answers with a recorded file."""
    from ansible_collections.tandem.spark.plugins.module_utils import _cuda
    from ansible_collections.tandem.spark.plugins.module_utils._host import Outcome, run_command

    if _cuda.PROGRAM in argv:
        return Outcome("ok", 0, (FIXTURES / "cuda/gb10.json").read_text(encoding="utf-8"), "", 0.2)
    return run_command(argv, timeout, environment, directory)


@pytest.fixture
def read() -> t.Callable[[str], str]:
    """Read a recorded output."""
    return lambda name: (FIXTURES / name).read_text(encoding="utf-8")


@pytest.fixture
def spark(tmp_path: pathlib.Path) -> Machine:
    """A healthy DGX Spark as a directory that the test may change."""
    return build_spark(tmp_path / "spark")


@pytest.fixture
def empty_machine(tmp_path: pathlib.Path) -> Machine:
    """A directory with nothing in it."""
    root = tmp_path / "empty"
    root.mkdir()
    return Machine(root)


@pytest.fixture(scope="session")
def _healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, t.Any]:
    from ansible_collections.tandem.spark.plugins.module_utils import (
        _gather,
        _gather_fabric,
        _gather_memory,
        _gather_platform,
    )
    from ansible_collections.tandem.spark.plugins.module_utils._host import Host

    machine = build_spark(tmp_path_factory.mktemp("machine") / "spark")
    host = Host(str(machine.root), run=run_recorded, environ={"HOME": "/root"})
    facts = {
        "spark_gpu": _gather.gpu(host),
        "spark_memory": _gather_memory.memory(host),
        "spark_platform": _gather_platform.describe(host, ["/var/lib/tandem"], [8000, 25000], True, False),
        "spark_fabric": _gather_fabric.describe(host),
    }
    facts["spark_platform"]["python"].update(version="3.12.3", available=["3.12"], headers=True)
    facts["spark_platform"]["cuda"].update(
        installed=True, nvcc="/usr/local/cuda/bin/nvcc", version="13.0.88", compiles_sm_121a=True
    )
    facts["spark_platform"]["disk"] = [
        {"path": "/var/lib/tandem", "exists": True, "mount": "/", "total_bytes": 10**12, "available_bytes": 8 * 10**11}
    ]
    return facts


@pytest.fixture
def healthy(_healthy: dict[str, t.Any]) -> t.Callable[..., dict[str, t.Any]]:
    """The facts of a healthy Spark, gathered from the fake machine; the number ends its addresses."""

    def facts(number: int = 10) -> dict[str, t.Any]:
        found = copy.deepcopy(_healthy)
        for interface in found["spark_fabric"]["interfaces"].values():
            interface["addresses"] = [a.replace(".10/", f".{number}/") for a in interface["addresses"] or []]
        for interface in found["spark_fabric"]["other_interfaces"].values():
            interface["addresses"] = [a.replace(".11/", f".{number}/") for a in interface["addresses"] or []]
        return found

    return facts


@pytest.fixture(scope="session")
def healthy_pair(_healthy: dict[str, t.Any]) -> tuple[dict[str, t.Any], dict[str, t.Any]]:
    """The facts of two healthy Sparks on one cable, and a deployment for them. Not to be changed."""
    nodes = {"spark-a": copy.deepcopy(_healthy), "spark-b": copy.deepcopy(_healthy)}
    deployment = {
        "engine": {"name": "sglang", "python": "3.12", "minimum_driver": "580.95"},
        "memory": {"minimum_total_bytes": 110 * 1024**3, "minimum_available_bytes": 90 * 1024**3},
        "ports": {"api": 8000},
        "disk_needed_bytes": {"/var/lib/tandem": 10**11},
        "nodes": [
            {"name": name, "links": [{"interface": "enp1s0f0np0", "address": f"192.168.100.{number}/24"}]}
            for name, number in (("spark-a", 10), ("spark-b", 11))
        ],
    }
    return nodes, deployment

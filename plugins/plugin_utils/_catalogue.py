# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Every finding that there is, and the shape of one."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils import _advisories

SEVERITIES = ("blocked", "slow", "note")
HARDWARE = "reference/hardware.md"

# Every id that can occur, with what it is about and where that comes from.
CATALOGUE: dict[str, tuple[str, str]] = {
    "node.unreachable": ("a node could not be asked", "design.md section 5, rules 1 and 5"),
    "node.facts_missing": ("a facts module gave nothing", "design.md section 3"),
    "node.count": ("number of nodes and recipe differ", "design.md section 2"),
    "platform.architecture": ("not aarch64", f"{HARDWARE} section 1.1"),
    "platform.not_a_spark": ("not a DGX Spark", f"{HARDWARE} section 1.1"),
    "platform.unidentified": ("cannot tell whether it is a DGX Spark", f"{HARDWARE} section 1.1"),
    "platform.image_replaced": ("the factory image is gone", f"{HARDWARE} sections 1.4 and 12.1"),
    "platform.dgx_os_lockstep": ("DGX OS differs", f"{HARDWARE} section 6"),
    "platform.kernel_lockstep": ("running kernel differs", f"{HARDWARE} section 6"),
    "platform.kernel_installed_lockstep": ("installed kernel differs", f"{HARDWARE} section 6"),
    "platform.kernel_pending": ("another kernel starts with the next reboot", f"{HARDWARE} section 6"),
    "platform.firmware_lockstep": ("firmware differs within a maker", f"{HARDWARE} section 6"),
    "platform.glibc_lockstep": ("C library differs", f"{HARDWARE} section 6"),
    "platform.container_toolkit_lockstep": ("container toolkit differs", f"{HARDWARE} section 6"),
    "platform.python_version": ("the engine's Python is not installed", f"{HARDWARE} section 1.4"),
    "platform.python_headers": ("Python.h is missing", f"{HARDWARE} section 5"),
    "platform.reboot_pending": ("the system asks for a reboot", f"{HARDWARE} section 6"),
    "gpu.tool_missing": ("nvidia-smi is not installed", f"{HARDWARE} section 1.2"),
    "gpu.timeout": ("the driver does not answer", "issue 3, bad input"),
    "gpu.driver_not_loaded": ("the driver is not loaded", f"{HARDWARE} section 1.2"),
    "gpu.probe_failed": ("nvidia-smi failed", f"{HARDWARE} section 1.2"),
    "gpu.none": ("no GPU", f"{HARDWARE} section 1.2"),
    "gpu.cuda_library": ("the CUDA library cannot be used", f"{HARDWARE} section 1.6"),
    "gpu.capability": ("another compute capability than 12.1", f"{HARDWARE} section 1.2"),
    "gpu.sources_disagree": ("two sources tell different things", "issue 3, item 1"),
    "gpu.driver_reboot_required": (
        "driver installed and not loaded",
        "https://github.com/canonical/ubuntu-server-documentation/pull/369",
    ),
    "gpu.driver_lockstep": ("loaded driver differs", f"{HARDWARE} section 6"),
    "gpu.driver_installed_lockstep": ("installed driver differs", f"{HARDWARE} section 6"),
    "gpu.driver_below_minimum": (
        "the engine needs a newer driver",
        "https://github.com/eugr/spark-vllm-docker/issues/266",
    ),
    "gpu.gsp_mismatch": ("GPU firmware and driver differ", f"{HARDWARE} section 1.2"),
    "gpu.vbios_lockstep": ("GPU firmware image differs within a maker", f"{HARDWARE} section 6"),
    "gpu.other_processes": ("other programs compute on the GPU", f"{HARDWARE} section 11"),
    "memory.unknown": ("memory could not be read", "https://github.com/unslothai/unsloth/pull/10703"),
    "memory.below_plan": ("less memory than the recipe needs", f"{HARDWARE} sections 2 and 8"),
    "memory.does_not_fit": ("the model does not fit", "issue 5, item 7"),
    "memory.total_unusual": ("memory is not that of a Spark", f"{HARDWARE} section 1.3"),
    "memory.page_cache": ("page cache holds memory that the driver cannot take", f"{HARDWARE} section 2"),
    "memory.fragmented": ("little of the free memory is in blocks of 2 MiB", f"{HARDWARE} section 2"),
    "memory.cma_exceeds_total": ("kexec handover has taken memory", "https://github.com/NVIDIA/NV-Kernels/pull/591"),
    "memory.earlyoom": ("earlyoom kills engines without a word", f"{HARDWARE} section 8"),
    "memory.no_swap": ("no swap", f"{HARDWARE} section 8"),
    "memory.previous_wedge": (
        "the previous boot ended without memory",
        "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1358",
    ),
    "cuda.toolkit_lockstep": ("CUDA toolkit differs", f"{HARDWARE} section 6"),
    "cuda.toolkit_too_old": (
        "nvcc cannot compile for the GPU",
        "https://github.com/flashinfer-ai/flashinfer/pull/2839",
    ),
    "cuda.toolkit_aged": ("nvcc is older than the driver", f"{HARDWARE} section 1.4"),
    "cuda.toolkit_missing": ("no nvcc", f"{HARDWARE} section 5"),
    "cuda.cannot_compile": ("the compiler refuses sm_121a", "https://github.com/triton-lang/triton/issues/8539"),
    "cuda.path_nvcc": ("another nvcc comes first on PATH", "https://github.com/flashinfer-ai/flashinfer/issues/3170"),
    "nccl.lockstep": ("NCCL differs", f"{HARDWARE} section 3.8"),
    "engine.digest_lockstep": ("engine releases differ", "design.md section 3"),
    "time.not_synchronised": ("clock is not synchronised", f"{HARDWARE} section 6"),
    "time.skew": ("clocks differ", f"{HARDWARE} section 6"),
    "fabric.no_cable": ("no ConnectX card: no cable, or removed by hot-plug", f"{HARDWARE} section 3.3"),
    "fabric.interface_missing": ("an interface of the inventory does not exist", f"{HARDWARE} section 3.1"),
    "fabric.no_carrier": ("no link", f"{HARDWARE} section 3.1"),
    "fabric.half_down": ("one half of a cage has a link, the other has none", f"{HARDWARE} section 3.1"),
    "fabric.speed": ("the link is slow", "https://github.com/NVIDIA/dgx-spark-playbooks/pull/108"),
    "fabric.pcie": ("the card's PCIe link is slow", f"{HARDWARE} section 3.1"),
    "fabric.mtu_mismatch": ("MTU differs", "https://github.com/NVIDIA/dgx-spark-playbooks/issues/25"),
    "fabric.address_malformed": ("not an address", "https://github.com/kontena/pharos-cluster/issues/1256"),
    "fabric.duplicate_address": ("one address twice", "https://github.com/kontena/pharos-cluster/issues/1256"),
    "fabric.subnet_overlap": ("two interfaces in one network", "https://github.com/NVIDIA/nccl/issues/1581"),
    "fabric.default_route": ("a default route over the fabric", f"{HARDWARE} section 3.6"),
    "fabric.rdma_missing": ("no RDMA device", f"{HARDWARE} section 3.2"),
    "fabric.gid_missing": ("no RoCE v2 address", f"{HARDWARE} section 3.7"),
    "fabric.gid_pinned": ("a fixed GID index", "https://github.com/NVIDIA/nccl/issues/1333"),
    "fabric.crossed_cages": ("a cable joins different cages", "https://github.com/spark-arena/sparkrun/issues/135"),
    "fabric.hotplug_armed": ("hot-plug is armed", f"{HARDWARE} section 3.3"),
    "fabric.carrier_losses": ("the link was lost several times", f"{HARDWARE} section 3.1"),
    "fabric.packet_losses": ("packets were lost", f"{HARDWARE} section 3.9"),
    "fabric.cable_hot": ("a cable overheats", f"{HARDWARE} section 3.1"),
    "fabric.nccl_settings": ("settings for every process on the machine", f"{HARDWARE} section 3.8"),
    "fabric.firewall": ("a firewall may drop what the nodes say to each other", f"{HARDWARE} section 3.6"),
    "fabric.docker_forward": ("Docker drops forwarded packets", f"{HARDWARE} section 3.6"),
    "fabric.firmware_lockstep": ("ConnectX firmware differs", f"{HARDWARE} section 6"),
    "disk.too_little": ("too little room", f"{HARDWARE} section 9"),
    "disk.unknown": ("free room could not be read", f"{HARDWARE} section 9"),
    "ports.in_use": ("a port is taken", "issue 3, item 5"),
    "upgrades.unattended": ("the driver may change by itself", "https://github.com/pando85/homelab/pull/4110"),
    "upgrades.busy": ("a package manager is at work", f"{HARDWARE} section 6"),
    "network.proxy_unreachable": ("a proxy does not answer", "issue 3, item 5"),
    "network.mirror_unreachable": ("a mirror does not answer", "issue 3, item 5"),
    "preflight.not_checked": ("what could not be checked", "design.md section 5, rule 12"),
    "preflight.waiver_unknown": ("a waiver for nothing that exists", "design.md section 5, rule 2"),
    "preflight.waiver_unused": ("a waiver that was not needed", "design.md section 5, rule 2"),
    "preflight.waiver_without_reason": ("a waiver without a reason", "issue 3, item 5"),
    **{entry["id"]: (entry["title"], entry["source"]) for entry in _advisories.ADVISORIES},
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing to know before anything is changed."""

    id: str
    severity: str
    nodes: tuple[str, ...]
    found: str
    wanted: str
    remedy: str
    source: str
    waived: str | None = None

    @property
    def blocks(self) -> bool:
        """Whether the run must stop here."""
        return self.severity == "blocked" and self.waived is None

    def as_dict(self) -> dict[str, t.Any]:
        """The finding as plain data for JSON."""
        return {**dataclasses.asdict(self), "nodes": list(self.nodes), "title": CATALOGUE[self.id][0]}

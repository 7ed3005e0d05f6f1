# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Read everything that ``spark_memory`` is made of."""

from __future__ import annotations

import re
import resource
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _gather, _gpu, _meminfo, _nvidia_smi, _values
from ansible_collections.tandem.spark.plugins.module_utils._host import Host

_CHOSEN = re.compile(r"\[([^\]]+)\]")
_PRESSURE = re.compile(r"(avg10|avg60|avg300)=(\d+(?:\.\d+)?)", re.ASCII)


def unified(host: Host) -> tuple[bool | None, str | None]:
    """Whether the memory is shared with a GPU: the PCI bus, the driver's files, and nvidia-smi when they do not tell.

    True only for a GPU that is known to be integrated, false for one that reports a memory of its own.
    """
    for entry in _gather.pci_devices(host, (_gpu.NVIDIA,)) or []:
        if entry["id"] in _gpu.INTEGRATED_PCI:
            return True, f"PCI {entry['id']}"
    for content in _gather.information(host).values():
        if _values.pairs(content).get("Model") in _gpu.INTEGRATED_NAMES:
            return True, "/proc/driver/nvidia/gpus"
    outcome = host.run(["nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"])
    if _nvidia_smi.state(outcome) != "ok":
        return None, None
    for device in _nvidia_smi.devices(outcome.stdout, ("index", "name", "memory.total")):
        shared, source, _differing = _gpu.unified(None, device["name"], device["memory_total_bytes"])
        if shared is not None:
            return shared, source
    return None, None


def settings(host: Host) -> dict[str, t.Any]:
    """Settings of the kernel that decide how memory is given up."""
    chosen = _CHOSEN.search(host.read("/sys/kernel/mm/transparent_hugepage/enabled") or "")
    return {
        "swappiness": _values.integer(host.line("/proc/sys/vm/swappiness")),
        "min_free_kbytes": _values.integer(host.line("/proc/sys/vm/min_free_kbytes")),
        "overcommit_memory": _values.integer(host.line("/proc/sys/vm/overcommit_memory")),
        "transparent_hugepage": chosen.group(1) if chosen else None,
        "numa_balancing": _values.integer(host.line("/proc/sys/kernel/numa_balancing")),
    }


def pressure(content: str | None) -> dict[str, t.Any] | None:
    """/proc/pressure/memory, or None when the kernel does not keep it."""
    found: dict[str, t.Any] = {}
    for line in (content or "").splitlines():
        kind = line.split(" ", 1)[0]
        values = {name: float(value) for name, value in _PRESSURE.findall(line)}
        if kind in ("some", "full") and values:
            found[kind] = values
    return found or None


def memory(host: Host) -> dict[str, t.Any]:
    """The value of ``spark_memory``."""
    shared, source = unified(host)
    found = _meminfo.assemble(
        host.read("/proc/meminfo"),
        host.read("/proc/buddyinfo"),
        resource.getpagesize(),
        host.line("/proc/cmdline"),
        shared,
        source,
    )
    found["settings"] = settings(host)
    found["pressure"] = pressure(host.read("/proc/pressure/memory"))
    return found

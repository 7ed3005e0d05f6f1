# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Reads that more than one facts module needs; every one of them goes through :class:`Host`."""

from __future__ import annotations

import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _cuda, _gpu, _meminfo, _nvidia_smi, _packages
from ansible_collections.tandem.spark.plugins.module_utils._host import Host, Outcome

LIBRARY_DIRECTORIES = (
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib64",
)


def pci_devices(host: Host, vendors: t.Container[str]) -> list[dict[str, str]] | None:
    """PCI functions of some vendors with address, ``vendor:device`` and class; None when the bus cannot be listed.

    A bus without any function at all is as good as unreadable: a container shows one.
    """
    names = host.names("/sys/bus/pci/devices")
    if not names:
        return None
    found, told = [], False
    for name in names:
        base = f"/sys/bus/pci/devices/{name}"
        vendor, device = host.line(f"{base}/vendor"), host.line(f"{base}/device")
        if vendor is None or device is None:
            continue
        told = True
        if vendor.lower().replace("0x", "") in vendors:
            identity = f"{vendor}:{device}".lower().replace("0x", "")
            found.append({"address": name, "id": identity, "class": (host.line(f"{base}/class") or "").lower()})
    return found if told else None


def query_gpus(host: Host) -> tuple[Outcome, tuple[str, ...]]:
    """Ask nvidia-smi for :data:`_nvidia_smi.FIELDS`; a field that this version does not know is left out."""
    fields = _nvidia_smi.FIELDS
    while True:
        outcome = host.run(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
        unknown = _nvidia_smi.invalid_field(outcome)
        if unknown not in fields or len(fields) == 1:
            return outcome, fields
        fields = tuple(field for field in fields if field != unknown)


def information(host: Host) -> dict[str, str]:
    """``/proc/driver/nvidia/gpus/ADDRESS/information`` by PCI address."""
    found = {}
    for address in host.names("/proc/driver/nvidia/gpus") or []:
        content = host.read(f"/proc/driver/nvidia/gpus/{address}/information")
        if content is not None:
            found[address] = content
    return found


def library_links(host: Host) -> dict[str, str]:
    """Where the driver's libraries point, by path."""
    found = {}
    for directory in LIBRARY_DIRECTORIES:
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            target = host.link(f"{directory}/{name}")
            if target is not None:
                found[f"{directory}/{name}"] = target
    return found


def memory_total(host: Host) -> int | None:
    """MemTotal in bytes, or None."""
    return _meminfo.parse(host.read("/proc/meminfo")).get("MemTotal")


def unit_of_process(host: Host, pid: int) -> str | None:
    """The systemd unit of a process, or None."""
    return _gpu.unit_of(host.read(f"/proc/{pid}/cgroup"))


def gpu(host: Host) -> dict[str, t.Any]:
    """The value of ``spark_gpu``: nvidia-smi, the CUDA library and the files of the driver, asked at the same time."""
    answers = host.together(
        {
            "query": lambda: query_gpus(host),
            "details": lambda: host.run(["nvidia-smi", "-q"]),
            "applications": lambda: host.run(
                [
                    "nvidia-smi",
                    f"--query-compute-apps={','.join(_nvidia_smi.APP_FIELDS)}",
                    "--format=csv,noheader,nounits",
                ]
            ),
            "cuda": lambda: _cuda.ask(host),
        }
    )
    query, fields = answers["query"]
    found = _gpu.assemble(
        _gpu.Sources(
            query=query,
            query_fields=fields,
            details=answers["details"],
            applications=answers["applications"],
            cuda=answers["cuda"],
            nvrm=host.read("/proc/driver/nvidia/version"),
            module=host.line("/sys/module/nvidia/version"),
            information=information(host),
            packages=_packages.installed(host.read(_packages.STATUS), _gpu.is_driver_package),
            library_links=library_links(host),
            memory_total=memory_total(host),
            pci=pci_devices(host, (_gpu.NVIDIA,)),
        )
    )
    for process in found["compute_processes"] or []:
        process["unit"] = unit_of_process(host, process["pid"])
    return found

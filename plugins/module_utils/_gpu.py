# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Put together what several sources say about the GPUs; every value has a source, sources that differ are listed."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _cuda, _nvidia_smi, _values, _version
from ansible_collections.tandem.spark.plugins.module_utils._host import Outcome

# GPUs that have no memory of their own: the only ones that are called unified.
INTEGRATED_NAMES = ("NVIDIA GB10",)
INTEGRATED_PCI = ("10de:2e12",)
# GPUs of another machine that looks similar.
RTX_SPARK_PCI = ("10de:2e03", "10de:2e06")
NVIDIA = "10de"

SMI = "nvidia-smi"
SMI_Q = "nvidia-smi -q"
CUDA = "CUDA driver API"
MEMINFO = "/proc/meminfo MemTotal"
NAME_TABLE = "known name of an integrated GPU"

_NVRM = re.compile(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)(?:\s|$)", re.ASCII | re.MULTILINE)
_LIBRARY = re.compile(r"^lib[a-z-]+\.so\.(\d+\.\d+(?:\.\d+)?)$", re.ASCII)
_DRIVER_PACKAGE = re.compile(
    r"^(libnvidia-compute-\d+(-server)?|libcuda1|libnvidia-ml1|nvidia-utils-\d+(-server)?"
    r"|nvidia-driver-\d+(-server)?(-open)?)$",
    re.ASCII,
)
_UNIT = re.compile(r"/([^/]+\.(?:service|scope))(?:/|$)")


class Sources(t.NamedTuple):
    """Everything that was read on the node."""

    query: Outcome
    query_fields: t.Sequence[str] = _nvidia_smi.FIELDS
    details: Outcome = Outcome("missing")
    applications: Outcome = Outcome("missing")
    cuda: Outcome = Outcome("missing")
    nvrm: str | None = None  # /proc/driver/nvidia/version
    module: str | None = None  # /sys/module/nvidia/version
    information: t.Mapping[str, str] = {}  # PCI address -> /proc/driver/nvidia/gpus/*/information
    packages: t.Mapping[str, t.Mapping[str, t.Any]] | None = None
    library_links: t.Mapping[str, str] = {}  # libcuda.so.1, libnvidia-ml.so.1 -> link target
    memory_total: int | None = None
    pci: t.Sequence[t.Mapping[str, str]] | None = None


def is_driver_package(name: str) -> bool:
    """True for the packages that hold the driver's user-space half."""
    return _DRIVER_PACKAGE.match(name) is not None


def nvrm_version(content: str | None) -> str | None:
    """The driver version in /proc/driver/nvidia/version: the one that is loaded."""
    match = _NVRM.search(content or "")
    return match.group(1) if match else None


def unit_of(cgroup: str | None) -> str | None:
    """The systemd unit in the content of /proc/PID/cgroup."""
    for line in (cgroup or "").splitlines():
        units = _UNIT.findall(line)
        if units:
            return str(units[-1])
    return None


def architecture(capability: str | None) -> str | None:
    """``12.1`` is ``sm_121``."""
    return f"sm_{capability.replace('.', '')}" if capability else None


def same_address(left: str | None, right: str | None) -> bool:
    """Compare PCI addresses whose domain has four digits in one place and eight in another."""
    if not left or not right:
        return False
    return _address_key(left) == _address_key(right)


def _address_key(address: str) -> tuple[int, str]:
    domain, _colon, rest = address.partition(":")
    try:
        return int(domain, 16), rest.lower()
    except ValueError:
        return -1, address.lower()


def driver(sources: Sources, reported: str | None) -> tuple[dict[str, t.Any], list[dict[str, t.Any]]]:
    """The loaded and the installed driver, whether a reboot is due, and where sources differ."""
    loaded = {
        "/proc/driver/nvidia/version": nvrm_version(sources.nvrm),
        "/sys/module/nvidia/version": _values.text(sources.module),
        SMI: reported,
    }
    installed: dict[str, str | None] = {}
    for name, package in sorted((sources.packages or {}).items()):
        if is_driver_package(name):
            installed[f"package {name}"] = _version.debian_upstream(str(package.get("version") or ""))
    for name, target in sorted(sources.library_links.items()):
        match = _LIBRARY.match(target.rsplit("/", 1)[-1])
        if match:
            installed[name] = match.group(1)
    for outcome in (sources.query, sources.details):
        # Only the first two numbers are printed: 580.173 stands for 580.173.02 too.
        library = _nvidia_smi.library_version(outcome)
        if library and not any(_version.matches(version, library) for version in installed.values()):
            installed["NVML, named by nvidia-smi"] = library
    known_installed = {source: version for source, version in installed.items() if version}
    newest = _version.newest(list(known_installed.values()))
    loaded_source = next((source for source, version in loaded.items() if version), None)
    loaded_version = loaded[loaded_source] if loaded_source else None
    order = _version.compare(loaded_version, newest)
    reboot = None if order is None else order != 0
    if _nvidia_smi.state(sources.query) == "version_mismatch":
        reboot = True
    kind = None
    if sources.nvrm and "NVRM version:" in sources.nvrm:
        kind = "open" if "Open Kernel Module" in sources.nvrm else "proprietary"
    found = {
        "loaded": loaded_version,
        "loaded_source": loaded_source,
        "installed": newest,
        "installed_source": next((s for s, version in known_installed.items() if version == newest), None),
        "reboot_required": reboot,
        "kernel_module": kind,
        "cuda": _cuda.driver_api(sources.cuda),
    }
    differing = [_differing("driver.loaded", loaded), _differing("driver.installed", known_installed)]
    return found, [entry for entry in differing if entry]


def _differing(field: str, values: t.Mapping[str, t.Any], device: int | None = None) -> dict[str, t.Any] | None:
    told = {source: value for source, value in values.items() if value is not None}
    distinct = {str(_version.key(v) or v) if "driver." in field else str(v) for v in told.values()}
    if len(distinct) < 2:
        return None
    return {"field": field, "device": device, "values": {source: str(value) for source, value in told.items()}}


def _match(device: t.Mapping[str, t.Any], others: t.Sequence[dict[str, t.Any]]) -> dict[str, t.Any] | None:
    for other in others:
        if device.get("uuid") and device.get("uuid") == other.get("uuid"):
            return other
    for other in others:
        if same_address(device.get("pci_address"), other.get("pci_address")):
            return other
    unnamed = not device.get("uuid") and not device.get("pci_address")
    return others[0] if len(others) == 1 and unnamed else None


def unified(
    integrated: bool | None, name: str | None, own_memory: int | None
) -> tuple[bool | None, str | None, list[dict[str, t.Any]]]:
    """Whether GPU and CPU share one memory, the source of that, and a disagreement if there is one.

    True only for a GPU that the driver calls integrated or whose name is known to be; false when the driver says that
    it is not integrated or nvidia-smi gives a memory size. ``[N/A]`` alone says nothing.
    """
    by_name = True if name in INTEGRATED_NAMES else None
    by_size = False if own_memory else None
    values = {f"{CUDA} integrated": integrated, NAME_TABLE: by_name, f"{SMI} memory.total": by_size}
    differing = _differing("memory_unified", values)
    for source, value in values.items():
        if value is not None:
            return value, source, [differing] if differing else []
    return None, None, []


def _device(
    index: int, smi: dict[str, t.Any], extra: dict[str, t.Any], cuda: dict[str, t.Any], sources: Sources
) -> tuple[dict[str, t.Any], list[dict[str, t.Any]]]:
    found: dict[str, t.Any] = {"index": index}
    where: dict[str, str] = {}
    differing: list[dict[str, t.Any] | None] = []

    def take(field: str, *candidates: tuple[str, t.Any], compare: bool = False) -> t.Any:
        found[field] = None
        for source, value in candidates:
            if value is not None:
                found[field], where[field] = value, source
                break
        if compare:
            differing.append(_differing(field, dict(candidates), index))
        return found[field]

    name = take("name", (SMI, smi.get("name")), (SMI_Q, extra.get("name")), (CUDA, cuda.get("name")), compare=True)
    take("uuid", (SMI, smi.get("uuid")), (SMI_Q, extra.get("uuid")), (CUDA, cuda.get("uuid")), compare=True)
    address = take("pci_address", (SMI, smi.get("pci_address")), (CUDA, cuda.get("pci_address")))
    capability = take(
        "compute_capability",
        (SMI, smi.get("compute_capability")),
        (CUDA, cuda.get("compute_capability")),
        compare=True,
    )
    take("architecture", (where.get("compute_capability", SMI), architecture(capability)))
    for field in _cuda.ATTRIBUTES:
        if not field.startswith("capability_"):
            take(field, (CUDA, cuda.get(field)))
    take("addressing_mode", (SMI_Q, extra.get("addressing_mode")))
    take("c2c_mode", (SMI_Q, extra.get("c2c_mode")))
    information = next((text for a, text in sources.information.items() if same_address(a, address)), None)
    lines = _values.pairs(information)
    bios = (_values.text(lines.get("Video BIOS")) or "").upper() or None  # lower case there, upper case in nvidia-smi
    take("vbios", (SMI_Q, extra.get("vbios")), ("/proc/driver/nvidia/gpus", bios))
    take(
        "gsp_firmware",
        (SMI_Q, extra.get("gsp_firmware")),
        ("/proc/driver/nvidia/gpus", _values.text(lines.get("GPU Firmware"))),
    )

    own_memory = smi.get("memory_total_bytes") or extra.get("memory_total_bytes")
    shared, source, contradiction = unified(cuda.get("integrated"), name, own_memory)
    take("memory_unified", (source or "", shared))
    for entry in contradiction:
        entry["device"] = index
        differing.append(entry)
    if shared:
        take("memory_total_bytes", (MEMINFO, sources.memory_total))
    else:
        take("memory_total_bytes", (SMI, own_memory), (CUDA, None if shared is None else cuda.get("total_bytes")))
    take("memory_used_bytes", (SMI, smi.get("memory_used_bytes")))
    take("memory_free_bytes", (SMI, smi.get("memory_free_bytes")))
    take("cuda_total_bytes", (CUDA, cuda.get("total_bytes")))
    take("temperature_celsius", (SMI, smi.get("temperature_celsius")), (SMI_Q, extra.get("temperature_celsius")))
    for field in (
        "power_draw_watts",
        "power_limit_watts",
        "clock_sm_mhz",
        "clock_sm_maximum_mhz",
        "clock_memory_mhz",
        "clock_memory_maximum_mhz",
        "utilisation_percent",
        "performance_state",
        "persistence_mode",
    ):
        take(field, (SMI, smi.get(field)))
    found["sources"] = where
    return found, [entry for entry in differing if entry]


def assemble(sources: Sources) -> dict[str, t.Any]:
    """The value of ``ansible_facts.spark_gpu`` (without the units of the processes, which need another read)."""
    probe = _nvidia_smi.state(sources.query)
    smi_devices = _nvidia_smi.devices(sources.query.stdout, sources.query_fields) if probe == "ok" else []
    if probe == "ok" and not smi_devices:
        probe = "garbage"
    sections = _nvidia_smi.query(sources.details.output)
    extras = [{"pci_address": address, **_nvidia_smi.details(section)} for address, section in sections.items()]
    cuda_state = _cuda.state(sources.cuda)
    cuda_devices = _cuda.devices(sources.cuda)

    devices, differing = [], []
    base = smi_devices or extras or cuda_devices
    for position, entry in enumerate(base):
        smi = entry if smi_devices else {}
        extra = (_match(entry, extras) or {}) if smi_devices else (entry if extras else {})
        cuda = (_match(entry, cuda_devices) or {}) if (smi_devices or extras) else entry
        index = entry.get("index")
        device, conflicts = _device(position if index is None else index, smi, extra, cuda, sources)
        devices.append(device)
        differing.extend(conflicts)
    if base:
        count: int | None = len(devices)
        count_source = SMI if smi_devices else (SMI_Q if extras else CUDA)
    else:
        told = probe == "no_devices" or cuda_state == "ok"
        count, count_source = (0 if told else None), (SMI if probe == "no_devices" else CUDA)
    if smi_devices and cuda_state == "ok":
        conflict = _differing("count", {SMI: len(smi_devices), CUDA: len(cuda_devices)})
        differing.extend([conflict] if conflict else [])

    reported = next((d["driver_version"] for d in smi_devices if d.get("driver_version")), None)
    versions, conflicts = driver(sources, reported)
    applications = sources.applications
    processes: list[dict[str, t.Any]] | None = None
    if probe == "no_devices":
        processes = []
    elif probe == "ok" and _nvidia_smi.state(applications) == "ok":
        processes = _nvidia_smi.processes(applications.stdout)
    return {
        "count": count,
        "count_source": count_source if count is not None else None,
        "devices": devices,
        "driver": versions,
        "probe": probe,
        "probe_detail": {
            "tool": SMI,
            "state": probe,
            "message": _nvidia_smi.message(sources.query) if probe not in ("ok", "tool_missing") else None,
            "seconds": sources.query.seconds,
        },
        "cuda_probe": cuda_state,
        "cuda_probe_detail": {
            "tool": "libcuda.so.1",
            "state": cuda_state,
            "message": _cuda.message(sources.cuda) if cuda_state != "ok" else None,
            "seconds": sources.cuda.seconds,
        },
        "compute_processes": processes,
        "pci_devices": None if sources.pci is None else [dict(entry) for entry in sources.pci],
        "disagreements": differing + conflicts,
    }

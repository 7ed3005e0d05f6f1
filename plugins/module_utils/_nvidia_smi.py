# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What nvidia-smi prints, as values. On a GB10 the memory columns are ``[N/A]``; that is neither zero nor an error."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _values
from ansible_collections.tandem.spark.plugins.module_utils._host import Outcome

# Every field here is known to drivers of the 535 series and later; newer ones are read from ``nvidia-smi -q``.
FIELDS: tuple[str, ...] = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "memory.total",
    "memory.used",
    "memory.free",
    "compute_cap",
    "pci.bus_id",
    "power.draw",
    "power.limit",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "clocks.max.mem",
    "temperature.gpu",
    "utilization.gpu",
    "pstate",
    "persistence_mode",
)
APP_FIELDS = ("pid", "process_name", "used_memory")

# (state, text that nvidia-smi prints); the first that is found decides.
_FAILURES = (
    ("version_mismatch", "driver/library version mismatch"),
    ("driver_not_loaded", "couldn't communicate with the nvidia driver"),
    ("driver_not_loaded", "nvidia driver is not loaded"),
    ("driver_not_loaded", "driver not loaded"),
    ("no_devices", "no devices were found"),
    ("invalid_field", "is not a valid field to query"),
    ("not_permitted", "insufficient permissions"),
)
_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query', re.ASCII)
_LIBRARY = re.compile(r"NVML library version:\s*(\d+(?:\.\d+)+)", re.ASCII)
_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$", re.ASCII)
_HEADER = re.compile(r"^(.*?)\s*(?:\[([^\]]+)\])?$")
_UUID = re.compile(r"^(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", re.ASCII)
_TABLE = re.compile(r"NVIDIA-SMI\s+(\S+).*?Driver Version:\s*(\S+).*?CUDA Version:\s*(\S+)", re.ASCII)
_PROCESS = re.compile(r"^\|\s+(\d+)\s+\S+\s+\S+\s+(\d+)\s+(\S+)\s+(.*?)\s+(\S+)\s*\|\s*$", re.ASCII)


def state(outcome: Outcome) -> str:
    """``ok``, or why nvidia-smi told nothing.

    The values are ``tool_missing``, ``timeout``, ``denied``, ``version_mismatch``, ``driver_not_loaded``,
    ``no_devices``, ``invalid_field``, ``not_permitted`` and ``failed``.
    """
    if outcome.state in ("timeout", "denied"):
        return outcome.state
    if outcome.state == "missing":
        return "tool_missing"
    printed = (outcome.stdout + outcome.stderr).lower()
    for name, sign in _FAILURES:
        if sign in printed:
            return name
    return "ok" if outcome.state == "ok" else "failed"


def message(outcome: Outcome) -> str | None:
    """The first line that nvidia-smi printed on failure, for people."""
    for stream in (outcome.stderr, outcome.stdout):
        for line in stream.splitlines():
            if line.strip():
                return line.strip()[:200]
    return None


def invalid_field(outcome: Outcome) -> str | None:
    """The field that this nvidia-smi does not know, if that is why it failed."""
    match = _FIELD.search(outcome.stdout + outcome.stderr)
    return match.group(1) if match else None


def library_version(outcome: Outcome) -> str | None:
    """The version of the user-space library, which nvidia-smi names when it does not match the loaded driver."""
    match = _LIBRARY.search(outcome.stdout + outcome.stderr)
    return match.group(1) if match else None


def rows(content: str, fields: t.Sequence[str] | None = None) -> list[dict[str, str]]:
    """CSV rows as raw text by field name.

    Without *fields* the first line is a header (``memory.total [MiB]``; the unit is put behind the values). Columns
    that a truncated row lacks are simply not in its dictionary.
    """
    lines = [line for line in content.splitlines() if line.strip()]
    units: list[str] = []
    if fields is None:
        if not lines:
            return []
        header = [_HEADER.match(cell.strip()) for cell in lines.pop(0).split(",")]
        fields = [match.group(1) if match else "" for match in header]
        units = [(match.group(2) or "") if match else "" for match in header]
    found = []
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        row = dict(zip(fields, cells))
        for name, unit in zip(fields, units):
            if unit and _values.text(row.get(name)) is not None and not row[name].endswith(unit):
                row[name] = f"{row[name]} {unit}"
        found.append(row)
    return found


def device(row: t.Mapping[str, str]) -> dict[str, t.Any] | None:
    """One GPU from a row of :data:`FIELDS` (``nounits``), or None when the row is not about a GPU."""
    index = _values.integer(row.get("index"))
    uuid = _values.text(row.get("uuid"))
    if uuid is not None and not _UUID.match(uuid):
        uuid = None
    name = _values.text(row.get("name"))
    if name is not None and not any(character.isalpha() for character in name):
        name = None
    address = _address(row.get("pci.bus_id"))
    if index is None or index < 0 or (name is None and uuid is None and address is None):
        return None
    capability = _values.text(row.get("compute_cap"))
    if capability is not None and not re.match(r"^\d+\.\d+$", capability, re.ASCII):
        capability = None
    return {
        "index": index,
        "name": name,
        "uuid": uuid,
        "pci_address": address,
        "driver_version": _values.text(row.get("driver_version")),
        "compute_capability": capability,
        "memory_total_bytes": _values.size(row.get("memory.total"), "MiB"),
        "memory_used_bytes": _values.size(row.get("memory.used"), "MiB"),
        "memory_free_bytes": _values.size(row.get("memory.free"), "MiB"),
        "power_draw_watts": _values.number(row.get("power.draw")),
        "power_limit_watts": _values.number(row.get("power.limit")),
        "clock_sm_mhz": _values.integer(row.get("clocks.sm")),
        "clock_sm_maximum_mhz": _values.integer(row.get("clocks.max.sm")),
        "clock_memory_mhz": _values.integer(row.get("clocks.mem")),
        "clock_memory_maximum_mhz": _values.integer(row.get("clocks.max.mem")),
        "temperature_celsius": _values.number(row.get("temperature.gpu")),
        "utilisation_percent": _values.number(row.get("utilization.gpu")),
        "performance_state": _values.text(row.get("pstate")),
        "persistence_mode": _values.truth(row.get("persistence_mode")),
    }


def devices(content: str, fields: t.Sequence[str] | None = FIELDS) -> list[dict[str, t.Any]]:
    """All GPUs in CSV output; lines that are not about a GPU are left out."""
    return [found for found in (device(row) for row in rows(content, fields)) if found is not None]


def processes(content: str | None) -> list[dict[str, t.Any]] | None:
    """Compute processes from ``--query-compute-apps`` (:data:`APP_FIELDS`, noheader); None when it was not told."""
    if content is None:
        return None
    found = []
    for row in rows(content, APP_FIELDS):
        pid = _values.integer(row.get("pid"))
        if pid is None or pid < 0:
            return None  # something else than a list of processes
        found.append(
            {
                "pid": pid,
                "name": _values.text(row.get("process_name")),
                "used_memory_bytes": _values.size(row.get("used_memory"), "MiB"),
            }
        )
    return found


def _address(token: str | None) -> str | None:
    found = _values.text(token)
    return found if found and _GPU.match(f"GPU {found}") else None


def query(content: str | None) -> dict[str, dict[str, str]]:
    """``nvidia-smi -q`` as ``{pci address: {"Section/Key": raw value}}``; the start of the text may be missing.

    A key that is printed more than once keeps its first value; the nesting follows the indentation.
    """
    gpus: dict[str, dict[str, str]] = {}
    current: dict[str, str] | None = None
    stack: list[tuple[int, str]] = []
    for line in (content or "").splitlines():
        start = _GPU.match(line)
        if start:
            current, stack = gpus.setdefault(start.group(1), {}), []
            continue
        if current is None or not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        while stack and stack[-1][0] >= depth:
            stack.pop()
        name, colon, value = line.strip().partition(" : ")
        if not colon and line.rstrip().endswith(":"):
            name, value = line.strip()[:-1], ""
        path = "/".join([part for _depth, part in stack] + [name.strip()])
        if colon:
            current.setdefault(path, value.strip())
        stack.append((depth, name.strip()))
    return gpus


def details(section: t.Mapping[str, str]) -> dict[str, t.Any]:
    """The fields of one GPU of :func:`query` that the CSV form does not have in all driver versions."""
    return {
        "name": _values.text(section.get("Product Name")),
        "uuid": _values.text(section.get("GPU UUID")),
        "addressing_mode": _values.text(section.get("Addressing Mode")),
        "c2c_mode": _values.text(section.get("GPU C2C Mode")),
        "vbios": _values.text(section.get("VBIOS Version")),
        "gsp_firmware": _values.text(section.get("GSP Firmware Version")),
        "compute_mode": _values.text(section.get("Compute Mode")),
        "memory_total_bytes": _values.size(section.get("FB Memory Usage/Total")),
        "temperature_celsius": _values.number(section.get("Temperature/GPU Current Temp")),
        "power_limit_watts": _values.number(section.get("GPU Power Readings/Current Power Limit")),
        "clock_memory_mhz": _values.integer(section.get("Clocks/Memory")),
    }


def table(content: str | None) -> dict[str, t.Any]:
    """The header and the process rows of the boxed view.

    The CUDA version there is that of the user-space driver: inside a container it may be newer than on the host.
    """
    match = _TABLE.search(content or "")
    found: dict[str, t.Any] = {
        "tool": _values.text(match.group(1)) if match else None,
        "driver": _values.text(match.group(2)) if match else None,
        "cuda": _values.text(match.group(3)) if match else None,
        "processes": [],
    }
    for line in (content or "").splitlines():
        process = _PROCESS.match(line)
        if process:
            found["processes"].append(
                {
                    "gpu": int(process.group(1)),
                    "pid": int(process.group(2)),
                    "type": process.group(3),
                    "name": process.group(4),
                    "used_memory_bytes": _values.size(process.group(5)),
                }
            )
    return found

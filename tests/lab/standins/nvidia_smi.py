#!/usr/bin/python3 -I
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-in for nvidia-smi on a virtual Spark: answers what the real tool was seen to answer on a GB10.

Values are recorded ones where a record exists (DGX Spark, driver 580); texts, exit codes, header names and the list of
fields are those of the real tool, version 580.159.04. What changes per node lies in /etc/tandem-lab/:

  driver_version   the installed user-space driver (this tool's own version)
  gpu              "present" or "absent"
  compute_apps     optional: lines of "pid, process name, MiB" that --query-compute-apps reports

The loaded kernel module's version is read where the real one is: /proc/driver/nvidia/version.
"""

from __future__ import annotations

import os
import re
import sys
import time

# For tests only: another root to read the files from.
ROOT = os.environ.get("TANDEM_STANDIN_ROOT", "")

# What --help-query-gpu of 580.159.04 lists. A field without a value below answers [N/A], as most do on a GB10.
_FIELDS = """
timestamp driver_version vgpu_driver_capability.heterogenous_multivGPU count name serial uuid pci.bus_id
pci.domain pci.bus pci.device pci.baseClass pci.subClass pci.device_id pci.sub_device_id
vgpu_device_capability.fractional_multiVgpu vgpu_device_capability.heterogeneous_timeSlice_profile
vgpu_device_capability.heterogeneous_timeSlice_sizes vgpu_device_capability.homogeneous_placements
vgpu_device_capability.mig_timeSlicing vgpu_device_capability.mig_timeSlicing_mode pcie.link.gen.current
pcie.link.gen.gpucurrent pcie.link.gen.max pcie.link.gen.gpumax pcie.link.gen.hostmax pcie.link.width.current
pcie.link.width.max index display_mode display_attached display_active persistence_mode addressing_mode
accounting.mode accounting.buffer_size driver_model.current driver_model.pending vbios_version inforom.img
inforom.oem inforom.ecc inforom.pwr inforom.checksum_validation gpu_recovery_action gom.current gom.pending
fan.speed pstate clocks_event_reasons.supported clocks_event_reasons.active clocks_event_reasons.gpu_idle
clocks_event_reasons.applications_clocks_setting clocks_event_reasons.sw_power_cap
clocks_event_reasons.hw_slowdown clocks_event_reasons.hw_thermal_slowdown
clocks_event_reasons.hw_power_brake_slowdown clocks_event_reasons.sw_thermal_slowdown
clocks_event_reasons.sync_boost clocks_event_reasons_counters.sw_power_cap
clocks_event_reasons_counters.sync_boost clocks_event_reasons_counters.sw_thermal_slowdown
clocks_event_reasons_counters.hw_thermal_slowdown clocks_event_reasons_counters.hw_power_brake_slowdown
memory.total memory.reserved memory.used memory.free compute_mode compute_cap utilization.gpu
utilization.memory utilization.encoder utilization.decoder utilization.jpeg utilization.ofa
encoder.stats.sessionCount encoder.stats.averageFps encoder.stats.averageLatency dramEncryption.mode.current
dramEncryption.mode.pending ecc.mode.current ecc.mode.pending ecc.errors.corrected.volatile.device_memory
ecc.errors.corrected.volatile.dram ecc.errors.corrected.volatile.register_file
ecc.errors.corrected.volatile.l1_cache ecc.errors.corrected.volatile.l2_cache
ecc.errors.corrected.volatile.texture_memory ecc.errors.corrected.volatile.cbu
ecc.errors.corrected.volatile.sram ecc.errors.corrected.volatile.total
ecc.errors.corrected.aggregate.device_memory ecc.errors.corrected.aggregate.dram
ecc.errors.corrected.aggregate.register_file ecc.errors.corrected.aggregate.l1_cache
ecc.errors.corrected.aggregate.l2_cache ecc.errors.corrected.aggregate.texture_memory
ecc.errors.corrected.aggregate.cbu ecc.errors.corrected.aggregate.sram ecc.errors.corrected.aggregate.total
ecc.errors.uncorrected.volatile.device_memory ecc.errors.uncorrected.volatile.dram
ecc.errors.uncorrected.volatile.register_file ecc.errors.uncorrected.volatile.l1_cache
ecc.errors.uncorrected.volatile.l2_cache ecc.errors.uncorrected.volatile.texture_memory
ecc.errors.uncorrected.volatile.cbu ecc.errors.uncorrected.volatile.sram ecc.errors.uncorrected.volatile.total
ecc.errors.uncorrected.aggregate.device_memory ecc.errors.uncorrected.aggregate.dram
ecc.errors.uncorrected.aggregate.register_file ecc.errors.uncorrected.aggregate.l1_cache
ecc.errors.uncorrected.aggregate.l2_cache ecc.errors.uncorrected.aggregate.texture_memory
ecc.errors.uncorrected.aggregate.cbu ecc.errors.uncorrected.aggregate.sram
ecc.errors.uncorrected.aggregate.total ecc.errors.uncorrected.volatile.sram.parity
ecc.errors.uncorrected.volatile.sram.secded ecc.errors.uncorrected.aggregate.sram.parity
ecc.errors.uncorrected.aggregate.sram.secded ecc.errors.uncorrected.aggregate.sram.thresholdExceeded
ecc.errors.uncorrected.aggregate.sram.l2 ecc.errors.uncorrected.aggregate.sram.sm
ecc.errors.uncorrected.aggregate.sram.mcu ecc.errors.uncorrected.aggregate.sram.pcie
ecc.errors.uncorrected.aggregate.sram.other retired_pages.single_bit_ecc.count retired_pages.double_bit.count
retired_pages.pending remapped_rows.correctable remapped_rows.correctable_inactive remapped_rows.uncorrectable
remapped_rows.uncorrectable_inactive remapped_rows.pending remapped_rows.failure remapped_rows.histogram.max
remapped_rows.histogram.high remapped_rows.histogram.partial remapped_rows.histogram.low
remapped_rows.histogram.none temperature.gpu temperature.gpu.tlimit temperature.memory power.management
power.draw power.draw.average power.draw.instant power.limit enforced.power.limit power.default_limit
power.min_limit power.max_limit module.power.draw.average module.power.draw.instant module.power.limit
module.enforced.power.limit module.power.default_limit module.power.min_limit module.power.max_limit
power_smoothing.delayed_power_smoothing_supported power_smoothing.primary_power_floor
power_smoothing.secondary_power_floor power_smoothing.min_primary_floor_activation_offset
power_smoothing.min_primary_floor_activation_point power_smoothing.window_multiplier
power_smoothing.curr_profile.secondary_power_floor
power_smoothing.curr_profile.primary_floor_act_window_multiplier
power_smoothing.curr_profile.primary_floor_tar_window_multiplier
power_smoothing.curr_profile.primary_floor_act_offset power_smoothing.admin_override.secondary_power_floor
power_smoothing.admin_override.primary_floor_act_window_multiplier
power_smoothing.admin_override.primary_floor_tar_window_multiplier
power_smoothing.admin_override.primary_floor_act_offset clocks.current.graphics clocks.current.sm
clocks.current.memory clocks.current.video clocks.applications.graphics clocks.applications.memory
clocks.default_applications.graphics clocks.default_applications.memory clocks.max.graphics clocks.max.sm
clocks.max.memory mig.mode.current mig.mode.pending gsp.mode.current gsp.mode.default c2c.mode
protected_memory.total protected_memory.used protected_memory.free fabric.state fabric.status fabric.cliqueId
fabric.clusterUuid fabric.health.summary fabric.health.bandwidth fabric.health.route_recovery_in_progress
fabric.health.route_unhealthy fabric.health.access_timeout_recovery fabric.health.incorrect_configuration
fabric.health.partition_assigned platform.chassis_serial_number platform.slot_number platform.tray_index
platform.host_id platform.peer_type platform.module_id platform.gpu_fabric_guid hostname
"""
FIELDS = set(_FIELDS.split())
ALIASES = {
    "clocks.applications.gr": "clocks.applications.graphics",
    "clocks.applications.mem": "clocks.applications.memory",
    "clocks.default_applications.gr": "clocks.default_applications.graphics",
    "clocks.default_applications.mem": "clocks.default_applications.memory",
    "clocks.gr": "clocks.current.graphics",
    "clocks.max.gr": "clocks.max.graphics",
    "clocks.max.mem": "clocks.max.memory",
    "clocks.mem": "clocks.current.memory",
    "clocks.sm": "clocks.current.sm",
    "clocks.video": "clocks.current.video",
    "clocks_throttle_reasons.active": "clocks_event_reasons.active",
    "clocks_throttle_reasons.applications_clocks_setting": "clocks_event_reasons.applications_clocks_setting",
    "clocks_throttle_reasons.gpu_idle": "clocks_event_reasons.gpu_idle",
    "clocks_throttle_reasons.hw_power_brake_slowdown": "clocks_event_reasons.hw_power_brake_slowdown",
    "clocks_throttle_reasons.hw_slowdown": "clocks_event_reasons.hw_slowdown",
    "clocks_throttle_reasons.hw_thermal_slowdown": "clocks_event_reasons.hw_thermal_slowdown",
    "clocks_throttle_reasons.supported": "clocks_event_reasons.supported",
    "clocks_throttle_reasons.sw_power_cap": "clocks_event_reasons.sw_power_cap",
    "clocks_throttle_reasons.sw_thermal_slowdown": "clocks_event_reasons.sw_thermal_slowdown",
    "clocks_throttle_reasons.sync_boost": "clocks_event_reasons.sync_boost",
    "gpu.power.current_limit": "enforced.power.limit",
    "gpu.power.default_limit": "power.default_limit",
    "gpu.power.draw.average": "power.draw.average",
    "gpu.power.draw.instant": "power.draw.instant",
    "gpu.power.max_limit": "power.max_limit",
    "gpu.power.min_limit": "power.min_limit",
    "gpu.power.requested_limit": "power.limit",
    "gpu_bus_id": "pci.bus_id",
    "gpu_name": "name",
    "gpu_operation_mode.current": "gom.current",
    "gpu_operation_mode.pending": "gom.pending",
    "gpu_serial": "serial",
    "gpu_uuid": "uuid",
    "inforom.image": "inforom.img",
    "inforom.power": "inforom.pwr",
    "module.power.current_limit": "module.enforced.power.limit",
    "module.power.requested_limit": "module.power.limit",
    "remapped_rows.dbe": "remapped_rows.uncorrectable",
    "remapped_rows.sbe": "remapped_rows.correctable",
    "retired_pages.dbe": "retired_pages.double_bit.count",
    "retired_pages.sbe": "retired_pages.single_bit_ecc.count",
}
APP_FIELDS = {
    "timestamp": "timestamp",
    "gpu_name": "gpu_name",
    "gpu_bus_id": "gpu_bus_id",
    "gpu_serial": "gpu_serial",
    "gpu_uuid": "gpu_uuid",
    "pid": "pid",
    "process_name": "process_name",
    "name": "process_name",
    "used_gpu_memory": "used_gpu_memory [MiB]",
    "used_memory": "used_gpu_memory [MiB]",
}
UNITS = (  # the unit is part of the header; `nounits` takes it from the values only
    (re.compile(r"memory\.(total|reserved|used|free)"), "MiB"),
    (re.compile(r"protected_memory\.(total|used|free)"), "MiB"),
    (re.compile(r"clocks\.(current|applications|default_applications|max)\..*"), "MHz"),
    (re.compile(r"utilization\..*|fan\.speed"), "%"),
    (re.compile(r"(module\.)?(enforced\.)?power\.(draw(\..*)?|limit|default_limit|min_limit|max_limit)"), "W"),
)
BUS_ID = "0000000F:01:00.0"
NAME = "NVIDIA GB10"


def read(path: str) -> str:
    try:
        with open(ROOT + path, encoding="utf-8") as handle:
            return handle.read().strip()
    except OSError:
        return ""


def installed() -> str:
    return read("/etc/tandem-lab/driver_version") or "580.159.03"


def loaded() -> str:
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", read("/proc/driver/nvidia/version"))
    return match.group(1) if match else ""


def uuid() -> str:
    digits = (read("/etc/machine-id") + "0" * 32)[:32]
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def apps() -> list[list[str]]:
    lines = read("/etc/tandem-lab/compute_apps").splitlines()
    return [parts for line in lines if len(parts := [part.strip() for part in line.split(",")]) == 3]


def values() -> dict[str, str]:
    return {
        "timestamp": time.strftime("%Y/%m/%d %H:%M:%S.000"),
        "driver_version": installed(),
        "count": "1",
        "index": "0",
        "name": NAME,
        "uuid": uuid(),
        "pci.bus_id": BUS_ID,
        "pci.domain": "0x000F",
        "pci.bus": "0x01",
        "pci.device": "0x00",
        "pci.device_id": "0x2E1210DE",
        "pcie.link.gen.current": "1",  # known misreport
        "pcie.link.width.current": "1",
        "display_active": "Enabled",
        "persistence_mode": "Enabled",
        "addressing_mode": "ATS",
        "vbios_version": "9A.0B.2D.00.00",
        "pstate": "P0",
        "compute_mode": "Default",
        "compute_cap": "12.1",
        "utilization.gpu": "0 %",
        "utilization.memory": "0 %",
        "temperature.gpu": "35",
        "power.draw": "11.17 W",
        "power.draw.average": "11.17 W",
        "power.draw.instant": "11.17 W",
        "clocks.current.graphics": "208 MHz",  # idle; no record, chosen
        "clocks.current.sm": "208 MHz",
        "clocks.max.graphics": "3003 MHz",
        "clocks.max.sm": "3003 MHz",
        "clocks_event_reasons.active": "0x0000000000000001",
        "clocks_event_reasons.gpu_idle": "Active",
        "c2c.mode": "Enabled",
        "hostname": os.uname().nodename,
    }


def finish(text: str, code: int) -> int:
    sys.stdout.write(text)  # the real tool writes its errors to standard output, too
    return code


class FormatError(Exception):
    pass


def csv_options(text: str) -> tuple[bool, bool]:
    words = [word for word in text.split(",") if word]
    if any(word not in {"csv", "noheader", "nounits"} for word in words):
        raise FormatError
    return "noheader" not in words, "nounits" not in words


def unit_of(field: str) -> str:
    return next((unit for pattern, unit in UNITS if pattern.fullmatch(field)), "")


def query_gpu(fields: list[str], header: bool, units: bool) -> int:
    names = []
    for field in fields:
        name = ALIASES.get(field, field)
        if name not in FIELDS:
            return finish(f'Field "{field}" is not a valid field to query.\n\n', 2)
        names.append(name)
    have = values()
    row = []
    for name in names:
        value = have.get(name, "[N/A]")
        unit = unit_of(name)
        row.append(value[: -len(unit) - 1] if not units and unit and value.endswith(" " + unit) else value)
    lines = []
    if header:
        lines.append(", ".join(f"{name} [{unit}]" if (unit := unit_of(name)) else name for name in names))
    lines.append(", ".join(row))
    return finish("\n".join(lines) + "\n", 0)


def query_apps(fields: list[str], header: bool, units: bool) -> int:
    for field in fields:
        if field not in APP_FIELDS:
            return finish(f'Field "{field}" is not a valid field to query.\n\n', 2)
    lines = []
    if header:
        lines.append(", ".join(APP_FIELDS[field] for field in fields))
    for pid, name, mib in apps():
        one = {
            "timestamp": time.strftime("%Y/%m/%d %H:%M:%S.000"),
            "gpu_name": NAME,
            "gpu_bus_id": BUS_ID,
            "gpu_serial": "[N/A]",
            "gpu_uuid": uuid(),
            "pid": pid,
            "process_name": name,
            "used_gpu_memory [MiB]": f"{mib} MiB" if units else mib,
        }
        lines.append(", ".join(one[APP_FIELDS[field]] for field in fields))
    return finish("".join(line + "\n" for line in lines), 0)


def table() -> int:
    version = installed()
    processes = [
        f"|    0   N/A  N/A {pid:>15}      C   {name:<38.38}  {mib + 'MiB':>10} |" for pid, name, mib in apps()
    ] or ["|  No running processes found" + " " * 61 + "|"]
    lines = [
        time.strftime("%a %b %e %H:%M:%S %Y") + " " * 7,
        "+" + "-" * 89 + "+",
        f"| NVIDIA-SMI {version:<23}Driver Version: {version:<14} CUDA Version: 13.0     |",
        "+-----------------------------------------+------------------------+----------------------+",
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|                                         |                        |               MIG M. |",
        "|=========================================+========================+======================|",
        f"|   0  {NAME}                    On  |   {BUS_ID}  On |                  N/A |",
        "| N/A   35C    P0             11W /  N/A  | Not Supported          |      0%      Default |",
        "|                                         |                        |                  N/A |",
        "+-----------------------------------------+------------------------+----------------------+",
        "",
        "+" + "-" * 89 + "+",
        "| Processes:" + " " * 78 + "|",
        "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
        "|        ID   ID                                                               Usage      |",
        "|" + "=" * 89 + "|",
        *processes,
        "+" + "-" * 89 + "+",
    ]
    return finish("\n".join(lines) + "\n", 0)


def long_query() -> int:
    rows: list[tuple[int, str, str | None]] = [
        (0, "Attached GPUs", "1"),
        (0, f"GPU {BUS_ID}", None),
        (1, "Product Name", NAME),
        (1, "Product Brand", "NVIDIA"),
        (1, "Product Architecture", "Blackwell"),
        (1, "Persistence Mode", "Enabled"),
        (1, "Addressing Mode", "ATS"),
        (1, "MIG Mode", None),
        (2, "Current", "N/A"),
        (2, "Pending", "N/A"),
        (1, "Serial Number", "N/A"),
        (1, "GPU UUID", uuid()),
        (1, "Minor Number", "0"),
        (1, "VBIOS Version", "9A.0B.2D.00.00"),
        (1, "GPU C2C Mode", "Enabled"),
        (1, "GSP Firmware Version", loaded() or installed()),
        (1, "PCI", None),
        (2, "Bus", "0x01"),
        (2, "Device", "0x00"),
        (2, "Domain", "0x000F"),
        (2, "Device Id", "0x2E1210DE"),
        (2, "Bus Id", BUS_ID),
        (1, "Fan Speed", "N/A"),
        (1, "Performance State", "P0"),
        (1, "FB Memory Usage", None),
        (2, "Total", "N/A"),
        (2, "Reserved", "N/A"),
        (2, "Used", "N/A"),
        (2, "Free", "N/A"),
        (1, "Compute Mode", "Default"),
        (1, "Utilization", None),
        (2, "GPU", "0 %"),
        (2, "Memory", "0 %"),
        (1, "Temperature", None),
        (2, "GPU Current Temp", "35 C"),
        (1, "GPU Power Readings", None),
        (2, "Average Power Draw", "11.17 W"),
        (2, "Instantaneous Power Draw", "11.17 W"),
        (2, "Current Power Limit", "N/A"),
        (1, "Clocks", None),
        (2, "Graphics", "208 MHz"),
        (2, "SM", "208 MHz"),
        (2, "Memory", "N/A"),
        (1, "Max Clocks", None),
        (2, "Graphics", "3003 MHz"),
        (2, "SM", "3003 MHz"),
        (2, "Memory", "N/A"),
        (1, "Processes", "None" if not apps() else None),
        *((2, f"Process ID {pid}", f"{name} {mib} MiB") for pid, name, mib in apps()),
    ]
    lines = ["", "==============NVSMI LOG==============", ""]
    head = [
        ("Timestamp", time.strftime("%a %b %e %H:%M:%S %Y")),
        ("Driver Version", installed()),
        ("CUDA Version", "13.0"),
    ]
    lines += [f"{key:<55}: {value}" for key, value in head] + [""]
    for depth, key, value in rows:
        text = "    " * depth + key
        lines.append(text if value is None else f"{text:<55}: {value}")
    return finish("\n".join(lines) + "\n\n", 0)


def main(arguments: list[str]) -> int:
    ours, theirs = installed(), loaded()
    if theirs and theirs != ours:
        short = ".".join(ours.split(".")[:2])
        return finish(
            f"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: {short}\n", 18
        )
    if read("/etc/tandem-lab/gpu") == "absent":
        return finish("No devices were found\n", 6)
    query: tuple[str, list[str]] | None = None
    header, units, action = True, True, "table"
    words = list(arguments)
    try:
        while words:
            word, _equals, value = words.pop(0).partition("=")
            if word in {"-i", "--id"}:
                chosen = value or (words.pop(0) if words else "")
                if chosen not in {"0", uuid(), BUS_ID}:
                    return finish("No devices were found\n", 6)
            elif word in {"--query-gpu", "--query-compute-apps"}:
                query = (word, [part.strip() for part in value.split(",")])
            elif word == "--format":
                header, units = csv_options(value)
            elif word in {"-q", "--query"}:
                action = "long"
            elif word in {"-L", "--list-gpus"}:
                action = "list"
            elif word == "--version":
                action = "version"
            else:
                return finish(f"ERROR: Option {word} is not recognized. Please run 'nvidia-smi -h'.\n\n", 255)
    except FormatError:
        return finish("Format modifier is not recognized.\n", 2)
    if query:
        return (query_gpu if query[0] == "--query-gpu" else query_apps)(query[1], header, units)
    if action == "long":
        return long_query()
    if action == "list":
        return finish(f"GPU 0: {NAME} (UUID: {uuid()})\n", 0)
    if action == "version":
        short = ".".join(ours.split(".")[:2])
        return finish(
            f"NVIDIA-SMI version  : {ours}\nNVML version        : {short}\n"
            f"DRIVER version      : {ours}\nCUDA Version        : 13.0\n",
            0,
        )
    return table()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Ask the CUDA driver library about the GPUs, without any package and without creating a context.

The questions are asked by a child process (:data:`PROGRAM`), so that a driver that hangs or crashes takes only the
child with it. A context would take memory of the machine, so no function that needs one is called; the free memory
can therefore not be asked here.
"""

from __future__ import annotations

import json
import sys
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils._host import Host, Outcome

# Numbers of CUdevice_attribute in cuda.h of CUDA 13.0.
ATTRIBUTES = {
    "multiprocessors": 16,
    "integrated": 18,
    "can_map_host_memory": 19,
    "unified_addressing": 41,
    "capability_major": 75,
    "capability_minor": 76,
    "managed_memory": 83,
    "host_native_atomics": 86,
    "pageable_memory_access": 88,
    "concurrent_managed_access": 89,
    "shared_memory_per_block_optin_bytes": 97,
    "pageable_uses_host_page_tables": 100,
    "direct_managed_access_from_host": 101,
    "virtual_memory_management": 102,
    "gpu_direct_rdma_with_vmm": 110,
    "gpu_direct_rdma": 116,
    "dma_buf": 124,
}
COUNTS = ("multiprocessors", "capability_major", "capability_minor", "shared_memory_per_block_optin_bytes")
LIBRARIES = ("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/local/nvidia/lib/libcuda.so.1")
BELOW_ROOT = (
    "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
)

PROGRAM = r"""
import ctypes, json, sys

attributes = json.loads(sys.argv[1])
answer = {"library": None, "error": None, "driver_api": None, "devices": []}


def done():
    print(json.dumps(answer))
    sys.stdout.flush()
    sys.exit(0)


cuda = None
for name in sys.argv[2:]:
    try:
        cuda = ctypes.CDLL(name)
        answer["library"] = name
        break
    except OSError as error:
        answer["error"] = answer["error"] or str(error)
if cuda is None:
    done()
answer["error"] = None
version = ctypes.c_int(0)
if cuda.cuDriverGetVersion(ctypes.byref(version)) == 0:
    answer["driver_api"] = version.value
status = cuda.cuInit(0)
if status:
    answer["error"] = "cuInit: %d" % status
    done()
count = ctypes.c_int(0)
status = cuda.cuDeviceGetCount(ctypes.byref(count))
if status:
    answer["error"] = "cuDeviceGetCount: %d" % status
    done()
for index in range(count.value):
    device = ctypes.c_int(0)
    status = cuda.cuDeviceGet(ctypes.byref(device), index)
    if status:
        answer["error"] = "cuDeviceGet: %d" % status
        continue
    found = {"index": index, "name": None, "uuid": None, "pci_address": None, "total_bytes": None, "attributes": {}}
    text = ctypes.create_string_buffer(256)
    if cuda.cuDeviceGetName(text, 256, device) == 0:
        found["name"] = text.value.decode("utf-8", "replace")
    text = ctypes.create_string_buffer(32)
    if cuda.cuDeviceGetPCIBusId(text, 32, device) == 0:
        found["pci_address"] = text.value.decode("utf-8", "replace")
    uuid = (ctypes.c_ubyte * 16)()
    function = getattr(cuda, "cuDeviceGetUuid_v2", None) or getattr(cuda, "cuDeviceGetUuid", None)
    if function is not None and function(ctypes.byref(uuid), device) == 0:
        digits = bytes(bytearray(uuid)).hex()
        found["uuid"] = "GPU-%s-%s-%s-%s-%s" % (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    total = ctypes.c_size_t(0)
    if cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0:
        found["total_bytes"] = total.value
    for name, number in attributes.items():
        value = ctypes.c_int(0)
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0:
            found["attributes"][name] = value.value
    answer["devices"].append(found)
done()
"""


def libraries(host: Host) -> list[str]:
    """Names to try in turn; in a directory that stands for a machine only what lies in it."""
    if host.real:
        return list(LIBRARIES)
    return [host.path(name) for name in BELOW_ROOT if host.exists(name)]


def ask(host: Host) -> Outcome:
    """Run :data:`PROGRAM` in a child process of the same Python, under the time limit of *host*."""
    names = libraries(host)
    if not names or not sys.executable:
        return Outcome("missing", stderr="libcuda.so.1 is not installed")
    # All GPUs are meant, whatever the caller's environment hides.
    argv = [sys.executable, "-I", "-S", "-c", PROGRAM, json.dumps(ATTRIBUTES), *names]
    return host.run(argv, CUDA_VISIBLE_DEVICES=None, CUDA_DEVICE_ORDER="PCI_BUS_ID")


def state(outcome: Outcome) -> str:
    """``ok``, ``library_missing``, ``timeout``, ``crashed`` (the child died), ``failed`` or ``garbage``."""
    if outcome.state == "timeout":
        return "timeout"
    if outcome.state == "missing":
        return "library_missing"
    if outcome.state != "ok":
        return "crashed" if outcome.rc is not None and outcome.rc < 0 else "failed"
    answer = _load(outcome.stdout)
    if answer is None:
        return "garbage"
    if answer.get("library") is None:
        return "library_missing"
    return "failed" if answer.get("error") else "ok"


def message(outcome: Outcome) -> str | None:
    """What the library said when it could not be asked."""
    answer = _load(outcome.stdout) or {}
    error = answer.get("error") or next((line for line in outcome.stderr.splitlines()[::-1] if line.strip()), None)
    return str(error)[:200] if error else None


def devices(outcome: Outcome) -> list[dict[str, t.Any]]:
    """The GPUs in the child's answer; an attribute that the driver does not know is None."""
    answer = _load(outcome.stdout) if outcome.state == "ok" else None
    raw = answer.get("devices") if answer else None
    found = []
    for entry in raw if isinstance(raw, list) else []:
        if not isinstance(entry, dict):
            continue
        attributes = entry.get("attributes")
        attributes = attributes if isinstance(attributes, dict) else {}
        known = {name: _count(attributes.get(name)) for name in ATTRIBUTES}
        major, minor = known.pop("capability_major"), known.pop("capability_minor")
        values: dict[str, t.Any] = {
            name: value if name in COUNTS else (None if value is None else bool(value)) for name, value in known.items()
        }
        values["compute_capability"] = None if not major or minor is None else f"{major}.{minor}"
        for name in ("name", "uuid", "pci_address"):
            values[name] = entry.get(name) if isinstance(entry.get(name), str) else None
        values["index"] = _count(entry.get("index"))
        values["total_bytes"] = _count(entry.get("total_bytes")) or None
        found.append(values)
    return found


def driver_api(outcome: Outcome) -> str | None:
    """The CUDA version that the driver library offers: 13000 is ``13.0``."""
    answer = _load(outcome.stdout) if outcome.state == "ok" else None
    number = _count(answer.get("driver_api")) if answer else None
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def _count(value: t.Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _load(content: str) -> dict[str, t.Any] | None:
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What the log of NCCL proves. Without usable RDMA NCCL goes on over TCP, four to five times slower, without error."""

from __future__ import annotations

import re
import typing as t

_IB = re.compile(r"NET/IB\s*:\s*Using\s+(.*)")
_SOCKET = re.compile(r"NET/Socket\s*:\s*Using\s+(.*)")
_DEVICE = re.compile(r"\[\d+\](?:\{[^}]*\}\s*)?([\w.-]+):(\d+)(?:/(\w+))?", re.ASCII)
_INTERFACE = re.compile(r"\[\d+\]([\w.-]+):([0-9a-fA-F.:]+)<\d+>", re.ASCII)
_AVERAGE = re.compile(r"^#?\s*Avg bus bandwidth\s*:\s*(\d+(?:\.\d+)?)\s*$", re.MULTILINE | re.ASCII)
_OUT_OF_BOUNDS = re.compile(r"^#?\s*Out of bounds values\s*:\s*(\d+)", re.MULTILINE | re.ASCII)
_NUMBER = re.compile(r"^\d+(\.\d+)?(e\+\d+)?$", re.ASCII)
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)", re.ASCII)


def transport(content: str | None) -> dict[str, t.Any]:
    """The transport of one rank: ``roce``, ``infiniband``, ``socket``, ``mixed``, or None when the log is silent.

    ``GPU Direct RDMA Disabled`` is normal on a Spark and says nothing about the transport.
    """
    devices: list[str] = []
    links: set[str] = set()
    interfaces: list[str] = []
    for line in (content or "").splitlines():
        used = _IB.search(line)
        if used:
            for name, port, link in _DEVICE.findall(used.group(1)):
                if f"{name}:{port}" not in devices:
                    devices.append(f"{name}:{port}")
                links.add((link or "IB").lower())
        used = _SOCKET.search(line)
        if used:
            for name, _address in _INTERFACE.findall(used.group(1)):
                if name not in interfaces:
                    interfaces.append(name)
    kind = None
    if devices and interfaces:
        kind = "mixed"
    elif devices:
        kind = "roce" if links == {"roce"} else "infiniband"
    elif interfaces:
        kind = "socket"
    version = _VERSION.search(content or "")
    return {
        "transport": kind,
        "devices": devices,
        "interfaces": interfaces,
        "version": version.group(1) if version else None,
    }


def judge(logs: t.Mapping[str, str | None], wanted: str = "roce") -> dict[str, t.Any]:
    """Judge the logs of all ranks (by a name for each): ``ok`` true, false, or None when a rank's log does not tell.

    ``problems`` names the rank, what it uses and what is wanted.
    """
    ranks = {name: transport(content) for name, content in logs.items()}
    problems = []
    for name, found in ranks.items():
        if found["transport"] is None:
            problems.append(f"{name}: not determined, wanted {wanted}")
        elif found["transport"] != wanted:
            through = ", ".join(found["interfaces"] or found["devices"])
            problems.append(f"{name}: {found['transport']} ({through}), wanted {wanted}")
    wrong = [name for name, found in ranks.items() if found["transport"] not in (None, wanted)]
    silent = [name for name, found in ranks.items() if found["transport"] is None]
    ok: bool | None = True
    if wrong:
        ok = False
    elif silent or not ranks:
        ok = None
    return {"ok": ok, "ranks": ranks, "problems": problems, "wrong": wrong, "not_determined": silent}


def average_bus_bandwidth(content: str | None) -> float | None:
    """The last ``# Avg bus bandwidth : 22.9611`` of an nccl-tests program, in GB/s."""
    found = _AVERAGE.findall(content or "")
    return float(found[-1]) if found else None


def out_of_bounds(content: str | None) -> int | None:
    """``# Out of bounds values : 0 OK``: how many values arrived wrong."""
    found = _OUT_OF_BOUNDS.findall(content or "")
    return int(found[-1]) if found else None


def results(content: str | None) -> list[dict[str, t.Any]]:
    """The result lines of an nccl-tests program: size, time in microseconds, algorithm and bus bandwidth in GB/s."""
    rows = []
    for line in (content or "").splitlines():
        words = line.split()
        if len(words) < 8 or not words[0].isdigit() or not words[1].isdigit():
            continue
        numbers = words[5:8]
        if all(_NUMBER.match(number) for number in numbers):
            duration, algorithm, bus = (float(number) for number in numbers)
            rows.append({"bytes": int(words[0]), "microseconds": duration, "algbw": algorithm, "busbw": bus})
    return rows

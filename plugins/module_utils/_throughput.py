# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Numbers out of iperf3, perftest and nccl-tests, and what they say. Pure functions.

No output, or one without a number, is "not measured"; that is never a good result.
"""

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _fabric, _nccl_log

_RATE = re.compile(r"^(\d+(?:\.\d+)?)\s*Gb/sec", re.ASCII)
_TROUBLE = re.compile(r"couldn't|unable to|failed|error|not found|cannot", re.IGNORECASE)
_ROW = re.compile(r"^\s*\d+(?:\s+-?\d+(?:\.\d+)?)+\s*$", re.ASCII)

# GB/s of an all_gather over all nodes: NVIDIA's bar for a direct cable or a switch, and for a ring (hardware, 3.5).
ANCHORS = {"pair": 21.875, "switch": 21.875, "ring3": 10.0, "ring4": 10.0, "ring": 10.0}
NOT_MEASURED = "not measured"

HINTS = {
    "socket": "NCCL fell back to TCP (NET/Socket). Are the RDMA devices there, and libibverbs for the engine?",
    "degraded_init": "about 13 Gb/s although the link says 200G: the card came up in its degraded state. Reboot with "
    "the cable in; if that does not help, unplug the mains of both nodes for 60 s",
    "link_speed": "the link itself came up slower than 200G; look at the cable and at the switch port",
    "pcie_slow": "the PCIe link of this half came up slower than its 4 lanes of 32 GT/s, so the card cannot give more; "
    "unplug the mains of this node for 60 s",
    "below_expected": "a healthy rail gives 92 to 112 Gb/s; is something else on this link, or is the MTU 1500?",
    "wrong_values": "values arrived wrong: this is no question of speed; look at the memory, cable and NCCL version",
    "three": "about 3 GB/s is what TCP, or a single rail with too little memory for its buffers, gives; healthy is 22",
    "one_rail": "about 13.9 GB/s is what one of the two halves gives; name both RDMA devices in NCCL_IB_HCA, and give "
    "each half a network of its own",
}


def iperf3(content: str | None) -> float | None:
    """Gb/s that arrived, from ``iperf3 --json``."""
    try:
        report = json.loads(content or "")
        bits = report["end"]["sum_received"]["bits_per_second"]
    except (ValueError, KeyError, TypeError):
        return None
    return round(bits / 1e9, 2) if isinstance(bits, (int, float)) and bits > 0 else None


def iperf3_error(content: str | None) -> str | None:
    """Why iperf3 did not measure."""
    try:
        error = json.loads(content or "").get("error")
    except (ValueError, AttributeError):
        return None
    return str(error) if error else None


def perftest_error(content: str | None) -> str | None:
    """The first line of a perftest program that tells of trouble."""
    lines = [line.strip() for line in (content or "").splitlines()]
    return next((line[:300] for line in lines if _TROUBLE.search(line)), None)


def write_bandwidth(content: str | None) -> float | None:
    """Average Gb/s of ``ib_write_bw --report_gbits``: bytes, iterations, peak, average, message rate.

    With ``-b`` it is the sum of both directions.
    """
    rows = _rows(content, 5)
    return rows[-1][3] if rows else None


def write_latency(content: str | None) -> float | None:
    """Typical microseconds of ``ib_write_lat`` (bytes, iterations, min, max, typical, …), or its average with -D."""
    rows = _rows(content, 4)
    if not rows:
        return None
    return rows[-1][4] if len(rows[-1]) >= 7 else rows[-1][2]


def _rows(content: str | None, least: int) -> list[list[float]]:
    found = []
    for line in (content or "").splitlines():
        if _ROW.match(line):
            numbers = [float(word) for word in line.split()]
            if len(numbers) >= least:
                found.append(numbers)
    return found


def pcie_gbps(speed_gts: float | None, width: int | None) -> float | None:
    """What *width* lanes of *speed_gts* GT/s carry in Gb/s: 8 of 10 bits below 8 GT/s, 128 of 130 from there on."""
    if not speed_gts or not width:
        return None
    return round(speed_gts * width * (0.8 if speed_gts < 8 else 128 / 130), 1)


def port_gbps(rate: str | None) -> float | None:
    """``200 Gb/sec (4X HDR)`` is 200."""
    match = _RATE.match((rate or "").strip())
    return float(match[1]) if match else None


def expected_gbps(rate: str | None, halves: int, pcie: float | None = None) -> float | None:
    """What one RDMA device should reach: the *rate* of the port shared by the *halves* of the cage that are in use.

    It is no more than what the PCIe link carries (*pcie*, Gb/s); None when neither is known.
    """
    port = port_gbps(rate)
    bounds = [*([port / halves] if port and halves > 0 else []), *([pcie] if pcie else [])]
    return min(bounds) if bounds else None


def rail(
    measured: float | None, rate: str | None, halves: int, speed_mbps: float | None, pcie: float | None = None
) -> dict[str, t.Any]:
    """The verdict over one rail in one direction."""
    verdict = _fabric.rail_verdict(speed_mbps, measured)
    port = port_gbps(rate)
    if verdict not in ("not_measured", "link_speed"):
        # What sysfs says about the port comes before what the figure looks like.
        if port is not None and port * 1000 < _fabric.SPEED_EXPECTED:
            verdict = "link_speed"
        elif verdict != "ok" and pcie is not None and pcie < _fabric.RAIL_EXPECTED:
            verdict = "pcie_slow"
    return {
        "gbps": measured,
        "expected_gbps": expected_gbps(rate, halves, pcie),
        "verdict": NOT_MEASURED if verdict == "not_measured" else verdict,
        "hint": HINTS.get(verdict),
    }


def nccl(content: str | None, topology: str, logs: t.Mapping[str, str | None] | None = None) -> dict[str, t.Any]:
    """The verdict over an nccl-tests run: bus bandwidth against the anchor of the topology, and a hint where it is low.

    *logs* are the NCCL_DEBUG=INFO logs of the ranks; without them the output itself is read for the transport.
    """
    average = _nccl_log.average_bus_bandwidth(content)
    rows = _nccl_log.results(content)
    transport = _nccl_log.judge(dict(logs) if logs else {"all": content})
    anchor = ANCHORS.get(topology)
    hint = None
    if not average:  # 0 is what a single rank gives
        verdict = NOT_MEASURED
    elif _nccl_log.out_of_bounds(content):
        verdict, hint = "failed", HINTS["wrong_values"]
    elif transport["wrong"]:
        verdict, hint = "failed", HINTS["socket"]
    elif anchor is None:
        verdict, hint = "not judged", f"no published figure for the topology {topology}"
    elif average >= anchor:
        verdict = "ok"
    else:
        verdict, hint = "below", signature(average, anchor)
    return {
        "busbw_gbs": average,
        "largest_bytes": rows[-1]["bytes"] if rows else None,
        "anchor_gbs": anchor,
        "transport": sorted({str(r["transport"]) for r in transport["ranks"].values() if r["transport"]}) or None,
        "verdict": verdict,
        "hint": hint,
    }


def signature(average: float, anchor: float) -> str | None:
    """Which known state a low figure (GB/s) looks like."""
    if 1.4 <= average <= 1.9:  # 13 Gb/s
        return HINTS["degraded_init"]
    if 1.9 < average <= 3.5:
        return HINTS["three"]
    if anchor > 20 and 12.5 <= average <= 14.5:
        return HINTS["one_rail"]
    return None

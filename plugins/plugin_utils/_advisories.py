# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What is known about versions, as data. An advisory applies to a node when all of its conditions hold.

Conditions (``when``): a fact by its path, with one of

* ``series``: the version begins with one of these (``580`` covers ``580.178.04``)
* ``not_series``: the version is known and begins with none of these
* ``below``: the version is older than this
* ``is``: the fact equals this value
* ``is_not``: the fact is known and differs from this value, or is null where ``null_differs`` is set

A condition on a fact that is not known does not hold. ``nodes`` is the least number of nodes of the deployment.
"""

from __future__ import annotations

import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _version

ADVISORIES: list[dict[str, t.Any]] = [
    {
        "id": "advisory.kernel_7_kho",
        "severity": "blocked",
        "title": "kernel 7.0.0-1019 without kho=off",
        "nodes": 2,
        "when": [
            {"fact": "spark_platform.kernel_running", "series": ["7.0.0-1019"]},
            {"fact": "spark_memory.cma.cmdline_known", "is": True},
            {"fact": "spark_memory.cma.kho_option", "is_not": "off", "null_differs": True},
        ],
        "found": "kernel {spark_platform.kernel_running}, kernel command line without kho=off",
        "wanted": "another kernel, or kho=off on the kernel command line",
        "remedy": (
            "add kho=off to GRUB_CMDLINE_LINUX in /etc/default/grub, run update-grub, reboot all nodes together;"
            " without it RDMA registration fails with 'Cannot allocate memory'"
        ),
        "source": (
            "https://forums.developer.nvidia.com/t/dgx-spark-update-advisory/383254 (2026-09-13),"
            " https://github.com/NVIDIA/NV-Kernels/pull/591"
        ),
    },
    {
        "id": "advisory.kernel_7_pending",
        "severity": "note",
        "title": "kernel 7.0.0-1019 becomes active with the next reboot",
        "nodes": 2,
        "when": [
            {"fact": "spark_platform.kernel_installed", "series": ["7.0.0-1019"]},
            {"fact": "spark_platform.kernel_running", "not_series": ["7.0.0-1019"]},
            {"fact": "spark_memory.cma.kho_option", "is_not": "off", "null_differs": True},
        ],
        "found": "kernel {spark_platform.kernel_installed} installed, {spark_platform.kernel_running} running",
        "wanted": "kho=off on the kernel command line before the next reboot, or the older kernel on hold",
        "remedy": "add kho=off to GRUB_CMDLINE_LINUX in /etc/default/grub and run update-grub, or hold the kernel",
        "source": "https://forums.developer.nvidia.com/t/dgx-spark-update-advisory/383254 (2026-09-13)",
    },
    {
        "id": "advisory.kernel_freeze",
        "severity": "slow",
        "title": "driver 580.178.04 with kernel 7.0.0-1019",
        "nodes": 1,
        "when": [
            {"fact": "spark_platform.kernel_running", "series": ["7.0.0-1019"]},
            {"fact": "spark_gpu.driver.loaded", "series": ["580.178.04"]},
        ],
        "found": "driver {spark_gpu.driver.loaded} on kernel {spark_platform.kernel_running}",
        "wanted": "a kernel of the 6.17 series with this driver",
        "remedy": "operators report that the machine freezes; boot the 6.17 kernel and hold the kernel packages",
        "source": "reference/hardware.md sections 0 (16) and 6",
    },
    {
        "id": "advisory.kernel_slow_mmap",
        "severity": "slow",
        "title": "kernel older than 6.17",
        "nodes": 1,
        "when": [{"fact": "spark_platform.kernel_running", "below": "6.17"}],
        "found": "kernel {spark_platform.kernel_running}",
        "wanted": "6.17 or newer",
        "remedy": "sudo apt update && sudo apt dist-upgrade, reboot all nodes together; until then weights load slowly",
        "source": "reference/hardware.md sections 6 and 9",
    },
    {
        "id": "advisory.driver_series",
        "severity": "blocked",
        "title": "driver of another series than 580",
        "nodes": 1,
        "when": [{"fact": "spark_gpu.driver.loaded", "not_series": ["580"]}],
        "found": "driver {spark_gpu.driver.loaded}",
        "wanted": "580.x, the series that DGX OS ships",
        "remedy": (
            "install nvidia-driver-580-open and reboot; CUDA graphs deadlock and unified memory leaks are reported for"
            " 590, 595 and 610"
        ),
        "source": "reference/hardware.md sections 0 (17) and 6",
    },
    {
        "id": "advisory.driver_580_159",
        "severity": "note",
        "title": "driver 580.159.03",
        "nodes": 1,
        "when": [{"fact": "spark_gpu.driver.loaded", "series": ["580.159.03"]}],
        "found": "driver {spark_gpu.driver.loaded}",
        "wanted": "580.167.08 or newer of the 580 series",
        "remedy": "hangs are reported for it, and also that it cured slow links; update when you see hangs",
        "source": "https://github.com/vllm-project/vllm/issues/40948, reference/hardware.md section 12.3",
    },
    {
        "id": "advisory.nccl_2_29_7",
        "severity": "slow",
        "title": "NCCL 2.29.7",
        "nodes": 2,
        "when": [{"fact": "spark_platform.nccl.version", "series": ["2.29.7"]}],
        "found": "NCCL {spark_platform.nccl.version} ({spark_platform.nccl.source})",
        "wanted": "2.30.7, or the NCCL that the engine brings",
        "remedy": "update libnccl2; ncclCommInitRank fails with this version on most Spark fabrics",
        "source": "reference/hardware.md sections 0 (23) and 3.8",
    },
]


def value(facts: t.Any, path: str) -> t.Any:
    """The fact at a dotted path, or None."""
    for part in path.split("."):
        if not isinstance(facts, t.Mapping):
            return None
        facts = facts.get(part)
    return facts


def applies(advisory: t.Mapping[str, t.Any], facts: t.Mapping[str, t.Any], nodes: int) -> bool:
    """Whether an advisory is about a node with these facts, in a deployment of so many nodes."""
    return nodes >= advisory.get("nodes", 1) and all(_holds(condition, facts) for condition in advisory["when"])


def _holds(condition: t.Mapping[str, t.Any], facts: t.Mapping[str, t.Any]) -> bool:
    found = value(facts, condition["fact"])
    if "series" in condition:
        return any(_version.matches(found, pattern) is True for pattern in condition["series"])
    if "not_series" in condition:
        return all(_version.matches(found, pattern) is False for pattern in condition["not_series"])
    if "below" in condition:
        return _version.compare(found, condition["below"]) == -1
    if "is" in condition:
        return bool(found == condition["is"])
    if found is None:
        return bool(condition.get("null_differs"))
    return bool(found != condition["is_not"])


def fill(text: str, facts: t.Mapping[str, t.Any]) -> str:
    """Put facts into ``{spark_platform.kernel_running}``."""
    pieces = text.split("{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        path, _brace, rest = piece.partition("}")
        filled.append(f"{value(facts, path)}{rest}")
    return "".join(filled)

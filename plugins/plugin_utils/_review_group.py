# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Checks that compare the nodes with each other."""

from __future__ import annotations

import itertools
import re
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _version
from ansible_collections.tandem.spark.plugins.plugin_utils import _memory_plan
from ansible_collections.tandem.spark.plugins.plugin_utils._advisories import value
from ansible_collections.tandem.spark.plugins.plugin_utils._review import Review, conjoin, gib

NOT_INSTALLED = "not installed"
CLOCK_LIMIT = 2.0  # seconds; one node 12 s off was seen (reference: hardware, section 6)


class Lockstep(t.NamedTuple):
    """A version that has to be the same on all nodes."""

    id: str
    severity: str
    what: str
    fact: str
    remedy: str
    within_vendor: bool = False
    fallback: str = ""  # a second fact, for where the first is not told
    absent: str = ""  # a fact that is false, or a list of packages, when the thing is known not to be installed


LOCKSTEP = (
    Lockstep(
        "gpu.driver_lockstep",
        "blocked",
        "loaded driver",
        "spark_gpu.driver.loaded",
        "install the same driver on all nodes (tandem.spark.baseline) and reboot them together",
    ),
    Lockstep(
        "gpu.driver_installed_lockstep",
        "blocked",
        "installed driver",
        "spark_gpu.driver.installed",
        "install the same driver packages on all nodes (tandem.spark.baseline)",
    ),
    Lockstep(
        "platform.kernel_lockstep",
        "blocked",
        "running kernel",
        "spark_platform.kernel_running",
        "install the same kernel on all nodes and reboot them together",
    ),
    Lockstep(
        "platform.kernel_installed_lockstep",
        "blocked",
        "installed kernel",
        "spark_platform.kernel_installed",
        "install the same kernel on all nodes; the next reboot would separate them",
    ),
    Lockstep(
        "platform.dgx_os_lockstep",
        "slow",
        "DGX OS",
        "spark_platform.dgx_os.ota",
        "update all nodes together (sudo apt update && sudo apt dist-upgrade), never while serving",
        fallback="spark_platform.dgx_os.factory",
    ),
    Lockstep(
        "platform.firmware_lockstep",
        "slow",
        "system firmware",
        "spark_platform.firmware.bios_version",
        "sudo fwupdmgr refresh && sudo fwupdmgr upgrade on all nodes of this maker, then reboot",
        within_vendor=True,
    ),
    Lockstep(
        "platform.glibc_lockstep",
        "slow",
        "C library",
        "spark_platform.glibc",
        "update all nodes together; programs built on one node may not run on the other",
    ),
    Lockstep(
        "platform.container_toolkit_lockstep",
        "slow",
        "container toolkit",
        "spark_platform.container_toolkit",
        "install the same nvidia-container-toolkit on all nodes",
        absent="spark_platform.packages.installed",
    ),
    Lockstep(
        "cuda.toolkit_lockstep",
        "blocked",
        "CUDA toolkit",
        "spark_platform.cuda.version",
        "install the same CUDA toolkit on all nodes; kernels compiled at run time would differ",
        absent="spark_platform.cuda.installed",
    ),
    Lockstep(
        "nccl.lockstep",
        "blocked",
        "NCCL",
        "spark_platform.nccl.version",
        "install the same libnccl2 on all nodes; a difference shows as 'Message truncated'",
        absent="spark_platform.nccl.installed",
    ),
    Lockstep(
        "engine.digest_lockstep",
        "blocked",
        "engine release",
        "spark_engine.digest",
        "run tandem.spark.engine, which puts the same release on all nodes",
    ),
)


def lockstep(review: Review) -> None:
    if len(review.facts) < 2:
        return
    for rule in LOCKSTEP:
        compare(review, rule, {name: told(rule, facts) for name, facts in review.facts.items()})
    compare(
        review,
        Lockstep(
            "gpu.vbios_lockstep",
            "slow",
            "GPU firmware image",
            "",
            "sudo fwupdmgr refresh && sudo fwupdmgr upgrade on all nodes of this maker, then reboot",
            within_vendor=True,
        ),
        {name: joined(review, name, "spark_gpu.devices", "vbios") for name in review.facts},
    )
    compare(
        review,
        Lockstep(
            "fabric.firmware_lockstep",
            "slow",
            "ConnectX firmware",
            "",
            "update through the package nvidia-spark-mlnx-firmware-manager with the cable plugged in, then reboot",
        ),
        {name: joined(review, name, "spark_fabric.rdma_devices", "firmware") for name in review.facts},
        quiet=True,
    )


def told(rule: Lockstep, facts: dict[str, t.Any]) -> t.Any:
    """The value of a node: its fact, ``not installed`` where that is known, or None."""
    found = value(facts, rule.fact)
    if found is None and rule.fallback:
        found = value(facts, rule.fallback)
    if found is None and rule.absent:
        known = value(facts, rule.absent)
        found = NOT_INSTALLED if known is False or isinstance(known, t.Mapping) else None
    return found


def canonical(version: str) -> t.Any:
    """Plain numbers compare as numbers (590.48 is 590.48.00); everything else as it is written."""
    return _version.key(version) if re.fullmatch(r"\d+(\.\d+)*", version, re.ASCII) else version


def joined(review: Review, name: str, path: str, field: str) -> str | None:
    entries = value(review.facts[name], path)
    entries = list(entries.values()) if isinstance(entries, t.Mapping) else entries
    known = [e for e in entries if isinstance(e, t.Mapping)] if isinstance(entries, list) else []
    values = {str(entry[field]) for entry in known if entry.get(field)}
    return ", ".join(sorted(values)) or None


def compare(review: Review, rule: Lockstep, values: dict[str, t.Any], quiet: bool = False) -> None:
    known = {name: str(found) for name, found in values.items() if found is not None}
    if not known or set(known.values()) == {NOT_INSTALLED}:
        return  # nobody has it, so nothing differs
    if not quiet:
        for name in values:
            if name not in known:
                review.not_checked(f"{rule.what} in lockstep", name)
    groups: dict[t.Any, dict[str, str]] = {}
    for name, found in known.items():
        vendor = value(review.facts[name], "spark_platform.vendor") if rule.within_vendor else "all"
        if vendor is not None:
            groups.setdefault(vendor, {})[name] = found
    for members in groups.values():
        if len({canonical(found) for found in members.values()}) < 2:
            continue
        by_value: dict[str, list[str]] = {}
        for name, found in members.items():
            by_value.setdefault(found, []).append(name)
        keys = {_version.key(found) for found in by_value}
        newest = f" (the newest is {_version.newest(list(by_value))})" if len(keys - {None}) == len(by_value) else ""
        review.add(
            rule.id,
            rule.severity,
            members,
            f"{rule.what} " + ", ".join(f"{found} on {conjoin(names)}" for found, names in by_value.items()),
            f"the same on all nodes{newest}",
            rule.remedy,
        )


def clocks(review: Review) -> None:
    if len(review.facts) < 2:
        return
    spans = {}
    for name, facts in review.facts.items():
        epoch = value(facts, "spark_platform.time.epoch_seconds")
        before, after = value(facts, "collected.before"), value(facts, "collected.after")
        if all(isinstance(number, (int, float)) for number in (epoch, before, after)):
            spans[name] = (epoch - after, epoch - before)  # how far the node is ahead of the controller
    for (a, (low_a, high_a)), (b, (low_b, high_b)) in itertools.combinations(spans.items(), 2):
        apart = max(low_a - high_b, low_b - high_a)
        if apart > CLOCK_LIMIT:
            ahead, behind = (a, b) if low_a > high_b else (b, a)
            review.add(
                "time.skew",
                "blocked",
                [a, b],
                f"{ahead} is at least {apart:.1f} s ahead of {behind}",
                f"less than {CLOCK_LIMIT:g} s",
                "set up chrony on all nodes (tandem.spark.baseline), then: sudo chronyc makestep",
            )
    for name in review.facts:
        synchronised = value(review.facts[name], "spark_platform.time.synchronised")
        if name not in spans and synchronised is not True:
            review.not_checked("clock against the other nodes", name)


def memory_fit(review: Review) -> None:
    """Whether the model fits into the memory of the nodes; its shape is that on record, if there is one."""
    if "shape" not in review.deployment:
        return
    totals = {name: value(facts, "spark_memory.total_bytes") for name, facts in review.facts.items()}
    if len(totals) < review.size or None in totals.values():
        return  # a finding of its own already
    model = review.deployment["shape"]
    if not isinstance(model, t.Mapping):
        for name in totals:
            review.not_checked("whether the model fits into memory, since its shape is not on record", name)
        return
    answer = _memory_plan.memory_fit(model, review.recipe, totals)
    if answer["fits"]:
        return
    least = min(totals.values())
    fitting = "; or ".join(entry["change"] for entry in answer["alternatives"]) or "a smaller model or more nodes"
    review.add(
        "memory.does_not_fit",
        "slow" if answer["fits"] is None else "blocked",
        [name for name, total in totals.items() if total == least],
        f"{gib(least)} in total (MemTotal), {answer['refusal']}",
        f"weights, states, KV cache and the reserve of recipe {review.recipe.get('name') or ''}".rstrip(),
        f"what would fit: {fitting}; tandem.spark.plan shows the whole calculation",
    )

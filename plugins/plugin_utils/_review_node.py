# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Checks that look at one node by itself."""

from __future__ import annotations

import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _platform, _version
from ansible_collections.tandem.spark.plugins.plugin_utils import _advisories
from ansible_collections.tandem.spark.plugins.plugin_utils._advisories import value
from ansible_collections.tandem.spark.plugins.plugin_utils._review import (
    GIB,
    Review,
    as_list,
    as_map,
    conjoin,
    gb,
    gib,
    own_unit,
    ports_of,
)

TOTAL_USUAL = (110 * GIB, 128 * GIB)  # a Spark shows 119.7 to 121.7 GiB (reference: hardware, section 1.3)
LARGE_SHARE = 0.25  # 0.49 of 7.1 GiB in blocks of 2 MiB was seen when the driver refused (section 2)
EARLYOOM_PERCENT = 5  # the default of 10 ends engines, 2 is known to be good (section 8)
NVCC_MINIMUM, NVCC_WANTED = "12.9", "13.0"


def check(review: Review, name: str) -> None:
    """All checks of one node that answered."""
    for part in (platform, gpu, memory, cuda, surroundings, disk, ports, advisories):
        part(review, name)


def toolkit_state(version: str | None) -> str | None:
    """``too_old`` below CUDA 12.9 (no sm_121), ``aged`` below 13.0, else ``ok``; None when the version is not known."""
    below = _version.compare(version, NVCC_MINIMUM)
    if below is None:
        return None
    if below < 0:
        return "too_old"
    return "aged" if (_version.compare(version, NVCC_WANTED) or 0) < 0 else "ok"


def platform(review: Review, name: str) -> None:
    facts = as_map(review.facts[name], "spark_platform")
    if not facts:
        return
    architecture, verdict = facts.get("architecture"), facts.get("is_spark")
    basis = as_list(facts, "basis")
    markers = ", ".join(
        f"{marker} {'yes' if told else ('no' if told is False else 'not told')}"
        for marker, told in as_map(facts, "markers").items()
    )
    wrong = architecture is not None and architecture not in _platform.ARCHITECTURES
    if wrong:
        said = f", although {conjoin(basis)} say DGX Spark" if basis else ""
        review.add(
            "platform.architecture",
            "blocked",
            [name],
            f"{architecture}{said}",
            "aarch64",
            "this is no DGX Spark; correct the inventory",
        )
    if verdict is False and not (wrong and basis and facts.get("platform") not in ("n1x", "jetson")):
        review.add(
            "platform.not_a_spark",
            "blocked",
            [name],
            f"{facts.get('platform') or 'another machine'}"
            f" ({value(facts, 'dmi.product_name') or architecture or 'no name'}; {markers})",
            "a DGX Spark (GB10)",
            "correct the inventory",
        )
    elif verdict is None:
        told = (
            "; ".join(str(text) for text in as_list(facts, "contradictions")) or markers or "no marker could be asked"
        )
        review.add(
            "platform.unidentified",
            "blocked",
            [name],
            f"cannot tell: {told}",
            "at least two markers of a DGX Spark",
            "install the driver's tools (nvidia-smi), run outside of containers, and look at the marker that differs",
        )
    if facts.get("image_replaced") is True:
        review.add(
            "platform.image_replaced",
            "slow",
            [name],
            f"{value(facts, 'os.name') or 'an unknown system'} without /etc/dgx-release and /etc/fastos-release",
            "DGX OS",
            "reinstall DGX OS, or make sure that the firmware tools, the watchdog driver and the 580 driver are there",
        )
    running, installed = facts.get("kernel_running"), facts.get("kernel_installed")
    order = _version.compare(running, installed)
    if order is not None and order != 0:
        review.add(
            "platform.kernel_pending",
            "slow",
            [name],
            f"{running} running, {installed} installed",
            "the installed kernel running",
            "reboot all nodes together before serving",
        )
    elif order is None:
        review.not_checked("kernel running against installed", name)
    if value(facts, "reboot_required.marker") is True:
        packages = ", ".join(str(p) for p in as_list(facts, "reboot_required.packages")) or "unnamed packages"
        review.add(
            "platform.reboot_pending",
            "slow",
            [name],
            f"a reboot is asked for by {packages}",
            "no reboot pending",
            "reboot all nodes together before serving",
        )
    python = review.engine.get("python")
    if python:
        has = {
            ".".join(str(v).split(".")[:2])
            for v in [value(facts, "python.version"), *as_list(facts, "python.available")]
        }
        has.discard("None")
        if has and ".".join(str(python).split(".")[:2]) not in has:
            review.add(
                "platform.python_version",
                "slow",
                [name],
                f"Python {', '.join(sorted(has))}",
                f"Python {python} for {review.engine.get('name') or 'the engine'}",
                f"install python{python} and python{python}-venv, unless the engine stage brings its own",
            )
    if value(facts, "python.headers") is False and review.compiles_kernels():
        review.add(
            "platform.python_headers",
            "note",
            [name],
            f"no {value(facts, 'python.include') or ''}/Python.h",
            "the headers, which kernels compiled at run time need",
            "the baseline stage installs them; by hand: sudo apt install python3-dev",
        )


def gpu(review: Review, name: str) -> None:
    facts = as_map(review.facts[name], "spark_gpu")
    if not facts:
        return
    probe, detail = facts.get("probe"), as_map(facts, "probe_detail")
    said = f": {detail['message']}" if detail.get("message") else ""
    reports = {
        "tool_missing": (
            "gpu.tool_missing",
            "nvidia-smi is not installed",
            "nvidia-smi",
            "install nvidia-utils-580, or nvidia-driver-580-open with it",
        ),
        "timeout": (
            "gpu.timeout",
            f"nvidia-smi gave no answer within {detail.get('seconds') or 10} s",
            "an answer",
            "the driver hangs: look for NVRM in dmesg, then reboot; if that hangs too, cut the power",
        ),
        "driver_not_loaded": (
            "gpu.driver_not_loaded",
            f"nvidia-smi cannot talk to the driver{said}",
            "a loaded driver",
            "sudo modprobe nvidia; if that fails, install linux-modules-nvidia-580-open for this kernel and reboot",
        ),
        "no_devices": (
            "gpu.none",
            "the driver sees no GPU",
            "one GPU",
            "look at lspci -d 10de: and dmesg; cut the power for 60 s",
        ),
    }
    if probe in reports:
        id_, found, wanted, remedy = reports[str(probe)]
        review.add(id_, "blocked", [name], found, wanted, remedy)
    elif probe not in ("ok", "version_mismatch"):
        review.add(
            "gpu.probe_failed",
            "blocked",
            [name],
            f"nvidia-smi: {probe}{said}",
            "a list of GPUs",
            f"run nvidia-smi on {name} and read what it says",
        )
    library, told = facts.get("cuda_probe"), value(facts, "cuda_probe_detail.message")
    if library not in ("ok", None) and probe == "ok":
        review.add(
            "gpu.cuda_library",
            "blocked",
            [name],
            f"libcuda.so.1: {library}{f' ({told})' if told else ''}",
            "a CUDA library that answers",
            "install libnvidia-compute-580 of the same version as the driver; after a hang or crash, reboot",
        )
    driver(review, name, facts)
    for entry in as_list(facts, "disagreements"):
        values = "; ".join(f"{source} says {said}" for source, said in as_map(entry, "values").items())
        review.add(
            "gpu.sources_disagree",
            "slow",
            [name],
            f"{entry.get('field')}: {values}",
            "one value",
            "reboot; if it stays, reinstall the driver packages",
        )
    wrong = {
        str(d.get("compute_capability"))
        for d in as_list(facts, "devices")
        if d.get("compute_capability") not in (None, _platform.CAPABILITY)
    }
    if wrong:
        names = sorted({str(d.get("name")) for d in as_list(facts, "devices")})
        review.add(
            "gpu.capability",
            "blocked",
            [name],
            f"{', '.join(names)} with compute capability {', '.join(sorted(wrong))}",
            "12.1 (sm_121)",
            "the engines of this collection are built for the GPU of a DGX Spark; correct the inventory",
        )
    processes = facts.get("compute_processes")
    if processes is None:
        if probe in ("ok", "version_mismatch"):
            review.not_checked("other programs on the GPU", name)
        return
    others = [p for p in processes if not own_unit(p.get("unit"))]
    if others:
        shown = ", ".join(
            f"{p.get('name') or 'unnamed'} (pid {p.get('pid')}"
            + (f", {gib(p['used_memory_bytes'])}" if p.get("used_memory_bytes") is not None else "")
            + (f", {p['unit']}" if p.get("unit") else "")
            + ")"
            for p in others
        )
        review.add(
            "gpu.other_processes",
            "blocked",
            [name],
            shown,
            "no other program on the GPU",
            "stop it (for a container: stop the container, not the process); memory that it holds cannot be planned",
        )


def driver(review: Review, name: str, facts: dict[str, t.Any]) -> None:
    driver = as_map(facts, "driver")
    loaded, installed = driver.get("loaded"), driver.get("installed")
    if driver.get("reboot_required") is True:
        review.add(
            "gpu.driver_reboot_required",
            "blocked",
            [name],
            f"{loaded or 'unknown'} loaded, {installed or 'another version'} installed",
            "the installed driver loaded",
            "reboot all nodes together (one alone can detach its neighbour's network card)",
        )
    elif driver.get("reboot_required") is None and facts.get("probe") == "ok":
        review.not_checked("driver loaded against installed", name)
    minimum = review.engine.get("minimum_driver") or review.engine.get("min_driver")
    order = _version.compare(loaded, str(minimum)) if minimum else None
    if order == -1:
        review.add(
            "gpu.driver_below_minimum",
            "blocked",
            [name],
            f"driver {loaded}",
            f"{minimum} or newer for {review.engine.get('name') or 'the engine'}",
            "choose an engine release for this driver, or update the driver on all nodes together",
        )
    elif minimum and order is None:
        review.not_checked(f"driver against the minimum {minimum}", name)
    for device in as_list(facts, "devices"):
        firmware = device.get("gsp_firmware")
        order = _version.compare(firmware, loaded)
        if order is not None and order != 0:
            review.add(
                "gpu.gsp_mismatch",
                "blocked",
                [name],
                f"GPU firmware {firmware}, driver {loaded}",
                "the same version",
                "reinstall nvidia-firmware-580 and the driver, then reboot: the installation is broken",
            )


def memory(review: Review, name: str) -> None:
    facts = as_map(review.facts[name], "spark_memory")
    if not facts:
        return
    total, available, free = facts.get("total_bytes"), facts.get("available_bytes"), facts.get("free_bytes")
    plan = as_map(review.recipe, "memory")
    minimum_total, minimum = plan.get("minimum_total_bytes") or 0, plan.get("minimum_available_bytes") or 0
    if total is None:
        review.add(
            "memory.unknown",
            "blocked",
            [name],
            f"memory total unknown on {name}",
            "a readable /proc/meminfo",
            f"cat /proc/meminfo on {name}",
        )
        return
    if total < minimum_total:
        review.add(
            "memory.below_plan",
            "blocked",
            [name],
            f"{gib(total)} in total (MemTotal)",
            f"{gib(minimum_total)} for recipe {review.recipe.get('name') or ''}".rstrip(),
            "choose a smaller model or more nodes, and give the display less memory in the firmware",
        )
    if minimum:
        if review.running_here(name):
            review.not_checked("available memory, because the engine is running", name)
        elif available is None:
            review.not_checked("available memory", name)
        elif available < minimum:
            review.add(
                "memory.below_plan",
                "blocked",
                [name],
                f"{gib(available)} available (MemAvailable)",
                f"{gib(minimum)} for recipe {review.recipe.get('name') or ''}".rstrip(),
                "stop what uses the memory (ps aux --sort -rss), and the desktop: systemctl isolate multi-user.target",
            )
        elif free is not None and free < minimum:
            review.add(
                "memory.page_cache",
                "note",
                [name],
                f"{gib(free)} free (MemFree), {gib(available)} available",
                f"{gib(minimum)} free when the engine starts",
                "the serve stage drops the page cache before a start",
            )
    if value(review.facts[name], "spark_platform.is_spark") is True and not TOTAL_USUAL[0] <= total <= TOTAL_USUAL[1]:
        review.add(
            "memory.total_unusual",
            "slow",
            [name],
            f"{gib(total)} in total",
            f"{gib(TOTAL_USUAL[0])} to {gib(TOTAL_USUAL[1])}",
            "look for a mem= or hugepages= option on the kernel command line, and for a defect in dmesg",
        )
    large = value(facts, "buddy.large_free_bytes")
    if facts.get("unified") and isinstance(large, int) and free and large < LARGE_SHARE * free:
        review.add(
            "memory.fragmented",
            "note",
            [name],
            f"{gib(large)} of {gib(free)} free memory in blocks of 2 MiB and more",
            f"a share of {LARGE_SHARE:.0%} and more",
            "drop the page cache and write 1 to /proc/sys/vm/compact_memory before the start, or reboot",
        )
    if value(facts, "cma.exceeds") is True:
        excess = value(facts, "cma.excess_bytes") or 0
        off = value(facts, "cma.kho_option") == "off"
        registers = review.size > 1 and review.fabric.get("transport", "roce") != "socket"
        registers = registers and value(review.facts[name], "spark_fabric.rdma_present") is True
        if not off:
            review.add(
                "memory.cma_exceeds_total",
                "blocked" if registers else "slow",
                [name],
                f"CmaFree exceeds CmaTotal by {gib(excess)}",
                "kho=off on the kernel command line",
                "add kho=off to GRUB_CMDLINE_LINUX in /etc/default/grub, run update-grub, reboot all nodes together",
            )
    if facts.get("swap_total_bytes") == 0:
        review.add(
            "memory.no_swap",
            "note",
            [name],
            "no swap",
            "the 16 GiB of DGX OS",
            "create /swap.img again; without it short peaks of memory end the engine",
        )
    percent = value(review.facts[name], "spark_platform.earlyoom.memory_percent")
    runs = value(review.facts[name], "spark_platform.earlyoom.running") is True
    if runs and isinstance(percent, (int, float)) and percent >= EARLYOOM_PERCENT:
        review.add(
            "memory.earlyoom",
            "slow",
            [name],
            f"earlyoom acts below {percent:g} % of free memory",
            "2 % and less, or no earlyoom",
            'set EARLYOOM_ARGS="-m 2 -s 80" in /etc/default/earlyoom and restart it',
        )
    wedges = value(review.facts[name], "spark_platform.kernel_log.previous_boot.memory_allocation_failures")
    if isinstance(wedges, int) and wedges > 0:
        review.add(
            "memory.previous_wedge",
            "note",
            [name],
            f"{wedges} failed allocations of the driver in the previous boot",
            "none",
            "the machine ran out of memory and froze; use a smaller context or memory share than then",
        )


def cuda(review: Review, name: str) -> None:
    facts = as_map(review.facts[name], "spark_platform.cuda")
    if not facts:
        return
    version, state = facts.get("version"), toolkit_state(facts.get("version"))
    if state == "too_old":
        review.add(
            "cuda.toolkit_too_old",
            "blocked",
            [name],
            f"nvcc {version} ({facts.get('nvcc')})",
            f"{NVCC_MINIMUM} or newer",
            "install cuda-toolkit-13-0; older ones do not know sm_121",
        )
    elif state == "aged":
        review.add(
            "cuda.toolkit_aged",
            "note",
            [name],
            f"nvcc {version} ({facts.get('nvcc')})",
            f"{NVCC_WANTED}, which DGX OS ships",
            "install cuda-toolkit-13-0 when something does not compile",
        )
    if facts.get("installed") is False and review.compiles_kernels():
        review.add(
            "cuda.toolkit_missing",
            "slow",
            [name],
            "no nvcc in /usr/local/cuda/bin or on PATH",
            f"CUDA toolkit {NVCC_WANTED}",
            "install cuda-toolkit-13-0; kernels that are compiled at run time need it",
        )
    refused = [
        tool
        for tool, key in (("nvcc", "compiles_sm_121a"), ("ptxas", "ptxas_knows_sm_121a"))
        if facts.get(key) is False
    ]
    if refused and state != "too_old":
        review.add(
            "cuda.cannot_compile",
            "blocked" if review.compiles_kernels() else "slow",
            [name],
            f"{conjoin(refused)} cannot compile for sm_121a: {facts.get('message') or 'no message'}",
            "an empty kernel compiles",
            "install cuda-toolkit-13-0 and a C++ compiler (build-essential)",
        )
    on_path, chosen = facts.get("nvcc_on_path"), facts.get("nvcc")
    versions = {c.get("path"): c.get("version") for c in as_list(facts, "candidates")}
    if on_path and chosen and _version.compare(versions.get(on_path), version) == -1:
        review.add(
            "cuda.path_nvcc",
            "note",
            [name],
            f"{on_path} ({versions.get(on_path)}) comes first on PATH",
            f"{chosen} ({version})",
            "builds of this collection use the full path; put /usr/local/cuda/bin first on PATH for your own",
        )


def surroundings(review: Review, name: str) -> None:
    facts = as_map(review.facts[name], "spark_platform")
    if not facts:
        return
    synchronised = value(facts, "time.synchronised")
    if synchronised is False:
        review.add(
            "time.not_synchronised",
            "slow",
            [name],
            f"not synchronised ({value(facts, 'time.source')})",
            "a clock that follows a reference",
            "the baseline stage sets up chrony; check that its servers can be reached: chronyc sources",
        )
    elif synchronised is None:
        review.not_checked("clock synchronisation", name)
    rules = as_map(facts, "unattended_upgrades")
    if rules.get("enabled") is True:
        open_ = [kind for kind, spared in as_map(rules, "spares_driver").items() if spared is False]
        if open_:
            review.add(
                "upgrades.unattended",
                "slow",
                [name],
                f"unattended upgrades are on and may replace packages of {conjoin(open_)}",
                "nvidia, libnvidia and cuda packages left alone",
                "the baseline stage lists them in Unattended-Upgrade::Package-Blacklist",
            )
    elif rules.get("enabled") is None:
        review.not_checked("unattended upgrades", name)
    busy = as_list(facts, "packages.busy")
    if busy:
        review.add(
            "upgrades.busy",
            "slow",
            [name],
            f"{conjoin([str(b) for b in busy])} running",
            "no package manager at work",
            "wait until it has finished, then run again",
        )
    for entry in as_list(facts, "network"):
        if entry.get("answers") is not False:
            continue
        proxy = entry.get("kind") == "proxy"
        review.add(
            "network.proxy_unreachable" if proxy else "network.mirror_unreachable",
            "slow",
            [name],
            f"{entry.get('url')} for {conjoin([str(x) for x in entry.get('tools') or ['?']])}: {entry.get('detail')}",
            f"an answer, or no such entry in {conjoin([str(x) for x in entry.get('sources') or ['?']])}",
            "correct or remove the entry; downloads wait for it until they time out",
        )


def disk(review: Review, name: str) -> None:
    needed = review.deployment.get("disk_needed_bytes")
    if not isinstance(needed, t.Mapping):
        return
    entries = {entry.get("path"): entry for entry in as_list(review.facts[name], "spark_platform.disk")}
    by_mount: dict[tuple[t.Any, t.Any], tuple[list[str], int]] = {}
    for path, size in needed.items():
        if isinstance(size, t.Mapping):
            size = size.get(name)
        if not isinstance(size, (int, float)) or size <= 0:
            continue
        entry = entries.get(path)
        available = entry.get("available_bytes") if entry else None
        if entry is None or available is None:
            review.add(
                "disk.unknown",
                "blocked",
                [name],
                f"free room for {path} unknown",
                f"{gb(size)} available",
                f"df {path} on {name}",
            )
            continue
        paths, sum_ = by_mount.get((entry.get("mount"), available), ([], 0))
        by_mount[entry.get("mount"), available] = ([*paths, str(path)], sum_ + int(size))
    for (mount, available), (paths, sum_) in by_mount.items():
        if available < sum_:
            review.add(
                "disk.too_little",
                "blocked",
                [name],
                f"{gb(available)} available on {mount or 'the file system'}",
                f"{gb(sum_)} for {conjoin(paths)}",
                "remove releases that are not used, or put the directory on a larger file system",
            )


def ports(review: Review, name: str) -> None:
    entries = {entry.get("port"): entry for entry in as_list(review.facts[name], "spark_platform.ports")}
    for purpose, (port, where) in ports_of(review.deployment).items():
        if where is not None and name not in where:
            continue
        entry = entries.get(port)
        if entry is None or entry.get("listening") is None:
            review.not_checked(f"port {port} ({purpose})", name)
        elif entry["listening"] is True and not own_unit(value(entry, "process.unit")):
            process = as_map(entry, "process")
            unit = f", {process['unit']}" if process.get("unit") else ""
            who = f"{process.get('name') or 'a program'} (pid {process.get('pid')}{unit})" if process else "somebody"
            review.add(
                "ports.in_use",
                "blocked",
                [name],
                f"port {port} is taken by {who}",
                f"port {port} free for {purpose}",
                f"stop it, or choose another port; sudo ss -ltnp 'sport = :{port}' on {name} shows who it is",
            )


def advisories(review: Review, name: str) -> None:
    for advisory in _advisories.ADVISORIES:
        if _advisories.applies(advisory, review.facts[name], review.size):
            review.add(
                advisory["id"],
                advisory["severity"],
                [name],
                _advisories.fill(advisory["found"], review.facts[name]),
                advisory["wanted"],
                advisory["remedy"],
            )

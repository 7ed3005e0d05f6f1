# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Read everything that ``spark_platform`` is made of."""

from __future__ import annotations

import os
import platform
import re
import sys
import sysconfig
import time
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import (
    _gather,
    _gpu,
    _nvidia_smi,
    _packages,
    _platform,
    _values,
    _version,
)
from ansible_collections.tandem.spark.plugins.module_utils._host import Host, Outcome

DMI = "/sys/class/dmi/id"
DMI_FIELDS = (
    "sys_vendor",
    "product_name",
    "product_version",
    "product_family",
    "board_name",
    "bios_version",
    "bios_date",
)
INTERESTING = re.compile(
    r"^(nvidia-|libnvidia-|cuda-toolkit|cuda-nvcc|cuda-runtime|cuda-cudart-\d|libcublas-\d|libnccl|linux-image-"
    r"|docker-ce$|docker\.io$|containerd|earlyoom$|unattended-upgrades$|chrony$|systemd-timesyncd$|ntpsec$|rdma-core$"
    r"|libibverbs|perftest$|python3-dev$|python3\.\d+-dev$|libc6$|ninja-build$|cmake$|git$|rsync$|dgx-|mlnx-)"
)
BUSY = ("apt", "apt-get", "aptitude", "dpkg", "unattended-upgr", "packagekitd", "fwupdmgr")
KERNEL = "__global__ void tandem_probe() {}\n"
# nvcc puts cuda_runtime.h in front of every file, and looks for it in the working directory first. This one keeps the
# check of the host compiler's version and leaves out what makes up four fifths of the time.
HEADER = """\
#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#include "crt/host_config.h"
#define __global__ __attribute__((global))
"""
PTX = ".version 8.8\n.target sm_121a\n.address_size 64\n.visible .entry tandem_probe() { ret; }\n"
TARGET = "sm_121a"
CONNECT_SECONDS = 2.0


def markers(
    host: Host, dmi: t.Mapping[str, str | None], smi: Outcome
) -> tuple[dict[str, bool | None], dict[str, t.Any]]:
    """The markers of :func:`_platform.identify`, and the release files."""
    state = _nvidia_smi.state(smi)
    devices = _nvidia_smi.devices(smi.stdout, ("index", "name", "compute_cap")) if state == "ok" else []
    spark, n1x = _platform.pci_markers(_gather.pci_devices(host, (_gpu.NVIDIA,)))
    dgx = _platform.dgx_release(host.read("/etc/dgx-release"))
    fastos = _platform.fastos_release(host.read("/etc/fastos-release"))
    has_dgx, has_fastos = host.exists("/etc/dgx-release"), host.exists("/etc/fastos-release")
    found = {
        "dgx_release": _platform.equals(dgx["name"], has_dgx, (_platform.SPARK_NAME,)),
        "fastos_release": _platform.equals(fastos["name"], has_fastos, (_platform.FASTOS_NAME,)),
        "pci": spark,
        "gpu": _platform.gpu_marker(state, devices),
        "product_family": _platform.equals(dmi["product_family"], None, (_platform.SPARK_NAME,)),
        "product_name": _platform.equals(dmi["product_name"], None, _platform.PRODUCT_NAMES),
        "n1x": n1x,
        "jetson": host.exists("/etc/nv_tegra_release"),
    }
    return found, {"dgx": dgx, "fastos": fastos, "gpu_probe": state}


def clock(host: Host) -> dict[str, t.Any]:
    """Whether the clock is synchronised, who says so, and what time it is."""
    found = _platform.chrony(host.run(["chronyc", "-c", "-n", "tracking"]).output)
    if found is None:
        found = _platform.timedatectl(host.run(["timedatectl", "show"]).output)
    if found is None:
        found = {"synchronised": None, "source": None, "reference": None, "stratum": None, "offset_seconds": None}
    zone = (host.link("/etc/localtime") or "").partition("/zoneinfo/")[2]
    found.update(epoch_seconds=time.time(), monotonic_seconds=time.monotonic(), timezone=zone or None)
    return found


def python(host: Host) -> dict[str, t.Any]:
    """The interpreter that runs this, whether its C headers are installed, and which others there are."""
    include = sysconfig.get_paths().get("include")
    names = host.names("/usr/bin")
    others = None
    if names is not None:
        matches = [re.match(r"^python(3\.\d+)$", name) for name in names]
        others = sorted({m.group(1) for m in matches if m}, key=lambda v: _version.key(v) or ())
    return {
        "version": platform.python_version(),
        "executable": sys.executable or None,
        "headers": host.exists(f"{include}/Python.h") if include else None,
        "include": include,
        "available": others,
    }


def cuda(host: Host, compile_probe: bool) -> dict[str, t.Any]:
    """The CUDA toolkits, the one to build with, and whether it can compile for the GPU of a Spark."""
    on_path = host.find("nvcc")
    names = host.names("/usr/local") or []
    directories = ["cuda", *(name for name in names if re.match(r"^cuda-\d+(\.\d+)?$", name))]
    paths = [f"/usr/local/{directory}/bin/nvcc" for directory in directories]
    paths = [path for path in paths if host.exists(path) is True]
    candidates: list[dict[str, t.Any]] = []
    seen = set()
    for path in [*paths, *([host.shown(on_path)] if on_path else [])]:
        identity = host.identity(path)
        if identity is None or identity in seen:
            continue
        seen.add(identity)
        outcome = host.run([host.path(path), "--version"])
        candidates.append({"path": path, "version": _platform.nvcc_version(outcome.output)})
    chosen = _platform.choose_toolkit(candidates)
    told = host.names("/usr/local") is not None
    found: dict[str, t.Any] = {
        "installed": True if candidates else (False if told else None),
        "nvcc": chosen["path"] if chosen else None,
        "version": chosen["version"] if chosen else None,
        "nvcc_on_path": host.shown(on_path) if on_path else None,
        "candidates": candidates,
        "knows_sm_121": None,
        "compiles_sm_121a": None,
        "ptxas": None,
        "ptxas_version": None,
        "ptxas_knows_sm_121a": None,
        "message": None,
    }
    if chosen is None:
        return found
    nvcc = host.path(chosen["path"])
    codes = _platform.gpu_codes(host.run([nvcc, "--list-gpu-code"]).output)
    found["knows_sm_121"] = None if codes is None else "sm_121" in codes
    ptxas = os.path.join(os.path.dirname(nvcc), "ptxas")
    if not os.access(ptxas, os.X_OK):
        ptxas = host.find("ptxas") or ""
    if ptxas:
        found["ptxas"] = host.shown(ptxas)
        found["ptxas_version"] = _platform.nvcc_version(host.run([ptxas, "--version"]).output)
    if compile_probe:
        _compile(host, nvcc, ptxas, found)
    return found


def _compile(host: Host, nvcc: str, ptxas: str, found: dict[str, t.Any]) -> None:
    with host.scratch() as directory:
        if directory is None:
            return
        os.mkdir(os.path.join(directory, "short"))
        for name, content in (("probe.cu", KERNEL), ("probe.ptx", PTX), ("short/cuda_runtime.h", HEADER)):
            with open(os.path.join(directory, name), "w", encoding="ascii") as handle:
                handle.write(content)
        out = os.path.join(directory, "probe.cubin")
        if ptxas:
            outcome = host.run([ptxas, f"--gpu-name={TARGET}", "-o", out, os.path.join(directory, "probe.ptx")])
            found["ptxas_knows_sm_121a"] = _verdict(outcome)
            found["message"] = _complaint(outcome)
        command = [nvcc, "-cubin", f"-arch={TARGET}", "-o", out, os.path.join(directory, "probe.cu")]
        outcome = host.run(command, directory=os.path.join(directory, "short"), TMPDIR=directory)
        if outcome.state == "failed":  # the whole header decides
            outcome = host.run(command, directory=directory, TMPDIR=directory)
        found["compiles_sm_121a"] = _verdict(outcome)
        found["message"] = _complaint(outcome) or found["message"]


def _verdict(outcome: Outcome) -> bool | None:
    if outcome.state == "ok":
        return True
    return False if outcome.state == "failed" else None


def _complaint(outcome: Outcome) -> str | None:
    if outcome.state == "ok":
        return None
    lines = [line.strip() for line in (outcome.stderr + "\n" + outcome.stdout).splitlines() if line.strip()]
    return (lines[0] if lines else outcome.state)[:200]


def disks(host: Host, paths: t.Iterable[str]) -> list[dict[str, t.Any]]:
    """Free space for each path; the nearest existing directory stands for one that does not exist yet."""
    found = []
    for path in paths:
        measured = host.existing(path)
        space = host.space(measured)
        found.append(
            {
                "path": path,
                "exists": host.exists(path),
                "measured_at": measured,
                "mount": host.mount(measured),
                "total_bytes": space["total"] if space else None,
                "available_bytes": space["available"] if space else None,
            }
        )
    return found


def ports(host: Host, wanted: t.Iterable[int]) -> list[dict[str, t.Any]]:
    """Which TCP ports are listened on, and by whom when that may be read."""
    numbers = list(wanted)
    if not numbers:
        return []
    open_ports = _platform.listening([host.read("/proc/net/tcp"), host.read("/proc/net/tcp6")])
    inodes = {inode: port for port in numbers for inode in (open_ports or {}).get(port, [])}
    owners = _owners(host, inodes) if inodes else {}
    return [
        {
            "port": port,
            "listening": None if open_ports is None else port in open_ports,
            "process": owners.get(port),
        }
        for port in numbers
    ]


def _owners(host: Host, inodes: t.Mapping[str, int]) -> dict[int, dict[str, t.Any]]:
    found: dict[int, dict[str, t.Any]] = {}
    for name in host.names("/proc") or []:
        if not name.isdigit():
            continue
        for descriptor in host.names(f"/proc/{name}/fd") or []:
            target = host.link(f"/proc/{name}/fd/{descriptor}") or ""
            port = inodes.get(target[8:-1]) if target.startswith("socket:[") else None
            if port is not None and port not in found:
                found[port] = {
                    "pid": int(name),
                    "name": host.line(f"/proc/{name}/comm"),
                    "unit": _gather.unit_of_process(host, int(name)),
                }
    return found


def running(host: Host) -> set[str] | None:
    """The command names of all processes, or None when /proc cannot be listed."""
    names = host.names("/proc")
    if names is None:
        return None
    found = {host.line(f"/proc/{name}/comm") for name in names if name.isdigit()}
    return {name for name in found if name} or None


def addresses(host: Host, apt: t.Mapping[str, t.Sequence[str]]) -> list[_platform.Setting]:
    """Every proxy and mirror that is configured for apt, pip, git, the model hub, or by environment variables."""
    found = _platform.environment_settings(_values.assignments(host.read("/etc/environment")), "/etc/environment")
    found += _platform.environment_settings(host.environ if host.real else {}, "environment")
    found += _platform.apt_settings(apt)
    lists = [f"/etc/apt/sources.list.d/{name}" for name in host.names("/etc/apt/sources.list.d") or []]
    for name in ["/etc/apt/sources.list", *lists]:
        if name.endswith((".list", ".sources")):
            found += _platform.apt_sources(name, host.read(name) or "")
    home = host.environ.get("HOME") or "/root"
    for name in ("/etc/pip.conf", "/etc/xdg/pip/pip.conf", f"{home}/.config/pip/pip.conf", f"{home}/.pip/pip.conf"):
        found += _platform.pip_settings(name, host.read(name) or "")
    for name in ("/etc/gitconfig", f"{home}/.gitconfig", f"{home}/.config/git/config"):
        found += _platform.git_settings(name, host.read(name) or "")
    return found


def network(host: Host, settings: t.Sequence[_platform.Setting], probe: bool) -> list[dict[str, t.Any]]:
    """Each configured address once, and whether it accepts a connection.

    A mirror behind a proxy cannot be asked directly, so only the proxy is.
    """
    entries: dict[tuple[str, str], dict[str, t.Any]] = {}
    for setting in settings:
        place = _platform.endpoint(setting.url)
        if place is None:
            continue
        key = (setting.kind, place["url"] if setting.kind == "proxy" else f"{place['host']}:{place['port']}")
        fresh = {"kind": setting.kind, "url": place["url"], "tools": [], "sources": [], "answers": None, "detail": None}
        entry = entries.setdefault(key, fresh)
        entry.setdefault("_place", place)
        for field, value in (("tools", setting.tool), ("sources", setting.source)):
            if value not in entry[field]:
                entry[field].append(value)
    proxied = {tool for (kind, _url), entry in entries.items() if kind == "proxy" for tool in entry["tools"]}
    environments = (_values.assignments(host.read("/etc/environment")), host.environ)
    exceptions = " ".join(values.get(name, "") for values in environments for name in ("no_proxy", "NO_PROXY"))
    work: dict[str, t.Callable[[], t.Any]] = {}
    for number, entry in enumerate(entries.values()):
        place = entry.pop("_place")
        behind = entry["kind"] == "mirror" and ("environment" in proxied or proxied & set(entry["tools"]))
        if behind and not _platform.bypasses(place["host"], exceptions):
            entry["detail"] = "behind a proxy, not asked directly"
        elif probe:
            work[str(number)] = _connection(host, place["host"], place["port"])
    answers = host.together(work, limit=CONNECT_SECONDS + 1) if work else {}
    for number, entry in enumerate(entries.values()):
        if str(number) in work:
            problem = answers.get(str(number)) or f"no answer within {CONNECT_SECONDS + 1:g} s"
            entry["answers"] = problem == "ok"
            entry["detail"] = None if problem == "ok" else problem
    return list(entries.values())


def _connection(host: Host, name: str, port: int) -> t.Callable[[], str]:
    return lambda: host.connect(name, port, CONNECT_SECONDS) or "ok"


def log_counts(outcome: Outcome) -> dict[str, int] | None:
    """Counts in the kernel log that journalctl printed; None when it printed none."""
    lines = [line for line in (outcome.output or "").splitlines() if not line.startswith("-- ")]
    return _platform.kernel_log("\n".join(lines))


def journal(host: Host, boot: str) -> Outcome:
    """The kernel's messages of one boot."""
    return host.run(["journalctl", "-k", "-b", boot, "--no-pager", "-q", "-o", "cat", "-n", "4000"])


def describe(
    host: Host,
    disk_paths: t.Iterable[str],
    port_numbers: t.Iterable[int],
    compile_probe: bool,
    probe_mirrors: bool,
) -> dict[str, t.Any]:
    """The value of ``spark_platform``."""
    rules_files = [f"/etc/apt/apt.conf.d/{name}" for name in host.names("/etc/apt/apt.conf.d") or []]
    apt = _packages.apt_configuration(host.read(name) or "" for name in ["/etc/apt/apt.conf", *rules_files])
    smi_query = ["nvidia-smi", "--query-gpu=index,name,compute_cap", "--format=csv,noheader,nounits"]
    answers = host.together(
        {
            "smi": lambda: host.run(smi_query),
            "cuda": lambda: cuda(host, compile_probe),
            "time": lambda: clock(host),
            "lscpu": lambda: host.run(["lscpu"]),
            "this": lambda: journal(host, "0"),
            "previous": lambda: journal(host, "-1"),
            "network": lambda: network(host, addresses(host, apt), probe_mirrors),
        }
    )
    dmi = {name: host.line(f"{DMI}/{name}") for name in DMI_FIELDS}
    signs, files = markers(host, dmi, answers["smi"])
    architecture = host.line("/proc/sys/kernel/arch") or (os.uname().machine if host.real else None)
    status = host.read(_packages.STATUS)
    packages = _packages.installed(status, lambda name: INTERESTING.match(name) is not None)
    versions = {name: package["version"] for name, package in (packages or {}).items()}
    system = _values.assignments(host.read("/etc/os-release"))
    names = running(host)
    rules = _packages.unattended_upgrades(apt, None if packages is None else "unattended-upgrades" in packages)
    reboot = host.exists("/run/reboot-required") or host.exists("/var/run/reboot-required")
    pending = (host.read("/run/reboot-required.pkgs") or "").split()
    nccl = next((name for name in ("libnccl2", "libnccl-dev") if name in versions), None)
    toolkit = versions.get("nvidia-container-toolkit")
    found = _platform.identify(signs, architecture)
    found.update(
        markers=signs,
        image_replaced=_platform.image_replaced(signs),
        gpu_probe=files["gpu_probe"],
        vendor=_platform.vendor(dmi, files["dgx"]["platform"]),
        dmi=dmi,
        architecture=architecture,
        cpu=_platform.lscpu(answers["lscpu"].output),
        kernel_running=host.line("/proc/sys/kernel/osrelease") or (os.uname().release if host.real else None),
        kernel_installed=_platform.kernels(host.names("/boot"), packages),
        os={name: system.get(key) for name, key in (("id", "ID"), ("version", "VERSION_ID"), ("name", "PRETTY_NAME"))},
        dgx_os={**files["dgx"], "fastos": files["fastos"]["version"]},
        firmware={"bios_version": dmi["bios_version"], "bios_date": dmi["bios_date"]},
        glibc=_version.debian_upstream(versions.get("libc6")) or _glibc(host),
        time=answers["time"],
        python=python(host),
        cuda=answers["cuda"],
        nccl={
            "installed": None if packages is None else nccl is not None,
            "version": _version.debian_upstream(versions.get(nccl or "")),
            "source": f"package {nccl}" if nccl else None,
        },
        container_toolkit=_version.debian_upstream(toolkit),
        packages={
            "installed": None if packages is None else versions,
            "held": _packages.held(status),
            "busy": None if names is None else sorted(name for name in names if name in BUSY),
        },
        reboot_required={"marker": reboot, "packages": pending},
        unattended_upgrades=rules,
        earlyoom={
            "installed": None if packages is None else "earlyoom" in packages,
            "running": None if names is None else "earlyoom" in names,
            **_platform.earlyoom(host.read("/etc/default/earlyoom")),
        },
        network=answers["network"],
        disk=disks(host, disk_paths),
        ports=ports(host, port_numbers),
        kernel_log={"this_boot": log_counts(answers["this"]), "previous_boot": log_counts(answers["previous"])},
    )
    return found


def _glibc(host: Host) -> str | None:
    if not host.real:
        return None
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").replace("glibc", "").strip() or None
    except (OSError, ValueError):
        return None

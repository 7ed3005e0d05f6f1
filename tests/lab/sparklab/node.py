# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One virtual Spark: its disk, power on, power off, logging in."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from . import LabError, network
from .cgroups import group
from .config import Lab, Node
from .host import ProcessRef, run
from .names import PACKAGE, Names, cache_dir

TIMEOUT = 90.0  # seconds for a boot, on a loaded machine; a quiet one takes three
KNOBS = ("driver_version", "driver_loaded", "gpu")
KNOB_DIR = "etc/tandem-lab"


def ssh_options(names: Names, connect_timeout: int = 5) -> list[str]:
    return [
        *("-i", str(names.key_file)),
        *("-o", "IdentitiesOnly=yes"),
        *("-o", f"UserKnownHostsFile={names.known_hosts}"),
        *("-o", "GlobalKnownHostsFile=/dev/null"),
        *("-o", "StrictHostKeyChecking=yes"),
        # an address whose lab is gone would otherwise hang for minutes
        *("-o", f"ConnectTimeout={connect_timeout}"),
    ]


def ssh_argv(names: Names, node: Node, *command: str) -> list[str]:
    return ["ssh", "-F", "none", *ssh_options(names), f"root@{names.address(node.rank)}", *command]


# ---- the disk ------------------------------------------------------------------------------------------------------


def make_lab_key(names: Names) -> None:
    if not names.key_file.exists():
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"lab {names.id}", "-f", names.key_file)


def prepare(names: Names, node: Node) -> str:
    """Lay out a node's own files over the image; returns its line for known_hosts."""
    home = names.node_dir(node.name)
    upper = home / "upper"
    for folder in (home / "root", home / "wd", upper):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
    (upper / "root").mkdir(exist_ok=True)
    (upper / "root").chmod(0o700)  # it hides the image's /root, mode included

    def write(path: str, text: str, mode: int = 0o644) -> None:
        target = upper / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)

    write("etc/hostname", f"{node.name}\n")
    write("etc/machine-id", f"{names.machine_id(node.name)}\n")
    write("etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {node.name}\n::1 localhost ip6-localhost ip6-loopback\n")
    write("etc/resolv.conf", resolv_conf())
    write(f"{KNOB_DIR}/driver_version", f"{node.driver_version}\n")
    write(f"{KNOB_DIR}/gpu", "present\n")
    if node.driver_loaded and node.driver_loaded != node.driver_version:
        write(f"{KNOB_DIR}/first_boot_loaded", f"{node.driver_loaded}\n")
    write("root/.ssh/authorized_keys", names.key_file.with_suffix(".pub").read_text(), 0o600)
    (upper / "root/.ssh").chmod(0o700)
    host_key = upper / "etc/ssh/ssh_host_ed25519_key"
    host_key.parent.mkdir(parents=True, exist_ok=True)
    if not host_key.exists():
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", node.name, "-f", host_key)
    public = " ".join(host_key.with_suffix(".pub").read_text().split()[:2])
    if node.disk_mb:
        _make_disk(home, node.disk_mb)
    return f"{names.address(node.rank)},{node.name} {public}\n"


def _make_disk(home: Path, megabytes: int) -> None:
    """A file system of limited size instead of a folder, so that a disk can run full."""
    seed = home / "seed"
    seed.mkdir()
    for name in ("upper", "wd"):
        (home / name).rename(seed / name)
    disk = home / "disk.img"
    with disk.open("wb") as handle:
        handle.truncate(megabytes << 20)
    run("mkfs.ext4", "-q", "-m", "0", "-d", seed, disk)
    shutil.rmtree(seed)
    (home / "disk").mkdir()


def resolv_conf(etc: Path = Path("/etc/resolv.conf"), resolved: Path = Path("/run/systemd/resolve/resolv.conf")) -> str:
    """The host's name servers, unless they listen on its loopback, where no guest can ask them."""
    for path in (etc, resolved):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        kept = [line for line in lines if not (line.split()[:1] == ["nameserver"] and _is_loopback(line))]
        if any(line.split()[:1] == ["nameserver"] for line in kept):
            return "\n".join(kept) + "\n"
    return "# the lab's host has no name server that a guest can reach\n"


def _is_loopback(line: str) -> bool:
    try:
        return ipaddress.ip_address(line.split()[1].partition("%")[0]).is_loopback
    except (IndexError, ValueError):
        return True


# ---- power ---------------------------------------------------------------------------------------------------------


def launch(names: Names, lab: Lab, node: Node, image: Path) -> None:
    """Power on: start the supervisor that mounts the disk and boots the guest."""
    home = names.node_dir(node.name)
    network.management_on(names, node.rank, node.name)
    owner = group(names, node.name)
    devices = owner.devices_file()
    spec = {
        "id": names.id,
        "node": node.name,
        "image": str(image),
        "disk": str(home / "disk.img") if node.disk_mb else None,
        "devices": str(devices) if devices else None,
        "lab": lab.as_dict(),
    }
    (home / "boot.json").write_text(json.dumps(spec))
    env = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(Path.home()),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(PACKAGE.parent),
        "PYTHONUNBUFFERED": "1",
        "TANDEM_CACHE": str(cache_dir()),
    }
    argv = ["unshare", "--mount", "--propagation", "slave", sys.executable, "-P", "-m", "sparklab.supervisor"]
    owner.launch([*argv, str(home / "boot.json")], env, home / "console.log", node.memory_mb)


def power_off(names: Names, lab: Lab, node: Node) -> None:
    """Cut the power: everything in the node ends at once, its links lose carrier, its disk stays."""
    owner = group(names, node.name)
    owner.kill()
    owner.remove()
    network.reset(names, lab, node.name, names.node_dir(node.name) / "netns.json")
    network.close_connections(names.address(node.rank))


def is_running(names: Names, node: str) -> bool:
    return group(names, node).populated()


def guest_pid(names: Names, node: Node) -> int:
    pid = group(names, node.name).guest_init()
    if pid is None or ProcessRef.of(pid) is None:
        raise LabError(f"node {node.name} is not running; start it with `lab start`")
    return pid


def enter_argv(names: Names, node: Node) -> list[str]:
    """The command prefix that runs something in the guest without SSH. It keeps the host's capabilities: a sysctl or
    network command that works this way may still be refused to the guest itself."""
    return ["nsenter", "-t", str(guest_pid(names, node)), "-m", "-p", "-n", "-u", "-i", "-C"]


def wait_ready(names: Names, nodes: list[Node], timeout: float | None = None) -> dict[str, str]:
    """Wait until each node answers SSH and has finished its boot; returns what systemd says of itself."""
    limit = timeout if timeout is not None else float(os.environ.get("TANDEM_LAB_TIMEOUT", TIMEOUT))
    answers: dict[str, str] = {}
    problems: dict[str, str] = {}

    def wait(node: Node) -> None:
        deadline = time.monotonic() + limit
        last = ""
        while time.monotonic() < deadline:
            if not is_running(names, node.name):
                problems[node.name] = f"ended during its boot: {console_tail(names, node.name)}"
                return
            argv = ssh_argv(names, node, "systemctl", "is-system-running", "--wait")
            try:
                done = subprocess.run(
                    argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit, check=False
                )
            except subprocess.TimeoutExpired:
                break
            word = done.stdout.strip()
            if word in {"running", "degraded"}:
                answers[node.name] = word
                return
            last = " ".join((done.stderr or done.stdout).split())
            time.sleep(0.1)
        tail = console_tail(names, node.name)
        problems[node.name] = f"not ready within {limit:.0f} s ({last or 'no answer'}): {tail}"

    threads = [threading.Thread(target=wait, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise LabError("; ".join(f"{name} {text}" for name, text in problems.items()))
    return {node.name: answers[node.name] for node in nodes}


def failed_units(names: Names, node: Node) -> list[str]:
    argv = ssh_argv(names, node, "systemctl", "--failed", "--plain", "--no-legend")
    return [line.split()[0] for line in run(*argv, check=False, timeout=30).stdout.splitlines() if line.split()]


def console_tail(names: Names, node: str, lines: int = 3) -> str:
    log = names.node_dir(node) / "console.log"
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return "no console log"
    last = [line.strip() for line in text.splitlines() if line.strip()][-lines:]
    return f"{' / '.join(last) or 'the console is empty'} (see {log})"


# ---- knobs ---------------------------------------------------------------------------------------------------------


def check_knobs(changes: dict[str, str]) -> None:
    from .config import DRIVER, VERSION_RE

    for key, value in changes.items():
        if key not in KNOBS:
            raise LabError(f"there is no knob {key!r}; known are {', '.join(KNOBS)}")
        if key.startswith("driver_") and not VERSION_RE.fullmatch(value):
            raise LabError(f"{key} is {value!r}; wanted a driver version such as {DRIVER}")
        if key == "gpu" and value not in {"present", "absent"}:
            raise LabError(f"gpu is {value!r}; wanted present or absent")


def turn_knobs(names: Names, node: Node, changes: dict[str, str]) -> None:
    """Change what a running node's stand-ins report."""
    check_knobs(changes)
    folder = Path(f"/proc/{guest_pid(names, node)}/root/{KNOB_DIR}")
    for key in ("driver_version", "gpu"):
        if key in changes:
            (folder / key).write_text(f"{changes[key]}\n")
    loaded = changes.get("driver_loaded", changes.get("driver_version"))
    if loaded:
        run(*enter_argv(names, node), "/usr/local/lib/tandem-lab/driver-loaded", loaded)


def read_knobs(names: Names, node: Node) -> dict[str, str]:
    pid = group(names, node.name).guest_init()
    found: dict[str, str] = {}
    if pid is None:
        return found
    root = Path(f"/proc/{pid}/root")
    for key, path in (
        ("driver_version", f"{KNOB_DIR}/driver_version"),
        ("driver_loaded", "proc/driver/nvidia/version"),
        ("gpu", f"{KNOB_DIR}/gpu"),
    ):
        try:
            text = (root / path).read_text().strip()
        except OSError:
            continue
        found[key] = text.split("  ")[1] if key == "driver_loaded" and "  " in text else text
    return found

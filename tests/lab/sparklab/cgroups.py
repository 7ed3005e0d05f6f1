# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Control groups: where a node's processes live, what they may use, and how all of them end at once.

Membership, not process ids, decides what belongs to a lab: nothing that a guest starts can leave its group, so `kill`
and `down` are one write to cgroup.kill, also when the supervisor died long ago.

Two kinds of host: with systemd as PID 1 a group is a transient service with a delegated subtree, otherwise a plain
directory. The cgroup v2 hierarchy tracks processes on both; limits go to v1 controllers where the host has them there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import LabError
from .host import ProcessRef, run, runs_systemd, wait_until
from .names import Names

ROOT = Path("/sys/fs/cgroup")
# null, zero, full, random, urandom, terminals, tun: what nspawn gives a container, and nothing of the host's disks
DEVICES = ("1:3", "1:5", "1:7", "1:8", "1:9", "5:*", "136:*", "10:200")
UNLIMITED = 1 << 60


@dataclass(frozen=True)
class Hierarchies:
    v2: Path
    memory: Path | None  # v1, where the host has it there
    devices: Path | None


def hierarchies() -> Hierarchies:
    if (ROOT / "cgroup.controllers").exists():
        return Hierarchies(ROOT, None, None)
    v2 = ROOT / "unified"
    if not (v2 / "cgroup.procs").exists():
        raise LabError(f"no cgroup v2 hierarchy at {ROOT} or {v2}; mount one: mkdir {v2}; mount -t cgroup2 none {v2}")
    v1 = {name: ROOT / name if (ROOT / name / "cgroup.procs").exists() else None for name in ("memory", "devices")}
    return Hierarchies(v2, v1["memory"], v1["devices"])


class Group:
    """The group of one node, or of a service of the lab."""

    def __init__(self, names: Names, what: str) -> None:
        self.names = names
        self.what = what
        self.at = hierarchies()

    @property
    def path(self) -> Path:
        """Its directory in the v2 hierarchy."""
        return self.at.v2 / self.names.cgroup / self.what

    def _v1(self) -> list[Path]:
        return [root / self.names.cgroup / self.what for root in (self.at.memory, self.at.devices) if root]

    # ---- life ------------------------------------------------------------------------------------------------------
    def launch(
        self, argv: Sequence[str], env: Mapping[str, str], log: Path, memory_mb: int | None = None
    ) -> ProcessRef:
        """Start a program inside the group; returns the program itself."""
        self._create(memory_mb)
        enter = [self.path, *self._v1()[:1]] if self.at.memory else [self.path]
        files = [os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in enter]

        def join() -> None:
            for handle in files:
                os.write(handle, b"0")

        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=dict(env),
                    cwd="/",
                    start_new_session=True,
                    preexec_fn=join,
                )
        finally:
            for handle in files:
                os.close(handle)
        reference = ProcessRef.of(process.pid)
        if reference is None:
            raise LabError(f"{argv[0]} ended at once; its output is in {log}")
        return reference

    def _create(self, memory_mb: int | None) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        for folder in self._v1():
            folder.mkdir(parents=True, exist_ok=True)
        if self.at.devices:
            folder = self.at.devices / self.names.cgroup / self.what
            (folder / "devices.deny").write_text("a")
            for device in DEVICES:
                (folder / "devices.allow").write_text(f"c {device} rwm")
        if memory_mb is None:
            return
        if self.at.memory:
            folder = self.at.memory / self.names.cgroup / self.what
            (folder / "memory.limit_in_bytes").write_text(str(memory_mb << 20))
            return
        # v2 without systemd, for example in a container: the controller may not be ours to hand out; `status` tells
        with contextlib.suppress(OSError):
            for folder in (self.at.v2, self.path.parent):
                (folder / "cgroup.subtree_control").write_text("+memory")
            (self.path / "memory.max").write_text(str(memory_mb << 20))

    def devices_file(self) -> Path | None:
        """Where a process enters the device limits (after its own mounts are done)."""
        return self.at.devices / self.names.cgroup / self.what / "cgroup.procs" if self.at.devices else None

    def kill(self) -> None:
        """End every process of the group, at once."""
        if not self.path.is_dir():
            return
        if (self.path / "cgroup.kill").exists():
            with contextlib.suppress(FileNotFoundError):
                (self.path / "cgroup.kill").write_text("1")
        else:  # kernels before 5.14: repeat until no fork escapes
            deadline = time.monotonic() + 10
            while (pids := self.pids()) and time.monotonic() < deadline:
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.02)
        if not wait_until(lambda: not self.populated(), 15):
            raise LabError(f"processes {self.pids()} of {self.path} do not end; look at them with ps")

    def remove(self) -> None:
        for folder in [self.path, *self._v1()]:
            remove_tree(folder)

    # ---- looking ---------------------------------------------------------------------------------------------------
    def populated(self) -> bool:
        with contextlib.suppress(OSError):
            return "populated 1" in (self.path / "cgroup.events").read_text()
        return False

    def pids(self) -> list[int]:
        return tree_pids(self.path)

    def guest_init(self) -> int | None:
        """The process (as the host sees it) that is PID 1 in the guest."""
        for leaf in ("guest/payload/init.scope", "guest/payload"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                return int((self.path / leaf / "cgroup.procs").read_text().split()[0])
        return None

    def memory(self) -> tuple[int | None, int | None]:
        """(used, limit) in bytes; None where the host does not say or does not limit."""
        if self.at.memory:
            folder = self.at.memory / self.names.cgroup / self.what
            files = ("memory.usage_in_bytes", "memory.limit_in_bytes")
        else:
            folder, files = self.path, ("memory.current", "memory.max")
        numbers: list[int | None] = []
        for name in files:
            try:
                number = int((folder / name).read_text())
                numbers.append(number if number < UNLIMITED else None)
            except (OSError, ValueError):
                numbers.append(None)
        return numbers[0], numbers[1]


class SystemdGroup(Group):
    """The same on a host that runs systemd: a transient service with a delegated subtree (not run by this project)."""

    @property
    def unit(self) -> str:
        return self.names.unit(self.what)

    @property
    def path(self) -> Path:
        answer = run("systemctl", "show", "--value", "--property=ControlGroup", self.unit, check=False).stdout.strip()
        return self.at.v2 / (answer.lstrip("/") or f"tandem-lab-gone-{self.names.id}/{self.what}")

    def launch(
        self, argv: Sequence[str], env: Mapping[str, str], log: Path, memory_mb: int | None = None
    ) -> ProcessRef:
        run("systemctl", "reset-failed", self.unit, check=False)
        words = ["systemd-run", "--quiet", "--collect", f"--unit={self.unit}", "--working-directory=/"]
        properties = ["Delegate=yes", "KillMode=control-group", "TasksMax=infinity", f"StandardOutput=append:{log}"]
        properties.append(f"StandardError=append:{log}")
        if memory_mb is not None:
            properties.append(f"MemoryMax={memory_mb}M")
        words += [f"--property={item}" for item in properties]
        words += [f"--setenv={key}={value}" for key, value in env.items()]
        run(*words, *argv)
        answer = run("systemctl", "show", "--value", "--property=MainPID", self.unit).stdout.strip()
        reference = ProcessRef.of(int(answer or 0))
        if reference is None:
            raise LabError(f"unit {self.unit} ended at once; its output is in {log}")
        return reference

    def devices_file(self) -> Path | None:
        return None  # v2 has no file for it; CAP_MKNOD is dropped in any case

    def kill(self) -> None:
        super().kill()
        run("systemctl", "stop", self.unit, check=False)
        run("systemctl", "reset-failed", self.unit, check=False)

    def remove(self) -> None:
        """systemd removes the group with the unit."""


def group(names: Names, what: str) -> Group:
    return SystemdGroup(names, what) if runs_systemd() else Group(names, what)


def tree_pids(folder: Path) -> list[int]:
    pids: list[int] = []
    for procs in [folder / "cgroup.procs", *folder.rglob("cgroup.procs")] if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            pids += [int(line) for line in procs.read_text().split()]
    return sorted(set(pids))


def remove_tree(folder: Path) -> None:
    """Remove a group and what is below it, leaf first. The kernel may need a moment after the last process ended."""
    if not folder.is_dir():
        return

    def gone() -> bool:
        for path, _folders, _files in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)
        return not folder.is_dir()

    if not wait_until(gone, 5):
        raise LabError(f"control group {folder} cannot be removed; processes in it: {tree_pids(folder) or 'none'}")


def lab_folders(names: Names) -> list[Path]:
    """Every directory named after the lab, in all hierarchies."""
    roots = [ROOT, *(path for path in ROOT.iterdir() if path.is_dir())] if ROOT.is_dir() else []
    found = [root / names.cgroup for root in roots if (root / names.cgroup).is_dir()]
    if runs_systemd():
        found += sorted(path for path in ROOT.glob(f"**/{names.cgroup}-*.service") if path.is_dir())
    return found


def groups_of(names: Names) -> list[str]:
    """What the lab has groups for, from the hierarchy itself (no state file needed)."""
    if runs_systemd():
        pattern = names.unit("*")
        lines = run("systemctl", "list-units", "--all", "--plain", "--no-legend", pattern, check=False).stdout
        prefix, suffix = names.unit("\0").split("\0")
        return [line.split()[0][len(prefix) : -len(suffix)] for line in lines.splitlines() if line.split()]
    found = {path.name for folder in lab_folders(names) for path in folder.iterdir() if path.is_dir()}
    return sorted(found)

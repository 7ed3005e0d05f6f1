# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host can do, and how to run things on it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from . import LabError

T = TypeVar("T")

# tool -> (Debian package, what the lab does with it)
TOOLS: dict[str, tuple[str, str]] = {
    "systemd-nspawn": ("systemd-container", "boots the guests"),
    "mmdebstrap": ("mmdebstrap", "builds the guests' image"),
    "nft": ("nftables", "NAT, air gap and packet loss"),
    "ip": ("iproute2", "networks and cables"),
    "ssh": ("openssh-client", "logs in to the guests"),
    "nsenter": ("util-linux", "enters a guest from outside"),
    "mkfs.ext4": ("e2fsprogs", "size-limited disks"),
    "gcc": ("gcc", "compiles the libcuda stand-in"),
}
# The same for what only the tests of this repository want.
TEST_TOOLS: dict[str, tuple[str, str]] = {
    "rsync": ("rsync", "copies between nodes are tested with it"),
    "shellcheck": ("shellcheck", "checks the shell scripts"),
}
# Packages without a command of their own: (a file that shows it is there, package, what for)
FILES: tuple[tuple[str, str, str], ...] = (
    ("/usr/include/stdio.h", "libc6-dev", "compiles the libcuda stand-in"),
    ("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring", "trusts the Debian archive"),
)


def run(
    *argv: str | os.PathLike[str],
    check: bool = True,
    text_in: str | None = None,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command quietly; on failure say in one sentence what it was and what it answered."""
    words = [os.fspath(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            input=text_in,
            stdin=None if text_in is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=env,
            check=False,
        )
    except FileNotFoundError as error:
        raise LabError(f"{words[0]} is not installed; run `tests/lab/lab setup`") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"`{' '.join(words)}` did not end within {timeout} s") from error
    if check and done.returncode != 0:
        answer = " ".join((done.stderr or done.stdout).split()) or "no message"
        raise LabError(f"`{' '.join(words)}` failed with {done.returncode}: {answer}")
    return done


def run_json(*argv: str) -> Any:
    return json.loads(run(*argv).stdout or "[]")


def missing_tools(tools: Sequence[str] | None = None) -> list[str]:
    return [tool for tool in (tools or TOOLS) if shutil.which(tool) is None]


def require_root() -> None:
    if os.geteuid() != 0:
        raise LabError("the lab needs root (namespaces, mounts, control groups); run it with sudo")


def require_tools() -> None:
    missing = missing_tools([tool for tool in TOOLS if tool not in {"mmdebstrap", "gcc", "mkfs.ext4"}])
    if missing:
        raise LabError(f"missing on this machine: {', '.join(missing)}; run `tests/lab/lab setup`")


def require_kernel() -> None:
    """Refuse early on a kernel that cannot carry a lab."""
    known = {line.split()[-1] for line in Path("/proc/filesystems").read_text().splitlines()}
    for filesystem in ("overlay", "cgroup2"):
        if filesystem in known:
            continue
        run("modprobe", filesystem, check=False)
        if filesystem not in Path("/proc/filesystems").read_text().split():
            raise LabError(f"this kernel has no {filesystem} file system; the lab needs one that has")
    answer = run("nft", "list", "tables", check=False)
    if answer.returncode != 0:
        raise LabError(f"this kernel has no usable nf_tables: {' '.join(answer.stderr.split())}")


def require_room(folder: Path, megabytes: int, what: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free >> 20
    if free < megabytes:
        raise LabError(
            f"{what} needs {megabytes} MiB in {folder}, {free} MiB are free; "
            "make room, or set TANDEM_CACHE to another disk"
        )


def memory_available_mb() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) >> 10
    return 0


def runs_systemd() -> bool:
    return Path("/run/systemd/system").is_dir()


# ---- processes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProcessRef:
    """A process by number and start time, so that a recycled number is never mistaken for it."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessRef | None:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            return None
        if fields[0] == "Z":  # a zombie is gone for every purpose here
            return None
        return cls(pid, int(fields[19]))

    def alive(self) -> bool:
        return ProcessRef.of(self.pid) == self


def wait_until(condition: Callable[[], bool], seconds: float, step: float = 0.02) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(step)
    return True


@contextlib.contextmanager
def locked(path: Path, waiting_for: str | None = None) -> Iterator[None]:
    """Hold an exclusive lock; say so once when somebody else has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting_for:
                print(f"waiting for {waiting_for}", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


# ---- namespaces ----------------------------------------------------------------------------------------------------

_CLONE_NEWNET = 0x40000000


def in_netns(name: str, action: Callable[[], T]) -> T:
    """Call something inside a network namespace: in a thread of its own, since setns() binds to the thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    result: list[T] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            with open(f"/run/netns/{name}", "rb") as handle:
                if libc.setns(handle.fileno(), _CLONE_NEWNET) != 0:
                    code = ctypes.get_errno()
                    raise LabError(f"cannot enter network namespace {name}: {os.strerror(code)}")
            result.append(action())
        except BaseException as error:  # handed to the caller's thread
            failure.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]

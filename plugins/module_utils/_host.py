# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""The one place where the facts modules touch the machine.

Everything is read below a root directory, so that a directory with a fake /proc, /sys, /etc and /usr/bin is a whole
machine for tests. Nothing here raises because a file, a directory or a tool is missing, unreadable or slow.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import typing as t

SEARCH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
GRACE = 1.0  # seconds for a killed tool to go away; one that hangs in the kernel is left behind
LIMIT = 32 * 1024 * 1024
PIECE = 65536  # files in /proc/sys refuse a read of several MiB


class Outcome(t.NamedTuple):
    """What became of a command; ``state``: ``ok`` (exit status 0), ``failed``, ``missing``, ``denied``, ``timeout``."""

    state: str
    rc: int | None = None
    stdout: str = ""
    stderr: str = ""
    seconds: float | None = None

    @property
    def output(self) -> str | None:
        """Standard output when the command succeeded, else None."""
        return self.stdout if self.state == "ok" else None


Runner = t.Callable[[t.Sequence[str], float, t.Mapping[str, str], t.Optional[str]], Outcome]


def run_command(
    argv: t.Sequence[str], timeout: float, environment: t.Mapping[str, str], directory: str | None = None
) -> Outcome:
    """Run *argv* without a shell in a process group of its own; at the limit the whole group is killed.

    A process that even SIGKILL cannot end (it hangs in a driver) does not hold the caller up.
    """
    started = time.monotonic()
    try:
        # AnsibleModule.run_command has no time limit.
        process = subprocess.Popen(  # pylint: disable=ansible-bad-function
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            cwd=directory,
            start_new_session=True,
        )
    except (FileNotFoundError, NotADirectoryError) as error:
        return Outcome("missing", stderr=str(error))
    except PermissionError as error:
        return Outcome("denied", stderr=str(error))
    except (OSError, ValueError) as error:
        return Outcome("failed", stderr=str(error))
    state = "ok"
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        state = "timeout"
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            out, err = process.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            out = err = b""
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
    if state == "ok" and process.returncode != 0:
        state = "failed"
    return Outcome(
        state,
        process.returncode if state != "timeout" else None,
        out[:LIMIT].decode("utf-8", "replace"),
        err[:LIMIT].decode("utf-8", "replace"),
        round(time.monotonic() - started, 3),
    )


def open_connection(host: str, port: int, timeout: float) -> str | None:
    """Open and close a TCP connection; None when it was accepted, else what went wrong."""
    try:
        with socket.create_connection((host, port), timeout=timeout):
            return None
    except socket.timeout:
        return f"no answer within {timeout:g} s"
    except (OSError, ValueError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)


class Host:
    """The machine below *root*, with a replaceable way of running commands."""

    def __init__(
        self,
        root: str = "/",
        timeout: float = 10.0,
        run: Runner = run_command,
        environ: t.Mapping[str, str] | None = None,
        connector: t.Callable[[str, int, float], str | None] = open_connection,
    ) -> None:
        self.root = os.path.abspath(root or "/")
        self.timeout = timeout
        self.environ = dict(os.environ if environ is None else environ)
        self._run = run
        self._connect = connector

    @property
    def real(self) -> bool:
        """True when this is the running machine and not a directory that stands for one."""
        return self.root == "/"

    def path(self, name: str) -> str:
        """*name*, an absolute path, below the root."""
        return name if self.real else self.root + os.sep + name.lstrip("/")

    def read(self, name: str) -> str | None:
        """The content of a file, or None when it cannot be read for whatever reason."""
        pieces, total = [], 0
        try:
            with open(self.path(name), "rb", buffering=0) as handle:
                while total < LIMIT:
                    piece = handle.read(PIECE)
                    if not piece:
                        break
                    pieces.append(piece)
                    total += len(piece)
        except (OSError, ValueError):
            return None
        return b"".join(pieces).decode("utf-8", "replace")

    def line(self, name: str) -> str | None:
        """The content of a one-line file without surrounding space; None when it cannot be read or is empty."""
        content = self.read(name)
        return (content.replace("\0", "").strip() or None) if content is not None else None

    def exists(self, name: str) -> bool | None:
        """True or False when that can be told, None when a directory on the way may not be searched."""
        try:
            os.stat(self.path(name))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError):
            return None
        return True

    def names(self, name: str) -> list[str] | None:
        """The sorted names in a directory, or None when it cannot be listed."""
        try:
            return sorted(os.listdir(self.path(name)))
        except (OSError, ValueError):
            return None

    def link(self, name: str) -> str | None:
        """Where a symbolic link points, or None."""
        try:
            return os.readlink(self.path(name))
        except (OSError, ValueError):
            return None

    def identity(self, name: str) -> tuple[int, int] | None:
        """Device and inode of what *name* leads to: equal for two names of one file."""
        try:
            status = os.stat(self.path(name))
        except (OSError, ValueError):
            return None
        return status.st_dev, status.st_ino

    def space(self, name: str) -> dict[str, int] | None:
        """Total and available bytes of the file system that holds *name* (available to an ordinary user)."""
        try:
            status = os.statvfs(self.path(name))
        except (OSError, ValueError):
            return None
        if not status.f_frsize or not status.f_blocks:
            return None
        return {"total": status.f_blocks * status.f_frsize, "available": status.f_bavail * status.f_frsize}

    def existing(self, name: str) -> str:
        """*name*, or the nearest directory above it that exists."""
        while name not in ("/", "") and self.exists(name) is not True:
            name = os.path.dirname(name.rstrip("/"))
        return name or "/"

    def mount(self, name: str) -> str | None:
        """The mount point that holds *name*: the highest directory above it on the same device."""
        device = (self.identity(name) or (None, None))[0]
        if device is None:
            return None
        while name not in ("/", ""):
            above = os.path.dirname(name.rstrip("/")) or "/"
            if (self.identity(above) or (None, None))[0] != device:
                break
            name = above
        return name or "/"

    def shown(self, path: str) -> str:
        """The name of a path below the root, as it is on the machine itself."""
        return path if self.real or not path.startswith(self.root + os.sep) else path[len(self.root) :]

    @contextlib.contextmanager
    def scratch(self) -> t.Iterator[str | None]:
        """An empty directory that is gone afterwards, or None when none can be made."""
        try:
            directory = tempfile.mkdtemp(prefix="tandem-")
        except OSError:
            yield None
            return
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def find(self, tool: str, extra: t.Iterable[str] = ()) -> str | None:
        """The path of a tool: absolute names as they are, others in PATH and the usual places (below the root)."""
        if os.path.isabs(tool):
            return tool
        places = list(SEARCH)
        if self.real:
            places = [p for p in self.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(p)] + places
        for place in (*places, *extra):
            candidate = self.path(os.path.join(place, tool))
            if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
                return candidate
        return None

    def run(self, argv: t.Sequence[str], directory: str | None = None, **environment: str | None) -> Outcome:
        """Run a tool in the C locale. *environment* adds variables, and takes away those that are None."""
        program = self.find(argv[0])
        if program is None:
            return Outcome("missing", stderr=f"{argv[0]} is not installed")
        variables = {k: v for k, v in self.environ.items() if k != "LANGUAGE" and not k.startswith("LC_")}
        variables.update(LC_ALL="C", LANG="C")
        for name, value in environment.items():
            variables.pop(name, None)
            if value is not None:
                variables[name] = value
        return self._run([program, *argv[1:]], self.timeout, variables, directory)

    def connect(self, host: str, port: int, timeout: float) -> str | None:
        """None when a TCP connection is accepted, else what went wrong."""
        return self._connect(host, port, timeout)

    def together(self, work: t.Mapping[str, t.Callable[[], t.Any]], limit: float | None = None) -> dict[str, t.Any]:
        """Call several functions at the same time. What is not done within *limit* seconds is None."""
        results: dict[str, t.Any] = dict.fromkeys(work)

        def call(name: str, function: t.Callable[[], t.Any]) -> None:
            results[name] = function()

        threads = [threading.Thread(target=call, args=item, daemon=True) for item in work.items()]
        deadline = None if limit is None else time.monotonic() + limit
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return dict(results)


def pci_address(target: str | None) -> str | None:
    """The last PCI address in a sysfs link such as ``../../../0000:01:00.0``, or None."""
    for part in reversed((target or "").split("/")):
        domain, _colon, rest = part.partition(":")
        if len(rest) == 7 and rest[2] == ":" and rest[5] == "." and all(c in "0123456789abcdefABCDEF" for c in domain):
            return part
    return None


ROOT_OPTIONS: dict[str, dict[str, t.Any]] = {
    "root": {"type": "path", "default": "/"},
    "timeout": {"type": "float", "default": 10},
}

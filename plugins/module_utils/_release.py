# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Releases on a node: what ``current`` and ``previous`` point at, who still uses one, and which ones may go.

``ROOT/releases/NAME`` holds ``rank.json`` and the links ``model`` and ``engine``. ``ROOT/current`` and
``ROOT/previous`` point at two of them. Nothing in a release ever changes, so going back is a change of these links.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils._files import read_text, sync_directory

POINTERS = ("current", "previous")
# How each engine is told the name that clients ask for.
NAME_FLAGS = ("--served-model-name", "--alias")
AT_FDCWD = -100
RENAME_EXCHANGE = 2


class ReleaseError(Exception):
    """A release that cannot be switched to or removed; the text says what was found, what was wanted, what to do."""


def served_name(argv: t.Sequence[str]) -> str | None:
    """The model's name for clients, from a rank's command line."""
    for flag in NAME_FLAGS:
        if flag in argv[:-1]:
            return argv[argv.index(flag) + 1]
    return None


def describe(root: str, name: str) -> dict[str, t.Any]:
    """What the release *name* consists of; what cannot be told is null."""
    path = os.path.join(root, "releases", name)
    text = read_text(os.path.join(path, "rank.json"))
    try:
        rank = dict(json.loads(text or "{}"))
    except ValueError:
        rank = {}

    def target(part: str) -> str | None:
        link = os.path.join(path, part)
        return os.readlink(link) if os.path.islink(link) else None

    return {
        "name": name,
        "path": path,
        "deployment": rank.get("deployment"),
        "rank_sha256": hashlib.sha256(text.encode()).hexdigest() if text else None,
        "served_name": served_name(rank.get("argv") or []),
        "model": target("model"),
        "engine": target("engine"),
    }


def pointed(root: str) -> dict[str, dict[str, t.Any] | None]:
    """The releases that the pointers name, null where there is no pointer."""
    found: dict[str, dict[str, t.Any] | None] = {}
    for pointer in POINTERS:
        link = os.path.join(root, pointer)
        found[pointer] = describe(root, os.path.basename(os.readlink(link))) if os.path.islink(link) else None
    return found


def _point(root: str, pointer: str, name: str) -> None:
    """Let *pointer* name the release, in one rename."""
    scratch = os.path.join(root, f"{pointer}.tandem-{os.getpid()}")
    os.symlink(os.path.join(root, "releases", name), scratch)
    os.replace(scratch, os.path.join(root, pointer))


def _exchange(first: str, second: str) -> bool:
    """Exchange two names in one step; whether the kernel and the file system can."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if rename(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS):
        return False
    raise OSError(number, os.strerror(number), first)


def switch(root: str, name: str) -> bool:
    """Make the release *name* the current one and the current one the previous one; whether anything changed.

    Where the file system can, both links change in one step. Else ``current`` is last: a switch that was ended half way
    has not happened. Raises ReleaseError, OSError.
    """
    now = pointed(root)
    current, previous = now["current"], now["previous"]
    if current and current["name"] == name:
        return False
    if not os.path.isfile(os.path.join(root, "releases", name, "rank.json")):
        raise ReleaseError(f"{root}/releases/{name}: found no rank.json, wanted a release; run the serve stage")
    swapped = False
    if current and previous and previous["name"] == name:
        swapped = _exchange(os.path.join(root, "current"), os.path.join(root, "previous"))
    if not swapped:
        if current:
            _point(root, "previous", current["name"])
        _point(root, "current", name)
    sync_directory(root)
    return True


# --- who uses what


def inodes(path: str) -> set[tuple[int, int]]:
    """Device and inode of every file below *path*."""
    found = set()
    for parent, _directories, names in os.walk(path):
        for name in names:
            try:
                status = os.stat(os.path.join(parent, name))
            except OSError:
                continue
            found.add((status.st_dev, status.st_ino))
    return found


def users(path: str, proc: str = "/proc") -> list[str]:
    """Processes that have something below *path* open, mapped, running or as working directory: ``1234 (python3)``."""
    mine = inodes(path)
    prefix = os.path.realpath(path)
    found = []
    for entry in sorted((name for name in os.listdir(proc) if name.isdigit()), key=int):
        if int(entry) != os.getpid() and _uses(os.path.join(proc, entry), prefix, mine):
            name = (read_text(os.path.join(proc, entry, "comm")) or "ended").strip()
            found.append(f"{entry} ({name})")
    return found


def _uses(process: str, prefix: str, mine: set[tuple[int, int]]) -> bool:
    def below(name: str) -> bool:
        return name == prefix or name.startswith(f"{prefix}/")

    try:
        with open(os.path.join(process, "maps"), encoding="utf-8", errors="surrogateescape") as handle:
            # 7f00-7f01 r--p 00000000 08:01 131 /var/lib/tandem/models/x/model.safetensors
            if any(below(line.split(None, 5)[5].strip()) for line in handle if "/" in line):
                return True
    except (OSError, IndexError):
        pass
    links = [os.path.join(process, name) for name in ("cwd", "exe")]
    descriptors = os.path.join(process, "fd")
    with contextlib.suppress(OSError):
        links += [os.path.join(descriptors, name) for name in os.listdir(descriptors)]
    for link in links:
        try:
            if below(os.readlink(link)):
                return True
            status = os.stat(link)
        except OSError:
            continue
        # In a container the path is another one, the file is the same.
        if (status.st_dev, status.st_ino) in mine:
            return True
    return False


def needed_by(root: str, state_file: str) -> dict[str, str]:
    """Models and engines, by path, that a pointer or the running rank names, and which."""
    found: dict[str, str] = {}
    running = None
    with contextlib.suppress(ValueError, AttributeError):
        running = json.loads(read_text(state_file) or "{}").get("rank_sha256")
    named = {f"{root}/{pointer} points at it": release for pointer, release in pointed(root).items() if release}
    releases = os.path.join(root, "releases")
    for name in sorted(os.listdir(releases)) if os.path.isdir(releases) else []:
        release = describe(root, name)
        if running and release["rank_sha256"] == running:
            named["the running rank was started from it"] = release
    for why, release in named.items():
        for part in ("model", "engine"):
            if release[part]:
                found.setdefault(release[part], why)
    return found


def surplus(ages: t.Mapping[str, float], keep: int, protected: t.Collection[str]) -> list[str]:
    """Names that may go: all but the *protected* and as many of the newest as make up *keep* with them.

    *ages*: time of publication by name.
    """
    others = sorted((name for name in ages if name not in protected), key=lambda name: (ages[name], name), reverse=True)
    room = max(keep - len([name for name in ages if name in protected]), 0)
    return sorted(others[room:])

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Manifests: the list of files with sizes and SHA-256 that defines a model."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import os
import re
import stat
import threading
import time
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils._files import replace
from ansible_collections.tandem.spark.plugins.module_utils._progress import Progress, Report, silent

FILE_NAME = "tandem-manifest.json"
FORMAT = 1
# What hub clients leave in a download directory: never part of a model (modelscope/modelscope#1365).
CLIENT_LEFTOVERS = (".cache", ".huggingface", ".msc", ".mdl", ".mv", ".lock", "._____temp")

BLOCK = 1 << 20
# How far behind the reading the page cache is emptied.
BEHIND = 32 << 20
# A tick of the kernel's clock is 10 ms at most.
TICK_NS = 20_000_000


class ManifestError(ValueError):
    """A manifest or a directory that cannot be used; the text says which file and why."""


class Difference(t.NamedTuple):
    """What a directory and a manifest disagree about."""

    missing: list[str]
    wrong: list[str]
    extra: list[str]

    def __bool__(self) -> bool:
        return bool(self.missing or self.wrong or self.extra)

    def text(self) -> str:
        """One line for a message: the first few names of each kind."""
        parts = []
        for word, names in (("missing", self.missing), ("wrong", self.wrong), ("not in the manifest", self.extra)):
            if names:
                parts.append(f"{word}: {', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}")
        return "; ".join(parts)


def safe_path(path: str) -> str:
    """Return *path* when it stays inside its directory, else raise."""
    parts = path.split("/") if isinstance(path, str) else []
    # An empty path and one that begins with / have an empty part.
    if not parts or "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ManifestError(f"path {path!r} would leave the model's directory or is not a plain relative path")
    return path


def digest(files: list[dict[str, t.Any]]) -> str:
    """One SHA-256 over the sorted ``sha256  path`` lines: what ``sha256sum`` would print for the whole model."""
    lines = sorted(f"{entry['sha256']}  {entry['path']}\n" for entry in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def make(model: dict[str, str], files: list[dict[str, t.Any]]) -> dict[str, t.Any]:
    """A manifest of *files* (``path``, ``size``, ``sha256``) for *model* (``id``, ``revision``, ``source``, …)."""
    ordered = sorted(files, key=lambda entry: entry["path"])
    return {"format": FORMAT, "model": model, "files": ordered, "digest": digest(ordered)}


def dump(manifest: dict[str, t.Any]) -> bytes:
    """The manifest as it is written to disk."""
    return json.dumps(manifest, indent=1, ensure_ascii=False).encode() + b"\n"


def load(text: str, where: str) -> dict[str, t.Any]:
    """Parse a manifest and check that it says what its own digest says. Raises ManifestError."""
    try:
        manifest = json.loads(text)
        files = manifest["files"]
        for entry in files:
            safe_path(entry["path"])
            if not re.fullmatch(r"[0-9a-f]{64}", entry["sha256"]) or not isinstance(entry["size"], int):
                raise ManifestError(f"{where}: {entry['path']} has no usable sha256 or size")
        if len({entry["path"] for entry in files}) != len(files):
            raise ManifestError(f"{where}: names a file twice")
        if not isinstance(manifest["model"], dict):
            raise ManifestError(f"{where}: model is no mapping")
        if manifest["format"] != FORMAT:
            raise ManifestError(f"{where}: found format {manifest['format']}, wanted {FORMAT}")
        if manifest["digest"] != digest(files):
            raise ManifestError(f"{where}: the digest does not belong to the list of files")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, ManifestError):
            raise
        raise ManifestError(f"{where}: not a manifest: {error!r}") from error
    if not files:
        raise ManifestError(f"{where}: no entries")
    return t.cast("dict[str, t.Any]", manifest)


def walk(directory: str) -> tuple[dict[str, os.stat_result], list[str]]:
    """Every file below *directory* by relative path (links followed), and the links that lead nowhere."""
    found: dict[str, os.stat_result] = {}
    dangling: list[str] = []
    for parent, directories, names in os.walk(directory):
        if parent == directory:
            directories[:] = [d for d in directories if d not in CLIENT_LEFTOVERS]
            names = [n for n in names if n != FILE_NAME and n not in CLIENT_LEFTOVERS]
        for name in names:
            path = os.path.join(parent, name)
            relative = os.path.relpath(path, directory)
            try:
                found[relative] = os.stat(path)
            except OSError:
                # Broken, or in a circle.
                dangling.append(f"{relative} -> {os.readlink(path) if os.path.islink(path) else 'cannot be read'}")
    return found, sorted(dangling)


class Hashed(t.NamedTuple):
    """One file that was read."""

    sha256: str
    key: list[int] | None  # its trust_key; None when it changed while it was read, or a moment before
    changed: bool  # while it was read: the digest is of no one state of it


def hash_file(path: str, moved: t.Callable[[int], None] | None = None) -> Hashed:
    """Read *path* from the disk, leaving nothing in the page cache: on unified memory its pages are the GPU's.

    *moved* is told the bytes read since it was last called. Raises OSError, also for what is no regular file.
    """
    digest = hashlib.sha256()
    buffer = bytearray(BLOCK)
    view = memoryview(buffer)
    began_ns = time.time_ns()
    # A pipe under a file's name must not keep the reader waiting.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb", buffering=0) as handle:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise OSError(f"{path}: found something that is no file, wanted a file")
        # What is checked is what the disk has, not what memory remembers of it; only clean pages can be forgotten.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
        _forget(descriptor, 0, 0)
        done = dropped = 0
        while True:
            count = handle.readinto(buffer)
            if not count:
                break
            digest.update(view[:count])
            done += count
            if done - dropped >= BEHIND:
                _forget(descriptor, dropped, done - dropped)
                if moved:
                    moved(done - dropped)
                dropped = done
        _forget(descriptor, 0, 0)
        if moved:
            moved(done - dropped)
        after = os.fstat(descriptor)
    changed = trust_key(before) != trust_key(after)
    # The kernel's clock ticks: a change just before the reading and one during it can carry the same time.
    settled = after.st_ctime_ns < began_ns - TICK_NS
    return Hashed(digest.hexdigest(), trust_key(after) if settled and not changed else None, changed)


def _forget(descriptor: int, offset: int, length: int) -> None:
    advise: t.Callable[..., None] | None = getattr(os, "posix_fadvise", None)
    if advise is not None:
        advise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)


def hash_all(
    directory: str, sizes: dict[str, int], report: Report = silent, workers: int | None = None
) -> dict[str, Hashed | OSError]:
    """Read every file of *sizes* (bytes by path) below *directory* on every core, the largest first.

    One file is read by one core: SHA-256 has no parallel form. A file that cannot be read stands for itself as OSError.
    """
    total = sum(sizes.values())
    done = 0
    lock = threading.Lock()

    def one(path: str) -> Hashed | OSError:
        def moved(count: int) -> None:
            nonlocal done
            with lock:
                done += count
                report(Progress("verify", done, total, path))

        try:
            return hash_file(os.path.join(directory, path), moved)
        except OSError as error:
            return error

    order = sorted(sizes, key=lambda path: (-sizes[path], path))
    with concurrent.futures.ThreadPoolExecutor(max_workers=workers or available_cores()) as pool:
        return dict(zip(order, pool.map(one, order)))


def available_cores() -> int:
    """The cores that this process may use, which a unit or a container can have restricted."""
    affinity: t.Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def hash_files(directory: str, paths: t.Sequence[str]) -> dict[str, str]:
    """SHA-256 of each of *paths* below *directory*, on every core, without filling the page cache. Raises OSError."""
    sizes = {path: os.stat(os.path.join(directory, path)).st_size for path in paths}
    hashed = hash_all(directory, sizes)
    for path in paths:
        found = hashed[path]
        if isinstance(found, OSError):
            raise found
    return {path: t.cast("Hashed", hashed[path]).sha256 for path in paths}


def trust_key(status: os.stat_result) -> list[int]:
    """What must be unchanged for a file that was hashed before to be trusted without reading it again."""
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


class Plan(t.NamedTuple):
    """What is known of a directory without reading a file of it."""

    missing: list[str]  # a dead link with where it leads
    wrong: dict[str, tuple[str, str]]  # (found, wanted) by path
    extra: list[str]
    to_read: dict[str, int]  # bytes by path
    trusted: list[str]  # unchanged since they were read
    keys: dict[str, list[int]]


def plan(directory: str, manifest: dict[str, t.Any], trusted: dict[str, list[int]] | None = None) -> Plan:
    """Compare names and sizes of *directory* with *manifest*, and say what has to be read to know more.

    With *trusted* (path to trust_key) a file whose key is unchanged is not to be read again. An entry whose ``size`` is
    None, as checksum files have it, is of any size.
    """
    found, dangling = walk(directory)
    listed = {entry["path"]: entry["size"] for entry in manifest["files"]}
    dead = {text.split(" -> ", 1)[0] for text in dangling}
    missing = sorted([path for path in listed if path not in found and path not in dead] + dangling)
    wrong: dict[str, tuple[str, str]] = {}
    to_read: dict[str, int] = {}
    kept: list[str] = []
    for path, size in listed.items():
        status = found.get(path)
        if status is None:
            continue
        if not stat.S_ISREG(status.st_mode):
            wrong[path] = ("something that is no file", "a file")
        elif size is not None and status.st_size != size:
            wrong[path] = (f"{status.st_size} bytes", f"{size}")
        elif trusted is not None and trusted.get(path) == trust_key(status):
            kept.append(path)
        else:
            to_read[path] = status.st_size
    extra = sorted(path for path in found if path not in listed)
    return Plan(
        missing, wrong, extra, to_read, kept, {path: trust_key(found[path]) for path in listed if path in found}
    )


def compare(
    directory: str,
    manifest: dict[str, t.Any],
    trusted: dict[str, list[int]] | None = None,
    noted: dict[str, list[int]] | None = None,
) -> tuple[Difference, int]:
    """Compare *directory* with *manifest*; return the difference and the number of files read. Raises OSError.

    With *trusted* (path to trust_key) a file whose key is unchanged is not read again. *noted* is filled with the keys
    that the files which agree had while they were read; a file that was written a moment before is left out.
    """
    planned = plan(directory, manifest, trusted)
    listed = {entry["path"]: entry["sha256"] for entry in manifest["files"]}
    wrong = dict(planned.wrong)
    for path, found in hash_all(directory, planned.to_read).items():
        if isinstance(found, OSError):
            raise found
        if found.changed:
            wrong[path] = ("a file that changed while it was read", "one that nothing writes to")
        elif found.sha256 != listed[path]:
            wrong[path] = (f"sha256 {found.sha256}", listed[path])
        elif noted is not None and found.key:
            noted[path] = found.key
    if noted is not None:
        noted.update({path: planned.keys[path] for path in planned.trusted})
    texts = [f"{path} ({found}, wanted {wanted})" for path, (found, wanted) in sorted(wrong.items())]
    return Difference(planned.missing, texts, planned.extra), len(planned.to_read)


def trust_file(directory: str) -> str:
    """Where it is noted which files of *directory* were read in full and are unchanged since. Beside it, not in it."""
    parent, name = os.path.split(os.path.normpath(directory))
    return os.path.join(parent, f".{name}.verified.json")


def read_trust(directory: str, manifest: dict[str, t.Any]) -> dict[str, list[int]]:
    """The note of :func:`trust_file`, empty when it is of another manifest or cannot be read."""
    try:
        with open(trust_file(directory), encoding="utf-8") as handle:
            statement = json.load(handle)
        return dict(statement["files"]) if statement["digest"] == manifest["digest"] else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def write_trust(directory: str, digest: str, keys: dict[str, list[int]]) -> None:
    """Note what was read in full, by the keys that the files had while they were read."""
    statement = {"digest": digest, "files": keys}
    replace(trust_file(directory), json.dumps(statement).encode() + b"\n", 0o644)


def forget_trust(directory: str) -> None:
    """Nothing is to be trusted any more: a file is wrong although nothing about it looks changed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(trust_file(directory))

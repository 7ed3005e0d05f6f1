# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Manifests: the list of files with sizes and SHA-256 that defines a model."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import re
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils._files import sha256

FILE_NAME = "tandem-manifest.json"
FORMAT = 1
# What hub clients leave in a download directory: never part of a model (modelscope/modelscope#1365).
CLIENT_LEFTOVERS = (".cache", ".huggingface", ".msc", ".mdl", ".mv", ".lock", "._____temp")


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


def hash_files(directory: str, paths: t.Sequence[str]) -> dict[str, str]:
    """SHA-256 of each of *paths* below *directory*, on every core, without filling the page cache."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        digests = pool.map(lambda path: sha256(os.path.join(directory, path), drop_cache=True), paths)
        return dict(zip(paths, digests))


def trust_key(status: os.stat_result) -> list[int]:
    """What must be unchanged for a file that was hashed before to be trusted without reading it again."""
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def compare(
    directory: str, manifest: dict[str, t.Any], trusted: dict[str, list[int]] | None = None
) -> tuple[Difference, int]:
    """Compare *directory* with *manifest*; return the difference and the number of files read.

    With *trusted* (path to trust_key) a file whose key is unchanged is not read again.
    """
    found, dangling = walk(directory)
    listed = {entry["path"]: entry for entry in manifest["files"]}
    missing = sorted(set(listed) - set(found))
    extra = sorted(set(found) - set(listed))
    wrong = {
        path: f"{found[path].st_size} bytes, wanted {listed[path]['size']}"
        for path in listed
        if path in found and found[path].st_size != listed[path]["size"]
    }
    to_read = [
        path
        for path in listed
        if path in found and path not in wrong and (trusted is None or trusted.get(path) != trust_key(found[path]))
    ]
    for path, value in hash_files(directory, to_read).items():
        if value != listed[path]["sha256"]:
            wrong[path] = f"sha256 {value}, wanted {listed[path]['sha256']}"
    dead = {text.split(" -> ", 1)[0] for text in dangling}
    absent = sorted([path for path in missing if path not in dead] + dangling)
    return Difference(absent, [f"{path} ({wrong[path]})" for path in sorted(wrong)], extra), len(to_read)

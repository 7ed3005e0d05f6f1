# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Fetch one revision of a model into a staging directory and prove every byte of it: a work, as _progress.py says."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import shutil
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _hub, _manifest, _sources
from ansible_collections.tandem.spark.plugins.module_utils._files import replace
from ansible_collections.tandem.spark.plugins.module_utils._lock import alone
from ansible_collections.tandem.spark.plugins.module_utils._progress import Progress, Report, silent
from ansible_collections.tandem.spark.plugins.module_utils._sources._request import PINNED, Request, SourceError

COMMIT = re.compile(r"[0-9a-f]{40}")
PROXIES = ("http_proxy", "https_proxy", "no_proxy")
# How long another download into the same directory is waited for: it may be about to end, no more.
BUSY_S = 10.0


class FetchError(Exception):
    """A model that cannot be had; the text says what was found, what was wanted and what to do."""


@contextlib.contextmanager
def proxies(specification: t.Mapping[str, t.Any]) -> t.Iterator[None]:
    """The proxies in the environment, in both spellings, for urllib and for the hubs' clients alike."""
    wanted = {key: str(specification[key]) for key in PROXIES if specification.get(key)}
    names = {spelling: value for key, value in wanted.items() for spelling in (key, key.upper())}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def request_of(specification: t.Mapping[str, t.Any]) -> Request:
    """What the sources are asked, from the options of tandem.spark.model_fetch."""
    source = specification["source"]
    return Request(
        source=source,
        id=specification["id"],
        revision=specification["revision"],
        endpoint=(specification.get("endpoint") or _hub.ENDPOINTS.get(source, "")).rstrip("/"),
        path=specification["path"],
        token=specification.get("token") or "",
        client=specification.get("client") or "",
        checksums=specification.get("checksums") or "",
        workers=max(int(specification.get("workers") or 8), 1),
    )


def resolve(request: Request, allowed: bool) -> str:
    """The pin that the request's revision stands for: itself, or what the source says now if that is *allowed*."""
    commits = request.source in _hub.ENDPOINTS
    if (COMMIT if commits else PINNED).fullmatch(request.revision):
        return request.revision
    kind = "a full commit id (40 hex digits)"
    if not commits:
        kind = "a full commit id (40 hex digits) or the manifest's digest (64)"
    refusal = f"revision of {request.id}: found {request.revision!r}, wanted {kind}: a name can move"
    source = _sources.SOURCES[request.source]
    try:
        # A listing of a hub costs a question that tells nothing here.
        now = source.revision(request, () if commits else source.listing(request))
    except SourceError as error:
        if not allowed:
            raise FetchError(f"{refusal}. What it stands for now is not known: {error}") from error
        raise FetchError(f"revision of {request.id}: {request.revision!r} cannot be resolved: {error}") from error
    if not now or not PINNED.fullmatch(now):
        raise FetchError(f"{refusal}. {request.endpoint} does not say what it stands for now")
    if not allowed:
        raise FetchError(f"{refusal}. It stands for {now} now; set tandem_model_revision: {now}")
    return str(now)


def needed_bytes(files: t.Sequence[_hub.HubFile]) -> int | None:
    """Size of all files; ``None`` when a source does not tell all sizes."""
    sizes = [file.size for file in files]
    return None if None in sizes else sum(t.cast("list[int]", sizes))


def check(path: str, files: t.Sequence[_hub.HubFile], report: Report = silent) -> tuple[dict[str, str], dict[str, str]]:
    """(SHA-256 by path, what is wrong by path) of the downloaded files."""
    there = [file for file in files if os.path.isfile(os.path.join(path, file.path))]
    total = sum(os.path.getsize(os.path.join(path, file.path)) for file in there)
    report(Progress("verify", 0, total))
    digests: dict[str, str] = {}
    done = 0
    for group in _groups(path, there):
        digests.update(_manifest.hash_files(path, group))
        done += sum(os.path.getsize(os.path.join(path, name)) for name in group)
        report(Progress("verify", done, total))
    wrong = {file.path: f"{file.path}: absent after the download" for file in files if file not in there}
    for file in there:
        full = os.path.join(path, file.path)
        text = _hub.mismatch(file, os.path.getsize(full), digests[file.path], functools.partial(_hub.git_blob, full))
        if text:
            wrong[file.path] = text
    return digests, wrong


def _groups(path: str, files: t.Sequence[_hub.HubFile]) -> t.Iterator[list[str]]:
    """A few files at a time, so that there is something to report and every core has one."""
    step = max(os.cpu_count() or 1, 1)
    names = sorted((file.path for file in files), key=lambda name: os.path.getsize(os.path.join(path, name)))
    for first in range(0, len(names), step):
        yield names[first : first + step]


def discard(path: str, names: t.Iterable[str]) -> None:
    """Remove these files, whatever stands under their names."""
    for name in names:
        full = os.path.join(path, name)
        if os.path.isdir(full) and not os.path.islink(full):
            shutil.rmtree(full)
        elif os.path.lexists(full):
            os.unlink(full)


def remove_foreign(path: str, files: t.Sequence[_hub.HubFile]) -> None:
    """Leave exactly the files that the source lists: no cache, no partial, no lock of a client."""
    listed = {file.path for file in files}
    for parent, directories, names in os.walk(path, topdown=False):
        for name in names:
            full = os.path.join(parent, name)
            if os.path.relpath(full, path) not in listed:
                os.unlink(full)
        for name in directories:
            full = os.path.join(parent, name)
            if os.path.islink(full):
                os.unlink(full)
            elif not os.listdir(full):
                os.rmdir(full)


def room(request: Request, needed: int | None, have: int) -> None:
    """Refuse what cannot fit, before it is begun."""
    free = shutil.disk_usage(request.path).free
    if needed is not None and needed - have > free:
        raise FetchError(
            f"{request.path}: found {free} bytes free, wanted {needed - have} for {request.id}; free some space or "
            "set tandem_root to a larger disk"
        )


def work(specification: t.Mapping[str, t.Any], report: Report = silent) -> dict[str, t.Any]:
    """Fetch, compare, fetch once again what is wrong, write the manifest. The options are those of model_fetch.

    Raises FetchError, SourceError, BusyError.
    """
    with proxies(specification):
        request = request_of(specification)
        if request.source not in _sources.SOURCES:
            raise FetchError(f"source: found {request.source!r}, wanted one of {', '.join(_sources.SOURCES)}")
        pin = resolve(request, bool(specification.get("resolve")))
        asked, request = request.revision, request._replace(revision=pin)
        os.makedirs(request.path, exist_ok=True)
        try:
            with alone(request.path, BUSY_S):
                return _fetch(request, asked, str(specification.get("licence") or ""), report)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise FetchError(
                    f"{request.path}: the disk is full; nothing was published and what came is kept. Free some space "
                    "or set tandem_root to a larger disk, and run this stage again: it goes on where it stopped"
                ) from error
            raise FetchError(f"{request.path}: {error}") from error


def _fetch(request: Request, asked: str, licence: str, report: Report) -> dict[str, t.Any]:
    source = _sources.SOURCES[request.source]
    report(Progress("list", 0, None))
    files = source.listing(request)
    if len(request.revision) == 64 and request.source in ("http", "directory"):
        found = source.revision(request, files)
        if found != request.revision:
            raise FetchError(
                f"{request.id} at {request.endpoint}: found the digest {found}, wanted {request.revision}; it is "
                "another model, or it was changed. If it is what you want, set tandem_model_revision to what was found"
            )
    needed = needed_bytes(files)
    room(request, needed, source.begun(request))
    source.fetch(request, files, report)
    digests, wrong = check(request.path, files, report)
    again = sorted(wrong)
    if wrong:
        discard(request.path, wrong)
        # hf remembers what it fetched by length only: forget it, or the bad file would be called complete again.
        shutil.rmtree(os.path.join(request.path, ".cache"), ignore_errors=True)
        source.fetch(request, files, report)
        digests, wrong = check(request.path, files, report)
        if wrong:
            discard(request.path, wrong)
            raise FetchError(
                f"{request.id} from {request.endpoint}: {len(wrong)} file(s) wrong after two downloads: "
                + "; ".join(sorted(wrong.values())[:5])
            )
    remove_foreign(request.path, files)
    model = {"id": request.id, "revision": request.revision, "source": request.source, "licence": licence}
    if asked != request.revision:
        model["asked"] = asked
    sizes = {file.path: os.path.getsize(os.path.join(request.path, file.path)) for file in files}
    manifest = _manifest.make(
        model, [{"path": file.path, "size": sizes[file.path], "sha256": digests[file.path]} for file in files]
    )
    replace(os.path.join(request.path, _manifest.FILE_NAME), _manifest.dump(manifest), 0o644)
    return {
        "digest": manifest["digest"],
        "revision": request.revision,
        "bytes": sum(sizes.values()),
        "files": len(files),
        "fetched_again": again,
    }

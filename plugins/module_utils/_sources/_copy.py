# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Copying files of the node itself into the staging directory; a copy that was ended goes on where it stopped."""

from __future__ import annotations

import contextlib
import os
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _manifest
from ansible_collections.tandem.spark.plugins.module_utils._hub import HubFile
from ansible_collections.tandem.spark.plugins.module_utils._progress import Progress, Report
from ansible_collections.tandem.spark.plugins.module_utils._sources._request import (
    PINNED,
    Request,
    SourceError,
    part_of,
    settle,
)

BLOCK = 8 << 20


class Piece(t.NamedTuple):
    """A run of bytes that a file, or a part of it, is made of."""

    path: str
    offset: int
    size: int


def local_path(request: Request) -> str:
    """The source's path on this node. Raises SourceError when it is none."""
    place = request.endpoint[len("file://") :] if request.endpoint.startswith("file://") else request.endpoint
    if not place.startswith("/"):
        raise SourceError(
            f"model_endpoint: found {request.endpoint or 'nothing'!r}, wanted the absolute path of the "
            f"{request.source} on the node that fetches"
        )
    if not os.path.exists(place):
        raise SourceError(f"{place}: found nothing on this node, wanted the {request.source}; is it mounted?")
    return place


def read_manifest(text: str, where: str, request: Request) -> dict[str, t.Any]:
    """A manifest that came with the model, of this model and this revision. Raises SourceError."""
    try:
        manifest = _manifest.load(text, where)
    except _manifest.ManifestError as error:
        raise SourceError(str(error)) from error
    model = manifest["model"]
    if model.get("id") not in (None, request.id):
        raise SourceError(f"{where}: found the model {model['id']}, wanted {request.id}")
    pinned = PINNED.fullmatch(request.revision)
    if pinned and request.revision not in (model.get("revision"), manifest["digest"]):
        raise SourceError(
            f"{where}: found revision {model.get('revision')} (digest {manifest['digest']}), wanted {request.revision}"
            "; give the right path in model_endpoint, or the right revision in tandem_model_revision"
        )
    return manifest


def of_manifest(manifest: dict[str, t.Any]) -> list[HubFile]:
    """The files that a manifest names."""
    return [HubFile(entry["path"], entry["size"], entry["sha256"], None) for entry in manifest["files"]]


def begun(request: Request) -> int:
    """Bytes that an earlier run left and that are not copied again."""
    whole = sum(status.st_size for status in _manifest.walk(request.path)[0].values())
    parts = part_of(request, "")
    return whole + sum(
        os.path.getsize(os.path.join(parent, name)) for parent, _directories, names in os.walk(parts) for name in names
    )


def copy(
    request: Request, files: t.Sequence[HubFile], pieces: t.Callable[[HubFile], list[Piece]], report: Report
) -> None:
    """Copy every file that is not there. *pieces* says where its bytes are."""
    total = sum(file.size or 0 for file in files)
    done = sum(status.st_size for status in _manifest.walk(request.path)[0].values())
    for file in files:
        if os.path.isfile(os.path.join(request.path, file.path)):
            continue
        part = part_of(request, file.path)
        os.makedirs(os.path.dirname(part), exist_ok=True)
        with open(part, "ab", buffering=0) as target:
            have = target.tell()
            if have > (file.size or 0):
                target.truncate(0)
                have = 0
            done += have
            skip = have
            for piece in pieces(file):
                if skip >= piece.size:
                    skip -= piece.size
                    continue
                for block in _blocks(piece, skip):
                    target.write(block)
                    done += len(block)
                    report(Progress("copy", done, total, file.path))
                skip = 0
        settle(request, file.path)


def _blocks(piece: Piece, skip: int) -> t.Iterator[bytes]:
    try:
        with open(piece.path, "rb", buffering=0) as source:
            source.seek(piece.offset + skip)
            left = piece.size - skip
            while left > 0:
                block = source.read(min(BLOCK, left))
                if not block:
                    raise SourceError(f"{piece.path}: found its end {left} bytes early; does something write to it?")
                left -= len(block)
                yield block
            advise: t.Callable[..., None] | None = getattr(os, "posix_fadvise", None)
            if advise is not None:
                with contextlib.suppress(OSError):
                    advise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise SourceError(f"{piece.path}: cannot be read: {error.strerror}; is it still mounted?") from error

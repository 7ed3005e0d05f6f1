# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""A bundle that was carried here: a directory, or a plain tar, with ``tandem-manifest.json`` and the model's files.

A file that is too large for a carrier stands in parts beside its place: ``NAME.part-0001``, ``NAME.part-0002`` and so
on, joined in this order. The manifest names the whole file only. A tar is read in place and never unpacked: what the
manifest does not name is not looked at. A compressed tar is refused: it would have to be unpacked.
"""

from __future__ import annotations

import os
import re
import tarfile
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _manifest
from ansible_collections.tandem.spark.plugins.module_utils._hub import HubFile
from ansible_collections.tandem.spark.plugins.module_utils._progress import Report
from ansible_collections.tandem.spark.plugins.module_utils._sources import _copy
from ansible_collections.tandem.spark.plugins.module_utils._sources._copy import Piece
from ansible_collections.tandem.spark.plugins.module_utils._sources._request import Request, SourceError

PART = re.compile(r"(?P<name>.+)\.part-(?P<number>\d{4})")
MANIFEST_LIMIT = 64 << 20


def contents(place: str) -> dict[str, Piece]:
    """Where each file of the bundle is, by its path in it. Raises SourceError."""
    if os.path.isdir(place):
        found: dict[str, Piece] = {}
        for parent, _directories, names in os.walk(place):
            for name in names:
                path = os.path.join(parent, name)
                if os.path.isfile(path):
                    found[os.path.relpath(path, place)] = Piece(path, 0, os.path.getsize(path))
        return found
    try:
        with tarfile.open(place, "r:") as archive:
            members = [member for member in archive if member.isreg() and not member.issparse()]
    except (tarfile.TarError, OSError) as error:
        raise SourceError(f"{place}: found no plain tar and no directory, wanted a bundle: {error}") from error
    return {os.path.normpath(member.name): Piece(place, member.offset_data, member.size) for member in members}


def assemble(name: str, there: t.Mapping[str, Piece]) -> list[Piece]:
    """The pieces of the file *name*: itself, or its parts from 1 on without a gap. Empty when it is not there."""
    if name in there:
        return [there[name]]
    pieces: list[Piece] = []
    while f"{name}.part-{len(pieces) + 1:04d}" in there:
        pieces.append(there[f"{name}.part-{len(pieces) + 1:04d}"])
    return pieces


def _manifest_of(request: Request, there: t.Mapping[str, Piece], place: str) -> dict[str, t.Any]:
    piece = there.get(_manifest.FILE_NAME)
    if piece is None or piece.size > MANIFEST_LIMIT:
        raise SourceError(f"{place}: found no {_manifest.FILE_NAME} at its top, wanted one; is it a bundle?")
    with open(piece.path, "rb") as handle:
        handle.seek(piece.offset)
        text = handle.read(piece.size).decode("utf-8", "replace")
    return _copy.read_manifest(text, os.path.join(place, _manifest.FILE_NAME), request)


def listing(request: Request) -> list[HubFile]:
    """What the bundle's manifest names, all of which must be there in full length."""
    place = _copy.local_path(request)
    there = contents(place)
    files = _copy.of_manifest(_manifest_of(request, there, place))
    wrong = []
    for file in files:
        size = sum(piece.size for piece in assemble(file.path, there))
        if size != file.size:
            wrong.append(f"{file.path} ({size} of {file.size} bytes)")
    if wrong:
        raise SourceError(
            f"{place}: found {len(wrong)} file(s) that are not whole, wanted all that its manifest names: "
            f"{', '.join(wrong[:5])}. Copy the bundle again"
        )
    return files


def revision(request: Request, _files: t.Sequence[HubFile] = ()) -> str | None:
    """The revision in the bundle's manifest, else its digest."""
    place = _copy.local_path(request)
    manifest = _manifest_of(request, contents(place), place)
    return t.cast("str", manifest["model"].get("revision") or manifest["digest"])


def begun(request: Request) -> int:
    """Bytes that an earlier run left and that are not copied again."""
    return _copy.begun(request)


def fetch(request: Request, files: t.Sequence[HubFile], report: Report) -> None:
    """Copy what is not there yet, parts joined."""
    there = contents(_copy.local_path(request))
    _copy.copy(request, files, lambda file: assemble(file.path, there), report)

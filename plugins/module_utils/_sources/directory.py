# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""A directory of the node, local or mounted. Links are resolved: the layouts of hub caches are made of them.

Its files are those of ``tandem-manifest.json`` when there is one, else those of a checksum file, else all that are
there; their digests are computed then, which proves the copy but not the source.
"""

from __future__ import annotations

import os
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _checksums, _manifest, _structure
from ansible_collections.tandem.spark.plugins.module_utils._files import read_text
from ansible_collections.tandem.spark.plugins.module_utils._hub import HubFile
from ansible_collections.tandem.spark.plugins.module_utils._progress import Report
from ansible_collections.tandem.spark.plugins.module_utils._sources import _copy
from ansible_collections.tandem.spark.plugins.module_utils._sources._request import Request, SourceError

CHECKSUMS = ("SHA256SUMS", "SHA256SUMS.txt", "sha256sums.txt", "sha256sum.txt", "checksums.txt")


def files_in(place: str) -> dict[str, int]:
    """Sizes of all files by relative path, through links to files and to directories. Raises SourceError."""
    found: dict[str, int] = {}
    dead: list[str] = []
    seen: set[str] = set()
    for parent, directories, names in os.walk(place, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:
            directories[:] = []
            continue
        seen.add(real)
        if parent == place:
            directories[:] = [name for name in directories if name not in _manifest.CLIENT_LEFTOVERS]
            names = [name for name in names if name not in _manifest.CLIENT_LEFTOVERS]
        for name in names:
            path = os.path.join(parent, name)
            relative = os.path.relpath(path, place)
            try:
                found[relative] = os.stat(path).st_size
            except OSError:
                dead.append(f"{relative} -> {os.readlink(path) if os.path.islink(path) else 'cannot be read'}")
    if dead:
        raise SourceError(
            f"{place}: found {len(dead)} link(s) that lead nowhere, wanted the files: {'; '.join(sorted(dead)[:5])}. "
            "Give the directory with what they point to"
        )
    return found


def listing(request: Request) -> list[HubFile]:
    """The files of the directory, as its manifest or checksum file tells them, or as they are."""
    place = _copy.local_path(request)
    if not os.path.isdir(place):
        raise SourceError(f"{place}: found a file, wanted a directory; for a tar of a bundle set model.source: bundle")
    there = files_in(place)
    manifest = read_text(os.path.join(place, _manifest.FILE_NAME))
    if manifest is not None:
        return _copy.of_manifest(_copy.read_manifest(manifest, os.path.join(place, _manifest.FILE_NAME), request))
    names = [request.checksums] if request.checksums else [name for name in CHECKSUMS if name in there]
    if names:
        return _listed(place, names[0], there)
    if not there:
        raise SourceError(f"{place}: found no file, wanted the model's; is it mounted?")
    digests = _manifest.hash_files(place, sorted(there))
    return [HubFile(path, there[path], digests[path], None) for path in sorted(there)]


def _listed(place: str, name: str, there: dict[str, int]) -> list[HubFile]:
    path = os.path.join(place, name)
    try:
        with open(path, "rb") as handle:
            entries = _checksums.parse(handle.read(), path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    except _manifest.ManifestError as error:
        raise SourceError(str(error)) from error
    absent = sorted(set(entries) - set(there))
    extra = sorted(each for each in set(there) - set(entries) if each.endswith(_structure.WEIGHTS))
    findings = []
    if absent:
        findings.append(f"named by it, but absent: {', '.join(absent[:5])}")
    if extra:
        findings.append(f"weights that it does not name: {', '.join(extra[:5])}")
    if findings:
        raise SourceError(f"{path}: {'; '.join(findings)}. Wanted a checksum file of exactly this model")
    return [HubFile(each, there[each], entries[each], None) for each in sorted(entries)]


def revision(_request: Request, files: t.Sequence[HubFile] = ()) -> str | None:
    """A directory has no commits: what names its content is the manifest's digest."""
    return _manifest.digest([{"path": file.path, "sha256": file.sha256} for file in files])


def begun(request: Request) -> int:
    """Bytes that an earlier run left and that are not copied again."""
    return _copy.begun(request)


def fetch(request: Request, files: t.Sequence[HubFile], report: Report) -> None:
    """Copy what is not there yet."""
    place = _copy.local_path(request)

    def pieces(file: HubFile) -> list[_copy.Piece]:
        path = os.path.join(place, file.path)
        try:
            return [_copy.Piece(path, 0, os.path.getsize(path))]
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror}") from error

    _copy.copy(request, files, pieces, report)

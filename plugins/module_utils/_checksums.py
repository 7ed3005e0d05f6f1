# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Checksum files of other tools, read into paths and SHA-256: all forms that ``sha256sum``, BSD and openssl write."""

from __future__ import annotations

import codecs
import re
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils._manifest import ManifestError, safe_path

DIGEST = re.compile(r"[0-9A-Fa-f]{64}")
# `H  name`, `H *name`, `H name`: what follows a digest of any length, so that a cut one is named as such.
GNU = re.compile(r"(?P<digest>[0-9A-Fa-f]{8,})(?: [ *]|[ \t]+(?=\S))(?P<name>.+)", re.S)
# `SHA256 (name) = H` (BSD), `SHA256(name)= H` and `SHA2-256(name)= H` (openssl).
BSD = re.compile(r"(?P<kind>[A-Z0-9/-]+) ?\((?P<name>.+)\) ?= ?(?P<digest>[0-9A-Fa-f]+)")
ESCAPES = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}


def parse(raw: bytes, where: str, expected: t.Sequence[str] = ()) -> dict[str, str]:
    """``{path: SHA-256 in lower case}`` of a checksum file's content.

    *expected*: the files that it may be about. A digest without a name is taken only when there is exactly one.
    Raises ManifestError naming *where*, the line, what was found and what is wanted.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(re.split(r"\r\n|\r|\n", _decode(raw, where)), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            path, digest = _entry(line, expected)
        except ManifestError as error:
            raise ManifestError(f"{where}: line {number}: {error}") from error
        if found.setdefault(path, digest) != digest:
            raise ManifestError(f"{where}: line {number}: {path} stands twice with different digests")
    if not found:
        raise ManifestError(f"{where}: no entries")
    return found


def _decode(raw: bytes, where: str) -> str:
    # PowerShell writes UTF-16 with a mark, other Windows tools UTF-8 with one.
    encoding = "utf-16" if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise ManifestError(f"{where}: found bytes that are no {encoding}, wanted a text of checksums") from error


def _entry(line: str, expected: t.Sequence[str]) -> tuple[str, str]:
    bare = line.strip()
    if DIGEST.fullmatch(bare):
        if len(expected) != 1:
            raise ManifestError(
                f"found a digest without a file name for {len(expected)} files, wanted `digest  name`, or one file"
            )
        return safe_path(expected[0]), bare.lower()
    # A backslash in front says that the name is escaped (coreutils).
    escaped = line.startswith("\\")
    match = BSD.fullmatch(bare.lstrip("\\")) or GNU.fullmatch(line.lstrip("\\"))
    if match is None:
        raise ManifestError(f"found {_short(line)!r}, wanted `digest  name` or `SHA256 (name) = digest`")
    kind = match.groupdict().get("kind")
    if kind not in (None, "SHA256", "SHA2-256"):
        raise ManifestError(f"found a checksum of kind {kind}, wanted SHA256")
    if not DIGEST.fullmatch(match["digest"]):
        raise ManifestError(f"found {len(match['digest'])} hex digits, wanted 64 (SHA-256)")
    name = match["name"]
    if escaped:
        name = re.sub(r"\\[\\nr]", lambda pair: ESCAPES[pair[0]], name)
    if name.startswith("/"):
        raise ManifestError(f"found the absolute path {name}, wanted one relative to the model's directory")
    while name.startswith("./"):
        name = name[2:]
    return safe_path(name), match["digest"].lower()


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."

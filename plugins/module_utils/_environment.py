# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What a Python environment consists of, by the digests that its installer recorded.

Every installed distribution has a RECORD with the SHA-256 of each of its files. Two environments with the same
interpreter and the same records hold the same bytes, which version strings alone do not say.
"""

from __future__ import annotations

import base64
import concurrent.futures
import csv
import hashlib
import io
import os
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils._files import sha256

# Written by the installer about the installation: different on two nodes although the distribution is the same.
INSTALLER_FILES = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")


class RecordError(ValueError):
    """A RECORD that cannot be read; the text says which and why."""


class Row(t.NamedTuple):
    """One file of a distribution: path relative to site-packages, SHA-256 in hex, size in bytes."""

    path: str
    sha256: str
    size: int


def parse_record(text: str) -> list[Row]:
    """The hashed rows of a RECORD, without what the installer writes about itself and without bytecode.

    Raises RecordError.
    """
    try:
        return _rows(text)
    except (ValueError, csv.Error) as error:
        raise RecordError(str(error)) from error


def _rows(text: str) -> list[Row]:
    rows = []
    for entry in csv.reader(io.StringIO(text)):
        if len(entry) != 3 or not entry[1].startswith("sha256="):
            continue
        path, digest, size = entry
        parent, name = os.path.split(path)
        if parent.endswith(".dist-info") and name in INSTALLER_FILES:
            continue
        if path.endswith(".pyc"):
            continue
        raw = base64.urlsafe_b64decode(digest[len("sha256=") :] + "==")
        rows.append(Row(path, raw.hex(), int(size or 0)))
    return sorted(rows)


def distribution_name(dist_info: str) -> str:
    """``torch-2.14.1.dist-info`` as ``torch==2.14.1``."""
    name, _separator, version = dist_info[: -len(".dist-info")].rpartition("-")
    return f"{name.lower().replace('_', '-')}=={version}"


def digest(python: str, records: dict[str, list[Row]]) -> str:
    """One SHA-256 over the interpreter's version and every file of every distribution."""
    total = hashlib.sha256(f"{python}\n".encode())
    for name in sorted(records):
        total.update(f"{name}\n".encode())
        for row in records[name]:
            total.update(f"{row.sha256} {row.size} {row.path}\n".encode())
    return total.hexdigest()


def read_records(site: str) -> dict[str, list[Row]]:
    """The records of every distribution under *site* (a site-packages directory), by ``name==version``.

    Raises RecordError.
    """
    records = {}
    for entry in sorted(os.listdir(site)):
        record = os.path.join(site, entry, "RECORD")
        if entry.endswith(".dist-info") and os.path.isfile(record):
            try:
                with open(record, encoding="utf-8") as handle:
                    records[distribution_name(entry)] = parse_record(handle.read())
            except ValueError as error:
                raise RecordError(f"{record} cannot be read: {error}") from error
    return records


def wrong_files(site: str, records: dict[str, list[Row]], full: bool, made_ns: int | None = None) -> list[str]:
    """Files that are missing or differ: by size, and with *full* by content.

    *made_ns*: when the environment was made. What its file system says was changed later is read in full anyway: a
    change time, unlike the time of modification, cannot be put back.
    """
    rows = [row for rows in records.values() for row in rows]

    def differs(row: Row) -> bool:
        path = os.path.join(site, row.path)
        try:
            status = os.stat(path)
            if status.st_size != row.size:
                return True
            suspect = full or (made_ns is not None and status.st_ctime_ns > made_ns)
            return suspect and sha256(path) != row.sha256
        except OSError:
            return True

    if not full:
        return [row.path for row in rows if differs(row)]
    # hashlib lets go of the interpreter lock, so threads use every core.
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return [row.path for row, bad in zip(rows, pool.map(differs, rows)) if bad]

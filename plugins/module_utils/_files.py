# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Small file helpers that every module needs in the same form: read if there, replace in one rename, digest."""

from __future__ import annotations

import hashlib
import os
import typing as t

BLOCK = 1 << 20


def read_text(path: str) -> str | None:
    """Return the text of *path*, or ``None`` when there is no such file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except FileNotFoundError:
        return None


def replace(path: str, content: bytes, mode: int) -> None:
    """Write *content* to *path* in one rename. The scratch file has the final mode before it has content."""
    scratch = f"{path}.tandem-{os.getpid()}"
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            os.fchmod(handle.fileno(), mode)
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise


def sync_directory(path: str) -> None:
    """Make a rename inside *path* durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: str, drop_cache: bool = False) -> str:
    """SHA-256 of a file's content in hex.

    *drop_cache* tells the kernel to forget the pages once read: on unified memory they are taken from the GPU.
    """
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as handle:
        while True:
            block = handle.read(BLOCK)
            if not block:
                break
            digest.update(block)
        if drop_cache:
            advise: t.Callable[..., None] | None = getattr(os, "posix_fadvise", None)
            if advise is not None:
                advise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""A directory offered to named peers over the fabric: an rsync daemon that lives as long as one transfer needs it."""

from __future__ import annotations

import re

USER = "tandem"
MODULE = "share"
PORT = 8730


def unit_name(name: str) -> str:
    """The transient unit of the share *name*."""
    return f"tandem-share-{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}"


def config(path: str, peers: list[str], secrets: str, lock: str) -> str:
    """rsyncd.conf: one read-only module, for *peers* only, behind a password that is made for this transfer.

    *lock* counts the connections; its default place in /run is read-only for the daemon's unit.
    """
    return "\n".join(
        [
            "use chroot = yes",
            "reverse lookup = no",
            "max connections = 16",
            f"lock file = {lock}",
            f"[{MODULE}]",
            f"path = {path}",
            "read only = yes",
            "list = no",
            "uid = root",
            "gid = root",
            "munge symlinks = no",
            f"auth users = {USER}",
            f"secrets file = {secrets}",
            f"hosts allow = {' '.join(peers)}",
            "hosts deny = *",
            "exclude = /.cache /.*.tandem-*",
            "",
        ]
    )


def pull_command(rsync: str, address: str, port: int, destination: str, dry_run: bool = False) -> list[str]:
    """Copy a share into *destination*: resumable, uncompressed, links resolved, changed files found by content.

    Content, because the quick check by size and time leaves a wrong file of the right size in place. Not --whole-file:
    with it rsync keeps the half of a shard that an interrupted copy left, and sends the whole shard again.
    """
    command = [rsync, "--recursive", "--times", "--copy-links", "--checksum", "--partial-dir=.rsync-partial"]
    command += ["--delete", "--no-compress", "--chmod=D755,F644", "--stats", "--contimeout=15", "--timeout=300"]
    command += ["--dry-run", "--itemize-changes"] if dry_run else []
    return [*command, f"rsync://{USER}@{address}:{port}/{MODULE}/", f"{destination}/"]


def transferred_bytes(stats: str) -> int | None:
    """Size of the files that a transfer brought, from ``rsync --stats``."""
    return _figure(r"Total transferred file size: ([\d,.]+) bytes", stats)


def changes(stats: str) -> int:
    """Number of files that a transfer brought or removed, from ``rsync --stats``."""
    patterns = (r"Number of regular files transferred: ([\d,.]+)", r"Number of deleted files: ([\d,.]+)")
    return sum(_figure(pattern, stats) or 0 for pattern in patterns)


def _figure(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text, re.ASCII)
    digits = re.sub(r"[,.]", "", match[1]) if match else ""
    return int(digits) if digits else None

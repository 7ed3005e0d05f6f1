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


def config(path: str, peers: list[str], secrets: str) -> str:
    """rsyncd.conf: one read-only module, for *peers* only, behind a password that is made for this transfer."""
    return "\n".join(
        [
            "use chroot = yes",
            "reverse lookup = no",
            "max connections = 16",
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

    Content, because the quick check by size and time leaves a wrong file of the right size in place.
    """
    command = [
        rsync,
        "--recursive",
        "--times",
        "--copy-links",
        "--checksum",
        "--partial-dir=.rsync-partial",
        "--whole-file",
    ]
    command += ["--delete", "--no-compress", "--chmod=D755,F644", "--stats", "--contimeout=15", "--timeout=300"]
    command += ["--dry-run", "--itemize-changes"] if dry_run else []
    return [*command, f"rsync://{USER}@{address}:{port}/{MODULE}/", f"{destination}/"]


def transferred_bytes(stats: str) -> int | None:
    """Literal bytes that a transfer moved, from ``rsync --stats``."""
    match = re.search(r"Total transferred file size: ([\d,.]+) bytes", stats)
    return int(re.sub(r"[,.]", "", match[1])) if match else None

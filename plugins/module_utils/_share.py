# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""A directory offered to named peers over the fabric: an rsync daemon that lives as long as one transfer needs it."""

from __future__ import annotations

import os
import re
import typing as t

USER = "tandem"
MODULE = "share"
PROOF = "proof"
PORT = 8730
CONNECT_S = 10


class Way(t.Protocol):
    """How another node is reached, as ``_replicate.Lane`` says it."""

    address: str
    local: str
    path: str
    port: int


def unit_name(name: str, address: str = "") -> str:
    """The transient unit of the share *name* on one of its addresses; without one, what their names begin with."""
    return "-".join(["tandem-share", re.sub(r"[^A-Za-z0-9_.-]", "-", name), *([address] if address else [])])


def config(path: str, peers: list[str], secrets: str, lock: str, proof: str | None = None) -> str:
    """rsyncd.conf: read-only, for *peers* only, behind a password that is made for this transfer.

    *lock* counts the connections; its default place in /run is read-only for the daemon's unit. *proof*: a file beside
    the directory that a relay offers too, and nothing else there.
    """
    lines = [
        "use chroot = yes",
        "reverse lookup = no",
        "max connections = 64",
        f"lock file = {lock}",
        "read only = yes",
        "list = no",
        "uid = root",
        "gid = root",
        "munge symlinks = no",
        f"auth users = {USER}",
        f"secrets file = {secrets}",
        f"hosts allow = {' '.join(peers)}",
        "hosts deny = *",
        f"[{MODULE}]",
        f"path = {path}",
        "exclude = /.cache /.*.tandem-*",
    ]
    if proof:
        parent, name = os.path.split(proof)
        lines += [f"[{PROOF}]", f"path = {parent}", f"filter = + /{name} - *"]
    return "\n".join([*lines, ""])


def files_command(rsync: str, way: Way, specification: dict[str, t.Any]) -> list[str]:
    """Fetch the files named on standard input (each ends with a zero byte) into the staging directory.

    Uncompressed, links resolved, the rest of a file appended to what is here of it (reference: cases, C22, C30). No
    times and no checksum of what is here: the manifest chose the files, and its digests judge them.
    """
    command = [rsync, "--files-from=-", "--from0", "--no-implied-dirs", "--append", "--copy-links", "--no-compress"]
    command += ["--perms", "--chmod=F644", f"--timeout={specification['timeout_s']}"]
    return [*command, *_source(way, specification, way.path, MODULE), f"{specification['staging']}/"]


def proof_command(rsync: str, way: Way, specification: dict[str, t.Any], proof: str, place: str) -> list[str]:
    """Fetch the file *proof* of a relay to *place*."""
    command = [rsync, "--ignore-times", "--no-compress", f"--timeout={specification['timeout_s']}"]
    parent, name = os.path.split(proof)
    *options, remote = _source(way, specification, parent, PROOF)
    return [*command, *options, remote + name, place]


def _source(way: Way, specification: dict[str, t.Any], path: str, module: str) -> list[str]:
    """Options and address of the other end; in both cases over the rail that the own address is on."""
    if specification["transport"] == "fabric":
        remote = f"rsync://{USER}@{way.address}:{way.port}/{module}/"
        return [f"--contimeout={CONNECT_S}", f"--address={way.local}", remote]
    ssh = specification["ssh"]
    # Never a prompt, and never a host that nobody vouched for (C31). BindAddress, so that the rail is the planned one.
    shell = f"ssh -p {ssh['port']} -o BatchMode=yes -o StrictHostKeyChecking=yes -o ConnectTimeout={CONNECT_S}"
    shell += f" -o BindAddress={way.local} -o Compression=no"
    return ["--secluded-args", f"--rsh={shell}", f"{ssh['user']}@{way.address}:{path}/"]


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

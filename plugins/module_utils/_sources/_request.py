# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What all sources share: the order they get, the error they raise, and where they keep what is half there."""

from __future__ import annotations

import os
import re
import typing as t

# A commit, or the digest of a manifest for sources without commits.
PINNED = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# A client's cache is called the same: no part of a model, and removed when the model is whole.
PARTS = os.path.join(".cache", "tandem-parts")


class SourceError(Exception):
    """A source that cannot give the model; the text says what was found, what was wanted and what to do."""


class Request(t.NamedTuple):
    """What is wanted, and from where."""

    source: str
    id: str
    revision: str
    endpoint: str  # base URL, or a path of the node
    path: str  # the directory to fetch into
    token: str = ""
    client: str = ""  # virtual environment of the hub's client
    checksums: str = ""  # name of the checksum file
    workers: int = 8


def part_of(request: Request, name: str) -> str:
    """Where the file *name* grows until it is whole."""
    return os.path.join(request.path, PARTS, name)


def settle(request: Request, name: str) -> None:
    """The part of *name* is whole: give it its name."""
    target = os.path.join(request.path, name)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.replace(part_of(request, name), target)

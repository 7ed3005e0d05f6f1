# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""How long work says how far it is. Whatever takes minutes is one function ``work(specification, report) -> result``.

*specification* and the result are plain JSON values, so that a module can call the function directly and a transient
unit can run it from a file. *report* is called as often as there is news; who listens decides what to keep.
"""

from __future__ import annotations

import typing as t


class Progress(t.NamedTuple):
    """Where a piece of work stands."""

    stage: str  # what is being done, such as "download" or "verify"
    done: int  # bytes
    total: int | None  # bytes; None when it is not known
    detail: str = ""  # such as the file in hand


Report = t.Callable[[Progress], None]


def silent(_progress: Progress) -> None:
    """Nobody is listening."""

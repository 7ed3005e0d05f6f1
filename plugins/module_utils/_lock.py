# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""One at a time: a job that outlives its controller, or a second controller, must not meet another in one directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import typing as t

POLL_S = 0.5


class BusyError(Exception):
    """Another process kept the lock for all of the time."""


def holder_of(descriptor: int) -> str:
    """The process that holds the lock, as the kernel tells it."""
    inode = str(os.fstat(descriptor).st_ino)
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii", errors="replace") as handle:
        for line in handle:
            words = line.split()
            # 1: FLOCK ADVISORY WRITE 3759 08:01:131 0 EOF
            if len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
                return words[4]
    return "unknown"


@contextlib.contextmanager
def alone(directory: str, timeout_s: float) -> t.Iterator[int]:
    """Hold the lock of a *directory*, waiting for its holder to end. Gives the descriptor that holds it.

    Nothing is written for it, and the kernel lets go of it when the holder ends, however it ends: nothing stale stays.
    A child that is given the descriptor holds the lock too, until it ends.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BusyError(
                        f"{directory}: found another run at work in it (process {holder_of(descriptor)} on this node) "
                        f"for {timeout_s:g} s, wanted to be alone; wait until it ends, or end that process, and run "
                        "this stage again"
                    ) from None
                time.sleep(POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)

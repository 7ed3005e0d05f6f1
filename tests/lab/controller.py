# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A controller that is lost in mid-run, for the tests of what nodes do then."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any


def lose(process: subprocess.Popen[Any]) -> None:
    """Kill ansible-playbook and all that it started, as a power loss would.

    Ansible's workers are sessions of their own: neither its death nor a signal to its group ends them.
    """
    doomed = [process.pid]
    for pid in doomed:
        doomed += _children(pid)
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        # A process can end while it is looked at. Its name, in brackets, may hold blanks.
        with contextlib.suppress(OSError, ValueError):
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(status.parent.name))
    return found

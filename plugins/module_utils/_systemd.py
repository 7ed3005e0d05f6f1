# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What ``systemctl show`` says about a unit."""

from __future__ import annotations

PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "MainPID",
    "Result",
    "ExecMainStatus",
    "UnitFileState",
    "InvocationID",
)


def show_command(unit: str) -> list[str]:
    """Ask for PROPERTIES of *unit*."""
    return ["systemctl", "show", unit, f"--property={','.join(PROPERTIES)}"]


def parse_show(text: str) -> dict[str, str]:
    """``Key=value`` lines as a mapping; absent properties are absent."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def is_active(properties: dict[str, str]) -> bool:
    """Whether the unit's process runs or is about to."""
    return properties.get("ActiveState") in ("active", "activating", "reloading")


def journal_command(unit: str, lines: int, invocation: str = "") -> list[str]:
    """The last *lines* of the unit's journal of this boot.

    With *invocation* (``InvocationID``) only of that start: what an earlier one said at its end explains nothing.
    """
    command = ["journalctl", "--no-pager", "--output=cat", "--boot", f"--lines={lines}"]
    if invocation:
        # The first marks what the unit's processes write, the second what systemd writes about the unit.
        return [*command, f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}"]
    return [*command, f"--unit={unit}"]

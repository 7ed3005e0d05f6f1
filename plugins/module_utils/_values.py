# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Read single values out of what tools and kernel files print. What says no value gives None, never 0 or false."""

from __future__ import annotations

import math
import re
import typing as t

# What NVIDIA's tools print instead of a value; anything else in square brackets means the same.
_NOTHING = frozenset(
    {
        "",
        "-",
        "err!",
        "error",
        "n/a",
        "na",
        "not available",
        "not supported",
        "null",
        "unknown",
        "unknown error",
        "insufficient permissions",
        "gpu requires reset",
        "requested functionality has been deprecated",
        "requested functionality has not been implemented",
    }
)
_NUMBER = re.compile(r"^([-+]?\d+(?:\.\d+)?)(?:\s*([A-Za-z%/]+))?$", re.ASCII)
_UNITS = {
    "b": 1,
    "byte": 1,
    "bytes": 1,
    "kb": 1024,  # /proc prints kB and means KiB
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}
_TRUE = frozenset({"1", "yes", "true", "on", "enabled", "y"})
_FALSE = frozenset({"0", "no", "false", "off", "disabled", "n"})


def text(token: t.Any) -> str | None:
    """*token* without surrounding space, or None when it says that there is no value."""
    if not isinstance(token, str):
        return None
    cleaned = token.strip()
    if cleaned.lower() in _NOTHING or (cleaned.startswith("[") and cleaned.endswith("]")):
        return None
    return cleaned


def number(token: t.Any) -> float | None:
    """A number, with or without a unit behind it (``11.17 W``, ``0 %``)."""
    cleaned = text(token)
    match = _NUMBER.match(cleaned) if cleaned is not None else None
    if match is None:
        return None
    value = float(match.group(1))
    return value if math.isfinite(value) else None


def integer(token: t.Any) -> int | None:
    """A whole number, with or without a unit; ``12.5`` is not one."""
    cleaned = text(token)
    match = _NUMBER.match(cleaned) if cleaned is not None else None
    if match is None or "." in match.group(1):
        return None
    return int(match.group(1))


def size(token: t.Any, unit: str = "B") -> int | None:
    """A size in bytes: ``84MiB``, ``143771 MiB``, or a bare number of *unit*. A negative size is no size."""
    cleaned = text(token)
    match = _NUMBER.match(cleaned) if cleaned is not None else None
    if match is None:
        return None
    factor = _UNITS.get((match.group(2) or unit).lower())
    whole, _dot, fraction = match.group(1).partition(".")
    if factor is None or whole.startswith("-"):
        return None
    bytes_ = int(whole) * factor
    if fraction:
        bytes_ += int(fraction) * factor // 10 ** len(fraction)
    return bytes_


def truth(token: t.Any) -> bool | None:
    """``Enabled``, ``yes``, ``1`` and their opposites; everything else is None."""
    cleaned = text(token)
    if cleaned is None:
        return None
    if cleaned.lower() in _TRUE:
        return True
    return False if cleaned.lower() in _FALSE else None


def flag(value: t.Any) -> bool | None:
    """An integer attribute that means yes or no."""
    return bool(value) if isinstance(value, int) and not isinstance(value, bool) and value in (0, 1) else None


def assignments(content: str | None) -> dict[str, str]:
    """``KEY=value`` lines as in /etc/os-release: quoted or not, comments ignored, the last of a repeated key wins."""
    found: dict[str, str] = {}
    for line in (content or "").splitlines():
        name, equals, value = line.strip().partition("=")
        name = name.strip()
        if name.startswith("export "):
            name = name[7:].strip()
        if not equals or not name or name.startswith("#"):
            continue
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        found[name] = value
    return found


def pairs(content: str | None, separator: str = ":") -> dict[str, str]:
    """``key: value`` lines; the first of a repeated key wins, lines without the separator are ignored."""
    found: dict[str, str] = {}
    for line in (content or "").splitlines():
        name, colon, value = line.partition(separator)
        if colon and name.strip():
            found.setdefault(name.strip(), value.strip())
    return found

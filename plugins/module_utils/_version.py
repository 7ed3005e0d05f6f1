# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Compare version numbers as numbers: 580.9 is older than 580.126, and 590.48 equals 590.48.00."""

from __future__ import annotations

import re

_NUMBERS = re.compile(r"\d+")
_LEADING = re.compile(r"^\s*v?(\d+(?:[.-]\d+)*)", re.ASCII)


def key(version: str | None) -> tuple[int, ...] | None:
    """The leading numbers of a version without trailing zeros, or None when it does not start with a number.

    ``6.17.0-1021-nvidia`` gives ``(6, 17, 0, 1021)``, ``590.48.00`` gives ``(590, 48)``.
    """
    match = _LEADING.match(version) if isinstance(version, str) else None
    if match is None:
        return None
    numbers = [int(number) for number in _NUMBERS.findall(match.group(1))]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def compare(left: str | None, right: str | None) -> int | None:
    """-1, 0 or 1 as *left* is older than, equal to or newer than *right*; None when either is not a version."""
    a, b = key(left), key(right)
    if a is None or b is None:
        return None
    return (a > b) - (a < b)


def newest(versions: list[str]) -> str | None:
    """The newest of *versions*; what does not start with a number is left out."""
    known = [(found, text) for text in versions for found in [key(text)] if found is not None]
    return max(known)[1] if known else None


def matches(version: str | None, pattern: str) -> bool | None:
    """True when the numbers of *version* begin with those of *pattern*: 580.178.04 matches 580 and 580.178.

    Trailing zeros count here: 7.0.0-1019-nvidia matches 7.0.0-1019, and 7.0.0-10190 does not.
    """
    match = _LEADING.match(version) if isinstance(version, str) else None
    if match is None:
        return None
    found = [int(number) for number in _NUMBERS.findall(match.group(1))]
    wanted = [int(number) for number in _NUMBERS.findall(pattern)]
    return found[: len(wanted)] == wanted


def debian_upstream(version: str | None) -> str | None:
    """The upstream part of a Debian package version: ``1:580.142-0ubuntu0.24.04.1`` gives ``580.142``."""
    if not isinstance(version, str) or not version.strip():
        return None
    return version.strip().split(":", 1)[-1].rsplit("-", 1)[0] or None

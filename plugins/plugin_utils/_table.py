# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Print findings as one table that fits a terminal of 100 columns, whatever the width of the characters in it."""

from __future__ import annotations

import typing as t
import unicodedata

if t.TYPE_CHECKING:
    from ansible_collections.tandem.spark.plugins.plugin_utils._findings import Finding

WIDTH = 100
GAP = "  "
SEVERITY, FINDING, LABEL = 8, 36, 6  # the longest id fits, so that it can be searched for and copied


def width(text: str) -> int:
    """Columns that a terminal needs for *text*: two for wide characters, none for combining ones."""
    return sum(_character(character) for character in text)


def _character(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def clean(text: str) -> str:
    """*text* on one line and without control characters, which a tool's output may hold."""
    return " ".join("".join(c if unicodedata.category(c) != "Cc" or c in "\n\t" else " " for c in text).split())


def wrap(text: str, columns: int) -> list[str]:
    """Break at spaces; a word that is too long is broken where it must be. At least one line."""
    lines: list[str] = [""]
    for word in clean(text).split(" "):
        if lines[-1] and width(lines[-1]) + 1 + width(word) > columns:
            lines.append("")
        if width(word) <= columns - (width(lines[-1]) + 1 if lines[-1] else 0):
            lines[-1] += (" " if lines[-1] else "") + word
            continue
        for character in word:
            if width(lines[-1]) + width(character) > columns:
                lines.append("")
            lines[-1] += character
    return lines


def _pad(text: str, columns: int) -> str:
    return text + " " * max(0, columns - width(text))


def table(findings: t.Iterable[Finding], total: int = WIDTH) -> str:
    """The findings in the order given and a line with their numbers, at most *total* columns wide."""
    rest = total - SEVERITY - FINDING - 2 * len(GAP)
    lines = [
        GAP.join((_pad("SEVERITY", SEVERITY), _pad("FINDING", FINDING), "NODES")),
        GAP.join("-" * columns for columns in (SEVERITY, FINDING, rest)),
    ]
    counts: dict[str, int] = {}
    for finding in findings:
        severity = "waived" if finding.waived else finding.severity
        counts[severity] = counts.get(severity, 0) + 1
        nodes = wrap(", ".join(finding.nodes) or "(none)", rest)
        severity = severity.upper() if finding.blocks else severity
        lines += _row((_pad(severity, SEVERITY), _pad(finding.id, FINDING)), nodes)
        facts = [("found", finding.found), ("wanted", finding.wanted), ("remedy", finding.remedy)]
        for label, text in [*facts, *([("waived", finding.waived)] if finding.waived else [])]:
            cells = (" " * SEVERITY, _pad(label, LABEL))
            lines += _row(cells, wrap(text, total - SEVERITY - LABEL - 2 * len(GAP)))
    if not counts:
        return "No findings."
    return "\n".join([*lines, "", ", ".join(f"{number} {severity}" for severity, number in counts.items())])


def _row(cells: tuple[str, ...], texts: list[str]) -> list[str]:
    blank = tuple(" " * width(cell) for cell in cells)
    return [GAP.join((*(cells if number == 0 else blank), text)).rstrip() for number, text in enumerate(texts)]


def as_data(findings: t.Iterable[Finding]) -> list[dict[str, t.Any]]:
    """The findings as plain data for JSON."""
    return [finding.as_dict() for finding in findings]

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Who is cabled to whom: the wiring that an inventory declares. Pure functions.

An end is ``(node, cage)``; a cable is a pair of ends; an end on a switch stands for itself.
"""

from __future__ import annotations

import collections
import difflib
import re
import typing as t

End = tuple[str, int]
Cable = tuple[End, End]

CAGES = (0, 1)
SWITCH = "switch"
FORM = "[[spark-a.1, spark-b.0], …], each end a node and its cage (0 is nearest the RJ45 socket, 1 the other)"


def end_text(end: End) -> str:
    return f"{end[0]}.{end[1]}"


def cable_text(cable: Cable) -> str:
    return f"{end_text(cable[0])} - {end_text(cable[1])}"


def parse_end(text: t.Any, names: t.Sequence[str]) -> tuple[End | None, str]:
    """``spark-a.1`` as (node, cage), or what is wrong with it."""
    match = re.fullmatch(r"(.+)\.(\d+)", str(text))
    if match is None:
        return None, f"found {text!r}, wanted node.cage, such as {names[0] if names else 'spark-a'}.1"
    name, cage = match[1], int(match[2])
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}"
        return None, f"found {text!r}, and no node is called {name}{hint}"
    if cage not in CAGES:
        return None, f"found {text!r}, wanted cage 0 or 1 of {name}: a Spark has two"
    return (name, cage), ""


def parse_cables(raw: t.Any, names: t.Sequence[str]) -> tuple[list[Cable], list[str]]:
    """``tandem_cables`` as cables in an order that follows from the nodes' ranks, and what is wrong with it."""
    if not isinstance(raw, list):
        return [], [f"tandem_cables: found {raw!r}, wanted {FORM}"]
    cables: list[Cable] = []
    problems: list[str] = []
    rank = {name: number for number, name in enumerate(names)}
    for number, entry in enumerate(raw):
        where = f"tandem_cables[{number}]"
        if not isinstance(entry, (list, tuple)) or len(entry) != 2:
            problems.append(f"{where}: found {entry!r}, wanted two ends, such as [spark-a.1, spark-b.0]")
            continue
        ends: list[End] = []
        for text in entry:
            end, problem = parse_end(text, names)
            if end is None:
                problems.append(f"{where}: {problem}")
            else:
                ends.append(end)
        if len(ends) < 2:
            continue
        if ends[0][0] == ends[1][0]:
            problems.append(f"{where}: found a cable from {ends[0][0]} to itself, wanted one to another node")
            continue
        first, second = sorted(ends, key=lambda end: (rank[end[0]], end[1]))
        cables.append((first, second))
    used = collections.Counter(end for cable in cables for end in cable)
    problems += [
        f"tandem_cables: found {count} cables in {end_text(end)}, wanted one: a cage takes one plug"
        for end, count in used.items()
        if count > 1
    ]
    if not problems:
        problems += [
            f"{name}: tandem_cables has no cable to it, wanted at least one; add it, or take {name} out of the group"
            for name in names
            if name not in {end[0] for end in used}
        ]
    return sorted(cables, key=lambda cable: [(rank[end[0]], end[1]) for end in cable]), problems


def parse_switch(raw: t.Any, name: str) -> tuple[int | None, str]:
    """``tandem_switch`` of the node *name* as the cage of its cable, or what is wrong with it."""
    cage = raw.get("cage") if isinstance(raw, dict) and set(raw) == {"cage"} else None
    if isinstance(cage, bool) or str(cage) not in [str(number) for number in CAGES]:
        return None, f"{name}: tandem_switch: found {raw!r}, wanted {{cage: 0}} or {{cage: 1}}, where its cable is"
    return int(str(cage)), ""


def free_ends(cables: t.Iterable[Cable], names: t.Iterable[str]) -> list[End]:
    """Cages without a cable."""
    used = {end for cable in cables for end in cable}
    return [(name, cage) for name in names for cage in CAGES if (name, cage) not in used]

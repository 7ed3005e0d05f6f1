# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Who is cabled to whom: the wiring that an inventory declares, and the one that the nodes see. Pure functions.

An end is ``(node, cage)``; a cable is a pair of ends; an end on a switch stands for itself.
"""

from __future__ import annotations

import collections
import dataclasses
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


# -- the wiring that was seen -----------------------------------------------------------------------------------------


@dataclasses.dataclass
class Seen:
    """What the nodes heard on their cages (``fabric_discover`` on each of them)."""

    names: list[str]
    heard: dict[End, dict[End, set[int]]] = dataclasses.field(default_factory=dict)  # by own end, with own rails
    state: dict[End, str] = dataclasses.field(default_factory=dict)  # why an end heard nobody
    unchecked: dict[str, str] = dataclasses.field(default_factory=dict)

    def nodes_at(self, end: End) -> set[str]:
        return {other[0] for other in self.heard.get(end, {})}

    def cables(self) -> dict[Cable, set[int]]:
        """Direct cables with the rails on which at least one end heard the other; ends on a switch are left out."""
        rank = {name: number for number, name in enumerate(self.names)}
        found: dict[Cable, set[int]] = {}
        for end, others in self.heard.items():
            for other, rails in others.items():
                if len(self.nodes_at(end)) == 1 and len(self.nodes_at(other)) < 2:
                    first, second = sorted((end, other), key=lambda one: (rank[one[0]], one[1]))
                    found.setdefault((first, second), set()).update(rails)
        return dict(sorted(found.items(), key=lambda item: [(rank[end[0]], end[1]) for end in item[0]]))

    def switched(self) -> list[End]:
        """Ends that heard more than one node."""
        return sorted(end for end in self.heard if len(self.nodes_at(end)) > 1)


def seen(results: t.Mapping[str, t.Any]) -> Seen:
    """Put together what every node returned; a node without a result was not checked."""
    found = Seen(list(results))
    for name, result in results.items():
        if not isinstance(result, t.Mapping) or result.get("checked") is not True:
            reason = result.get("msg") if isinstance(result, t.Mapping) else None
            found.unchecked[name] = " ".join(str(reason or "no result").split())
            continue
        states: dict[End, set[str]] = {}
        for entry in (result.get("interfaces") or {}).values():
            cage, rail = entry.get("cage"), entry.get("rail")
            if cage not in CAGES:
                continue
            end = (name, int(cage))
            for peer in entry.get("neighbours") or []:
                if peer.get("node") in results and peer.get("cage") in CAGES:
                    rails = found.heard.setdefault(end, {}).setdefault((peer["node"], int(peer["cage"])), set())
                    rails.add(int(rail or 0))
            if not entry.get("neighbours"):
                carrier = entry.get("carrier")
                told = [f"{one.get('system')} {one.get('port')}" for one in entry.get("lldp") or []]
                state = (
                    "is switched off" if carrier is None else f"has {'a link, and no answer' if carrier else 'no link'}"
                )
                states.setdefault(end, set()).add(f"{state} (LLDP: {', '.join(told)})" if told else state)
        for end, texts in states.items():
            if end not in found.heard:
                found.state[end] = " and ".join(sorted(texts))
    return found


def _at(found: Seen, end: End) -> str:
    """What is at an end: other ends, or why there is none."""
    others = sorted(found.heard.get(end, {}))
    if others:
        return f"{end_text(end)} is cabled to {', '.join(end_text(other) for other in others)}"
    return f"{end_text(end)} {found.state.get(end, 'has no interface, as an empty cage')}"


def _ends(pair: t.Sequence[str], found: Seen) -> list[End]:
    """The ends of a cable of a plan that are at nodes."""
    return [end for text in pair if text != SWITCH for end in [parse_end(text, found.names)[0]] if end]


def _move(found: Seen, ends: list[End]) -> str:
    """What to do about a declared cable that is not there."""
    moves = [
        (other[0] != wanted[0], number, other, wanted)
        for number, (end, wanted) in enumerate((ends, ends[::-1]))
        for other in sorted(found.heard.get(end, {}))
    ]
    if not moves:
        return "plug it, or take it out of tandem_cables; where a link is, see whether the other node runs"
    # The plug in the wrong cage of the right node is the likelier mistake, and the shorter way.
    _far, _number, other, wanted = min(moves)
    return f"move the plug in {end_text(other)} to {end_text(wanted)}, or correct tandem_cables"


def compare(declared: t.Sequence[t.Sequence[str]], found: Seen) -> tuple[list[str], list[str]]:
    """(differences, what was not checked) between ``cables`` of a plan and what was seen."""
    problems: list[str] = []
    unchecked = [f"{name}: not checked ({reason})" for name, reason in found.unchecked.items()]
    there = found.cables()
    explained: set[End] = set()
    for pair in declared:
        ends = _ends(pair, found)
        explained.update(ends)
        if any(end[0] in found.unchecked for end in ends):
            continue
        if SWITCH in pair:
            lacking = [n for n in found.names if n not in found.nodes_at(ends[0]) | {ends[0][0]} | set(found.unchecked)]
            if lacking:
                problems.append(
                    f"{end_text(ends[0])} - switch: found {_at(found, ends[0])}, wanted {', '.join(lacking)} there too"
                    "; plug it into that switch, and see to it that both its ports are in one bridge"
                )
            continue
        cable = (ends[0], ends[1]) if (ends[0], ends[1]) in there else (ends[1], ends[0])
        rails = there.get(cable)
        if rails is None:
            explained.update(other for end in ends for other in found.heard.get(end, {}))
            problems.append(
                f"{cable_text((ends[0], ends[1]))}: found that {_at(found, ends[0])} and {_at(found, ends[1])}, wanted "
                f"a cable between the two; {_move(found, ends)}"
            )
        elif len(rails) < 2:
            heard = min(rails)
            problems.append(
                f"{cable_text((ends[0], ends[1]))}: found answers on rail {heard} only, wanted rail {1 - heard} too, "
                "since one cable carries both; this is a fault of driver or configuration, not of the cable"
            )
    problems += [
        f"{cable_text(cable)}: found a cable that is not declared, wanted none; add it to tandem_cables, or pull it out"
        for cable in there
        if declared and explained.isdisjoint(cable)
    ]
    return problems, unchecked


def suggest(found: Seen) -> str:
    """Lines for the inventory that declare what was seen."""
    switched = found.switched()
    if switched and not found.cables():
        cages = {cage for _name, cage in switched}
        return f"tandem_switch: {{cage: {min(cages)}}}" if len(cages) == 1 else ""
    lines = [f"  - [{end_text(a)}, {end_text(b)}]" for a, b in found.cables()]
    return "\n".join(["tandem_cables:", *lines]) if lines and not switched else ""


def draw(declared: t.Sequence[t.Sequence[str]], found: Seen) -> str:
    """The wiring that was seen as a picture, and beside it the one that was declared.

    ``===`` is a cable that answered on both rails, ``---`` one that answered on one of them.
    """
    there = found.cables()
    lines = ["Seen:", *(f"  {line}" for line in _lines(found, there))]
    rows = []
    for pair in declared:
        ends = _ends(pair, found)
        if any(end[0] in found.unchecked for end in ends):
            shown = "not checked"
        elif len(ends) < 2:
            shown = f"hears {', '.join(sorted(found.nodes_at(ends[0]))) or 'nobody'}"
        else:
            rails = there.get((ends[0], ends[1])) or there.get((ends[1], ends[0])) or set()
            shown = ("NOT SEEN", f"seen, rail {min(rails, default=0)} only", "seen, both rails")[min(len(rails), 2)]
        rows.append((" - ".join(pair), shown))
    known = {frozenset(_ends(pair, found)) for pair in declared}
    extra = [cable for cable in there if declared and frozenset(cable) not in known]
    rows += [("(not declared)", f"{cable_text(cable)} seen") for cable in extra]
    if rows:
        width = max(len(row[0]) for row in rows)
        lines += ["Declared:", *(f"  {text:<{width}}  {shown}" for text, shown in rows)]
    else:
        lines.append("Declared: nothing")
    return "\n".join(lines)


def _lines(found: Seen, there: dict[Cable, set[int]]) -> list[str]:
    """Chains and rings as lines of nodes, then what hangs on a switch, then nodes alone."""
    ways: dict[End, tuple[End, str]] = {}
    for (a, b), rails in there.items():
        mark = "===" if len(rails) > 1 else "---"
        # A cage with two cables cannot be; the first one that was seen is drawn.
        ways.setdefault(a, (b, mark))
        ways.setdefault(b, (a, mark))
    done: set[str] = set()
    lines = []
    degree = {name: sum((name, cage) in ways for cage in CAGES) for name in found.names}
    for start in sorted(found.names, key=lambda name: (degree[name] != 1, degree[name] != 2, found.names.index(name))):
        if start in done or not degree[start]:
            continue
        text, name, cage = "", start, 0 if degree[start] == 2 else 1 - min(c for c in CAGES if (start, c) in ways)
        while name not in done:
            done.add(name)
            text += f"[{cage} {name} {1 - cage}]"
            if (name, 1 - cage) not in ways:
                break
            (name, cage), mark = ways[name, 1 - cage]
            text += f"{mark}{f'[{cage} {name} …' if name in done else ''}"
        lines.append(text)
    switched = found.switched()
    if switched:
        lines.append(f"switch: {', '.join(end_text(end) for end in switched)}")
    joined = {end[0] for end in switched} | done
    for name in found.names:
        if name in found.unchecked:
            lines.append(f"[{name}]  not checked: {found.unchecked[name]}")
        elif name not in joined:
            states = [f"cage {cage} {found.state.get((name, cage), 'has no interface')}" for cage in CAGES]
            lines.append(f"[{name}]  {', '.join(states)}")
    return lines

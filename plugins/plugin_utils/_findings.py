# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""From the facts of all nodes and the deployment to findings: one pure function, :func:`findings`.

A finding says on which nodes what was found, what is wanted and what to do. Its id stands for one thing that a person
could accept with a reason (a waiver). What could not be checked is no finding against a node; one note lists it all.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils import _review_fabric, _review_group, _review_node
from ansible_collections.tandem.spark.plugins.plugin_utils._catalogue import CATALOGUE, SEVERITIES, Finding
from ansible_collections.tandem.spark.plugins.plugin_utils._review import FACTS, NOT_IN_THE_RUN, Review

# These speak about the report itself and cannot be waived.
NOT_WAIVABLE = ("preflight.",)
Waivers = t.Union[t.Mapping[str, str], t.Sequence[t.Mapping[str, str]]]


def findings(
    nodes: t.Mapping[str, t.Any], deployment: t.Mapping[str, t.Any] | None = None, waivers: Waivers | None = None
) -> list[Finding]:
    """All findings about *nodes* for *deployment*, the worst first, waived ones last.

    *nodes* maps the name of each node, in rank order, to its facts (``spark_gpu``, ``spark_memory``,
    ``spark_platform``, ``spark_fabric``, and ``spark_engine`` with a ``digest`` where an engine release is installed).
    A node that could not be asked is None, the reason as text, or ``{"unreachable": reason}``. With
    ``"collected": {"before": t0, "after": t1}`` (the controller's clock around the task that read
    ``spark_platform``) the clocks of the nodes are compared.

    *deployment* is optional in every part: ``recipe`` (or its parts ``engine`` and ``memory`` at the top level),
    ``nodes`` with ``links``, ``head``, ``ports``, ``disk_needed_bytes``, and ``fabric`` with ``transport`` (``roce`` or
    ``socket``), ``topology``, ``managed`` (whether the fabric stage of this run sets MTU and addresses) and
    ``allow_shared_subnet``.

    *waivers* maps ids to reasons. A waived finding stays in the list and no longer blocks.
    """
    return _run(Review(nodes, deployment or {}), waivers or {})


def blocking(found: t.Iterable[Finding]) -> list[Finding]:
    """Those findings that stop the run."""
    return [finding for finding in found if finding.blocks]


def summary(found: t.Sequence[Finding]) -> dict[str, t.Any]:
    """Counts for reports: how many of each severity, how many waived, and the ids that block."""
    counts: dict[str, t.Any] = {s: sum(f.severity == s and f.waived is None for f in found) for s in SEVERITIES}
    return {
        **counts,
        "waived": sum(f.waived is not None for f in found),
        "blocking_ids": [f.id for f in blocking(found)],
    }


def _run(review: Review, waivers: Waivers) -> list[Finding]:
    _nodes(review)
    for name in review.facts:
        _review_node.check(review, name)
    _review_group.lockstep(review)
    _review_group.clocks(review)
    _review_group.memory_fit(review)
    if review.size > 1:
        _review_fabric.links(review)
    if review.unchecked:
        parts = [f"{what} ({', '.join(names)})" for what, names in review.unchecked.items()]
        names = [name for name in review.all_names if any(name in known for known in review.unchecked.values())]
        review.add(
            "preflight.not_checked",
            "note",
            names,
            "could not be told: " + "; ".join(parts),
            "to be checked",
            "nothing is assumed about these; run as root, and install the tools that are named as missing",
        )
    review.found = _together(review)
    return _waive(review, waivers)


def _together(review: Review) -> list[Finding]:
    """One finding for all nodes of which the same was found."""
    merged: dict[tuple[str, ...], Finding] = {}
    for finding in review.found:
        key = (finding.id, finding.severity, finding.found, finding.wanted, finding.remedy)
        known = merged.get(key)
        names = {*finding.nodes, *(known.nodes if known else ())}
        merged[key] = dataclasses.replace(finding, nodes=tuple(n for n in review.all_names if n in names))
    return list(merged.values())


def _waive(review: Review, waivers: Waivers) -> list[Finding]:
    if isinstance(waivers, t.Mapping):
        reasons: dict[str, t.Any] = {str(id_): reason for id_, reason in waivers.items()}
    else:
        reasons = {str(entry.get("id")): entry.get("reason") or "" for entry in waivers}
    present = {finding.id for finding in review.found}
    for id_, reason in reasons.items():
        valid = isinstance(reason, str) and bool(reason.strip())
        if id_ not in CATALOGUE or id_.startswith(NOT_WAIVABLE):
            review.add(
                "preflight.waiver_unknown",
                "note",
                (),
                f"waiver for {id_}",
                "the id of a finding that exists and can be waived",
                "correct the id in the waivers; ids stand in the second column of this table",
            )
        elif not valid:
            review.add(
                "preflight.waiver_without_reason",
                "note",
                (),
                f"waiver for {id_} without a reason; it does not count",
                "a sentence that says why this is accepted",
                f'write the reason: {id_}: "..."',
            )
        elif id_ not in present:
            review.add(
                "preflight.waiver_unused",
                "note",
                (),
                f"waiver for {id_}, which was not found",
                "no waiver that is not needed",
                "remove it, so that it cannot hide a later problem",
            )
    waived = []
    for finding in review.found:
        reason = reasons.get(finding.id)
        if isinstance(reason, str) and reason.strip() and not finding.id.startswith(NOT_WAIVABLE):
            finding = dataclasses.replace(finding, waived=reason.strip())
        waived.append(finding)
    order = {name: number for number, name in enumerate(SEVERITIES)}
    return sorted(waived, key=lambda f: (f.waived is not None, order[f.severity]))


def _nodes(review: Review) -> None:
    for name, reason in review.unreachable.items():
        review.add(
            "node.unreachable",
            "blocked",
            [name],
            reason,
            "an answer over SSH",
            "run without --limit: the nodes are judged together"
            if reason == NOT_IN_THE_RUN
            else f"check power, cable and address of {name}: ssh {name}",
        )
    wanted = review.recipe.get("nodes")
    if isinstance(wanted, int) and wanted != len(review.all_names):
        review.add(
            "node.count",
            "blocked",
            review.all_names,
            f"{len(review.all_names)} nodes: {', '.join(review.all_names) or 'none'}",
            f"{wanted} nodes for recipe {review.recipe.get('name') or 'without a name'}",
            "add or remove nodes in the inventory, or choose a recipe for this number",
        )
    for name, facts in review.facts.items():
        missing = [key for key in FACTS if not isinstance(facts.get(key), t.Mapping)]
        if missing:
            review.add(
                "node.facts_missing",
                "blocked",
                [name],
                f"nothing under {', '.join(missing)}",
                "the facts of all four modules",
                f"run the modules on {name} and read the error: ansible {name} -m tandem.spark.gpu_facts",
            )

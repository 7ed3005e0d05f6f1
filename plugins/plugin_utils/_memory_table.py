# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Print a memory plan as one table that fits a terminal of 100 columns."""

from __future__ import annotations

import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils._memory_fit import gib
from ansible_collections.tandem.spark.plugins.plugin_utils._table import WIDTH, wrap

LABEL = 26
VERDICTS = {True: "fits", False: "DOES NOT FIT", None: "CANNOT TELL"}


def table(answer: t.Mapping[str, t.Any], total: int = WIDTH) -> str:
    """What :func:`_memory_plan.memory_fit` answered, as text."""
    rows = [("recipe", answer["recipe"]), ("model", answer["model"])]
    if answer["source"]:
        rows.append(("shape from", answer["source"]))
    if "per_node" in answer:
        rows += _budget(answer)
    rows.append(("verdict", VERDICTS[answer["fits"]]))
    if answer["refusal"]:
        rows.append(("", answer["refusal"]))
    for number, entry in enumerate(answer["alternatives"], 1):
        text = f"{entry['change']} (then up to {entry['longest_context']} tokens)"
        rows.append((f"would fit, {number}", text))
    if not answer["fits"] and "per_node" in answer and not answer["alternatives"]:
        rows.append(("would fit", "nothing near it; choose a smaller model or more nodes"))
    lines = []
    for label, text in rows:
        for number, line in enumerate(wrap(str(text), total - LABEL)):
            lines.append(f"{label if number == 0 else '':<{LABEL}}{line}".rstrip())
    return "\n".join(lines)


def _budget(answer: t.Mapping[str, t.Any]) -> list[tuple[str, str]]:
    node, totals = answer["per_node"], answer["model_totals"]
    upper = answer["per_node_upper"]
    split = "layers" if answer["split"] == "layers" else "heads"
    weights = gib(node["weights_bytes"]) + (f" to {gib(upper['weights_bytes'])}" if upper else "")
    rows = [
        ("split", f"{answer['engine']}, {answer['ranks']} node(s), by {split}"),
        ("memory per node", f"{gib(node['total_bytes'])} ({answer['memory_from']})"),
        ("reserve", f"{gib(node['reserve_bytes'])} stay free"),
        ("graphs and activations", gib(node["runtime_bytes"])),
        ("weights per node", f"{weights} ({totals['weights_from']})"),
    ]
    each = f"{node['kv_bytes_per_token']:,} B per token" + (
        f" and {node['kv_bytes_per_sequence'] / 1e6:.1f} MB per sequence" if node["kv_bytes_per_sequence"] else ""
    )
    whole = f"{totals['kv_bytes_per_token']:,} B" + (
        f" and {totals['kv_bytes_per_sequence'] / 1e6:.1f} MB" if totals["kv_bytes_per_sequence"] else ""
    )
    kept = answer["kv_dtype"]
    rows.append(("KV cache per node", f"{each}, {kept['name']} ({kept['why']}); the model has {whole}"))
    if totals["state_bytes_per_slot"]:
        rows.append(
            (
                "states per node",
                f"{node['state_bytes_per_slot'] / 1e6:.1f} MB per slot, {node['state_slots']} slots: "
                f"{gib(node['state_bytes'])}; the model has {totals['state_bytes_per_slot'] / 1e6:.1f} MB",
            )
        )
    limit = answer["limit"]
    if limit and node["fraction"] is not None:
        said = "" if limit["set"] else " (not set)"
        rows.append(
            (
                limit["flag"],
                f"{node['fraction']:g}{said} of {limit['of']}; at most {node['ceiling']:g} keeps the reserve",
            )
        )
    rows += [
        ("left for KV cache", gib(node["pool_bytes"]) + (f" to {gib(upper['pool_bytes'])}" if upper else "")),
        ("asked for", f"a context of {answer['context']} tokens, {answer['slots']} slot(s)"),
        (
            "longest context",
            f"{node['longest_context']} tokens for one request, {node['longest_context_all_slots']} in every slot at "
            "once",
        ),
    ]
    return rows + [("assumed", text) for text in answer["assumed"]]

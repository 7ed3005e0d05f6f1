# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Going back to the previous release, on all nodes or on none: everything is looked at before anything is switched."""

from __future__ import annotations

import typing as t


def problems(names: t.Sequence[str], states: t.Mapping[str, t.Mapping[str, t.Any]]) -> list[str]:
    """Why not all of the nodes *names* can go back, one sentence per node.

    *states*: per node ``pointers`` (of release_pointer), ``model`` (of model_release) and ``engine`` (of
    python_environment, or nothing for an engine that is no such environment).
    """
    found = []
    deployments: dict[str | None, list[str]] = {}
    for name in names:
        state = states.get(name) or {}
        if not state.get("pointers"):
            found.append(f"{name}: was not looked at, wanted every node; run without --limit")
            continue
        previous = state["pointers"].get("previous")
        if not previous:
            found.append(
                f"{name}: found no previous release, wanted one (the serve stage keeps it when it switches to another)"
                "; set tandem_recipe or tandem_model_revision to what you want and run site.yml"
            )
            continue
        for part, playbook in (("model", "model"), ("engine", "engine")):
            answer = state.get(part)
            if answer and not answer.get("skipped") and not answer.get("present"):
                found.append(
                    f"{name}: the {part} of {previous['name']} is not whole: {answer.get('reason') or 'not known'}; "
                    f"run the {playbook} stage (tandem.spark.{playbook}) with the recipe and revision of that release"
                )
        deployments.setdefault(previous.get("deployment"), []).append(name)
    if len(deployments) > 1 or None in deployments:
        groups = "; ".join(
            f"{', '.join(members)}: {digest[:12] if digest else 'not known'}" for digest, members in deployments.items()
        )
        found.append(
            f"the previous releases are not of one deployment ({groups}), wanted the same on every node; set "
            "tandem_recipe or tandem_model_revision to what you want and run site.yml"
        )
    return found

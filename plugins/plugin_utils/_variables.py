# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Misspelt variables: names that begin like a role's variables and that no role knows."""

from __future__ import annotations

import difflib
import functools
import os
import re
import typing as t

import yaml

# Facts of this collection; where ansible-core injects facts as variables, its default, they stand among the variables.
FACTS = ("tandem_deployment", "tandem_node")
ROLES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "roles")


@functools.lru_cache(maxsize=1)
def role_options(directory: str = ROLES) -> dict[str, list[str]]:
    """The variables of every role of the collection, from its argument specification."""
    options: dict[str, list[str]] = {}
    for role in sorted(os.listdir(directory)):
        path = os.path.join(directory, role, "meta", "argument_specs.yml")
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as handle:
                options[role] = list(yaml.safe_load(handle)["argument_specs"]["main"]["options"])
    return options


def unknown(variables: dict[str, t.Iterable[str]], options: dict[str, list[str]]) -> list[str]:
    """One sentence per name that no role knows. *variables*: names by host."""
    prefix = re.compile(rf"^({'|'.join(map(re.escape, options))})_")
    known = {name for names in options.values() for name in names}.union(FACTS)
    hosts: dict[str, list[str]] = {}
    for host, names in variables.items():
        for name in names:
            if name not in known and prefix.match(name):
                hosts.setdefault(name, []).append(host)
    found = []
    for name, where in sorted(hosts.items()):
        near = difflib.get_close_matches(name, sorted(known.difference(FACTS)), n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else "remove it"
        found.append(f"variable {name} (on {', '.join(where)}): no role knows it; {hint}")
    return found

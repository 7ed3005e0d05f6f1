# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Small functions that gather registered results of all nodes, so that roles need no logic in Jinja."""

from __future__ import annotations

import typing as t

from ansible_collections.tandem.spark.plugins.plugin_utils import _engines


def names(deployment: dict[str, t.Any]) -> list[str]:
    """Node names in rank order."""
    return [node["name"] for node in deployment["nodes"]]


def values_by_node(hostvars: t.Mapping[str, t.Any], deployment: dict[str, t.Any], key: str) -> dict[str, t.Any]:
    """``{node: its variable key}``; a node without it, not reached or left out with ``--limit``, has ``{}``."""
    return {name: hostvars[name].get(key, {}) for name in names(deployment)}


def values_on(hostvars: t.Mapping[str, t.Any], deployment: dict[str, t.Any], key: str) -> list[t.Any]:
    """The variable *key* of every node in rank order, ``None`` where it is not set."""
    return [hostvars[name].get(key) for name in names(deployment)]


def absent_on(hostvars: t.Mapping[str, t.Any], deployment: dict[str, t.Any], key: str) -> list[str]:
    """Nodes whose registered result *key* does not say that the thing is present."""
    results = values_by_node(hostvars, deployment, key)
    return [name for name in names(deployment) if not results.get(name, {}).get("present")]


def first_value(results: list[dict[str, t.Any]], key: str) -> t.Any:
    """The first value of *key* among *results* that is there and not null."""
    return next((result[key] for result in results if result.get(key) is not None), None)


def keep_keys(items: list[dict[str, t.Any]], keys: list[str]) -> list[dict[str, t.Any]]:
    """The *items* with these *keys* only."""
    return [{key: item[key] for key in keys} for item in items]


def missing_packages(dpkg: str, wanted: list[str]) -> list[str]:
    """Packages of *wanted* that dpkg-query (``${Package} ${db:Status-Status}`` per line) does not call installed."""
    installed = {line.split()[0] for line in dpkg.splitlines() if line.split()[1:] == ["installed"]}
    return [name for name in wanted if name not in installed]


def login_shell(passwd: t.Mapping[str, t.Any], account: str) -> str:
    """The shell with which somebody logs in as *account*; ``""`` when nobody does or there is no such account.

    *passwd* is what ``ansible.builtin.getent`` gives: name to (password, uid, gid, name, home, shell).
    """
    entry = passwd.get(account)
    if not entry:
        return ""
    # An empty field means /bin/sh, see passwd(5).
    shell = str(entry[5]) or "/bin/sh"
    return "" if shell.rpartition("/")[2] in ("nologin", "false") else shell


def failed_start(states: dict[str, t.Any], failure: dict[str, t.Any], engine: str = "") -> str:
    """What to say when the group did not start: the failure, what *engine*'s known log lines mean, then every rank."""
    parts = [str(failure.get("msg") or "The group did not start.")]
    for name, state in states.items():
        if not state:
            parts.append(f"--- {name}: was not reached")
            continue
        unit = state.get("unit", {})
        parts.append(
            f"--- {name}: unit {unit.get('ActiveState')}, result {unit.get('Result')}, exit status "
            f"{unit.get('ExecMainStatus')}; last lines:\n{state.get('journal') or '(none)'}"
        )
    log = "\n".join([parts[0], *(str(state.get("journal") or "") for state in states.values() if state)])
    return "\n".join([*parts[:1], *_engines.explain(engine, log), *parts[1:]])

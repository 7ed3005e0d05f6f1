# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import json

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.tandem.spark.plugins.plugin_utils import _deployment, _recipe
from hypothesis import settings

settings.register_profile("unit", max_examples=40, deadline=None)
settings.load_profile("unit")

REVISION = "a5d248fcca98b9d9a0c225cc22372f2fd1b3540b"

RECIPE = {
    "name": "small",
    "nodes": 2,
    "tensor_parallel": 2,
    "model": {
        "id": "owner/Model",
        "revision": REVISION,
        "served_name": "model",
        "size_bytes": 1000,
        "attention_heads": [480],  # shared by any group of up to six
    },
    "engine": {"name": "sglang", "version": "0.5.23", "lock": "x.lock", "python": "3.12", "size_bytes": 100},
    "acceptance": [{"check": "ready", "name": "ready"}],
}


@pytest.fixture
def run_module(capsys):
    """Run a module in this process and return what it would print."""

    def run(module, arguments, *, check_mode=False):
        capsys.readouterr()
        given = {**arguments, "_ansible_check_mode": check_mode, "_ansible_diff": True}
        with patch_module_args(given), pytest.raises(SystemExit):
            module.main()
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def commands(monkeypatch):
    """Answer external commands from a table ``{beginning of the command: (status, output, errors) or a function}``.

    Returns the table; what was run is in its entry ``ran``. A command that the table does not know fails the test.
    """
    table = {"ran": []}

    def run_command(_module, arguments, **options):
        words = [str(word) for word in arguments]
        table["ran"].append(words)
        line = " ".join(words)
        for beginning in sorted((key for key in table if key != "ran"), key=len, reverse=True):
            if line.startswith(beginning):
                answer = table[beginning]
                return answer(words, options) if callable(answer) else answer
        raise AssertionError(f"no answer for the command {line}")

    monkeypatch.setattr(AnsibleModule, "run_command", run_command)
    return table


@pytest.fixture
def make_recipe():
    """A valid recipe with some of its values replaced; ``__`` goes one level down, ``None`` stands for null."""

    def make(**changes):
        data = copy.deepcopy(RECIPE)
        if "nodes" in changes:
            data["tensor_parallel"] = changes["nodes"]
        for path, value in changes.items():
            *parents, last = path.split("__")
            place = data
            for parent in parents:
                place = place[parent]
            place[last] = value
        return data

    return make


@pytest.fixture
def build(make_recipe):
    """Build a deployment from nodes given as ``{name: [(interface, address), …]}``."""

    def build_(links, recipe=None, **options):
        recipe = _recipe.validate(recipe or make_recipe(nodes=max(len(links), 1)), "test")
        nodes = [
            {
                "name": name,
                "address": f"192.0.2.{number}",
                "links": [{"interface": interface, "address": address} for interface, address in entries],
            }
            for number, (name, entries) in enumerate(links.items(), 11)
        ]
        return _deployment.build("spark", nodes, recipe, **options)

    return build_


PAIR = {
    "spark-a": [("enp1s0f0np0", "192.168.100.10/24"), ("enP2p1s0f0np0", "192.168.101.10/24")],
    "spark-b": [("enp1s0f0np0", "192.168.100.11/24"), ("enP2p1s0f0np0", "192.168.101.11/24")],
}


@pytest.fixture
def pair_links():
    return copy.deepcopy(PAIR)


@pytest.fixture
def pair(build):
    deployment, problems = build(PAIR)
    assert problems == []
    return deployment

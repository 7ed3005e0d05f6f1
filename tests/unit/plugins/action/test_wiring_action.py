# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import types

import pytest
from ansible_collections.tandem.spark.plugins.action import wiring


def heard(cage, peer, other):
    entry = {"carrier": True, "answered": True, "admin_up": True, "lldp": []}
    return {
        "checked": True,
        "interfaces": {
            f"x{rail}": {
                **entry,
                "cage": cage,
                "rail": rail,
                "neighbours": [{"node": peer, "interface": "y", "cage": other, "rail": rail}],
            }
            for rail in (0, 1)
        },
    }


@pytest.fixture
def draw(monkeypatch):
    """Run the action on a pair with one cable in the cages 0; returns the result and what was shown."""

    def run(variables=None, change=None, **options):
        hostvars = {
            "spark-a": {**(variables or {}), "__seen": heard(0, "spark-b", 0)},
            "spark-b": {**(variables or {}), "__seen": heard(0, "spark-a", 0)},
        }
        if change:
            change(hostvars)
        shown = []
        action = object.__new__(wiring.ActionModule)
        action._task = types.SimpleNamespace(args={"result": "__seen", **options}, action="wiring", async_val=0)
        action._display = types.SimpleNamespace(display=shown.append)
        monkeypatch.setattr(wiring.ActionBase, "run", lambda *_arguments, **_options: {})
        return action.run(None, {"hostvars": hostvars, "groups": {"spark": list(hostvars)}}), "\n".join(shown)

    return run


CABLES = {"tandem_cables": [["spark-a.0", "spark-b.0"]]}


def test_as_declared(draw):
    result, shown = draw(CABLES)
    assert result["changed"] is False and result["problems"] == [] and "failed" not in result
    assert "[1 spark-a 0]===[0 spark-b 1]" in shown and "spark-a.0 - spark-b.0  seen, both rails" in shown


def test_a_difference_ends_the_run_unless_it_may_not(draw):
    declared = {"tandem_cables": [["spark-a.0", "spark-b.1"]]}
    result, shown = draw(declared)
    assert result["failed"] and "a difference; nothing was changed" in result["msg"]
    assert "move the plug in spark-b.0 to spark-b.1" in result["msg"] and "NOT SEEN" in shown
    result, _shown = draw(declared, strict=False)
    assert "failed" not in result and len(result["problems"]) == 1


def test_nothing_declared_is_suggested(draw):
    result, shown = draw()
    assert result["suggestion"] == "tandem_cables:\n  - [spark-a.0, spark-b.0]"
    assert result["suggestion"] in shown and result["msg"] == "nothing declared"


def test_links_with_addresses_declare_a_cable_too(draw):
    def change(hostvars):
        for name, last in (("spark-a", 1), ("spark-b", 2)):
            hostvars[name]["tandem_links"] = [{"interface": "enp1s0f0np0", "address": f"10.0.0.{last}/30"}]

    assert "spark-a.0 - spark-b.0  seen" in draw(change=change)[1]


def test_a_declaration_that_cannot_be_read(draw):
    result, shown = draw({"tandem_cables": [["spark-a.0", "spark-x.0"]]})
    assert result["failed"] and "spark-x" in result["msg"] and "===" in shown


def test_a_node_that_is_not_there(draw):
    result, shown = draw(CABLES, lambda hostvars: hostvars["spark-b"].pop("__seen"))
    assert "failed" not in result and result["warnings"] == ["spark-b: not checked (no result)"]
    assert "not checked" in shown

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.tandem.spark.plugins.filter import tandem

ROOT = Path(__file__).parents[4]
SIDECARS = ROOT / "plugins/filter"
FILTERS = tandem.FilterModule().filters()


def test_every_filter_that_a_role_names_is_there():
    named = {
        name
        for path in [*ROOT.glob("roles/**/*.yml"), *ROOT.glob("playbooks/*.yml"), *ROOT.glob("roles/**/*.j2")]
        for name in re.findall(r"\|\s*tandem\.spark\.(\w+)", path.read_text(encoding="utf-8"))
    }
    assert named <= set(FILTERS)
    assert all(callable(function) and function.__doc__ for function in FILTERS.values())


def test_no_filter_that_nobody_uses():
    paths = [*ROOT.glob("roles/**/*.yml"), *ROOT.glob("playbooks/*.yml")]
    text = "".join(path.read_text(encoding="utf-8") for path in paths)
    assert [name for name in FILTERS if f"tandem.spark.{name}" not in text] == []


def test_every_filter_has_its_documentation():
    assert {path.stem for path in SIDECARS.glob("*.yml")} == set(FILTERS)


@pytest.mark.parametrize("name", FILTERS)
def test_the_documentation_has_the_filters_parameters(name):
    text = yaml.safe_load((SIDECARS / f"{name}.yml").read_text(encoding="utf-8"))
    documentation = text["DOCUMENTATION"]
    _first, *others = inspect.signature(FILTERS[name]).parameters.values()
    assert documentation["name"] == name
    assert list(documentation["options"]) == ["_input", *(parameter.name for parameter in others)]
    positional = [parameter.name for parameter in others if parameter.kind is not parameter.KEYWORD_ONLY]
    assert documentation["positional"].split(", ") == ["_input", *positional]
    for parameter in others:
        option = documentation["options"][parameter.name]
        assert option["description"] and option["type"]
        assert option.get("required", False) is (parameter.default is parameter.empty)
    assert f"tandem.spark.{name}" in text["EXAMPLES"] and text["RETURN"]["_value"]["type"]

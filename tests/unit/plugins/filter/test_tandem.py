# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.tandem.spark.plugins.filter import tandem

ROOT = Path(__file__).parents[4]


def test_every_filter_that_a_role_names_is_there():
    filters = tandem.FilterModule().filters()
    named = {
        name
        for path in [*ROOT.glob("roles/**/*.yml"), *ROOT.glob("playbooks/*.yml"), *ROOT.glob("roles/**/*.j2")]
        for name in re.findall(r"\|\s*tandem\.spark\.(\w+)", path.read_text(encoding="utf-8"))
    }
    assert named <= set(filters)
    assert all(callable(function) and function.__doc__ for function in filters.values())


def test_no_filter_that_nobody_uses():
    text = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("roles/**/*.yml"))
    assert [name for name in tandem.FilterModule().filters() if f"tandem.spark.{name}" not in text] == []

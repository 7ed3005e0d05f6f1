# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _systemd
from hypothesis import given
from hypothesis import strategies as st


def test_properties():
    text = "LoadState=loaded\nActiveState=active\nStatusText=a=b\n\nnonsense\nMainPID=\n"
    assert _systemd.parse_show(text) == {
        "LoadState": "loaded",
        "ActiveState": "active",
        "StatusText": "a=b",
        "MainPID": "",
    }


@pytest.mark.parametrize(
    ("state", "active"),
    [
        ("active", True),
        ("activating", True),
        ("reloading", True),
        ("deactivating", False),
        ("inactive", False),
        ("failed", False),
        (None, False),
    ],
)
def test_is_active(state, active):
    assert _systemd.is_active({"ActiveState": state} if state else {}) is active


@given(st.text())
def test_any_output(text):
    _systemd.parse_show(text)


def test_commands_ask_for_one_unit_only():
    assert _systemd.show_command("x.service")[:3] == ["systemctl", "show", "x.service"]
    assert "--lines=25" in _systemd.journal_command("x.service", 25)
    assert "--unit=x.service" in _systemd.journal_command("x.service", 25)


def test_the_journal_of_one_start_has_no_lines_of_the_one_before():
    command = _systemd.journal_command("x.service", 25, "0" * 32)
    assert command[-3:] == [f"_SYSTEMD_INVOCATION_ID={'0' * 32}", "+", f"INVOCATION_ID={'0' * 32}"]
    assert "InvocationID" in _systemd.show_command("x.service")[-1]

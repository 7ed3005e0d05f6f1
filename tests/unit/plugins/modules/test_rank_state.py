# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import socket

import pytest
from ansible_collections.tandem.spark.plugins.modules import rank_state


@pytest.fixture
def look(run_module, commands, tmp_path):
    def run(state, note=None, **options):
        commands["systemctl show tandem-rank.service"] = (0, f"ActiveState={state}\nExecMainStatus=1\n", "")
        commands["journalctl"] = (0, "line 1\nline 2\n", "")
        path = tmp_path / "rank.json"
        if note is not None:
            path.write_text(note)
        return run_module(rank_state, {"state_file": str(path), **options})

    return run


@pytest.mark.parametrize("state", ["active", "activating"])
def test_a_running_rank(look, state):
    result = look(state, json.dumps({"rank_sha256": "d"}), wanted="d")
    assert (result["changed"], result["active"], result["running"], result["wanted"]) == (False, True, "d", "d")
    assert result["port_taken"] is None and result["journal"] == ""


@pytest.mark.parametrize("note", [None, "", "{", "[]", "{}", "null", '"x"', "5"], ids=repr)
def test_a_rank_that_noted_nothing_usable(look, note):
    result = look("active", note)
    assert result["active"] is True and result["running"] is None


def test_an_old_note_of_a_rank_that_ended_says_nothing(look):
    result = look("failed", json.dumps({"rank_sha256": "d"}), journal_lines=2)
    assert result["active"] is False and result["running"] is None
    assert result["unit"] == {"ActiveState": "failed", "ExecMainStatus": "1"} and result["journal"] == "line 1\nline 2"


@pytest.mark.parametrize("bound_to", ["127.0.0.1", "0.0.0.0"])
def test_a_foreign_server_on_the_apis_port(look, bound_to):
    with socket.create_server((bound_to, 0)) as server:
        port = server.getsockname()[1]
        assert look("inactive", address="127.0.0.1", port=port)["port_taken"] is True
        assert look("inactive", address="localhost", port=port)["port_taken"] is True
        # One's own rank has the port while it runs, and while it ends.
        assert look("active", address="127.0.0.1", port=port)["port_taken"] is None
        assert look("deactivating", address="127.0.0.1", port=port)["port_taken"] is None
        # A worker has no API.
        assert look("inactive", port=port)["port_taken"] is None
    assert look("inactive", address="127.0.0.1", port=port)["port_taken"] is False


@pytest.mark.parametrize("address", ["192.0.2.1", "no-such-host.invalid", ""])
def test_an_address_that_says_nothing_about_the_port(look, address):
    assert look("inactive", address=address, port=8000)["port_taken"] is None

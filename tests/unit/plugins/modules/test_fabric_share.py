# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from pathlib import Path

import pytest
from ansible_collections.tandem.spark.plugins.modules import fabric_share

SECRET = "a-secret-of-one-transfer"


@pytest.fixture
def node(commands, monkeypatch, tmp_path):
    """The unit's daemon is a listener of this process."""
    state = {"unit": False, "listener": None, "start": (0, "", ""), "silent": False}
    (tmp_path / "rsync").write_text("#!/bin/sh\n")
    (tmp_path / "rsync").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(fabric_share, "READY_S", 0.3)

    def start(words, _options):
        state["command"] = words
        if state["start"][0] == 0 and not state["silent"]:
            port = int(next(word for word in words if word.startswith("--port=")).split("=")[1])
            state["listener"] = socket.create_server(("127.0.0.1", port))
        state["unit"] = state["start"][0] == 0
        return state["start"]

    def stop(_words, _options):
        state["unit"] = False
        if state["listener"]:
            state["listener"].close()
        return 0, "", ""

    commands["systemd-run"] = start
    commands["systemctl stop"] = stop
    commands["systemctl is-active"] = lambda _w, _o: (0 if state["unit"] else 3, "", "")
    commands["journalctl"] = (0, "last words of the daemon", "")
    yield state
    if state["listener"]:
        state["listener"].close()


@pytest.fixture
def arguments():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    name = f"unit-test-{os.getpid()}-{threading.get_ident()}"
    return {
        "name": name,
        "path": "/var/lib/tandem/models/m",
        "address": "127.0.0.1",
        "port": port,
        "peers": ["192.168.100.11"],
        "secret": SECRET,
    }


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="not checked: /run/tandem-share-* needs root")


@needs_root
def test_start_and_stop(run_module, node, arguments):
    directory = f"/run/tandem-share-{arguments['name']}"
    assert run_module(fabric_share, arguments, check_mode=True)["changed"] is True and not node["unit"]
    try:
        result = run_module(fabric_share, arguments)
        assert result["changed"] is True and result["unit"] == os.path.basename(directory)
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
        for name in ("secrets", "rsyncd.conf"):
            assert stat.S_IMODE(os.stat(f"{directory}/{name}").st_mode) == 0o600
        config = Path(directory, "rsyncd.conf").read_text()
        assert "hosts allow = 192.168.100.11\n" in config and "read only = yes" in config
        # The unit's file system is read-only: whatever the daemon writes must be below a path that is not.
        assert f"lock file = {directory}/lock" in config
        assert f"--property=ReadWritePaths={directory}" in node["command"]
        assert SECRET not in json.dumps(result) + " ".join(node["command"])
        assert "--address=127.0.0.1" in node["command"] and "--property=RuntimeMaxSec=86400" in node["command"]
    finally:
        absent = {"name": arguments["name"], "state": "absent"}
        assert run_module(fabric_share, absent, check_mode=True)["changed"] is True
        assert run_module(fabric_share, absent)["changed"] is True
    assert not os.path.exists(directory) and not node["unit"]
    assert run_module(fabric_share, absent)["changed"] is False


@needs_root
@pytest.mark.parametrize("how", ["refused", "silent"])
def test_a_daemon_that_does_not_start(run_module, node, arguments, how):
    if how == "refused":
        node["start"] = (1, "", "unit exists")
    else:
        node["silent"] = True
    result = run_module(fabric_share, arguments)
    assert result["failed"] and "last words of the daemon" in result["msg"]
    assert ("unit exists" if how == "refused" else "nothing listens") in result["msg"]
    assert SECRET not in json.dumps(result)
    assert not os.path.exists(f"/run/tandem-share-{arguments['name']}") and not node["unit"]


def test_a_port_that_somebody_has(run_module, node, arguments):
    with socket.create_server(("127.0.0.1", arguments["port"])):
        result = run_module(fabric_share, arguments)
    assert result["failed"] and f"127.0.0.1:{arguments['port']}" in result["msg"]


def test_what_a_share_needs(run_module, node, arguments):
    for key in ("path", "address", "peers", "secret"):
        result = run_module(fabric_share, {name: value for name, value in arguments.items() if name != key})
        assert result["failed"] and key in result["msg"] and not node["unit"]

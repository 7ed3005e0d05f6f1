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
    state = {"unit": False, "listeners": [], "commands": [], "start": (0, "", ""), "silent": False}
    (tmp_path / "rsync").write_text("#!/bin/sh\n")
    (tmp_path / "rsync").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(fabric_share, "READY_S", 0.3)

    def start(words, _options):
        state["commands"].append(words)
        if state["start"][0] == 0 and not state["silent"]:
            port = int(next(word for word in words if word.startswith("--port=")).split("=")[1])
            address = next(word for word in words if word.startswith("--address=")).split("=")[1]
            state["listeners"].append(socket.create_server((address, port)))
        state["unit"] = state["start"][0] == 0
        return state["start"]

    def stop(_words, _options):
        state["unit"] = False
        for listener in state["listeners"]:
            listener.close()
        return 0, "", ""

    commands["systemd-run"] = start
    commands["systemctl stop"] = stop
    commands["journalctl"] = (0, "last words of the daemon", "")
    yield state
    for listener in state["listeners"]:
        listener.close()


@pytest.fixture
def arguments():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    name = f"unit-test-{os.getpid()}-{threading.get_ident()}"
    return {
        "name": name,
        "path": "/var/lib/tandem/models/m",
        "listen": [{"address": "127.0.0.1", "peers": ["192.168.100.11"]}],
        "port": port,
        "secret": SECRET,
    }


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="not checked: /run/tandem-share-* needs root")


@needs_root
def test_start_and_stop(run_module, node, arguments):
    directory = f"/run/tandem-share-{arguments['name']}"
    arguments["listen"].append({"address": "127.0.0.2", "peers": ["192.168.101.11"]})
    assert run_module(fabric_share, arguments, check_mode=True)["changed"] is True and not node["unit"]
    try:
        result = run_module(fabric_share, arguments)
        assert result["changed"] is True
        assert result["units"] == [f"{os.path.basename(directory)}-127.0.0.{n}" for n in (1, 2)]
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
        assert len(node["commands"]) == 2
        for number, command in enumerate(node["commands"], 1):
            place = f"{directory}/127.0.0.{number}"
            for name in ("secrets", "rsyncd.conf"):
                assert stat.S_IMODE(os.stat(f"{place}/{name}").st_mode) == 0o600
            config = Path(place, "rsyncd.conf").read_text()
            # Only the peers of the same rail.
            assert f"hosts allow = 192.168.{99 + number}.11\n" in config and "read only = yes" in config
            assert "[proof]" not in config
            # The unit's file system is read-only: whatever the daemon writes must be below a path that is not.
            assert f"lock file = {place}/lock" in config
            assert f"--property=ReadWritePaths={place}" in command
            assert SECRET not in json.dumps(result) + " ".join(command)
            assert f"--address=127.0.0.{number}" in command and "--property=RuntimeMaxSec=86400" in command
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
    for key in ("path", "listen", "secret"):
        result = run_module(fabric_share, {name: value for name, value in arguments.items() if name != key})
        assert result["failed"] and key in result["msg"] and not node["unit"]


@pytest.mark.parametrize(
    ("listen", "named"),
    [
        ([{"address": "0.0.0.0", "peers": ["192.168.100.11"]}], "0.0.0.0"),
        ([{"address": "", "peers": ["192.168.100.11"]}], "address"),
        ([{"address": "127.0.0.1", "peers": ["*"]}], "'*'"),
        ([{"address": "127.0.0.1", "peers": ["192.168.100.0/24"]}], "192.168.100.0/24"),
        ([{"address": "127.0.0.1", "peers": []}], "peers of 127.0.0.1: found none"),
        ([], "listen: found nothing"),
    ],
)
def test_never_for_everybody(run_module, node, arguments, listen, named):
    result = run_module(fabric_share, {**arguments, "listen": listen})
    assert result["failed"] and named in result["msg"] and "Nothing was started" in result["msg"]
    assert not node["unit"] and not os.path.exists(f"/run/tandem-share-{arguments['name']}")


@needs_root
def test_a_relay_offers_its_proof_and_nothing_else_beside_it(run_module, node, arguments, tmp_path):
    arguments.update(path=str(tmp_path / ".staging-m"), relay=True)
    try:
        assert run_module(fabric_share, arguments)["changed"] is True
        config = Path(f"/run/tandem-share-{arguments['name']}/127.0.0.1/rsyncd.conf").read_text()
        assert f"[proof]\npath = {tmp_path}\nfilter = + /.staging-m.arrived.json - *\n" in config
        assert (tmp_path / ".staging-m").is_dir()
    finally:
        run_module(fabric_share, {"name": arguments["name"], "state": "absent"})

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _journal


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    monkeypatch.setattr(_journal, "DIRECTORY", str(tmp_path / "journal"))
    monkeypatch.setattr(_journal, "BOOT_UNIT", str(tmp_path / "boot.service"))
    monkeypatch.setattr(_journal, "BOOT_LINK", str(tmp_path / "boot.wants"))
    return tmp_path


def address(local="192.168.100.10", prefix=24, **more):
    return {"family": "inet", "local": local, "prefixlen": prefix, "broadcast": None, "scope": "global", **more}


def interface(*addresses, mtu=1500, up=True, mode="eui64"):
    return {"mtu": mtu, "up": up, "addrgenmode": mode, "addresses": list(addresses)}


def running(**interfaces):
    return {"interfaces": interfaces, "routes": [], "sysctls": {}, "units": {}}


def test_look_and_put_are_byte_exact(tmp_path):
    file, link, gone = tmp_path / "a/file", tmp_path / "link", tmp_path / "gone"
    file.parent.mkdir()
    file.write_bytes(b"\x00\xff no line end")
    file.chmod(0o604)
    link.symlink_to("file")
    entries = [_journal.look(str(path)) for path in (file, link, gone)]
    assert [entry["state"] for entry in entries] == ["file", "link", "absent"]
    file.write_text("new")
    file.chmod(0o644)
    link.unlink()
    gone.write_text("new")
    assert [_journal.put(entry) for entry in entries] == [True, True, True]
    assert file.read_bytes() == b"\x00\xff no line end" and stat.S_IMODE(file.stat().st_mode) == 0o604
    assert os.readlink(link) == "file" and not gone.exists()
    assert [_journal.put(entry) for entry in entries] == [False, False, False]
    assert sorted(os.listdir(tmp_path)) == ["a", "link"]


def test_a_journal_is_written_as_a_whole(place):
    journal = {
        "files": [{"path": "/etc/x", "state": "file", "mode": 0o600, "owner": 0, "group": 0, "content": b"\xfe"}]
    }
    journal.update(runtime=running(), ours=[], reload=[])
    assert _journal.read("pending") is None
    _journal.write("pending", journal)
    assert _journal.read("pending") == journal
    assert (place / "journal/pending/files/etc/x").read_bytes() == b"\xfe"
    assert stat.S_IMODE((place / "journal/pending").stat().st_mode) == 0o700
    # A half-written one, as a power loss leaves it, is none.
    (place / "journal/original.new").mkdir()
    assert _journal.read("original") is None


def test_steps_back():
    before = running(
        a=interface(address("10.0.0.1"), mtu=1500, up=False), gone=interface(), m=interface(address("192.168.1.2"))
    )
    before["routes"] = [
        {"dst": "default", "gateway": "192.168.1.1", "dev": "m"},
        {"dst": "192.168.1.0/24", "dev": "m", "protocol": "kernel", "scope": "link", "prefsrc": "192.168.1.2"},
    ]
    now = running(a=interface(address(), address("10.9.9.9"), mtu=9000, mode="none"), m=interface())
    now["routes"] = [{"dst": "10.5.0.0/30", "gateway": "192.168.100.11", "dev": "a", "protocol": "static"}]
    steps = _journal.steps_back(before, now, {"192.168.100.10/24", "10.5.0.0/30"})
    assert steps == [
        ["ip", "link", "set", "dev", "a", "addrgenmode", "eui64"],
        ["ip", "link", "set", "dev", "a", "down"],
        ["ip", "link", "set", "dev", "a", "mtu", "1500"],
        ["ip", "addr", "del", "192.168.100.10/24", "dev", "a"],  # 10.9.9.9 is somebody else's
        ["ip", "-4", "addr", "add", "10.0.0.1/24", "dev", "a"],
        ["ip", "-4", "addr", "add", "192.168.1.2/24", "dev", "m"],
        ["ip", "-4", "route", "del", "10.5.0.0/30", "via", "192.168.100.11", "dev", "a", "proto", "static"],
        ["ip", "-4", "route", "replace", "default", "via", "192.168.1.1", "dev", "m"],
    ]
    assert _journal.steps_back(before, before, set()) == []
    # NetworkManager gives another metric, and its own way into the network.
    static = {"dst": "10.5.0.0/30", "gateway": "192.168.100.11", "dev": "a", "protocol": "static"}
    before["routes"], now["routes"] = [dict(static, metric=104)], [dict(static, metric=120)]
    assert not [step for step in _journal.steps_back(before, now, {"10.5.0.0/30"}) if "route" in step]


def test_networkmanager_is_given_time(monkeypatch, place):
    """Its addresses are not put there a second time while it is still about to."""
    ran, there = [], running(a=interface(address()))
    looks = [running(a=interface())] * 3 + [there] * 9
    monkeypatch.setattr(_journal, "execute", lambda words: ran.append(list(words)) or (0, "[]"))
    monkeypatch.setattr(_journal, "runtime", lambda *_what: looks.pop(0))
    monkeypatch.setattr(_journal.time, "sleep", lambda _seconds: None)
    journal = {"files": [], "runtime": there, "ours": [], "reload": [["nmcli", "connection", "reload"]]}
    assert _journal.put_back(journal) == [] and not [words for words in ran if "add" in words]
    looks[:] = [running(a=interface())] * _journal.PATIENCE + [there] * 9
    assert _journal.put_back(journal) == [] and len([words for words in ran if "add" in words]) == 1


def test_ufw_goes_back_rule_by_rule(monkeypatch, place):
    mark = f"comment '{_journal.UFW_MARK}'"
    rules = [f"ufw allow in on a from 10.0.0.0/30 {mark}", "ufw allow 22/tcp", "ufw allow 80 comment 'it's broken'"]
    ran = []

    def execute(words):
        if words == ["ufw", "show", "added"]:
            return 0, "Added user rules (see 'ufw status' for running firewall):\n" + "\n".join(rules)
        if words[:2] == ["ufw", "delete"]:
            ran.append(words)
            rules.pop(0)
        return 0, "[]"

    monkeypatch.setattr(_journal, "execute", execute)
    monkeypatch.setattr(_journal.time, "sleep", lambda _seconds: None)
    journal = {"files": [], "runtime": {**running(), "ufw": []}, "ours": [], "reload": []}
    assert _journal.put_back(journal) == [] and ran == [
        ["ufw", "delete", "allow", "in", "on", "a", "from", "10.0.0.0/30"]
    ]
    assert _journal.put_back(journal) == [] and len(ran) == 1
    assert len(_journal.ufw_commands("\n".join(rules))) == 2


def test_a_journal_from_before_ufw_learns_of_it():
    older = {"files": [], "runtime": running(), "ours": [], "reload": []}
    newer = {"files": [], "runtime": {**running(), "ufw": []}, "ours": [], "reload": []}
    assert _journal.merged(older, newer)["runtime"]["ufw"] == []
    known = {**older, "runtime": {**running(), "ufw": [["ufw", "allow", "1"]]}}
    assert _journal.merged(known, newer)["runtime"]["ufw"] == [["ufw", "allow", "1"]]


def test_addresses_of_dhcp_and_link_local_ones_are_left_to_their_givers(monkeypatch):
    shown = [
        {
            "ifname": "a",
            "mtu": 1500,
            "flags": ["UP"],
            "addr_info": [
                {"family": "inet", "local": "10.0.0.5", "prefixlen": 24, "dynamic": True},
                {"family": "inet6", "local": "fe80::1", "prefixlen": 64, "scope": "link"},
            ],
        }
    ]
    monkeypatch.setattr(_journal, "execute", lambda words: (0, json.dumps(shown if "addr" in words else [])))
    before = _journal.runtime(["a", "not there"], [], [])
    assert [a["local"] for a in before["interfaces"]["a"]["addresses"]] == ["fe80::1"]
    shown[0]["addr_info"] = []
    assert _journal.steps_back(before, _journal.runtime(["a"], [], []), set()) == []


def test_merged_keeps_the_older_state_and_takes_what_is_new():
    older = {
        "files": [{"path": "/a", "state": "absent"}],
        "runtime": running(a=interface()),
        "ours": ["x"],
        "reload": [["r"]],
    }
    newer = {
        "files": [{"path": "/a", "state": "file"}, {"path": "/b", "state": "absent"}],
        "runtime": running(a=interface(mtu=9000), b=interface(mtu=4200)),
        "ours": ["y"],
        "reload": [["r"], ["s"]],
    }
    newer["runtime"]["routes"] = [{"dst": "n1", "dev": "a"}, {"dst": "n2", "dev": "b"}]
    found = _journal.merged(older, newer)
    assert [entry["state"] for entry in found["files"]] == ["absent", "absent"]
    assert found["runtime"]["interfaces"]["a"]["mtu"] == 1500 and found["runtime"]["interfaces"]["b"]["mtu"] == 4200
    assert found["runtime"]["routes"] == [{"dst": "n2", "dev": "b"}] and found["ours"] == ["x", "y"]
    assert _journal.merged(None, newer) is newer


def test_revert_says_what_it_could_not_put_back(monkeypatch, place):
    monkeypatch.setattr(_journal, "SETTLE_S", 0)
    monkeypatch.setattr(_journal, "execute", lambda words: (1, ""))
    (place / "in the way").write_text("")
    files = [
        {"path": str(place / "in the way/file"), "state": "file", "mode": 0o600, "owner": 0, "group": 0, "content": b""}
    ]
    _journal.write("pending", {"files": files, "runtime": running(), "ours": [], "reload": []})
    assert "in the way" in (_journal.revert(why="test") or [""])[0]
    note = json.loads((place / "journal/reverted/note.json").read_text())
    assert note["why"] == "test" and len(note["left"]) == 1
    assert _journal.revert() is None


def test_sysctls_and_units_come_back(monkeypatch, place):
    ran = []
    monkeypatch.setattr(_journal, "execute", lambda words: ran.append(" ".join(words)) or (0, "[]"))
    monkeypatch.setattr(_journal.time, "sleep", lambda _seconds: None)
    sysctl = place / "forwarding"
    sysctl.write_text("1\n")
    state = {**running(), "sysctls": {str(sysctl): "0"}, "units": {"new.service": False, "old.service": True}}
    assert _journal.put_back({"files": [], "runtime": state, "ours": [], "reload": [["netplan", "apply"]]}) == []
    assert sysctl.read_text() == "0"
    assert ran[:4] == [
        "systemctl stop new.service",
        "systemctl daemon-reload",
        "netplan apply",
        "systemctl restart old.service",
    ]


def test_it_runs_alone(tmp_path):
    """With nothing but the standard library, as the timer runs it."""
    text = Path(_journal.__file__).read_text().replace("/var/lib/tandem/journal/fabric", str(tmp_path / "j"))
    (tmp_path / "restore").write_text(text)
    done = subprocess.run([sys.executable, "-I", str(tmp_path / "restore")], capture_output=True, text=True, check=True)
    assert "nothing was put back" in done.stdout

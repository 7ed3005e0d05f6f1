# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _netplan
from ansible_collections.tandem.spark.plugins.modules import fabric_config

LINK = {"interface": "enp1s0f0np0", "address": "192.168.100.10/24", "mtu": 9000}
OLD = _netplan.render([dict(LINK, address="192.168.100.9/24")])


@pytest.fixture
def node(commands, monkeypatch, tmp_path):
    """A node whose interface takes what its netplan file says, with a timer that can be armed."""
    path, backup, bin_ = tmp_path / "60-tandem-fabric.yaml", tmp_path / "before.yaml", tmp_path / "bin"
    bin_.mkdir()
    for program in ("ip", "netplan"):
        (bin_ / program).write_text("#!/bin/sh\n")
        (bin_ / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_))
    monkeypatch.setattr(fabric_config, "BACKUP", str(backup))
    monkeypatch.setattr(fabric_config, "SETTLE_S", 0)
    monkeypatch.setattr(fabric_config, "other_files", lambda _path: state["others"])
    state = {"path": path, "backup": backup, "timer": False, "others": {}, "links": {}, "deaf": False}
    state["netplan"] = {"generate": (0, "", ""), "apply": (0, "", "")}

    def interfaces(_words, _options):
        shown = [{"ifname": "lo", "addr_info": [], "flags": ["UP"]}]
        for name, link in {LINK["interface"]: None, **state["links"]}.items():
            ip, prefix = link["address"].split("/") if link else ("", "0")
            info = [{"family": "inet", "local": ip, "prefixlen": int(prefix), "scope": "global"}] if link else []
            shown.append({"ifname": name, "mtu": (link or {}).get("mtu", 1500), "flags": ["UP"], "addr_info": info})
        return 0, json.dumps(shown), ""

    def netplan(words, _options):
        if words[1] == "apply" and not state["deaf"]:
            import yaml

            data = yaml.safe_load(path.read_text()) if path.exists() else {"network": {"ethernets": {}}}
            state["links"] = {
                name: {"address": entry["addresses"][0], "mtu": entry["mtu"]}
                for name, entry in data["network"]["ethernets"].items()
            }
        return state["netplan"][words[1]]

    def arm(words, _options):
        state["timer"] = True
        state["revert"] = words[words.index("/bin/sh") :]
        return state.get("arm", (0, "", ""))

    def stop(_words, _options):
        state["timer"] = False
        return 0, "", ""

    commands[f"{bin_}/ip"] = interfaces
    commands["netplan"] = netplan
    commands["systemd-run"] = arm
    commands["systemctl stop tandem-fabric-revert.timer"] = stop
    commands["systemctl is-active"] = lambda _words, _options: (0 if state["timer"] else 3, "", "")
    return state


@pytest.fixture
def configure(run_module, node):
    def run(*links, check_mode=False, **options):
        arguments = {"links": list(links or [LINK]), "path": str(node["path"]), **options}
        return run_module(fabric_config, arguments, check_mode=check_mode)

    return run


def ran(commands, word):
    return [words for words in commands["ran"] if words[0] == word]


def test_apply_confirm_and_a_second_run(configure, node, commands):
    assert configure(check_mode=True)["changed"] is True and not node["path"].exists()
    assert not ran(commands, "netplan") and not ran(commands, "systemd-run")
    first = configure()
    assert first["changed"] is True and "none" in first["drift"][0]
    assert stat.S_IMODE(node["path"].stat().st_mode) == 0o600  # C16
    assert node["path"].read_text() == first["diff"]["after"] and "192.168.100.10/24" in first["diff"]["after"]
    assert node["timer"] and node["backup"].read_text() == ""
    confirmed = configure(state="confirmed")
    assert confirmed["changed"] is False and not node["timer"] and not node["backup"].exists()
    second = configure()
    assert second["changed"] is False and second["drift"] == []
    assert len(ran(commands, "systemd-run")) == 1


def test_the_timer_is_armed_before_anything_is_written(configure, node, commands):
    node["arm"] = (1, "", "no systemd here")
    result = configure()
    assert result["failed"] and "nothing was changed" in result["msg"] and not node["path"].exists()
    assert not ran(commands, "netplan") and not node["backup"].exists()
    words = ran(commands, "systemd-run")[0]
    assert "--on-active=120s" in words and "--unit=tandem-fabric-revert" in words


@pytest.mark.parametrize("step", ["generate", "apply"])
@pytest.mark.parametrize("before", [None, OLD], ids=["no file", "old file"])
def test_netplan_fails(configure, node, step, before):
    if before:
        node["path"].write_text(before)
    node["netplan"][step] = (1, "", "line 3: error")
    result = configure()
    assert result["failed"] and f"netplan {step}" in result["msg"] and "line 3: error" in result["msg"]
    assert (node["path"].read_text() if node["path"].exists() else None) == before
    assert not node["timer"] and not node["backup"].exists()


def test_an_interface_that_does_not_take_it(configure, node):
    node["path"].write_text(OLD)
    node["deaf"] = True
    result = configure()
    assert result["failed"] and "enp1s0f0np0" in result["msg"] and node["path"].read_text() == OLD
    assert not node["timer"]


@pytest.mark.parametrize("before", [None, OLD], ids=["no file", "old file"])
def test_a_run_after_one_that_never_confirmed(configure, node, before):
    """The timer of the first run still goes: saying 'unchanged' would let it take the configuration away."""
    if before:
        node["path"].write_text(before)
    configure()
    again = configure()
    assert again["changed"] is True and configure(check_mode=True)["changed"] is True
    assert configure(state="confirmed")["changed"] is False and not node["timer"]
    assert configure()["changed"] is False


def test_the_way_back_of_a_second_change_is_what_was_confirmed(configure, node):
    node["path"].write_text(OLD)
    configure()
    configure(dict(LINK, mtu=4200))
    assert node["backup"].read_text() == OLD
    node["netplan"]["generate"] = (1, "", "bad")
    assert configure(dict(LINK, mtu=1500))["failed"]
    assert node["path"].read_text() == OLD


def test_a_confirmation_that_comes_too_late(configure, node):
    configure()
    node["timer"] = False  # it went off
    result = configure(state="confirmed")
    assert result["failed"] and "fabric_revert_after_s" in result["msg"]


def test_a_confirmation_of_nothing(configure, node):
    assert configure(state="confirmed")["changed"] is False


@pytest.mark.parametrize("before", [None, OLD], ids=["no file", "old file"])
def test_what_the_timer_runs_puts_the_old_file_back(configure, node, before, tmp_path):
    if before:
        node["path"].write_text(before)
    configure()
    (tmp_path / "bin/netplan").write_text(f"#!/bin/sh\necho $1 > {tmp_path}/applied\n")
    path = f"{tmp_path}/bin:/usr/bin:/bin"
    subprocess.run(node["revert"], check=True, env={"PATH": path})
    assert (node["path"].read_text() if node["path"].exists() else None) == before
    assert (tmp_path / "applied").read_text() == "apply\n"


def test_c14_an_mtu_that_was_lost_is_put_back(configure, node):
    configure()
    configure(state="confirmed")
    node["links"]["enp1s0f0np0"]["mtu"] = 1500
    result = configure()
    assert result["changed"] is True and result["drift"] == ["enp1s0f0np0: mtu 1500, wanted 9000"]
    assert "# enp1s0f0np0: mtu 1500" in result["diff"]["before"]


def test_c16_a_file_that_others_may_read(configure, node):
    configure()
    configure(state="confirmed")
    node["path"].chmod(0o644)
    assert configure()["changed"] is True
    assert stat.S_IMODE(node["path"].stat().st_mode) == 0o600


def test_c16_another_file_with_our_interface(configure, node, commands):
    node["others"] = {
        "/etc/netplan/40-cx7.yaml": "network: {ethernets: {enp1s0f0np0: {addresses: [192.168.100.9/24]}}}"
    }
    for check_mode in (True, False):
        result = configure(check_mode=check_mode)
        assert result["failed"] and "/etc/netplan/40-cx7.yaml" in result["msg"] and "enp1s0f0np0" in result["msg"]
    assert not node["path"].exists() and not ran(commands, "netplan")


def test_an_interface_that_is_not_there(configure, node):
    result = configure(LINK, dict(LINK, interface="enp1s0f1np1", address="10.0.0.1/24"))
    assert result["failed"] and "enp1s0f1np1" in result["msg"] and "enp1s0f0np0" not in result["msg"]


def test_no_netplan(configure, node, tmp_path):
    (tmp_path / "bin/netplan").unlink()
    result = configure()
    assert result["failed"] and "netplan.io" in result["msg"] and not node["path"].exists() and not node["timer"]


def test_other_files(monkeypatch, tmp_path):
    own, other = tmp_path / "60.yaml", tmp_path / "40.yaml"
    own.write_text("own")
    other.write_text("other")
    monkeypatch.setattr(fabric_config.glob, "glob", lambda pattern: [str(own), str(other)] if "etc" in pattern else [])
    assert fabric_config.other_files(str(own)) == {str(other): "other"}
    assert Path(own).exists()

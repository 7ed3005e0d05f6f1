# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _discovery
from ansible_collections.tandem.spark.plugins.modules import fabric_discover

RAILS = ("enp1s0f0np0", "enP2p1s0f0np0")
MAC = "4c:bb:47:00:00:0{}"


@pytest.fixture
def node(monkeypatch, commands):
    """A node with two rails; returns the other ends of its cables and its switches (``up``, ``carrier``)."""
    state = {"up": dict.fromkeys(RAILS, True), "carrier": dict.fromkeys(RAILS, True)}
    ends = {}
    interfaces = {
        name: {"cage": 0, "half": half, "mac": MAC.format(half), "admin_up": True} for half, name in enumerate(RAILS)
    }

    def open_socket(name):
        near, ends[name] = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        near.setblocking(False)
        return near

    def switch(words, _options):
        state["up"][words[-2]] = words[-1] == "up"
        return 0, "", ""

    def known(_host):
        return {name: {**entry, "admin_up": state["up"][name]} for name, entry in interfaces.items()}

    monkeypatch.setattr(fabric_discover, "open_socket", open_socket)
    monkeypatch.setattr(fabric_discover, "fabric_interfaces", known)
    monkeypatch.setattr(fabric_discover, "carrier", lambda _host, name: state["up"][name] and state["carrier"][name])
    monkeypatch.setattr(fabric_discover.Host, "find", lambda *_arguments: None)
    monkeypatch.setattr(fabric_discover.AnsibleModule, "get_bin_path", lambda _self, name, **_options: name)
    commands["ip link set dev"] = switch
    state["ends"] = ends
    yield state
    for end in ends.values():
        end.close()


@contextlib.contextmanager
def peer(ends, rails=RAILS, node="spark-b", run="r1"):
    """The other node: answers on *rails* until the end."""
    ear, over = _discovery.Ear(node, run, 2), threading.Event()

    def talk():
        while not over.wait(0.02):
            for half, name in enumerate(RAILS):
                if name in ends and name in rails:
                    with contextlib.suppress(OSError):
                        ends[name].send(_discovery.frame(MAC.format(half + 2), ear.hello(name, 1, half)))
                        ear.listen(name, ends[name].recv(2000, socket.MSG_DONTWAIT))

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def discover(run_module, **options):
    return run_module(fabric_discover, {"node": "spark-a", "run": "r1", "nodes": 2, "duration_s": 5, **options})


def test_both_rails_answer_and_it_ends_early(run_module, node):
    began = time.monotonic()
    with peer(node["ends"]):
        result = discover(run_module)
    assert time.monotonic() - began < 3 and result["seconds"] < 3
    assert result["changed"] is False and result["checked"] is True
    rail = result["interfaces"]["enP2p1s0f0np0"]
    assert rail["neighbours"] == [{"node": "spark-b", "interface": "enP2p1s0f0np0", "cage": 1, "rail": 1}]
    assert (rail["carrier"], rail["answered"], rail["cage"], rail["rail"]) == (True, True, 0, 1)


def test_one_rail_is_silent(run_module, node):
    with peer(node["ends"], RAILS[:1]):
        result = discover(run_module, duration_s=0.6)
    assert [bool(result["interfaces"][name]["neighbours"]) for name in RAILS] == [True, False]
    assert result["interfaces"]["enP2p1s0f0np0"]["carrier"] is True and result["seconds"] >= 0.6


def test_another_run_is_nobody(run_module, node):
    with peer(node["ends"], run="yesterday"):
        result = discover(run_module, duration_s=0.4)
    assert all(not entry["neighbours"] for entry in result["interfaces"].values())


def test_what_is_off_stays_off_unless_asked(run_module, node, commands):
    node["up"]["enP2p1s0f0np0"] = False
    with peer(node["ends"]):
        result = discover(run_module, duration_s=0.5)
    assert result["interfaces"]["enP2p1s0f0np0"]["carrier"] is None and commands["ran"] == []


def test_what_was_off_is_off_again(run_module, node, commands):
    node["up"]["enP2p1s0f0np0"] = False
    with peer(node["ends"]):
        result = discover(run_module, bring_up=True)
    assert result["interfaces"]["enP2p1s0f0np0"]["neighbours"] and result["changed"] is False
    assert [words[-2:] for words in commands["ran"]] == [["enP2p1s0f0np0", "up"], ["enP2p1s0f0np0", "down"]]


def test_without_root_it_says_so_and_cleans_up(run_module, node, commands, monkeypatch):
    def refuse(_name):
        raise PermissionError("Operation not permitted")

    node["up"]["enP2p1s0f0np0"] = False
    monkeypatch.setattr(fabric_discover, "open_socket", refuse)
    result = discover(run_module, bring_up=True)
    assert result["failed"] and "spark-a" in result["msg"] and "become" in result["msg"]
    assert commands["ran"][-1][-2:] == ["enP2p1s0f0np0", "down"]


def test_check_mode_sends_nothing(run_module, monkeypatch):
    monkeypatch.setattr(fabric_discover, "open_socket", None)
    result = run_module(fabric_discover, {"node": "spark-a", "run": "r1"}, check_mode=True)
    assert result["checked"] is False and "not checked" in result["msg"]


def test_a_node_without_fabric(run_module, node, monkeypatch):
    monkeypatch.setattr(fabric_discover, "fabric_interfaces", lambda _host: {})
    result = discover(run_module)
    assert result["checked"] is True and result["interfaces"] == {} and result["seconds"] == 0

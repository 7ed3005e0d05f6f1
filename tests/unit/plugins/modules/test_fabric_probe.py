# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import asyncio
import json

import pytest
from ansible_collections.tandem.spark.plugins.modules import fabric_probe

SUMMARY = (
    "3 packets transmitted, {} received, 0% packet loss, time 401ms\nrtt min/avg/max/mdev = 0.03/0.04/0.05/0.01 ms\n"
)


def links(mtu=9000):
    return [
        {"interface": rail, "mtu": mtu, "peers": [{"node": "spark-b", "interface": rail, "ip": f"192.168.{n}.11"}]}
        for n, rail in ((100, "enp1s0f0np0"), (101, "enP2p1s0f0np0"))
    ]


@pytest.fixture
def probe(run_module, monkeypatch, tmp_path):
    """*large* and *small* say how many pings of that size come back from an address."""
    (tmp_path / "ping").write_text("#!/bin/sh\n")
    (tmp_path / "ping").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    asked = []

    def run(large, small=lambda _ip: 3, tcp=lambda _ip: fabric_probe.REFUSED, **options):
        async def ping(command):
            asked.append(command)
            size, ip = int(command[command.index("-s") + 1]), command[-1]
            count = (small if size == 56 else large)(ip)
            return "ping: sendmsg: No buffer space available" if count is None else SUMMARY.format(count)

        monkeypatch.setattr(fabric_probe, "ping", ping)
        monkeypatch.setattr(fabric_probe, "knock", lambda _interface, ip, _port: tcp(ip))
        return run_module(fabric_probe, {"node": "spark-a", "links": links(), "settle_s": 0, **options})

    run.asked = asked
    return run


def test_c14_all_rails_pass(probe):
    result = probe(lambda _ip: 3)
    assert result["changed"] is False and [proof["verdict"] for proof in result["proofs"]] == ["ok", "ok"]
    assert all(proof["payload_bytes"] == 8972 and proof["mean_ms"] == 0.04 for proof in result["proofs"])
    assert len(probe.asked) == 2


@pytest.mark.parametrize("lost", [0, None], ids=["silence", "ENOBUFS"])
def test_c14_small_pings_pass_and_large_ones_do_not(probe, lost):
    result = probe(lambda ip: lost if ip.startswith("192.168.101") else 3)
    assert result["failed"] and [proof["verdict"] for proof in result["proofs"]] == ["ok", "mtu"]
    assert all(w in result["msg"] for w in ("spark-a", "spark-b", "enP2p1s0f0np0", "192.168.101.11", "8972", "9000"))
    assert "enp1s0f0np0" not in result["msg"]


@pytest.mark.parametrize("said", ["no answer", "No route to host"])
def test_pings_pass_and_tcp_does_not(probe, said):
    result = probe(lambda _ip: 3, tcp=lambda ip: said if ip.startswith("192.168.101") else fabric_probe.REFUSED)
    assert result["failed"] and [proof["verdict"] for proof in result["proofs"]] == ["ok", "firewall"]
    assert (
        said in result["msg"] and "firewall drops it on spark-b" in result["msg"] and "192.168.101.11" in result["msg"]
    )
    assert probe(lambda _ip: 3, tcp=lambda _ip: "connected")["changed"] is False


def test_a_knock_on_this_machine():
    with fabric_probe.socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert fabric_probe.knock(None, "127.0.0.1", port) == "connected"
    assert fabric_probe.knock(None, "127.0.0.1", port) == fabric_probe.REFUSED


def test_a_dead_rail(probe):
    result = probe(lambda _ip: 0, lambda _ip: 0)
    assert result["failed"] and result["msg"].count("no reply") == 2 and "cable" in result["msg"]


def test_c14_payload_follows_the_mtu(probe):
    assert probe(lambda _ip: 3, links=links(4200))["proofs"][0]["payload_bytes"] == 4172


def test_no_ping_and_no_links(probe, monkeypatch, tmp_path):
    assert probe(lambda _ip: 3, links=[])["proofs"] == []
    (tmp_path / "ping").unlink()
    monkeypatch.setattr("ansible.module_utils.common.process.os.path.exists", lambda _path: False)
    result = probe(lambda _ip: 3)
    assert result["failed"] and "spark-a" in result["msg"] and "iputils-ping" in result["msg"]


def test_the_program_runs_in_plain_english():
    command = ["/bin/sh", "-c", "echo $LC_ALL; echo err >&2; exit 1"]
    assert asyncio.run(fabric_probe.ping(command)) == "C\nerr\n"


FAR = [
    {"node": "spark-c", "ip": "10.0.2.2", "rail": 0, "hops": 2, "through": ["spark-b"], "mtu": 9000},
    {"node": "spark-d", "ip": "10.0.3.2", "rail": 0, "hops": 3, "through": ["spark-b", "spark-c"], "mtu": 4200},
]


def test_far_nodes_are_pinged_end_to_end(probe):
    result = probe(lambda _ip: 3, far=FAR)
    assert [proof["verdict"] for proof in result["proofs"]] == ["ok"] * 4
    assert [proof["payload_bytes"] for proof in result["proofs"]] == [8972, 8972, 8972, 4172]
    assert "-I" not in [word for command in probe.asked if command[-1] == "10.0.3.2" for word in command]
    # Each neighbour is asked once before that.
    assert [command[-1] for command in probe.asked[:2]] == ["192.168.100.11", "192.168.101.11"]
    assert probe.asked[0][probe.asked[0].index("-s") + 1] == "8"


def test_a_neighbour_that_passes_nothing_on(probe):
    result = probe(*[lambda ip: 0 if ip.startswith("10.") else 3] * 2, far=FAR)
    assert result["failed"] and "no reply through spark-b, spark-c" in result["msg"] and "forwarding" in result["msg"]


def test_the_smallest_mtu_on_the_way(probe):
    result = probe(lambda ip: 0 if ip == "10.0.2.2" else 3, far=FAR)
    assert "wanted mtu 9000 on every cable through spark-b" in result["msg"]


def test_nodes_behind_a_silent_neighbour_are_named_once(probe):
    result = probe(lambda _ip: 0, lambda _ip: 0, far=FAR)
    assert result["msg"].count("no reply; wanted one") == 2
    assert "spark-a: spark-c, spark-d cut off behind spark-b" in result["msg"]
    assert [proof["verdict"] for proof in result["proofs"]][2:] == ["cut off", "cut off"]


def test_it_waits_for_the_addresses(probe, commands, monkeypatch, tmp_path):
    (tmp_path / "ip").write_text("#!/bin/sh\n")
    (tmp_path / "ip").chmod(0o755)
    monkeypatch.setattr(fabric_probe.time, "sleep", lambda _seconds: None)
    names = ["enp1s0f0np0", "enP2p1s0f0np0"]
    seen = []

    def show(_words, _options):
        seen.append(1)
        return 0, json.dumps([{"ifname": n, "addr_info": [{}]} for n in names[: len(seen)]]), ""

    commands[f"{tmp_path}/ip -j -4 addr"] = show
    assert "failed" not in probe(lambda _ip: 3, settle_s=20) and len(seen) == 2

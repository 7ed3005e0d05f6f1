# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import re

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _throughput
from ansible_collections.tandem.spark.plugins.module_utils._host import Host
from ansible_collections.tandem.spark.plugins.modules import fabric_measure

RAILS = ("enp1s0f0np0", "enP2p1s0f0np0")
IPERF = json.dumps({"end": {"sum_received": {"bits_per_second": 38.2e9}}})
TABLE = """\
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      645821           0.00               {}   		   0.215211
"""
LATENCY = """\
 #bytes        #iterations       t_avg[usec]    tps average
 2             1903231             1.58           316940.33
"""


def links(rails=RAILS):
    return [
        {
            "interface": rail,
            "ip": f"192.168.{100 + number}.10",
            "peers": [{"node": "spark-b", "interface": rail, "ip": f"192.168.{100 + number}.11"}],
        }
        for number, rail in enumerate(rails)
    ]


@pytest.fixture
def measure(run_module, monkeypatch, tmp_path, spark, commands):
    """A healthy Spark whose tools answer with *bandwidth* (Gb/s, one way, by interface) or another text."""
    monkeypatch.setattr(fabric_measure, "Host", lambda: Host(str(spark.root)))
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("iperf3", "ib_write_bw", "ib_write_lat"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(
        "ansible.module_utils.common.process.os.path.exists", lambda path: str(path) in map(str, tools.iterdir())
    )
    running: list[str] = []
    asked: list[list[str]] = []
    together: list[int] = []

    def run(bandwidth=lambda _rail: 97.1, answer=None, **options):
        async def tool(words, _limit):
            asked.append(words)
            running.append(words[0])
            await fabric_measure.asyncio.sleep(0)
            together.append(len(running))
            running.remove(words[0])
            if answer is not None:
                return answer
            name = words[0].rsplit("/", 1)[-1]
            if name == "iperf3":
                return IPERF
            if name == "ib_write_lat":
                return LATENCY
            rail = RAILS["roceP2p1s0f0" in words]
            return TABLE.format(bandwidth(rail) * (2 if "-b" in words else 1))

        monkeypatch.setattr(fabric_measure, "run", tool)
        return run_module(fabric_measure, {"links": links(), "state": "measured", **options})

    run.asked, run.together, run.tools, run.commands, run.spark = asked, together, tools, commands, spark
    return run


def of(result, test, at_once=False):
    return [e for e in result["measured"] if e["test"] == test and bool(e.get("at_once")) is at_once]


def test_every_rail_alone_and_all_at_once(measure):
    result = measure()
    assert result["not_checked"] == [] and result["changed"] is False
    for test in ("tcp", "ib_write_bw", "ib_write_lat", "ib_write_bw_both_ways"):
        assert [entry["interface"] for entry in of(result, test)] == list(RAILS), test
    assert len(of(result, "ib_write_bw", at_once=True)) == len(of(result, "tcp", at_once=True)) == 2
    assert max(measure.together) == 2
    assert all(entry["verdict"] == "ok" for entry in of(result, "ib_write_bw") + of(result, "ib_write_bw_both_ways"))
    # perftest gives the sum of both directions
    assert {entry["gbps"] for entry in of(result, "ib_write_bw_both_ways")} == {97.1}
    # TCP says what the processor can do: a figure, never a verdict
    assert {entry["verdict"] for entry in of(result, "tcp")} == {"recorded"}


def test_the_words_name_device_gid_and_a_port_of_their_own(measure):
    measure()
    rdma = [words for words in measure.asked if "ib_write" in words[0]]
    assert {words[words.index("-d") + 1] for words in rdma} == {"rocep1s0f0", "roceP2p1s0f0"}
    assert all(words[words.index("-x") + 1] == "3" and words[-1].endswith(".11") for words in rdma)
    ports = {
        (words[0].rsplit("/", 1)[-1], "-b" in words, words[words.index("-d") + 1], words[words.index("-p") + 1])
        for words in rdma
    }
    assert len({where for *_test, where in ports}) == len(ports) == 6


def test_the_expected_rate_comes_from_sysfs(measure):
    assert {entry["expected_gbps"] for entry in of(measure(), "ib_write_bw")} == {100}
    # One lane of 32 GT/s carries 31.5 Gb/s, whatever the port says.
    measure.spark.write("/sys/class/net/enp1s0f0np0/device/current_link_width", "1\n")
    result = measure(lambda rail: 30.2 if rail == RAILS[0] else 97.1)
    first, second = of(result, "ib_write_bw")
    assert first["expected_gbps"] == 31.5 and first["verdict"] == "pcie_slow" and "PCIe" in first["hint"]
    assert second["expected_gbps"] == 100 and second["verdict"] == "ok"


def test_c20_the_13_gb_state_has_its_hint(measure):
    first = of(measure(lambda _rail: 13.23), "ib_write_bw")[0]
    assert first["verdict"] == "degraded_init" and "unplug the mains" in first["hint"]


def test_a_speed_that_is_unknown_is_not_slow(measure):
    """A driver that does not know says -1."""
    measure.spark.write("/sys/class/net/enp1s0f0np0/speed", "-1\n")
    assert of(measure(), "ib_write_bw")[0]["verdict"] == "ok"


def test_a_port_that_came_up_slow(measure):
    measure.spark.write("/sys/class/infiniband/rocep1s0f0/ports/1/rate", "25 Gb/sec (1X EDR)\n")
    first = of(measure(lambda _rail: 23.0), "ib_write_bw")[0]
    assert first["verdict"] == "link_speed" and first["expected_gbps"] == 12.5


def test_what_the_tool_says_is_the_hint(measure):
    result = measure(answer="---\n Couldn't connect to 192.168.100.11:18410\nUnable to open file descriptor\n")
    for test in ("ib_write_bw", "ib_write_lat", "ib_write_bw_both_ways"):
        entry = of(result, test)[0]
        assert entry["verdict"] == _throughput.NOT_MEASURED and entry["hint"].startswith("Couldn't connect to 192")


def test_no_rdma_device_is_not_checked_and_never_ok(measure):
    measure.spark.remove("/sys/class/infiniband")
    result = measure()
    assert result["not_checked"] == ["RDMA: not checked: no RDMA device"]
    assert {entry["test"] for entry in result["measured"]} == {"tcp"}
    assert all(entry["verdict"] != "ok" for entry in result["measured"])


def test_one_rail_without_a_device_is_named(measure):
    measure.spark.remove("/sys/class/infiniband/roceP2p1s0f0")
    result = measure()
    assert result["not_checked"] == ["RDMA on enP2p1s0f0np0: not checked: no RDMA device"]
    assert [entry["interface"] for entry in of(result, "ib_write_bw")] == [RAILS[0]]
    assert of(result, "ib_write_bw")[0]["expected_gbps"] == 126.0  # alone, and what PCIe carries


@pytest.mark.parametrize(
    ("tool", "words"), [("iperf3", "no iperf3"), ("ib_write_lat", "install perftest"), ("ib_write_bw", "perftest")]
)
def test_a_tool_that_is_not_there(measure, tool, words):
    (measure.tools / tool).unlink()
    result = measure()
    assert len(result["not_checked"]) == 1 and words in result["not_checked"][0]
    tests = {entry["test"] for entry in result["measured"]}
    assert tests == ({"tcp"} if "ib_" in tool else {"ib_write_bw", "ib_write_lat", "ib_write_bw_both_ways"})


def test_servers_are_units_with_a_limit(measure):
    measure.commands["systemd-run"] = (0, "", "")
    measure(state="listening", lifetime_s=60)
    ran = measure.commands["ran"]
    units = [re.search(r"--unit=(\S+)", " ".join(words))[1] for words in ran]
    assert len(units) == len(set(units)) == 8
    assert all("--property=RuntimeMaxSec=60" in words for words in ran)
    both = [words for words in ran if "both_ways" in " ".join(words)]
    assert len(both) == 2 and all("-b" in words for words in both)


def test_servers_that_run_already_and_one_that_cannot(measure):
    measure.commands["systemd-run"] = (1, "", "Unit tandem-fabric-measure-tcp-x.service already loaded")
    assert "failed" not in measure(state="listening")
    measure.commands["systemd-run"] = (1, "", "Failed to connect to bus")
    result = measure(state="listening")
    assert result["failed"] and "Failed to connect to bus" in result["msg"]


def test_stop_ends_all_of_them(measure):
    measure.commands["systemctl stop tandem-fabric-measure-*"] = (0, "", "")
    measure(state="stopped")
    assert measure.commands["ran"] == [["systemctl", "stop", "tandem-fabric-measure-*"]]


def test_a_tool_that_hangs_is_ended():
    found = fabric_measure.asyncio.run(fabric_measure.run(["/bin/sh", "-c", "echo begun; exec sleep 60"], 0.3))
    assert found == ""
    assert fabric_measure.asyncio.run(fabric_measure.run(["/bin/sh", "-c", "echo $LC_ALL"], 10)) == "C\n"

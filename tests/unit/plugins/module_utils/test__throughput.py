# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _throughput

# The form in which perftest prints, with the numbers of healthy rails (reference: hardware, section 3.5).
WRITE_BW = """\
************************************
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : rocep1s0f0
 GID index       : 3
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0127 PSN 0xf2ba96 RKey 0x1820ef VAddr 0x00ffffa1e1c000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:192:168:100:10
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      645821           0.00               111.86   		   0.215211
---------------------------------------------------------------------------------------
"""
WRITE_LAT = """\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]  99% percentile[usec]
 2       1000          1.52           4.66         1.58     	       1.60        	0.10   		1.94
"""
WRITE_LAT_DURATION = """\
 #bytes        #iterations       t_avg[usec]    tps average
 2             1903231             1.58           316940.33
"""


def test_perftest():
    assert _throughput.write_bandwidth(WRITE_BW) == 111.86
    assert _throughput.write_latency(WRITE_LAT) == 1.58
    assert _throughput.write_latency(WRITE_LAT_DURATION) == 1.58
    for nothing in (None, "", "Couldn't connect to 192.168.100.11:18515", "65536 12"):
        assert _throughput.write_bandwidth(nothing) is None and _throughput.write_latency(nothing) is None


def test_iperf3():
    report = {"end": {"sum_received": {"bits_per_second": 93.4e9}}}
    assert _throughput.iperf3(json.dumps(report)) == 93.4
    refused = json.dumps({"end": {}, "error": "unable to connect to server"})
    assert _throughput.iperf3(refused) is None and _throughput.iperf3_error(refused) == "unable to connect to server"
    for nothing in (None, "", "[]", "{", json.dumps({"end": {"sum_received": {"bits_per_second": 0}}})):
        assert _throughput.iperf3(nothing) is None and _throughput.iperf3_error(nothing) is None


def test_expected_rate():
    assert _throughput.expected_gbps("200 Gb/sec (4X HDR)", 2) == 100
    assert _throughput.expected_gbps(None, 2) is None and _throughput.expected_gbps("200 Gb/sec", 0) is None


@pytest.mark.parametrize(
    ("measured", "speed", "verdict", "words"),
    [
        (92.57, 200000, "ok", None),
        (13.23, 200000, "degraded_init", "unplug the mains"),
        (60.0, 200000, "below_expected", "MTU 1500"),
        (3.1, 10000, "link_speed", "switch port"),
        (None, 200000, "not measured", None),
    ],
)
def test_c20_rail(measured, speed, verdict, words):
    found = _throughput.rail(measured, "200 Gb/sec (4X HDR)", 2, speed)
    assert found["verdict"] == verdict and found["expected_gbps"] == 100
    assert (words is None) == (found["hint"] is None) and (words is None or words in found["hint"])


GOOD = "r0: NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE\n"
SOCKET = "r0: NCCL INFO NET/Socket : Using [0]enp1s0f0np0:192.168.100.10<0>\n"


def output(average):
    return f"17179869184 4294967296 float none -1 374425 45.88 {average} 0\n# Avg bus bandwidth    : {average}\n"


def test_hw_12_the_recorded_run(read):
    found = _throughput.nccl(read("nccl/all-gather-dell.txt") + GOOD, "pair")
    assert found["verdict"] == "ok" and 22.9 < found["busbw_gbs"] < 23 and found["anchor_gbs"] == 21.875
    assert found["largest_bytes"] == 17179869184 and found["transport"] == ["roce"]


@pytest.mark.parametrize(
    ("average", "log", "topology", "verdict", "words"),
    [
        (22.9, GOOD, "switch", "ok", None),
        (21.8, GOOD, "pair", "below", None),
        (10.2, GOOD, "ring3", "ok", None),
        (22.9, SOCKET, "pair", "failed", "NET/Socket"),  # C19: fast or not, it is the wrong transport
        (3.0, GOOD, "pair", "below", "about 3 GB/s"),  # C21
        (2.12, GOOD, "pair", "below", "about 3 GB/s"),
        (13.9, GOOD, "pair", "below", "one of the two halves"),
        (13.9, GOOD, "ring3", "ok", None),
        (1.65, GOOD, "pair", "below", "13 Gb/s"),
        (9.0, GOOD, "chain", "not judged", "chain"),
    ],
)
def test_nccl_verdicts_and_signatures(average, log, topology, verdict, words):
    found = _throughput.nccl(output(average) + log, topology)
    assert found["verdict"] == verdict and found["busbw_gbs"] == average
    assert (words is None) == (found["hint"] is None) and (words is None or words in found["hint"])


@pytest.mark.parametrize("nothing", [None, "", "mpirun: command not found", "# Avg bus bandwidth    : nan"])
def test_no_number_is_never_ok(nothing):
    assert _throughput.nccl(nothing, "pair")["verdict"] == "not measured"


def test_one_rank_on_tcp_is_enough():
    found = _throughput.nccl(output(22.9), "pair", {"0": GOOD, "1": SOCKET})
    assert found["verdict"] == "failed" and found["transport"] == ["roce", "socket"]

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _fabric_nccl

GIB = 1024**3
RDMA = {"enp1s0f0np0": "rocep1s0f0", "enP2p1s0f0np0": "roceP2p1s0f0"}
IB = "x NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE\n"


def asked(**changes):
    found = {"present": True, "digest": "d", "cannot_run": [], "cannot_build": [], "available_bytes": 100 * GIB}
    return {"__fabric_nccl_query": {**found, "rdma": RDMA, **changes}}


@pytest.fixture
def hosts():
    return {"spark-a": asked(), "spark-b": asked()}


def test_nothing_against_it(hosts, pair):
    assert _fabric_nccl.refusals(hosts, pair, GIB) == []


def test_c21_too_little_memory_on_one_node_is_refused_with_both_numbers(hosts, pair):
    hosts["spark-b"] = asked(available_bytes=24 * GIB)
    (text,) = _fabric_nccl.refusals(hosts, pair, 16 * GIB)
    assert text.startswith("spark-b: message of 16.0 GiB needs 56.0 GiB") and "24.0 GiB" in text
    assert "fabric_nccl_max_bytes" in text
    figures = _fabric_nccl.figures(hosts, pair, "spark-a", 16 * GIB)
    assert figures.startswith("not checked: spark-b: message of")
    assert _fabric_nccl.refusals(hosts, pair, GIB) == []


def test_what_is_missing_is_named_with_its_node(hosts, pair):
    hosts["spark-a"] = asked(present=False, digest=None, cannot_build=["found no nvcc; wanted the CUDA toolkit"])
    hosts["spark-b"] = asked(present=False, cannot_build=["found no nvcc"], cannot_run=["found no GPU"])
    # Only the head builds.
    assert _fabric_nccl.refusals(hosts, pair, GIB) == [
        "spark-a: found no nvcc; wanted the CUDA toolkit",
        "spark-b: found no GPU",
    ]
    assert _fabric_nccl.figures(hosts, pair, "spark-a", GIB).startswith("not checked: spark-a: found no nvcc")


def test_programs_that_are_there_need_no_compiler(hosts, pair):
    hosts["spark-a"] = asked(cannot_build=["found no nvcc"])
    assert _fabric_nccl.refusals(hosts, pair, GIB) == []


def test_a_node_that_was_not_asked(hosts, pair):
    hosts["spark-b"] = {}
    assert _fabric_nccl.refusals(hosts, pair, GIB) == ["spark-b: it was not asked what it has"]


@pytest.mark.parametrize(
    ("head", "other", "wanted"),
    [("d", "d", []), ("d", "e", ["spark-b"]), ("d", None, ["spark-b"]), (None, "d", ["spark-b"])],
)
def test_receivers(pair, head, other, wanted):
    hosts = {"spark-a": asked(digest=head), "spark-b": asked(digest=other)}
    assert _fabric_nccl.receivers(hosts, pair) == wanted


def test_c18_c21_the_environment_has_the_exact_interface_and_both_halves(hosts, pair):
    found = _fabric_nccl.environment(hosts, pair, "spark-b")
    assert found["NCCL_SOCKET_IFNAME"] == "=enp1s0f0np0" and found["NCCL_NET"] == "IB"
    assert found["NCCL_IB_HCA"] == "=rocep1s0f0,roceP2p1s0f0" and "NCCL_IB_GID_INDEX" not in found


def ran(hosts, **results):
    for name, (code, out) in results.items():
        hosts[name.replace("_", "-")]["__fabric_nccl_run"] = {"rc": code, "stdout": out, "stderr": ""}


def test_figures_of_a_healthy_pair(hosts, pair, read):
    ran(hosts, spark_a=(0, read("nccl/all-gather-dell.txt") + IB), spark_b=(0, IB))
    found = _fabric_nccl.figures(hosts, pair, "spark-a", GIB)
    assert found["verdict"] == "ok" and found["busbw_gbs"] == 22.9611 and found["anchor_gbs"] == 21.875
    assert found["transport"] == ["roce"] and found["hint"] is None
    assert "spark-a" in _fabric_nccl.figures(hosts, pair, "spark-b", GIB)


def test_c19_figures_of_a_real_run_over_tcp(hosts, pair, read):
    ran(
        hosts,
        spark_a=(0, read("nccl/nccl-tests-2.19.6-socket-rank0.txt")),
        spark_b=(0, read("nccl/nccl-tests-2.19.6-socket-rank1.txt")),
    )
    found = _fabric_nccl.figures(hosts, pair, "spark-a", GIB)
    assert found["verdict"] == "failed" and "TCP" in found["hint"]


def test_a_rank_that_failed_says_why(hosts, pair):
    ran(
        hosts,
        spark_a=(3, "x NCCL INFO more\ntandem: rank 0 of 2: 1 rank(s) did not come within 60 s\n"),
        spark_b=(1, ""),
    )
    found = _fabric_nccl.figures(hosts, pair, "spark-a", GIB)
    assert found["verdict"] == "not measured"
    assert "spark-a: tandem: rank 0 of 2: 1 rank(s) did not come" in found["hint"]
    assert "spark-b: said nothing (exit status 1)" in found["hint"]


def test_what_was_not_run(hosts, pair):
    assert _fabric_nccl.figures({"spark-a": {}, "spark-b": {}}, pair, "spark-a", GIB).startswith(
        "not checked: fabric_nccl"
    )
    assert "did not end" in _fabric_nccl.figures(hosts, pair, "spark-a", GIB)
    skipped = {"spark-a": {"__fabric_nccl": {"skipped": True}}, "spark-b": {}}
    assert _fabric_nccl.figures(skipped, pair, "spark-a", GIB).startswith("not checked")


def test_the_command_of_the_operator_comes_first(hosts, pair):
    hosts["spark-a"]["__fabric_nccl"] = {"rc": 0, "stdout": "# Avg bus bandwidth    : 22.9\n"}
    assert _fabric_nccl.figures(hosts, pair, "spark-a", GIB)["verdict"] == "ok"

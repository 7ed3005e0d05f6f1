# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The parsers of nccl-tests against its real output on a GPU, and mpi.c between real processes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _nccl_log, _nccl_tests, _throughput

MPI = Path(__file__).parents[4] / "roles/fabric/files/nccl"
ONE, FIRST, SECOND = (f"nccl/nccl-tests-2.19.6-{name}.txt" for name in ("one-rank", "socket-rank0", "socket-rank1"))


def test_two_ranks_of_a_real_run_over_tcp(read):
    logs = {"spark-a": read(FIRST), "spark-b": read(SECOND)}
    found = _throughput.nccl(logs["spark-a"], "pair", logs)
    assert found["busbw_gbs"] == 1.73989 and found["largest_bytes"] == 67108864 and found["transport"] == ["socket"]
    assert found["verdict"] == "failed" and found["hint"].startswith("NCCL fell back to TCP")
    assert [row["busbw"] for row in _nccl_log.results(logs["spark-a"])] == [1.58, 1.64, 1.83, 1.84]
    assert _nccl_log.results(logs["spark-b"]) == [] and _nccl_log.average_bus_bandwidth(logs["spark-b"]) is None
    assert _nccl_log.transport(logs["spark-b"]) == {
        "transport": "socket",
        "devices": [],
        "interfaces": ["lo"],
        "version": "2.28.9",
    }


def test_a_real_run_of_one_rank_is_no_measurement(read):
    content = read(ONE)
    # "NET/IB : Using [RO]; OOB eth0" names no device: that is no RDMA.
    assert _nccl_log.transport(content)["transport"] == "socket" and _nccl_log.transport(content)["version"] == "2.28.9"
    rows = _nccl_log.results(content)
    assert len(rows) == 8 and rows[-1] == {"bytes": 2**30, "microseconds": 505.23, "algbw": 2125.2, "busbw": 0.0}
    assert _nccl_log.out_of_bounds(content) == 0
    assert _throughput.nccl(content, "pair")["verdict"] == _throughput.NOT_MEASURED


def test_values_that_arrived_wrong_fail_at_any_speed(read):
    content = read(FIRST).replace("bounds values : 0 OK", "bounds values : 12 FAILED")
    assert _nccl_log.out_of_bounds(content) == 12 and _nccl_log.out_of_bounds("") is None
    found = _throughput.nccl(content, "pair")
    assert found["verdict"] == "failed" and "arrived wrong" in found["hint"]


def test_c33_the_gpu_of_a_spark_without_a_suffix_and_what_was_built(read):
    assert _nccl_tests.architecture("12.1") == "121" and _nccl_tests.architecture("9.0\n") == "90"
    assert _nccl_tests.architecture("[N/A]") is None and _nccl_tests.architecture(None) is None
    assert _nccl_tests.gencode("121") == "-gencode=arch=compute_121,code=sm_121"
    assert _nccl_tests.built_for(read("cuobjdump/all_gather-sm_121.txt")) == ["121"]
    assert _nccl_tests.built_for(read("cuobjdump/all_gather-sm_90.txt")) == ["90"]
    assert _nccl_tests.built_for("") == [] and _nccl_tests.built_for(None) is None


def test_c21_one_size_only():
    words = _nccl_tests.arguments(1 << 30)
    assert words[:4] == ["-b", "1073741824", "-e", "1073741824"]


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"files": {"all_gather_perf": "x"}}'])
def test_a_statement_that_is_none(content):
    assert _nccl_tests.statement(content) is None


def test_a_statement():
    stated = {"commit": "a", "files": dict.fromkeys(_nccl_tests.PROGRAMS, "0" * 64)}
    assert _nccl_tests.statement(json.dumps(stated)) == stated


# Every call that nccl-tests makes, with answers that depend on all ranks.
PROGRAM = """
#include "mpi.h"
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
  int rank, size, color = argc > 2 ? 1 : 0;
  MPI_Comm half;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  uint64_t hashes[8];
  hashes[rank] = 100 + rank;
  MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, hashes, sizeof *hashes, MPI_BYTE, MPI_COMM_WORLD);
  MPI_Comm_split(MPI_COMM_WORLD, color && rank, rank, &half);
  char id[128];
  for (int i = 0; i < 128; i++) id[i] = rank == 0 ? i : 0;
  MPI_Bcast(id, sizeof id, MPI_BYTE, 0, half);
  if (argc > 1 && rank == size - 1) _exit(9);
  double mine[2] = {rank + 0.5, rank * 10.0}, all[16] = {0};
  MPI_Gather(mine, 2, MPI_DOUBLE, all, 2, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  int sum = rank + 1;
  long least = rank - 7;
  int64_t most = rank;
  double total = rank * 0.5;
  long long count = 1LL << (rank + 40);
  MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &least, 1, MPI_LONG, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &total, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &count, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  printf("%d/%d %d %d %d %ld %d %.1f %lld %.1f %.1f\\n", rank, size, (int)hashes[size - 1], id[127], sum, least,
         (int)most, total, count >> 40, rank ? 0 : all[1 * 2], rank ? 0 : all[2 * (size - 1) + 1]);
  MPI_Comm_free(&half);
  return MPI_Finalize();
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("not checked: no C compiler")
    path = tmp_path_factory.mktemp("mpi")
    (path / "test.c").write_text(PROGRAM)
    words = [compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", f"-I{MPI}", "-o", str(path / "test")]
    done = subprocess.run(
        [*words, str(path / "test.c"), str(MPI / "mpi.c")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return path / "test"


@pytest.fixture
def meet():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def start(program, rank, ranks, meet, run="one", limit_s=10, arguments=()):
    address, _colon, port = meet.rpartition(":")
    variables = _nccl_tests.rank_environment(rank, ranks, address, run, limit_s)
    variables["TANDEM_MEET"] = f"{address}:{port}"
    return subprocess.Popen(
        [str(program), *arguments],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ends(processes):
    return [(*process.communicate(timeout=30), process.returncode) for process in processes]


def test_the_ranks_meet_and_agree_in_any_order(program, meet):
    answers = ends([start(program, rank, 3, meet) for rank in (2, 0, 1)])
    assert [code for _out, _err, code in answers] == [0, 0, 0], answers
    common = "102 127 6 -7 2 1.5 7"
    lines = sorted(out.strip() for out, _err, _code in answers)
    assert lines == [f"0/3 {common} 1.5 20.0", f"1/3 {common} 0.0 0.0", f"2/3 {common} 0.0 0.0"]


def test_one_rank_needs_nobody(program):
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("0/1 100 127 1 ")


def test_a_rank_that_does_not_come(program, meet):
    ((_out, err, code),) = ends([start(program, 0, 2, meet, limit_s=1)])
    assert code == 3 and "1 rank(s) did not come within 1 s" in err
    ((_out, err, code),) = ends([start(program, 1, 2, meet, limit_s=1)])
    assert code == 3 and f"rank 0 does not answer on {meet}: Connection refused" in err


def test_a_rank_that_ends_ends_the_others(program, meet):
    answers = ends([start(program, rank, 3, meet, arguments=["die"]) for rank in range(3)])
    assert [code for _out, _err, code in answers] == [3, 3, 9]
    assert "rank 2 has ended" in answers[0][1] and "rank 0" in answers[1][1]


def test_a_rank_of_an_earlier_run_is_not_let_in(program, meet):
    stranger = start(program, 1, 2, meet, run="earlier", limit_s=4)
    answers = ends([start(program, 0, 2, meet, limit_s=4), start(program, 1, 2, meet, limit_s=4), stranger])
    assert [code for _out, _err, code in answers] == [0, 0, 3]


def test_several_groups_are_refused(program, meet):
    answers = ends([start(program, rank, 2, meet, arguments=["x", "split"]) for rank in range(2)])
    assert {code for _out, _err, code in answers} == {3} and "wanted one group" in answers[0][1]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("TANDEM_RANK", "2", "0 to 1"), ("TANDEM_MEET", "here", "IPv4:port"), ("TANDEM_RUN", "", "is not set")],
)
def test_a_wrong_environment(program, name, value, words):
    given = {**os.environ, **_nccl_tests.rank_environment(0, 2, "127.0.0.1", "one", 1), name: value}
    done = subprocess.run([str(program)], env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and words in done.stderr

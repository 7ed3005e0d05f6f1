# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import io
import os
import pathlib
import tarfile

import pytest
from ansible_collections.tandem.spark.plugins.module_utils._host import Host
from ansible_collections.tandem.spark.plugins.modules import fabric_nccl

COMMIT = "a0b82b2260cf5152b9f8c061bbf7eaf0ba096432"
MPI = {"mpi.h": "/* h */\n", "mpi.c": "/* c */\n"}


@pytest.fixture
def nccl(run_module, monkeypatch, tmp_path, spark, commands, read):
    """A Spark with CUDA and an engine; ``make`` writes two programs, and cuobjdump lists kernels for *kernels*."""
    site = tmp_path / "engine/venv/lib/python3.12/site-packages/nvidia/nccl"
    for name in ("include/nccl.h", "lib/libnccl.so.2"):
        (site / name).parent.mkdir(parents=True)
        (site / name).write_text("x")
    source = tmp_path / "source"
    (source / "src").mkdir(parents=True)
    (source / "src/Makefile").write_text("all:\n")
    (source / ".git").mkdir()
    toolkit = tmp_path / "cuda/bin"
    toolkit.mkdir(parents=True)
    (toolkit / "cuobjdump").write_text("#!/bin/sh\n")
    (toolkit / "cuobjdump").chmod(0o755)
    monkeypatch.setattr(fabric_nccl, "Host", lambda: Host(str(spark.root)))
    found = {"nvcc": str(toolkit / "nvcc"), "version": "13.0.88"}
    monkeypatch.setattr(fabric_nccl._gather_platform, "cuda", lambda _host, compile_probe: found)
    monkeypatch.setattr(fabric_nccl.AnsibleModule, "get_bin_path", lambda _module, name: f"/usr/bin/{name}")

    def make(words, _options):
        build = pathlib.Path(next(word for word in words if word.startswith("BUILDDIR=")).split("=")[1])
        build.mkdir()
        for program in ("all_gather_perf", "all_reduce_perf"):
            (build / program).write_text(f"program {program}")
        return 0, "", ""

    commands.update({"cc": (0, "", ""), "ar": (0, "", ""), "make": make})
    commands["/usr/bin/nvidia-smi"] = (0, "12.1\n", "")
    commands[str(toolkit / "cuobjdump")] = (0, read("cuobjdump/all_gather-sm_121.txt"), "")

    def run(state="built", check_mode=False, **options):
        given = {"path": str(tmp_path / "tools/nccl-tests"), "engine": str(tmp_path / "engine"), "state": state}
        if state == "built":
            given.update(source=str(source), commit=COMMIT, mpi=MPI)
        return run_module(fabric_nccl, {**given, **options}, check_mode=check_mode)

    run.root, run.commands, run.cuda, run.spark, run.site = tmp_path, commands, found, spark, site
    return run


def tools(nccl):
    return sorted(os.listdir(nccl.root / "tools"))


def test_built_once_and_whole(nccl):
    first = nccl()
    assert first["changed"] and first["present"] and len(first["digest"]) == 64
    make = next(words for words in nccl.commands["ran"] if words[0] == "make")
    assert "NVCC_GENCODE=-gencode=arch=compute_121,code=sm_121" in make and "MPI=1" in make
    assert f"CUDA_HOME={nccl.root}/cuda" in make
    assert tools(nccl) == ["nccl-tests"]
    assert sorted(os.listdir(nccl.root / "tools/nccl-tests")) == ["all_gather_perf", "all_reduce_perf", "build.json"]
    second = nccl()
    assert second["changed"] is False and second["digest"] == first["digest"]
    assert len([words for words in nccl.commands["ran"] if words[0] == "make"]) == 1


def test_an_altered_program_is_not_present_and_built_again(nccl):
    nccl()
    (nccl.root / "tools/nccl-tests/all_gather_perf").write_text("other")
    found = nccl("query")
    assert found["present"] is False and found["digest"] is None and "altered" in found["reason"]
    assert nccl()["changed"] is True and nccl("query")["present"] is True


def test_check_mode_builds_nothing(nccl):
    result = nccl(check_mode=True)
    assert result["changed"] is True and result["diff"]["before"] == "\n" and not (nccl.root / "tools").exists()


def test_c33_a_build_without_kernels_for_the_gpu_is_refused_and_leaves_nothing(nccl, read):
    nccl.commands[str(nccl.root / "cuda/bin/cuobjdump")] = (0, read("cuobjdump/all_gather-sm_90.txt"), "")
    result = nccl()
    assert result["failed"] and "['90']" in result["msg"] and "wanted 121" in result["msg"]
    assert tools(nccl) == []


def test_a_build_that_fails_says_its_last_lines_and_leaves_nothing(nccl):
    nccl.commands["make"] = (2, "", "all_gather.cu(12): error: identifier is undefined\n")
    result = nccl()
    assert result["failed"] and "make failed with exit status 2" in result["msg"] and "identifier" in result["msg"]
    assert tools(nccl) == []


def test_another_account_compiles(nccl, monkeypatch):
    monkeypatch.setattr(fabric_nccl, "give", lambda path, user: None)
    for tool in ("setpriv",):
        nccl.commands[tool] = lambda words, options: (
            nccl.commands["make"](words, options) if "make" in words else (0, "", "")
        )
    assert nccl(user="nobody")["changed"]
    assert {words[0] for words in nccl.commands["ran"]} >= {"setpriv"}
    assert not [words for words in nccl.commands["ran"] if words[0] in ("make", "cc", "ar")]


def test_an_account_that_is_not_there(nccl):
    result = nccl(user="no-such-account")
    assert result["failed"] and "no-such-account" in result["msg"] and "baseline" in result["msg"]
    assert tools(nccl) == []


def archive(path, commit, name="nccl-tests-x/src/Makefile"):
    headers = {"comment": commit} if commit else {}
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT, pax_headers=headers) as file:
        entry = tarfile.TarInfo(name)
        entry.size = 4
        file.addfile(entry, io.BytesIO(b"all:"))
    return str(path)


def test_from_an_archive(nccl):
    assert nccl(source=archive(nccl.root / "a.tar.gz", COMMIT))["changed"]


@pytest.mark.parametrize(
    ("commit", "name", "words"),
    [("f" * 40, "x/src/Makefile", f"found the commit {'f' * 40}"), (COMMIT, "../x", "leads out of the archive")],
)
def test_an_archive_that_is_refused(nccl, commit, name, words):
    result = nccl(source=archive(nccl.root / "a.tar.gz", commit, name))
    assert result["failed"] and words in result["msg"] and tools(nccl) == []


def test_no_archive(nccl):
    (nccl.root / "a.tar.gz").write_text("no")
    assert nccl(source=str(nccl.root / "a.tar.gz"))["failed"] and tools(nccl) == []


def test_published_when_it_is_the_heads(nccl, tmp_path):
    digest = nccl()["digest"]
    copy = nccl.root / "tools/nccl-tests.copy"
    (nccl.root / "tools/nccl-tests").rename(copy)
    copy.chmod(0o700)
    (copy / "all_gather_perf").chmod(0o600)
    result = nccl("published", staging=str(copy), digest="0" * 64)
    assert result["failed"] and digest in result["msg"] and "wanted 0000" in result["msg"] and copy.exists()
    result = nccl("published", staging=str(copy), digest=digest)
    assert result["changed"] and result["digest"] == digest and tools(nccl) == ["nccl-tests"]
    modes = [
        path.stat().st_mode & 0o777 for path in (nccl.root / "tools/nccl-tests", *nccl.root.glob("tools/*/*_perf"))
    ]
    assert modes == [0o755] * 3  # another account runs them
    assert nccl("published", staging=str(copy), digest=digest)["changed"] is False


def test_query_of_a_healthy_node(nccl):
    found = nccl("query")
    assert found["present"] is False and found["cannot_build"] == [] and found["cannot_run"] == []
    assert found["rdma"]["enP2p1s0f0np0"] == "roceP2p1s0f0" and found["available_bytes"] > 2**30


def test_query_without_cuda_gpu_and_nccl(nccl, monkeypatch):
    nccl.cuda["nvcc"] = None
    nccl.commands["/usr/bin/nvidia-smi"] = (9, "", "couldn't communicate with the NVIDIA driver")
    monkeypatch.setattr(fabric_nccl, "nccl", lambda _engine: {"include": None, "so": None})
    found = nccl("query")
    assert [text.split(";")[0] for text in found["cannot_run"]] == [
        "found no GPU that nvidia-smi names",
        "found no libnccl.so.2",
    ]
    assert [text.split(";")[0] for text in found["cannot_build"]] == ["found no nccl.h", "found no nvcc"]
    result = nccl()
    assert result["failed"] and "found no nvcc" in result["msg"] and tools(nccl) == []


RUN = {"rank": 1, "ranks": 2, "meet": "192.168.100.10", "run_id": "abc", "bytes": 1 << 30, "user": "tandem"}


def test_a_rank_runs_in_a_unit_of_its_own(nccl):
    nccl.commands["systemd-run"] = (3, "out", "tandem: rank 1 of 2: rank 0 does not answer")
    result = nccl("run", environment={"NCCL_SOCKET_IFNAME": "=enp1s0f0np0"}, **RUN)
    assert result["rc"] == 3 and result["stdout"] == "out" and result["changed"] is False
    (words,) = nccl.commands["ran"]
    assert {
        "--uid=tandem",
        "--property=LimitMEMLOCK=infinity",
        "--setenv=NCCL_SOCKET_IFNAME==enp1s0f0np0",
        "--setenv=TANDEM_MEET=192.168.100.10:18440",
        "--setenv=TANDEM_RANK=1",
        "--setenv=NCCL_DEBUG=INFO",
        f"--setenv=LD_LIBRARY_PATH={nccl.site}/lib",
    } <= set(words)
    assert words[words.index("-e") + 1] == str(1 << 30)


def test_check_mode_runs_nothing(nccl):
    assert "rc" not in nccl("run", check_mode=True, **RUN) and nccl.commands["ran"] == []

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""nccl-tests through the role: built on the head, copied, the same bytes everywhere, run on all nodes at once.

The nodes have no CUDA, so compiler and program are stand-ins; the program is linked with the role's own mpi.c, and its
ranks meet over the lab's network. The real program was run on a GPU (fixtures nccl/nccl-tests-*).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MPI = ROOT / "roles/fabric/files/nccl"
COMMIT = "a0b82b2260cf5152b9f8c061bbf7eaf0ba096432"
TOOLS = "/var/lib/tandem/tools"

pytestmark = pytest.mark.lab

PROGRAM = """
#include "mpi.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
  int rank, size, users[8] = {0};
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  users[rank] = (int)getuid();
  MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, users, 1, MPI_INT, MPI_COMM_WORLD);
  printf("node:1:1 [0] NCCL INFO NET/Socket : Using [0]%s:192.0.2.1<0>\\n", getenv("NCCL_SOCKET_IFNAME") + 1);
  if (rank == 0) {
    printf("%s %d float none -1 1 3.1 3.05 0\\n", argv[2], size);
    printf("# users %d %d\\n# Out of bounds values : 0 OK\\n# Avg bus bandwidth    : 3.05\\n", users[0], users[1]);
  }
  return MPI_Finalize();
}
"""
MAKE = """#!/bin/sh
for word; do case $word in BUILDDIR=*) build=${word#BUILDDIR=};; esac; done
test -r ../mpi/lib/libmpi.a && mkdir -p "$build" && cp /opt/program "$build/all_gather_perf" &&
cp /opt/program "$build/all_reduce_perf"
"""
# What writes to the file after -o, or to the second word that ends in .a.
TOUCH = '#!/bin/sh\nfor word; do case $word in *.o|*.a) touch "$word";; esac; done\n'
NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n"


class Lab:
    def __init__(self, place: Path) -> None:
        self.id = f"tn{hashlib.sha256(str(ROOT).encode()).hexdigest()[:5]}"
        self.environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "TANDEM_LAB_ID": self.id}
        self.archive = place / "nccl-tests.tar.gz"

    def __call__(self, *verb: str, text: bytes | None = None) -> str:
        words = [str(ROOT / "tests/lab/lab"), *verb]
        done = subprocess.run(words, env=self.environment, input=text, capture_output=True, timeout=300, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()
        return done.stdout.decode()

    def put(self, node: str, path: str, content: bytes, mode: str = "0755") -> None:
        command = f"mkdir -p {os.path.dirname(path)} && cat > {path} && chmod {mode} {path}"
        self("ssh", "pair", node, command, text=content)

    def play(self, *more: str) -> dict:
        words = [
            str(Path(sys.executable).parent / "ansible-playbook"),
            "tandem.spark.fabric",
            "-i",
            "inventories/lab_pair",
        ]
        words += ["-e", f"tandem_model_revision={'0' * 40}", "-e", "fabric_nccl=true", "-e", "tandem_user=nobody"]
        words += ["-e", f"fabric_nccl_archive={self.archive}", *more]
        done = subprocess.run(
            words, cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return json.loads(self("ssh", "pair", "spark-a", "cat /var/lib/tandem/records/fabric-measured.json"))["nccl"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    place = tmp_path_factory.mktemp("nccl")
    found = Lab(place)
    (place / "program.c").write_text(PROGRAM)
    words = ["gcc", "-std=gnu11", "-O2", "-static", f"-I{MPI}", "-o", str(place / "program"), str(place / "program.c")]
    subprocess.run([*words, str(MPI / "mpi.c")], check=True)
    (place / "Makefile").write_text("all:\n")
    with tarfile.open(found.archive, "w:gz", format=tarfile.PAX_FORMAT, pax_headers={"comment": COMMIT}) as archive:
        archive.add(place / "Makefile", "nccl-tests/src/Makefile")
    found("up", "pair")
    try:
        yield found
    finally:
        found("down", "pair")


def digests(lab: Lab) -> set[str]:
    return {lab("ssh", "pair", node, f"cd {TOOLS}/nccl-tests-* && sha256sum *") for node in ("spark-a", "spark-b")}


def test_without_cuda_it_is_not_checked_and_nothing_is_built(lab: Lab) -> None:
    figures = lab.play()
    assert figures.startswith("not checked: spark-a: found no libnccl.so.2")
    assert "found no nvcc" in figures and "spark-b" in figures
    lab("ssh", "pair", "spark-a", f"test ! -e {TOOLS}")


def test_built_once_copied_and_run_by_all_ranks(lab: Lab) -> None:
    program = (lab.archive.parent / "program").read_bytes()
    libraries = f"/usr/lib/{os.uname().machine}-linux-gnu/libnccl.so.2"
    for node in ("spark-a", "spark-b"):
        lab.put(node, libraries, b"x")
    for path, content in {
        "/opt/program": program,
        "/usr/include/nccl.h": b"x",
        "/usr/local/cuda/bin/nvcc": NVCC.encode(),
        "/usr/local/bin/make": MAKE.encode(),
        "/usr/local/bin/cc": TOUCH.encode(),
        "/usr/local/bin/ar": TOUCH.encode(),
    }.items():
        lab.put("spark-a", path, content)
    figures = lab.play()
    assert (figures["verdict"], figures["transport"], figures["busbw_gbs"]) == ("failed", ["socket"], 3.05), figures
    assert figures["largest_bytes"] == 1 << 30 and "TCP" in figures["hint"]
    assert len(digests(lab)) == 1
    left = lab("ssh", "pair", "spark-b", f"ls -A {TOOLS}").split()
    assert len(left) == 1 and left[0].startswith("nccl-tests-")


def test_the_second_time_nothing_is_built(lab: Lab) -> None:
    lab("ssh", "pair", "spark-a", "rm /usr/local/bin/make /usr/local/cuda/bin/nvcc")
    assert lab.play()["busbw_gbs"] == 3.05


def test_c21_a_message_that_does_not_fit_is_refused(lab: Lab) -> None:
    figures = lab.play("-e", f"fabric_nccl_max_bytes={1 << 40}")
    assert figures.startswith("not checked: spark-a: message of 1024.0 GiB needs 3080.0 GiB of memory")


def test_other_bytes_on_a_worker_are_replaced(lab: Lab) -> None:
    lab("ssh", "pair", "spark-b", f"cd {TOOLS}/nccl-tests-* && echo >> all_gather_perf")
    assert lab.play()["busbw_gbs"] == 3.05
    assert len(digests(lab)) == 1

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""How nccl-tests is built for one GPU and started as one rank. Pure functions."""

from __future__ import annotations

import json
import re
import typing as t

PROGRAMS = ("all_gather_perf", "all_reduce_perf")
STATEMENT = "build.json"
PORT = 18440  # beside those of fabric_measure; the ranks meet there on the head

_CAPABILITY = re.compile(r"^(\d+)\.(\d)$", re.ASCII)
_CUBIN = re.compile(r"\.sm_(\d+[a-z]?)\.cubin", re.ASCII)


def architecture(capability: str | None) -> str | None:
    """``12.1`` is ``121``: these kernels are plain ones, which need no suffix (NVIDIA's playbook builds ``sm_121``)."""
    match = _CAPABILITY.match((capability or "").strip())
    return f"{match[1]}{match[2]}" if match else None


def gencode(architecture_: str) -> str:
    """``121`` as nvcc wants it: machine code for this GPU and nothing else."""
    return f"-gencode=arch=compute_{architecture_},code=sm_{architecture_}"


def built_for(listed: str | None) -> list[str] | None:
    """The architectures in ``cuobjdump --list-elf``, such as ``121``; None when there is no listing.

    A build whose kernels for the GPU were left out still "succeeds" (case C33).
    """
    if listed is None:
        return None
    return sorted(set(_CUBIN.findall(listed)))


def make_words(build: str, *, mpi: str, nccl: str, cuda: str, architecture_: str, jobs: int) -> list[str]:
    """The command that builds :data:`PROGRAMS` into *build*, in the directory of the source."""
    words = ["make", "-C", "src", f"-j{jobs}", f"BUILDDIR={build}", "MPI=1", f"MPI_HOME={mpi}", f"NCCL_HOME={nccl}"]
    words += [f"CUDA_HOME={cuda}", f"NVCC_GENCODE={gencode(architecture_)}"]
    return words + [f"{build}/{program}" for program in PROGRAMS]


def arguments(bytes_: int) -> list[str]:
    """One size only: the average that nccl-tests prints is over all sizes, and small ones pull it down."""
    return ["-b", str(bytes_), "-e", str(bytes_), "-g", "1", "-w", "5", "-n", "20", "-c", "1"]


def rank_environment(rank: int, ranks: int, meet: str, run: str, limit_s: int) -> dict[str, str]:
    """What the ranks need to find each other; see roles/fabric/files/nccl/mpi.c."""
    return {
        "TANDEM_RANK": str(rank),
        "TANDEM_RANKS": str(ranks),
        "TANDEM_MEET": f"{meet}:{PORT}",
        "TANDEM_RUN": run,
        "TANDEM_LIMIT_S": str(limit_s),
    }


def statement(content: str | None) -> dict[str, t.Any] | None:
    """The build's own statement: ``commit``, ``architecture``, ``cuda``, ``nccl``, ``files`` (name to SHA-256)."""
    try:
        found = json.loads(content or "")
    except ValueError:
        return None
    files = found.get("files") if isinstance(found, dict) else None
    if not isinstance(files, dict) or not set(PROGRAMS) <= set(files):
        return None
    return t.cast("dict[str, t.Any]", found)

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Converting a model: what may be converted, what it needs, and how the work runs as a unit of its own."""

from __future__ import annotations

import hashlib
import json
import re
import typing as t

PROVENANCE = "tandem-conversion.json"
# Importing torch and llm-compressor: 0.55 GB resident, measured on a CPU (tests/lab/test_convert.py).
BASE_BYTES = 1 << 30
# llm-compressor's own estimate was 0.03 GB for a shard of 6.6 MB; rounded up.
SHARD_FACTOR = 5
# What runs in llm-compressor's environment. It says that it is done only when everything is written.
SCRIPT = """\
import importlib.metadata
import json
import os
import platform
import sys

from llmcompressor import model_free_ptq

with open(sys.argv[1], encoding="utf-8") as handle:
    job = json.load(handle)
model_free_ptq(
    model_stub=job["source"],
    save_directory=job["staging"],
    scheme=job["scheme"],
    ignore=job["ignore"],
    max_workers=job["workers"],
    device=job["device"],
)
names = ("llmcompressor", "compressed-tensors", "torch", "transformers")
versions = {name: importlib.metadata.version(name) for name in names}
versions["python"] = platform.python_version()
with open(job["done"] + ".partial", "w", encoding="utf-8") as handle:
    json.dump(versions, handle)
    handle.flush()
    os.fsync(handle.fileno())
os.replace(job["done"] + ".partial", job["done"])
"""


def request(manifest: dict[str, t.Any], scheme: str, ignore: list[str], environment_digest: str) -> str:
    """SHA-256 of what decides the result: the source's bytes, the recipe and the tools."""
    wanted = [manifest["digest"], scheme, sorted(ignore), environment_digest]
    return hashlib.sha256(json.dumps(wanted).encode()).hexdigest()


def release(source: str, scheme: str, digest: str) -> str:
    """A directory name for the result: another request has another one."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{source}-{scheme.lower().replace('_', '-')}-{digest[:8]}").strip(".-")


def need_bytes(largest: int, workers: int) -> int:
    """Memory of a conversion by shards: the tools, and for each worker its shard in both forms and what is between."""
    return BASE_BYTES + workers * SHARD_FACTOR * largest


def memory_problem(available: int | None, reserve: int, largest: int, workers: int) -> str | None:
    """Why the conversion would not fit beside what must stay free, or None. All in bytes."""
    need = need_bytes(largest, workers)
    if available is None:
        return "memory: found no MemAvailable in /proc/meminfo, wanted it: nothing guards this node without it"
    if available - reserve >= need:
        return None
    return (
        f"memory: found {available} bytes available, wanted {need + reserve} ({need} for {workers} worker(s) on shards "
        f"of up to {largest} bytes, {reserve} kept free); stop what runs on this node, or lower convert_workers or "
        "convert_reserve_bytes"
    )


def command(unit: str, python: str, script: str, job: dict[str, t.Any], limit: int, work: str) -> list[str]:
    """Run the script as a unit: it outlives a lost session, and the kernel ends it before the node is out of memory."""
    properties = {
        "MemoryMax": str(limit),
        "MemorySwapMax": "0",
        "OOMPolicy": "stop",
        "ProtectSystem": "strict",
        "ReadWritePaths": f"{work} {job['staging']}",
        "PrivateTmp": "yes",
        "Nice": "5",
    }
    words = ["systemd-run", "--quiet", f"--unit={unit}"]
    words += [f"--property={name}={value}" for name, value in properties.items()]
    # Nothing is to be fetched: what is converted is what was verified.
    for name, value in {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HOME": work, "TQDM_DISABLE": "1"}.items():
        words.append(f"--setenv={name}={value}")
    return [*words, python, script, f"{work}/job.json"]


def provenance(
    manifest: dict[str, t.Any], scheme: str, ignore: list[str], environment_digest: str, versions: dict[str, str]
) -> bytes:
    """What the result was made of, the source's whole manifest included. No times: the same work, the same file."""
    content = {
        "format": 1,
        "request": request(manifest, scheme, ignore, environment_digest),
        "recipe": {"tool": "llm-compressor model_free_ptq", "scheme": scheme, "ignore": sorted(ignore)},
        "versions": versions,
        "environment_digest": environment_digest,
        "source": manifest,
    }
    return json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True).encode() + b"\n"


def revision(content: bytes) -> str:
    """The commit id of a conversion: that of its provenance."""
    return hashlib.sha256(content).hexdigest()[:40]

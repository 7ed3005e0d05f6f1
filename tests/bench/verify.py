# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Figures of verifying a model, one JSON line each: rate against one sha256sum, memory, the plan of a large manifest.

Both rates are measured side by side in one run, on files in memory when /dev/shm has room, so that the processor's
SHA-256 is what bounds them and not a disk.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
FILES = 8
ROUNDS = 5

sys.path.insert(0, str(ROOT / "collections"))


def figure(name: str, value: float, unit: str, against: str) -> None:
    print(json.dumps({"name": name, "value": value, "unit": unit, "against": against}), flush=True)


def peak_mib() -> float:
    """The most that this process had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fill(directory: Path, megabytes: int) -> None:
    directory.mkdir(parents=True)
    block = os.urandom(MIB)
    for number in range(FILES):
        with (directory / f"part-{number}.bin").open("wb") as handle:
            for _each in range(megabytes // FILES):
                handle.write(block)


def verify_rate(directory: Path) -> float:
    """MB/s of the verification of every file."""
    from ansible_collections.tandem.spark.plugins.module_utils import _manifest

    sizes = {path.name: path.stat().st_size for path in directory.iterdir()}
    began = time.monotonic()
    found = _manifest.hash_all(str(directory), sizes)
    assert not [one for one in found.values() if isinstance(one, OSError)]
    return sum(sizes.values()) / (time.monotonic() - began) / 1e6


def tool_rate(directory: Path, command: list[str]) -> float:
    """MB/s of one process of another tool over the same files."""
    files = [str(path) for path in sorted(directory.iterdir())]
    began = time.monotonic()
    subprocess.run([*command, *files], stdout=subprocess.DEVNULL, check=True)
    return sum(os.path.getsize(path) for path in files) / (time.monotonic() - began) / 1e6


def rates(scratch: Path, megabytes: int) -> None:
    from ansible_collections.tandem.spark.plugins.module_utils import _manifest

    cores = _manifest.available_cores()
    directory = scratch / "rate"
    fill(directory, megabytes)
    tools = {"sha256sum": ["sha256sum"], "openssl": ["openssl", "dgst", "-sha256"]}
    tools = {name: command for name, command in tools.items() if shutil.which(command[0])}
    measured: dict[str, list[float]] = {name: [] for name in ("verify", *tools)}
    # Alternating, so that what else the machine does meets both alike.
    for _round in range(ROUNDS):
        measured["verify"].append(verify_rate(directory))
        for name, command in tools.items():
            measured[name].append(tool_rate(directory, command))
    rate = {name: statistics.median(values) for name, values in measured.items()}
    where = f"{FILES} files of {megabytes // FILES} MiB in {scratch.parent}, {cores} cores, median of {ROUNDS}"
    figure("verify_rate", round(rate["verify"]), "MB/s", where)
    for name in tools:
        figure(f"{name}_rate", round(rate[name]), "MB/s", f"one process, same files, same run; {where}")
        ratio = rate["verify"] / (cores * rate[name])
        wanted = "wanted 0.9 or more" if name == "sha256sum" else "the same SHA-256 code: what cores and memory leave"
        figure(f"verify_per_core_of_{name}", round(ratio, 2), "x", f"cores x one {name}; {wanted}")
    figure("verify_peak_resident", round(peak_mib()), "MiB", "limit 300, whatever the size")


def planning(scratch: Path, files: int, total: int) -> None:
    """In a process of its own: the peak is that of this work."""
    from ansible_collections.tandem.spark.plugins.module_utils import _manifest, _verify

    directory = scratch / "sparse"
    directory.mkdir()
    size = total // files
    entries = []
    for number in range(files):
        name = f"model-{number:05d}-of-{files:05d}.bin"
        with (directory / name).open("wb") as handle:
            handle.truncate(size)
        entries.append({"path": name, "size": size, "sha256": f"{number:064x}"})
    made = _manifest.make({"id": "owner/Sparse", "revision": "0" * 40}, entries)
    (directory / _manifest.FILE_NAME).write_bytes(_manifest.dump(made))
    del made, entries
    what = f"{files} sparse files, {total / 1e12:g} TB, in {scratch.parent}"
    began = time.monotonic()
    text = (directory / _manifest.FILE_NAME).read_text(encoding="utf-8")
    planned = _manifest.plan(str(directory), _manifest.load(text, "sparse"))
    seconds = time.monotonic() - began
    assert len(planned.to_read) == files and not planned.wrong
    figure("plan_seconds", round(seconds, 3), "s", f"limit 2; {what}")
    began = time.monotonic()
    found = _verify.work({"path": str(directory), "mode": "structure"})
    assert not found["problems"], found["problems"][:3]
    figure("structure_seconds", round(time.monotonic() - began, 3), "s", f"headers of all files; {what}")
    figure("plan_peak_resident", round(peak_mib()), "MiB", f"limit 200; {what}")


def headers(scratch: Path, tensors: int) -> None:
    """An index and a shard's header as large as they are still read: memory must not grow with the model."""
    from ansible_collections.tandem.spark.plugins.module_utils import _structure

    directory = scratch / "headers"
    directory.mkdir()
    names = [f"model.layers.{n % 100}.mlp.experts.{n}.down_proj.weight_scale_inv" for n in range(tensors)]
    header = {name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]} for n, name in enumerate(names)}
    raw = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as handle:
        handle.write(len(raw).to_bytes(8, "little") + raw)
        handle.truncate(8 + len(raw) + 4 * tensors)
    weight_map = dict.fromkeys(names, "model.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    length = len(raw)
    command = [sys.executable, __file__, "--inspect", str(directory)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert _structure.problems(str(directory)) == []
    what = f"{tensors} tensors in one shard, a header of {length / 1e6:.1f} MB and its index"
    figure("structure_largest_seconds", round(time.monotonic() - began, 2), "s", what)
    figure("structure_largest_peak_resident", round(float(done.stdout)), "MiB", f"limit 300; {what}")


def place(megabytes: int) -> Path:
    """Memory when there is room for it, else the lab's cache."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 4 * megabytes * MIB:
        return memory
    cache = Path(os.environ.get("TANDEM_CACHE") or Path.home() / ".cache/tandem") / "bench"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1024, help="how much is read in a round")
    parser.add_argument("--inspect", metavar="DIRECTORY", help=argparse.SUPPRESS)
    parser.add_argument("--plan", metavar="DIRECTORY", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inspect:
        from ansible_collections.tandem.spark.plugins.module_utils import _structure

        assert _structure.problems(args.inspect) == []
        print(peak_mib())
        return 0
    if args.plan:
        planning(Path(args.plan), 2000, 10**12)
        return 0
    with tempfile.TemporaryDirectory(prefix="tandem-bench-", dir=place(args.megabytes)) as folder:
        scratch = Path(folder)
        rates(scratch, args.megabytes)
        subprocess.run([sys.executable, __file__, "--plan", folder], check=True)
        headers(scratch, 100_000)
    return 0


if __name__ == "__main__":
    sys.exit(main())

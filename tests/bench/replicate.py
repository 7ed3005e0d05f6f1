# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Copying a model with its verification: ours, the usual way, and what bounds both, in one run on one pair of the lab.

The usual way is `rsync -a` over SSH and then `sha256sum -c` on the receiver. The hosts of the lab share one machine, so
the cipher, the digests and the disk of both sides come out of the same cores and the same disk. Every figure ends with
the bytes on the disk (syncfs), and every source is read from the disk (its pages are dropped before).

`replicate.py [--gib 8] [--shards 16] [--streams 1] [--rounds 1]`; needs root and three times that much disk.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
REVISION = "0" * 40
MODELS = "/var/lib/tandem/models"
RELEASE = f"{MODELS}/synthetic"
MODEL = {"id": "lab/synthetic", "release": "synthetic", "path": RELEASE, "revision": REVISION}
# A lab of its own: the demo's stays as it is.
os.environ.setdefault("TANDEM_LAB_ID", "bench")
WANTED = {"against_usual": 3.0, "of_limit": 0.8, "resident_mib": 300}
# Pages of a directory are dropped file by file: the machine is not ours alone.
DROP = """
import os, sys
for parent, _directories, names in os.walk(sys.argv[1]):
    for name in names:
        with open(os.path.join(parent, name), "rb") as handle:
            os.fsync(handle.fileno())
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
"""
HASH = """
import concurrent.futures, hashlib, os, sys, time
def work(_n):
    digest, block = hashlib.sha256(), bytes(1 << 20)
    for _i in range(1024):
        digest.update(block)
cores = os.cpu_count()
began = time.monotonic()
with concurrent.futures.ThreadPoolExecutor(cores) as pool:
    list(pool.map(work, range(cores)))
print(cores * 1024 * (1 << 20) / (time.monotonic() - began))
"""
# The resident memory of every process of the copy, sampled while it runs.
WATCH = """
import os, sys, time
most = {}
while not os.path.exists(sys.argv[1]):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline", "rb").read().replace(b"\\0", b" ").decode(errors="replace")
            if "rsync" in words or "model_re" in words or "AnsiballZ" in words or "async" in words:
                pages = int(open(f"/proc/{pid}/statm").read().split()[1])
                name = "rsync" if "rsync" in words.split(" ")[0] else "python"
                most[name] = max(most.get(name, 0), pages * os.sysconf("SC_PAGE_SIZE"))
        except OSError:
            continue
    time.sleep(0.1)
print(max(most.values(), default=0))
"""


def figure(name: str, value: float, unit: str, against: str) -> None:
    print(json.dumps({"name": name, "value": round(value, 3), "unit": unit, "against": against}), flush=True)


def lab(*verb: str) -> str:
    done = subprocess.run(
        [str(ROOT / "tests/lab/lab"), *verb],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"lab {' '.join(verb)[:200]}: {done.stdout}")
    return done.stdout


def inside(node: str, *command: str) -> str:
    return lab("exec", "pair", node, *command)


def shell(node: str, command: str) -> float:
    began = time.monotonic()
    inside(node, "sh", "-ec", command)
    return time.monotonic() - began


def play(playbook: str) -> str:
    given = {"lab_model": MODEL, "tandem_model_revision": REVISION, "fabric_throughput": False}
    binary = str(Path(sys.executable).parent / "ansible-playbook")
    done = subprocess.run(
        [binary, playbook, "-i", "inventories/lab_pair", "-v", "-e", json.dumps(given), *STREAMS],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{playbook}:\n{done.stdout[-3000:]}")
    return done.stdout


def found(output: str, name: str) -> float:
    return float(re.findall(rf"^\s+{name}: ([\d.]+)$", output, re.MULTILINE)[-1])


def drop() -> None:
    for node in ("spark-a", "spark-b"):
        inside(node, "python3", "-c", DROP, MODELS)


def usual(size: float) -> float:
    """`rsync -a` over SSH, then `sha256sum -c` on the receiver, as one would type it; the keys are there before."""
    inside(
        "spark-b", "sh", "-ec", "test -e /root/.ssh/id_ed25519 || ssh-keygen -qt ed25519 -N '' -f /root/.ssh/id_ed25519"
    )
    key = inside("spark-b", "cat", "/root/.ssh/id_ed25519.pub").strip()
    host = " ".join(inside("spark-a", "cat", "/etc/ssh/ssh_host_ed25519_key.pub").split()[:2])
    inside("spark-a", "sh", "-ec", f"mkdir -p /root/.ssh; echo '{key}' >> /root/.ssh/authorized_keys")
    inside("spark-b", "sh", "-ec", f"echo '192.168.100.10 {host}' >> /root/.ssh/known_hosts; mkdir -p {MODELS}")
    inside("spark-a", "sh", "-ec", f"cd {RELEASE} && find . -type f -exec sha256sum {{}} + > /var/tmp/sums")
    drop()
    copy = shell("spark-b", f"rsync -a 192.168.100.10:{RELEASE} {MODELS}/")
    check = shell(
        "spark-b",
        f"rsync -a 192.168.100.10:/var/tmp/sums /var/tmp/ && cd {RELEASE} && sha256sum --quiet -c /var/tmp/sums",
    )
    synced = shell("spark-b", f"sync -f {MODELS}")
    figure("usual_copy_mb_per_s", size / copy / 1e6, "MB/s", "rsync -a over ssh alone, not yet on the disk")
    figure("usual_check_mb_per_s", size / check / 1e6, "MB/s", "sha256sum -c alone, one core")
    inside("spark-b", "rm", "-rf", RELEASE)
    return copy + check + synced


def ours(size: float) -> tuple[float, float]:
    """Seconds of the copy with its verification and publication, as the module told, and the most resident memory."""
    drop()
    stop = "/tmp/bench-stop"
    watchers = [
        subprocess.Popen(
            [str(ROOT / "tests/lab/lab"), "exec", "pair", node, "python3", "-c", WATCH, stop],
            stdout=subprocess.PIPE,
            text=True,
        )
        for node in ("spark-a", "spark-b")
    ]
    output = play("tests/lab/replicate.yml")
    for node in ("spark-a", "spark-b"):
        inside(node, "touch", stop)
    resident = max(float(watcher.communicate()[0]) for watcher in watchers)
    for node in ("spark-a", "spark-b"):
        inside(node, "rm", stop)
    if found(output, "bytes_sent") < size or "checked: arrived" not in output:
        raise SystemExit(f"the copy was not a full one:\n{output[-2000:]}")
    inside("spark-b", "rm", "-rf", RELEASE)
    return found(output, "seconds"), resident


def plain_copy(size: float) -> float:
    """Read and write on this disk, nothing else: what both hosts of the lab have in common."""
    drop()
    seconds = shell("spark-a", f"cp -r {RELEASE} {MODELS}/copy && sync -f {MODELS}")
    inside("spark-a", "rm", "-rf", f"{MODELS}/copy")
    return size / seconds


def main() -> int:
    global STREAMS
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--streams", type=int, default=1, help="rsyncs per rail; two cores are full with one")
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    STREAMS = ["-e", f"model_streams={arguments.streams}"]
    each = int(arguments.gib * (1 << 30) / arguments.shards)
    size = float(each * arguments.shards)
    lab("down", "pair")
    lab("up", "pair")
    try:
        play("tandem.spark.fabric")
        code = (ROOT / "tests/lab/synthetic.py").read_text(encoding="utf-8")
        inside("spark-a", "python3", "-c", code, RELEASE, REVISION, str(arguments.shards), str(each))
        for _round in range(arguments.rounds):
            measure(size)
    finally:
        lab("down", "pair")
    return 0


def measure(size: float) -> None:
    figure("load_before", os.getloadavg()[0], "processes", f"{os.cpu_count()} cores")
    disk = plain_copy(size)
    digests = float(inside("spark-a", "python3", "-c", HASH))
    old = usual(size)
    new, resident = ours(size)
    limit = min(disk, digests)
    figure("disk_copy_mb_per_s", disk / 1e6, "MB/s", "cp -r and sync -f on the same disk")
    figure("sha256_all_cores_mb_per_s", digests / 1e6, "MB/s", f"{os.cpu_count()} cores, from memory")
    figure("usual_way_seconds", old, "s", f"{size / 2**30:g} GiB; rsync -a over ssh, then sha256sum -c, then sync")
    figure("ours_seconds", new, "s", f"{size / 2**30:g} GiB; every byte verified and on the disk")
    figure("ours_mb_per_s", size / new / 1e6, "MB/s", "")
    figure("ours_against_usual", old / new, "times", f"wanted {WANTED['against_usual']}")
    figure(
        "ours_of_limit", size / new / limit, "ratio", f"wanted {WANTED['of_limit']} of the slower of disk and digests"
    )
    figure("resident_mib", resident / 2**20, "MiB", f"limit {WANTED['resident_mib']}, the largest process")
    figure("load_after", os.getloadavg()[0], "processes", f"{os.cpu_count()} cores")


STREAMS: list[str] = []

if __name__ == "__main__":
    sys.exit(main())

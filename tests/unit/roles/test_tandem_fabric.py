# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "roles/fabric/files/tandem-fabric"
# Answers for addresses in the file `answers` beside it: `ADDRESS` any size, `ADDRESS small` only small packets.
PING = """#!/bin/sh
for word in "$@"; do last=$word; done
while read -r address size; do
  [ "$address" = "$last" ] || continue
  case "$*" in *"-s 56 "*) size= ;; esac
  [ -z "$size" ] && { echo "2 packets transmitted, 2 received, 0% packet loss"; exit 0; }
done < "$(dirname "$0")/answers"
echo "2 packets transmitted, 0 received, 100% packet loss"
exit 1
"""


def link(name, peer, number):
    peers = [{"node": peer, "interface": "enp1s0f0np0", "ip": f"10.0.{number}.2"}]
    return {"interface": name, "mtu": 9000, "address": f"10.0.{number}.1/30", "peers": peers}


RECORD = {
    "node": "spark-a",
    "links": [link("enp1s0f1np1", "spark-b", 0), link("enP2p1s0f1np1", "spark-b", 1)],
    "far": [
        {"node": "spark-c", "ip": "10.0.2.2", "mtu": 9000, "through": ["spark-b"]},
        {"node": "spark-d", "ip": "10.0.3.2", "mtu": 9000, "through": ["spark-b", "spark-c"]},
    ],
}
ALL = ["10.0.0.2", "10.0.1.2", "10.0.2.2", "10.0.3.2"]


class Node:
    def __init__(self, home: Path) -> None:
        self.home, self.root = home, home / "root"
        (home / "ping").write_text(PING)
        (home / "ping").chmod(0o755)
        (home / "records").mkdir()
        (home / "records/fabric.json").write_text(json.dumps(RECORD))
        self.write("proc/sys/kernel/random/boot_id", "boot 1")
        for item, device in zip(RECORD["links"], ("rocep1s0f1", "roceP2p1s0f1")):
            name = item["interface"]
            for file, content in (("carrier", "1"), ("mtu", "9000"), ("carrier_down_count", "5")):
                self.write(f"sys/class/net/{name}/{file}", content)
            self.write(f"sys/class/infiniband/{device}/device/net/{name}/ifindex", "2")
            self.write(f"sys/class/infiniband/{device}/ports/1/state", "4: ACTIVE")
            self.write(f"sys/class/infiniband/{device}/ports/1/hw_counters/packet_seq_err", "7")
        self.answer(*ALL)

    def write(self, path: str, content: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(content + "\n")

    def answer(self, *lines: str) -> None:
        (self.home / "answers").write_text("".join(f"{line}\n" for line in lines))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, str(PROGRAM), "--record", str(self.home / "records/fabric.json")]
        environment = {**os.environ, "PATH": f"{self.home}:/usr/bin:/bin"}
        words += ["--root", str(self.root), *arguments]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    def report(self) -> tuple[int, dict]:
        done = self.run("--json")
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path)
    assert node.run("--remember").returncode == 0
    return node


def test_all_is_well(node):
    code, report = node.report()
    assert code == 0 and report["status"] == "ok" and report["problems"] == []
    assert report["nodes"] == {"spark-b": "ok", "spark-c": "ok", "spark-d": "ok"}
    assert report["links"][0]["rdma_device"] == "rocep1s0f1"
    assert report["links"][0]["since_record"] == {"carrier_down_count": 0, "packet_seq_err": 0}
    assert node.run().stdout.startswith("spark-a: ok\n  spark-b: ok\n")


def test_without_rdma_it_says_that_it_did_not_look(node):
    import shutil

    shutil.rmtree(node.root / "sys/class/infiniband")
    code, report = node.report()
    assert code == 0 and len(report["not_checked"]) == 2
    assert all(text.endswith("not checked: no RDMA device") for text in report["not_checked"])


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("sys/class/net/enp1s0f1np1/carrier", "0", "enp1s0f1np1: no carrier"),
        ("sys/class/net/enp1s0f1np1/mtu", "1500", "enp1s0f1np1: mtu 1500, wanted 9000"),
        ("sys/class/net/enp1s0f1np1/carrier_down_count", "9", "carrier_down_count went up by 4"),
        (
            "sys/class/infiniband/rocep1s0f1/ports/1/hw_counters/packet_seq_err",
            "1008",
            "packet_seq_err went up by 1001",
        ),
        ("sys/class/infiniband/rocep1s0f1/ports/1/state", "1: DOWN", "rocep1s0f1: port state 1: DOWN"),
    ],
)
def test_degraded(node, file, content, text):
    node.write(file, content)
    code, report = node.report()
    assert code == 1 and text in " ".join(report["problems"])


def test_a_pulled_cable(node):
    import shutil

    shutil.rmtree(node.root / "sys/class/net/enp1s0f1np1")
    node.answer(*ALL[1:])
    code, report = node.report()
    assert code == 1 and "enp1s0f1np1: not there" in report["problems"][0] and report["nodes"]["spark-b"] == "degraded"


def test_counts_begin_at_the_record_and_again_with_each_boot(node):
    node.write("sys/class/net/enp1s0f1np1/carrier_down_count", "8")
    assert node.report()[0] == 0
    node.write("proc/sys/kernel/random/boot_id", "boot 2")
    code, report = node.report()
    assert code == 1 and "went up by 8" in " ".join(report["problems"])
    node.run("--remember")
    assert node.report()[0] == 0


def test_large_packets_only(node):
    node.answer("10.0.0.2 small", *ALL[1:3], "10.0.3.2 small")
    code, report = node.report()
    assert code == 1 and sum("8972-byte" in problem for problem in report["problems"]) == 2


def test_a_lost_node_and_who_is_behind_it(node):
    node.answer()
    code, report = node.report()
    assert code == 2 and "spark-b: no rail to it answers" in report["problems"]
    assert "spark-c, spark-d: cut off behind spark-b" in report["problems"]
    assert report["nodes"] == dict.fromkeys(("spark-b", "spark-c", "spark-d"), "down")


def test_a_neighbour_that_passes_nothing_on(node):
    node.answer(*ALL[:2])
    code, report = node.report()
    assert code == 2 and "spark-c: no way to it answers" in report["problems"] and report["nodes"]["spark-b"] == "ok"


def test_without_a_record(node):
    (node.home / "records/fabric.json").unlink()
    done = node.run()
    assert done.returncode == 2 and "run the fabric stage first" in done.stderr

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

GATE = Path(__file__).parents[3] / "roles/serve/files/tandem-ray"
judge = runpy.run_path(str(GATE))["judge"]
WANTED = ["192.168.100.10", "192.168.100.11"]

# Stands in for Ray: tells of one node more each time it is asked.
RAY = """
NODES = []
def init(address, **options): print("init", address)
def nodes():
    NODES.append({"Alive": True, "NodeManagerAddress": f"192.168.100.{10 + len(NODES)}", "Resources": {"GPU": 1.0}})
    return NODES
def shutdown(): print("shutdown", flush=True)
"""


def node(address, gpus=1.0, alive=True):
    resources = {"CPU": 20.0, f"node:{address}": 1.0, **({"GPU": gpus} if gpus else {})}
    return {"Alive": alive, "NodeManagerAddress": address, "Resources": resources}


@pytest.mark.parametrize(
    ("nodes", "verdict", "words"),
    [
        (
            [node(each) for each in WANTED],
            "whole",
            ("have 2 node(s) with 2 GPU, need 2 with 2: 192.168.100.10, 192.168.100.11",),
        ),
        (
            [node(WANTED[0])],
            "incomplete",
            ("have 1 node(s) with 1 GPU", "need 2 with 2", "192.168.100.11 did not join"),
        ),
        ([], "incomplete", ("have 0 node(s)",)),
        ([node(WANTED[0]), node(WANTED[1], gpus=0)], "incomplete", ("1 GPU", "192.168.100.11 offers no GPU")),
        ([node(WANTED[0]), node(WANTED[1], alive=False)], "incomplete", ("192.168.100.11 did not join",)),
        ([node(WANTED[0]), node("192.168.1.12")], "wrong", ("192.168.1.12", "only the fabric's addresses")),
        ([node(WANTED[0]), node("10.0.0.1", alive=False), node(WANTED[1])], "whole", ()),
    ],
)
def test_c46_whether_ray_has_every_node(nodes, verdict, words):
    found, what = judge(nodes, WANTED)
    assert found == verdict
    for word in words:
        assert word in what


def gate(tmp_path, *arguments):
    (tmp_path / "ray.py").write_text(RAY)
    command = [sys.executable, str(GATE), *arguments]
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)


def test_c46_the_engine_starts_when_both_are_there(tmp_path):
    done = gate(tmp_path, "h:6379", ",".join(WANTED), "20", "/bin/echo", "the", "engine")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "init h:6379" and "did not join" in lines[1]
    assert lines[-2:] == ["shutdown", "the engine"]


def test_c46_it_gives_up_and_says_what_it_has(tmp_path):
    done = gate(tmp_path, "h:6379", "192.168.100.10,192.168.100.11,192.168.100.99", "0", "/bin/echo", "engine")
    assert done.returncode == 78 and "have 1 node(s)" in done.stdout and "engine" not in done.stdout.splitlines()


def test_usage(tmp_path):
    done = gate(tmp_path, "h:6379")
    assert done.returncode == 78 and "usage" in done.stdout

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rings and switch on virtual Sparks: from a list of cables to every address answering from every node."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

import pytest
from sparklab.names import ID_ENV, LAB_DIR

pytestmark = pytest.mark.lab

ROOT = LAB_DIR.parent.parent
ENV = {**os.environ, ID_ENV: "ttopo", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml"}
RING = "===[0 spark-a …"
SEEN = {"ring3": RING, "ring4": RING, "switch": "switch: spark-a.0, spark-b.0, spark-c.0, spark-d.0"}
HOPS = {"ring3": 1, "ring4": 2, "switch": 1}


def lab(verb: str, *words: str) -> str:
    argv = [str(LAB_DIR / "lab"), verb, *words]
    done = subprocess.run(argv, capture_output=True, text=True, env=ENV, check=False, timeout=600)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def fabric(name: str) -> str:
    argv = [str(ROOT / ".venv/bin/ansible-playbook"), "tandem.spark.fabric", "-i", f"inventories/lab_{name}"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, env=ENV, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(params=SEEN)
def wired(request: pytest.FixtureRequest) -> Iterator[str]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    lab("down", request.param)
    lab("up", request.param)
    yield request.param
    lab("down", request.param)


def test_every_node_reaches_every_address_with_full_packets(wired: str) -> None:
    assert SEEN[wired] in fabric(wired)
    nodes = [f"spark-{letter}" for letter in ("abc" if wired == "ring3" else "abcd")]
    shown = {node: lab("ssh", wired, node, "ip -4 -o addr show") for node in nodes}
    addresses = {node: re.findall(r"inet (10\.100\.[\d.]+)/", text) for node, text in shown.items()}
    assert all(len(own) == (2 if wired == "switch" else 4) for own in addresses.values()), addresses
    for node in nodes:
        others = [address for other, own in addresses.items() if other != node for address in own]
        tries = [f"ping -q -M do -s 8972 -c 1 -w 3 {address} >/dev/null || echo {address}" for address in others]
        assert lab("ssh", wired, node, "; ".join(tries)) == "", node
        # A packet's time to live tells how many nodes passed it on: the shorter way round is taken.
        tries = [f"ping -q -t {HOPS[wired]} -c 1 -w 3 {address} >/dev/null || echo {address}" for address in others]
        assert lab("ssh", wired, node, "; ".join(tries)) == "", node
    again = fabric(wired)
    assert again.count("changed=0") == len(nodes) + 1 and "Look who" not in again

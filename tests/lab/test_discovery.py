# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cables on virtual Sparks: a chain of four, discovered without addresses; crossed, unplugged and silent ones named."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from sparklab.names import ID_ENV, LAB_DIR

pytestmark = pytest.mark.lab

ID = f"td{hashlib.sha256(str(LAB_DIR).encode()).hexdigest()[:5]}"
ROOT = LAB_DIR.parent.parent
ENV = {**os.environ, ID_ENV: ID, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml"}
CHAIN = "[0 spark-a 1]===[0 spark-b 1]===[0 spark-c 1]===[0 spark-d 1]"
# What exchanging the two plugs of a node looks like to it: its cages change their names.
SWAP = (
    ("enp1s0f0np0", "x0"),
    ("enP2p1s0f0np0", "x1"),
    ("enp1s0f1np1", "enp1s0f0np0"),
    ("enP2p1s0f1np1", "enP2p1s0f0np0"),
    ("x0", "enp1s0f1np1"),
    ("x1", "enP2p1s0f1np1"),
)


def lab(verb: str, *words: str) -> str:
    argv = [str(LAB_DIR / "lab"), verb, "chain4", *words]
    done = subprocess.run(argv, capture_output=True, text=True, env=ENV, check=False, timeout=600)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def play(name: str, *words: str, **variables: Any) -> tuple[int, str]:
    argv = [str(ROOT / ".venv/bin/ansible-playbook"), f"tandem.spark.{name}", "-i", "inventories/lab_quad", *words]
    argv += ["-e", json.dumps(variables)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, env=ENV, check=False, timeout=600)
    return done.returncode, done.stdout + done.stderr


def swap_plugs(node: str) -> None:
    steps = [f"ip link set {old} down 2>/dev/null; ip link set {old} name {new}" for old, new in SWAP]
    lab("exec", node, "sh", "-ec", "; ".join(steps))


@pytest.fixture(scope="module")
def chain() -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    lab("down")
    lab("up")
    yield
    lab("down")


def test_a_chain_is_seen_without_addresses(chain: None) -> None:
    code, out = play("discover")
    assert code == 0 and CHAIN in out, out
    assert out.count("seen, both rails") == 3 and "changed=0" in out
    # every link was off before, and is off again, without an address
    for node in ("spark-a", "spark-d"):
        words = lab("ssh", node, "ip -br addr show enp1s0f0np0; ip -br addr show enp1s0f1np1 2>/dev/null; true")
        assert "DOWN" in words and "10." not in words and "fe80" not in words


def test_check_mode_does_not_look(chain: None) -> None:
    code, out = play("discover", "--check")
    assert code == 0 and out.count("- spark-") == 3 + out.count("not declared") and "spark-d: not checked" in out


def test_nothing_declared_is_suggested(chain: None) -> None:
    code, out = play("discover", tandem_cables=[])
    assert code == 0 and "tandem_cables:" in out and "- [spark-c.1, spark-d.0]" in out, out


def test_a_wrong_declaration_names_both_cables(chain: None) -> None:
    code, out = play(
        "discover", tandem_cables=[["spark-a.1", "spark-c.0"], ["spark-c.1", "spark-b.0"], ["spark-b.1", "spark-d.0"]]
    )
    assert code != 0 and "3 differences" in out
    assert "spark-a.1 is cabled to spark-b.0" in out and "move the plug in" in out


def test_swapped_plugs_stop_the_fabric_stage_before_anything_changes(chain: None) -> None:
    swap_plugs("spark-c")
    try:
        code, out = play("fabric")
        assert code != 0 and "2 differences; nothing was changed" in out, out
        assert "[0 spark-b 1]===[1 spark-c 0]===[0 spark-d 1]" in out
        assert "move the plug in spark-c.1 to spark-c.0" in out
        assert lab("ssh", "spark-b", "ls /etc/netplan") == ""
    finally:
        swap_plugs("spark-c")


def test_a_pulled_cable_and_one_rail_of_it(chain: None) -> None:
    lab("link", "spark-c", "enp1s0f1np1", "unplug")
    try:
        code, out = play("discover")
        assert code != 0 and "spark-c.1 - spark-d.0: found answers on rail 1 only" in out, out
        lab("link", "spark-c", "enP2p1s0f1np1", "unplug")
        code, out = play("discover")
        assert code != 0 and "spark-c.1 - spark-d.0: found that spark-c.1 has no interface" in out, out
        assert "spark-b.1 - spark-c.0  seen, both rails" in out
    finally:
        for rail in ("enp1s0f1np1", "enP2p1s0f1np1"):
            lab("link", "spark-c", rail, "plug")


def test_a_node_that_is_off_is_not_checked(chain: None) -> None:
    lab("kill", "spark-d")
    try:
        code, out = play("discover")
        assert "[0 spark-a 1]===[0 spark-b 1]===[0 spark-c 1]" in out and "spark-d: not checked" in out, out
        assert "spark-c.1 - spark-d.0  not checked" in out
    finally:
        lab("start", "spark-d")


def test_the_fabric_stage_configures_the_chain_and_does_not_look_again(chain: None, tmp_path: Path) -> None:
    # An engine whose ranks all talk to each other cannot be served on an open chain; the links are made all the same.
    recipe = yaml.safe_load((LAB_DIR / "recipes/lab-smollm2.yml").read_text())
    recipe |= {"name": "everybody", "nodes": 4, "tensor_parallel": 4}
    recipe["engine"] |= {"lock": str(LAB_DIR / "engines/sglang/requirements.lock"), "rank_environment": []}
    (tmp_path / "everybody.yml").write_text(yaml.safe_dump(recipe))
    unserved = {"tandem_recipe": "everybody", "tandem_recipe_paths": [str(tmp_path)]}
    code, out = play("fabric", **unserved)
    assert code == 0 and CHAIN in out, out
    assert "cannot be served" in out and "llama.cpp over RPC" in out
    assert "1 received" in lab("ssh", "spark-a", "ping -q -M do -s 8972 -c 1 -w 5 10.100.128.18")
    code, out = play("fabric", **unserved)
    assert code == 0 and out.count("changed=0") == 5 and "Look who" not in out, out

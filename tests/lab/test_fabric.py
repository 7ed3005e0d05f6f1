# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The fabric stage on every wiring of the lab, and every fault that it has to survive, with the time to recovery.

The tests of one wiring build on each other in their order, so that the nodes are converged once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from controller import lose

ROOT = Path(__file__).parents[2]
FILE = "/etc/netplan/60-tandem-fabric.yaml"
JOURNAL = "/var/lib/tandem/journal/fabric"
RAIL = "enp1s0f0np0"
# A recipe wants a full commit id, and the lab's hub is not needed here.
ARGUMENTS = ("-e", f"tandem_model_revision={'0' * 40}")
MTU = "-etandem_mtu=4200"
OLD_CX7 = "network:\n  version: 2\n  ethernets:\n    enp1s0f0np0:\n      addresses: [192.168.77.1/24]\n"

pytestmark = pytest.mark.lab


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "ANSIBLE_NOCOLOR": "1", **more}


class Lab:
    """A lab of its own beside the others, and the playbooks on it."""

    def __init__(self, name: str, inventory: str) -> None:
        digest = hashlib.sha256(f"{ROOT} {name}".encode()).hexdigest()
        self.name, self.inventory, self.id = name, inventory, f"tf{digest[:5]}"

    def __call__(self, *verb: str, check: bool = True, timeout: float = 300) -> str:
        done = subprocess.run(
            [str(ROOT / "tests/lab/lab"), *verb],
            env=environment(TANDEM_LAB_ID=self.id),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stdout
        return done.stdout

    def ssh(self, node: str, command: str, check: bool = True) -> str:
        return self("ssh", self.name, node, command, check=check)

    def inside(self, node: str, command: str) -> str:
        """Around SSH, which may be cut."""
        return self("exec", self.name, node, "sh", "-c", command, check=False)

    def command(self, *arguments: str, playbook: str = "tandem.spark.fabric") -> list[str]:
        binary = str(Path(sys.executable).parent / "ansible-playbook")
        return [binary, playbook, "-i", self.inventory, *ARGUMENTS, *arguments]

    def play(self, *arguments: str, playbook: str = "tandem.spark.fabric") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments, playbook=playbook),
            cwd=ROOT,
            env=environment(TANDEM_LAB_ID=self.id),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=400,
            check=False,
        )

    def bytes_of(self, node: str, path: str = FILE) -> str:
        return self.inside(node, f"cat {path} 2>/dev/null; stat -c %a:%u:%g {path} 2>/dev/null")

    def state(self, node: str) -> str:
        """What a change touches: file, addresses, MTU, routes, sysctls."""
        return self.bytes_of(node) + self.inside(
            node,
            "ip -br -4 addr; ip -o link show | sed 's/.* \\(en[^:@]*\\).* mtu \\([0-9]*\\).*/\\1 \\2/'; ip -4 route; "
            "cat /proc/sys/net/ipv4/conf/en*/forwarding /proc/sys/net/ipv4/conf/en*/arp_ignore",
        )

    def verdict(self, node: str) -> tuple[int, dict]:
        out = self.ssh(node, "tandem-fabric --json; echo; echo rc=$?", check=False)
        text, _mark, _code = out.rpartition("rc=")
        data = json.loads(text)
        return {"ok": 0, "degraded": 1, "down": 2}[data["status"]], data

    def answers(self, node: str) -> bool:
        return "yes" in self("ssh", self.name, node, "echo yes", check=False)


def recap(output: str) -> dict[str, dict[str, int]]:
    found = {}
    for line in output.split("PLAY RECAP")[-1].splitlines():
        match = re.match(r"(\S+)\s+: (ok=.*)", line)
        if match and match[1] != "localhost":
            found[match[1]] = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", match[2])}
    return found


def changed(output: str) -> dict[str, int]:
    return {node: counts["changed"] for node, counts in recap(output).items()}


def until(what: str, condition, limit_s: float) -> float:
    """Wait until *condition* holds; returns the seconds that took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < limit_s, f"{what}: not within {limit_s} s"
        time.sleep(0.3)
    return time.monotonic() - started


def tell(what: str, seconds: float) -> None:
    print(f"\n    {what}: {seconds:.1f} s", flush=True)


def boot(name: str, inventory: str) -> Iterator[Lab]:
    lab = Lab(name, inventory)
    lab("down", name)
    lab("up", name)
    yield lab
    lab("down", name)


@pytest.fixture(scope="module")
def pair() -> Iterator[Lab]:
    yield from boot("pair", "inventories/lab_pair")


@pytest.fixture(scope="module")
def chain() -> Iterator[Lab]:
    yield from boot("chain4", "inventories/lab_quad")


# ---------------------------------------------------------------- a pair: apply, take back, restore
def added(output: str, node: str, path: str) -> str:
    """The bytes that a diff of a new file adds, for *node*."""
    lines = output.splitlines()
    end = lines.index(f"changed: [{node}]")
    start = max(at for at in range(end) if re.match(r"(TASK|changed:|ok:) ?\[?", lines[at]))
    at = lines.index(f"--- before: {path} (absent)", start, end)
    bytes_ = []
    for line in lines[at + 3 : end]:
        if not line.startswith("+"):
            break
        bytes_.append(line[1:] + "\n")
    return "".join(bytes_)


def test_check_mode_shows_the_bytes_that_then_change(pair: Lab) -> None:
    before = {node: pair.state(node) for node in ("spark-a", "spark-b")}
    checked = pair.play("--check", "--diff")
    assert checked.returncode == 0, checked.stdout
    assert {node: pair.state(node) for node in before} == before
    done = pair.play("--diff")
    assert done.returncode == 0, done.stdout
    for node in before:
        for path in (FILE, "/etc/sysctl.d/60-tandem-fabric.conf"):
            written = pair.ssh(node, f"cat {path}")
            assert added(checked.stdout, node, path) == written == added(done.stdout, node, path)


def test_second_run_changes_nothing_in_few_round_trips(pair: Lab) -> None:
    done = pair.play("-vvvv")
    assert done.returncode == 0, done.stdout
    assert changed(done.stdout) == {"spark-a": 0, "spark-b": 0}
    trips = re.findall(r"^<([^>]+)> SSH: EXEC ", done.stdout, re.MULTILINE)
    counts = {node: trips.count(node) for node in set(trips)}
    print(f"\n    SSH round trips: {counts}")
    assert max(counts.values()) <= 6
    assert pair.verdict("spark-a")[0] == 0


CUT = """#!/bin/sh
# netplan that cuts SSH the first time it applies something, as a wrong configuration does
/usr/sbin/netplan "$@" || exit
[ "$1" = apply ] || exit 0
if [ -e /run/cut-once ]; then rm /run/cut-once
nft add table inet cut
nft add chain inet cut input '{ type filter hook input priority 0; }'
nft add rule inet cut input tcp dport 22 WHAT drop
else nft delete table inet cut 2>/dev/null; fi
exit 0
"""


@pytest.mark.parametrize("what", ["every packet", "new connections"])
def test_an_apply_that_cuts_ssh_comes_back_by_itself(pair: Lab, what: str) -> None:
    text = CUT.replace("WHAT", "" if what == "every packet" else "tcp flags syn")
    pair("exec", "pair", "spark-b", "sh", "-c", f"cat > /usr/local/sbin/netplan <<'E'\n{text}E\n"
         "chmod +x /usr/local/sbin/netplan; touch /run/cut-once")  # fmt: skip
    before = pair.state("spark-b")
    process = subprocess.Popen(
        pair.command(MTU, "-e", "fabric_revert_after_s=12"),
        cwd=ROOT,
        env=environment(TANDEM_LAB_ID=pair.id),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until("the cut", lambda: "dport 22" in pair.inside("spark-b", "nft list ruleset"), 60)
        seconds = until("the node answers", lambda: pair.answers("spark-b"), 40)
        seconds += until("the old state", lambda: pair.state("spark-b") == before, 30)
        tell(f"SSH cut ({what}), limit 12 s, old bytes back and reachable after", seconds)
        out = process.communicate(timeout=180)[0]
    finally:
        lose(process)
        pair.inside("spark-b", "rm -f /usr/local/sbin/netplan /run/cut-once; nft delete table inet cut")
    assert process.returncode != 0
    assert "spark-b" in out.rsplit("TASK", maxsplit=1)[-1], out
    until("the head's old state", lambda: "mtu 9000" in pair.inside("spark-a", f"ip link show {RAIL}"), 30)
    assert not pair.inside("spark-a", f"ls {JOURNAL}/pending 2>/dev/null").strip()
    done = pair.play()
    assert done.returncode == 0 and changed(done.stdout) == {"spark-a": 0, "spark-b": 0}, done.stdout


def test_a_link_on_the_management_interface_comes_back(pair: Lab) -> None:
    """The module itself, since the stage refuses such a plan."""
    link = {"interface": "enP7s7", "address": "192.168.222.1/24", "mtu": 1400}
    arguments = json.dumps({"links": [link], "path": "/etc/netplan/70-wrong.yaml", "revert_after_s": 10})
    before = pair.state("spark-b")
    binary = str(Path(sys.executable).parent / "ansible")
    process = subprocess.Popen(
        [binary, "-i", pair.inventory, "spark-b", "-m", "tandem.spark.fabric_config", "-a", arguments],
        cwd=ROOT,
        env=environment(TANDEM_LAB_ID=pair.id),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until("the cut", lambda: "192.168.222.1" in pair.inside("spark-b", "ip -br addr"), 60)
        seconds = until("the node answers", lambda: pair.answers("spark-b"), 40)
        seconds += until("the old state", lambda: pair.state("spark-b") == before, 20)
        tell("management interface readdressed, limit 10 s, back after", seconds)
    finally:
        lose(process)
    assert not pair.inside("spark-b", "ls /etc/netplan/70-wrong.yaml 2>/dev/null").strip()


@pytest.mark.parametrize("then", ["nothing", "power loss"])
def test_a_controller_that_dies_in_mid_apply(pair: Lab, then: str) -> None:
    before = pair.state("spark-b")
    process = subprocess.Popen(
        pair.command(MTU, "-e", "fabric_revert_after_s=12"),
        cwd=ROOT,
        env=environment(TANDEM_LAB_ID=pair.id),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until("a pending change", lambda: "json" in pair.inside("spark-b", f"ls {JOURNAL}/pending 2>/dev/null"), 60)
    lose(process)
    if then == "power loss":
        until("the new file", lambda: "4200" in pair.bytes_of("spark-b"), 20)
        pair("kill", "pair", "spark-b")
        started = time.monotonic()
        pair("start", "pair", "spark-b")
        until("the old file", lambda: "9000" in pair.bytes_of("spark-b"), 40)
        until("the old MTU", lambda: "mtu 9000" in pair.inside("spark-b", f"ip link show {RAIL}"), 40)
        tell("controller and node killed in mid-apply, old state after", time.monotonic() - started)
    else:
        seconds = until("the old state", lambda: pair.state("spark-b") == before, 40)
        tell("controller killed in mid-apply, limit 12 s, old state after", seconds)
    until("nothing pending", lambda: not pair.inside("spark-b", f"ls {JOURNAL}/pending 2>/dev/null").strip(), 40)
    until("nothing pending", lambda: not pair.inside("spark-a", f"ls {JOURNAL}/pending 2>/dev/null").strip(), 40)
    done = pair.play()
    assert done.returncode == 0, done.stdout


def test_a_change_after_which_no_peer_answers_is_taken_back_at_once(pair: Lab) -> None:
    before = {node: pair.state(node) for node in ("spark-a", "spark-b")}
    rules = "add table inet deaf; add chain inet deaf input { type filter hook input priority 0; }; "
    rules += f'add rule inet deaf input iifname "{RAIL}" ip protocol icmp drop'
    pair.ssh("spark-b", f"nft '{rules}'")
    started = time.monotonic()
    try:
        done = pair.play(MTU)
    finally:
        pair.ssh("spark-b", "nft delete table inet deaf")
    tell("peer deaf on one rail, refused and taken back (whole run, limit 120 s)", time.monotonic() - started)
    assert done.returncode != 0
    assert "the change was taken back on spark-a, spark-b" in done.stdout, done.stdout
    assert f"spark-a {RAIL} to spark-b {RAIL}" in done.stdout
    assert {node: pair.state(node) for node in before} == before


def test_a_rail_that_is_switched_off(pair: Lab) -> None:
    pair("link", "pair", "spark-b", RAIL, "down")
    code, data = pair.verdict("spark-a")
    assert code == 1 and any(RAIL in problem and "carrier" in problem for problem in data["problems"]), data
    started = time.monotonic()
    done = pair.play()
    tell("one rail down, put right by the stage after", time.monotonic() - started)
    assert done.returncode == 0, done.stdout
    assert pair.verdict("spark-a")[0] == 0


def test_a_rail_without_its_cable(pair: Lab) -> None:
    pair("link", "pair", "spark-b", RAIL, "unplug")
    try:
        done = pair.play()
        assert done.returncode != 0
        assert f"found no interface {RAIL}" in done.stdout and "cable" in done.stdout
        assert pair.verdict("spark-a")[0] == 1
    finally:
        pair("link", "pair", "spark-b", RAIL, "plug")
    started = time.monotonic()
    done = pair.play()
    assert done.returncode == 0, done.stdout
    tell("cable plugged in again, put right by the stage after", time.monotonic() - started)


def test_an_mtu_that_fell_back_on_one_side(pair: Lab) -> None:
    pair("link", "pair", "spark-b", RAIL, "mtu", "1500")
    code, data = pair.verdict("spark-b")
    assert code == 1 and f"{RAIL}: mtu 1500, wanted 9000" in " ".join(data["problems"]), data
    assert pair.verdict("spark-a")[0] == 1
    started = time.monotonic()
    done = pair.play("--diff")
    assert done.returncode == 0 and changed(done.stdout) == {"spark-a": 0, "spark-b": 1}, done.stdout
    tell("MTU 1500 on one side, put right by the stage after", time.monotonic() - started)
    assert f"{RAIL}: mtu 1500, wanted 9000" in done.stdout
    assert pair.verdict("spark-a")[0] == 0


def test_restore_puts_everything_back_and_a_second_one_says_so(pair: Lab) -> None:
    done = pair.play(playbook="tandem.spark.fabric_restore")
    assert done.returncode == 0, done.stdout
    for node in ("spark-a", "spark-b"):
        assert pair.inside(node, f"ls {FILE} /etc/sysctl.d/60-* {JOURNAL}/original 2>/dev/null").strip() == ""
        assert "192.168.10" not in pair.inside(node, "ip -br addr")
    done = pair.play(playbook="tandem.spark.fabric_restore")
    assert done.returncode == 0 and "nothing to restore" in done.stdout
    assert changed(done.stdout) == {"spark-a": 0, "spark-b": 0}


def test_somebody_elses_file_is_reported_taken_over_and_put_back(pair: Lab) -> None:
    pair("exec", "pair", "spark-a", "sh", "-c",
         f"printf '{OLD_CX7.encode('unicode_escape').decode()}' > /etc/netplan/40-cx7.yaml; "
         "chmod 640 /etc/netplan/40-cx7.yaml; chgrp 4 /etc/netplan/40-cx7.yaml; netplan apply")  # fmt: skip
    old = pair.bytes_of("spark-a", "/etc/netplan/40-cx7.yaml")
    assert old.endswith("640:0:4\n")
    done = pair.play()
    assert done.returncode != 0
    assert "/etc/netplan/40-cx7.yaml also configures enp1s0f0np0" in done.stdout and "fabric_take_over" in done.stdout
    assert pair.bytes_of("spark-a", "/etc/netplan/40-cx7.yaml") == old and not pair.bytes_of("spark-a")
    done = pair.play("-e", "fabric_take_over=true")
    assert done.returncode == 0, done.stdout
    assert pair.bytes_of("spark-a", "/etc/netplan/40-cx7.yaml") == ""
    assert changed(pair.play().stdout) == {"spark-a": 0, "spark-b": 0}
    assert "192.168.77.1" not in pair.inside("spark-a", "ip -br addr")
    done = pair.play(playbook="tandem.spark.fabric_restore")
    assert done.returncode == 0, done.stdout
    assert pair.bytes_of("spark-a", "/etc/netplan/40-cx7.yaml") == old
    until("the old address", lambda: "192.168.77.1" in pair.inside("spark-a", "ip -br addr"), 20)


# ---------------------------------------------------------------- a chain of four
def test_chain_end_to_end(chain: Lab) -> None:
    done = chain.play()
    assert done.returncode == 0, done.stdout
    record = json.loads(chain.ssh("spark-a", "cat /var/lib/tandem/records/fabric.json"))
    ends = [end for end in record["far"] if end["node"] == "spark-d"]
    assert len(ends) == 2 and all(end["through"] == ["spark-b", "spark-c"] for end in ends)
    for end in ends:
        assert " 0% packet loss" in chain.ssh("spark-a", f"ping -c 3 -i 0.2 -M do -s 8972 {end['ip']}")
    done = chain.play("-vvvv")
    assert done.returncode == 0 and set(changed(done.stdout).values()) == {0}, done.stdout
    trips = re.findall(r"^<([^>]+)> SSH: EXEC ", done.stdout, re.MULTILINE)
    counts = {node: trips.count(node) for node in set(trips)}
    print(f"\n    SSH round trips per node: {sorted(counts.values())}")
    assert max(counts.values()) <= 6


def test_chain_needs_no_global_forwarding_and_passes_nothing_into_the_lan(chain: Lab) -> None:
    for node in ("spark-b", "spark-c"):
        chain.ssh(node, "sysctl -qw net.ipv4.ip_forward=0")  # it sets every interface's
    assert chain.verdict("spark-a")[0] == 2
    started = time.monotonic()
    done = chain.play()
    assert done.returncode == 0, done.stdout
    tell("forwarding switched off by somebody else, put right by the stage after", time.monotonic() - started)
    assert chain.verdict("spark-a")[0] == 0
    for node in ("spark-b", "spark-c"):
        paths = "/proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf/enP7s7/forwarding"
        assert chain.ssh(node, f"cat {paths}").split() == ["0", "0"]
    # A neighbour that takes spark-b for a router into the management network gets nowhere, even when spark-b passes on.
    chain.ssh("spark-b", "sysctl -qw net.ipv4.ip_forward=1")
    record = json.loads(chain.ssh("spark-a", "cat /var/lib/tandem/records/fabric.json"))
    link = record["links"][0]
    chain.ssh("spark-a", f"ip route add 192.0.2.0/24 via {link['peers'][0]['ip']}; ping -c 1 -W 1 192.0.2.1; true")
    rules = chain.ssh("spark-b", "nft list table inet tandem_fabric")
    assert re.search(r"oifname \"en\*\" counter packets [1-9]", rules), rules
    chain.ssh("spark-a", "ip route del 192.0.2.0/24")


def test_chain_middle_node_lost_and_back(chain: Lab) -> None:
    chain("kill", "chain4", "spark-b")
    try:
        code, data = chain.verdict("spark-a")
        assert code == 2 and any("spark-c, spark-d: cut off behind spark-b" in p for p in data["problems"]), data
        print(f"\n    spark-a says: {data['problems'][-2:]}")
        done = chain.play()
        assert done.returncode != 0
        assert "without spark-b, spark-c and spark-d are cut off from spark-a" in done.stdout, done.stdout
    finally:
        started = time.monotonic()
        chain("start", "chain4", "spark-b")
    until("the chain", lambda: chain.verdict("spark-a")[0] < 2, 60)
    tell("node 2 of the chain started again, all reached after", time.monotonic() - started)
    done = chain.play()
    assert done.returncode == 0 and set(changed(done.stdout).values()) == {0}, done.stdout


def test_chain_crossed_cables(chain: Lab) -> None:
    before = {node: chain.state(node) for node in ("spark-a", "spark-b", "spark-c", "spark-d")}
    crossed = [["spark-a.1", "spark-c.0"], ["spark-c.1", "spark-b.0"], ["spark-b.1", "spark-d.0"]]
    started = time.monotonic()
    done = chain.play("-e", json.dumps({"tandem_cables": crossed}))
    tell("crossed cables, refused after", time.monotonic() - started)
    assert done.returncode != 0
    assert "spark-c" in done.stdout.rsplit("TASK", maxsplit=1)[-1], done.stdout
    assert {node: chain.state(node) for node in before} == before


def test_chain_the_management_network_as_pool_is_refused(chain: Lab) -> None:
    subnet = json.loads(chain("inventory", "chain4"))["_meta"]["hostvars"]["spark-a"]["lab_subnet"]
    chain.play(playbook="tandem.spark.fabric_restore")
    before = chain.state("spark-b")
    done = chain.play("-e", f"tandem_fabric_pool={subnet}")
    assert done.returncode != 0
    assert subnet.rpartition(".")[0] in done.stdout, done.stdout
    assert chain.state("spark-b") == before


# ---------------------------------------------------------------- the other wirings
@pytest.mark.parametrize("name", ["ring3", "ring4", "switch"])
def test_other_wirings(name: str) -> None:
    with contextlib.contextmanager(boot)(name, f"inventories/lab_{name}") as lab:
        started = time.monotonic()
        done = lab.play()
        assert done.returncode == 0, done.stdout
        tell(f"{name} configured and proven after", time.monotonic() - started)
        record = json.loads(lab.ssh("spark-a", "cat /var/lib/tandem/records/fabric.json"))
        near = [peer["ip"] for link in record["links"] for peer in link["peers"]]
        for address in near + [end["ip"] for end in record["far"]]:
            assert " 0% packet loss" in lab.ssh("spark-a", f"ping -c 2 -i 0.2 -M do -s 8972 {address}"), address
        done = lab.play()
        assert done.returncode == 0 and set(changed(done.stdout).values()) == {0}, done.stdout
        assert lab.verdict("spark-a")[0] == 0

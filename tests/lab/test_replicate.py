# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The copy of a model between nodes, and every fault that it has to survive, with the bytes that a rerun sends again.

Bytes are those that the receiver's fabric interfaces counted. The model is made of random weights; no engine is needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from controller import lose
from test_fabric import ROOT, Lab, changed, environment, until

PLAYBOOK = "tests/lab/replicate.yml"
SHARDS, SHARD = 8, 12_000_000
TOTAL = SHARDS * SHARD
REVISION = "0" * 40
# Headers of frames, acknowledgements, the lists of files: 2 % of a large frame at most, and a floor for short copies.
OVERHEAD, FLOOR = 1.02, 3_000_000
SLOW = "60mbit"
MODELS = "/var/lib/tandem/models"
RELEASE = f"{MODELS}/synthetic"
STAGING = f"{MODELS}/.staging-synthetic"
MODEL = {"id": "lab/synthetic", "release": "synthetic", "path": RELEASE, "revision": REVISION}
RAILS = {"spark-a": ("enp1s0f0np0", "enP2p1s0f0np0"), "spark-b": ("enp1s0f0np0", "enP2p1s0f0np0")}

pytestmark = pytest.mark.lab


class Play:
    """A playbook that runs beside the test. Its words go into a file: nobody empties a pipe meanwhile."""

    def __init__(self, command: list[str], variables: dict[str, str]) -> None:
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT
        )

    def finish(self, timeout: float = 150) -> tuple[int, str]:
        code = self.process.wait(timeout)
        self.output.seek(0)
        return code, self.output.read()

    def kill(self) -> None:
        """Kill the controller. Ansible asks a node that is gone after its task for as long as that may take."""
        lose(self.process)


class Nodes(Lab):
    """A lab whose head has a model."""

    def __init__(self, name: str, inventory: str) -> None:
        super().__init__(name, inventory)
        self.id = f"tr{hashlib.sha256(f'{ROOT} {name}'.encode()).hexdigest()[:5]}"

    def command(self, *arguments: str, playbook: str = PLAYBOOK) -> list[str]:
        binary = str(Path(sys.executable).parent / "ansible-playbook")
        given = {
            "lab_model": MODEL,
            "model_rail_timeout_s": 4,
            "model_stall_s": 9,
            "tandem_model_revision": REVISION,
            "fabric_throughput": False,
        }
        return [binary, playbook, "-i", self.inventory, "-v", "-e", json.dumps(given), *arguments]

    def fabric(self) -> None:
        done = self.play(playbook="tandem.spark.fabric")
        assert done.returncode == 0, done.stdout

    def copy(self, *arguments: str) -> str:
        done = self.play(*arguments, playbook=PLAYBOOK)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def refused(self, *arguments: str) -> str:
        done = self.play(*arguments, playbook=PLAYBOOK)
        assert done.returncode != 0, done.stdout
        return flat(done.stdout)

    def begin(self) -> Play:
        return Play(self.command(), environment(TANDEM_LAB_ID=self.id))

    def slow(self, node: str = "spark-a", rate: str = SLOW) -> None:
        for interface in RAILS[node]:
            self("link", self.name, node, interface, "rate", rate)

    def clear(self, node: str = "spark-a") -> None:
        for interface in RAILS[node]:
            self("link", self.name, node, interface, "clear")

    def here(self, node: str = "spark-b") -> int:
        """Bytes of weights in the staging directory."""
        text = self.inside(node, f"stat -c %s {STAGING}/*.safetensors 2>/dev/null")
        return sum(map(int, text.split()))

    def arrived(self, node: str = "spark-b") -> int:
        """What the fabric's interfaces have received since the node started."""
        return sum(map(int, self.inside(node, "cat /sys/class/net/en*f*np*/statistics/rx_bytes").split()))

    def half_way(self, part: float = 0.3) -> None:
        until("the copy is half way", lambda: self.here() > part * TOTAL, 60)

    def forget(self, *nodes: str) -> None:
        for node in nodes or ("spark-b",):
            self.inside(node, f"mkdir -p {MODELS}; rm -rf {MODELS}/* {MODELS}/.[a-z]*")

    def sound(self, node: str = "spark-b") -> None:
        """The release is there, is the head's, and nothing else is."""
        listing = "cd {} && find . -type f ! -name tandem-manifest.json -exec sha256sum {{}} + | sort"
        assert self.inside(node, listing.format(RELEASE)) == self.inside("spark-a", listing.format(RELEASE))
        assert self.inside(node, f"ls -A {MODELS}").split() == [".synthetic.verified.json", "synthetic"]

    def nothing_published(self, node: str = "spark-b") -> None:
        assert self.inside(node, f"ls -d {RELEASE} 2>/dev/null") == ""

    def no_daemon(self, *nodes: str) -> None:
        for node in nodes:
            look = (
                "ls -d /run/tandem-share* 2>/dev/null; systemctl list-units --no-legend 'tandem-share*'; pgrep -x rsync"
            )
            assert self.inside(node, look) == "", node


def flat(output: str) -> str:
    """Messages without the line breaks that they are printed with."""
    return re.sub(r"\s+", " ", output)


def figure(output: str, name: str) -> int:
    """A figure that the module told."""
    return int(re.search(rf"^\s+{name}: (\d+)$", output, re.MULTILINE)[1])


def tell(what: str, output: str = "") -> None:
    print(f"\n    {what}", *([f"bytes_sent {figure(output, 'bytes_sent')}"] if output else []), flush=True)


@contextlib.contextmanager
def counted(lab: Nodes, expected: int) -> Iterator[None]:
    """The fabric's interfaces of the receiver count no more than the bytes expected, and their headers."""
    before = lab.arrived()
    yield
    came = lab.arrived() - before
    tell(f"{came} bytes over the cables for {expected}")
    assert expected <= came <= expected * OVERHEAD + FLOOR


def boot(name: str, inventory: str) -> Iterator[Nodes]:
    lab = Nodes(name, inventory)
    lab("down", name)
    lab("up", name)
    lab.fabric()
    code = (ROOT / "tests/lab/synthetic.py").read_text()
    lab("exec", name, "spark-a", "python3", "-c", code, RELEASE, REVISION, str(SHARDS), str(SHARD))
    yield lab
    lab("down", name)


@pytest.fixture(scope="module")
def pair() -> Iterator[Nodes]:
    yield from boot("pair", "inventories/lab_pair")


@pytest.fixture
def clean(pair: Nodes) -> Iterator[Nodes]:
    pair.forget()
    yield pair
    pair.clear()


def test_check_mode_then_a_copy_over_both_rails_then_nothing_to_do(clean):
    looked = clean.copy("--check")
    assert figure(looked, "files_sent") == SHARDS + 4 and TOTAL < figure(looked, "bytes_sent") < TOTAL + 10_000
    assert clean.here() == 0
    with counted(clean, TOTAL):
        first = clean.copy()
    clean.sound()
    clean.no_daemon("spark-a", "spark-b")
    rails = [int(value) for value in re.findall(r"^\s+192\.168\.10[01]\.10: (\d+)$", first, re.MULTILINE)]
    assert len(rails) == 2 and min(rails) > TOTAL // 4
    assert re.search(r"checked: arrived", first) and figure(first, "files_read") == 0
    assert changed(clean.copy()) == {"spark-a": 0, "spark-b": 0}


def test_only_the_peer_on_its_rail_with_the_secret_is_served(clean):
    clean.slow()
    play = clean.begin()
    try:
        clean.half_way(0.05)
        ask = "RSYNC_PASSWORD=wrong rsync --contimeout=3 --list-only {} rsync://tandem@{}:8730/share/ 2>&1"
        assert "auth failed" in clean.inside("spark-b", ask.format("", "192.168.100.10"))
        # A foreign address on the same network, and the address of the other rail.
        clean.inside("spark-b", "ip addr add 192.168.100.77/24 dev enp1s0f0np0")
        foreign = clean.inside("spark-b", ask.format("--address=192.168.100.77", "192.168.100.10"))
        other = clean.inside("spark-b", ask.format("--address=192.168.101.11", "192.168.100.10"))
        # Later rsyncs do not even tell a stranger that there is such a share.
        assert re.search("access denied|Unknown module", foreign) and re.search("access denied|Unknown module", other)
        listening = clean.inside("spark-a", "ss -Hltn 'sport = :8730'")
        assert set(re.findall(r"(\S+):8730", listening)) == {"192.168.100.10", "192.168.101.10"}
        # The secret is in no command line, and in no file that others can read.
        assert clean.inside("spark-b", "ps -ww -o args -C rsync | grep -c PASSWORD").strip() == "0"
        modes = clean.inside("spark-a", "stat -c %a /run/tandem-share-model /run/tandem-share-model/*/secrets")
        assert modes.split() == ["700", "600", "600"]
        writing = ask.replace("--list-only", "/etc/hostname").format("", "192.168.100.10")
        assert "ERROR" in clean.inside("spark-b", writing)
    finally:
        clean.inside("spark-b", "ip addr del 192.168.100.77/24 dev enp1s0f0np0")
        clean.clear()
        code, output = play.finish()
    assert code == 0, output
    clean.no_daemon("spark-a")


def test_c38_the_controller_is_killed_and_a_byte_flips_in_what_had_arrived(clean):
    """A rerun sends the rest and the one damaged file; times of files, which a skewed clock makes, play no part."""
    clean.slow()
    play = clean.begin()
    clean.half_way()
    play.kill()
    clean.nothing_published()
    # The work goes on without its controller; end it too, as a power loss would, and damage one whole shard.
    clean.inside("spark-b", "pkill -9 -f 'python3.*ansible'; pkill -9 -x rsync")
    until("the rsyncs are gone", lambda: clean.inside("spark-b", "pgrep -x rsync") == "", 20)
    sizes = f"cd {STAGING} && stat -c '%s %n' *.safetensors"
    whole = [line.split()[1] for line in clean.inside("spark-b", sizes).splitlines() if int(line.split()[0]) > SHARD]
    assert whole
    path = f"{STAGING}/{whole[0]}"
    clean.inside("spark-b", f"printf X | dd of={path} bs=1 seek=1000 conv=notrunc 2>/dev/null")
    clean.inside("spark-b", f"touch -d 2040-01-01 {path}; touch -d 1999-01-01 {STAGING}/*2-of*")
    left = TOTAL - clean.here() + SHARD
    clean.clear()
    with counted(clean, left):
        output = clean.copy()
    tell("killed controller and receiver's processes:", output)
    assert whole[0] in output.split("files_resent")[1][:200]
    clean.sound()
    clean.no_daemon("spark-a")


def test_the_receiver_loses_its_power(clean):
    clean.slow()
    play = clean.begin()
    clean.half_way()
    clean("kill", clean.name, "spark-b")
    play.kill()
    clean("start", clean.name, "spark-b")
    clean.clear()
    clean.fabric()
    clean.nothing_published()
    left = TOTAL - clean.here()
    assert left < 0.8 * TOTAL
    with counted(clean, left):
        tell("killed receiver:", clean.copy())
    clean.sound()
    clean.no_daemon("spark-a")


def test_the_source_loses_its_power(clean):
    clean.slow()
    play = clean.begin()
    clean.half_way()
    clean("kill", clean.name, "spark-a")
    until("the copy gives up", lambda: clean.inside("spark-b", "pgrep -x rsync") == "", 60)
    code, output = play.finish()
    assert code != 0, output
    output = flat(output)
    assert "spark-b: found nothing arriving for 9 s" in output, output[-3000:]
    assert "192.168.100.10" in output and "wanted at least one way" in output
    clean("start", clean.name, "spark-a")
    clean.clear()
    clean.fabric()
    clean.nothing_published()
    left = TOTAL - clean.here()
    with counted(clean, left):
        tell("killed source:", clean.copy())
    clean.sound()
    clean.no_daemon("spark-a")


def test_a_rail_is_unplugged_in_mid_transfer(clean):
    clean.slow(rate="40mbit")
    play = clean.begin()
    clean.half_way(0.15)
    clean("link", clean.name, "spark-a", RAILS["spark-a"][0], "unplug")
    try:
        clean("link", clean.name, "spark-a", RAILS["spark-a"][1], "clear")
        code, output = play.finish()
    finally:
        clean("link", clean.name, "spark-a", RAILS["spark-a"][0], "plug", check=False)
    assert code == 0, output
    assert figure(output, "bytes_sent") < TOTAL * 1.02
    assert re.search(r"192\.168\.100\.10: (no|nothing|the connection)", output)
    tell("unplugged rail:", output)
    clean.sound()
    clean.fabric()


def test_c30_a_full_disk_is_named_before_and_is_survived_in_between(clean):
    clean.inside("spark-b", f"mount -t tmpfs -o size=60M tmpfs {MODELS}")
    try:
        output = clean.refused()
        free = re.search(r"spark-b: /var/lib/tandem/models\S*: found (\d+) bytes free, wanted (\d+)", output)
        assert int(free[1]) <= 60 << 20 and TOTAL < int(free[2]) < TOTAL + 10_000
        assert clean.here() == 0
        clean.no_daemon("spark-a")
        # Enough at first, then somebody else takes it.
        clean.inside("spark-b", f"mount -o remount,size=120M {MODELS}")
        clean.slow()
        play = clean.begin()
        clean.half_way(0.1)
        assert clean.inside("spark-b", f"mount -o remount,size=66M {MODELS}") == ""
        code, output = play.finish()
        assert code != 0, output
        output = flat(output)
        assert re.search(
            r"found the disk full \(\d+ bytes free\), wanted \d+ for what is still to come; something else", output
        ), output
        clean.nothing_published()
        clean.inside("spark-b", f"mount -o remount,size=120M {MODELS}")
        clean.clear()
        left = TOTAL - clean.here()
        with counted(clean, left):
            tell("full disk:", clean.copy())
        clean.sound()
    finally:
        clean.inside("spark-b", f"umount {MODELS}")


def test_c23_a_damaged_source_is_named_and_nothing_is_published(clean):
    # The last that is sent, damaged after the head was looked at.
    shard = f"{RELEASE}/model-0000{SHARDS}-of-0000{SHARDS}.safetensors"
    clean.inside("spark-a", f"cp -p {shard} /var/tmp/good")
    clean.slow()
    trusting = clean.begin()
    try:
        clean.half_way(0.01)
        clean.inside("spark-a", f"printf XYZ | dd of={shard} bs=1 seek=11999999 conv=notrunc 2>/dev/null")
        code, output = trusting.finish()
    finally:
        clean.inside("spark-a", f"cat /var/tmp/good > {shard}; rm /var/tmp/good")
        clean.clear()
    assert code != 0, output
    output = flat(output)
    assert "spark-b: model-00008-of-00008.safetensors: found sha256" in output and "spark-a may be damaged" in output
    clean.nothing_published()
    tell("damaged source, repaired:", clean.copy())
    clean.sound()


def test_c31_ssh_as_the_transport(clean):
    """Never a prompt: an unknown host is refused by name; and a known one serves."""
    clean.inside("spark-b", "test -e /root/.ssh/id_ed25519 || ssh-keygen -qt ed25519 -N '' -f /root/.ssh/id_ed25519")
    key = clean.inside("spark-b", "cat /root/.ssh/id_ed25519.pub").strip()
    clean.inside("spark-a", f"mkdir -p /root/.ssh; echo '{key}' >> /root/.ssh/authorized_keys")
    output = clean.refused("-e", "model_transport=ssh")
    assert "known_hosts of this account: found no key of 192.168.100.10 (spark-a)" in output
    host = clean.inside("spark-a", "cat /etc/ssh/ssh_host_ed25519_key.pub").split()
    clean.inside("spark-b", f"echo '192.168.100.10,192.168.101.10 {host[0]} {host[1]}' >> /root/.ssh/known_hosts")
    with counted(clean, TOTAL):
        tell("ssh:", clean.copy("-e", "model_transport=ssh"))
    clean.sound()
    clean.no_daemon("spark-a")


@pytest.fixture(scope="module")
def chain() -> Iterator[Nodes]:
    for lab in boot("chain4", "inventories/lab_quad"):
        for interface in ("enp1s0f1np1", "enP2p1s0f1np1"):
            lab("link", lab.name, "spark-a", interface, "rate", SLOW)
        yield lab


def test_a_chain_hands_every_file_on(chain):
    """Each cable carries the model once, and the last node has files before the first has all."""
    sent = "cat /sys/class/net/en*f1np1/statistics/tx_bytes"
    before = {node: sum(map(int, chain.inside(node, sent).split())) for node in ("spark-a", "spark-b", "spark-c")}
    play = chain.begin()
    until("the last node has a shard", lambda: chain.here("spark-d") >= SHARD, 90)
    assert chain.here("spark-b") < TOTAL
    code, output = play.finish()
    assert code == 0, output
    for node, count in before.items():
        came = sum(map(int, chain.inside(node, sent).split())) - count
        tell(f"{node} sent {came}")
        assert TOTAL <= came <= TOTAL * OVERHEAD + FLOOR
    for node in ("spark-b", "spark-c", "spark-d"):
        chain.sound(node)
    chain.no_daemon("spark-a", "spark-b", "spark-c", "spark-d")
    assert set(changed(chain.copy()).values()) == {0}


def test_a_chain_whose_middle_lost_its_power_sends_the_rest(chain):
    chain.forget("spark-b", "spark-c", "spark-d")
    play = chain.begin()
    until("the middle is half way", lambda: chain.here("spark-c") > 0.3 * TOTAL, 90)
    chain("kill", chain.name, "spark-c")
    until("the last node gives up", lambda: chain.inside("spark-d", "pgrep -x rsync") == "", 60)
    play.kill()
    chain("start", chain.name, "spark-c")
    chain.fabric()
    for node in ("spark-b", "spark-c", "spark-d"):
        chain.nothing_published(node)
    ways = {"spark-a": "spark-b", "spark-b": "spark-c", "spark-c": "spark-d"}
    left = {source: TOTAL - chain.here(receiver) for source, receiver in ways.items()}
    sent = "cat /sys/class/net/en*f1np1/statistics/tx_bytes"
    before = {node: sum(map(int, chain.inside(node, sent).split())) for node in ways}
    chain.copy()
    for node, count in before.items():
        came = sum(map(int, chain.inside(node, sent).split())) - count
        tell(f"killed relay: {node} sent {came} for {left[node]}")
        assert came <= left[node] * OVERHEAD + FLOOR
    for node in ("spark-b", "spark-c", "spark-d"):
        chain.sound(node)

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The fabric stage where a real NetworkManager owns the links: through netplan, then alone; and networkd alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import packages
import pytest
from test_fabric import JOURNAL, MTU, RAIL, ROOT, Lab, changed, environment, recap, until

pytestmark = pytest.mark.lab
NODE = "spark-a"
DEAF = (
    "nft 'add table inet deaf; add chain inet deaf input { type filter hook input priority 0; }; "
    f'add rule inet deaf input iifname "{RAIL}" ip protocol icmp drop\''
)
PROFILES = "nmcli --terse --fields DEVICE,NAME connection show --active | grep ^en | sort"


class Managed(Lab):
    def __init__(self, name: str, inventory: str) -> None:
        super().__init__(name, inventory)
        self.id = f"tn{self.id[2:]}"

    def root(self, script: str, node: str = NODE) -> str:
        return packages.guest(self.name, self.id, node, script).decode()

    def configure(self, mtu: int, revert_after_s: int) -> None:
        """The module alone, which nobody confirms."""
        addresses = {RAIL: "192.168.100.10/24", "enP2p1s0f0np0": "192.168.101.10/24"}
        links = [{"interface": name, "address": address, "mtu": mtu} for name, address in addresses.items()]
        done = subprocess.run(
            [str(Path(sys.executable).parent / "ansible"), "-i", self.inventory, NODE, "--become", "-m",
             "tandem.spark.fabric_config", "-a", json.dumps({"links": links, "revert_after_s": revert_after_s})],
            cwd=ROOT,
            env=environment(TANDEM_LAB_ID=self.id),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout

    def seen(self) -> str:
        """Files, addresses, MTU and routes of the links. NetworkManager's metrics count up with each activation."""
        script = "cat /etc/netplan/* /etc/NetworkManager/system-connections/* /etc/systemd/network/* 2>/dev/null; "
        script += "ip -br -4 addr; ip -o link show | grep -o '^[0-9]*: en[^@:]*\\|mtu [0-9]*'; ip -4 route"
        return re.sub(r" metric \d+", "", self.root(script))


@pytest.fixture(scope="module")
def pair() -> Iterator[Managed]:
    lab = Managed("pair", "inventories/lab_pair")
    lab("down", "pair")
    lab("up", "pair")
    packages.install("pair", lab.id, NODE, "network-manager")
    until("NetworkManager", lambda: RAIL in lab.root("nmcli device"), 20)
    yield lab
    lab("down", "pair")


def configured_and_restored(pair: Managed, profile: str) -> None:
    """Apply, again, a link switched off, a change taken back by the stage and by the timer, and a restore."""
    manager = "" if not profile else f"{RAIL}:{profile}{RAIL}"
    done = pair.play()
    assert done.returncode == 0, done.stdout
    assert not manager or manager in pair.root(PROFILES)
    assert "inet6" not in pair.root(f"ip addr show {RAIL}")
    again = pair.play()
    assert again.returncode == 0 and changed(again.stdout) == {"spark-a": 0, "spark-b": 0}, again.stdout
    before = pair.seen()
    assert "192.168.100.10" in before and "mtu 9000" in before

    pair.root(f"ip link set {RAIL} down")
    done = pair.play()
    assert done.returncode == 0 and pair.seen() == before, done.stdout

    pair.root(DEAF, "spark-b")
    done = pair.play(MTU)
    pair.root("nft delete table inet deaf", "spark-b")
    assert "the change was taken back on spark-a, spark-b" in done.stdout, done.stdout
    assert pair.seen() == before and (not manager or manager in pair.root(PROFILES))

    pair.configure(4200, 3)
    assert "mtu 4200" in pair.seen()
    until("the timer", lambda: "pending" not in pair.root(f"ls {JOURNAL}"), 40)
    assert pair.seen() == before

    done = pair.play(playbook="tandem.spark.fabric_restore")
    assert done.returncode == 0 and recap(done.stdout)["spark-a"]["changed"] > 0, done.stdout
    after = pair.seen()
    assert "192.168.10" not in after and "tandem" not in after
    left = pair.root("nmcli connection") if manager else ""
    assert "tandem" not in left and "netplan" not in left


def test_netplan_that_networkmanager_carries_out(pair: Managed) -> None:
    configured_and_restored(pair, "netplan-")


def test_networkmanager_alone(pair: Managed) -> None:
    pair.root("dpkg --purge netplan.io")
    configured_and_restored(pair, "60-tandem-fabric-")


def test_networkd_alone(pair: Managed) -> None:
    pair.root("systemctl disable --now NetworkManager; ip addr flush dev enp1s0f0np0; ip addr flush dev enP2p1s0f0np0")
    configured_and_restored(pair, "")

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The fabric stage on nodes whose real firewalls deny by default: ufw, firewalld, Docker's chains, a table by hand.

The tests of one wiring build on each other in their order, so that the nodes are converged once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import packages
import pytest
from test_fabric import RAIL, Lab, changed, until

pytestmark = pytest.mark.lab
OTHER = "enP2p1s0f0np0"
PORT = 20123  # nobody listens there, so that a node that lets the packet in refuses it itself
PAIR = {"spark-a": "192.168.100.10", "spark-b": "192.168.100.11"}
KNOCK = f"import socket; s = socket.socket(); s.settimeout(2); print(s.connect_ex((%r, {PORT})))"
REFUSED = "111"  # ECONNREFUSED
HAND = """table inet hand {
  chain input {
    type filter hook input priority 0; policy drop;
    ct state established,related accept
    iifname { "lo", "enP7s7" } accept
    icmp type echo-request accept
  }
}
"""
DOCKER = """set -e
iptables -P FORWARD DROP
iptables -N DOCKER-USER; iptables -N DOCKER-FORWARD
iptables -A FORWARD -j DOCKER-USER; iptables -A FORWARD -j DOCKER-FORWARD
iptables -A DOCKER-FORWARD -i docker0 -j ACCEPT; iptables -A DOCKER-USER -j RETURN
"""


class Guarded(Lab):
    """A lab beside that of the other tests of the fabric."""

    def __init__(self, name: str, inventory: str) -> None:
        super().__init__(name, inventory)
        self.id = f"tw{self.id[2:]}"

    def install(self, node: str, *names: str) -> None:
        packages.install(self.name, self.id, node, *names)

    def root(self, node: str, script: str) -> str:
        return packages.guest(self.name, self.id, node, script).decode()

    def knock(self, node: str, address: str) -> str:
        """The error number that a TCP connection from *node* to *address* meets."""
        return self.root(node, f'python3 -c "{KNOCK % address}"').strip()

    def ufw(self, node: str) -> None:
        self.install(node, "ufw", "iptables")
        self.root(node, "ufw allow 22/tcp && ufw --force enable && cp /etc/ufw/user.rules /root/user.rules")

    def firewalld(self, node: str) -> None:
        self.install(node, "firewalld", "netbase")
        self.root(node, "systemctl restart firewalld && firewall-cmd --state")


def guarded(name: str, inventory: str) -> Iterator[Guarded]:
    lab = Guarded(name, inventory)
    lab("down", name)
    lab("up", name)
    yield lab
    lab("down", name)


# ---------------------------------------------------------------- a pair: ufw on one node, firewalld on the other
@pytest.fixture(scope="module")
def pair() -> Iterator[Guarded]:
    for lab in guarded("pair", "inventories/lab_pair"):
        lab.ufw("spark-a")
        lab.firewalld("spark-b")
        yield lab


def test_a_firewall_that_is_not_told_is_named_and_the_proof_fails(pair: Guarded) -> None:
    done = pair.play("-e", "fabric_firewall=false")
    assert done.returncode != 0
    assert "pings pass and TCP does not" in done.stdout, done.stdout
    for place in ("spark-a: found that table ip filter, chain INPUT", "spark-b: found that table inet firewalld"):
        assert place in done.stdout
    assert "fabric_firewall: true" in done.stdout and "was taken back on spark-a, spark-b" in done.stdout


def test_settings_that_a_reload_would_forget_are_kept(pair: Guarded) -> None:
    pair.root("spark-b", "firewall-cmd --add-port=99/tcp")
    done = pair.play()
    assert done.returncode != 0 and "public: ports 99/tcp" in done.stdout, done.stdout
    assert "99/tcp" in pair.root("spark-b", "firewall-cmd --list-ports; ls /etc/firewalld/zones")
    assert "tandem" not in pair.root("spark-b", "ls /etc/firewalld/zones; ls /etc/netplan")
    pair.root("spark-b", "firewall-cmd --remove-port=99/tcp")


def test_peers_come_in_on_the_rails_and_nobody_else_does(pair: Guarded) -> None:
    checked = pair.play("--check", "--diff")
    assert checked.returncode == 0, checked.stdout
    assert f"-ufw: no rule `allow in on {RAIL} from 192.168.100.0/23`" in checked.stdout
    assert f'+  <interface name="{RAIL}"/>' in checked.stdout
    assert "tandem" not in pair.root("spark-a", "ufw show added") + pair.root("spark-b", "firewall-cmd --get-zones")
    done = pair.play()
    assert done.returncode == 0 and "WARNING" not in done.stdout, done.stdout
    assert pair.knock("spark-a", PAIR["spark-b"]) == pair.knock("spark-b", PAIR["spark-a"]) == REFUSED
    # The management network, and a stranger's address on the rail itself, stay outside.
    hosts = json.loads(pair("inventory", "pair"))["_meta"]["hostvars"]
    management = {node: hosts[node]["ansible_host"] for node in PAIR}
    for number, node in enumerate(PAIR):
        pair.root(node, f"ip addr add 172.31.9.{number}/31 dev {RAIL}")
    strangers = {"spark-a": (management["spark-b"], "172.31.9.1"), "spark-b": (management["spark-a"], "172.31.9.0")}
    for node, addresses in strangers.items():
        assert REFUSED not in [pair.knock(node, address) for address in addresses]
    for number, node in enumerate(PAIR):
        pair.root(node, f"ip addr del 172.31.9.{number}/31 dev {RAIL}")
    assert pair.answers("spark-a") and pair.answers("spark-b")


def test_second_run_changes_nothing_in_few_round_trips(pair: Guarded) -> None:
    done = pair.play("-vvvv")
    assert done.returncode == 0 and changed(done.stdout) == {"spark-a": 0, "spark-b": 0}, done.stdout
    trips = re.findall(r"^<([^>]+)> SSH: EXEC ", done.stdout, re.MULTILINE)
    assert max(trips.count(node) for node in set(trips)) <= 6


def test_a_rule_that_somebody_took_away_comes_back(pair: Guarded) -> None:
    pair.root("spark-a", f"ufw delete allow in on {OTHER} from 192.168.100.0/23")
    pair.root("spark-a", f"iptables -D ufw-user-input -i {RAIL} -s 192.168.100.0/23 -j ACCEPT")
    pair.root("spark-b", f"firewall-cmd --zone=tandem-fabric --remove-interface={RAIL}")
    done = pair.play("--diff")
    assert done.returncode == 0, done.stdout
    assert f"ufw: rule `allow in on {RAIL} from 192.168.100.0/23` is not loaded" in done.stdout
    assert f"ufw: no rule `allow in on {OTHER} from 192.168.100.0/23`" in done.stdout
    assert f"firewalld: {RAIL} is not in the zone tandem-fabric" in done.stdout
    assert pair.knock("spark-a", PAIR["spark-b"]) == pair.knock("spark-b", PAIR["spark-a"]) == REFUSED


def test_a_table_by_hand_is_named_with_the_rule_that_it_lacks(pair: Guarded) -> None:
    packages.guest("pair", pair.id, "spark-a", "nft -f -", feed=HAND.encode())
    done = pair.play()
    assert done.returncode != 0
    wanted = re.search(
        r"spark-a: found that table inet hand, chain input \(policy drop\).*?`(nft insert[^`]*)`", done.stdout
    )
    assert wanted, done.stdout
    rule = " ".join(wanted[1].split())
    for name in (RAIL, OTHER):
        pair.root("spark-a", f"nft '{rule[4:].replace(RAIL, name).replace(OTHER, name)}'")
    done = pair.play()
    assert done.returncode == 0 and "WARNING" not in done.stdout, done.stdout
    pair.root("spark-a", "nft delete table inet hand")


def test_restore_takes_the_rules_away(pair: Guarded) -> None:
    pair.root("spark-a", "ufw allow 8000/tcp comment 'somebody else'")
    done = pair.play("--diff", playbook="tandem.spark.fabric_restore")
    assert done.returncode == 0 and "-allow in on enp1s0f0np0 from" in done.stdout, done.stdout
    added = pair.root("spark-a", "ufw show added; nft list ruleset")
    assert RAIL not in added and "8000/tcp comment 'somebody else'" in added
    pair.root("spark-a", "ufw delete allow 8000/tcp && cmp /etc/ufw/user.rules /root/user.rules")
    assert "tandem" not in pair.root("spark-b", "firewall-cmd --get-zones; ls /etc/firewalld/zones; nft list ruleset")
    assert pair.answers("spark-a") and pair.answers("spark-b")


# ---------------------------------------------------------------- a chain: Docker's policy on node 2, ufw on node 3
@pytest.fixture(scope="module")
def chain() -> Iterator[Guarded]:
    for lab in guarded("chain4", "inventories/lab_quad"):
        lab.install("spark-b", "ufw", "iptables")
        lab.root("spark-b", DOCKER)
        lab.ufw("spark-c")
        yield lab


def far_end(chain: Guarded) -> str:
    record = json.loads(chain.ssh("spark-a", "cat /var/lib/tandem/records/fabric.json"))
    return next(end["ip"] for end in record["far"] if end["node"] == "spark-d")


def test_a_chain_passes_on_through_both(chain: Guarded) -> None:
    done = chain.play()
    assert done.returncode == 0 and "found that table" not in done.stdout, done.stdout
    assert chain.knock("spark-a", far_end(chain)) == REFUSED
    assert "route allow in on" in chain.root("spark-c", "ufw show added")
    assert "-P FORWARD DROP" in chain.root("spark-b", "iptables -S FORWARD")
    again = chain.play()
    assert again.returncode == 0 and set(changed(again.stdout).values()) == {0}, again.stdout


def test_a_rule_that_is_missing_from_our_table_is_seen_and_put_back(chain: Guarded) -> None:
    listed = chain.root("spark-b", "nft -a list table inet tandem_fabric")
    rule, handle = re.search(r"(iifname \"\S+\" oifname \"\S+\" accept) # handle (\d+)", listed).groups()
    chain.root("spark-b", f"nft delete rule inet tandem_fabric forward handle {handle}")
    chain.root("spark-b", "nft insert rule inet tandem_fabric forward ip protocol udp drop")
    chain.root("spark-b", "iptables -F DOCKER-USER; iptables -A DOCKER-USER -j RETURN")
    checked = chain.play("--check", "--diff")
    assert checked.returncode == 0 and f"-nftables: tandem_fabric lacks `{rule}`" in checked.stdout, checked.stdout
    assert "wanted no such rule" in checked.stdout and "-DOCKER-USER: does not accept" in checked.stdout
    assert chain.knock("spark-a", far_end(chain)) != REFUSED
    done = chain.play()
    assert done.returncode == 0 and changed(done.stdout)["spark-b"] > 0, done.stdout
    assert chain.knock("spark-a", far_end(chain)) == REFUSED
    now = re.sub(r" # handle \d+", "", chain.root("spark-b", "nft -a list table inet tandem_fabric"))
    assert re.sub(r"packets \d+ bytes \d+", "", now) == re.sub(
        r"packets \d+ bytes \d+", "", re.sub(r" # handle \d+", "", listed)
    )


def test_a_flushed_rule_set_comes_back_with_its_service(chain: Guarded) -> None:
    """The service of nftables begins with a flush of all tables, ours too."""
    chain.root("spark-b", "systemctl start nftables && ! nft list table inet tandem_fabric 2>/dev/null")
    chain.root("spark-b", "systemctl restart nftables")
    until("our table", lambda: "accept" in chain.inside("spark-b", "nft list table inet tandem_fabric"), 10)
    chain.root("spark-b", DOCKER)


def test_restore_leaves_nothing_in_the_chain(chain: Guarded) -> None:
    assert chain.play().returncode == 0
    done = chain.play(playbook="tandem.spark.fabric_restore")
    assert done.returncode == 0, done.stdout
    left = chain.root("spark-b", "nft list ruleset; iptables -S") + chain.root("spark-c", "ufw show added")
    assert "enp1" not in left and "enP2" not in left and "tandem" not in left, left

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import shutil
import subprocess

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _forward

LINKS = [{"interface": name} for name in ("enp1s0f0np0", "enp1s0f1np1", "enp1s0f0np0.7")]
PAIRS = [["enp1s0f0np0", "enp1s0f1np1"]]


def test_only_the_links_that_pass_on_are_told_so():
    values = _forward.sysctls(LINKS, PAIRS, True)
    text = _forward.sysctl_text(values)
    assert "net.ipv4.conf.enp1s0f0np0.forwarding = 1\n" in text
    assert "net.ipv4.conf.enp1s0f0np0/7.arp_ignore = 1\n" in text and "0/7.forwarding" not in text
    assert "ip_forward" not in text and ".all." not in text
    assert _forward.sysctl_paths(values)["/proc/sys/net/ipv4/conf/enp1s0f1np1/forwarding"] == "1"
    assert "forwarding" not in _forward.sysctl_text(_forward.sysctls(LINKS, [], False))


def test_a_table_of_our_own_and_nothing_flushed():
    text = _forward.nft_text(PAIRS)
    assert 'iifname "enp1s0f0np0" oifname "enp1s0f1np1" accept' in text
    assert 'iifname "enp1s0f1np1" oifname "enp1s0f0np0" accept' in text
    assert "flush" not in text and "delete table inet tandem_fabric" in text
    assert text.index("accept\n") < text.index("drop") and "policy accept" in text


@pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not on this machine")
def test_nft_takes_it(tmp_path):
    (tmp_path / "rules").write_text(_forward.nft_text(PAIRS))
    done = subprocess.run(
        ["nft", "--check", "-f", str(tmp_path / "rules")], capture_output=True, text=True, check=False
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("nft needs root")
    assert done.returncode == 0, done.stderr


def test_files():
    none = _forward.files(LINKS, [], False, nft=None, iptables=None, docker=False)
    assert list(none) == [_forward.SYSCTL_FILE]
    assert _forward.files([], [], False, nft=None, iptables=None, docker=False) == {}
    some = _forward.files(LINKS, PAIRS, True, nft="/sbin/nft", iptables="/sbin/iptables", docker=True)
    assert set(some) == set(_forward.ALL_PATHS)
    assert (
        b"ExecStart=/sbin/nft -f /etc/tandem/fabric.nft" in some["/etc/systemd/system/tandem-fabric-forward.service"][0]
    )
    docker = some["/etc/systemd/system/tandem-fabric-docker.service"][0].decode()
    assert "ExecStart=-/sbin/iptables -w -I DOCKER-USER -i enp1s0f0np0 -o enp1s0f1np1 -j ACCEPT" in docker
    assert docker.count("ExecStart=-/sbin/iptables -w -D ") == docker.count(" -I ") == 2
    assert docker.count("ExecStop=-/sbin/iptables -w -D ") == 2
    assert "After=docker.service\nPartOf=docker.service\n" in docker


def test_docker_missing():
    assert len(_forward.docker_missing("-N DOCKER-USER\n-A DOCKER-USER -j RETURN\n", PAIRS)) == 2
    rules = "-A DOCKER-USER -i enp1s0f0np0 -o enp1s0f1np1 -j ACCEPT\n"
    assert _forward.docker_missing(rules, PAIRS) == ["enp1s0f1np1 to enp1s0f0np0"]

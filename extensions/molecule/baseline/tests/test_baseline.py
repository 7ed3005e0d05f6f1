# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest


@pytest.mark.parametrize("name", ["chrony", "rsync", "ethtool"])
def test_packages(host, name):
    assert host.package(name).is_installed


def test_service_account_cannot_log_in(host):
    account = host.user("tandem")
    assert account.exists
    assert account.shell == "/usr/sbin/nologin"
    assert account.uid < 1000


def test_time_service_runs_and_knows_its_source(host):
    assert host.service("chrony").is_running
    assert host.service("chrony").is_enabled
    text = host.file("/etc/chrony/conf.d/tandem.conf").content_string
    if host.check_output("hostname") == "spark-a":
        assert "local stratum 10" in text
        assert "allow 192.168.100.0/24" in text
    else:
        assert "server 192.168.100.10 iburst prefer" in text


def test_names_of_all_nodes_and_rails(host):
    for name in ("spark-a", "spark-b", "spark-a-rail0", "spark-b-rail1"):
        assert host.run(f"getent hosts {name}").rc == 0


def test_limits_of_the_service_account(host):
    text = host.file("/etc/security/limits.d/60-tandem.conf").content_string
    assert "tandem - memlock unlimited" in text

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _collect, _time, _variables
from hypothesis import given
from hypothesis import strategies as st

HOSTVARS = {"spark-a": {"__r": {"present": True}, "v": 1}, "spark-b": {"other": 2}}


def test_values_by_node_and_on(pair):
    assert _collect.values_by_node(HOSTVARS, pair, "v") == {"spark-a": 1, "spark-b": {}}
    assert _collect.values_on(HOSTVARS, pair, "v") == [1, None]
    assert _collect.names(pair) == ["spark-a", "spark-b"]


@pytest.mark.parametrize(
    ("result", "absent"),
    [({"present": True}, []), ({"present": False}, ["spark-b"]), ({"skipped": True}, ["spark-b"]), ({}, ["spark-b"])],
)
def test_absent_on(pair, result, absent):
    hostvars = {"spark-a": {"__r": {"present": True}}, "spark-b": {"__r": result}}
    assert _collect.absent_on(hostvars, pair, "__r") == absent
    assert _collect.absent_on(HOSTVARS, pair, "__r") == ["spark-b"]


def test_first_value():
    assert _collect.first_value([{}, {"d": None}, {"skipped": True}, {"d": "x"}, {"d": "y"}], "d") == "x"
    assert _collect.first_value([], "d") is None


def test_keep_keys():
    assert _collect.keep_keys([{"a": 1, "b": 2}], ["a"]) == [{"a": 1}]


def test_missing_packages():
    shown = "chrony installed\nrsync config-files\nlibgomp1 installed\nlibgomp1 installed\n\n"
    assert _collect.missing_packages(shown, ["chrony", "rsync", "libgomp1", "ethtool"]) == ["rsync", "ethtool"]
    assert _collect.missing_packages("", ["x"]) == ["x"]


@given(st.text())
def test_missing_packages_takes_any_text(text):
    assert _collect.missing_packages(text, ["no such package"]) == ["no such package"]


@pytest.mark.parametrize(
    ("entry", "shell"),
    [
        (["x", "1000", "1000", "NVIDIA", "/home/nvidia", "/bin/bash"], "/bin/bash"),
        (["x", "1000", "1000", "", "/home/old", ""], "/bin/sh"),
        (["x", "998", "998", "", "/nonexistent", "/usr/sbin/nologin"], ""),
        (["x", "998", "998", "", "/nonexistent", "/bin/false"], ""),
        (None, ""),
    ],
)
def test_login_shell_tells_a_person_from_a_service_account(entry, shell):
    assert _collect.login_shell({"tandem": entry, "root": ["x", "0", "0", "", "/root", "/bin/bash"]}, "tandem") == shell


def test_login_shell_of_no_account():
    assert _collect.login_shell({}, "tandem") == ""


def test_failed_start_names_every_rank():
    unit = {"ActiveState": "failed", "Result": "exit-code", "ExecMainStatus": "1"}
    text = _collect.failed_start(
        {"spark-a": {"unit": unit, "journal": "boom"}, "spark-b": {"unit": unit, "journal": ""}, "spark-c": {}},
        {"msg": "not ready"},
    )
    assert text.startswith("not ready") and "boom" in text and "(none)" in text and "spark-c: was not reached" in text
    assert _collect.failed_start({}, {})


# --- clocks


def test_the_head_serves_time_and_the_worker_follows_it(pair):
    head = _time.config(pair, "spark-a", ["ntp.example"])
    worker = _time.config(pair, "spark-b", [])
    assert "server ntp.example iburst\n" in head and "allow 192.168.100.0/24\n" in head and "local stratum 10" in head
    assert "server 192.168.100.10 iburst prefer\n" in worker and "allow" not in worker and "local" not in worker


def test_one_node_follows_nobody(build):
    assert "server" not in _time.config(build({"spark-a": []})[0], "spark-a", [])


# --- misspelt variables

OPTIONS = {"tandem": ["tandem_recipe", "tandem_links"], "model": ["model_token"]}


def test_misspelt_variables_are_named_with_their_hosts_and_a_guess():
    found = _variables.unknown({"spark-a": ["tandem_recpie"], "spark-b": ["tandem_recpie", "model_zzzzzzzz"]}, OPTIONS)
    assert "model_zzzzzzzz (on spark-b)" in found[0] and "remove it" in found[0]
    assert "tandem_recpie (on spark-a, spark-b)" in found[1] and "did you mean tandem_recipe?" in found[1]


def test_other_variables_are_nobodys_business():
    names = ["tandem_recipe", "modelling", "my_tandem_x", "ansible_host", "__tandem_secret", "spark_x", "tandem"]
    assert _variables.unknown({"spark-a": names}, OPTIONS) == []


def test_our_own_facts_where_ansible_injects_them():
    assert _variables.unknown({"spark-a": ["tandem_deployment"]}, _variables.role_options()) == []


def test_every_role_is_known():
    options = _variables.role_options()
    assert {"tandem", "preflight", "baseline", "fabric", "engine", "model", "serve", "accept"} <= set(options)
    for role, names in options.items():
        assert names and all(name.startswith(f"{role}_") for name in names)

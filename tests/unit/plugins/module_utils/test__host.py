# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import time

import pytest
from ansible_collections.tandem.spark.plugins.module_utils._host import Host, Outcome, pci_address, run_command


def test_a_command_in_the_c_locale_without_the_hidden_variables(empty_machine):
    empty_machine.tool("show", 'echo "$LC_ALL,$LANGUAGE,$LC_TIME,$KEEP,$GONE,$NEW"')
    host = Host(str(empty_machine.root), environ={"LANGUAGE": "de", "LC_TIME": "de_DE", "KEEP": "1", "GONE": "2"})
    assert host.run(["show"], GONE=None, NEW="3").stdout == "C,,,1,,3\n"


def test_states(empty_machine):
    empty_machine.tool("good", "exit 0")
    empty_machine.tool("bad", "echo out; echo err >&2; exit 3")
    empty_machine.write("/usr/bin/plain", "no program")
    host = Host(str(empty_machine.root), environ={})
    assert host.run(["good"]).output == ""
    bad = host.run(["bad"])
    assert (bad.state, bad.rc, bad.stdout, bad.stderr, bad.output) == ("failed", 3, "out\n", "err\n", None)
    assert host.run(["plain"]).state == "missing"
    assert host.run(["nowhere"]).state == "missing"
    assert run_command(["/"], 1, {}).state == "denied"
    assert run_command(["/etc/hostname/x"], 1, {}).state == "missing"


def test_the_whole_group_is_stopped(empty_machine, tmp_path):
    marker = tmp_path / "alive"
    empty_machine.tool("hang", f"(sleep 1; touch {marker}) & sleep 60")
    start = time.monotonic()
    outcome = Host(str(empty_machine.root), environ=dict(os.environ), timeout=0.2).run(["hang"])
    assert outcome.state == "timeout" and outcome.rc is None and outcome.seconds >= 0.2
    assert time.monotonic() - start < 1
    time.sleep(1.1)
    assert not marker.exists()


def test_a_tool_that_lets_its_output_open_does_not_hold_us_up(empty_machine):
    """A daemon that inherits the pipe outlives the group: it is left behind after a moment."""
    empty_machine.tool("daemon", "setsid sleep 5 & sleep 60")
    start = time.monotonic()
    assert Host(str(empty_machine.root), environ=dict(os.environ), timeout=0.2).run(["daemon"]).state == "timeout"
    assert time.monotonic() - start < 2


def test_tools_are_looked_for_below_the_root(empty_machine):
    host = Host(str(empty_machine.root), environ=dict(os.environ))
    assert host.find("sh") is None
    assert Host("/", environ={"PATH": "relative:/bin"}).find("sh") in ("/bin/sh", "/usr/bin/sh")
    assert Host("/", environ={}).find("sh") is not None


def test_three_values_for_a_file(empty_machine):
    host = Host(str(empty_machine.root))
    empty_machine.write("/a/b", " x \n")
    empty_machine.write("/a/empty", "\n")
    assert host.read("/a/b") == " x \n" and host.line("/a/b") == "x" and host.line("/a/empty") is None
    assert host.exists("/a/b") is True and host.exists("/a/c") is False and host.exists("/a/b/c") is False
    assert host.read("/a") is None and host.read("/a/c") is None and host.names("/a/b") is None
    if os.geteuid() != 0:
        empty_machine.path("/a").chmod(0)
        assert host.exists("/a/b") is None and host.read("/a/b") is None


def test_nothing_raises_for_strange_names(empty_machine):
    host = Host(str(empty_machine.root))
    for name in ("/\0", "/" + "x" * 5000):
        assert host.read(name) is None and host.names(name) is None and host.link(name) is None
        assert host.exists(name) is None and host.space(name) is None and host.mount(name) is None


def test_nearest_existing_directory(empty_machine):
    host = Host(str(empty_machine.root))
    empty_machine.write("/var/lib/x", "")
    assert host.existing("/var/lib/tandem/models/") == "/var/lib"
    assert host.existing("/nowhere") == "/"


def test_work_that_takes_too_long_is_none(empty_machine):
    found = Host(str(empty_machine.root)).together({"a": lambda: 1, "b": lambda: time.sleep(2)}, limit=0.2)
    assert found == {"a": 1, "b": None}


def test_a_whole_file_of_proc_sys_can_be_read():
    assert Host("/").line("/proc/sys/kernel/osrelease") == os.uname().release


@pytest.mark.parametrize(
    ("target", "address"),
    [
        ("../../../devices/pci0000:00/0000:01:00.0", "0000:01:00.0"),
        ("../../devices/pci000f:00/000f:00:00.0/000f:01:00.0/net", "000f:01:00.0"),
        ("../../devices/virtual/net/x", None),
        ("", None),
        (None, None),
    ],
)
def test_the_address_in_a_link(target, address):
    assert pci_address(target) == address


def test_outcome_of_success_only():
    assert Outcome("failed", 1, "text").output is None and Outcome("ok", 0, "text").output == "text"

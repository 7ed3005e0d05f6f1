# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the command line does without root and without a lab."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from sparklab import LabError, cli, config, faults, image, node, setup


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path))
    monkeypatch.setenv("TANDEM_LAB_ID", "ut1")


def listing(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.main(["inventory", *arguments]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_inventory_of_a_lab_that_is_down(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = listing(capsys, "chain4")
    assert answer["spark"]["hosts"] == ["spark-a", "spark-b", "spark-c", "spark-d"]
    hosts = answer["_meta"]["hostvars"]
    one = hosts["spark-c"]
    assert one["lab_is_up"] is False
    assert one["ansible_user"] == "root"
    assert one["ansible_become"] is False
    assert one["ansible_python_interpreter"] == "/usr/bin/python3"
    assert one["ansible_ssh_private_key_file"] == str(tmp_path / "lab/ut1/id_ed25519")
    assert len({host["ansible_host"] for host in hosts.values()}) == 4
    assert one["ansible_host"].rpartition(".")[0] == one["lab_gateway"].rpartition(".")[0]
    assert one["lab_fabric_interfaces"] == ["enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1"]


def test_inventory_is_literal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = json.dumps(listing(capsys, "pair", "--list"))
    assert "{{" not in text
    arguments = shlex.split(json.loads(text)["_meta"]["hostvars"]["spark-a"]["ansible_ssh_common_args"])
    assert f"UserKnownHostsFile={tmp_path}/lab/ut1/known_hosts" in arguments
    assert "StrictHostKeyChecking=yes" in arguments


def test_inventory_of_one_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert listing(capsys, "pair", "--host", "spark-b")["lab_rank"] == 1
    assert listing(capsys, "pair", "--host", "nobody") == {}


def test_errors_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inventory", "nope"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("lab: there is no lab 'nope'; known are")
    assert error.count("\n") == 1


def test_not_root(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for verb in (["up", "pair"], ["down", "pair"], ["kill", "pair", "spark-a"], ["setup"], ["gc"]):
        assert cli.main(verb) == 1
        assert "needs root" in capsys.readouterr().err


def test_help_names_labs_and_environment(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["-h"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for word in ("chain4, pair, ring3, ring4, switch", "TANDEM_LAB_ID", "TANDEM_CACHE", "lab up pair"):
        assert word in text


@pytest.mark.parametrize(
    ("action", "value", "message"),
    [
        ("explode", None, "link has no action 'explode'; known are up, down"),
        ("rate", None, "link action rate wants a value"),
        ("up", "1", "link action up takes no value"),
        ("loss", "101", "link loss got '101'; wanted a whole percentage"),
        ("loss", "x", "link loss got 'x'"),
        ("rate", "fast", "link rate got 'fast'; wanted 1gbit"),
        ("mtu", "9", "link mtu got '9'"),
    ],
)
def test_bad_faults(action: str, value: str | None, message: str) -> None:
    with pytest.raises(LabError, match=message):
        faults.check(action, value)


@pytest.mark.parametrize(("action", "value"), [("rate", "1gbit"), ("loss", "20"), ("mtu", "1500"), ("clear", None)])
def test_good_faults(action: str, value: str | None) -> None:
    faults.check(action, value)


@pytest.mark.parametrize(
    ("key", "value"), [("driver", "1.2"), ("driver_version", "new"), ("driver_loaded", ""), ("gpu", "maybe")]
)
def test_bad_knobs(key: str, value: str) -> None:
    with pytest.raises(LabError):
        node.check_knobs({key: value})


def test_resolv_conf_without_loopback_servers(tmp_path: Path) -> None:
    stub, real = tmp_path / "stub", tmp_path / "real"
    stub.write_text("nameserver 127.0.0.53\noptions edns0\n")
    real.write_text("nameserver 192.0.2.53\nnameserver ::1\nsearch example.org\n")
    assert node.resolv_conf(stub, real) == "nameserver 192.0.2.53\nsearch example.org\n"
    assert node.resolv_conf(real, stub).startswith("nameserver 192.0.2.53")
    assert node.resolv_conf(stub, tmp_path / "none").startswith("#")


def test_the_image_tag_follows_its_inputs() -> None:
    def recipe(**changes: Any) -> image.Recipe:
        base: dict[str, Any] = {
            "suite": "bookworm",
            "arch": "amd64",
            "sources": [],
            "apt": [],
            "certificates": {},
            "environment": {},
            "pip": "",
            "pip_constraints": "",
            "files": {},
        }
        return image.Recipe(**{**base, **changes})

    tags = {
        recipe().tag,
        recipe(suite="trixie").tag,
        recipe(certificates={"a.crt": "x"}).tag,
        recipe(sources=["deb http://mirror.example/debian bookworm main"]).tag,
        recipe(files={"image/x": "- 00"}).tag,
        recipe(pip="[global]\n").tag,
    }
    assert len(tags) == 6
    assert recipe().tag == recipe().tag


def test_setup_knows_why_it_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"mmdebstrap", "rsync"}
    monkeypatch.setattr("sparklab.setup.missing_tools", lambda tools: [tool for tool in tools if tool in absent])
    assert setup.missing_packages()["mmdebstrap"] == "builds the guests' image"
    assert "rsync" in setup.missing_packages(tests=True) and "rsync" not in setup.missing_packages()


def test_switch_ports_fit() -> None:
    from sparklab.network import switch_port

    lab = config.load("switch")
    ports = {switch_port(lab, cable, rail) for cable in lab.cables for rail in (0, 1)}
    assert len(ports) == 8

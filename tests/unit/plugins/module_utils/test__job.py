# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _job, _works
from ansible_collections.tandem.spark.plugins.module_utils._progress import Progress

SPECIFICATION = {"id": "owner/Model", "revision": "a" * 40}
SECRET = "hf_nobody-may-see-this"


class Systemd:
    """systemctl, systemd-run and journalctl of a node on which nothing runs until it is told to."""

    def __init__(self):
        self.active = False
        self.ran = []

    def __call__(self, words):
        self.ran.append(words)
        if words[:2] == ["systemctl", "show"]:
            return 0, f"ActiveState={'active' if self.active else 'inactive'}\n", ""
        if words[0] == "systemd-run":
            self.active = True
        if words[0] == "journalctl":
            return 0, "line one\nline two\n", ""
        return 0, "", ""


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    monkeypatch.setattr(_job, "ROOT", str(tmp_path / "jobs"))
    return Systemd()


@pytest.fixture
def start(systemd, tmp_path):
    def run(work="fetch", specification=None, **options):
        return _job.start(
            "model",
            work,
            SPECIFICATION if specification is None else specification,
            {"token": SECRET},
            directory=str(tmp_path / "tools"),
            timeout_s=60,
            run=systemd,
            **options,
        )

    return run


def started(systemd):
    return [words for words in systemd.ran if words[0] == "systemd-run"]


def test_c38_a_second_run_attaches_and_starts_nothing(start, systemd):
    assert start()["state"] == "started"
    assert start()["state"] == "attached"
    assert len(started(systemd)) == 1


def test_another_job_of_the_name_is_refused_naming_both(start, systemd):
    start()
    with pytest.raises(_job.JobError) as caught:
        start(specification={**SPECIFICATION, "revision": "b" * 40})
    for text in ("tandem-job-model.service", "a" * 40, "b" * 40, "revision", "systemctl stop"):
        assert text in str(caught.value)
    assert "owner/Model" not in str(caught.value) and len(started(systemd)) == 1


def test_the_secret_is_in_no_command_and_in_no_order(start, systemd):
    start()
    place = _job.place("model")
    assert SECRET not in json.dumps(systemd.ran)
    with open(f"{place}/order.json") as order, open(f"{place}/secrets.json") as secrets:
        assert SECRET not in order.read() and json.load(secrets) == {"token": SECRET}


def test_a_job_that_was_killed_has_failed_with_its_last_lines_and_is_started_again(start, systemd):
    start()
    systemd.active = False
    now = _job.status("model", systemd)
    assert now["state"] == "failed" and "killed" in now["outcome"]["message"] and now["log"].endswith("line two")
    assert start()["state"] == "started" and len(started(systemd)) == 2


def test_a_result_is_given_to_who_asks_first_and_made_anew_later(start, systemd, monkeypatch, capsys):
    monkeypatch.setitem(_works.WORKS, "fetch", lambda specification, report: {"saw": sorted(specification)})
    start()
    assert _job.work_on("model") == 0
    systemd.active = False
    again = start()
    assert (again["state"], again["outcome"]["result"]) == ("finished", {"saw": ["id", "revision", "token"]})
    monkeypatch.setattr(_job, "run_command", systemd)
    monkeypatch.setattr(_job.status, "__defaults__", (systemd,))
    assert _job.main(["status", "model"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "finished"
    assert start()["state"] == "started"


def test_a_failure_is_told_without_the_secret_and_not_kept(start, systemd, monkeypatch, capsys):
    def fail(_specification, report):
        report(Progress("download", 1, 2))
        raise ValueError(f"401 for {SECRET}")

    monkeypatch.setitem(_works.WORKS, "fetch", fail)
    start()
    assert _job.work_on("model") == 1
    systemd.active = False
    now = _job.status("model", systemd)
    assert now["state"] == "failed" and now["outcome"]["message"] == "ValueError: 401 for ***"
    assert now["progress"]["stage"] == "download" and SECRET not in capsys.readouterr().out
    assert start()["state"] == "started"


def test_the_secrets_are_gone_before_the_work_begins(start, monkeypatch):
    def look(specification, _report):
        assert "secrets.json" not in os.listdir(_job.place("model"))
        return {"token": len(specification["token"])}

    monkeypatch.setitem(_works.WORKS, "fetch", look)
    start()
    assert _job.work_on("model") == 0


def test_a_unit_that_cannot_be_started_leaves_nothing(start, systemd, monkeypatch):
    def refuse(words):
        return (1, "", "no bus") if words[0] == "systemd-run" else Systemd()(words)

    with pytest.raises(_job.JobError, match="status 1: no bus"):
        _job.start("model", "fetch", {}, {}, directory=_job.ROOT + "/tools", timeout_s=1, run=refuse)
    assert _job.status("model", systemd)["state"] == "absent"


def test_stop_forgets(start, systemd):
    start()
    assert _job.stop("model", systemd) is True and _job.stop("model", systemd) is False
    assert ["systemctl", "stop", "tandem-job-model.service"] in systemd.ran


def test_reports_are_kept_not_more_often_than_they_are_read(start, monkeypatch):
    start()
    kept = []
    monkeypatch.setattr(_job, "_write", lambda name, file, value: kept.append((value["stage"], value["done"])))
    clock = iter([0.0, 0.1, 0.2, 0.6, 0.8])
    monkeypatch.setattr(_job.time, "monotonic", lambda: next(clock))
    reporter = _job.Reporter("model")
    for stage, done in (("download", 1), ("download", 2), ("verify", 0), ("verify", 1), ("verify", 2)):
        reporter(Progress(stage, done, 9))
    assert kept == [("download", 1), ("verify", 0), ("verify", 2)]


def test_the_program_is_the_same_bytes_and_runs_alone(tmp_path):
    files = _job.sources()
    content = _job.pack(files)
    assert content == _job.pack(dict(reversed(list(files.items()))))
    path = tmp_path / "job.pyz"
    path.write_bytes(content)
    assert not [name for name in zipfile.ZipFile(path).namelist() if "plugin_utils" in name or "modules/" in name]
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(path), "status", "no-such-job"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"state": "absent", "progress": {}, "outcome": {}, "log": ""}


def test_old_programs_go_unless_a_job_is_made_of_them(start, systemd, tmp_path):
    start()
    used = tmp_path / "tools" / _job.status("model", systemd)["order"]["program"]
    old = tmp_path / "tools/tandem-job-0123456789abcdef.pyz"
    old.write_bytes(b"")
    other = tmp_path / "tools/hub-clients"
    other.mkdir()
    path = _job.place_program(str(tmp_path / "tools"), b"new")
    assert not old.exists() and used.exists() and other.exists() and path != str(used)

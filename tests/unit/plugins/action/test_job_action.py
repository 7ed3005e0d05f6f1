# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import types

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.tandem.spark.plugins.action import job

BASE = {"unit": "tandem-job-model.service", "python": "/usr/bin/python3", "program": "/t/job.pyz"}
DONE = {"state": "finished", "progress": {}, "outcome": {"ok": True, "seconds": 3.5, "result": {"digest": "d"}}}


def running(done, at):
    note = {"stage": "download", "done": done, "total": 100_000_000, "at": at, "detail": ""}
    return {"state": "running", "progress": note, "outcome": {}, "log": ""}


@pytest.fixture
def act(monkeypatch):
    """Run the action; *first* is what the module says, *looks* what each look finds."""

    def run(first, looks=(), check_mode=False, **options):
        clock = [0.0]
        monkeypatch.setattr(job.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
        monkeypatch.setattr(job.time, "monotonic", lambda: clock[0])
        monkeypatch.setattr(job.ActionBase, "run", lambda *_arguments, **_options: {})
        action = object.__new__(job.ActionModule)
        action._task = types.SimpleNamespace(args={"name": "model", "work": "fetch", **options}, check_mode=check_mode)
        action._display = types.SimpleNamespace(display=run.said.append)
        answers = iter(looks)

        def look(command):
            run.commands.append(command)
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer if "stdout" in answer else {"rc": 0, "stdout": "motd\n" + json.dumps(answer), "stderr": ""}

        monkeypatch.setattr(job.ActionModule, "_execute_module", lambda *_arguments, **_words: dict(BASE, **first))
        monkeypatch.setattr(job.ActionModule, "_low_level_execute_command", lambda _self, command: look(command))
        return action.run(None, {"inventory_hostname": "spark-a"})

    run.said, run.commands = [], []
    return run


def test_it_waits_says_how_far_it_is_and_returns_the_result(act):
    looks = [running(10_000_000, 1.0), *[running(10_000_000 + n * 9_000_000, 1.0 + n) for n in range(1, 8)], DONE]
    result = act({"state": "started", "changed": True}, looks)
    assert result["changed"] is True and result["result"] == {"digest": "d"} and result["seconds"] == 3.5
    assert act.commands[0] == "/usr/bin/python3 -I /t/job.pyz status model"
    assert act.said[0] == "model on spark-a: download 10 % of 100.0 MB" and 2 < len(act.said) < 8
    assert act.said[-1] == "model on spark-a: download 64 % of 100.0 MB, 9.0 MB/s, 4 s left"


def test_c38_it_says_that_it_attached(act):
    result = act({"state": "attached"}, [DONE])
    assert result["state"] == "attached" and act.said == ["model on spark-a: it was running already"]


def test_a_result_that_waits_needs_no_look(act):
    assert act(dict(DONE))["result"] == {"digest": "d"} and act.commands == []


def test_a_failed_job_is_told_with_its_last_lines(act):
    failed = {"state": "failed", "progress": {}, "outcome": {"ok": False, "message": "no space"}, "log": "line two"}
    result = act({"state": "started"}, [failed])
    assert result["failed"] and result["msg"] == "no space\nlast lines of tandem-job-model.service:\nline two"


def test_a_connection_that_comes_back_is_not_noticed(act):
    looks = [AnsibleConnectionFailure("x"), AnsibleConnectionFailure("x"), DONE]
    assert act({"state": "started"}, looks)["result"] == {"digest": "d"}


def test_a_connection_that_stays_away_ends_the_wait_and_not_the_job(act):
    with pytest.raises(
        AnsibleConnectionFailure, match="tandem-job-model.service runs there on its own; run this stage"
    ):
        act({"state": "started"}, [AnsibleConnectionFailure("x")] * 100)
    assert 24 <= len(act.commands) < 40


def test_a_node_that_says_nothing_useful(act):
    result = act({"state": "started"}, [{"rc": 127, "stdout": "", "stderr": "no python3"}])
    assert result["failed"] and "cannot be asked (status 127): no python3" in result["msg"]


@pytest.mark.parametrize("first", [{"failed": True, "msg": "x"}, {"state": "absent", "changed": True}], ids=str)
def test_what_did_not_start_is_not_waited_for(act, first):
    assert act(first)["unit"] == BASE["unit"] and act.commands == []
    assert act({"state": "running", "changed": False}, state="query")["state"] == "running"
    assert act({"state": "running", "changed": True}, check_mode=True)["state"] == "running" and act.commands == []

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _fetch
from ansible_collections.tandem.spark.plugins.modules import model_revision

COMMIT = "c" * 40


@pytest.fixture
def ask(run_module, tmp_path, monkeypatch):
    asked = []

    def resolve(request, allowed):
        asked.append(request.revision)
        if request.revision == "gone":
            raise _fetch.FetchError("revision of o/m: 'gone' cannot be resolved: 404")
        return COMMIT if len(asked) == 1 else "d" * 40

    monkeypatch.setattr(_fetch, "resolve", resolve)

    def run(check_mode=False, **options):
        base = {"source": "huggingface", "id": "o/m", "revision": "main", "record": str(tmp_path / "r/revision.json")}
        return run_module(model_revision, {**base, **options}, check_mode=check_mode)

    run.asked = asked
    return run


def test_an_answer_is_kept_and_given_again(ask, tmp_path):
    first = ask()
    assert (first["changed"], first["revision"], first["recorded"]) == (True, COMMIT, False)
    assert json.loads((tmp_path / "r/revision.json").read_text())["asked"] == "main"
    second = ask()
    assert (second["changed"], second["revision"], second["recorded"]) == (False, COMMIT, True)
    assert ask.asked == ["main"]


@pytest.mark.parametrize("other", [{"revision": "v2"}, {"id": "o/other"}, {"source": "modelscope"}], ids=str)
def test_another_question_is_asked(ask, other):
    ask()
    assert ask(**other)["revision"] == "d" * 40


def test_a_record_that_cannot_be_read_is_asked_anew(ask, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r/revision.json").write_text("[")
    assert ask()["revision"] == COMMIT


def test_check_mode_asks_and_keeps_nothing(ask, tmp_path):
    assert ask(check_mode=True)["revision"] == COMMIT and not (tmp_path / "r").exists()


def test_without_a_record_nothing_changes(ask):
    assert ask(record=None)["changed"] is False


def test_what_cannot_be_resolved(ask):
    result = ask(revision="gone")
    assert result["failed"] and "cannot be resolved" in result["msg"]

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import types

import pytest
from ansible_collections.tandem.spark.plugins.action import memory_plan, model_shape
from ansible_collections.tandem.spark.plugins.plugin_utils import _memory_plan, _model_source

REVISION = "b" * 40
FETCHED = {"config": {"architectures": ["FromTheHub"]}, "quantisation": None, "weights_bytes": 7, "source": "the hub"}


class _Display:
    def __init__(self):
        self.shown = ""

    def display(self, text):
        self.shown += text


@pytest.fixture
def look(monkeypatch):
    """Run model_shape on a pair; the hub answers with *answer*."""
    asked = []

    def run(answer=None, facts=None, variables=None, **options):
        def from_hub(*words, **more):
            asked.append((words, more))
            if answer is None:
                raise _model_source.SourceError("the hub gave no answer")
            return answer

        monkeypatch.setattr(_model_source, "from_hub", from_hub)
        monkeypatch.setattr(model_shape.ActionBase, "run", lambda *_words, **_more: {})
        action = object.__new__(model_shape.ActionModule)
        arguments = {"recipe": "ling-3.0-flash-fp8", **options}
        action._task = types.SimpleNamespace(args=arguments, action="tandem.spark.model_shape", async_val=0)
        hostvars = {name: {"ansible_facts": (facts or {}).get(name, {}), **(variables or {})} for name in ("a", "b")}
        return action.run(None, {"hostvars": hostvars, "groups": {"spark": ["a", "b"]}})

    run.asked = asked
    return run


def test_what_is_recorded_asks_nobody(look):
    result = look(origin="recorded")
    assert look.asked == [] and result["model"]["weights_bytes"] == 128443021752
    assert result["nodes"] == {"a": None, "b": None} and "acceptance" not in result["recipe"]
    json.dumps(result)


def test_auto_asks_the_hub_at_the_pinned_revision(look):
    result = look(FETCHED, revision=REVISION, endpoint="http://mirror", token="secret")
    ((words, more),) = look.asked
    assert words == ("huggingface", "inclusionAI/Ling-3.0-flash-fp8", REVISION)
    assert more == {"endpoint": "http://mirror", "token": "secret"}
    assert result["model"]["source"] == "the hub" and result["warnings"] == []
    assert [twin["model"] for twin in result["model"]["twins"]]
    assert "secret" not in json.dumps(result)


def test_auto_takes_what_is_recorded_when_the_hub_is_silent_and_says_so(look):
    result = look(origin="auto")
    assert len(look.asked) == 1 and result["model"]["weights_bytes"] == 128443021752
    assert result["warnings"] == [
        "the hub gave no answer. The recorded shape is used, which may be that of another revision."
    ]


def test_auto_without_a_pinned_revision_takes_what_is_recorded(look):
    assert look(FETCHED, recipe="step-3.5-flash-fp8")["model"]["source"] != "the hub" and look.asked == []


def test_the_hub_alone_must_answer_and_needs_a_revision(look):
    assert look(origin="hub")["msg"] == "the hub gave no answer. Nothing was changed."
    result = look(FETCHED, origin="hub", recipe="step-3.5-flash-fp8")
    assert result["failed"] and "set tandem_model_revision" in result["msg"]


def test_a_directory_comes_first(look, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert look(origin="hub", directory=str(tmp_path))["model"]["source"] == str(tmp_path) and look.asked == []


def test_memory_comes_from_facts_or_from_the_variable(look):
    facts = {"a": {"spark_memory": {"total_bytes": 123}}, "b": {"spark_memory": {"total_bytes": None}}}
    assert look(facts=facts, origin="recorded")["nodes"] == {"a": 123, "b": None}
    assert look(facts=facts, origin="recorded", memory_bytes=9)["nodes"] == {"a": 9, "b": 9}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_bytes": -1}, "plan_memory_bytes: found -1, wanted 0 or more"),
        ({"recipe": "absent"}, "recipe: found 'absent', wanted one of"),
        ({"variables": {"plan_memory_byte": 1}}, "did you mean plan_memory_bytes?"),
    ],
)
def test_bad_input_is_one_message(look, options, message):
    result = look(**options)
    assert result["failed"] and message in result["msg"] and result["msg"].endswith("Nothing was changed.")


@pytest.fixture
def show(tmp_path, monkeypatch):
    """Run memory_plan on an answer."""

    def run(fit):
        monkeypatch.setattr(memory_plan.ActionBase, "run", lambda *_words, **_more: {})
        action = object.__new__(memory_plan.ActionModule)
        arguments = {"fit": fit, "report_directory": str(tmp_path / "out")}
        action._task = types.SimpleNamespace(args=arguments, action="tandem.spark.memory_plan", async_val=0)
        action._display = _Display()
        return action.run(None, {}), action._display.shown

    return run


@pytest.fixture
def answer(look):
    def make(total=130595926016, recipe="ling-3.0-flash-fp8"):
        found = look(origin="recorded", recipe=recipe, memory_bytes=total)
        return _memory_plan.memory_fit(found["model"], found["recipe"], found["nodes"])

    return make


def test_a_plan_that_fits(show, answer, tmp_path):
    result, shown = show(answer())
    assert result["fits"] is True and "failed" not in result and "verdict                   fits" in shown
    report = json.loads((tmp_path / "out/plan.json").read_text())
    assert report["per_node"]["kv_bytes_per_token"] == 8064 and report["finished"].endswith("Z")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["plan.json"]


def test_a_plan_that_does_not_fit_fails_with_what_would(show, answer, tmp_path):
    result, shown = show(answer(92 * 10**9))
    assert result["failed"] and "ling-3.0-flash-fp8 on a, b: 4.02 GiB short per node" in result["msg"]
    assert result["msg"].count("- would fit: ") == 3 and "Nothing was changed" in result["msg"]
    assert "DOES NOT FIT" in shown and (tmp_path / "out/plan.json").is_file()


def test_a_plan_that_nobody_can_judge_warns(show, answer):
    result, shown = show(answer(recipe="step-3.5-flash-fp8"))
    assert result["fits"] is None and "failed" not in result
    assert result["warnings"][0].startswith("cannot tell") and "CANNOT TELL" in shown


def test_a_plan_that_cannot_be_calculated_fails(show, look):
    found = look(origin="recorded")
    fit = _memory_plan.memory_fit({**found["model"], "config": {}}, found["recipe"], found["nodes"])
    result, shown = show(fit)
    assert result["failed"] and "found no architectures" in result["msg"] and "DOES NOT FIT" in shown

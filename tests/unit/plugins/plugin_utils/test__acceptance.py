# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import xml.etree.ElementTree as xml

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _acceptance
from ansible_collections.tandem.spark.plugins.plugin_utils._acceptance import Reply
from hypothesis import example, given
from hypothesis import strategies as st


def chat(**message):
    return Reply(200, json.dumps({"choices": [{"message": message}]}))


def call(arguments, name="get_weather"):
    return chat(content=None, tool_calls=[{"function": {"name": name, "arguments": arguments}}])


def sse(*events, end=True):
    lines = [f"data: {event if isinstance(event, str) else json.dumps(event)}" for event in events]
    return Reply(200, "\n\n".join([*lines, *(["data: [DONE]"] if end else [])]) + "\n\n")


def delta(text):
    return {"choices": [{"delta": {"content": text}}]}


USAGE = {"choices": [], "usage": {"completion_tokens": 7}}

# --- requests


def test_c54_a_false_stays_a_false_and_is_there():
    check = {"prompt": "p", "request": {"chat_template_kwargs": {"enable_thinking": False}}}
    body = _acceptance.chat_body("m", check)
    assert '"enable_thinking": false' in json.dumps(body)
    assert body["messages"] == [{"role": "user", "content": "p"}] and body["max_tokens"] == 512


def test_request_bodies():
    body = _acceptance.chat_body("m", {"prompt": "p", "tool": {"name": "t"}, "max_tokens": 4}, stream=True)
    assert body["tools"] == [{"type": "function", "function": {"name": "t"}}]
    assert body["stream"] is True and body["stream_options"] == {"include_usage": True} and body["max_tokens"] == 4
    assert "tools" not in _acceptance.chat_body("m", {}) and "stream" not in _acceptance.chat_body("m", {})


# --- C54: chat


@pytest.mark.parametrize(
    "content",
    ["391", "17×23 = 391.", " 391\n", "**391**", "\\boxed{391}", "The answer is...391", "17*23=391", "391, as asked"],
)
def test_c54_answers_that_pass(content):
    assert _acceptance.judge_chat(chat(content=content), "391").ok


@pytest.mark.parametrize(
    "content",
    [
        "3910",
        "1391",
        "391.5",
        "3.391",
        "-391",
        "\u2212391",
        "1,391",
        "391,000",
        "0391",
        "381",
        "three hundred",
        "3 9 1",
    ],
)
def test_c54_another_number_is_no_answer(content):
    verdict = _acceptance.judge_chat(chat(content=content), "391")
    assert not verdict.ok and "391" in verdict.detail


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("content", [None, "", "\n "])
def test_c54_the_answer_in_the_reasoning_field(field, content):
    verdict = _acceptance.judge_chat(chat(**{"content": content, field: "391"}), "391")
    assert not verdict.ok and "reasoning field" in verdict.detail


@pytest.mark.parametrize("content", ["<think>hm</think>391", "hm</think>\n391"])
def test_c54_thinking_in_the_content(content):
    verdict = _acceptance.judge_chat(chat(content=content), "391")
    assert not verdict.ok and "thinking" in verdict.detail


def test_a_broken_model_repeats_itself():
    assert "repeated" in _acceptance.judge_chat(chat(content="!!!! !!!!\n!!!!"), "391").detail
    assert _acceptance.degenerate("!!!!!!!") is None and _acceptance.degenerate("") is None


def test_words_are_found_in_any_case():
    assert _acceptance.contains("It is PARIS.", "Paris") and not _acceptance.contains("It is Lyon.", "Paris")
    assert _acceptance.contains("minus: -5", "-5") and not _acceptance.contains("5", "-5")


@pytest.mark.parametrize(
    "reply",
    [
        Reply(0, "no answer"),
        Reply(503, "loading"),
        Reply(200, ""),
        Reply(200, "<html>"),
        Reply(200, "[]"),
        Reply(200, "null"),
        Reply(200, '{"choices": []}'),
        Reply(200, '{"choices": [{"message": null}]}'),
        Reply(200, '{"choices": {"0": 1}}'),
        Reply(200, "[" * 100000),
        chat(content=["391"]),
        chat(content={"text": "391"}),
        chat(content=391),
        chat(reasoning=["391"]),
    ],
    ids=lambda reply: repr(reply)[:40],
)
def test_replies_that_are_no_answer(reply):
    assert not _acceptance.judge_chat(reply, "391").ok
    assert not _acceptance.judge_tool_call(reply, "t", {}).ok
    assert not _acceptance.judge_stream(reply).ok
    assert not _acceptance.judge_models(reply, "m").ok


# --- C54: tool calls


def test_c54_a_tool_call_with_its_argument():
    assert _acceptance.judge_tool_call(call('{"city": "Madrid"}'), "get_weather", {"city": "Madrid"}).ok
    assert _acceptance.judge_tool_call(call('{"city": "Madrid", "unit": "C"}'), "get_weather", {"city": "Madrid"}).ok
    assert _acceptance.judge_tool_call(call("{}"), "get_weather", {}).ok


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ('{"city": }', "not JSON"),
        ({"city": "Madrid"}, "dict"),
        (None, "NoneType"),
        ('["Madrid"]', "object"),
        ('"Madrid"', "object"),
        ('{"city": "Paris"}', "wanted"),
        ('{"town": "Madrid"}', "wanted"),
        ("", "not JSON"),
        ("[" * 100000, "not JSON"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_c54_tool_calls_with_wrong_arguments(arguments, word):
    verdict = _acceptance.judge_tool_call(call(arguments), "get_weather", {"city": "Madrid"})
    assert not verdict.ok and word in verdict.detail


def test_c54_the_wrong_tool_or_none():
    assert "get_time" in _acceptance.judge_tool_call(call("{}", "get_time"), "get_weather", {}).detail
    text = _acceptance.judge_tool_call(chat(content='{"name": "get_weather"}'), "get_weather", {}).detail
    assert "no tool call" in text and "parser" in text


@pytest.mark.parametrize("calls", [{}, [], None, [{}], [None], ["x"], {"a": 1}, "text", [{"function": None}], 5])
def test_tool_calls_of_another_shape(calls):
    assert not _acceptance.judge_tool_call(chat(tool_calls=calls), "t", {}).ok


# --- streams


def test_a_stream():
    verdict = _acceptance.judge_stream(sse(delta("one "), delta("two"), USAGE))
    assert verdict.ok and "2 pieces, 7 tokens: one two" in verdict.detail


def test_a_stream_with_crlf_and_comments():
    reply = sse(delta("one "), delta("two"), USAGE)
    assert _acceptance.judge_stream(Reply(200, ": ping\r\n" + reply.text.replace("\n", "\r\n"))).ok


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85"], ids=repr)
def test_characters_that_end_a_line_for_python_only(character):
    event = json.dumps(delta(f"a{character}b"), ensure_ascii=False)
    assert _acceptance.judge_stream(sse(event, event, USAGE)).ok


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        (sse(delta("a"), delta("b"), USAGE, end=False), "[DONE]"),
        (sse(delta("a"), USAGE), "1 piece"),
        (sse(USAGE), "0 piece"),
        (sse(delta("a"), delta("b")), "usage"),
        (sse(delta("a"), delta("b"), {"usage": {"completion_tokens": 0}}), "usage"),
        (sse("{"), "chunk"),
        (sse("[1]"), "chunk"),
        (sse({"choices": [1]}), "chunk"),
        (sse({"choices": [{"delta": "x"}]}), "chunk"),
        (sse({"usage": "many"}), "chunk"),
        (Reply(200, '{"choices": []}'), "no event stream"),
        (Reply(500, "x"), "500"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_streams_that_fail(reply, word):
    verdict = _acceptance.judge_stream(reply)
    assert not verdict.ok and word in verdict.detail


def test_pieces_that_are_no_text_do_not_raise():
    _acceptance.judge_stream(sse(delta(5), delta([1]), USAGE))


# --- the other checks


def test_models():
    reply = Reply(200, '{"data": [{"id": "a"}, {"id": "m"}]}')
    assert _acceptance.judge_models(reply, "m").ok
    verdict = _acceptance.judge_models(reply, "other")
    assert not verdict.ok and "a, m" in verdict.detail and "other" in verdict.detail
    for text in ('{"data": [{"id": 5}]}', '{"data": ["m"]}', '{"data": null}', "[]", "x"):
        assert not _acceptance.judge_models(Reply(200, text), "m").ok
    assert not _acceptance.judge_models(Reply(401, reply.text), "m").ok


@pytest.mark.parametrize("status", [200, 403, 404, 500, 0])
def test_c50_nobody_gets_in_without_a_key(status):
    good = {"models": Reply(401, ""), "chat": Reply(401, "")}
    assert _acceptance.judge_unauthorised(good).ok
    verdict = _acceptance.judge_unauthorised({**good, "chat": Reply(status, "no answer")})
    assert not verdict.ok and "chat answered" in verdict.detail and "models" not in verdict.detail


UP = {"active": True, "running": "d", "wanted": "d"}


def test_c44_ready_means_every_rank():
    assert _acceptance.judge_ready(Reply(200, ""), {"spark-a": UP, "spark-b": UP}).ok
    for worker in (
        {},
        {"active": False, "unit": {"ActiveState": "failed"}},
        {"active": True, "running": "x", "wanted": "d"},
    ):
        verdict = _acceptance.judge_ready(Reply(200, ""), {"spark-a": UP, "spark-b": worker})
        assert not verdict.ok and verdict.detail.startswith("spark-b")
    assert not _acceptance.judge_ready(Reply(200, ""), {}).ok
    assert "503" in _acceptance.judge_ready(Reply(503, ""), {"spark-a": UP}).detail


# --- reports


def result(status, detail="d"):
    return {"name": "n", "check": "chat", "status": status, "detail": detail, "seconds": 1.5}


def test_junit_and_table():
    results = [result("passed"), result("failed", "<a> & b"), result("not checked")]
    suite = xml.fromstring(_acceptance.junit("recipe", results))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert suite.find("testcase/failure").get("message") == "<a> & b"
    assert len(_acceptance.table(results).splitlines()) == 3


@given(st.text(st.characters()))
@example("\x00\x1b[31m\ud800\ufffe\r\n")
def test_any_answer_fits_into_a_report(text):
    reply = Reply(200, json.dumps({"choices": [{"message": {"content": text}}]}))
    detail = _acceptance.judge_chat(reply, "391").detail
    xml.fromstring(_acceptance.junit("recipe", [result("failed", detail), result("failed", text)]))
    assert len(_acceptance.shorten(text)) <= 200 and "\n" not in _acceptance.shorten(text)
    detail.encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "message",
                    "content",
                    "tool_calls",
                    "function",
                    "name",
                    "arguments",
                    "delta",
                    "usage",
                    "data",
                    "id",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON, st.integers(0, 599))
def test_no_reply_makes_a_judge_raise(data, status):
    for text in (json.dumps(data), f"data: {json.dumps(data)}\n\ndata: [DONE]\n", str(data)):
        reply = Reply(status if status % 2 else 200, text)
        _acceptance.judge_chat(reply, "391")
        _acceptance.judge_tool_call(reply, "t", {"a": 1})
        _acceptance.judge_stream(reply)
        _acceptance.judge_models(reply, "m")


@given(st.recursive(JSON, lambda inner: st.fixed_dictionaries({"message": inner}), max_leaves=3))
def test_no_message_makes_a_judge_raise(message):
    reply = Reply(200, json.dumps({"choices": [{"message": message, "delta": message}]}))
    _acceptance.judge_chat(reply, "391")
    _acceptance.judge_tool_call(reply, "t", {})
    _acceptance.judge_stream(sse({"choices": [{"delta": message}], "usage": message}))

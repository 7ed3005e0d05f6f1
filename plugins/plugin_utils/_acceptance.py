# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Acceptance: what to ask the running service, and what its answers must say.

Requests and judgements are pure functions; the acceptance action sends the one and passes the replies to the other.
"""

from __future__ import annotations

import json
import re
import typing as t

REASONING_FIELDS = ("reasoning_content", "reasoning")  # SGLang and vLLM name it differently
LAST_SSE = "[DONE]"


class Reply(t.NamedTuple):
    """An HTTP answer; status 0 means that none came, and the text says why."""

    status: int
    text: str


class Verdict(t.NamedTuple):
    """What a check found."""

    ok: bool
    detail: str


def chat_body(model: str, check: dict[str, t.Any], *, stream: bool = False) -> dict[str, t.Any]:
    """The body of a chat completion for *check*. Its ``request`` goes in unchanged: a false stays a false."""
    body: dict[str, t.Any] = {
        "model": model,
        "messages": [{"role": "user", "content": check.get("prompt") or "Hello"}],
        "temperature": 0,
        "max_tokens": check.get("max_tokens", 512),
    }
    if check.get("tool"):
        body["tools"] = [{"type": "function", "function": check["tool"]}]
        body["tool_choice"] = "auto"
    if stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    body.update(check.get("request") or {})
    return body


def shorten(text: t.Any, limit: int = 200) -> str:
    """One line of at most *limit* characters that can be printed: a model can answer with anything."""
    text = text if isinstance(text, str) else json.dumps(text, default=str)
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def message_of(reply: Reply) -> tuple[dict[str, t.Any] | None, str]:
    """The message of a chat completion, or ``None`` and the reason."""
    if reply.status != 200:
        return None, f"status {reply.status or 'none'}, wanted 200: {shorten(reply.text)}"
    try:
        message = json.loads(reply.text)["choices"][0]["message"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return None, f"no chat completion in the answer: {shorten(reply.text)}"
    return (message, "") if isinstance(message, dict) else (None, "the message is no object")


# A number as people write it: 1,391 is one number, and so is -391; in 17-391 the sign is an operator.
_NUMBER = re.compile(r"(?:(?<![\w)])[-\u2212])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")


def contains(text: str, expected: str) -> bool:
    """Whether *expected* stands in *text*; a number must stand alone, 3910, 1,391 and -391 are not 391."""
    if re.fullmatch(r"-?\d+(\.\d+)?", expected):
        return any(found[0].replace(",", "").replace("\u2212", "-") == expected for found in _NUMBER.finditer(text))
    return expected.casefold() in text.casefold()


def degenerate(text: str) -> str | None:
    """The character that a broken model repeats instead of answering."""
    stripped = re.sub(r"\s+", "", text)
    return stripped[0] if len(stripped) >= 8 and len(set(stripped)) == 1 else None


def judge_chat(reply: Reply, expected: str) -> Verdict:
    """The answer stands in the content, not in the reasoning, and contains what is expected."""
    message, why = message_of(reply)
    if message is None:
        return Verdict(False, why)
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        return Verdict(False, f"content: found {shorten(content)}, wanted text")
    if not content or not content.strip():
        thought = next((message[field] for field in REASONING_FIELDS if message.get(field)), None)
        if thought:
            return Verdict(False, f"the answer stands in the reasoning field: {shorten(thought)}; is thinking off?")
        return Verdict(False, "the answer is empty")
    if "<think>" in content or "</think>" in content:
        return Verdict(False, f"the content holds the model's thinking: {shorten(content)}; is a reasoning parser set?")
    repeated = degenerate(content)
    if repeated:
        return Verdict(False, f"the answer is {repeated!r} repeated, which a wrong quantisation or kernel produces")
    if not contains(content, expected):
        return Verdict(False, f"found {shorten(content)!r}, wanted {expected}")
    return Verdict(True, shorten(content))


def judge_tool_call(reply: Reply, name: str, arguments: dict[str, t.Any]) -> Verdict:
    """A call of the named tool whose arguments are JSON text with the expected values."""
    message, why = message_of(reply)
    if message is None:
        return Verdict(False, why)
    calls = message.get("tool_calls") or []
    if not calls:
        return Verdict(
            False, f"no tool call, found the text {shorten(str(message.get('content')))!r}; is the parser set?"
        )
    try:
        function = calls[0]["function"]
        called, raw = function["name"], function["arguments"]
    except (KeyError, IndexError, TypeError):
        return Verdict(False, f"the tool call has an unknown shape: {shorten(json.dumps(calls))}")
    if called != name:
        return Verdict(False, f"found a call of {called!r}, wanted {name!r}")
    if not isinstance(raw, str):
        return Verdict(False, f"arguments: found {type(raw).__name__}, wanted JSON text")
    try:
        given = json.loads(raw)
    except (ValueError, RecursionError):
        return Verdict(False, f"arguments: found {shorten(raw)!r}, which is not JSON")
    if not isinstance(given, dict):
        return Verdict(False, f"arguments: found {shorten(raw)!r}, wanted an object")
    wrong = {key: given.get(key) for key, value in arguments.items() if given.get(key) != value}
    if wrong:
        return Verdict(False, f"arguments: found {shorten(raw)}, wanted {json.dumps(arguments, ensure_ascii=False)}")
    return Verdict(True, f"{name}({shorten(raw)})")


def judge_stream(reply: Reply) -> Verdict:
    """A stream of several events with text, a closing usage record and the end mark."""
    if reply.status != 200:
        return Verdict(False, f"status {reply.status or 'none'}, wanted 200: {shorten(reply.text)}")
    # Only these end a line of an event stream; splitlines() would also split at characters that the text may hold.
    lines = re.split(r"\r\n|\n|\r", reply.text)
    events = [line[len("data:") :].strip() for line in lines if line.startswith("data:")]
    if not events:
        return Verdict(False, f"no event stream: {shorten(reply.text)}")
    if events[-1] != LAST_SSE:
        return Verdict(False, f"the stream ends with {shorten(events[-1])!r}, wanted {LAST_SSE}")
    pieces, usage = [], None
    for event in events[:-1]:
        try:
            data = json.loads(event)
            usage = dict(data.get("usage") or usage or {})
            for choice in data.get("choices") or []:
                piece = (choice.get("delta") or {}).get("content")
                if piece:
                    pieces.append(str(piece))
        except (ValueError, AttributeError, TypeError, RecursionError):
            return Verdict(False, f"an event is no chunk of a chat completion: {shorten(event)}")
    if len(pieces) < 2:
        return Verdict(False, f"found {len(pieces)} piece(s) of text, wanted several: the answer was not streamed")
    if not usage or not usage.get("completion_tokens"):
        return Verdict(False, "no usage record at the end of the stream")
    return Verdict(True, f"{len(pieces)} pieces, {usage['completion_tokens']} tokens: {shorten(''.join(pieces), 80)}")


def judge_models(reply: Reply, model: str) -> Verdict:
    """The served model is in the list."""
    try:
        names = [str(entry["id"]) for entry in json.loads(reply.text)["data"]] if reply.status == 200 else []
    except (ValueError, KeyError, TypeError, RecursionError):
        names = []
    if model in names:
        return Verdict(True, ", ".join(names))
    return Verdict(False, f"status {reply.status or 'none'}, found models {', '.join(names) or 'none'}, wanted {model}")


def judge_unauthorised(replies: dict[str, Reply]) -> Verdict:
    """Every request without a valid key is refused with 401."""
    open_ = {what: reply for what, reply in replies.items() if reply.status != 401}
    if open_:
        found = "; ".join(f"{what} answered {reply.status or shorten(reply.text)}" for what, reply in open_.items())
        return Verdict(False, f"{found}; wanted 401")
    return Verdict(True, f"401 for {', '.join(replies)}")


def judge_ready(reply: Reply, ranks: dict[str, dict[str, t.Any]]) -> Verdict:
    """Every rank runs what it shall run, and the head says that it is healthy."""
    if not ranks:
        return Verdict(False, "no rank's state is known, wanted that of every node")
    for name, state in ranks.items():
        if not state.get("active"):
            unit = (state.get("unit") or {}).get("ActiveState", "not looked at")
            return Verdict(False, f"{name}: its rank does not run (unit {unit})")
        if state.get("wanted") and state.get("running") != state["wanted"]:
            return Verdict(False, f"{name}: its rank runs another configuration than the one that was rendered")
    if reply.status != 200:
        return Verdict(False, f"health answered {reply.status or shorten(reply.text)}, wanted 200")
    return Verdict(True, f"{len(ranks)} rank(s) running, health 200")


def junit(name: str, results: list[dict[str, t.Any]]) -> str:
    """The results as JUnit XML, for CI systems."""
    import xml.etree.ElementTree as xml

    failed = [result for result in results if result["status"] == "failed"]
    left_out = [result for result in results if result["status"] == "not checked"]
    suite = xml.Element(
        "testsuite",
        name=f"tandem.spark accept {name}",
        tests=str(len(results)),
        failures=str(len(failed)),
        skipped=str(len(left_out)),
    )
    for result in results:
        case = xml.SubElement(
            suite, "testcase", classname=result["check"], name=result["name"], time=f"{result['seconds']:.3f}"
        )
        if result["status"] != "passed":
            kind = "failure" if result["status"] == "failed" else "skipped"
            xml.SubElement(case, kind, message=shorten(result["detail"], 2000))
    return xml.tostring(suite, encoding="unicode") + "\n"


def table(results: list[dict[str, t.Any]]) -> str:
    """The results as text, one line per check."""
    width = max(len(result["name"]) for result in results)
    return "\n".join(
        f"{result['status']:<11}  {result['name']:<{width}}  {result['seconds']:6.1f} s  {result['detail']}"
        for result in results
    )

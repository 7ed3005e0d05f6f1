# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import http.server
import json
import socket
import threading
import time

import pytest
from ansible_collections.tandem.spark.plugins.modules import rank_ready

KEY = "a-key-of-sixteen-or-more"
ANSWER = {"choices": [{"message": {"content": "Hello!"}}]}


@pytest.fixture
def engine():
    """An engine on loopback. ``health`` and ``chat`` are lists of (status, body); the last one stays."""
    state = {"health": [(200, {})], "chat": [(200, ANSWER)], "asked": [], "bodies": []}

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            kind = {"/health": "health", "/v1/chat/completions": "chat"}.get(self.path)
            state["asked"].append((self.path, self.headers.get("Authorization")))
            if self.command == "POST":
                state["bodies"].append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            answers = state[kind] if kind else [(404, {})]
            status, body = answers.pop(0) if len(answers) > 1 else answers[0]
            if status == "cut":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
                return
            if status == "junk":
                self.wfile.write(b"what?\r\n\r\n")
                return
            raw = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = answer

        def log_message(self, *_arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state["url"] = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def wait(run_module, engine, commands, monkeypatch):
    monkeypatch.setattr(rank_ready, "POLL_S", 0.01)
    commands["systemctl show"] = (0, "ActiveState=active\nResult=success\n", "")
    commands["journalctl"] = (0, f"the engine's last words, and {KEY}\n", "")

    def run(check_mode=False, **options):
        arguments = {"url": engine["url"] + "/", "model": "m", "key": KEY, "timeout_s": 30, **options}
        return run_module(rank_ready, arguments, check_mode=check_mode)

    return run


def test_c43_health_and_one_completion(wait, engine):
    engine["health"] = [(503, {}), (503, {}), (503, {}), (200, {})]
    engine["chat"] = [(503, {}), (200, ANSWER)]
    result = wait()
    assert result["changed"] is False and result["phase"] == "ready"
    paths = [path for path, _key in engine["asked"]]
    # A 503 of the completion goes back to the health path.
    assert paths == ["/health"] * 4 + ["/v1/chat/completions", "/health", "/v1/chat/completions"]
    assert "/v1/models" not in paths
    assert engine["bodies"][0]["model"] == "m"


@pytest.mark.parametrize("message", [{"content": None, "reasoning_content": "Hm"}, {"reasoning": "Hm"}])
def test_c43_text_is_text_wherever_the_engine_put_it(wait, engine, message):
    engine["chat"] = [(200, {"choices": [{"message": message}]})]
    assert wait()["phase"] == "ready"


@pytest.mark.parametrize(
    "answer", [{}, [], {"choices": []}, {"choices": [{"message": {"content": ""}}]}, {"choices": [{"message": "x"}]}]
)
def test_c43_a_completion_without_text_is_none(wait, engine, answer):
    engine["chat"] = [(200, answer), (200, answer), (200, ANSWER)]
    assert wait()["phase"] == "ready" and len(engine["bodies"]) == 3


@pytest.mark.parametrize("where", ["health", "chat"])
@pytest.mark.parametrize("status", [401, 403, 404])
def test_c43_c49_a_refusal_ends_it_at_once(wait, engine, where, status):
    engine[where] = [(status, {"error": f"bad key {KEY}"})]
    began = time.monotonic()
    result = wait()
    assert time.monotonic() - began < 5
    assert result["failed"] and str(status) in result["msg"] and engine["url"] in result["msg"]
    assert "last words" in result["msg"]
    # C51: neither from the server's words nor from the log.
    assert KEY not in json.dumps({**result, "invocation": None})


def test_c49_the_key_goes_to_every_path(wait, engine):
    wait()
    assert {key for _path, key in engine["asked"]} == {f"Bearer {KEY}"} and len(engine["asked"]) == 2


def test_c43_a_refused_connection_is_loading_and_the_end_of_the_process_ends_it(wait, commands):
    looks = iter(["active", "active", "active"])

    def show(_words, _options):
        state = next(looks, "failed")
        return 0, f"ActiveState={state}\nResult=exit-code\nExecMainStatus=1\n", ""

    commands["systemctl show"] = show
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    began = time.monotonic()
    result = wait(url=url)
    assert time.monotonic() - began < 5
    assert result["failed"] and "the rank ended" in result["msg"] and "exit status 1" in result["msg"]
    assert "last words" in result["msg"] and result["phase"] == "waiting for the engine to listen"


@pytest.mark.parametrize("how", ["cut", "junk"])
@pytest.mark.parametrize("where", ["health", "chat"])
def test_an_answer_that_breaks_off_is_no_answer(wait, engine, where, how):
    engine[where] = [(how, None), (200, ANSWER)]
    assert wait()["phase"] == "ready"


def test_the_limit_says_how_far_it_came(wait, engine):
    engine["health"] = [(503, {"detail": "still loading"})]
    result = wait(timeout_s=0)
    assert result["failed"] and result["phase"] == "loading"
    assert "gave up after 0 s" in result["msg"] and "503" in result["msg"] and "still loading" in result["msg"]


def test_a_completion_that_never_comes(wait, engine):
    def hang():
        time.sleep(0.3)

    class Slow(list):
        def __getitem__(self, _index):
            hang()
            return 503, {}

    engine["chat"] = Slow([None])
    result = wait(timeout_s=0, answer_timeout_s=1)
    assert result["failed"] and result["phase"] == "waiting for the first completion"


def test_proxies_are_for_other_places(wait, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert wait()["phase"] == "ready"


def test_check_mode_asks_nobody(wait, engine, commands):
    result = wait(check_mode=True)
    assert result["phase"] == "not checked" and engine["asked"] == [] == commands["ran"]

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import http.server
import threading
import time

import pytest
from ansible_collections.tandem.spark.plugins.modules import api_request


@pytest.fixture
def server():
    """Answers by path, and notes what it was sent."""
    state = {"seen": []}

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            state["seen"].append((self.command, self.path, body, self.headers.get("Authorization")))
            if self.path == "/trickle":
                self.send_response(200)
                self.end_headers()
                try:
                    for _count in range(100):
                        self.wfile.write(b" ")
                        self.wfile.flush()
                        time.sleep(0.05)
                except OSError:
                    pass
                return
            if self.path == "/cut":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
                return
            status = {"/redirect": 302, "/refused": 401}.get(self.path, 200)
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        do_GET = do_POST = answer

        def log_message(self, *_arguments):
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    httpd.block_on_close = False
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state["url"] = f"http://127.0.0.1:{httpd.server_port}"
    yield state
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_what_is_sent(server):
    assert api_request.ask(f"{server['url']}/a", None, None, 5) == (200, "ok")
    assert api_request.ask(f"{server['url']}/b", "{}", "the-key", 5) == (200, "ok")
    assert server["seen"] == [("GET", "/a", b"", None), ("POST", "/b", b"{}", "Bearer the-key")]


def test_a_refusal_is_an_answer_and_a_redirect_is_not_followed(server):
    assert api_request.ask(f"{server['url']}/refused", None, "x", 5) == (401, "ok")
    assert api_request.ask(f"{server['url']}/redirect", None, "x", 5) == (302, "ok")
    assert len(server["seen"]) == 2


def test_half_an_answer_is_none(server):
    status, text = api_request.ask(f"{server['url']}/cut", None, None, 5)
    assert status == 0 and text.startswith("no answer")


def test_the_limit_is_for_the_whole_answer(server):
    began = time.monotonic()
    status, text = api_request.ask(f"{server['url']}/trickle", None, None, 0.3)
    assert status == 0 and "0.3 s" in text
    assert time.monotonic() - began < 2


def test_nobody_listens():
    status, text = api_request.ask("http://127.0.0.1:9/health", None, "the-key", 1)
    assert status == 0 and text.startswith("no answer") and "the-key" not in text

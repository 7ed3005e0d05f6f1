# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's model hub, asked over loopback."""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub.hub import Digests, Faults, Hub

WEIGHTS = bytes(range(256)) * 20
FILE = "o/m/model.safetensors"


class Asker:
    """A running hub and a way to ask it."""

    def __init__(self, hub: Hub, control: Path, log: io.StringIO) -> None:
        self.hub, self.control, self.log = hub, control, log
        self.repo = hub.root / "o" / "m"
        self.changes = 0

    def ask(self, path: str, method: str = "GET", body: str = "", **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.hub.server_port, timeout=10)
        connection.request(method, path, body or None, headers)
        answer = connection.getresponse()
        try:
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        status, _headers, body = self.ask(path)
        assert status == 200, body
        return json.loads(body)

    @property
    def commit(self) -> str:
        return str(self.json("/healthz")["repositories"]["o/m"])

    def faults(self, *faults: dict[str, Any]) -> None:
        self.control.write_text(json.dumps(faults))
        self.changes += 1
        os.utime(self.control, ns=(self.changes, self.changes))


@pytest.fixture
def asker(tmp_path: Path) -> Iterator[Asker]:
    root = tmp_path / "root"
    for repo in ("o/m", "o/other"):
        (root / repo / "sub").mkdir(parents=True)
        (root / repo / "config.json").write_text("{}")
        (root / repo / "sub" / "a b.txt").write_text(repo)
        (root / repo / "model.safetensors").write_bytes(WEIGHTS)
    (tmp_path / "secret").write_text("secret")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "torch-2.13.0+cpu-py3-none-any.whl").write_bytes(b"wheel")
    (wheels / "notes.txt").write_text("not a wheel")
    log, control = io.StringIO(), tmp_path / "control.json"
    hub = Hub(root, ("127.0.0.1", 0), wheels=wheels, log=log, faults=Faults([], control))
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield Asker(hub, control, log)
    hub.shutdown()
    thread.join()
    hub.server_close()


def test_both_apis_list_the_same_files(asker: Asker) -> None:
    hugging = asker.json(f"/api/models/o/m/tree/{asker.commit}?recursive=true&expand=false")
    scope = asker.json("/api/v1/models/o/m/repo/files?Revision=master&Recursive=True")["Data"]["Files"]
    assert [entry["path"] for entry in hugging] == [entry["Path"] for entry in scope]
    assert [entry["path"] for entry in hugging] == ["config.json", "model.safetensors", "sub/a b.txt"]
    assert hugging[0]["oid"] == hashlib.sha1(b"blob 2\x00{}").hexdigest()
    weights = hashlib.sha256(WEIGHTS).hexdigest()
    assert hugging[1]["lfs"] == {"oid": weights, "size": len(WEIGHTS), "pointerSize": 134}
    assert scope[1]["Sha256"] == weights and scope[1]["Size"] == len(WEIGHTS)
    siblings = asker.json("/api/models/o/m")["siblings"]
    assert siblings[1]["lfs"]["sha256"] == weights and "lfs" not in siblings[0]


def test_second_page_is_empty(asker: Asker) -> None:
    data = asker.json("/api/v1/models/o/m/repo/files?PageNumber=2")["Data"]
    assert data["Files"] == [] and data["TotalCount"] == 3


def test_commit_is_made_from_the_content(asker: Asker) -> None:
    commits = asker.json("/healthz")["repositories"]
    assert len(commits["o/m"]) == 40 and commits["o/m"] != commits["o/other"]
    before = asker.commit
    os.utime(asker.repo / "config.json", (1, 1))
    assert asker.commit == before
    (asker.repo / "config.json").write_text("[]")
    assert asker.commit != before
    (asker.repo / "config.json").write_text("{}")
    assert asker.commit == before
    (asker.repo / "config.json").rename(asker.repo / "renamed.json")
    assert asker.commit != before


@pytest.mark.parametrize("revision", ["main", "master", "COMMIT"])
def test_revisions_that_are_known(asker: Asker, revision: str) -> None:
    name = asker.commit if revision == "COMMIT" else revision
    assert asker.json(f"/api/models/o/m/revision/{name}")["sha"] == asker.commit
    status, headers, body = asker.ask(f"/o/m/resolve/{name}/config.json")
    assert (status, headers["x-repo-commit"], body) == (200, asker.commit, b"{}")
    assert asker.ask(f"/api/v1/models/o/m/repo?Revision={name}&FilePath=sub%2Fa%20b.txt")[2] == b"o/m"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/models/o/m/revision/" + "a" * 40, "RevisionNotFound"),
        ("/o/m/resolve/v1/config.json", "RevisionNotFound"),
        ("/api/v1/models/o/m/repo/files?Revision=v1", "RevisionNotFound"),
        ("/api/v1/models/o/m/repo?Revision=v1&FilePath=config.json", "RevisionNotFound"),
        ("/api/models/o/none", "RepoNotFound"),
        ("/api/v1/models/o/none/repo/files", "RepoNotFound"),
        ("/o/m/resolve/main/none.json", "EntryNotFound"),
        ("/o/m/resolve/main/sub", "EntryNotFound"),
        ("/o/m/resolve/main/", ""),
        ("/api/v1/models/o/m/repo", "EntryNotFound"),
        ("/o/m/resolve/main/../../../secret", "EntryNotFound"),
        ("/o/m/resolve/main/%2e%2e/%2e%2e/%2e%2e/secret", "EntryNotFound"),
        ("/api/v1/models/o/m/repo?FilePath=../../../secret", "EntryNotFound"),
        ("/../m/resolve/main/secret", "RepoNotFound"),
        ("/api/models/%2e%2e/root", "RepoNotFound"),
        ("/wheels/../secret", ""),
        ("/wheels/%2e%2e%2fsecret", ""),
        ("/wheels/notes.txt", "EntryNotFound"),
        ("/wheels/none.whl", "EntryNotFound"),
        ("/", ""),
    ],
)
def test_what_is_not_there(asker: Asker, path: str, code: str) -> None:
    status, headers, body = asker.ask(path)
    assert (status, headers.get("x-error-code", "")) == (404, code)
    assert json.loads(body)["Code"] == 404


def test_headers_of_small_and_large_files(asker: Asker) -> None:
    status, headers, body = asker.ask(f"/o/m/resolve/main/{Path(FILE).name}", "HEAD")
    sha256 = hashlib.sha256(WEIGHTS).hexdigest()
    assert (status, body, headers["content-length"]) == (200, b"", str(len(WEIGHTS)))
    assert headers["etag"] == headers["x-linked-etag"] == f'"{sha256}"'
    assert headers["x-linked-size"] == str(len(WEIGHTS))
    small = asker.ask("/o/m/resolve/main/config.json", "HEAD")[1]
    assert (
        "x-linked-etag" not in small and small["etag"] == f'"{hashlib.sha1(b"blob 2" + bytes(1) + b"{}").hexdigest()}"'
    )


@pytest.mark.parametrize(
    ("asked", "status", "first", "end"),
    [
        ("bytes=0-9", 206, 0, 10),
        ("bytes=5000-", 206, 5000, 5120),
        ("bytes=-20", 206, 5100, 5120),
        ("bytes=5000-9999", 206, 5000, 5120),
        ("bytes=-9999", 206, 0, 5120),
        ("bytes=5120-", 416, 0, 0),
        ("bytes=10-5", 416, 0, 0),
        ("lines=1-2", 200, 0, 5120),
        ("bytes=0-1,3-4", 200, 0, 5120),
    ],
)
def test_ranges(asker: Asker, asked: str, status: int, first: int, end: int) -> None:
    got, headers, body = asker.ask("/o/m/resolve/main/model.safetensors", Range=asked)
    assert got == status
    if status == 416:
        assert headers["content-range"] == "bytes */5120"
    else:
        assert body == WEIGHTS[first:end]
        assert headers.get("content-range") == (f"bytes {first}-{end - 1}/5120" if status == 206 else None)


def test_wheels_page(asker: Asker) -> None:
    page = asker.ask("/wheels/")[2].decode()
    assert '<a href="torch-2.13.0%2Bcpu-py3-none-any.whl">torch-2.13.0+cpu-py3-none-any.whl</a>' in page
    assert "notes" not in page
    assert asker.ask("/wheels/torch-2.13.0%2Bcpu-py3-none-any.whl")[2] == b"wheel"


def test_paths_info(asker: Asker) -> None:
    question = json.dumps({"paths": ["config.json", "x"]})
    status, _headers, body = asker.ask("/api/models/o/m/paths-info/main", "POST", question)
    assert status == 200 and [entry["path"] for entry in json.loads(body)] == ["config.json"]


def test_corrupt_flips_one_byte_and_keeps_the_metadata(asker: Asker) -> None:
    asker.faults({"fault": "corrupt", "match": FILE})
    _status, headers, body = asker.ask("/o/m/resolve/main/model.safetensors")
    assert len(body) == len(WEIGHTS) and sum(a != b for a, b in zip(body, WEIGHTS, strict=True)) == 1
    assert headers["etag"] == f'"{hashlib.sha256(WEIGHTS).hexdigest()}"'
    assert asker.ask("/o/m/resolve/main/model.safetensors", Range="bytes=101-")[2] == WEIGHTS[101:]
    assert asker.ask("/o/m/resolve/main/model.safetensors", Range="bytes=100-100")[2] != WEIGHTS[100:101]
    assert asker.ask("/o/other/resolve/main/model.safetensors")[2] == WEIGHTS


def test_corrupt_from_the_command_line() -> None:
    faults = Faults([FILE], None)
    assert faults.take(FILE, "corrupt") and faults.take(FILE, "corrupt") and not faults.take("o/m/x", "corrupt")


def test_truncate_and_html_look_complete(asker: Asker) -> None:
    asker.faults({"fault": "truncate", "match": FILE, "bytes": 10}, {"fault": "html", "match": "*/config.json"})
    assert asker.ask("/o/m/resolve/main/model.safetensors")[2] == WEIGHTS[:10]
    status, headers, body = asker.ask("/o/m/resolve/main/config.json")
    assert (status, headers["content-type"]) == (200, "text/html") and b"<html>" in body
    assert asker.ask("/o/m/resolve/main/config.json", "HEAD")[1]["content-length"] == "2"


def test_stop_ends_the_connection_so_many_times(asker: Asker) -> None:
    asker.faults({"fault": "stop", "match": "*.safetensors", "bytes": 1000, "times": 1})
    with pytest.raises(http.client.IncompleteRead) as stopped:
        asker.ask("/o/m/resolve/main/model.safetensors")
    assert stopped.value.partial == WEIGHTS[:1000]
    assert asker.ask("/o/m/resolve/main/model.safetensors", Range="bytes=1000-")[2] == WEIGHTS[1000:]


def test_refuse_answers_so_many_times(asker: Asker) -> None:
    asker.faults({"fault": "refuse", "match": "o/m*", "status": 429, "times": 2, "retry_after": 3})
    status, headers, _body = asker.ask("/api/models/o/m")
    assert (status, headers["retry-after"]) == (429, "3")
    assert asker.ask("/api/models/o/other")[0] == 200
    assert asker.ask("/o/m/resolve/main/config.json", "HEAD")[0] == 429
    assert asker.ask("/o/m/resolve/main/config.json")[0] == 200
    asker.faults({"fault": "refuse", "match": "wheels/*"})
    assert asker.ask("/wheels/")[0] == 503
    asker.control.unlink()
    assert asker.ask("/wheels/")[0] == 200


def test_a_broken_control_file_is_no_faults(asker: Asker, capsys: pytest.CaptureFixture[str]) -> None:
    asker.control.write_text("[{")
    assert asker.ask("/o/m/resolve/main/config.json")[2] == b"{}"
    assert "no faults" in capsys.readouterr().err


def test_digests_are_kept_and_follow_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").write_text("one")
    digests = Digests(root)
    first = digests.sha256(root / "a")
    digests.save()
    assert (tmp_path / "root.digests.json").exists()
    with monkeypatch.context() as patch:
        patch.setattr("hub.hub.hashlib", None)  # nothing is read again
        assert Digests(root).sha256(root / "a") == first
    (root / "a").write_text("two!")
    assert Digests(root).sha256(root / "a") == hashlib.sha256(b"two!").hexdigest()


def test_digests_survive_a_broken_store(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").write_text("one")
    (tmp_path / "root.digests.json").write_text("{ broken")
    assert Digests(root).sha256(root / "a") == hashlib.sha256(b"one").hexdigest()


def test_log_tells_requests_and_no_tokens(asker: Asker) -> None:
    asker.ask("/o/m/resolve/main/config.json", Authorization="Bearer hf_secret")
    end = time.monotonic() + 5
    while not asker.log.getvalue() and time.monotonic() < end:  # written when the answer is out
        time.sleep(0.01)
    line = asker.log.getvalue()
    assert "GET /o/m/resolve/main/config.json authorized 200 2 bytes" in line and "hf_secret" not in line


def test_binding_asks_no_dns(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*args: Any) -> None:
        raise AssertionError(f"a look-up of {args}")

    monkeypatch.setattr(socket, "getfqdn", look_up)
    Hub(asker.hub.root, ("127.0.0.1", 0)).server_close()

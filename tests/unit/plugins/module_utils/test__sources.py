# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import errno
import hashlib
import http.server
import io
import json
import os
import random
import re
import tarfile
import threading

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _fetch, _manifest
from ansible_collections.tandem.spark.plugins.module_utils._lock import BusyError, alone
from ansible_collections.tandem.spark.plugins.module_utils._sources import _http, _request
from ansible_collections.tandem.spark.plugins.module_utils._sources._request import SourceError

REVISION = "a" * 40
FILES = {"config.json": b"{}", "sub/model.safetensors": random.Random(0).randbytes(3_000_000)}
SUMS = "".join(f"{hashlib.sha256(content).hexdigest()}  {path}\n" for path, content in FILES.items())
ENTRIES = [{"path": p, "size": len(c), "sha256": hashlib.sha256(c).hexdigest()} for p, c in FILES.items()]
MANIFEST = _manifest.make({"id": "owner/Model", "revision": REVISION}, ENTRIES)
DIGEST = MANIFEST["digest"]
BIG = "/sub/model.safetensors"


class Web:
    """A web server of one directory. ``faults`` has for a path a list of (fault, value), each used up once."""

    def __init__(self):
        self.files = {f"/{path}": content for path, content in FILES.items()} | {"/SHA256SUMS": SUMS.encode()}
        self.faults = {}
        self.asked = []
        self.sent = 0
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self):
                self.answer(head=True)

            def do_GET(self):
                self.answer(head=False)

            def answer(self, head):
                if not head:
                    web.asked.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
                waiting = web.faults.get(self.path, []) if not head else []
                fault, value = waiting.pop(0) if waiting else (None, None)
                content = web.files.get(self.path)
                if fault == "status" or content is None:
                    self.send_response(value[0] if fault else 404)
                    for name, text in value[1].items() if fault else ():
                        self.send_header(name, text)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                tag = f'"{hashlib.sha256(content).hexdigest()[:8]}"'
                first = 0
                wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
                if wanted and self.headers.get("If-Range", tag) == tag:
                    first = int(wanted[1])
                if first >= len(content) and first:
                    self.send_response(416)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                kind = "application/octet-stream"
                if fault == "html":
                    content, first, kind = b"<html>Sign in</html>", 0, "text/html; charset=utf-8"
                self.send_response(206 if first else 200)
                self.send_header("ETag", tag)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content) - first))
                if first:
                    self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
                self.end_headers()
                if not head:
                    body = content[first : first + value] if fault == "stop" else content[first:]
                    web.sent += len(body)
                    self.wfile.write(body)
                    self.close_connection = fault == "stop"

            def log_message(self, *_arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # A client that hangs up is what some of the tests are about.
        self.server.handle_error = lambda *_arguments: None
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def stop(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def waits(monkeypatch):
    found = []
    monkeypatch.setattr(_http, "pause", found.append)
    return found


@pytest.fixture
def web(waits):
    server = Web()
    yield server
    server.stop()


@pytest.fixture
def fetch(tmp_path):
    def run(source, endpoint, **options):
        wanted = {"source": source, "id": "owner/Model", "revision": REVISION, "endpoint": str(endpoint)}
        return _fetch.work({**wanted, "path": str(tmp_path / "staging"), "workers": 2, **options})

    return run


def staged(tmp_path):
    staging = tmp_path / "staging"
    found = {path.relative_to(staging).as_posix() for path in staging.rglob("*") if path.is_file()}
    assert found == {*FILES, "tandem-manifest.json"}
    return {path: (staging / path).read_bytes() for path in FILES}


# --- a directory on a web server


def test_a_web_directory(fetch, web, tmp_path):
    result = fetch("http", web.url + "/")
    assert result == {
        "digest": DIGEST,
        "revision": REVISION,
        "bytes": sum(map(len, FILES.values())),
        "files": 2,
        "fetched_again": [],
    }
    assert staged(tmp_path) == FILES


def test_a_second_run_asks_for_no_file_again(fetch, web, tmp_path):
    fetch("http", web.url)
    sent = web.sent
    fetch("http", web.url)
    assert web.sent - sent == len(SUMS) and staged(tmp_path) == FILES


def test_a_connection_that_breaks_off_goes_on(fetch, web, waits, tmp_path):
    web.faults[BIG] = [("stop", 1_000_000), ("stop", 1_000_000)]
    fetch("http", web.url)
    assert staged(tmp_path) == FILES and waits == []
    assert [span for path, span, _key in web.asked if path == BIG] == [None, "bytes=1000000-", "bytes=2000000-"]
    assert web.sent == len(SUMS) + sum(map(len, FILES.values()))


def test_a_line_that_brings_nothing_is_given_up_and_what_came_is_kept(fetch, web, waits, tmp_path):
    web.faults[BIG] = [("stop", 2_000_000)] + [("stop", 0)] * 20
    with pytest.raises(SourceError, match="broke off 6 times in a row.*goes on"):
        fetch("http", web.url)
    assert not (tmp_path / "staging" / BIG[1:]).exists() and not (tmp_path / "staging/tandem-manifest.json").exists()
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0]
    web.faults.clear()
    sent = web.sent
    fetch("http", web.url)
    assert staged(tmp_path) == FILES and web.sent - sent <= len(SUMS) + 1_000_000


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_left_alone_for_as_long_as_it_asks(fetch, web, waits, tmp_path, status):
    web.faults[BIG] = [("status", (status, {"Retry-After": "3"})), ("status", (status, {"Retry-After": "9999"}))]
    fetch("http", web.url)
    assert staged(tmp_path) == FILES and waits == [3.0, _http.WAIT_MOST_S]


def test_a_server_that_stays_busy(fetch, web, waits):
    web.faults["/SHA256SUMS"] = [("status", (503, {}))] * 10
    with pytest.raises(SourceError, match="SHA256SUMS: .* answered 503; .*goes on where it stopped"):
        fetch("http", web.url)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0]


@pytest.mark.parametrize("path", ["/SHA256SUMS", BIG])
def test_c26_an_html_page_is_no_file(fetch, web, tmp_path, path):
    web.faults[path] = [("html", None)] * 3
    with pytest.raises(SourceError, match=f"{path}: found an HTML page"):
        fetch("http", web.url)
    assert not (tmp_path / "staging/tandem-manifest.json").exists()


@pytest.mark.parametrize("path", ["/SHA256SUMS", BIG])
def test_what_is_not_there_is_named(fetch, web, path):
    del web.files[path]
    with pytest.raises(SourceError, match=f"{path.strip('/')}: .* answered 404.*model_token"):
        fetch("http", web.url)


def test_c23_a_file_that_changes_under_its_name_is_fetched_again_and_refused(fetch, web, tmp_path):
    web.files[BIG] = random.Random(1).randbytes(3_000_000)
    with pytest.raises(_fetch.FetchError, match="1 file.s. wrong after two downloads: sub/model.safetensors: sha256"):
        fetch("http", web.url)
    assert not (tmp_path / "staging" / BIG[1:]).exists()


def test_a_file_that_changes_in_the_middle_is_not_joined_to_the_old_one(fetch, web, tmp_path):
    old = random.Random(2).randbytes(3_000_000)
    web.files[BIG] = old
    web.faults[BIG] = [("stop", 1_000_000)] + [("status", (404, {}))]
    with pytest.raises(SourceError):
        fetch("http", web.url)
    web.files[BIG] = FILES[BIG[1:]]
    assert fetch("http", web.url)["fetched_again"] == []
    assert staged(tmp_path) == FILES


def test_a_part_longer_than_the_file_is_dropped(fetch, web, tmp_path):
    part = tmp_path / "staging" / _request.PARTS / BIG[1:]
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 4_000_000)
    fetch("http", web.url)
    assert staged(tmp_path) == FILES


def test_the_token_is_sent_and_not_said(fetch, web, tmp_path):
    web.faults[BIG] = [("status", (403, {}))]
    with pytest.raises(SourceError) as caught:
        fetch("http", web.url, token="secret-token")
    assert "403" in str(caught.value) and "secret-token" not in str(caught.value)
    assert {key for _path, _span, key in web.asked} == {"Bearer secret-token"}


def test_too_little_space_is_said_before_anything_is_fetched(fetch, web, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(_fetch.shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(_fetch.FetchError, match="found 1000 bytes free, wanted 3000002 for owner/Model"):
        fetch("http", web.url)
    assert [path for path, _span, _key in web.asked] == ["/SHA256SUMS"]


def test_a_disk_that_fills_up_says_so(fetch, web, monkeypatch, tmp_path):
    def full(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_fetch._sources.web, "settle", full)
    with pytest.raises(_fetch.FetchError, match="the disk is full; nothing was published and what came is kept"):
        fetch("http", web.url)
    assert not (tmp_path / "staging/tandem-manifest.json").exists()


def test_the_digest_pins_what_has_no_commits(fetch, web):
    assert fetch("http", web.url, revision=DIGEST)["revision"] == DIGEST
    with pytest.raises(_fetch.FetchError, match=f"found the digest {DIGEST}, wanted {'b' * 64}"):
        fetch("http", web.url, revision="b" * 64)


def test_a_name_is_refused_with_the_digest_or_resolved(fetch, web):
    with pytest.raises(_fetch.FetchError, match=f"found 'latest', wanted.*It stands for {DIGEST} now"):
        fetch("http", web.url, revision="latest")
    assert fetch("http", web.url, revision="latest", resolve=True)["revision"] == DIGEST


def test_one_at_a_time(fetch, web, tmp_path, monkeypatch):
    monkeypatch.setattr(_fetch, "BUSY_S", 0.0)
    (tmp_path / "staging").mkdir()
    with alone(str(tmp_path / "staging"), 0), pytest.raises(BusyError, match=f"process {os.getpid()}"):
        fetch("http", web.url)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7.0), ("Thu, 01 Jan 1970 00:01:40 GMT", 40.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("soon", None)],
)
def test_retry_after(value, seconds):
    assert _http.retry_after(value, 60.0) == seconds
    assert _http.retry_after(None, 60.0) is None


# --- a directory


def write(directory, files):
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return directory


@pytest.mark.parametrize("kind", ["manifest", "checksums", "bare"])
def test_a_directory(fetch, tmp_path, kind):
    source = write(tmp_path / "source", FILES)
    if kind == "manifest":
        (source / "tandem-manifest.json").write_bytes(_manifest.dump(MANIFEST))
    elif kind == "checksums":
        (source / "SHA256SUMS").write_text(SUMS)
    assert fetch("directory", source)["digest"] == DIGEST
    assert staged(tmp_path) == FILES


@pytest.mark.parametrize("layout", ["files", "directory"])
def test_c22_links_are_resolved(fetch, tmp_path, layout):
    blobs = write(tmp_path / "store", FILES)
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "config.json").symlink_to(blobs / "config.json")
    if layout == "files":
        (source / BIG[1:]).symlink_to(blobs / BIG[1:])
    else:
        (source / "sub").rmdir()
        (source / "sub").symlink_to(blobs / "sub")
    assert fetch("directory", source)["digest"] == DIGEST
    assert staged(tmp_path) == FILES and not (tmp_path / "staging" / BIG[1:]).is_symlink()


def test_c22_a_dangling_link_is_named_with_its_target(fetch, tmp_path):
    source = write(tmp_path / "source", FILES)
    (source / "lost.safetensors").symlink_to("../blobs/0123")
    with pytest.raises(SourceError, match="lost.safetensors -> ../blobs/0123"):
        fetch("directory", source)


def test_c23_a_wrong_byte_in_the_source_is_refused(fetch, tmp_path):
    source = write(tmp_path / "source", {**FILES, "config.json": b"[]"})
    (source / "SHA256SUMS").write_text(SUMS)
    with pytest.raises(_fetch.FetchError, match="config.json: sha256"):
        fetch("directory", source)
    assert not (tmp_path / "staging/tandem-manifest.json").exists()


def test_c28_listed_but_absent_and_present_but_not_listed_are_two_findings(fetch, tmp_path):
    source = write(tmp_path / "source", {"config.json": b"{}", "more.gguf": b"GGUF"})
    (source / "SHA256SUMS").write_text(SUMS)
    with pytest.raises(SourceError, match="absent: sub/model.safetensors; weights that it does not name: more.gguf"):
        fetch("directory", source)


@pytest.mark.parametrize(
    ("place", "words"), [("", "absolute path"), ("models", "absolute path"), ("/no/such", "mounted")]
)
def test_a_place_that_is_none(fetch, place, words):
    with pytest.raises(SourceError, match=words):
        fetch("directory", place)


def test_an_empty_directory_is_no_model(fetch, tmp_path):
    (tmp_path / "source").mkdir()
    with pytest.raises(SourceError, match="found no file.*mounted"):
        fetch("directory", tmp_path / "source")


def test_a_copy_goes_on_where_it_stopped(fetch, tmp_path):
    source = write(tmp_path / "source", FILES)
    write(tmp_path / "staging" / _request.PARTS, {BIG[1:]: FILES[BIG[1:]][:1_000_000]})
    steps = []
    wanted = {"source": "directory", "id": "owner/Model", "revision": REVISION, "endpoint": str(source)}
    _fetch.work({**wanted, "path": str(tmp_path / "staging")}, steps.append)
    assert staged(tmp_path) == FILES
    copied = [step.done for step in steps if step.stage == "copy" and step.detail == BIG[1:]]
    assert copied == [3_000_002]


def test_another_model_is_refused(fetch, tmp_path):
    source = write(tmp_path / "source", FILES)
    (source / "tandem-manifest.json").write_bytes(_manifest.dump(MANIFEST))
    with pytest.raises(SourceError, match="found the model owner/Model, wanted owner/Other"):
        fetch("directory", source, id="owner/Other")
    with pytest.raises(SourceError, match=f"found revision {REVISION}.*wanted {'b' * 40}"):
        fetch("directory", source, revision="b" * 40)


# --- a bundle


def bundled(directory, cut=None):
    files = {**FILES, "tandem-manifest.json": _manifest.dump(MANIFEST)}
    if cut:
        whole = files.pop(BIG[1:])
        parts = [whole[first : first + cut] for first in range(0, len(whole), cut)]
        files |= {f"{BIG[1:]}.part-{number:04d}": part for number, part in enumerate(parts, 1)}
    return write(directory, files)


def tar(directory, path, mode="w"):
    with tarfile.open(path, mode) as archive:
        archive.add(directory, ".")
    return path


@pytest.mark.parametrize("form", ["directory", "tar"])
@pytest.mark.parametrize("cut", [None, 1_000_000, 700_001], ids=["whole", "parts", "uneven"])
def test_a_bundle(fetch, tmp_path, form, cut):
    place = bundled(tmp_path / "bundle", cut)
    if form == "tar":
        place = tar(place, tmp_path / "bundle.tar")
    write(tmp_path / "staging" / _request.PARTS, {BIG[1:]: FILES[BIG[1:]][:1_500_000]})
    assert fetch("bundle", place)["digest"] == DIGEST
    assert staged(tmp_path) == FILES
    assert fetch("bundle", place, revision="main", resolve=True)["revision"] == REVISION


def test_a_bundle_with_a_part_missing_is_refused_before_anything_is_copied(fetch, tmp_path):
    place = bundled(tmp_path / "bundle", 1_000_000)
    (place / f"{BIG[1:]}.part-0002").unlink()
    with pytest.raises(SourceError, match=r"sub/model.safetensors \(1000000 of 3000000 bytes\)"):
        fetch("bundle", place)
    assert not (tmp_path / "staging/config.json").exists()


def test_a_bundle_that_is_none(fetch, tmp_path):
    with pytest.raises(SourceError, match="found no tandem-manifest.json"):
        fetch("bundle", write(tmp_path / "bundle", FILES))
    with pytest.raises(SourceError, match="found no plain tar"):
        fetch("bundle", tar(bundled(tmp_path / "good"), tmp_path / "bundle.tar.gz", "w:gz"))


def test_a_tar_cannot_reach_outside(fetch, tmp_path):
    path = tmp_path / "bundle.tar"
    evil = _manifest.make({}, [{"path": "../x", "size": 1, "sha256": "a" * 64}])
    with tarfile.open(path, "w") as archive:
        raw = json.dumps(evil).encode()
        member = tarfile.TarInfo("tandem-manifest.json")
        member.size = len(raw)
        archive.addfile(member, io.BytesIO(raw))
    with pytest.raises(SourceError, match="would leave the model's directory"):
        fetch("bundle", path)

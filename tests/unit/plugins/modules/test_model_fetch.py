# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from pathlib import Path

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _manifest
from ansible_collections.tandem.spark.plugins.module_utils._sources import _http
from ansible_collections.tandem.spark.plugins.modules import model_fetch

REVISION = "a" * 40
FILES = {"config.json": b"{}", "sub/model.safetensors": b"weights" * 100}
TOKEN = "hf_a-token-that-nobody-may-see"


def git_blob(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def hugging_face(files):
    answer = [{"type": "directory", "path": "sub", "size": 0, "oid": "d"}]
    for path, content in files.items():
        entry = {"type": "file", "path": path, "size": len(content), "oid": git_blob(content)}
        if path.endswith(".safetensors"):
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
            entry["size"] = 135
        answer.append(entry)
    return answer


def model_scope(files):
    entries = [
        {"Path": path, "Size": len(content), "Type": "blob", "Sha256": hashlib.sha256(content).hexdigest()}
        for path, content in files.items()
    ]
    return {"Code": 200, "Data": {"Files": [{"Path": "sub", "Size": 0, "Type": "tree"}, *entries]}}


@pytest.fixture
def hub():
    """A hub on loopback: ``pages`` of (status, body, headers) by number of the request; ``asked`` notes requests."""
    state = {"pages": [], "asked": []}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            state["asked"].append((self.path, self.headers.get("Authorization")))
            status, body, headers = state["pages"][min(len(state["asked"]), len(state["pages"])) - 1]
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(raw)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(raw)

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
def client(tmp_path):
    """Both clients as one program: copies what stands in ``served``, notes its words and environment."""
    served = tmp_path / "served"
    served.mkdir()
    for name in ("hf", "modelscope"):
        program = tmp_path / "client/bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(
            "#!/bin/sh\n"
            f'echo "$0 $*" >> {tmp_path}/ran\nenv > {tmp_path}/environment\n'
            'for word; do [ "$before" = --local-dir ] && to=$word; before=$word; done\n'
            f"number=$(wc -l < {tmp_path}/ran)\n"
            f"[ -e {tmp_path}/status ] && echo broken pipe >&2 && exit 3\n"
            'mkdir -p "$to/.cache/huggingface" "$to/._____temp/sub"\n'
            'echo half > "$to/._____temp/sub/model.safetensors"; touch "$to/.msc"\n'
            f"from={served}; [ -d {served}-$number ] && from={served}-$number\n"
            'cp -r "$from/." "$to/"\n'
        )
        program.chmod(0o755)
    return served


def serve(directory, files):
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)


def ran(tmp_path):
    return (tmp_path / "ran").read_text().splitlines() if (tmp_path / "ran").exists() else []


@pytest.fixture
def fetch(run_module, hub, client, tmp_path):
    def run(source="huggingface", check_mode=False, **options):
        arguments = {
            "source": source,
            "id": "owner/Model",
            "revision": REVISION,
            "path": str(tmp_path / "staging"),
            "client": str(tmp_path / "client"),
            "endpoint": hub["url"] + "/",
            **options,
        }
        return run_module(model_fetch, arguments, check_mode=check_mode)

    return run


LISTINGS = {"huggingface": hugging_face, "modelscope": model_scope}


@pytest.mark.parametrize("source", LISTINGS)
def test_a_download_from_both_hubs(fetch, hub, client, tmp_path, source):
    hub["pages"] = [(200, LISTINGS[source](FILES), {})]
    serve(client, FILES)
    result = fetch(source, token=TOKEN)
    assert result["changed"] is True and result["files"] == 2 and result["fetched_again"] == []
    assert result["bytes"] == sum(map(len, FILES.values()))
    staging = tmp_path / "staging"
    there = sorted(str(path.relative_to(staging)) for path in staging.rglob("*") if path.is_file())
    assert there == ["config.json", "sub/model.safetensors", "tandem-manifest.json"]
    assert not list(staging.glob(".*"))
    manifest = _manifest.load((staging / "tandem-manifest.json").read_text(), "here")
    assert manifest["digest"] == result["digest"]
    assert manifest["model"] == {"id": "owner/Model", "revision": REVISION, "source": source, "licence": ""}
    assert not _manifest.compare(str(staging), manifest)[0]
    assert REVISION in ran(tmp_path)[0]


@pytest.mark.parametrize("source", LISTINGS)
def test_c51_the_token_is_in_no_command_line_and_no_output(fetch, hub, client, tmp_path, source):
    hub["pages"] = [(200, LISTINGS[source](FILES), {})]
    serve(client, FILES)
    result = fetch(source, token=TOKEN)
    assert TOKEN not in json.dumps(result) and TOKEN not in ran(tmp_path)[0]
    assert TOKEN in (tmp_path / "environment").read_text()
    assert f"HOME={tmp_path}/staging/.cache\n" in (tmp_path / "environment").read_text()
    assert hub["asked"][0][1] == f"Bearer {TOKEN}"


@pytest.mark.parametrize("source", LISTINGS)
@pytest.mark.parametrize(
    "wrong", [b"weightz" + b"weights" * 99, b"", b"weights", b"<!DOCTYPE html>"], ids=["byte", "empty", "short", "html"]
)
def test_c23_c26_c27_a_wrong_file_is_fetched_again_once(fetch, hub, client, tmp_path, source, wrong):
    hub["pages"] = [(200, LISTINGS[source](FILES), {})]
    serve(client, FILES)
    serve(Path(f"{client}-1"), {**FILES, "sub/model.safetensors": wrong})
    result = fetch(source)
    assert result["fetched_again"] == ["sub/model.safetensors"] and len(ran(tmp_path)) == 2
    assert (tmp_path / "staging/sub/model.safetensors").read_bytes() == FILES["sub/model.safetensors"]


def test_c23_wrong_twice_is_refused_and_removed(fetch, hub, client, tmp_path):
    hub["pages"] = [(200, hugging_face(FILES), {})]
    wrong = b"weightz" + b"weights" * 99
    serve(client, {**FILES, "sub/model.safetensors": wrong})
    result = fetch()
    assert result["failed"] and "sub/model.safetensors" in result["msg"] and "two downloads" in result["msg"]
    assert hashlib.sha256(wrong).hexdigest() in result["msg"]
    assert hashlib.sha256(FILES["sub/model.safetensors"]).hexdigest() in result["msg"]
    assert not (tmp_path / "staging/sub/model.safetensors").exists()
    assert not (tmp_path / "staging/tandem-manifest.json").exists()


def test_c27_an_empty_download_is_called_empty(fetch, hub, client):
    hub["pages"] = [(200, model_scope(FILES), {})]
    serve(client, {**FILES, "sub/model.safetensors": b""})
    assert "the download is empty (0 bytes)" in fetch("modelscope")["msg"]


def test_a_file_outside_lfs_is_compared_too(fetch, hub, client):
    hub["pages"] = [(200, hugging_face(FILES), {})]
    serve(client, {**FILES, "config.json": b"[]"})
    assert "config.json" in fetch()["msg"]


def test_a_file_that_never_came(fetch, hub, client):
    hub["pages"] = [(200, hugging_face(FILES), {})]
    serve(client, {"config.json": b"{}"})
    assert "sub/model.safetensors: absent" in fetch()["msg"]


def test_a_directory_under_a_files_name(fetch, hub, client, tmp_path):
    hub["pages"] = [(200, hugging_face(FILES), {})]
    serve(client, FILES)
    (Path(f"{client}-1") / "config.json").mkdir(parents=True)
    serve(Path(f"{client}-1"), {"sub/model.safetensors": FILES["sub/model.safetensors"]})
    assert fetch()["fetched_again"] == ["config.json"]


def test_what_the_hub_does_not_list_goes(fetch, hub, client, tmp_path):
    hub["pages"] = [(200, hugging_face(FILES), {})]
    serve(client, {**FILES, "old/extra.bin": b"x"})
    staging = tmp_path / "staging"
    staging.mkdir()
    (staging / "linked").symlink_to(tmp_path / "client")
    assert fetch()["files"] == 2
    assert sorted(path.name for path in staging.iterdir()) == ["config.json", "sub", "tandem-manifest.json"]
    assert (tmp_path / "client/bin/hf").exists()


def test_pages_of_a_listing(fetch, hub, client):
    entries = hugging_face(FILES)
    hub["pages"] = [(200, entries[:2], {"Link": '</next?cursor=1,2>; rel="next"'}), (200, entries[2:], {})]
    serve(client, FILES)
    assert fetch()["files"] == 2
    assert [path for path, _key in hub["asked"]][1] == "/next?cursor=1,2"


def test_the_token_is_for_the_endpoint_only(fetch, hub, client):
    entries = hugging_face(FILES)
    other = hub["url"].replace("127.0.0.1", "localhost")
    hub["pages"] = [(200, entries[:2], {"Link": f'<{other}/next>; rel="next"'}), (200, entries[2:], {})]
    serve(client, FILES)
    fetch(token=TOKEN)
    assert [key for _path, key in hub["asked"]] == [f"Bearer {TOKEN}", None]


def test_a_listing_that_names_itself_as_next_page_ends(fetch, hub, client):
    hub["pages"] = [(200, hugging_face(FILES), {"Link": '<?recursive=true&expand=false>; rel="next"'})]
    serve(client, FILES)
    assert fetch()["digest"] and len(hub["asked"]) == 1


@pytest.mark.parametrize(
    ("page", "word"),
    [
        ((404, b"", {}), "404"),
        ((401, b"", {}), "401"),
        ((200, b"<html>", {}), "no usable listing"),
        ((200, b"[]", {}), "no usable listing"),
        ((200, [{"type": "file", "path": "../x", "size": 1, "oid": "a"}], {}), "no usable listing"),
        ((200, b"[", {"Content-Length": "100"}), "no usable listing"),
    ],
    ids=["404", "401", "html", "empty", "path", "cut"],
)
def test_a_hub_that_cannot_be_used(fetch, hub, client, tmp_path, page, word):
    hub["pages"] = [page]
    result = fetch(token=TOKEN)
    assert result["failed"] and word in result["msg"] and hub["url"] in result["msg"] and TOKEN not in result["msg"]
    assert ran(tmp_path) == []


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "mirror.example", "http://[", "file:///nowhere"])
def test_a_hub_that_is_not_there(fetch, tmp_path, endpoint):
    result = fetch(endpoint=endpoint)
    assert result["failed"] and "owner/Model" in result["msg"] and ran(tmp_path) == []


def test_the_client_fails(fetch, hub, client, tmp_path):
    hub["pages"] = [(200, hugging_face(FILES), {})]
    (tmp_path / "status").touch()
    result = fetch()
    assert result["failed"] and "hf ended with exit status 3" in result["msg"] and "broken pipe" in result["msg"]


@pytest.mark.parametrize("revision", ["main", "a" * 39, "A" * 40, "a" * 40 + "\n"], ids=repr)
def test_a_revision_must_be_a_commit(fetch, hub, tmp_path, revision):
    hub["pages"] = [(200, {"sha": "b" * 40}, {})]
    result = fetch(revision=revision)
    assert result["failed"] and "40 hex" in result["msg"] and "b" * 40 in result["msg"]
    assert len(hub["asked"]) == 1 and ran(tmp_path) == [] and not (tmp_path / "staging").exists()


def test_a_hub_that_does_not_say_what_a_branch_stands_for(fetch, hub):
    hub["pages"] = [(404, b"", {})]
    result = fetch(revision="main")
    assert result["failed"] and "40 hex" in result["msg"] and "is not known" in result["msg"]


@pytest.mark.parametrize("source", LISTINGS)
def test_a_branch_is_resolved_and_recorded(fetch, hub, client, tmp_path, source):
    now = {"sha": REVISION} if source == "huggingface" else {"Data": {"LatestCommitter": {"Id": REVISION}}}
    hub["pages"] = [(200, now, {}), (200, LISTINGS[source](FILES), {})]
    serve(client, FILES)
    result = fetch(source, revision="main", resolve=True)
    assert result["revision"] == REVISION and REVISION in ran(tmp_path)[0]
    model = json.loads((tmp_path / "staging/tandem-manifest.json").read_text())["model"]
    assert (model["revision"], model["asked"]) == (REVISION, "main")


def test_a_busy_hub_is_asked_again(fetch, hub, client, monkeypatch):
    waits = []
    monkeypatch.setattr(_http, "pause", waits.append)
    hub["pages"] = [(429, b"", {"Retry-After": "7"}), (503, b"", {}), (200, hugging_face(FILES), {})]
    serve(client, FILES)
    assert fetch()["files"] == 2 and waits == [7.0, 2.0]


def test_a_hub_that_stays_busy(fetch, hub, client, monkeypatch):
    monkeypatch.setattr(_http, "pause", lambda _seconds: None)
    hub["pages"] = [(429, b"", {"Retry-After": "1"})]
    result = fetch()
    assert result["failed"] and "answered 429" in result["msg"] and "goes on where it stopped" in result["msg"]
    assert len(hub["asked"]) == _http.ATTEMPTS


def test_what_a_killed_client_had_begun_is_finished_and_not_begun_anew(fetch, hub, client, tmp_path):
    weights, name = FILES["sub/model.safetensors"], hashlib.sha256(FILES["sub/model.safetensors"]).hexdigest()
    place = tmp_path / "staging/.cache/huggingface/download/sub"
    place.mkdir(parents=True)
    for number, size in enumerate((100, 300, 200)):
        (place / f"aGFzaA==.{name}.0123456{number}.incomplete").write_bytes(weights[:size])
    (place / f"aGFzaA==.{'f' * 64}.01234567.incomplete").write_bytes(b"of another revision")
    rest = {"Content-Range": f"bytes 300-{len(weights) - 1}/{len(weights)}"}
    hub["pages"] = [(200, hugging_face(FILES), {}), (206, weights[300:], rest)]
    serve(client, {"config.json": FILES["config.json"]})
    result = fetch()
    assert result["files"] == 2 and result["fetched_again"] == []
    assert hub["asked"][1][0] == f"/owner/Model/resolve/{REVISION}/sub/model.safetensors"
    assert (tmp_path / "staging/sub/model.safetensors").read_bytes() == weights
    assert sorted(path.name for path in (tmp_path / "staging").iterdir()) == [
        "config.json",
        "sub",
        "tandem-manifest.json",
    ]


def test_proxies_reach_the_client(fetch, hub, client, tmp_path):
    hub["pages"] = [(200, hugging_face(FILES), {})]
    serve(client, FILES)
    result = fetch(https_proxy="http://user:word@proxy.example:3128", no_proxy="127.0.0.1")
    environment = (tmp_path / "environment").read_text().splitlines()
    assert "HTTPS_PROXY=http://user:word@proxy.example:3128" in environment and "no_proxy=127.0.0.1" in environment
    assert "user:word" not in json.dumps(result)


def test_too_little_space(fetch, hub, tmp_path):
    entries = model_scope(FILES)
    entries["Data"]["Files"][1]["Size"] = 1 << 60
    hub["pages"] = [(200, entries, {})]
    result = fetch("modelscope")
    assert result["failed"] and str((1 << 60) + 700) in result["msg"] and "tandem_root" in result["msg"]
    assert ran(tmp_path) == []


def test_check_mode_asks_nobody(fetch, hub, tmp_path):
    result = fetch(check_mode=True)
    assert result["changed"] is True and hub["asked"] == [] and not (tmp_path / "staging").exists()

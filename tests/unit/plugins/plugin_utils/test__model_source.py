# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import http.server
import json
import threading
from pathlib import Path

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _memory_plan, _model_shape, _model_source, _recipe
from ansible_collections.tandem.spark.plugins.plugin_utils._model_source import SourceError

ROOT = Path(__file__).parents[4]
REVISION = "a" * 40
CONFIG = {"architectures": ["LlamaForCausalLM"]}
INDEX = {"metadata": {"total_size": 1234}, "weight_map": {}}


class _Hub(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        hub = self.server
        hub.asked.append((self.path, self.headers.get("Authorization")))
        status, content = hub.answers.get(self.path, (404, b"{}"))
        self.send_response(status)
        if isinstance(content, tuple):
            self.send_header("Link", content[1])
            content = content[0]
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_words):
        """Quiet."""


@pytest.fixture
def hub(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        server.asked, server.answers = [], {}
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def hugging_face(hub, files, sizes=()):
    listing = [{"type": "file", "path": name, "size": 10, "oid": "0" * 40} for name in files]
    listing += [{"type": "file", "path": name, "size": size, "oid": "0" * 40} for name, size in sizes]
    hub.answers[f"/api/models/o/m/tree/{REVISION}?recursive=true&expand=false"] = (200, json.dumps(listing).encode())
    for name, content in files.items():
        hub.answers[f"/o/m/resolve/{REVISION}/{name}"] = (200, json.dumps(content).encode())


def test_only_configuration_and_index_are_fetched(hub):
    files = {"config.json": CONFIG, "model.safetensors.index.json": INDEX, "tokenizer.json": {}}
    hugging_face(hub, files, [("model-00001-of-00002.safetensors", 10**12)])
    found = _model_source.from_hub("huggingface", "o/m", REVISION, endpoint=f"{hub.url}/", token="secret")
    assert (found["config"], found["weights_bytes"], found["quantisation"]) == (CONFIG, 1234, None)
    assert found["source"] == f"{hub.url}, o/m at {REVISION}"
    paths = [path.split("/")[-1] for path, _key in hub.asked[1:]]
    assert paths == ["config.json", "model.safetensors.index.json"]
    assert {key for _path, key in hub.asked} == {"Bearer secret"}


def test_a_model_of_one_file_has_its_size(hub):
    hugging_face(hub, {"config.json": CONFIG}, [("model.safetensors", 99), ("original/x.safetensors", 7)])
    assert _model_source.from_hub("huggingface", "o/m", REVISION, endpoint=hub.url)["weights_bytes"] == 99
    assert hub.asked[0][1] is None


def test_a_login_in_netrc_is_not_sent(hub, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password mine\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    hugging_face(hub, {"config.json": CONFIG})
    _model_source.from_hub("huggingface", "o/m", REVISION, endpoint=hub.url)
    _model_source.from_hub("huggingface", "o/m", REVISION, endpoint=hub.url, token="secret")
    assert [key for _path, key in hub.asked] == [None, None, "Bearer secret", "Bearer secret"]


def test_modelscope_answers_in_its_own_way(hub):
    files = [{"Path": name, "Size": 5, "Type": "blob"} for name in ("config.json", "hf_quant_config.json")]
    files.append({"Path": "model.safetensors", "Size": 77, "Type": "blob"})
    base = "/api/v1/models/o/m/repo"
    listing = json.dumps({"Data": {"Files": files}}).encode()
    hub.answers[f"{base}/files?Revision={REVISION}&Recursive=True&PageNumber=1&PageSize=5000"] = (200, listing)
    hub.answers[f"{base}?Revision={REVISION}&FilePath=config.json"] = (200, json.dumps(CONFIG).encode())
    hub.answers[f"{base}?Revision={REVISION}&FilePath=hf_quant_config.json"] = (200, b'{"quantization": {}}')
    found = _model_source.from_hub("modelscope", "o/m", REVISION, endpoint=hub.url)
    assert found["config"] == CONFIG and found["weights_bytes"] == 77 and found["quantisation"] == {"quantization": {}}


def test_a_page_of_another_host_gets_no_token(hub):
    hugging_face(hub, {"config.json": CONFIG})
    first = f"/api/models/o/m/tree/{REVISION}?recursive=true&expand=false"
    status, listing = hub.answers[first]
    other = f"http://localhost:{hub.server_port}/second"
    hub.answers[first] = (status, (listing, f'<{other}>; rel="next"'))
    hub.answers["/second"] = (200, b'[{"type": "file", "path": "x", "size": 1, "oid": "0"}]')
    _model_source.from_hub("huggingface", "o/m", REVISION, endpoint=hub.url, token="secret")
    assert dict(hub.asked)["/second"] is None


@pytest.mark.parametrize(
    ("status", "content", "message"),
    [
        (401, b"", "answered 401, wanted 200: .*model_token"),
        (404, b"", "answered 404"),
        (200, b"<html>", "gave no JSON"),
        (200, b"[1]", "unknown shape"),
        (200, b"[]", "names no file"),
        (200, b'[{"type": "file", "path": "x", "size": 1, "oid": "0"}]', "found no config.json"),
        (200, b"[" * 200_000, "no (answer|JSON)"),
    ],
)
def test_answers_that_cannot_be_used(hub, status, content, message):
    hub.answers[f"/api/models/o/m/tree/{REVISION}?recursive=true&expand=false"] = (status, content)
    with pytest.raises(SourceError, match=message):
        _model_source.from_hub("huggingface", "o/m", REVISION, endpoint=hub.url)


def test_an_answer_without_end_is_cut(hub, monkeypatch):
    monkeypatch.setattr(_model_source, "LIMIT_BYTES", 1 << 20)
    hub.answers[f"/api/models/o/m/tree/{REVISION}?recursive=true&expand=false"] = (200, b" " * (3 << 20))
    with pytest.raises(SourceError, match="more than 1 MiB"):
        _model_source.from_hub("huggingface", "o/m", REVISION, endpoint=hub.url)


def test_a_hub_that_does_not_answer_is_named():
    with pytest.raises(SourceError, match="the hub at http://127.0.0.1:1 gave no answer: ConnectionError"):
        _model_source.from_hub("huggingface", "o/m", REVISION, endpoint="http://127.0.0.1:1")


def test_without_the_library_the_record_is_left(monkeypatch):
    monkeypatch.setattr(_model_source, "HAS_REQUESTS", False)
    with pytest.raises(SourceError, match="requests: found none on the controller"):
        _model_source.from_hub("huggingface", "o/m", REVISION)


# --- directories


def test_a_directory(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(b"123")
    found = _model_source.from_directory(str(tmp_path))
    assert found == {"config": CONFIG, "quantisation": None, "weights_bytes": 3, "source": str(tmp_path)}
    (tmp_path / "consolidated.safetensors.index.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(INDEX))
    assert _model_source.from_directory(str(tmp_path))["weights_bytes"] == 1234


@pytest.mark.parametrize(("content", "message"), [(None, "found no config.json"), ("{", "cannot be read as JSON")])
def test_a_directory_without_a_configuration(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(SourceError, match=message):
        _model_source.from_directory(str(tmp_path))
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        _model_source.from_directory(str(tmp_path / "absent"))


# --- what is on record


def records(tmp_path, **entries):
    (tmp_path / "shapes").mkdir(exist_ok=True)
    for name, entry in entries.items():
        (tmp_path / f"shapes/{name}.json").write_text(json.dumps(entry) if not isinstance(entry, str) else entry)
    return [str(tmp_path)]


def test_the_first_directory_wins_and_twins_share_the_base(tmp_path):
    a = {"model": "o/a", "base": "m", "config": CONFIG, "source": "here", "weights_bytes": 4}
    b = {**a, "model": "o/b", "weights_bytes": 2}
    c = {**a, "model": "o/c", "base": "n"}
    unsized = {**a, "model": "o/d", "weights_bytes": None}
    found = _model_source.recorded("o/a", records(tmp_path, a=a, b=b, c=c, d=unsized))
    assert found["weights_bytes"] == 4 and found["twins"] == [b]
    (tmp_path / "own").mkdir()
    own = records(tmp_path / "own", a={**a, "weights_bytes": 5})
    assert _model_source.recorded("o/a", [*own, str(tmp_path)])["weights_bytes"] == 5
    assert _model_source.recorded("o/x", [str(tmp_path), str(tmp_path / "absent")]) is None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{", "cannot be read as JSON"),
        ([], "found list, wanted a mapping"),
        ({"model": "o/a", "source": "x"}, "config missing"),
        ({"model": "o/a", "source": "x", "config": {}, "weights_bytes": "9"}, "weights_bytes missing or"),
    ],
)
def test_a_record_that_is_broken_is_named(tmp_path, entry, message):
    with pytest.raises(SourceError, match=rf"broken\.json: .*{message}"):
        _model_source.recorded("o/a", records(tmp_path, broken=entry))


@pytest.mark.parametrize("path", sorted((ROOT / "recipes/shapes").glob("*.json")), ids=lambda path: path.stem)
def test_every_record_of_the_collection_can_be_calculated(path):
    entry = json.loads(path.read_text(encoding="utf-8"))
    assert entry["model"].split("/")[-1] == path.stem and entry["source"] and entry["weights_source"]
    assert _model_shape.read(entry["config"]).layers and entry["weights_bytes"] > 0


def test_every_recipe_of_the_collection_is_on_record():
    for path in (ROOT / "recipes").glob("*.yml"):
        recipe = _recipe.load(path.stem, [])
        model = _model_source.recorded(recipe["model"]["id"], [_recipe.COLLECTION_RECIPES])
        assert model, path.name
        nodes = {str(number): 130595926016 for number in range(recipe["nodes"])}
        assert _memory_plan.fit(model, recipe, nodes)["fits"] is not False

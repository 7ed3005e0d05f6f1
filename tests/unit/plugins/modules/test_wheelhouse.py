# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from ansible_collections.tandem.spark.plugins.modules import wheelhouse

WHEELS = {"a-1-py3-none-any.whl": b"a1", "b-2-py3-none-any.whl": b"b2"}


def sha(content):
    return hashlib.sha256(content).hexdigest()


LOCK = (
    "# a lock\n"
    f"a==1 \\\n    --hash=sha256:{'0' * 64} \\\n    --hash=sha256:{sha(b'a1')}\n"
    f"b==2 --hash=sha256:{sha(b'b2')}  # via a\n"
)


@pytest.fixture
def pip(commands, monkeypatch, tmp_path):
    program = tmp_path / "bin/python3.12"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    state = {"wheels": dict(WHEELS), "environment": None, "answer": (0, "", "")}

    def run(words, options):
        if "venv" in words:
            (Path(words[-1]) / "bin").mkdir(parents=True)
            (Path(words[-1]) / "bin/python").write_text("")
        elif "download" in words:
            state["environment"] = options["environ_update"]
            assert Path(words[-1]).read_text() == state.get("lock", LOCK)
            for name, content in state["wheels"].items():
                (Path(words[words.index("--dest") + 1]) / name).write_bytes(content)
            return state["answer"]
        return 0, "", ""

    commands[str(tmp_path)] = run
    return state


@pytest.fixture
def arguments(tmp_path):
    return {"path": str(tmp_path / "root/wheels"), "lock": LOCK, "python": "3.12"}


def downloads(commands):
    return [words for words in commands["ran"] if "download" in words]


def test_fetch_and_a_second_run_that_asks_nobody(run_module, pip, arguments, commands):
    assert run_module(wheelhouse, arguments, check_mode=True)["changed"] is True
    assert not os.path.exists(arguments["path"])
    first = run_module(wheelhouse, arguments)
    assert first["changed"] is True and first["files"] == 2 and first["bytes"] == 4 and first["removed"] == []
    assert len(downloads(commands)) == 1
    assert {"--require-hashes", "--only-binary=:all:", "--no-deps"} <= set(downloads(commands)[0])
    second = run_module(wheelhouse, arguments)
    assert second["changed"] is False and len(downloads(commands)) == 1
    assert run_module(wheelhouse, arguments, check_mode=True)["changed"] is False


def test_c26_a_file_that_the_lock_does_not_name_goes(run_module, pip, arguments, commands):
    run_module(wheelhouse, arguments)
    path = Path(arguments["path"])
    (path / "a-1-py3-none-any.whl").write_bytes(b"<html>")
    (path / "readme").write_bytes(b"")
    dry = run_module(wheelhouse, arguments, check_mode=True)
    assert dry["changed"] is True and (path / "readme").exists()
    result = run_module(wheelhouse, arguments)
    assert result["changed"] is True and result["removed"] == ["a-1-py3-none-any.whl", "readme"] == dry["removed"]
    assert (path / "a-1-py3-none-any.whl").read_bytes() == b"a1" and len(downloads(commands)) == 2


def test_a_check_without_fetching(run_module, pip, arguments, commands):
    path = Path(arguments["path"])
    path.mkdir(parents=True)
    (path / "a-1-py3-none-any.whl").write_bytes(b"a1")
    (path / "b-2-py3-none-any.whl").write_bytes(b"b")
    arguments["fetch"] = False
    result = run_module(wheelhouse, arguments)
    assert result["failed"] and "b==2" in result["msg"] and "a==1" not in result["msg"]
    assert run_module(wheelhouse, arguments, check_mode=True)["changed"] is True
    (path / "b-2-py3-none-any.whl").write_bytes(b"b2")
    assert run_module(wheelhouse, arguments)["changed"] is False
    assert downloads(commands) == []


def test_nothing_was_copied(run_module, pip, arguments):
    arguments["fetch"] = False
    assert "a==1, b==2" in run_module(wheelhouse, arguments)["msg"]
    assert run_module(wheelhouse, arguments, check_mode=True)["changed"] is False


@pytest.mark.parametrize("lock", ["", "a==1\n", "a==1 --hash=md5:00\n", f"a==1\nb==2 --hash=sha256:{'0' * 64}\n"])
def test_a_lock_without_digests(run_module, pip, arguments, lock):
    result = run_module(wheelhouse, {**arguments, "lock": lock})
    assert result["failed"] and "--hash" in result["msg"]


def test_a_distribution_with_a_marker_need_not_be_there(run_module, pip, arguments, commands):
    lock = pip["lock"] = LOCK + f'c==3 ; sys_platform == "win32" --hash=sha256:{"1" * 64}\n'
    arguments["lock"] = lock
    assert run_module(wheelhouse, arguments)["files"] == 2
    assert run_module(wheelhouse, arguments)["changed"] is False and len(downloads(commands)) == 2
    assert run_module(wheelhouse, {**arguments, "fetch": False})["changed"] is False


def test_c51_the_indexs_address_is_not_in_the_command_line(run_module, pip, arguments, commands):
    result = run_module(wheelhouse, {**arguments, "index_url": "https://me:secret@index/simple"})
    assert "secret" not in json.dumps(commands["ran"]) + json.dumps({**result, "invocation": None})
    assert pip["environment"] == {"PIP_INDEX_URL": "https://me:secret@index/simple"}


def test_places_with_wheels(run_module, pip, arguments, commands):
    places = ["http://10.0.0.1:8080/wheels/", "/mnt/wheels", "https://wheels.example/"]
    run_module(wheelhouse, {**arguments, "find_links": places, "no_index": True, "index_url": "https://index"})
    words = downloads(commands)[0]
    assert "--no-index" in words and pip["environment"] == {}
    assert [words[i + 1] for i, word in enumerate(words) if word == "--trusted-host"] == ["10.0.0.1:8080"]
    assert {*places, arguments["path"]} == {words[i + 1] for i, w in enumerate(words) if w == "--find-links"}


def test_pip_fails(run_module, pip, arguments):
    pip["answer"] = (1, "", "WARNING: noise\nERROR: No matching distribution found for a==1")
    result = run_module(wheelhouse, arguments)
    assert result["failed"] and "No matching distribution" in result["msg"] and "noise" not in result["msg"]
    assert "tandem_find_links" in result["msg"]
    assert [name for name in os.listdir(Path(arguments["path"]).parent) if name.endswith(".lock")] == []


def test_no_interpreter(run_module, commands, arguments):
    assert "python3.99" in run_module(wheelhouse, {**arguments, "python": "3.99"})["msg"]


def test_the_locks_of_the_repository_are_understood():
    root = Path(__file__).parents[4]
    locks = [*root.glob("recipes/locks/*.lock"), root / "roles/model/files/hub-clients.lock"]
    for path in locks:
        found = wheelhouse.distributions(path.read_text(encoding="utf-8"))
        assert len(found) > 10 and all(found.values()) and all("==" in name for name in found), path

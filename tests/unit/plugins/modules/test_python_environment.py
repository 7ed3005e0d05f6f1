# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from ansible_collections.tandem.spark.plugins.modules import python_environment

LOCK = "x==1 --hash=sha256:" + "a" * 64 + "\n"


def record(site, content=b"1", recorded=None):
    info = site / "x-1.dist-info"
    info.mkdir(parents=True)
    (site / "x.py").write_bytes(content)
    digest = base64.urlsafe_b64encode(hashlib.sha256(recorded or content).digest()).rstrip(b"=").decode()
    (info / "RECORD").write_text(f"x.py,sha256={digest},{len(content)}\nx-1.dist-info/RECORD,,\n")


@pytest.fixture
def wheels(tmp_path):
    directory = tmp_path / "wheels"
    directory.mkdir()
    with zipfile.ZipFile(directory / "uv-0.13.9-py3-none-linux.whl", "w") as wheel:
        wheel.writestr("uv-0.13.9.data/scripts/uv", "#!/bin/sh\n")
    return directory


@pytest.fixture
def uv(commands, monkeypatch, tmp_path):
    """A uv that installs one distribution, and an interpreter that says its version."""
    state = {"content": b"1", "recorded": None, "version": "CPython 3.12.3 aarch64"}
    program = tmp_path / "bin/python3.12"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    def run(words, _options):
        if words[1] == "venv":
            (Path(words[-1]) / "bin").mkdir(parents=True)
            (Path(words[-1]) / "bin/python").write_text("#!/bin/sh\n")
            return 0, "", ""
        if words[1:3] == ["pip", "install"]:
            venv = Path(words[words.index("--python") + 1]).parents[1]
            record(venv / "lib/python3.12/site-packages", state["content"], state["recorded"])
            return state.get("pip", (0, "", ""))
        if not os.path.exists(words[0]):
            raise FileNotFoundError(2, "No such file or directory")
        return 0, state["version"] + "\n", ""

    commands[str(tmp_path)] = run
    return state


@pytest.fixture
def arguments(tmp_path, wheels):
    return {"path": str(tmp_path / "engines/sglang"), "lock": LOCK, "wheels": str(wheels), "python": "3.12"}


def test_install_look_again_and_query(run_module, uv, arguments, commands):
    dry = run_module(python_environment, arguments, check_mode=True)
    assert dry["changed"] is True and dry["present"] is False and not os.path.exists(arguments["path"])
    first = run_module(python_environment, arguments)
    assert first["changed"] is True and first["present"] is True and first["checked"] == "content"
    assert first["distributions"] == 1 and first["diff"]["after"] == first["digest"] + "\n"
    assert sorted(os.listdir(arguments["path"])) == ["requirements.lock", "tandem-environment.json", "venv"]
    assert os.listdir(os.path.dirname(arguments["path"])) == ["sglang"]
    words = next(words for words in commands["ran"] if "install" in words)
    assert {"--no-index", "--require-hashes", "--no-deps"} <= set(words)
    for state in ("present", "query"):
        again = run_module(python_environment, {**arguments, "state": state})
        assert (again["changed"], again["present"], again["digest"]) == (False, True, first["digest"])


def test_two_nodes_with_the_same_bytes_have_the_same_digest(run_module, uv, arguments, tmp_path):
    digests = [
        run_module(python_environment, {**arguments, "path": str(tmp_path / node / "e")})["digest"]
        for node in ("a", "b")
    ]
    assert digests[0] == digests[1]
    uv["content"] = b"2"
    assert run_module(python_environment, {**arguments, "path": str(tmp_path / "c/e")})["digest"] != digests[0]


def reason_after(run_module, uv, arguments, change):
    run_module(python_environment, arguments)
    change(Path(arguments["path"]))
    result = run_module(python_environment, {**arguments, "state": "query"})
    assert result["changed"] is False and result["present"] is False and result["digest"] is None
    return result["reason"]


SITE = "venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda path: (path / SITE / "x.py").unlink(), "x.py"),
        (lambda path: (path / SITE / "x.py").write_bytes(b"22"), "x.py"),
        (lambda path: (path / SITE / "x-1.dist-info/RECORD").write_text("x.py,sha256=A,1\n"), "RECORD"),
        (lambda path: (path / SITE / "x-1.dist-info/RECORD").write_bytes(b"\xff"), "RECORD"),
        (lambda path: (path / "tandem-environment.json").unlink(), "no environment"),
        (lambda path: (path / "tandem-environment.json").write_text("{"), "cannot be read"),
        (lambda path: (path / "tandem-environment.json").write_text("[1]"), "cannot be read"),
        (lambda path: (path / SITE).rename(path / "moved"), "site-packages"),
        (lambda path: (path / "venv/bin/python").unlink(), "No such file"),
    ],
    ids=[
        "absent",
        "size",
        "record",
        "record bytes",
        "no statement",
        "half statement",
        "list",
        "no site",
        "interpreter",
    ],
)
def test_environments_that_are_not_whole(run_module, uv, arguments, change, word):
    assert word in reason_after(run_module, uv, arguments, change)


def test_another_interpreter_after_an_upgrade(run_module, uv, arguments):
    run_module(python_environment, arguments)
    uv["version"] = "CPython 3.12.9 aarch64"
    reason = run_module(python_environment, {**arguments, "state": "query"})["reason"]
    assert "3.12.9" in reason and "3.12.3" in reason


def test_another_lock(run_module, uv, arguments):
    run_module(python_environment, arguments)
    result = run_module(python_environment, {**arguments, "lock": LOCK + "#\n", "state": "query"})
    assert "another lock" in result["reason"]


def test_c23_an_installed_file_that_differs_from_its_record(run_module, uv, arguments):
    uv["recorded"] = b"2"
    result = run_module(python_environment, arguments)
    assert result["failed"] and "x.py" in result["msg"] and not os.path.exists(arguments["path"])


def test_a_failed_installation_leaves_the_old_environment(run_module, uv, arguments):
    run_module(python_environment, arguments)
    uv["pip"] = (1, "", "no matching distribution")
    result = run_module(python_environment, {**arguments, "lock": LOCK + "#\n"})
    assert result["failed"] and "no matching distribution" in result["msg"]
    assert run_module(python_environment, {**arguments, "state": "query"})["present"] is True


def test_no_uv_or_a_broken_one_or_no_python(run_module, uv, arguments, wheels):
    wheel = next(wheels.iterdir())
    wheel.write_bytes(b"PK\3\4 half")
    assert "zip" in run_module(python_environment, arguments)["msg"]
    wheel.unlink()
    assert "uv" in run_module(python_environment, arguments)["msg"]
    result = run_module(python_environment, {**arguments, "python": "3.99"})
    assert result["failed"] and "python3.99" in result["msg"]


def test_another_run_at_work_is_not_disturbed(run_module, uv, arguments, monkeypatch):
    monkeypatch.setattr(python_environment, "BUSY_S", 0)
    os.makedirs(os.path.dirname(arguments["path"]), exist_ok=True)
    with python_environment.alone(os.path.dirname(arguments["path"]), 0):
        result = run_module(python_environment, arguments)
        assert result["failed"] and "another run at work" in result["msg"] and not os.path.exists(arguments["path"])
    assert run_module(python_environment, arguments)["changed"] is True


def test_a_query_needs_no_wheels_but_an_installation_does(run_module, uv, arguments):
    del arguments["wheels"]
    assert run_module(python_environment, {**arguments, "state": "query"})["present"] is False
    assert "wheels" in run_module(python_environment, arguments)["msg"]


def test_the_question_to_the_interpreter_is_valid_python():
    import sys

    class Module:
        def run_command(self, arguments, **_options):
            done = subprocess.run(arguments, capture_output=True, text=True, check=False)
            return done.returncode, done.stdout, done.stderr

    assert python_environment.interpreter_version(Module(), sys.executable).split()[0] == "CPython"


def test_c23_a_byte_that_was_changed_afterwards(run_module, uv, arguments):
    """Same size, same time of modification: as a tool leaves it that patches a file in place."""
    run_module(python_environment, arguments)
    path = Path(arguments["path"]) / "venv/lib/python3.12/site-packages/x.py"
    before = path.stat()
    path.write_bytes(b"2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = run_module(python_environment, {**arguments, "state": "query"})
    assert found["present"] is False and "x.py" in found["reason"]


def test_c23_a_file_that_was_only_touched_is_whole(run_module, uv, arguments):
    run_module(python_environment, arguments)
    path = Path(arguments["path"]) / "venv/lib/python3.12/site-packages/x.py"
    path.chmod(0o600)
    assert run_module(python_environment, {**arguments, "state": "query"})["present"] is True

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LAUNCHER = ROOT / "roles/serve/files/tandem-rank"
KEY = "a-key-of-sixteen-or-more"

ENGINE = """
import json, os, signal, sys, time
if "--config" in sys.argv:
    path = sys.argv[sys.argv.index("--config") + 1]
    key = json.loads(open(path).read().split(": ", 1)[1])
    print("started with key", key, oct(os.stat(path).st_mode & 0o777), flush=True)
print("argv", json.dumps(sys.argv[1:]), flush=True)
print("environment", json.dumps({name: os.environ.get(name) for name in ("A", "PYTHONUNBUFFERED", "PATH")}), flush=True)
"""


@pytest.fixture
def launch(tmp_path):
    """Start the launcher as its unit would, with an engine made of Python text. Returns the running process."""
    for name in ("release", "credentials", "run"):
        (tmp_path / name).mkdir()
    (tmp_path / "credentials/api-key").write_text(KEY + "\n")
    running = []

    def start(engine=ENGINE, wrapper=None, **changes):
        (tmp_path / "engine.py").write_text(engine)
        spec = {
            "deployment": "d" * 64,
            "rank": 0,
            "wait_for_address": None,
            "argv": [sys.executable, str(tmp_path / "engine.py"), "--port", "1"],
            "environment": {"A": "own"},
            "key": {"config_flag": "--config", "config_key": "api-key"},
        }
        spec.update(changes)
        (tmp_path / "release/rank.json").write_text(json.dumps(spec))
        environment = {
            "PATH": os.environ["PATH"],
            "CREDENTIALS_DIRECTORY": str(tmp_path / "credentials"),
            "RUNTIME_DIRECTORY": str(tmp_path / "run"),
        }
        command = [*(wrapper or [sys.executable]), str(LAUNCHER), str(tmp_path / "release")]
        running.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path)
        )
        return running[-1]

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.stdout.close()
        process.wait()


def finish(process, timeout=15):
    out, _err = process.communicate(timeout=timeout)
    return process.returncode, out.decode()


def read_until(process, text):
    seen = b""
    while text.encode() not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    return seen.decode()


def test_c51_the_key_reaches_the_engine_but_no_command_line_and_no_output(launch, tmp_path):
    status, out = finish(launch())
    assert status == 0 and "started with key *** 0o600" in out and KEY not in out
    argv = json.loads(out.split("argv ", 1)[1].splitlines()[0])
    assert argv == ["--port", "1", "--config", str(tmp_path / "run/engine.yaml")]
    assert "rank 0 ended with status 0" in out


def test_the_engines_environment(launch):
    out = finish(launch())[1]
    environment = json.loads(out.split("environment ", 1)[1].splitlines()[0])
    assert environment == {"A": "own", "PYTHONUNBUFFERED": "1", "PATH": os.environ["PATH"]}


def test_a_recipe_may_set_what_the_launcher_sets(launch):
    status, out = finish(launch(environment={"PYTHONUNBUFFERED": "0"}))
    assert status == 0 and '"PYTHONUNBUFFERED": "0"' in out


def test_what_runs_is_noted_for_the_next_run(launch, tmp_path):
    finish(launch())
    raw = (tmp_path / "release/rank.json").read_bytes()
    state = json.loads((tmp_path / "run/rank.json").read_text())
    assert state == {"rank_sha256": hashlib.sha256(raw).hexdigest(), "deployment": "d" * 64, "rank": 0}


@pytest.mark.parametrize("text", [KEY, KEY + "\n", KEY + "\r\n"], ids=repr)
def test_c52_line_ends_of_the_credential(launch, tmp_path, text):
    (tmp_path / "credentials/api-key").write_bytes(text.encode())
    engine = "import sys; print(open(sys.argv[-1]).read().replace('-', '_'), end='')"
    assert f'api_key: "{KEY.replace("-", "_")}"\n' in finish(launch(engine))[1]


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"], ids=repr)
def test_a_credential_that_cannot_be_used(launch, tmp_path, content):
    path = tmp_path / "credentials/api-key"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    status, out = finish(launch())
    assert status == 78 and "credential api-key" in out and "Traceback" not in out
    assert not (tmp_path / "run/rank.json").exists()


def test_a_worker_needs_no_key(launch, tmp_path):
    (tmp_path / "credentials/api-key").unlink()
    status, out = finish(launch(key=None, rank=1))
    assert status == 0 and "--config" not in out and "rank 1 ended" in out


@pytest.mark.parametrize("before", [0, 1, 65530, (1 << 16) - len(KEY), (1 << 16) - 1, 1 << 16, (1 << 17) - 5])
def test_c51_a_key_in_a_line_that_is_too_long_for_one_piece(launch, before):
    engine = f"import sys; k = open(sys.argv[-1]).read().split('\"')[1]; print('x' * {before} + k + 'y' * 70000 + k)"
    status, out = finish(launch(engine))
    assert status == 0 and KEY not in out
    assert out.startswith("x" * before + "***" + "y" * 70000 + "***\n")
    assert not any(KEY[:n] in out or KEY[-n:] in out for n in (8, 12, 20))


def test_output_without_a_line_end(launch):
    engine = "import sys; k = open(sys.argv[-1]).read().split('\"')[1]; sys.stdout.write('half ' + k)"
    out = finish(launch(engine))[1]
    assert out.startswith("half ***tandem-rank:")


def test_bytes_that_are_no_text_pass(launch):
    process = launch("import sys; sys.stdout.buffer.write(bytes(range(256)))", key=None)
    assert bytes(range(256)) in process.communicate(timeout=15)[0]


@pytest.mark.parametrize(
    ("end", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("os.abort()", 134), ("sys.exit(0)", 0)]
)
def test_it_ends_as_the_engine_ends(launch, end, status):
    found, out = finish(launch(f"import os, sys; {end}", key=None))
    assert found == status and "ended with status" in out and "as it was asked" not in out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("polite", [True, False], ids=["polite", "kills itself"])
def test_sigterm_is_passed_on_and_an_ordered_stop_is_no_failure(launch, number, polite):
    handler = "print('bye', flush=True), sys.exit(0)" if polite else "os.kill(os.getpid(), 9)"
    process = launch(
        "import os, signal, sys, time\n"
        f"for n in (2, 15): signal.signal(n, lambda *_: ({handler}))\n"
        "print('up', flush=True)\ntime.sleep(60)\n",
        key=None,
    )
    read_until(process, "up")
    process.send_signal(number)
    status, out = finish(process)
    assert status == 0 and "as it was asked to" in out and ("bye" in out) is polite


def test_a_child_that_keeps_the_pipe_does_not_keep_the_launcher(launch, tmp_path):
    process = launch(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(30)'])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\nprint('last words', flush=True)\nsys.exit(5)\n",
        key=None,
    )
    began = time.monotonic()
    # Not to the end of the pipe, which the child holds too.
    assert process.wait(15) == 5
    assert time.monotonic() - began < 10
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    out = process.stdout.read().decode()
    assert "last words" in out and "ended with status 5" in out and "Fatal" not in out


def test_c47_an_address_that_is_there(launch):
    assert finish(launch(wait_for_address="127.0.0.1", key=None))[0] == 0


SHORT = "import runpy, sys; s = open(sys.argv[1]).read().replace('ADDRESS_WAIT_S = 120', 'ADDRESS_WAIT_S = 0.2'); del sys.argv[0]; exec(compile(s, sys.argv[0], 'exec'))"  # noqa: E501


def test_c47_an_address_that_never_comes(launch, tmp_path):
    status, out = finish(launch(wait_for_address="192.0.2.77", wrapper=[sys.executable, "-c", SHORT]))
    assert status == 78 and "no address 192.0.2.77" in out and "fabric stage" in out
    assert not (tmp_path / "run/rank.json").exists()


def test_c47_an_address_that_comes_later(launch, tmp_path):
    if os.geteuid() != 0 or subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode:
        pytest.skip("not checked: needs root and a network namespace")
    wrapper = [
        "unshare",
        "--net",
        "sh",
        "-c",
        '(sleep 0.7; ip addr add 192.0.2.1/24 dev lo; ip link set lo up) & exec "$@"',
        "sh",
        sys.executable,
    ]
    began = time.monotonic()
    status, out = finish(launch(wait_for_address="192.0.2.1", key=None, wrapper=wrapper))
    assert status == 0, out
    assert time.monotonic() - began > 0.6


# --- what other engines than SGLang need

SLEEPS = "import signal, sys, time; print('helper up', flush=True); time.sleep(60)"


def test_c51_the_key_as_a_variable_of_the_engine_only(launch, tmp_path):
    seen = tmp_path / "seen"
    helper = f"import os, time; open({str(seen)!r}, 'w').write(str('K' in os.environ)); time.sleep(60)"
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        status, out = finish(
            launch(
                f"import os, sys, time\nwhile not os.path.exists({str(seen)!r}): time.sleep(0.05)\n"
                "print('key', os.environ['K'], sys.argv[1:])",
                key={"variable": "K"},
                beside=[[sys.executable, "-c", helper]],
                wait_for=[place],
                wait_s=5,
            )
        )
    assert status == 0 and "key *** ['--port', '1']" in out and KEY not in out
    assert seen.read_text() == "False"


def test_c51_the_key_as_a_file(launch, tmp_path):
    engine = "import os, sys; p = sys.argv[-1]; print(sys.argv[-2], oct(os.stat(p).st_mode & 0o777), open(p).read())"
    status, out = finish(launch(engine, key={"file_flag": "--api-key-file"}))
    assert status == 0 and "--api-key-file 0o600 ***" in out and KEY not in out


def test_files_of_the_engine(launch, tmp_path):
    engine = f"print(open({str(tmp_path / 'run/vllm/names.json')!r}).read())"
    status, out = finish(launch(engine, key=None, files={"vllm/names.json": ["A", "B"]}))
    assert status == 0 and '["A", "B"]' in out


def test_it_waits_until_the_other_ranks_listen(launch):
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{reserved.getsockname()[1]}"
        process = launch("print('engine up', flush=True)", key=None, wait_for=[place], wait_s=30)
        seen = read_until(process, f"waiting until {place} listens")
        assert "engine up" not in seen
        reserved.listen()
        status, out = finish(process)
    assert status == 0 and "engine up" in out


def test_a_rank_that_never_listens(launch, tmp_path):
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{reserved.getsockname()[1]}"
        status, out = finish(launch(key=None, wait_for=[place], wait_s=0.2))
    assert status == 78 and f"nothing listens on {place} after 0.2 s" in out and "argv" not in out


def test_a_helper_ends_with_the_engine(launch, tmp_path):
    status, out = finish(launch("print('engine up')", key=None, beside=[[sys.executable, "-c", SLEEPS]]))
    assert status == 0 and "engine up" in out and "ended with status 0" in out


def test_a_helper_that_ends_takes_the_engine_along(launch):
    helper = [sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit(3)"]
    status, out = finish(launch("import time; time.sleep(60)", key=None, beside=[helper]))
    assert status not in (0, 78) and f"{sys.executable} ended with status 3, so the rank ends too" in out


def test_a_helper_that_ends_before_the_engine_starts(launch):
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{reserved.getsockname()[1]}"
        status, out = finish(launch(key=None, beside=[["/bin/false"]], wait_for=[place], wait_s=30))
    assert status == 78 and "/bin/false ended with status 1 before the engine was started" in out


def test_c48_a_program_with_two_names(launch, tmp_path):
    old = tmp_path / "rpc-server"
    old.write_text("#!/bin/sh\necho old name $1\n")
    old.chmod(0o755)
    absent = str(tmp_path / "ggml-rpc-server")
    status, out = finish(launch(argv=[absent, "word"], also=[str(old)], key=None))
    assert status == 0 and "old name word" in out
    old.unlink()
    status, out = finish(launch(argv=[absent, "word"], also=[str(old)], key=None))
    assert status == 78 and absent in out and str(old) in out and "engine stage" in out


@pytest.mark.parametrize("text", [None, "", "{", "\xff"], ids=repr)
def test_a_release_that_cannot_be_read(launch, tmp_path, text):
    process = launch()
    finish(process)
    path = tmp_path / "release/rank.json"
    path.unlink()
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    done = subprocess.run([sys.executable, LAUNCHER, path.parent], capture_output=True, text=True, check=False)
    assert done.returncode == 78 and str(path) in done.stdout and "Traceback" not in done.stderr


def test_an_engine_that_is_not_there(launch):
    status, out = finish(launch(argv=["/nonexistent/python"], key=None))
    assert status == 78 and "/nonexistent/python" in out and "Traceback" not in out


def test_usage():
    done = subprocess.run([sys.executable, LAUNCHER], capture_output=True, text=True, check=False)
    assert done.returncode == 78 and "usage: tandem-rank DIRECTORY" in done.stdout


def test_it_compiles_for_the_oldest_python_of_a_node():
    compile(LAUNCHER.read_text(encoding="utf-8"), "tandem-rank", "exec", dont_inherit=True)
    assert LAUNCHER.read_text(encoding="utf-8").startswith("#!/usr/bin/env python3\n")

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _share
from ansible_collections.tandem.spark.plugins.modules import fabric_pull

RSYNC = shutil.which("rsync")
needs_rsync = pytest.mark.skipif(
    not RSYNC or os.geteuid() != 0, reason="not checked: needs rsync, and root for a daemon that changes its root"
)
SECRET = "a-secret-of-one-transfer"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def serve(tmp_path):
    """Start the daemon as the unit would, for peers given; return (source directory, port)."""
    daemons = []

    def start(*peers):
        source, port = tmp_path / "source", free_port()
        source.mkdir(exist_ok=True)
        secrets, config = tmp_path / "secrets", tmp_path / "rsyncd.conf"
        secrets.write_text(f"{_share.USER}:{SECRET}\n")
        secrets.chmod(0o600)
        config.write_text(_share.config(str(source), list(peers), str(secrets), str(tmp_path / "lock")))
        command = [RSYNC, "--daemon", "--no-detach", f"--config={config}", "--address=127.0.0.1", f"--port={port}"]
        log = open(tmp_path / "log", "w")  # noqa: SIM115
        daemons.append(
            subprocess.Popen([*command, f"--log-file={tmp_path}/daemon.log"], stdin=subprocess.DEVNULL, stderr=log)
        )
        deadline = time.monotonic() + 10
        while not listening(port):
            assert time.monotonic() < deadline and daemons[-1].poll() is None
            time.sleep(0.02)
        return source, port

    yield start
    for daemon in daemons:
        daemon.terminate()
        daemon.wait(10)


def pull(port, destination, secret=SECRET, options=()):
    command = _share.pull_command(RSYNC, "127.0.0.1", port, str(destination))
    environment = {**os.environ, "RSYNC_PASSWORD": secret, "LC_ALL": "C"}
    return subprocess.run(
        [command[0], *options, *command[1:]], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def fill(source):
    (source / "sub").mkdir()
    (source / "model-00001.safetensors").write_bytes(os.urandom(3 << 20))
    (source / "sub/config.json").write_text("{}")
    (source / "empty").touch()


def tree(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


@needs_rsync
def test_a_copy_and_a_second_one(serve, tmp_path):
    source, port = serve("127.0.0.1")
    fill(source)
    (source / ".cache").mkdir()
    (source / ".cache/client").write_text("not for others")
    target = tmp_path / "target"
    target.mkdir()
    (target / "old").write_text("goes away")
    first = pull(port, target)
    assert first.returncode == 0, first.stderr
    assert tree(target) == {name: content for name, content in tree(source).items() if ".cache" not in name}
    assert _share.transferred_bytes(first.stdout) == (3 << 20) + 2
    assert _share.changes(first.stdout) == 4  # three files, one of them empty, and the old one
    second = pull(port, target)
    assert second.returncode == 0
    assert _share.transferred_bytes(second.stdout) == 0 == _share.changes(second.stdout)


@needs_rsync
def test_c22_links_arrive_as_files(serve, tmp_path):
    source, port = serve("127.0.0.1")
    (source / "blob").write_bytes(os.urandom(1000))
    (source / "model.safetensors").symlink_to("blob")
    target = tmp_path / "target"
    target.mkdir()
    assert pull(port, target).returncode == 0
    assert not (target / "model.safetensors").is_symlink()
    assert tree(target)["model.safetensors"] == (source / "blob").read_bytes()


@needs_rsync
def test_c23_a_flipped_byte_of_the_same_size_and_time_is_repaired(serve, tmp_path):
    source, port = serve("127.0.0.1")
    fill(source)
    target = tmp_path / "target"
    target.mkdir()
    pull(port, target)
    shard = target / "model-00001.safetensors"
    times = shard.stat()
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    repaired = pull(port, target)
    assert repaired.returncode == 0 and tree(target) == tree(source)
    assert _share.changes(repaired.stdout) == 1 and _share.transferred_bytes(repaired.stdout) == 3 << 20
    assert _share.changes(pull(port, target).stdout) == 0


@needs_rsync
@pytest.mark.parametrize(("secret", "peer"), [("wrong", "127.0.0.1"), (SECRET, "192.0.2.1")], ids=["secret", "peer"])
def test_a_wrong_secret_or_a_foreign_peer(serve, tmp_path, secret, peer):
    source, port = serve(peer)
    fill(source)
    target = tmp_path / "target"
    target.mkdir()
    refused = pull(port, target, secret)
    assert refused.returncode == 5 and tree(target) == {}
    assert fabric_pull.REMEDIES[5].startswith("the other node refused")
    assert SECRET not in refused.stderr + refused.stdout


@needs_rsync
def test_the_share_is_read_only(serve, tmp_path):
    source, port = serve("127.0.0.1")
    (tmp_path / "mine").write_text("x")
    environment = {**os.environ, "RSYNC_PASSWORD": SECRET}
    command = [RSYNC, str(tmp_path / "mine"), f"rsync://{_share.USER}@127.0.0.1:{port}/{_share.MODULE}/"]
    assert subprocess.run(command, env=environment, capture_output=True, check=False).returncode != 0
    assert tree(source) == {}


@needs_rsync
def test_an_interrupted_copy_goes_on_where_it_stopped(serve, tmp_path):
    source, port = serve("127.0.0.1")
    (source / "model.safetensors").write_bytes(os.urandom(12 << 20))
    target = tmp_path / "target"
    target.mkdir()
    command = _share.pull_command(RSYNC, "127.0.0.1", port, str(target))
    slow = subprocess.Popen(
        [command[0], "--bwlimit=4M", *command[1:]],
        env={**os.environ, "RSYNC_PASSWORD": SECRET},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 20
    while not any(p.stat().st_size > 2 << 20 for p in target.glob(".model*")):
        assert time.monotonic() < deadline and slow.poll() is None
        time.sleep(0.02)
    slow.terminate()
    slow.wait(10)
    assert (target / ".rsync-partial/model.safetensors").stat().st_size > 1 << 20
    rest = pull(port, target)
    literal = int(re.search(r"Literal data: ([\d,]+)", rest.stdout)[1].replace(",", ""))
    assert rest.returncode == 0 and tree(target) == tree(source)
    assert literal < 11 << 20


@needs_rsync
def test_the_module_says_what_happened(serve, tmp_path, run_module, monkeypatch):
    source, port = serve("127.0.0.1")
    fill(source)
    arguments = {"address": "127.0.0.1", "port": port, "secret": SECRET, "path": str(tmp_path / "new/target")}
    assert run_module(fabric_pull, arguments, check_mode=True)["changed"] is True
    assert not (tmp_path / "new").exists()
    first = run_module(fabric_pull, arguments)
    assert first["changed"] is True and first["bytes"] == (3 << 20) + 2
    assert run_module(fabric_pull, arguments)["changed"] is False
    (source / "empty").unlink()
    assert run_module(fabric_pull, arguments)["changed"] is True
    refused = run_module(fabric_pull, {**arguments, "secret": "wrong-wrong-wrong"})
    assert refused["failed"] and "wrong secret" in refused["msg"] and "status 5" in refused["msg"]
    dead = run_module(fabric_pull, {**arguments, "port": free_port()})
    assert dead["failed"] and "does not answer" in dead["msg"]


def test_c30_the_command_is_for_a_fast_private_link():
    words = _share.pull_command("/usr/bin/rsync", "192.168.100.10", 8730, "/to")
    assert not {"-z", "--compress", "--delay-updates", "--archive", "-a", "--links", "--whole-file"} & set(words)
    assert {"--checksum", "--copy-links", "--no-compress", "--partial-dir=.rsync-partial"} <= set(words)
    assert words[-2:] == ["rsync://tandem@192.168.100.10:8730/share/", "/to/"]
    assert "--dry-run" in _share.pull_command("rsync", "a", 1, "/to", dry_run=True)


def test_unit_names():
    assert _share.unit_name("model a/b") == "tandem-share-model-a-b"


@pytest.mark.parametrize("text", ["", "Total transferred file size: , bytes", "Total transferred file size: x bytes"])
def test_statistics_that_say_nothing(text):
    assert _share.transferred_bytes(text) is None and _share.changes(text) == 0

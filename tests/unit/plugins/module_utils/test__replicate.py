# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import types

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _lock, _manifest, _replicate, _share
from ansible_collections.tandem.spark.plugins.modules import model_release, model_replicate

RSYNC = shutil.which("rsync")
needs_rsync = pytest.mark.skipif(
    not RSYNC or os.geteuid() != 0, reason="not checked: needs rsync, and root for a daemon that changes its root"
)
SECRET = "a-secret-of-one-transfer"
RUN = "run-of-this-test"
RAILS = ("127.0.0.1", "127.0.0.2")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listening(address, port):
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def until(what, condition, limit_s=20):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {limit_s} s"
        time.sleep(0.01)


def fill(directory, sizes):
    for name, size in sizes.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(os.urandom(size))


SIZES = {"m-1.safetensors": 3 << 20, "m-2.safetensors": 2 << 20, "m-3.safetensors": 1 << 20, "sub/t.json": 9, "none": 0}


def manifest_of(directory):
    files = [
        {
            "path": str(path.relative_to(directory)),
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != _manifest.FILE_NAME
    ]
    return _manifest.make({"id": "o/m", "revision": "a" * 40}, files)


def tree(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != _manifest.FILE_NAME
    }


class Rails:
    """Daemons as the units would run them, one per rail, and the specification of a receiver."""

    def __init__(self, tmp_path):
        self.base, self.port, self.daemons = tmp_path, free_port(), {}
        self.source, self.staging = tmp_path / "release", tmp_path / ".staging-m"
        self.source.mkdir()

    def start(self, address, path=None, proof=None, secret=SECRET, peers=("127.0.0.1", "127.0.0.2")):
        place = self.base / f"run-{address}"
        place.mkdir(exist_ok=True)
        (place / "secrets").write_text(f"{_share.USER}:{secret}\n")
        (place / "secrets").chmod(0o600)
        text = _share.config(str(path or self.source), list(peers), str(place / "secrets"), str(place / "lock"), proof)
        (place / "conf").write_text(text)
        command = [RSYNC, "--daemon", "--no-detach", f"--config={place}/conf", f"--address={address}"]
        command += [f"--port={self.port}", f"--log-file={place}/log"]
        self.daemons[address] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        until("the daemon", lambda: listening(address, self.port))

    def stop(self, address):
        daemon = self.daemons.pop(address)
        os.killpg(daemon.pid, 15)
        daemon.wait(10)

    def lane(self, address, node="spark-a", **more):
        lane = {"node": node, "address": address, "local": address, "path": str(self.source), "port": self.port}
        return {**lane, "streams": 1, **more}

    def specification(self, manifest=None, **more):
        manifest = manifest or manifest_of(self.source)
        given = {
            "node": "spark-b",
            "run": RUN,
            "staging": str(self.staging),
            "manifest": manifest,
            "digest": manifest["digest"],
            "lanes": [self.lane(address, rail=number) for number, address in enumerate(RAILS)],
            "transport": "fabric",
            "secret": SECRET,
            "timeout_s": 5,
            "stall_s": 12,
        }
        return {**given, **more}


@pytest.fixture
def rails(tmp_path):
    made = Rails(tmp_path)
    yield made
    for address in list(made.daemons):
        made.stop(address)


@pytest.fixture
def both(rails):
    for address in RAILS:
        rails.start(address)
    fill(rails.source, SIZES)
    return rails


def publishable(rails):
    proof = _replicate.read_proof(_replicate.proof_file(str(rails.staging)), RUN, manifest_of(rails.source)["digest"])
    return proof, _manifest.compare(str(rails.staging), manifest_of(rails.source), proof)


@needs_rsync
def test_a_copy_over_both_rails_is_proven_when_it_ends(both):
    told = []
    result = _replicate.replicate(both.specification(), told.append)
    assert tree(both.staging) == tree(both.source)
    total = sum(SIZES.values())
    assert (result["bytes_sent"], result["files_sent"], result["files_resent"]) == (total, 5, [])
    assert all(carried > 0 for carried in result["rails"].values()) and sum(result["rails"].values()) == total
    proof, (difference, read) = publishable(both)
    assert not difference and read == 0 and set(proof) == set(SIZES)
    assert {oct((both.staging / name).stat().st_mode & 0o777) for name in SIZES} == {"0o644"}
    assert told[-1].total == total and {progress.stage for progress in told} <= {"copy", "verify"}
    again = _replicate.replicate(both.specification())
    assert again["changed"] is False and again["bytes_sent"] == 0


@needs_rsync
def test_only_the_rest_is_sent(both):
    both.staging.mkdir()
    whole = (both.source / "m-1.safetensors").read_bytes()
    (both.staging / "m-1.safetensors").write_bytes(whole[: 2 << 20])
    shutil.copy(both.source / "m-2.safetensors", both.staging)
    (both.staging / "m-2.safetensors").chmod(0o600)
    looked = _replicate.outlook(both.specification())
    assert (looked["files_sent"], looked["bytes_sent"]) == (4, (2 << 20) + 9)
    result = _replicate.replicate(both.specification())
    assert result["bytes_sent"] == (2 << 20) + 9 and result["files_resent"] == []
    assert tree(both.staging) == tree(both.source)


@needs_rsync
def test_c22_links_arrive_as_files_and_links_here_are_not_followed(both, tmp_path):
    (both.source / "m-1.safetensors").rename(tmp_path / "blob")
    (both.source / "blob").write_bytes((tmp_path / "blob").read_bytes())
    (both.source / "m-1.safetensors").symlink_to("blob")
    (tmp_path / "elsewhere").mkdir()
    both.staging.mkdir()
    (both.staging / "sub").symlink_to(tmp_path / "elsewhere")
    (both.staging / "m-2.safetensors").symlink_to(tmp_path / "elsewhere/x")
    (both.staging / "left-over").write_text("x")
    (both.staging / "old").mkdir()
    (both.staging / "old/y").write_text("y")
    result = _replicate.replicate(both.specification())
    assert tree(both.staging) == tree(both.source) and not any(p.is_symlink() for p in both.staging.rglob("*"))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert result["removed"] == ["left-over", "m-2.safetensors", "old", "sub"]


@needs_rsync
@pytest.mark.parametrize("name", ["m-1.safetensors", "m-2.safetensors"])
def test_c23_a_wrong_byte_here_costs_that_file_only(both, name):
    _replicate.replicate(both.specification())
    path = both.staging / name
    content = bytearray(path.read_bytes())
    times = path.stat()
    content[1000] ^= 1
    # A whole file, and the beginning of one.
    path.write_bytes(content if name == "m-1.safetensors" else content[: 1 << 20])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    result = _replicate.replicate(both.specification())
    assert tree(both.staging) == tree(both.source) and result["files_resent"] == [name]
    rest = 0 if name == "m-1.safetensors" else 1 << 20
    assert result["bytes_sent"] == SIZES[name] + rest and result["changed"] is True


@needs_rsync
def test_a_byte_flipped_after_it_was_proven_is_read_again_at_publication(both):
    _replicate.replicate(both.specification())
    path = both.staging / "m-1.safetensors"
    times = path.stat()
    with path.open("r+b") as handle:
        handle.seek(1000)
        byte = handle.read(1)
        handle.seek(1000)
        handle.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    _proof, (difference, read) = publishable(both)
    assert read == 1 and "m-1.safetensors (sha256" in difference.text()


@needs_rsync
def test_a_damaged_source_is_named_with_both_digests(both):
    manifest = manifest_of(both.source)
    with (both.source / "m-2.safetensors").open("r+b") as handle:
        handle.write(b"\0\1\2\3")
    wrong = hashlib.sha256((both.source / "m-2.safetensors").read_bytes()).hexdigest()
    with pytest.raises(_replicate.ReplicationError) as caught:
        _replicate.replicate(both.specification(manifest))
    wanted = next(entry["sha256"] for entry in manifest["files"] if entry["path"] == "m-2.safetensors")
    for part in ("spark-b: m-2.safetensors", wrong, wanted, "spark-a", "model_verify_all"):
        assert part in str(caught.value)
    proof = _replicate.read_proof(_replicate.proof_file(str(both.staging)), RUN, manifest["digest"])
    assert "m-2.safetensors" not in proof


@needs_rsync
@pytest.mark.parametrize("how", ["short", "long", "gone"])
def test_a_source_that_is_not_that_of_the_manifest(both, how):
    manifest = manifest_of(both.source)
    path = both.source / "m-2.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] if how == "short" else content + b"x")
    if how == "gone":
        path.unlink()
    with pytest.raises(_replicate.ReplicationError, match=r"m-2\.safetensors: found .*wanted .*spark-a.*verify_all"):
        _replicate.replicate(both.specification(manifest))


@needs_rsync
def test_a_rail_that_is_dead_from_the_start(rails):
    fill(rails.source, SIZES)
    rails.start(RAILS[1])
    result = _replicate.replicate(rails.specification())
    assert tree(rails.staging) == tree(rails.source)
    assert result["rails"] == {RAILS[0]: 0, RAILS[1]: sum(SIZES.values())}
    assert RAILS[0] in result["troubles"][0] and "status" in result["troubles"][0]


@needs_rsync
def test_a_rail_lost_in_mid_transfer_and_everything_dead(both):
    """What one rail leaves behind goes on over the other; with none left it ends with a name, and a rerun finishes."""
    fill(both.source, {"m-4.safetensors": 96 << 20, "m-5.safetensors": 96 << 20})
    total = sum(path.stat().st_size for path in both.source.rglob("*") if path.is_file())
    stopped = []

    def report(progress):
        if progress.done > 8 << 20 and not stopped:
            stopped.append(RAILS[0])
            both.stop(RAILS[0])

    result = _replicate.replicate(both.specification(), report)
    assert tree(both.staging) == tree(both.source) and stopped
    assert result["bytes_sent"] == total
    shutil.rmtree(both.staging)
    both.stop(RAILS[1])
    with pytest.raises(_replicate.ReplicationError, match="spark-b: found nothing arriving for 1 s with 7 of 7 files"):
        _replicate.replicate(both.specification(stall_s=1))


class FlippingWire(threading.Thread):
    """Hands one connection after the other on to a port, and flips one byte on the way to the receiver, once."""

    def __init__(self, port, after):
        super().__init__(daemon=True)
        self.target, self.after, self.flipped = port, after, False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def run(self):
        while True:
            near, _address = self.listener.accept()
            far = socket.create_connection(("127.0.0.1", self.target))
            for source, sink, spoil in ((near, far, False), (far, near, True)):
                threading.Thread(target=self.carry, args=(source, sink, spoil), daemon=True).start()

    def carry(self, source, sink, spoil):
        passed = 0
        try:
            while block := bytearray(source.recv(1 << 16)):
                if spoil and not self.flipped and passed + len(block) > self.after:
                    self.flipped = True
                    block[len(block) // 2] ^= 1
                passed += len(block)
                sink.sendall(block)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            sink.close()


@needs_rsync
def test_a_byte_flipped_in_transit_never_arrives(rails):
    """Past TCP's own checksum: rsync's finds it or ours does, and the file is right in the end."""
    fill(rails.source, {"m-1.safetensors": 8 << 20, "m-2.safetensors": 4096})
    rails.start("127.0.0.1")
    wire = FlippingWire(rails.port, 2 << 20)
    wire.start()
    result = _replicate.replicate(rails.specification(lanes=[rails.lane("127.0.0.1", port=wire.port)]))
    assert wire.flipped and tree(rails.staging) == tree(rails.source) and result["changed"] is True
    _proof, (difference, read) = publishable(rails)
    assert not difference and read == 0


@needs_rsync
@pytest.mark.parametrize(("secret", "peers"), [("wrong", RAILS), (SECRET, ["192.0.2.1"])], ids=["secret", "peer"])
def test_a_wrong_secret_or_a_foreign_peer_ends_it_at_once(rails, secret, peers):
    fill(rails.source, SIZES)
    for address in RAILS:
        rails.start(address, peers=peers)
    with pytest.raises(_replicate.ReplicationError, match=r"refused: found @ERROR.*wanted the secret") as caught:
        _replicate.replicate(rails.specification(secret=secret))
    assert SECRET not in str(caught.value) and tree(rails.staging) == {}


@needs_rsync
def test_a_relay_hands_on_what_it_has_proven_and_nothing_else(rails, tmp_path):
    """Node c copies from b while b copies from a; b's wrong beginning of a file never reaches c."""
    fill(rails.source, SIZES)
    relay, last = tmp_path / ".staging-b", tmp_path / ".staging-c"
    relay.mkdir()
    (relay / "m-1.safetensors").write_bytes(bytes(1 << 20))
    rails.start("127.0.0.1")
    rails.start("127.0.0.3", relay, _replicate.proof_file(str(relay)))
    at_b = rails.specification(staging=str(relay), lanes=[rails.lane("127.0.0.1")], relayed=True, stall_s=20)
    lane = rails.lane("127.0.0.3", "spark-b", path=str(relay), relay=True, local="127.0.0.1")
    at_c = rails.specification(node="spark-c", staging=str(last), lanes=[lane], stall_s=20)
    results = {}

    def work(name, specification):
        results[name] = _replicate.replicate(specification)

    threads = [threading.Thread(target=work, args=entry) for entry in (("c", at_c), ("b", at_b))]
    threads[0].start()
    until("c asks", (last / _manifest.FILE_NAME).exists)
    threads[1].start()
    for thread in threads:
        thread.join(40)
    assert tree(last) == tree(relay) == tree(rails.source)
    assert results["b"]["files_resent"] == ["m-1.safetensors"] and results["c"]["files_resent"] == []
    assert results["c"]["bytes_sent"] == sum(SIZES.values())


@needs_rsync
def test_a_relay_that_gives_up_tells_those_behind_it(rails, tmp_path):
    fill(rails.source, SIZES)
    relay = tmp_path / ".staging-b"
    relay.mkdir()
    proof = _replicate.proof_file(str(relay))
    statement = {"format": 1, "run": RUN, "digest": manifest_of(rails.source)["digest"], "files": {}}
    (tmp_path / os.path.basename(proof)).write_text(
        json.dumps({**statement, "arrived": 0, "ended": "the disk is full"})
    )
    rails.start("127.0.0.3", relay, proof)
    lane = rails.lane("127.0.0.3", "spark-b", path=str(relay), relay=True, local="127.0.0.1")
    with pytest.raises(_replicate.ReplicationError, match="spark-c: spark-b, from which .* gave up: the disk is full"):
        _replicate.replicate(rails.specification(node="spark-c", lanes=[lane]))


@needs_rsync
def test_a_killed_run_leaves_its_lock_to_its_rsyncs_and_a_rerun_sends_the_rest(both):
    """The lock is inherited, so a rerun never meets an orphan that still writes."""
    both.staging.mkdir()
    with _lock.alone(str(both.staging), 1) as descriptor:
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[descriptor])
    again = os.open(both.staging, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child.communicate()
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(again)
    assert _replicate.replicate(both.specification())["bytes_sent"] == sum(SIZES.values())


def test_c30_the_disk_need_is_what_is_to_come_not_twice(rails, monkeypatch):
    fill(rails.source, SIZES)
    rails.staging.mkdir()
    total, first = sum(SIZES.values()), SIZES["m-1.safetensors"]
    shutil.copy(rails.source / "m-1.safetensors", rails.staging)
    free = {"blocks": total - first}
    monkeypatch.setattr(
        _replicate.os, "statvfs", lambda _path: types.SimpleNamespace(f_bavail=free["blocks"], f_frsize=1)
    )
    assert _replicate.outlook(rails.specification())["bytes_sent"] == total - first
    free["blocks"] -= 1
    before = tree(rails.staging)
    for work in (_replicate.outlook, _replicate.replicate):
        with pytest.raises(_replicate.ReplicationError, match=f"spark-b: .*found {total - first - 1} bytes free") as e:
            work(rails.specification())
        assert f"wanted {total - first}" in str(e.value) and "free 1 bytes" in str(e.value)
    assert tree(rails.staging) == before


def test_a_proof_is_of_one_run_and_one_manifest(tmp_path):
    path = str(tmp_path / "proof")
    statement = {"format": 1, "run": RUN, "digest": "d", "files": {"a": [1, 2, 3, 4]}}
    (tmp_path / "proof").write_text(json.dumps(statement))
    assert _replicate.read_proof(path, RUN, "d") == {"a": [1, 2, 3, 4]}
    for run, digest in (("another", "d"), (RUN, "e"), ("", "d")):
        assert _replicate.read_proof(path, run, digest) == {}
    for text in ("", "[]", "{}", json.dumps({**statement, "format": 2}), json.dumps({**statement, "files": 1})):
        (tmp_path / "proof").write_text(text)
        assert _replicate.read_proof(path, RUN, "d") == {}
    assert _replicate.read_proof(str(tmp_path / "nothing"), RUN, "d") == {}
    assert (
        _replicate.proof_file("/m/.staging-x")
        == _replicate.proof_file("/m/.staging-x/")
        == "/m/.staging-x.arrived.json"
    )


# --- commands


def words(transport="fabric", **more):
    lane = _replicate.Lane("spark-a", "192.168.100.10", "192.168.100.11", "/m/ling")
    specification = {"transport": transport, "staging": "/m/.staging-ling", "timeout_s": 20, **more}
    return _share.files_command("/usr/bin/rsync", lane, specification)


def test_c30_the_commands_are_for_a_fast_private_link():
    for found in (words(), words("ssh", ssh={"user": "ops", "port": 22})):
        unwanted = {"-z", "--compress", "--delay-updates", "--archive", "-a", "--links", "--whole-file", "--checksum"}
        assert not (unwanted | {"--times"}) & set(found)
        assert {"--append", "--copy-links", "--no-compress", "--files-from=-", "--from0", "--timeout=20"} <= set(found)
        assert found[-1] == "/m/.staging-ling/"
    assert words()[-2] == "rsync://tandem@192.168.100.10:8730/share/" and "--address=192.168.100.11" in words()


def test_c31_ssh_never_asks_and_goes_over_the_rail():
    found = words("ssh", ssh={"user": "ops", "port": 2222})
    shell = next(word for word in found if word.startswith("--rsh="))
    assert found[-2] == "ops@192.168.100.10:/m/ling/"
    for part in ("-p 2222", "BatchMode=yes", "StrictHostKeyChecking=yes", "BindAddress=192.168.100.11"):
        assert part in shell
    assert not [word for word in found if "contimeout" in word]


# --- the modules


@pytest.fixture
def arguments(rails):
    specification = rails.specification() if any(rails.source.iterdir()) else None
    keys = ("node", "run", "staging", "digest", "lanes", "secret", "timeout_s", "stall_s")
    return {**{key: specification[key] for key in keys}, "manifest": json.dumps(specification["manifest"])}


@needs_rsync
def test_the_modules_copy_and_publish_without_reading_twice(both, arguments, run_module, tmp_path):
    looked = run_module(model_replicate, arguments, check_mode=True)
    assert (looked["changed"], looked["bytes_sent"], looked["files_sent"]) == (True, sum(SIZES.values()), 5)
    assert not both.staging.exists()
    result = run_module(model_replicate, arguments)
    assert result["changed"] is True and result["bytes_sent"] == sum(SIZES.values())
    assert SECRET not in json.dumps({key: value for key, value in result.items() if key != "invocation"})
    assert result["run"] == "run-of-this-test"
    publish = {"path": str(tmp_path / "m"), "staging": arguments["staging"], "state": "published"}
    # The files are no real weights; only the reading is looked at here.
    state = model_release.look(publish["staging"], None, arguments["digest"], True, (result["proof"], result["run"]))
    assert (state["present"], state["checked"], state["files_read"]) == (True, "arrived", 0)
    stale = model_release.look(publish["staging"], None, arguments["digest"], True, (result["proof"], "another-run"))
    assert (stale["present"], stale["checked"], stale["files_read"]) == (True, "full", 5)


@needs_rsync
def test_what_the_module_refuses(both, arguments, run_module, commands):
    def refused(**changes):
        result = run_module(model_replicate, {**arguments, **changes})
        assert result["failed"] and "spark-b" in result["msg"] and "wanted" in result["msg"], result
        assert not both.staging.exists()
        return result["msg"]

    assert "secret: found none" in refused(secret="")
    assert "digest" in refused(digest="0" * 64)
    assert "no way over the fabric" in refused(lanes=[])
    assert "run: found" in refused(run="x")
    assert "ssh_user" in refused(transport="ssh", ssh_user="a b")
    assert "stall_s: found 5" in refused(stall_s=5)
    assert "timeout_s: found 0" in refused(timeout_s=0)
    assert "streams: found 0" in refused(lanes=[{**arguments["lanes"][0], "streams": 0}])
    commands["ssh-keygen -F"] = (1, "", "")
    unknown = refused(transport="ssh", ssh_port=2222)
    assert "[127.0.0.1]:2222 (spark-a)" in unknown and "known_hosts" in unknown


def test_check_mode_says_when_it_cannot_know(rails, run_module):
    lane = rails.lane("127.0.0.1")
    given = {"node": "spark-b", "run": RUN, "staging": str(rails.staging), "lanes": [lane], "secret": SECRET}
    result = run_module(model_replicate, {**given, "manifest": ""}, check_mode=True)
    assert result["changed"] is True and result["bytes_sent"] is None
    refused = run_module(model_replicate, {**given, "manifest": ""})
    assert refused["failed"] and "not a manifest" in refused["msg"] and not rails.staging.exists()

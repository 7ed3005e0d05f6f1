# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Models on virtual Sparks, without an engine: every source, faults of hubs and of power, and the way back.

The downloads run on one node of a pair, through the real role, clients and units; the way back runs on both.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from controller import lose
from hub import hub as hub_module
from sparklab.names import ID_ENV, LAB_DIR

pytestmark = pytest.mark.lab

ID = f"tm{hashlib.sha256(str(LAB_DIR).encode()).hexdigest()[:5]}"
ROOT = LAB_DIR.parent.parent
PLAYBOOK = str(ROOT / ".venv/bin/ansible-playbook")
ENV = {**os.environ, ID_ENV: ID, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml"}
REPO = "tandem-lab/small"
WEIGHTS = {"model-00001-of-00002.safetensors": 40_000_000, "model-00002-of-00002.safetensors": 20_000_000}
TOTAL = sum(WEIGHTS.values())
MODELS = "/var/lib/tandem/models"
PORT = 9001


def lab(verb: str, *words: str) -> str:
    argv = [str(LAB_DIR / "lab"), verb, "pair", *words]
    done = subprocess.run(argv, capture_output=True, text=True, env=ENV, check=False, timeout=600)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def ssh(command: str, node: str = "spark-a") -> str:
    return lab("ssh", node, command)


def shard(size: int, seed: int) -> bytes:
    """A file of weights whose header fits it."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + random.Random(seed).randbytes(size)


class Site:
    """The pair, a hub of its own on the gateway, and what the role is told."""

    def __init__(self, home: Path) -> None:
        self.home, self.root, self.control, self.log = home, home / "root", home / "control.json", home / "hub.log"
        self.folder = self.root / REPO
        self.folder.mkdir(parents=True)
        for number, (name, size) in enumerate(WEIGHTS.items()):
            (self.folder / name).write_bytes(shard(size, number))
        (self.folder / "config.json").write_text('{"model_type": "llama"}')
        (home / "one.yml").write_text("one: {hosts: {spark-a: }}\n")
        recipe = (LAB_DIR / "recipes/lab-smollm2-single.yml").read_text()
        recipe = re.sub(r"(?m)^name: .*", "name: small", recipe)
        recipe = re.sub(r"(?m)^  id: .*", f"  id: {REPO}", recipe)
        lock = LAB_DIR / "engines/sglang/requirements.lock"
        (home / "small.yml").write_text(re.sub(r"(?m)^  lock: .*", f"  lock: {lock}", recipe))
        self.gateway = json.loads(lab("inventory"))["_meta"]["hostvars"]["spark-a"]["lab_gateway"]
        self.url = f"http://{self.gateway}:{PORT}"
        self.files = f"{self.url}/files/{REPO}"

    def commit(self) -> str:
        return hub_module.Digests(self.root).commit(self.folder)

    def faults(self, *faults: dict[str, Any]) -> None:
        partial = self.control.with_suffix(".new")
        partial.write_text(json.dumps(faults))
        partial.replace(self.control)

    def command(self, *words: str, playbook: str = "tandem.spark.model", **variables: Any) -> list[str]:
        told = {
            "tandem_group": "one",
            "tandem_recipe": "small",
            "tandem_recipe_paths": [str(self.home)],
            "tandem_links": [],
            "tandem_model_revision": self.commit(),
            "model_endpoint": self.url,
            **variables,
        }
        inventory = ["-i", "inventories/lab_pair", "-i", str(self.home / "one.yml")]
        return [PLAYBOOK, playbook, *inventory, *words, "-e", json.dumps(told)]

    def play(self, *words: str, playbook: str = "tandem.spark.model", **variables: Any) -> tuple[int, str]:
        argv = self.command(*words, playbook=playbook, **variables)
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, env=ENV, check=False, timeout=300)
        assert "Traceback" not in done.stdout + done.stderr
        return done.returncode, done.stdout + done.stderr

    def sent(self) -> int:
        """Bytes of weights that the hub has sent so far."""
        lines = re.findall(r"GET (\S*safetensors\S*).* (\d+) bytes", self.log.read_text())
        return sum(int(count) for _path, count in lines)

    def whole(self) -> bool:
        """Whether the published model is the hub's, byte for byte."""
        sums = {name: hub_module.Digests(self.root).sha256(self.folder / name) for name in WEIGHTS}
        there = ssh(f"cd {MODELS}/small-{self.commit()[:12]} && sha256sum *.safetensors")
        return {line.split()[1]: line.split()[0] for line in there.splitlines()} == sums

    def nothing_published(self) -> bool:
        return ssh(f"ls {MODELS} 2>/dev/null || true") == ""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    lab("down")
    lab("up")
    site = Site(tmp_path_factory.mktemp("model"))
    argv = [sys.executable, hub_module.__file__, site.root, "--bind", site.gateway, "--port", PORT]
    argv += ["--control", site.control, "--log", site.log]
    with subprocess.Popen([str(word) for word in argv], stdout=subprocess.PIPE, text=True) as hub:
        assert hub.stdout and hub.stdout.readline()
        yield site
        hub.terminate()
    lab("down")


@pytest.fixture
def fresh(site: Site) -> Site:
    """No model on the node, no fault in the hub."""
    site.faults()
    ssh(f"systemctl stop 'tandem-job-*'; rm -rf {MODELS} /run/tandem-jobs /var/lib/tandem/records")
    return site


def changed(output: str, node: str = "spark-a") -> int:
    found = re.search(rf"(?m)^{node} .*changed=(\d+)", output)
    assert found, output
    return int(found[1])


def until(what: str, condition: Callable[[], bool], limit_s: float = 30) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not after {limit_s} s: {what}"
        time.sleep(0.1)


# ---------------------------------------------------------------- sources


def prepared(site: Site, source: str) -> dict[str, Any]:
    """What the role is told for a source, which is made ready on the node where it is local."""
    if source in ("huggingface", "modelscope"):
        return {"model_source": source}
    if source == "http":
        return {"model_source": source, "model_endpoint": site.files}
    if not ssh("ls /srv/bundle.tar 2>/dev/null || true"):
        site.play(model_source="http", model_endpoint=site.files)
        ssh(f"mv {MODELS}/small-* /srv/source && tar -C /srv/source -cf /srv/bundle.tar . && rm -rf {MODELS}")
    return {"model_source": source, "model_endpoint": "/srv/source" if source == "directory" else "/srv/bundle.tar"}


@pytest.mark.parametrize("source", ["huggingface", "modelscope", "http", "directory", "bundle"])
def test_a_source_twice(fresh: Site, source: str) -> None:
    told = prepared(fresh, source)
    code, out = fresh.play(**told)
    assert code == 0 and changed(out) > 0, out
    assert fresh.whole()
    sent = fresh.sent()
    code, out = fresh.play("--diff", **told)
    assert code == 0 and changed(out) == 0, out
    assert fresh.sent() == sent
    assert json.loads(ssh("cat /var/lib/tandem/records/model.json"))["source"] == source


def test_check_mode_fetches_nothing(fresh: Site) -> None:
    code, out = fresh.play("--check", "--diff")
    assert code == 0 and changed(out) > 0, out
    assert fresh.nothing_published() and ssh("ls /run/tandem-jobs 2>/dev/null || true") == ""


def test_a_branch_is_refused_with_its_commit_or_resolved_and_kept(fresh: Site) -> None:
    code, out = fresh.play(tandem_model_revision="main")
    assert code != 0 and f"it stands for {fresh.commit()} now" in out and fresh.nothing_published()
    code, out = fresh.play(
        tandem_model_revision="main", model_revision_resolve=True, model_source="http", model_endpoint=fresh.files
    )
    assert code != 0 and "wanted a full commit id" in out
    code, out = fresh.play(tandem_model_revision="main", model_revision_resolve=True)
    assert code == 0 and fresh.whole(), out
    record = json.loads(ssh("cat /var/lib/tandem/records/revision.json"))
    assert (record["asked"], record["revision"]) == ("main", fresh.commit())
    fresh.faults({"fault": "refuse", "match": REPO, "status": 404})
    code, out = fresh.play(tandem_model_revision="main", model_revision_resolve=True)
    assert code == 0 and changed(out) == 0, out


# ---------------------------------------------------------------- hubs that misbehave
FIRST = "*/model-00001-of-00002.safetensors"
BUSY = {"fault": "refuse", "match": FIRST, "status": 503, "times": 1, "retry_after": 1}
PASSING = {
    "429 to a client": ("huggingface", {**BUSY, "status": 429}),
    "503 to a client": ("modelscope", BUSY),
    "503 from a web server": ("http", {**BUSY, "times": 3}),
    "cut short once": ("http", {"fault": "stop", "match": FIRST, "bytes": 1_000_000, "times": 1}),
    "a wrong byte once": ("huggingface", {"fault": "corrupt", "match": FIRST, "times": 1}),
}


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_is_got_over(fresh: Site, name: str) -> None:
    source, fault = PASSING[name]
    told = prepared(fresh, source)
    fresh.faults(fault)
    code, out = fresh.play(**told)
    assert code == 0 and fresh.whole(), out


STAYING = {
    "c26 HTML instead of weights": ("http", {"fault": "html", "match": FIRST}, "found an HTML page"),
    "c26 HTML from a hub": ("huggingface", {"fault": "html", "match": FIRST}, ""),
    "c23 truncated and called complete": ("http", {"fault": "truncate", "match": FIRST, "bytes": 1000}, "bytes"),
    "c23 another file under the name": (
        "huggingface",
        {"fault": "corrupt", "match": FIRST},
        "wrong after two downloads",
    ),
}


@pytest.mark.parametrize("name", STAYING)
def test_what_stays_is_refused_and_nothing_is_published(fresh: Site, name: str) -> None:
    source, fault, words = STAYING[name]
    told = prepared(fresh, source)
    fresh.faults(fault)
    code, out = fresh.play(**told)
    assert code != 0 and words in out and "model-00001-of-00002" in out, out
    assert ssh(f"ls {MODELS}") == "" and ssh(f"ls {MODELS}/.staging-*/tandem-manifest.json 2>/dev/null || true") == ""


def test_a_disk_that_is_too_small_is_named_before_anything_is_fetched(fresh: Site) -> None:
    ssh(f"mkdir -p {MODELS} && mount -t tmpfs -o size=30m tmpfs {MODELS}")
    sent = fresh.sent()
    try:
        code, out = fresh.play()
    finally:
        ssh(f"umount {MODELS}")
    assert code != 0 and "bytes free, wanted" in out and "tandem_root" in out, out
    assert fresh.sent() == sent


# ---------------------------------------------------------------- power and connections
SLOW = {"fault": "slow", "match": "*.safetensors", "rate": 6_000_000}


def begin(site: Site, **told: Any) -> subprocess.Popen[str]:
    """A run whose download is under way."""
    running = subprocess.Popen(
        site.command(**told),
        cwd=ROOT,
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    progress = "cat /run/tandem-jobs/model/progress.json 2>/dev/null || echo '{}'"
    until("a third is there", lambda: json.loads(ssh(progress)).get("done", 0) > TOTAL // 3)
    return running


def kill(running: subprocess.Popen[str]) -> None:
    lose(running)
    running.communicate()


@pytest.mark.parametrize("source", ["huggingface", "modelscope", "http"])
def test_a_killed_download_goes_on(fresh: Site, source: str) -> None:
    told = prepared(fresh, source)
    fresh.faults(SLOW)
    before = fresh.sent()
    running = begin(fresh, **told)
    ssh("systemctl kill --signal=KILL tandem-job-model")
    output, _none = running.communicate(timeout=60)
    assert running.returncode != 0 and "it was killed" in output, output
    assert ssh(f"ls {MODELS}") == ""
    until("the hub noticed", lambda: fresh.sent() > before)
    fresh.faults()
    code, out = fresh.play(**told)
    assert code == 0 and fresh.whole(), out
    again = fresh.sent() - before - TOTAL
    print(f"{source}: {again} bytes sent again")
    # What was on its way, and for hf what it keeps in memory until it has 10 MiB, for each file in hand.
    assert again < (25_000_000 if source == "huggingface" else 8_000_000), again


def test_c38_a_run_attaches_to_the_download_of_a_dead_controller(fresh: Site) -> None:
    fresh.faults(SLOW)
    before = fresh.sent()
    kill(begin(fresh))
    shown = ssh("systemctl show tandem-job-model; cat /proc/$(systemctl show -P MainPID tandem-job-model)/cmdline")
    assert "ActiveState=active" in shown and REPO not in shown
    # Held, so that it does not end while it is looked at.
    ssh("systemctl kill --signal=STOP tandem-job-model")
    code, out = fresh.play(model_workers=4)
    assert code != 0 and "workers: running 8, wanted 4" in out and "systemctl stop tandem-job-model" in out, out
    with subprocess.Popen(fresh.command(), cwd=ROOT, env=ENV, stdout=subprocess.PIPE, text=True) as second:
        assert second.stdout
        out = ""
        while "it was running already" not in out:
            line = second.stdout.readline()
            assert line, out
            out += line
        ssh("systemctl kill --signal=CONT tandem-job-model")
        out += second.stdout.read()
    assert second.returncode == 0 and fresh.whole(), out
    assert re.search(r"model on spark-a: download \d+ % of 60.0 MB", out), out
    assert fresh.sent() - before < TOTAL + 1_000_000


def test_the_token_is_nowhere_to_be_seen(fresh: Site) -> None:
    token = "hf_0123456789abcdefNobodyMaySeeThis"
    fresh.faults(SLOW)
    running = begin(fresh, model_source="huggingface", model_token=token)
    seen = ssh("systemctl show tandem-job-model; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    files = ssh(f"grep -rl {token} /run/tandem-jobs /var/lib/tandem /etc || true")
    fresh.faults()
    output, _none = running.communicate(timeout=120)
    journal = ssh("journalctl --no-pager -o cat")
    assert token not in seen
    assert token not in output
    assert token not in journal
    assert files == ""
    assert "authorized" in fresh.log.read_text()


def test_a_node_that_lost_its_power_goes_on(fresh: Site) -> None:
    fresh.faults(SLOW)
    before = fresh.sent()
    kill(begin(fresh))
    lab("kill", "spark-a")
    lab("start", "spark-a")
    assert ssh(f"ls {MODELS}") == ""
    fresh.faults()
    code, out = fresh.play()
    assert code == 0 and fresh.whole(), out
    assert fresh.sent() - before - TOTAL < 12_000_000


# ---------------------------------------------------------------- the way back

PREPARE = """
- hosts: spark
  gather_facts: false
  vars: {root: /var/lib/tandem, name: "small-{{ number }}"}
  tasks:
    - name: A model of a few bytes
      tandem.spark.model_fetch:
        source: http
        id: tandem-lab/tiny
        revision: "{{ '%040d' | format(number) }}"
        endpoint: "{{ files }}/tandem-lab/tiny-{{ number }}"
        path: "{{ root }}/models/.staging-{{ name }}"
    - name: Published
      tandem.spark.model_release:
        path: "{{ root }}/models/{{ name }}"
        staging: "{{ root }}/models/.staging-{{ name }}"
        state: published
    - name: A release without an engine
      tandem.spark.files:
        files:
          - {path: "{{ root }}/releases/{{ name }}", state: directory}
          - path: "{{ root }}/releases/{{ name }}/rank.json"
            content: "{{ {'deployment': name, 'argv': []} | to_json }}"
          - {path: "{{ root }}/releases/{{ name }}/model", state: link, target: "{{ root }}/models/{{ name }}"}
          - path: "{{ root }}/current"
            state: link
            target: "{{ root }}/releases/{{ name }}"
            keep: "{{ root }}/previous"
"""


@pytest.fixture(scope="module")
def releases(site: Site) -> Site:
    """Three releases on both nodes; three is current, two is previous."""
    (site.home / "prepare.yml").write_text(PREPARE)
    for number in (1, 2, 3):
        folder = site.root / f"tandem-lab/tiny-{number}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(shard(100, number))
    ssh(f"rm -rf {MODELS}")
    for number in (1, 2, 3):
        argv = [PLAYBOOK, str(site.home / "prepare.yml"), "-i", "inventories/lab_pair", "-e"]
        argv += [json.dumps({"number": number, "files": f"{site.url}/files"})]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, env=ENV, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    return site


def rollback(*words: str) -> tuple[int, str]:
    argv = [PLAYBOOK, "tandem.spark.model_rollback", "-i", "inventories/lab_pair", *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, env=ENV, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


def current() -> dict[str, tuple[str, str]]:
    links = "basename $(readlink /var/lib/tandem/current); basename $(readlink /var/lib/tandem/previous)"
    return {node: tuple(ssh(links, node).split()) for node in ("spark-a", "spark-b")}  # type: ignore[misc]


FORWARD, BACK = ("small-3", "small-2"), ("small-2", "small-3")


def test_back_and_forward_with_times(releases: Site) -> None:
    # In place of a rank: a process that was started from the current release and holds its weights.
    holder = (
        "exec python3 -c 'import time; f = open(\"/var/lib/tandem/current/model/model.safetensors\"); time.sleep(600)'"
    )
    ssh(f"systemd-run --quiet --unit=holder sh -c {json.dumps(holder)}")
    pid = ssh("systemctl show -P MainPID holder")
    held = f"ls -l /proc/{pid}/fd"
    until("it holds them", lambda: "small-3" in ssh(held))
    began = time.monotonic()
    code, out = rollback()
    print(f"back in {time.monotonic() - began:.1f} s")
    assert code == 0 and set(current().values()) == {BACK}, out
    assert re.search(r"small-3 -> small-2 in \d+\.\d+ ms; the model was checked trusted", out), out
    assert "keeps its release until it is started again" in out
    assert "small-3" in ssh(held)
    code, out = rollback("-e", "model_rollback_verify_all=true")
    assert code == 0 and set(current().values()) == {FORWARD} and "checked full (1 files read)" in out, out
    ssh("systemctl stop holder")


def test_check_mode_switches_nothing(releases: Site) -> None:
    code, out = rollback("--check", "--diff")
    assert code == 0 and changed(out) == 1 and set(current().values()) == {FORWARD}, out


def test_all_nodes_or_none(releases: Site) -> None:
    ssh("mv /var/lib/tandem/models/small-2 /var/lib/tandem/models/away", "spark-b")
    code, out = rollback()
    ssh("mv /var/lib/tandem/models/away /var/lib/tandem/models/small-2", "spark-b")
    assert code != 0 and "spark-b: the model of small-2 is not whole" in out and "Nothing was changed" in out, out
    assert changed(out) == 0 and set(current().values()) == {FORWARD}
    code, out = rollback("--limit", "spark-a")
    assert code != 0 and "spark-b: was not looked at" in out and set(current().values()) == {FORWARD}, out
    ssh("printf X | dd of=/var/lib/tandem/models/small-2/model.safetensors bs=1 seek=80 conv=notrunc status=none")
    code, out = rollback()
    assert code != 0 and "spark-a: the model of small-2 is not whole" in out and "sha256" in out, out
    assert set(current().values()) == {FORWARD}


def test_old_models_go_and_one_that_is_open_stays(releases: Site) -> None:
    prune = ["-m", "tandem.spark.model_release", "-a", f"path={MODELS} state=pruned"]
    argv = [str(ROOT / ".venv/bin/ansible"), "spark-a", "-i", "inventories/lab_pair", *prune]

    def run(*words: str) -> str:
        done = subprocess.run(
            [*argv, *words], cwd=ROOT, capture_output=True, text=True, env=ENV, check=False, timeout=60
        )
        return done.stdout + done.stderr

    ssh(f"systemd-run --quiet --unit=reader sh -c 'exec sleep 600 < {MODELS}/small-1/model.safetensors'")
    pid = ssh("systemctl show -P MainPID reader")
    out = run()
    assert f"in use by process {pid} (sleep)" in out and "CHANGED" not in out, out
    ssh("systemctl stop reader")
    assert f"{MODELS}/small-1" in run("--check") and "small-1" in ssh(f"ls {MODELS}")
    assert "CHANGED" in run() and ssh(f"ls {MODELS}").split() == ["small-2", "small-3"]
    assert ssh("ls /var/lib/tandem/releases").split() == ["small-2", "small-3"]
    assert "CHANGED" not in run()

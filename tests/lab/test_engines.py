# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The other engines on virtual Sparks of their own: llama.cpp over a chain of four, vLLM on a pair by mp and by Ray.

SGLang is that of test_site.py. The tests of one engine build on each other in their order.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
import requests
import yaml

ROOT = Path(__file__).parents[2]
RANKS = ROOT / "tests/unit/fixtures/ranks"
OPTIONS = ROOT / "tests/lab/engines/options.py"

# vLLM's lane takes longer than the suite should: make lab SUITE=engines.
lab_suite, engines_lane = pytest.mark.lab, pytest.mark.engines


class Nodes(Protocol):
    """A lab whose nodes can be asked."""

    def ssh(self, node: str, command: str, /) -> str: ...


class Lab:
    """A lab of its own beside the others, and the playbooks on it."""

    def __init__(self, name: str, inventory: str, home: Path) -> None:
        digest = hashlib.sha256(f"{ROOT} {name}".encode()).hexdigest()
        self.name, self.inventory, self.home = name, f"inventories/{inventory}", home
        self.nodes = [f"spark-{letter}" for letter in ("ab" if name == "pair" else "abcd")]
        self.environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "TANDEM_LAB_ID": f"te{digest[:5]}"}

    def run(self, *command: str, text: str = "", timeout: float = 900) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=self.environment,
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )

    def __call__(self, *verb: str, text: str = "") -> str:
        done = self.run(str(ROOT / "tests/lab/lab"), *verb, text=text)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def ssh(self, node: str, command: str, text: str = "") -> str:
        return self("ssh", self.name, node, command, text=text)

    def play(self, *arguments: str, playbook: str = "site.yml") -> subprocess.CompletedProcess[str]:
        binary = Path(sys.executable).parent / "ansible-playbook"
        reports = [f"{stage}_report_directory={self.home}" for stage in ("accept", "preflight")]
        extra = [word for report in reports for word in ("-e", report)]
        return self.run(str(binary), playbook, "-i", self.inventory, *extra, *arguments)

    def ask(self, question: str) -> requests.Response:
        address = json.loads(self("inventory", self.name))["_meta"]["hostvars"]["spark-a"]["ansible_host"]
        key = (Path.home() / f".config/tandem/{Path(self.inventory).name}.key").read_text().strip()
        body = {"model": "lab", "temperature": 0, "max_tokens": 32, "messages": [{"role": "user", "content": question}]}
        session = requests.Session()
        session.trust_env = False
        headers = {"Authorization": f"Bearer {key}"}
        return session.post(f"http://{address}:8000/v1/chat/completions", json=body, headers=headers, timeout=120)

    def accepted(self) -> None:
        report = json.loads((self.home / "acceptance.json").read_text())
        assert report["accepted"] is True
        assert [result["status"] for result in report["results"]] == ["passed"] * 6

    def no_key_anywhere(self) -> None:
        key = (Path.home() / f".config/tandem/{Path(self.inventory).name}.key").read_text().strip()
        for node in self.nodes:
            for place in ("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", "journalctl --no-pager -o cat"):
                assert key not in self.ssh(node, place)
        for node in self.nodes[1:]:
            assert key not in self.ssh(node, "cat /proc/[0-9]*/environ | tr '\\0' ' '")

    def log(self, node: str) -> str:
        invocation = self.ssh(node, "systemctl show -P InvocationID tandem-rank").strip()
        return self.ssh(node, f"journalctl --no-pager -o cat _SYSTEMD_INVOCATION_ID={invocation}")

    def sent(self, node: str) -> int:
        counters = self.ssh(node, "cat /sys/class/net/enp1s0f*/statistics/tx_bytes").split()
        return sum(map(int, counters))


def made(name: str, inventory: str, factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(name, inventory, factory.mktemp(name))
    lab("down", name)
    lab("up", name)
    yield lab
    lab("down", name)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    yield from made("chain4", "lab_quad", tmp_path_factory)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    yield from made("pair", "lab_pair", tmp_path_factory)


def recap(output: str) -> dict[str, int]:
    """Changes by host."""
    return {host: int(changed) for host, changed in re.findall(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)", output, re.M)}


def launch_lines(engine: str) -> list[tuple[str, list[str]]]:
    """Every launch line of every recipe for *engine*, from the golden files: the words after the program."""
    first = {"sglang": "sglang.launch_server", "vllm": "serve", "ray": "start"}[engine]
    found = []
    for path in sorted(RANKS.glob("*.json")):
        for node, rank in json.loads(path.read_text()).items():
            for number, argv in enumerate([rank["argv"], *rank.get("beside", [])]):
                program = Path(argv[0]).parts
                mine = (
                    engine in argv[2] if engine == "sglang" else any(Path(w).name == engine for w in argv[:-1])
                ) and ("engines" in program)
                if mine and first in argv:
                    words = argv[argv.index(first) + 1 :]
                    found.append((f"{path.stem} {node} {number}", words))
    return found


def complaints(lab: Nodes, engine: str, environment: str) -> dict[str, str]:
    """What the parser of the engine installed on the head says of the recipes' launch lines."""
    lines = launch_lines(engine)
    assert len(lines) > 1
    lines.append(("a line that is wrong", [*lines[0][1], "--no-such-flag"]))
    python = lab.ssh("spark-a", f"ls -d /var/lib/tandem/engines/{environment}-*/venv/bin/python").split()[0]
    for name, text in (("options.py", OPTIONS.read_text()), ("lines.json", json.dumps(lines))):
        lab.ssh("spark-a", f"cat > /tmp/{name} <<'END'\n{text}\nEND")
    quiet = "SGLANG_USE_CPU_ENGINE=1 VLLM_LOGGING_LEVEL=ERROR HF_HUB_OFFLINE=1"
    said = lab.ssh("spark-a", f"{quiet} {python} /tmp/options.py {engine} parse < /tmp/lines.json 2>/dev/null")
    found = json.loads(said.strip().splitlines()[-1])
    assert "no-such-flag" in found.pop("a line that is wrong").replace("_", "-")
    return found


# ---------------------------------------------------------------- llama.cpp over an open chain of four
@lab_suite
def test_llama_cpp_serves_over_a_chain(chain: Lab) -> None:
    done = chain.play()
    assert done.returncode == 0, done.stdout
    chain.accepted()
    chain.no_key_anywhere()


@lab_suite
def test_llama_cpp_tensors_are_spread_over_the_workers(chain: Lab) -> None:
    log = chain.log("spark-a")
    sizes = dict(re.findall(r"RPC\d+\[([\d.]+):50052\] model buffer size = +([\d.]+) MiB", log))
    assert len(sizes) == 3 and all(float(size) > 20 for size in sizes.values()), log[-3000:]
    for node in chain.nodes[1:]:
        assert re.search(r"10\.100\.\d+\.\d+:50052", chain.ssh(node, "ss -ltn"))
        assert "0.0.0.0:50052" not in chain.ssh(node, "ss -ltn")
    # The one in the middle passes on what is for the last one; every node sends its share.
    before = [chain.sent(node) for node in chain.nodes]
    assert "391" in chain.ask("What is 17*23?").text
    assert all(after - each > 5_000 for each, after in zip(before, map(chain.sent, chain.nodes), strict=True))


@lab_suite
def test_llama_cpp_converges_once(chain: Lab) -> None:
    done = chain.play()
    assert done.returncode == 0, done.stdout
    assert set(recap(done.stdout).values()) == {0}


@lab_suite
def test_llama_cpp_takes_every_launch_line(chain: Lab) -> None:
    """Its parser stops at the first word that it does not know; --version ends it well behind the last one."""
    lines = []
    for path in RANKS.glob("*.json"):
        for node, rank in json.loads(path.read_text()).items():
            if Path(rank["argv"][0]).name in ("llama-server", "ggml-rpc-server"):
                lines.append((path.stem, node, Path(rank["argv"][0]).name, rank["argv"][1:]))
    assert {line[2] for line in lines} == {"llama-server", "ggml-rpc-server"}
    for recipe, node, name, words in lines:
        program = f"/var/lib/tandem/engines/llama_cpp-*/venv/bin/{name}"
        last = "--version" if name == "llama-server" else "--help"
        # The addresses of other nodes are asked while the words are read.
        if "--rpc" in words:
            del words[words.index("--rpc") : words.index("--rpc") + 2]
        done = chain.ssh("spark-a", f"{program} {' '.join(map(json.dumps, words))} {last} 2>&1; echo status=$?")
        assert done.rstrip().endswith("status=0"), (recipe, node, done[-400:])
    done = chain.ssh(
        "spark-a", f"{program.replace(name, 'llama-server')} --no-such-flag --version 2>&1; echo status=$?"
    )
    assert "status=0" not in done


@lab_suite
def test_an_altered_engine_is_not_started(chain: Lab) -> None:
    library = chain.ssh("spark-c", "ls /var/lib/tandem/engines/*/venv/lib/llama-cpp/libggml-rpc.so").strip()
    # One byte, same size, same time: only the digest tells.
    chain.ssh(
        "spark-c", f"cp -p {library} /tmp/kept; printf X | dd of={library} bs=1 seek=5000 conv=notrunc status=none"
    )
    chain.ssh("spark-c", f"touch -r /tmp/kept {library}; systemctl stop tandem-rank")
    done = chain.play(playbook="tandem.spark.serve")
    assert done.returncode != 0
    assert "spark-c: 1 file(s) missing or altered" in done.stdout and "libggml-rpc.so" in done.stdout
    done = chain.play()
    assert done.returncode == 0, done.stdout
    assert "391" in chain.ask("What is 17*23?").text


PROGRAM = """\
#!/bin/sh
# Somebody's own engine: the same file on every node.
program=$1
shift
exec /var/lib/tandem/engines/llama_cpp-*/venv/bin/"$program" "$@"
"""


@lab_suite
def test_an_engine_of_ones_own_serves_and_another_build_is_refused(chain: Lab, tmp_path: Path) -> None:
    recipe = yaml.safe_load((ROOT / "tests/lab/recipes/lab-llama-chain.yml").read_text())
    recipe["name"] = "own"
    recipe["engine"] = {
        "name": "external",
        "version": "1",
        "python": "3.11",
        "launch": {
            "program": "/opt/own/serve",
            "sha256": hashlib.sha256(PROGRAM.encode()).hexdigest(),
            "split": "layers",
            "head": ["llama-server", "--model", "{model}/model-bf16.gguf", "--alias", "{served_name}", "--jinja"]
            + ["--host", "{api_address}", "--port", "{api_port}", "--threads", "1", "--ctx-size", "2048"],
            "worker": ["ggml-rpc-server", "--host", "{fabric_ip}", "--port", "{rendezvous_port}"],
            "key_file_flag": "--api-key-file",
        },
    }
    (tmp_path / "own.yml").write_text(yaml.safe_dump(recipe))
    arguments = ("-e", json.dumps({"tandem_recipe": "own", "tandem_recipe_paths": [str(tmp_path)]}))
    for node in chain.nodes:
        chain.ssh(node, "mkdir -p /opt/own && cat > /opt/own/serve && chmod 755 /opt/own/serve", text=PROGRAM)
    chain.ssh("spark-d", "echo '# mine' >> /opt/own/serve")
    done = chain.play(*arguments, playbook="tandem.spark.engine")
    assert done.returncode != 0
    assert "spark-d: /opt/own/serve: found" in done.stdout and "put the same file on every node" in done.stdout
    chain.ssh("spark-d", "cat > /opt/own/serve", text=PROGRAM)
    done = chain.play(*arguments)
    assert done.returncode == 0, done.stdout
    chain.accepted()
    chain.no_key_anywhere()
    done = chain.play(*arguments)
    assert set(recap(done.stdout).values()) == {0}, done.stdout


# ---------------------------------------------------------------- vLLM on a pair
@engines_lane
def test_vllm_serves_on_the_pair(pair: Lab) -> None:
    done = pair.play("-e", "tandem_recipe=lab-vllm")
    assert done.returncode == 0, done.stdout
    pair.accepted()
    pair.no_key_anywhere()
    before = pair.sent("spark-b")
    assert "391" in pair.ask("What is 17*23?").text
    assert pair.sent("spark-b") - before > 10_000


@engines_lane
def test_vllm_converges_once(pair: Lab) -> None:
    done = pair.play("-e", "tandem_recipe=lab-vllm")
    assert done.returncode == 0, done.stdout
    assert set(recap(done.stdout).values()) == {0}


@engines_lane
@pytest.mark.parametrize("engine", ["vllm", "ray"])
def test_vllm_and_ray_take_every_launch_line(pair: Lab, engine: str) -> None:
    assert complaints(pair, engine, "vllm") == {}


@engines_lane
def test_vllm_serves_over_ray(pair: Lab) -> None:
    done = pair.play("-e", "tandem_recipe=lab-vllm-ray")
    assert done.returncode == 0, done.stdout
    pair.accepted()
    pair.no_key_anywhere()
    assert "391" in pair.ask("What is 17*23?").text
    head = pair.log("spark-a")
    assert "tandem-ray: have 2 node(s) with 2 GPU, need 2 with 2: 192.168.100.10, 192.168.100.11" in head
    ray = pair.ssh("spark-a", "ls /var/lib/tandem/engines/vllm-*/venv/bin/ray").split()[0]
    status = pair.ssh("spark-a", f"{ray} status --address 192.168.100.10:6379")
    assert "2.0/2.0 GPU" in status and len(re.findall(r"^ 1 node_", status, re.M)) == 2


@engines_lane
def test_c12_what_belongs_to_the_head_is_not_handed_to_the_worker(pair: Lab) -> None:
    """By vLLM's own function, which reads the list that the launcher wrote."""
    python = pair.ssh("spark-a", "ls /var/lib/tandem/engines/vllm-*/venv/bin/python").split()[0]
    code = "from vllm.v1.executor.ray_env_utils import get_driver_env_vars as get; print(*sorted(get(set())))"
    names = "VLLM_CONFIG_ROOT=/run/tandem/vllm GLOO_SOCKET_IFNAME=a NCCL_IB_HCA=b VLLM_API_KEY=c FOR_ALL=d"
    # A list of another node's names, or none, would let them through.
    handed = pair.ssh("spark-a", f"{names} {python} -c '{code}' 2>/dev/null").split()
    assert "FOR_ALL" in handed
    assert not {"GLOO_SOCKET_IFNAME", "VLLM_API_KEY"} & set(handed)

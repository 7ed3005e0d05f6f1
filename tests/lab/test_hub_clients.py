# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real clients of Hugging Face and ModelScope against the lab's hub: what the model role has to reckon with."""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from assets import Assets, only_one_run
from engines.download import cache_root
from hub import hub as hub_module

pytestmark = pytest.mark.lab

REPO = "tandem-lab/small"
WEIGHTS = f"{REPO}/model.safetensors"


@pytest.fixture(scope="module")
def clients() -> Path:
    assets = Assets(cache_root())
    with only_one_run(assets.root):
        return assets.hub_clients()


@dataclass
class Lab:
    """A hub process and the folder of the real clients."""

    root: Path
    url: str
    control: Path
    log: Path
    bin: Path
    home: Path

    def faults(self, *faults: dict[str, Any]) -> None:
        partial = self.control.with_suffix(".new")
        partial.write_text(json.dumps(faults))
        partial.replace(self.control)

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "HF_HOME": str(self.home / "hf"),
            "HF_ENDPOINT": self.url,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "MODELSCOPE_ENDPOINT": self.url,
            "MODELSCOPE_CACHE": str(self.home / "ms"),
        }
        words = [str(self.bin / command[0]), *map(str, command[1:])]
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)

    def wrong(self, folder: Path) -> list[str]:
        """The files of the repository that are missing or differ in a download."""
        names = [path.name for path in (self.root / REPO).iterdir()]
        _same, differ, missing = filecmp.cmpfiles(self.root / REPO, folder, names, shallow=False)
        return sorted(differ + missing)


@pytest.fixture
def lab(clients: Path, tmp_path: Path) -> Iterator[Lab]:
    root = tmp_path / "root"
    (root / REPO).mkdir(parents=True)
    (root / REPO / "config.json").write_text('{"model_type": "llama"}')
    (root / REPO / "README.md").write_text("# small\n")
    (root / REPO / "model.safetensors").write_bytes(random.Random(0).randbytes(24_000_000))
    control, log = tmp_path / "control.json", tmp_path / "hub.log"
    command = [sys.executable, hub_module.__file__, root, "--port", "0", "--control", control, "--log", log]
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        url = process.stdout.readline().split()[-1].rstrip("/")
        yield Lab(root, url, control, log, clients, tmp_path / "home")
        process.terminate()


def hf(lab: Lab, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return lab.run("hf", "download", REPO, "--local-dir", folder, *more)


def modelscope(lab: Lab, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return lab.run("modelscope", "download", REPO, "--local-dir", folder, *more)


@pytest.mark.parametrize("client", [hf, modelscope])
def test_download_at_a_commit(lab: Lab, tmp_path: Path, client: Any) -> None:
    commit = hub_module.Digests(lab.root).commit(lab.root / REPO)
    done = client(lab, tmp_path / "got", "--revision", commit)
    assert done.returncode == 0, done.stderr
    assert lab.wrong(tmp_path / "got") == []


@pytest.mark.parametrize("client", [hf, modelscope])
def test_unknown_revision_is_refused(lab: Lab, tmp_path: Path, client: Any) -> None:
    assert client(lab, tmp_path / "got", "--revision", "0" * 40).returncode == 1


def test_hf_accepts_a_corrupt_file_and_keeps_it(lab: Lab, tmp_path: Path) -> None:
    got = tmp_path / "got"
    lab.faults({"fault": "corrupt", "match": WEIGHTS})
    assert hf(lab, got).returncode == 0
    assert lab.wrong(got) == ["model.safetensors"]
    lab.faults()
    assert hf(lab, got).returncode == 0
    assert lab.wrong(got) == ["model.safetensors"], "a second download does not repair it"
    verify = lab.run("hf", "cache", "verify", REPO, "--local-dir", got)
    digest = hashlib.sha256((lab.root / WEIGHTS).read_bytes()).hexdigest()
    assert verify.returncode == 1 and "model.safetensors" in verify.stderr + verify.stdout
    assert digest in verify.stderr + verify.stdout
    (got / "model.safetensors").unlink()
    assert hf(lab, got).returncode == 0
    assert lab.wrong(got) == []
    assert lab.run("hf", "cache", "verify", REPO, "--local-dir", got).returncode == 0


def test_modelscope_refuses_a_corrupt_file(lab: Lab, tmp_path: Path) -> None:
    got = tmp_path / "got"
    lab.faults({"fault": "corrupt", "match": WEIGHTS})
    done = modelscope(lab, got)
    assert done.returncode == 1 and "Hash mismatch" in done.stderr + done.stdout
    assert not (got / "model.safetensors").exists()
    lab.faults()
    assert modelscope(lab, got).returncode == 0
    assert lab.wrong(got) == []


@pytest.mark.parametrize("client", [hf, modelscope])
def test_a_broken_connection_is_resumed(lab: Lab, tmp_path: Path, client: Any) -> None:
    lab.faults({"fault": "stop", "match": WEIGHTS, "bytes": 15_000_000, "times": 1})
    got = tmp_path / "got"
    done = client(lab, got)
    if done.returncode:
        done = client(lab, got)
    assert done.returncode == 0, done.stderr
    assert lab.wrong(got) == []
    fetched = [line for line in lab.log.read_text().splitlines() if " GET " in line and "model.safetensors" in line]
    assert len(fetched) == 2
    rest = re.search(r"bytes=(\d+)-", fetched[1])
    # hf writes in pieces of 10 MiB and so loses what came after the last whole one.
    assert rest and 10_000_000 <= int(rest[1]) <= 15_000_000, fetched[1]


@pytest.mark.parametrize("client", [hf, modelscope])
def test_a_busy_hub_is_asked_again(lab: Lab, tmp_path: Path, client: Any) -> None:
    lab.faults({"fault": "refuse", "match": WEIGHTS, "status": 503, "times": 1, "retry_after": 1})
    got = tmp_path / "got"
    done = client(lab, got)
    if done.returncode:  # a client that gives up leaves what it has, and a second call completes it
        done = client(lab, got)
    assert done.returncode == 0, done.stderr
    assert lab.wrong(got) == []


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_wheels_serve_pip_and_uv(clients: Path, tmp_path: Path, tool: str) -> None:
    assets = Assets(cache_root())
    (tmp_path / "root").mkdir()
    command = [
        sys.executable,
        hub_module.__file__,
        str(tmp_path / "root"),
        "--port",
        "0",
        "--wheels",
        str(assets.wheels),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        links = process.stdout.readline().split()[-1] + "wheels/"
        installer = [str(assets.uv()), "pip"] if tool == "uv" else [sys.executable, "-m", "pip"]
        where = ["--target", str(tmp_path / "site")]
        wanted = [
            "install",
            "--no-deps",
            "--no-index",
            "--find-links",
            links,
            *where,
            "idna",
            "tandem-lab-sglang-shims",
        ]
        extra = ["--no-config", "--no-cache"] if tool == "uv" else ["--isolated", "--no-cache-dir"]
        subprocess.run([*installer, *wanted, *extra], check=True, capture_output=True, timeout=60)
        process.terminate()
    assert (tmp_path / "site" / "sgl_kernel" / "__init__.py").exists()

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks, downloads and the cache, without the network."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import assets
import pytest
from engines import download, lockfile, shimwheel

ROOT = Path(assets.__file__).resolve().parents[2]
REAL = ROOT / "recipes" / "locks" / "sglang-0.5.23-cp312-aarch64-cu130.lock"
ALL_LOCKS = [*assets.LOCKS, assets.WEIGHTS_LOCK, REAL]
ONE, TWO = "1" * 64, "2" * 64


@pytest.mark.parametrize("path", ALL_LOCKS, ids=lambda path: path.name)
def test_locks_pin_and_hash_everything_once(path: Path) -> None:
    pins = lockfile.read(path)
    names = [pin.name for pin in pins]
    assert pins and len(names) == len(set(names))
    assert all(pin.digests for pin in pins)
    assert "://" not in path.read_text(), "a lock names no server"


def test_locks_hold_what_the_project_says() -> None:
    engine = {pin.name: pin.version for pin in lockfile.read(assets.ENGINE_LOCK)}
    wanted = {"sglang": "0.5.23", "torch": "2.13.0+cpu", "triton": "3.9.0", "torchvision": "0.28.0"}
    assert wanted.items() <= engine.items()
    assert {"uv", shimwheel.SGLANG.name} <= engine.keys()
    assert not {"torchaudio", "torchcodec", "sglang-kernel"} & engine.keys()
    models = {pin.name: pin for pin in lockfile.read(assets.MODELS_LOCK)}
    same = {pin.name: pin for pin in lockfile.read(assets.ENGINE_LOCK)}
    assert all(same[name].digests == pin.digests for name, pin in models.items())
    real = {pin.name: pin.version for pin in lockfile.read(REAL)}
    assert real["sglang"] == "0.5.23" and real["nvidia-nccl-cu13"] == "2.30.7" and "uv" in real
    clients = {pin.name: pin.version for pin in lockfile.read(assets.CLIENTS_LOCK)}
    assert (clients["huggingface-hub"], clients["modelscope-hub"]) == ("2.4.0", "0.5.1")


def test_lock_is_read() -> None:
    text = f"# why\n\n# 39.1 MB  a.whl\nA_b==1.0+cpu \\\n    --hash=sha256:{ONE} \\\n    --hash=sha256:{TWO}\n"
    text += f"c==2 ; python_version < '3.12' \\\n    --hash=sha256:{ONE}\n"
    first, second = lockfile.parse(text)
    assert first == lockfile.Pin("a-b", "1.0+cpu", frozenset({ONE, TWO}), "", 39.1)
    assert second == lockfile.Pin("c", "2", frozenset({ONE}), "python_version < '3.12'", 0.0)
    assert lockfile.parse(first.requirement + second.requirement) == [
        lockfile.Pin("a-b", "1.0+cpu", frozenset({ONE, TWO})),
        second,
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a>=1\n", "line 1: neither a pin nor a hash: a>=1"),
        ("a==1\n", "a==1 has no hash"),
        (f"a==1 \\\n --hash=md5:{ONE}\n", "line 2: neither a pin nor a hash"),
        ("--index-url somewhere\n", "line 1: neither a pin nor a hash"),
    ],
)
def test_lock_refuses(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lockfile.parse(text)


def pin(name: str, megabytes: float, version: str = "1") -> lockfile.Pin:
    return lockfile.Pin(name, version, frozenset({ONE}), "", megabytes)


def test_batches_put_big_files_alone_and_lose_none() -> None:
    pins = [pin("small", 1), pin("triton", 285), pin("tiny", 0), pin("sglang", 39)]
    groups = download.batches(pins)
    assert [each.name for each in groups[0]] == ["triton"]
    assert sorted(each.name for group in groups for each in group) == sorted(each.name for each in pins)
    assert len(download.batches([pin(f"p{i}", 0.1) for i in range(100)])) == 4


def test_no_batch_asks_pip_for_two_versions_of_a_name() -> None:
    pins = [pin("numpy", 18.0), pin("numpy", 17.0), pin("six", 0.1), pin("six", 0.1)]
    groups = download.batches(pins)
    assert sorted(each.name for group in groups for each in group) == ["numpy", "numpy", "six", "six"]
    assert all(len({each.name for each in group}) == len(group) for group in groups)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Instead of pip: notes the calls, and has torch's CPU build only at the other index."""
    calls: list[tuple[str, ...]] = []

    def run(folder: Path, *arguments: str) -> str:
        calls.append(arguments)
        listed = Path(arguments[2]).read_text() if "--requirement" in arguments else ""
        if "+cpu" in listed and "--index-url" not in arguments:
            return "ERROR: No matching distribution found"
        return "ERROR: unreachable" if "missing" in listed else ""

    monkeypatch.setattr(download, "_pip_download", run)
    return calls


def test_the_other_index_is_asked_for_torch_only(pip: list[tuple[str, ...]], tmp_path: Path) -> None:
    download.wheels([pin("a", 1), pin("torch", 190, "2.13.0+cpu")], tmp_path, tmp_path)
    asked = [call for call in pip if "--index-url" in call]
    assert len(pip) == 3 and len(asked) == 1
    assert asked[0][-4:] == ("--index-url", download.TORCH_INDEX, "--retries", "0")
    assert Path(asked[0][2]).read_text().startswith("torch==2.13.0+cpu")


def test_a_failed_download_says_so(pip: list[tuple[str, ...]], tmp_path: Path) -> None:
    with pytest.raises(download.DownloadError, match=r"(?s)could not fetch.*ERROR: unreachable"):
        download.wheels([pin("missing", 1)], tmp_path, tmp_path)


def test_no_python_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PYTHON", (3, 2))
    monkeypatch.setenv("TANDEM_PYTHON", sys.executable)
    with pytest.raises(download.DownloadError, match="Python 3.2 .* none was found. Install python3.2"):
        download.find_python.__wrapped__()


@pytest.fixture
def cache(tmp_path: Path) -> assets.Assets:
    return assets.Assets(tmp_path / "cache")


def wheel(folder: Path, name: str, data: bytes) -> lockfile.Pin:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}-1-py3-none-any.whl").write_bytes(data)
    return lockfile.Pin(name, "1", frozenset({hashlib.sha256(data).hexdigest()}))


def test_missing_is_judged_by_content(cache: assets.Assets) -> None:
    right, wrong = wheel(cache.wheels, "right", b"1"), wheel(cache.wheels, "wrong", b"2")
    (cache.wheels / "wrong-1-py3-none-any.whl").write_bytes(b"3")
    assert cache.missing(cache.wheels, [right, wrong]) == [wrong]


def test_fetch_asks_for_what_is_missing_and_publishes_whole_files(
    cache: assets.Assets, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = wheel(cache.wheels, "here", b"1")
    coming = lockfile.Pin("coming", "1", frozenset({hashlib.sha256(b"2").hexdigest()}))
    asked: list[Any] = []

    def fetch(pins: list[lockfile.Pin], folder: Path, scratch: Path) -> None:
        asked.extend(pins)
        assert folder != cache.wheels
        wheel(folder, "coming", b"2")

    monkeypatch.setattr(download, "wheels", fetch)
    cache._fetch(cache.wheels, [here, coming], "wheels")
    cache._fetch(cache.wheels, [here, coming], "wheels")
    assert asked == [coming]
    assert "all 2 there" in capsys.readouterr().out
    assert sorted(path.name for path in cache.root.iterdir()) == [".wheels.digests.json", "wheels"]


def test_fetch_does_not_believe_a_download(cache: assets.Assets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "wheels", lambda pins, folder, scratch: None)
    (cache.root).mkdir()
    with pytest.raises(download.DownloadError, match="Still missing .*: gone 1"):
        cache._fetch(cache.wheels, [lockfile.Pin("gone", "1", frozenset({ONE}))], "wheels")


def test_published_is_all_or_nothing(tmp_path: Path) -> None:
    target = tmp_path / "models" / "x"
    with pytest.raises(RuntimeError), assets.published(target) as folder:
        (folder / "half").touch()
        raise RuntimeError
    assert list(target.parent.iterdir()) == []
    for text in ("one", "two"):
        with assets.published(target) as folder:
            (folder / text).touch()
    assert [path.name for path in target.iterdir()] == ["two"]
    assert [path.name for path in target.parent.iterdir()] == ["x"]


def test_definition_of_the_models_follows_scripts_and_pins(
    cache: assets.Assets, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert assets.Assets(cache.root).models == cache.models
    monkeypatch.setitem(assets.MODEL_ENVIRONMENT, "OMP_NUM_THREADS", "2")
    assert assets.Assets(cache.root).models != cache.models


def test_hub_is_arranged_by_hard_links_and_follows_the_models(cache: assets.Assets, capsys: Any) -> None:
    for model in assets.REPOSITORIES.values():
        (cache.models / model).mkdir(parents=True)
        (cache.models / model / "config.json").write_text(model)
    cache.arrange_hub()
    first = capsys.readouterr().out
    repo = cache.hub / assets.OWNER / "tiny-random"
    assert (repo / "config.json").samefile(cache.models / "tiny" / "config.json")
    cache.arrange_hub()
    assert capsys.readouterr().out == first
    (cache.models / "tiny" / "more.txt").write_text("new")
    cache.arrange_hub()
    assert (repo / "more.txt").exists()
    changed = set(first.splitlines()) ^ set(capsys.readouterr().out.splitlines())
    assert len(changed) == 2 and all("tiny-random" in line for line in changed)
    assert json.loads((cache.root / "hub.digests.json").read_text())


def test_leftovers_of_a_killed_run_are_swept(cache: assets.Assets) -> None:
    left = [cache.root / ".fetch.x", cache.root / "models" / ".y.z", cache.hub / assets.OWNER / ".tiny.x"]
    kept = [cache.root / "models" / "y", cache.hub / assets.OWNER / "tiny", cache.wheels]
    for path in (*left, *kept):
        (path / "more").mkdir(parents=True)
    cache.sweep()
    assert not any(path.exists() for path in left) and all(path.exists() for path in kept)


def test_command_line(tmp_path: Path) -> None:
    script = Path(assets.__file__)
    environment = {"TANDEM_CACHE": str(tmp_path), "PATH": ""}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, script, *arguments]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    assert run("path", "hub").stdout == f"{tmp_path}/hub\n"
    done = run("nothing")
    assert done.returncode == 2 and "invalid choice" in done.stderr

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from engines import download, llama, lockfile

LOCK = Path(llama.__file__).resolve().parent / "llama" / "requirements.lock"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages with programs that say their names, and a loader that runs what it is given."""
    root = tmp_path / "root"
    libraries = root / llama.LIBRARIES
    (libraries / "ggml/backends0").mkdir(parents=True)
    (libraries / "ggml/backends0/libggml-rpc.so").write_text("a back end")
    (libraries / "libc.so.6").write_text("a libc")
    loader = libraries / llama.LOADER
    loader.write_text(
        '#!/bin/sh\nif [ "$1" = --list ]; then\n'
        f"  echo '\tlibc.so.6 => {libraries}/libc.so.6 (0x00)'\n  echo '\t{llama.LOADER} => {loader} (0x00)'\n"
        'else\n  shift 2\n  exec sh "$@"\nfi\n'
    )
    loader.chmod(0o755)
    for name, place in llama.PROGRAMS.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(f'echo {name} "$@"\n')
    return root


def test_the_same_bytes_each_time(root: Path, tmp_path: Path) -> None:
    wheels = [llama.build(root, tmp_path / name) for name in ("one", "two")]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()


def test_c48_both_programs_of_one_build_are_in_it_and_run(root: Path, tmp_path: Path) -> None:
    wheel = llama.build(root, tmp_path / "wheels")
    with zipfile.ZipFile(wheel) as packed:
        modes = {Path(info.filename).name: stat.S_IMODE(info.external_attr >> 16) for info in packed.infolist()}
    assert modes["llama-server"] == modes["ggml-rpc-server"] == modes[llama.LOADER] == 0o755
    assert modes["libggml-rpc.so"] == modes["libc.so.6"] == 0o644
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(tmp_path / "venv/bin/python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    for name in llama.PROGRAMS:
        done = subprocess.run([tmp_path / "venv/bin" / name, "a b"], capture_output=True, text=True, check=True)
        assert done.stdout == f"{name} a b\n"


def test_every_package_is_pinned() -> None:
    packages = llama.packages(llama.PACKAGES_LOCK.read_text(encoding="utf-8"))
    assert {"llama.cpp-tools", "llama.cpp-tools-extra", "libggml0-backend-rpc"} <= {each.name for each in packages}
    assert all(re.fullmatch(r"[0-9a-f]{64}", each.sha256) and each.version for each in packages)


def test_the_lock_has_that_build() -> None:
    (pin,) = [pin for pin in lockfile.read(LOCK) if pin.name == llama.NAME]
    assert pin.version == llama.BUILD


def test_an_archive_without_the_versions_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_folder: Path, mirror: str) -> None:
        raise download.DownloadError(f"{mirror}: no such version")

    monkeypatch.delenv("TANDEM_DEBIAN_MIRROR", raising=False)
    monkeypatch.setattr(llama, "_fetch", refuse)
    with pytest.raises(download.DownloadError) as stop:
        llama.fetch(tmp_path)
    assert all(mirror in str(stop.value) for mirror in llama.MIRRORS) and "TANDEM_DEBIAN_MIRROR" in str(stop.value)

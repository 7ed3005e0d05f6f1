# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shims' wheel is what the engine's lock says, and does what the engine needs of it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from engines import lockfile, shimwheel

ENGINES = Path(shimwheel.__file__).resolve().parent
SOURCE = ENGINES / "sglang" / "shims"
OWN = [(shimwheel.SGLANG, "sglang"), (shimwheel.VLLM, "vllm"), (shimwheel.VLLM_NAME, "vllm")]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return shimwheel.SGLANG.build(tmp_path / "wheels")


@pytest.mark.parametrize(("shims", "engine"), OWN, ids=lambda each: getattr(each, "name", each))
def test_hash_stands_in_the_lock(shims: shimwheel.Shims, engine: str, tmp_path: Path) -> None:
    (pin,) = [pin for pin in lockfile.read(ENGINES / engine / "requirements.lock") if pin.name == shims.name]
    digest = hashlib.sha256(shims.build(tmp_path).read_bytes()).hexdigest()
    assert pin.version == shims.version
    assert pin.digests == {digest}, f"the shims changed: run tests/lab/engines/lock.py {engine}"


def test_same_bytes_from_another_checkout(wheel: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for path in SOURCE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            target = copy / path.relative_to(SOURCE)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
            target.chmod(0o600)
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "labvision.pyc").write_bytes(b"not a part of it")
    assert shimwheel.SGLANG.build(tmp_path / "other", copy).read_bytes() == wheel.read_bytes()


def test_no_shims_no_wheel(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no shims"):
        shimwheel.SGLANG.build(tmp_path / "out", tmp_path / "empty")


def test_pip_accepts_it(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*command, str(wheel)], check=True)
    assert (site / "labvision.pth").read_text().strip() == "import labvision"
    assert (site / "sgl_kernel" / "__init__.py").exists()


def test_stub_imports_any_name_and_calls_none(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")
    code = """
from sgl_kernel import anything, else_
try:
    anything(1)
except NotImplementedError as error:
    assert "sgl_kernel.anything" in str(error)
else:
    raise SystemExit("the stub was called and said nothing")
import sgl_kernel
assert not hasattr(sgl_kernel, "__unknown__")
"""
    subprocess.run([sys.executable, "-S", "-c", code], check=True, env={"PYTHONPATH": str(tmp_path / "site")})


def test_operators_are_declared_when_torchvision_is_imported(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("from torch import library\n")
    (site / "torch" / "library.py").write_text(
        "SEEN = []\n"
        "class Library:\n"
        "    def __init__(self, name, kind): self.name = name\n"
        "    def define(self, schema): SEEN.append((self.name, schema.split('(')[0]))\n"
    )
    (site / "torchvision.py").write_text("")
    code = """
import sys, labvision
assert "torch" not in sys.modules
import torchvision, torch
assert torch.library.SEEN == [("torchvision", "nms"), ("torchvision", "qnms")], torch.library.SEEN
"""
    subprocess.run([sys.executable, "-S", "-c", code], check=True, env={"PYTHONPATH": str(site)})

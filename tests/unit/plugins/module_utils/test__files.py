# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import os
import stat

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _files


def test_read_text(tmp_path):
    (tmp_path / "f").write_bytes(b"a\xff")
    assert _files.read_text(str(tmp_path / "f")) == "a\ufffd"
    assert _files.read_text(str(tmp_path / "absent")) is None


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_replace_writes_in_one_rename(tmp_path, mode):
    path = tmp_path / "f"
    path.write_text("old")
    inode = path.stat().st_ino
    old_umask = os.umask(0o077)
    try:
        _files.replace(str(path), b"new", mode)
    finally:
        os.umask(old_umask)
    assert path.read_bytes() == b"new" and stat.S_IMODE(path.stat().st_mode) == mode
    assert path.stat().st_ino != inode and os.listdir(tmp_path) == ["f"]


def test_a_failed_replace_leaves_nothing(tmp_path):
    (tmp_path / "f").mkdir()
    (tmp_path / "f/inside").touch()
    with pytest.raises(OSError):
        _files.replace(str(tmp_path / "f"), b"new", 0o600)
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_sha256(tmp_path, size):
    content = b"x" * size
    (tmp_path / "f").write_bytes(content)
    for drop in (False, True):
        assert _files.sha256(str(tmp_path / "f"), drop_cache=drop) == hashlib.sha256(content).hexdigest()
    _files.sync_directory(str(tmp_path))

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import threading
import time

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _lock


def test_one_at_a_time(tmp_path):
    path = str(tmp_path)
    (tmp_path / "other").mkdir()
    with _lock.alone(path, 1):
        with pytest.raises(_lock.BusyError, match=f"process {os.getpid()} on this node"), _lock.alone(path, 0):
            pass
        with _lock.alone(str(tmp_path / "other"), 0):
            pass
    with _lock.alone(path, 0):
        assert [entry.name for entry in tmp_path.iterdir()] == ["other"]


def test_the_second_waits_for_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(_lock, "POLL_S", 0.01)
    path, order, inside = str(tmp_path), [], threading.Event()

    def first():
        with _lock.alone(path, 5):
            inside.set()
            time.sleep(0.2)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(5)
    with _lock.alone(path, 5):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


def test_a_holder_that_fails_lets_go(tmp_path):
    with pytest.raises(OSError, match="x"), _lock.alone(str(tmp_path), 1):
        raise OSError("x")
    with _lock.alone(str(tmp_path), 0):
        pass

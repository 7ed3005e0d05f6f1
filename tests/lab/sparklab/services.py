# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the lab serves on its gateway address: the model hub and the wheel directory."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

from .cgroups import group
from .host import ProcessRef, wait_until
from .names import HUB_PORT, LAB_DIR, Names, cache_dir

HUB = LAB_DIR / "hub" / "hub.py"
WHAT = "hub"


def hub_url(names: Names) -> str:
    return f"http://{names.gateway}:{HUB_PORT}"


def reference(state: dict[str, Any]) -> ProcessRef | None:
    saved = state.get("hub")
    return ProcessRef(saved["pid"], saved["started"]) if saved else None


def ensure_hub(names: Names, state: dict[str, Any]) -> str:
    """Start the hub unless it runs; returns a sentence about it. The caller saves the state."""
    running = reference(state)
    if running and running.alive():
        return f"hub: {hub_url(names)} (pid {running.pid})"
    if not HUB.exists():
        state["hub"] = None
        return f"hub: skipped, {HUB.relative_to(LAB_DIR.parent.parent)} does not exist"
    root, wheels = cache_dir() / "hub", cache_dir() / "wheels"
    for folder in (root, wheels):
        folder.mkdir(parents=True, exist_ok=True)
    log = names.state_dir / "hub.log"
    argv = [sys.executable, str(HUB), str(root), "--bind", names.gateway, "--port", str(HUB_PORT)]
    argv += ["--wheels", str(wheels)]
    env = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
    owner = group(names, WHAT)
    owner.kill()  # one that is there but not the recorded one, after a crash
    started = owner.launch(argv, {**env, "PYTHONUNBUFFERED": "1"}, log)
    state["hub"] = {"pid": started.pid, "started": started.started}
    if not wait_until(lambda: _answers(names) or not started.alive(), 10, 0.05) or not started.alive():
        return f"hub: does not answer; its last words: {_tail(log)}"
    return f"hub: {hub_url(names)} (pid {started.pid})"


def _answers(names: Names) -> bool:
    try:
        with socket.create_connection((names.gateway, HUB_PORT), timeout=1):
            return True
    except OSError:
        return False


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else f"none (see {log})"

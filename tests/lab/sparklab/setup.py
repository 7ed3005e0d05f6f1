# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install what the host lacks."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from . import LabError
from .host import FILES, TEST_TOOLS, TOOLS, missing_tools, require_root, run

LOCK_WAIT = "DPkg::Lock::Timeout=300"  # another apt run on this machine is no reason to fail


def missing_packages(tests: bool = False) -> dict[str, str]:
    """Package -> why the lab wants it, or why *tests* do."""
    tools = TOOLS | TEST_TOOLS if tests else TOOLS
    wanted = dict(tools[tool] for tool in missing_tools(list(tools)))
    wanted |= {package: why for file, package, why in FILES if not Path(file).exists()}
    if importlib.util.find_spec("yaml") is None:
        wanted["python3-yaml"] = "reads the lab files"
    return wanted


def setup(tests: bool = False) -> None:
    require_root()
    wanted = missing_packages(tests)
    if not wanted:
        print("everything the lab needs is installed")
        return
    for package, why in wanted.items():
        print(f"installing {package}: {why}", flush=True)
    if shutil.which("apt-get") is None:
        raise LabError(f"this machine has no apt-get; install what provides {', '.join(wanted)} by hand")
    run("apt-get", "-o", LOCK_WAIT, "-q", "update", timeout=600)
    run("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", LOCK_WAIT, "-q", "-y", "--no-install-recommends",
        "install", *wanted, timeout=1200)  # fmt: skip
    if left := missing_packages(tests):
        raise LabError(f"apt installed them, but still missing is what provides {', '.join(left)}")
    print("everything the lab needs is installed now")

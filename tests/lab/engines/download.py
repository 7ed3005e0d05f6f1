# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetches wheels with pip, the way pip is configured on this machine.

The lab's engine runs on Python 3.11 (torch's CPU build is taken for that one), whatever Python runs the lab itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from engines.lockfile import Pin

PYTHON = (3, 11)
TORCH = "2.13.0"
# Where PyTorch publishes its CPU builds. Asked only when pip's own configuration does not find the build.
TORCH_INDEX = os.environ.get("TANDEM_TORCH_INDEX", "https://download.pytorch.org/whl/cpu")


class DownloadError(RuntimeError):
    """Something could not be fetched; the text says what and why, in a line or two."""


def works(command: list[str]) -> bool:
    """Whether *command* ends well."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@cache
def find_python() -> str:
    """A Python 3.11 that can make environments, or an error that says what to install."""
    wanted = ".".join(map(str, PYTHON))
    names = [os.environ.get("TANDEM_PYTHON", ""), sys.executable, shutil.which(f"python{wanted}") or ""]
    for name in [*names, f"/usr/bin/python{wanted}", f"/usr/local/bin/python{wanted}"]:
        test = f"import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != {PYTHON})"
        if name and Path(name).exists() and works([name, "-c", test]):
            return name
    raise DownloadError(
        f"The lab's engine needs Python {wanted} with its venv module, and none was found. "
        f"Install python{wanted} and python{wanted}-venv, or name one in TANDEM_PYTHON."
    )


@cache
def find_pip() -> tuple[str, ...]:
    """A pip of that Python; an environment of the lab's own when the Python has none."""
    python = find_python()
    if works([python, "-m", "pip", "--version"]):
        return (python, "-m", "pip")
    home = cache_root() / "venv-pip"
    if not (home / "bin" / "pip").exists():
        subprocess.run([python, "-m", "venv", "--clear", str(home)], check=True)
    return (str(home / "bin" / "python"), "-m", "pip")


def cache_root() -> Path:
    """Where everything that the lab fetches or makes is kept: ``TANDEM_CACHE``, else ``~/.cache/tandem``."""
    return Path(os.environ.get("TANDEM_CACHE") or Path.home() / ".cache" / "tandem").expanduser().absolute()


def _pip_download(folder: Path, *arguments: str) -> str:
    """Run ``pip download``; the empty string, or what pip complained about."""
    command = [*find_pip(), "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    done = subprocess.run([*command, "--dest", str(folder), *arguments], capture_output=True, text=True, check=False)
    complaint = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return "" if not done.returncode else "\n".join(complaint[:3] or done.stderr.splitlines()[-3:] or ["pip failed"])


def torch(folder: Path) -> None:
    """torch's CPU build, not hash-checked: for the tool that writes the lock."""
    trouble = _pip_download(folder, f"torch=={TORCH}+cpu")
    if trouble and _pip_download(folder, f"torch=={TORCH}+cpu", "--index-url", TORCH_INDEX, "--retries", "0"):
        where = f"neither by pip's own configuration nor at {TORCH_INDEX}"
        raise DownloadError(f"torch {TORCH}+cpu was found {where}: {trouble}")


def batches(pins: list[Pin], limit: float = 60.0) -> list[list[Pin]]:
    """Split for parallel runs: big files alone and first, the small ones some megabytes together.

    pip takes one version of a name at a time, and locks can want several.
    """
    groups: list[list[Pin]] = []
    room = 0.0
    for pin in sorted(pins, key=lambda each: -each.megabytes):
        cost = pin.megabytes + 2.0  # every file also costs a look-up
        if cost > room or pin.name in {each.name for each in groups[-1]}:
            groups.append([])
            room = limit
        groups[-1].append(pin)
        room -= cost
    return groups


def wheels(pins: list[Pin], folder: Path, scratch: Path, workers: int = 6) -> None:
    """Fetch exactly the locked files into ``folder``; pip checks every hash."""

    def fetch(index: int, group: list[Pin]) -> str:
        listed = scratch / f"batch-{index}.txt"
        listed.write_text("".join(pin.requirement for pin in group), encoding="utf-8")
        arguments = ["--require-hashes", "--requirement", str(listed)]
        trouble = _pip_download(folder, *arguments)
        if trouble and any(pin.version.endswith("+cpu") for pin in group):
            second = _pip_download(folder, *arguments, "--index-url", TORCH_INDEX, "--retries", "0")
            trouble = second and f"{trouble}\nand at {TORCH_INDEX}: {second}"
        return trouble

    # What PyPI does not have travels alone, so that the other index is asked for nothing else.
    apart = [[pin] for pin in pins if "+" in pin.version]
    groups = apart + batches([pin for pin in pins if "+" not in pin.version])
    with ThreadPoolExecutor(workers) as pool:
        troubles = [each for each in pool.map(fetch, range(len(groups)), groups) if each]
    if troubles:
        raise DownloadError("pip could not fetch what the lock names:\n" + "\n".join(troubles))

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Regenerate the project's lock files of Python packages: ``lock.py [--upgrade] [NAME …]``.

A developer's tool; it needs ``uv`` and ``packaging`` (and the network). Without ``--upgrade`` the pins that a lock has
are kept and only what its requirements force is changed.

=========  ======================================================================  ====================================
NAME       what for                                                                written to
=========  ======================================================================  ====================================
sglang     the lab's engine: released SGLang beside a CPU build of torch, x86_64   tests/lab/engines/sglang/
models     what makes the lab's models: a part of the same pins                    tests/lab/models/
hub        the two hub clients, for lab and Spark: x86_64 and aarch64, 3.11, 3.12  roles/model/files/
vllm       the lab's other engine: a CPU build of vLLM, with Ray, x86_64           tests/lab/engines/vllm/
llama      the lab's llama.cpp, a wheel made of Debian's packages, x86_64          tests/lab/engines/llama/
real       SGLang for a real Spark: aarch64, Python 3.12, CUDA 13                  recipes/locks/
real-vllm  vLLM for a real Spark; real-vllm-ray: with Ray                          recipes/locks/
convert    llm-compressor for a real Spark: aarch64, Python 3.12, CUDA 13          roles/convert/files/
=========  ======================================================================  ====================================

uv resolves; the hashes kept are those of the wheels that fit the target (``one_file``: of the best one only). Sources
are refused: what is installed is what was locked. torch's CPU build is taken from where pip's own configuration finds
it, else from PyTorch's CPU index (``TANDEM_TORCH_INDEX``).
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import tomllib
from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engines import download, llama, lockfile, shimwheel

REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Target:
    """One lock file and how it is made."""

    output: str
    why: str
    pythons: tuple[tuple[int, int], ...]
    machines: tuple[str, ...]
    glibc: int  # minor version of the oldest glibc that the lock is for
    requirements: str = ""  # a file; its folder may hold overrides.txt and excludes.txt
    inline: tuple[str, ...] = ()  # requirements without a file
    one_file: bool = False
    local: bool = False  # wants torch's CPU build and our shims
    constrained_by: str = ""

    @property
    def universal(self) -> bool:
        return len(self.pythons) * len(self.machines) > 1


TARGETS = {
    "sglang": Target(
        output="tests/lab/engines/sglang/requirements.lock",
        requirements="tests/lab/engines/sglang/requirements.in",
        why="The lab's engine: the released SGLang with a CPU build of torch, x86_64, Python 3.11, glibc >= 2.34.\n"
        "# The complete closure: install it with --no-deps. What only a GPU needs is left out (excludes.txt);\n"
        "# torch and triton are not the versions that sglang declares (overrides.txt).",
        pythons=((3, 11),),
        machines=("x86_64",),
        glibc=34,
        one_file=True,
        local=True,
    ),
    "models": Target(
        output="tests/lab/models/requirements.lock",
        requirements="tests/lab/models/requirements.in",
        why="What makes the lab's models. The same pins and files as the engine's lock: one download serves both.",
        pythons=((3, 11),),
        machines=("x86_64",),
        glibc=34,
        one_file=True,
        local=True,
        constrained_by="tests/lab/engines/sglang/requirements.lock",
    ),
    "hub": Target(
        output="roles/model/files/hub-clients.lock",
        requirements="tests/lab/hub/clients.in",
        why="The clients that fetch models: hf (Hugging Face) and modelscope. Python 3.11, 3.12; x86_64, aarch64.",
        pythons=((3, 11), (3, 12)),
        machines=("x86_64", "aarch64"),
        glibc=34,
    ),
    "vllm": Target(
        output="tests/lab/engines/vllm/requirements.lock",
        requirements="tests/lab/engines/vllm/requirements.in",
        why="The lab's vLLM: a community's CPU build, with Ray, x86_64, Python 3.11, glibc >= 2.34.\n"
        "# The complete closure: install it with --no-deps. What only a GPU needs is left out (excludes.txt).",
        pythons=((3, 11),),
        machines=("x86_64",),
        glibc=34,
        one_file=True,
        local=True,
    ),
    "llama": Target(
        output="tests/lab/engines/llama/requirements.lock",
        requirements="tests/lab/engines/llama/requirements.in",
        why="The lab's llama.cpp: llama-server and ggml-rpc-server of one build, x86_64. llama.py makes the wheel.",
        pythons=((3, 11),),
        machines=("x86_64",),
        glibc=34,
        one_file=True,
        local=True,
    ),
    "real": Target(
        output="recipes/locks/sglang-0.5.23-cp312-aarch64-cu130.lock",
        inline=("sglang==0.5.23", "uv==0.13.9"),
        why="SGLang 0.5.23 for a DGX Spark: aarch64, Python 3.12, glibc 2.39 (DGX OS 7, Ubuntu 24.04), CUDA 13.\n"
        "# torch 2.14.1 for aarch64 on PyPI is the +cu130 build; NCCL 2.30.7 comes with it as nvidia-nccl-cu13.\n"
        "# Wheels only: every package of the closure has one for aarch64, no source is built on the node.\n"
        "# Resolved and hashed, not yet installed on a Spark.",
        pythons=((3, 12),),
        machines=("aarch64",),
        glibc=39,
    ),
    "real-vllm": Target(
        output="recipes/locks/vllm-0.33.0-cp312-aarch64-cu130.lock",
        inline=("vllm==0.33.0", "uv==0.13.9"),
        why="vLLM 0.33.0 for a DGX Spark: aarch64, Python 3.12, glibc 2.39 (DGX OS 7, Ubuntu 24.04), CUDA 13.\n"
        "# For engine.backend mp; it does not need Ray. Resolved and hashed, not yet installed on a Spark.",
        pythons=((3, 12),),
        machines=("aarch64",),
        glibc=39,
    ),
    "real-vllm-ray": Target(
        output="recipes/locks/vllm-0.33.0-ray-2.60.0-cp312-aarch64-cu130.lock",
        inline=("vllm==0.33.0", "ray[default]==2.60.0", "uv==0.13.9"),
        why="vLLM 0.33.0 with Ray 2.60.0 for a DGX Spark, for engine.backend ray; else as the lock without Ray.\n"
        "# Resolved and hashed, not yet installed on a Spark.",
        pythons=((3, 12),),
        machines=("aarch64",),
        glibc=39,
        constrained_by="recipes/locks/vllm-0.33.0-cp312-aarch64-cu130.lock",
    ),
    "convert-lab": Target(
        output="tests/lab/engines/llmcompressor/requirements.lock",
        requirements="tests/lab/engines/llmcompressor/requirements.in",
        why="What converts models in the lab: llm-compressor with a CPU build of torch, x86_64, Python 3.11.",
        pythons=((3, 11),),
        machines=("x86_64",),
        glibc=34,
        one_file=True,
        local=True,
    ),
    "convert": Target(
        output="roles/convert/files/llmcompressor-0.14.0.1-cp312-aarch64.lock",
        inline=("llmcompressor==0.14.0.1", "uv==0.13.9"),
        why="llm-compressor 0.14.0.1 for a DGX Spark: aarch64, Python 3.12, glibc 2.39 (DGX OS 7), CUDA 13.\n"
        "# Resolved and hashed, not yet installed on a Spark.",
        pythons=((3, 12),),
        machines=("aarch64",),
        glibc=39,
    ),
}


def tags(target: Target) -> list[list[Tag]]:
    """The wheel tags that fit, best first, one list for each Python and machine of the target."""
    lists = []
    for python, machine in itertools.product(target.pythons, target.machines):
        platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(target.glibc, 4, -1)]
        platforms = [p for each in platforms for p in (each, *_legacy(each, machine))] + [f"linux_{machine}"]
        cpython = cpython_tags(python_version=python, abis=[f"cp{python[0]}{python[1]}"], platforms=platforms)
        other = compatible_tags(python_version=python, interpreter=f"cp{python[0]}{python[1]}", platforms=platforms)
        lists.append([*cpython, *other])
    return lists


def environments(target: Target) -> Iterator[dict[str, str]]:
    """What markers are evaluated against: CPython on Linux, for each Python and machine of the target."""
    for (major, minor), machine in itertools.product(target.pythons, target.machines):
        yield {
            "implementation_name": "cpython",
            "os_name": "posix",
            "platform_machine": machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{major}.{minor}.2",
            "python_version": f"{major}.{minor}",
            "sys_platform": "linux",
        }


def _legacy(platform: str, machine: str) -> tuple[str, ...]:
    minor = int(platform.split("_")[2])
    names = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    return (f"{names[minor]}_{machine}",) if minor in names else ()


def resolve(target: Target, upgrade: bool, scratch: Path, wheels: Path) -> list[dict[str, Any]]:
    """uv's resolution as the packages of a pylock (which, unlike pip's format, names the file of each hash)."""
    pylock = scratch / "pylock.toml"
    source = REPOSITORY / target.requirements if target.requirements else scratch / "requirements.in"
    if target.inline:
        source.write_text("\n".join(target.inline) + "\n", encoding="utf-8")
    command = [*uv_command(target, source), "--format", "pylock.toml", "--output-file", str(pylock), "--quiet"]
    if target.local:
        command += ["--find-links", str(wheels)]
    bounds = [REPOSITORY / target.constrained_by] if target.constrained_by else []
    bounds += [REPOSITORY / target.output] if not upgrade else []
    for index, bound in enumerate(path for path in bounds if path.exists()):
        constraints = scratch / f"constraints-{index}.txt"
        pins = [f"{p.name}=={p.version}" + (f" ; {p.marker}" if p.marker else "") for p in lockfile.read(bound)]
        constraints.write_text("\n".join(pins) + "\n", encoding="utf-8")
        command += ["--constraints", str(constraints)]
    subprocess.run(command, check=True)
    packages: list[dict[str, Any]] = tomllib.loads(pylock.read_text(encoding="utf-8"))["packages"]
    return packages


def uv_command(target: Target, source: Path | str) -> list[str]:
    """The resolver's command line, without what is only for this run."""
    python = ".".join(map(str, min(target.pythons)))
    command = ["uv", "pip", "compile", str(source), "--no-config", "--python-version", python, "--only-binary", ":all:"]
    if target.universal:
        command += ["--universal"]
    else:
        command += ["--python-platform", f"{target.machines[0]}-manylinux_2_{target.glibc}"]
    if target.requirements:
        for name in ("overrides", "excludes"):
            if (extra := REPOSITORY / Path(target.requirements).parent / f"{name}.txt").exists():
                command += [f"--{name}", str(extra)]
    return command


def files_of(package: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    """File name, SHA-256 and size of every wheel of a package."""
    for wheel in package.get("wheels", []):
        url = urlsplit(wheel.get("url") or wheel["path"])
        path = Path(unquote(url.path))
        local = path if url.scheme in {"", "file"} else None
        digest = wheel["hashes"]["sha256"]
        if local and hashlib.sha256(local.read_bytes()).hexdigest() != digest:
            raise ValueError(f"{local} is not the file that uv saw")
        yield path.name, digest, local.stat().st_size if local else wheel.get("size", 0)


def fitting(package: dict[str, Any], target: Target, fits: list[list[Tag]]) -> list[tuple[str, str, int]]:
    """The wheels that some machine of the target can install, the best first; an error when one has none."""
    found: dict[str, tuple[int, tuple[str, str, int]]] = {}
    missing = 0
    for order in fits:
        rank = {tag: index for index, tag in enumerate(order)}
        usable = [
            (min(rank[tag] for tag in wheel_tags), wheel)
            for wheel in files_of(package)
            if (wheel_tags := parse_wheel_filename(wheel[0])[3] & rank.keys())
        ]
        missing += not usable
        for place, wheel in usable:
            found[wheel[1]] = min(found.get(wheel[1], (place, wheel)), (place, wheel))
    if missing:
        raise ValueError(f"{package['name']} {package['version']} has no wheel for one of {target.machines}")
    wheels = [wheel for _place, wheel in sorted(found.values())]
    return wheels[:1] if target.one_file else sorted(wheels, key=lambda wheel: wheel[1])


def render(name: str, target: Target, packages: list[dict[str, Any]]) -> str:
    """The lock file's text."""
    shown = " ".join(uv_command(target, "-" if target.inline else target.requirements)).replace(f"{REPOSITORY}/", "")
    if target.inline:
        shown = "printf '" + "".join(f"{line}\\n" for line in target.inline) + "' | " + shown
    lines = [f"# {target.why}", f"# Made by: tests/lab/engines/lock.py {name}", f"# which ran: {shown}", ""]
    fits = tags(target)
    for package in sorted(packages, key=lambda each: str(each["name"])):
        marker = package.get("marker", "")
        applies = {Marker(marker).evaluate(each) for each in environments(target)} if marker else {True}
        if True not in applies:  # for another system
            continue
        marker = marker if False in applies else ""
        wheels = fitting(package, target, fits)
        if target.one_file:
            lines.append(f"# {wheels[0][2] / 1e6:.1f} MB  {wheels[0][0]}")
        digests = [wheel[1] for wheel in wheels]
        lines.append(lockfile.render_pin(package["name"], package["version"], marker, digests).rstrip("\n"))
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TARGETS)}; all when left out")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that the requirements allow")
    args = parser.parse_args()
    if unknown := set(args.names) - set(TARGETS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    if not shutil.which("uv"):
        print("lock.py needs uv: pip install uv", file=sys.stderr)
        return 2
    os.environ.setdefault("UV_NO_PROGRESS", "1")
    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder) / "wheels"
        for name in args.names or TARGETS:
            target = TARGETS[name]
            if target.local and not wheels.exists():
                for shims in shimwheel.ALL:
                    shims.build(wheels)
                llama.make(Path(folder) / "packages", wheels)
                download.torch(wheels)
            scratch = Path(folder) / name
            scratch.mkdir()
            text = render(name, target, resolve(target, args.upgrade, scratch, wheels))
            output = REPOSITORY / target.output
            before = output.read_text(encoding="utf-8") if output.exists() else ""
            output.write_text(text, encoding="utf-8")
            print(f"{name}: {len(lockfile.read(output))} packages, {'unchanged' if text == before else 'written'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

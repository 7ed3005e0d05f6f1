# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""llama.cpp for the lab: Debian's packages, unpacked and put into one wheel with both programs and their own libc.

A wheel, so that the engine role installs it like every other engine, and server and RPC server are of one build. The
guests are older than the packages, so each program is started through the packages' own loader. Debian's RPC back end
speaks TCP; RDMA is for real machines (docs/engines.md).
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engines import shimwheel
from engines.download import DownloadError

NAME, BUILD = "tandem-lab-llama-cpp", "11669"
TAG = "py3-none-linux_x86_64"
STEM = f"{NAME.replace('-', '_')}-{BUILD}"
FILENAME = f"{STEM}-{TAG}.whl"
PACKAGES_LOCK = Path(__file__).resolve().parent / "llama" / "packages.lock"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# sid itself, and a day on which it had these versions. TANDEM_DEBIAN_MIRROR, when it is set, is asked instead.
MIRRORS = ("http://deb.debian.org/debian", "http://snapshot.debian.org/archive/debian/20261130T000000Z")
LIBRARIES = "usr/lib/x86_64-linux-gnu"
LOADER = "ld-linux-x86-64.so.2"
PROGRAMS = {
    "llama-server": "usr/bin/llama-server",
    "ggml-rpc-server": "usr/libexec/x86_64-linux-gnu/llama/bin/ggml-rpc-server",
}
CONVERTER = "usr/share/doc/llama.cpp-tools/scripts/convert_hf_to_gguf.py"
# The converter wants its own modules, and a gguf newer than the index has.
CONVERTER_PATH = ("usr/lib/python3/dist-packages", "usr/share/llama.cpp/llama.cpp-tools")
# ggml looks for its back ends beside the executable, which is the loader.
WRAPPER = """\
#!/bin/sh
home=$(dirname "$(readlink -f "$0")")/../lib/llama-cpp
exec "$home/{loader}" --library-path "$home" "$home/{program}" "$@"
"""


@dataclass(frozen=True)
class Package:
    """One line of packages.lock."""

    name: str
    version: str
    sha256: str


def packages(text: str) -> list[Package]:
    """The packages of a lock."""
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [Package(name, version, sha256) for name, version, sha256 in lines]


def fetch(folder: Path) -> None:
    """Download the locked packages into *folder*, with an apt configuration of its own, and check every digest."""
    mirror = os.environ.get("TANDEM_DEBIAN_MIRROR")
    troubles = []
    for place in [mirror] if mirror else MIRRORS:
        try:
            return _fetch(folder, place)
        except DownloadError as error:
            troubles.append(str(error))
    raise DownloadError(
        "llama.cpp's packages could not be fetched:\n"
        + "\n".join(troubles)
        + f"\nWanted the versions in {PACKAGES_LOCK.name}; set TANDEM_DEBIAN_MIRROR to an archive that has them"
    )


def _fetch(folder: Path, mirror: str) -> None:
    for part in ("lists/partial", "cache/archives/partial", "debs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    sources = folder / "sources.list"
    sources.write_text(f"deb [arch=amd64 signed-by={KEYRING}] {mirror} sid main\n", encoding="utf-8")
    settings = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        # The Release file of a dated archive is past its time; the digests of the lock decide.
        "Acquire::Check-Valid-Until": "false",
    }
    apt = ["apt-get", "-qq", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]
    wanted = packages(PACKAGES_LOCK.read_text(encoding="utf-8"))
    for command in ([*apt, "update"], [*apt, "download", *(f"{each.name}={each.version}" for each in wanted)]):
        done = subprocess.run(command, cwd=folder / "debs", capture_output=True, text=True, check=False)
        if done.returncode:
            raise DownloadError(f"{mirror}: {' '.join(done.stderr.split())[:300]}")
    found = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "debs").glob("*.deb")}
    if other := [each.name for each in wanted if each.sha256 not in found]:
        raise DownloadError(f"{mirror}: {', '.join(other)} differ from the digests of {PACKAGES_LOCK.name}")


def unpack(folder: Path, root: Path) -> None:
    """Lay the packages over each other in *root*."""
    root.mkdir(parents=True, exist_ok=True)
    for path in sorted((folder / "debs").glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", path, root], check=True)


def libraries(root: Path) -> Iterator[tuple[str, Path]]:
    """Every library that the programs load, by the name they ask for, and ggml's back ends."""
    folder = root / LIBRARIES
    backends = sorted((folder / "ggml" / "backends0").glob("*.so"))
    for path in [*(root / program for program in PROGRAMS.values()), *backends]:
        command = [folder / LOADER, "--list", "--library-path", f"{folder}:{folder / 'llama'}", path]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for name, target in re.findall(r"^\s*(\S+) => (\S+)", listed, re.MULTILINE):
            yield Path(name).name, Path(target)
    yield from ((path.name, path) for path in backends)


def build(root: Path, folder: Path) -> Path:
    """Write the wheel of the packages unpacked in *root* into *folder*."""
    data, scripts = f"{STEM}.data/data/lib/llama-cpp", f"{STEM}.data/scripts"
    files = {f"{data}/{name}": path.read_bytes() for name, path in libraries(root)}
    for name, place in PROGRAMS.items():
        files[f"{data}/{name}"] = (root / place).read_bytes()
        files[f"{scripts}/{name}"] = WRAPPER.format(loader=LOADER, program=name).encode()
    whole = shimwheel.complete(files, NAME, BUILD, "llama.cpp from Debian for the tandem.spark lab", TAG)
    programs = {name for name in whole if name.startswith(scripts) or Path(name).name in {*PROGRAMS, LOADER}}
    return shimwheel.pack(folder / FILENAME, whole, frozenset(programs))


def make(folder: Path, wheels: Path) -> Path:
    """Fetch, unpack below *folder* and put the wheel into *wheels*; returns the root of the unpacked packages."""
    root = folder / "root"
    fetch(folder)
    unpack(folder, root)
    build(root, wheels)
    return root


def convert(root: Path, wheels: Path, python: Path, model: Path, target: Path) -> None:
    """The model in the folder *model* as the GGUF file *target*, in BF16."""
    # The converter imports it for every model, and *python*, which makes the models, has no use for it.
    wheel = max(wheels.glob("sentencepiece-*-cp311-*.whl"))
    extra = root / "usr/lib/python3/sentencepiece"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(extra)
    places = [*(root / each for each in CONVERTER_PATH), extra]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    command = [python, root / CONVERTER, model, "--outtype", "bf16", "--outfile", target]
    done = subprocess.run([str(each) for each in command], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DownloadError(f"convert_hf_to_gguf.py failed: {done.stderr.strip().splitlines()[-3:]}")

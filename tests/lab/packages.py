# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian packages for single guests: fetched by apt in a guest once per image, then kept in the lab's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sparklab import image
from sparklab.names import LAB_DIR, cache_dir

ARCHIVES = "/var/cache/apt/archives"
FETCH = f"""set -e
apt-get -q update >&2
rm -f {ARCHIVES}/*.deb
apt-get -q install -y --download-only --no-install-recommends "$@" >&2
cd {ARCHIVES} && tar -c *.deb
"""
INSTALL = """set -e
mkdir -p /var/tmp/packages && cd /var/tmp/packages
tar -x
DEBIAN_FRONTEND=noninteractive dpkg -i --force-confdef *.deb
"""


def guest(lab: str, lab_id: str, node: str, script: str, *words: str, feed: bytes = b"") -> bytes:
    done = subprocess.run(
        [str(LAB_DIR / "lab"), "exec", lab, node, "sh", "-c", script, "sh", *words],
        env={**os.environ, "TANDEM_LAB_ID": lab_id},
        input=feed,
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{node}: {done.stdout[-2000:]!r} {done.stderr.decode(errors='replace')[-2000:]}"
    return done.stdout


def install(lab: str, lab_id: str, node: str, *names: str) -> None:
    """Install *names* with what they need. Only the first time on an image needs the network."""
    kept = cache_dir() / "packages" / image.recipe().tag / f"{'+'.join(sorted(names))}.tar"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".fetch.", dir=kept.parent))
        try:
            (scratch / "packages.tar").write_bytes(guest(lab, lab_id, node, FETCH, *names))
            (scratch / "packages.tar").replace(kept)
        finally:
            shutil.rmtree(scratch)
    guest(lab, lab_id, node, INSTALL, feed=kept.read_bytes())

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The process behind a running node: mounts its disk and boots the guest, again and again as the guest reboots.

Started by node.launch() in a mount namespace of its own, so that all mounts vanish with it, however it ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from . import faults, network
from .cgroups import ROOT
from .config import Lab
from .host import run
from .names import Names

REBOOT = 133  # nspawn's exit status when the guest asked for a reboot


def own_group() -> Path:
    """This process's place in the v2 hierarchy."""
    v2 = ROOT if (ROOT / "cgroup.controllers").exists() else ROOT / "unified"
    line = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    return v2 / line[3:].lstrip("/")


def join(folder: Path) -> None:
    (folder / "cgroup.procs").write_text("0")


def mount_root(spec: dict[str, Any], home: Path) -> None:
    writable = home
    if spec["disk"]:
        writable = home / "disk"
        run("mount", "-o", "loop", spec["disk"], writable)
    layers = f"lowerdir={spec['image']},upperdir={writable}/upper,workdir={writable}/wd"
    run("mount", "-t", "overlay", "overlay", "-o", layers, home / "root")


def show_only_v2() -> None:
    """Let the guest see one pure cgroup v2 tree: on hybrid hosts it would find controllers it cannot use."""
    if not (ROOT / "cgroup.controllers").exists():
        run("mount", "-t", "cgroup2", "none", ROOT)


def boot(names: Names, lab: Lab, name: str, base: Path) -> int:
    home = names.node_dir(name)
    argv = [
        "systemd-nspawn",
        "--quiet",
        "--register=no",  # there may be no machined, and the lab keeps its own books
        "--keep-unit",
        f"--directory={home / 'root'}",
        f"--machine={names.machine(name)}",
        f"--hostname={name}",
        f"--network-namespace-path=/run/netns/{names.netns(name)}",
        "--capability=CAP_NET_ADMIN",  # which a given namespace would take away
        "--drop-capability=CAP_MKNOD",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
        "--console=pipe",
        *(f"--bind-ro={path}" for path in lab.node(name).bind),
        "--boot",
    ]
    env = {**os.environ, "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network"}
    for key in ("PYTHONPATH", "PYTHONUNBUFFERED", "TANDEM_CACHE", "HOME"):
        env.pop(key, None)
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, env=env, check=False, preexec_fn=lambda: join(base / "guest")
    ).returncode


def main(spec_file: str) -> int:
    spec: dict[str, Any] = json.loads(Path(spec_file).read_text())
    names, lab, name = Names(spec["id"]), Lab.from_dict(spec["lab"]), str(spec["node"])
    home = names.node_dir(name)
    base = own_group()
    # a v2 group holds either processes or groups: this one, nspawn and the guest each get a leaf
    for leaf in ("lab", "guest"):
        (base / leaf).mkdir(exist_ok=True)
    join(base / "lab")
    mount_root(spec, home)
    if spec["devices"]:
        Path(spec["devices"]).write_text("0")
    relative = base.relative_to(ROOT) if (ROOT / "cgroup.controllers").exists() else base.relative_to(ROOT / "unified")
    show_only_v2()
    base = ROOT / relative
    while True:
        code = boot(names, lab, name, base)
        print(f"lab: {name}: the guest ended with {code}", flush=True)
        # power off, or the short moment of a reboot: either way nothing that only the kernel remembered survives
        network.reset(names, lab, name, home / "netns.json")
        faults.reapply(names, lab, name)
        if code != REBOOT:
            return code
        network.management_on(names, lab.node(name).rank, name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: wheelhouse
short_description: A directory that holds every wheel of a lock
description:
  - Downloads the wheels of a lock with pip, each checked against the lock's SHA-256, and removes files that the lock
    does not name.
  - With O(fetch=false) it only checks that every wheel is there, for nodes that got the directory from another node.
version_added: 0.1.0
author:
  - The tandem.spark contributors (@tandem-spark)
extends_documentation_fragment:
  - tandem.spark._attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
options:
  path:
    description: The directory.
    type: path
    required: true
  lock:
    description: Text of the lock, in pip's requirements format, with C(==) and C(--hash) for every distribution.
    type: str
    required: true
  python:
    description: Version of the interpreter that the wheels are for, such as V(3.12).
    type: str
    required: true
  fetch:
    description: Download what is missing.
    type: bool
    default: true
  index_url:
    description: Package index, instead of the one that pip is configured for on the node.
    type: str
  find_links:
    description: Pages or directories with wheels, searched beside the index.
    type: list
    elements: str
    default: []
  no_index:
    description: Ask no package index, only O(find_links).
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Fetch the engine's wheels once
  tandem.spark.wheelhouse:
    path: /var/lib/tandem/wheels
    lock: "{{ lookup('ansible.builtin.file', 'sglang.lock') }}"
    python: "3.12"
"""

RETURN = r"""
bytes:
  description: Size of all wheels together.
  returned: success
  type: int
files:
  description: Number of wheels.
  returned: success
  type: int
removed:
  description: Files that the lock does not name.
  returned: success
  type: list
  elements: str
"""

import concurrent.futures
import os
import re
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils._files import replace, sha256
from ansible_collections.tandem.spark.plugins.module_utils._lock import BusyError, alone

# How long another download beside this one is waited for: they share the pip, and that of an engine takes minutes.
BUSY_S = 1800
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
MARKER = re.compile(r"^[^#\n]*==[^#\n]*;", re.M)


def distributions(lock: str) -> dict[str, set[str]]:
    """The digests that may stand for each distribution of the lock. One with a marker need not be there: left out."""
    found: dict[str, set[str]] = {}
    for line in re.sub(r"\\\r?\n", " ", lock).splitlines():
        entry = re.sub(r"(^|\s)#.*", "", line)
        name = entry.split("--hash", 1)[0].strip()
        if name and not name.startswith("-") and ";" not in name:
            found[name] = set(HASH.findall(entry))
    return found


def digests(path: str) -> dict[str, str]:
    """SHA-256 of every file in *path* by name."""
    if not os.path.isdir(path):
        return {}
    names = [entry.name for entry in os.scandir(path) if entry.is_file()]
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return dict(zip(names, pool.map(lambda name: sha256(os.path.join(path, name)), names)))


def shorten(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def pip(module: AnsibleModule, directory: str) -> list[str]:
    """The command of a pip of our own, made of the interpreter's bundled one: nodes have none, or one that stays."""
    version = module.params["python"]
    python = module.get_bin_path(f"python{version}")
    if python is None:
        module.fail_json(msg=f"found no python{version} on this node, wanted one; install the package python{version}")
    tool = os.path.join(directory, f".pip-{version}")
    executable = os.path.join(tool, "bin", "python")
    code, _out, _err = (
        module.run_command([executable, "-m", "pip", "--version"]) if os.path.exists(executable) else (1, "", "")
    )
    if code != 0:
        code, out, err = module.run_command([python, "-m", "venv", "--clear", tool])
        if code != 0:
            module.fail_json(
                msg=f"python{version} on this node cannot make a virtual environment: {(err or out).strip()[-300:]}; "
                f"install the package python{version}-venv"
            )
    return [executable, "-m", "pip"]


def download(module: AnsibleModule, path: str, lock: str) -> None:
    parameters = module.params
    parent = os.path.dirname(path)
    os.makedirs(path, exist_ok=True)
    requirements = os.path.join(parent, f".{os.path.basename(path)}.lock")
    replace(requirements, lock.encode(), 0o644)
    command = [*pip(module, parent), "download", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command += ["--progress-bar=off", "--no-input", "--disable-pip-version-check", "--dest", path, "--find-links", path]
    environment = {}
    if parameters["no_index"]:
        command += ["--no-index"]
    elif parameters["index_url"]:
        # Not in the command line, which everybody on the node can read: an index can want a password in its address.
        environment["PIP_INDEX_URL"] = parameters["index_url"]
    for place in parameters["find_links"]:
        command += ["--find-links", place]
        if place.startswith("http://"):
            # The lock's digests, not the transport, say what is accepted.
            command += ["--trusted-host", re.sub(r"^http://([^/]+).*", r"\1", place)]
    code, out, err = module.run_command([*command, "-r", requirements], environ_update=environment)
    os.unlink(requirements)
    if code != 0:
        reason = "\n".join(line for line in err.splitlines() if "WARNING" not in line)[-1500:]
        module.fail_json(
            msg=f"pip could not fetch every wheel of the lock (exit status {code}): {reason.strip() or out[-500:]}. "
            "Wanted: a package index, or tandem_find_links, that offers these versions for this platform.",
            rc=code,
        )


def settle(module: AnsibleModule, path: str, lock: str, wanted: dict[str, set[str]], allowed: set[str]) -> t.NoReturn:
    """Bring the directory to what the lock says, and answer."""
    before = digests(path)
    there = set(before.values())
    removed = sorted(name for name, digest in before.items() if digest not in allowed)
    missing = [name for name, hashes in wanted.items() if not hashes & there]
    if module.check_mode:
        module.exit_json(
            changed=bool(removed) or (module.params["fetch"] and bool(missing)),
            removed=removed,
            files=len(before) - len(removed),
            bytes=0,
        )
    if missing and not module.params["fetch"]:
        module.fail_json(
            msg=f"{path}: found no whole wheel of {shorten(missing)}, wanted every wheel of the lock; copy again"
        )
    try:
        for name in removed:
            os.unlink(os.path.join(path, name))
        if missing or (module.params["fetch"] and MARKER.search(lock)):
            download(module, path, lock)
    except OSError as error:
        module.fail_json(msg=f"{path}: {error}")
    after = {entry.name: entry.stat().st_size for entry in os.scandir(path) if entry.is_file()}
    module.exit_json(
        changed=bool(removed) or set(after) != set(before),
        removed=removed,
        files=len(after),
        bytes=sum(after.values()),
    )


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "lock": {"type": "str", "required": True},
            "python": {"type": "str", "required": True},
            "fetch": {"type": "bool", "default": True},
            "index_url": {"type": "str"},
            "find_links": {"type": "list", "elements": "str", "default": []},
            "no_index": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    path: str = module.params["path"]
    lock: str = module.params["lock"]
    allowed, wanted = set(HASH.findall(lock)), distributions(lock)
    bare = [name for name, hashes in wanted.items() if not hashes]
    if not allowed or bare:
        module.fail_json(
            msg=f"lock: found no --hash=sha256 {'for ' + shorten(bare) if bare else 'in it'}, wanted one for every "
            "distribution"
        )
    if module.check_mode:
        settle(module, path, lock, wanted, allowed)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with alone(os.path.dirname(path), BUSY_S):
            settle(module, path, lock, wanted, allowed)
    except BusyError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{path}: {error}")


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: python_environment
short_description: A Python environment that is exactly what a lock says
description:
  - Installs every distribution of a lock with its SHA-256 from a directory of wheels into a new virtual environment,
    re-reads every installed file against its recorded digest, and publishes the environment by one rename.
  - Needs no network. The installer is C(uv), which must be one of the locked wheels.
  - The returned digest covers the interpreter and every file of every distribution. Nodes with the same digest run the
    same code.
version_added: 0.1.0
author:
  - The tandem.spark contributors (@tandem-spark)
extends_documentation_fragment:
  - tandem.spark._attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
options:
  path:
    description: Directory of the environment. The interpreter is C(venv/bin/python) below it.
    type: path
    required: true
  lock:
    description:
      - Text of the lock, in pip's requirements format, with C(==) and C(--hash) for every distribution.
      - Without it O(state=query) compares the environment with what it was made from, whatever that was.
    type: str
  wheels:
    description: Directory that holds every wheel of the lock. Not needed for O(state=query).
    type: path
  python:
    description: Version of the interpreter, such as V(3.12). C(python3.12) must be on the node. Needed to install.
    type: str
  state:
    description: V(present) installs what is missing, V(query) only reports.
    type: str
    choices: [present, query]
    default: present
"""

EXAMPLES = r"""
- name: Install the engine
  tandem.spark.python_environment:
    path: /var/lib/tandem/engines/sglang-0.5.23-0123456789ab
    lock: "{{ lookup('ansible.builtin.file', 'sglang.lock') }}"
    wheels: /var/lib/tandem/wheels
    python: "3.12"
"""

RETURN = r"""
present:
  description: Whether an environment of this lock with all of its files is there.
  returned: success
  type: bool
digest:
  description: SHA-256 over the interpreter's version and every installed file, or null when there is no environment.
  returned: success
  type: str
reason:
  description: Why it is not present.
  returned: success
  type: str
checked:
  description: >-
    How the files were checked: V(content) re-read every byte, V(size) compared sizes with the record that was
    checked in full when the environment was made, and re-read every file that was changed after that.
  returned: success
  type: str
distributions:
  description: Number of distributions in it.
  returned: success
  type: int
seconds:
  description: What installing and verifying took.
  returned: changed
  type: float
"""

import glob
import hashlib
import json
import os
import shutil
import time
import typing as t
import zipfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils._environment import (
    RecordError,
    digest,
    read_records,
    wrong_files,
)
from ansible_collections.tandem.spark.plugins.module_utils._files import replace, sync_directory
from ansible_collections.tandem.spark.plugins.module_utils._lock import BusyError, alone

STATEMENT = "tandem-environment.json"
# How long another installation of the same environment is waited for: that of an engine takes minutes.
BUSY_S = 1800


def site_packages(path: str) -> str | None:
    found = glob.glob(os.path.join(path, "venv", "lib", "python3.*", "site-packages"))
    return found[0] if found else None


def interpreter_version(module: AnsibleModule, executable: str) -> str:
    """Implementation, full version and machine, as the interpreter itself says."""
    script = "import platform as p; print(p.python_implementation(), p.python_version(), p.machine())"
    try:
        code, out, err = module.run_command([executable, "-c", script], handle_exceptions=False)
    except OSError as error:
        # The environment's interpreter is a link to the system's, which an upgrade may have removed.
        return f"unknown: {error.strerror}"
    return str(out).strip() if code == 0 else f"unknown: {err.strip()}"


def look(module: AnsibleModule, path: str, lock_sha256: str | None, full: bool = False) -> dict[str, t.Any]:
    """Compare the environment at *path* with what was stated when it was made."""
    nothing = {"present": False, "digest": None, "distributions": 0, "checked": "content" if full else "size"}
    site = site_packages(path)
    try:
        with open(os.path.join(path, STATEMENT), encoding="utf-8") as handle:
            made_ns = os.fstat(handle.fileno()).st_ctime_ns
            statement = dict(json.load(handle))
    except FileNotFoundError:
        return dict(nothing, reason=f"no environment at {path}")
    except (OSError, ValueError, TypeError) as error:
        return dict(nothing, reason=f"{path}/{STATEMENT} cannot be read: {error}")
    if site is None:
        return dict(nothing, reason=f"{path} has no site-packages")
    if lock_sha256 is not None and statement.get("lock_sha256") != lock_sha256:
        return dict(nothing, reason=f"{path} was made from another lock")
    try:
        records = read_records(site)
    except (OSError, RecordError) as error:
        return dict(nothing, reason=str(error))
    wrong = wrong_files(site, records, full, made_ns)
    if wrong:
        return dict(nothing, reason=f"{len(wrong)} file(s) missing or altered, the first is {wrong[0]}")
    version = interpreter_version(module, os.path.join(path, "venv", "bin", "python"))
    found = digest(version, records)
    if found != statement.get("digest"):
        return dict(
            nothing,
            reason=f"the digest differs from the one stated at installation; its interpreter is {version}, then it was "
            f"{statement.get('python')}",
        )
    return {
        "present": True,
        "digest": found,
        "distributions": len(records),
        "reason": "",
        "checked": "content" if full else "size",
    }


def extract_uv(module: AnsibleModule, wheels: str, directory: str) -> str:
    """Take the uv program out of its wheel: it needs no installation."""
    for wheel in sorted(glob.glob(os.path.join(wheels, "uv-*.whl"))):
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".data/scripts/uv")]
            if names:
                target = os.path.join(directory, "uv")
                with archive.open(names[0]) as source, open(target, "wb") as program:
                    shutil.copyfileobj(source, program)
                os.chmod(target, 0o755)
                return target
    module.fail_json(msg=f"{wheels}: found no wheel of uv, wanted one; add uv to the lock, it installs the others")


def run(module: AnsibleModule, what: str, command: list[str], environment: dict[str, str]) -> None:
    code, out, err = module.run_command(command, environ_update=environment)
    if code != 0:
        last = "\n".join((err or out).strip().splitlines()[-15:])
        module.fail_json(msg=f"{what} failed with exit status {code}: {last}", rc=code, stdout=out, stderr=err)


def install(module: AnsibleModule, path: str, lock: str, lock_sha256: str) -> None:
    wheels, version = module.params["wheels"], module.params["python"]
    python = module.get_bin_path(f"python{version}")
    if python is None:
        module.fail_json(msg=f"found no python{version} on this node, wanted one; install the package python{version}")
    parent, name = os.path.split(path)
    staging = os.path.join(parent, f".staging-{name}")
    shutil.rmtree(staging, ignore_errors=True)
    os.makedirs(staging)
    os.chmod(staging, 0o755)
    # uv unpacks into its cache and links from there: on the same disk that costs each byte once, in /tmp it may not
    # fit.
    scratch = os.path.join(staging, ".scratch")
    os.mkdir(scratch)
    environment = {
        "UV_NO_CONFIG": "1",
        "UV_OFFLINE": "1",
        "UV_CACHE_DIR": scratch,
        "UV_LINK_MODE": "hardlink",
        "TMPDIR": scratch,
        "LC_ALL": "C.UTF-8",
    }
    uv = extract_uv(module, wheels, staging)
    requirements = os.path.join(staging, "requirements.lock")
    replace(requirements, lock.encode(), 0o644)
    venv = os.path.join(staging, "venv")
    # Relocatable, since the environment is made beside its place and renamed into it when it is whole.
    run(module, "uv venv", [uv, "venv", "--quiet", "--relocatable", "--python", python, venv], environment)
    command = [uv, "pip", "install", "--quiet", "--python", f"{venv}/bin/python", "--no-index", "--find-links", wheels]
    command += ["--no-deps", "--require-hashes", "--compile-bytecode", "-r", requirements]
    run(module, "uv pip install", command, environment)
    os.unlink(uv)
    shutil.rmtree(scratch)
    site = site_packages(staging)
    if site is None:
        module.fail_json(msg=f"uv left no site-packages in {venv}")
    records = read_records(site)
    wrong = wrong_files(site, records, full=True)
    if wrong:
        module.fail_json(
            msg=f"{len(wrong)} installed file(s) differ from their record, the first is {wrong[0]}", files=wrong
        )
    made_of = interpreter_version(module, f"{venv}/bin/python")
    statement = {
        "lock_sha256": lock_sha256,
        "python": made_of,
        "distributions": sorted(records),
        "digest": digest(made_of, records),
    }
    replace(os.path.join(staging, STATEMENT), json.dumps(statement, indent=2).encode() + b"\n", 0o644)
    # Moved aside first: removing it takes seconds, in which there would be half an environment under its name.
    old = f"{staging}.old"
    shutil.rmtree(old, ignore_errors=True)
    if os.path.lexists(path):
        os.rename(path, old)
    os.rename(staging, path)
    sync_directory(parent)
    shutil.rmtree(old, ignore_errors=True)


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "lock": {"type": "str"},
            "wheels": {"type": "path"},
            "python": {"type": "str"},
            "state": {"type": "str", "choices": ["present", "query"], "default": "present"},
        },
        supports_check_mode=True,
        required_if=[("state", "present", ("wheels", "lock", "python"))],
    )
    path: str = module.params["path"]
    lock: str | None = module.params["lock"]
    lock_sha256 = None if lock is None else hashlib.sha256(lock.encode()).hexdigest()
    state = look(module, path, lock_sha256)
    before = state["digest"]
    if module.params["state"] == "query" or state["present"] or lock is None or lock_sha256 is None:
        module.exit_json(changed=False, **state)
    if module.check_mode:
        module.exit_json(changed=True, diff=difference(path, before, "an environment of the lock"), **state)
    began = time.monotonic()
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with alone(os.path.dirname(path), BUSY_S):
            # Another run may have made it while this one waited.
            state = look(module, path, lock_sha256)
            if state["present"]:
                module.exit_json(changed=False, **state)
            install(module, path, lock, lock_sha256)
    except BusyError as error:
        module.fail_json(msg=str(error))
    except (OSError, RecordError, zipfile.BadZipFile) as error:
        module.fail_json(msg=f"{path}: the environment cannot be made: {error}")
    state = look(module, path, lock_sha256)
    if not state["present"]:
        module.fail_json(msg=f"{path}: {state['reason']} right after the installation")
    # Every file was compared with its record while it was installed.
    state.update(seconds=round(time.monotonic() - began, 1), checked="content")
    module.exit_json(changed=True, diff=difference(path, before, state["digest"]), **state)


def difference(path: str, before: str | None, after: str) -> dict[str, str]:
    return {
        "before_header": path,
        "after_header": path,
        "before": f"{before}\n" if before else "",
        "after": f"{after}\n",
    }


if __name__ == "__main__":
    main()

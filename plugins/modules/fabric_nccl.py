#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_nccl
short_description: Build nccl-tests for the GPU of a node, and run one rank of it
description:
  - O(state=query) says whether the programs are there and whole, and what this node can build and run them with.
  - O(state=built) compiles them with the node's CUDA, against the NCCL of the engine or else the system's, as the
    account O(user), and publishes the directory with one rename.
  - O(state=published) puts a copy from another node into its place when its digest is O(digest).
  - O(state=run) runs this node's rank of C(all_gather_perf). The ranks find each other over plain TCP, so no MPI has to
    be installed and no node logs in to another. All ranks must be started at the same time.
version_added: 0.1.0
author:
  - The tandem.spark contributors (@tandem-spark)
extends_documentation_fragment:
  - tandem.spark._attributes
attributes:
  check_mode:
    support: full
    details: With O(state=run) nothing is run.
  diff_mode:
    support: full
options:
  path:
    description: Directory of the programs.
    type: path
    required: true
  engine:
    description: Directory of an engine release whose NCCL is used. Where it has none, the system's is.
    type: path
  user:
    description: Account that compiles and runs.
    type: str
    default: root
  source:
    description: Directory with the source of nccl-tests, or an archive of it (C(.tar.gz)). For O(state=built).
    type: path
  commit:
    description: Commit of the source. An archive that names another one is refused. For O(state=built).
    type: str
  mpi:
    description: Text of C(mpi.h) and C(mpi.c) by file name, which take the place of an MPI. For O(state=built).
    type: dict
  staging:
    description: The copied directory. For O(state=published).
    type: path
  digest:
    description: SHA-256 over the programs as it was built on the head. For O(state=published).
    type: str
  rank:
    description: Number of this node's rank. For O(state=run).
    type: int
  ranks:
    description: How many ranks there are. For O(state=run).
    type: int
  meet:
    description: IPv4 address of the head on which the ranks meet. For O(state=run).
    type: str
  run_id:
    description: A word that all ranks of this run share, so that one of an earlier run is not let in. No secret.
    type: str
  environment:
    description: Variables for NCCL, from the plan of the fabric. For O(state=run).
    type: dict
    default: {}
  bytes:
    description: Size of the message. For O(state=run).
    type: int
  limit_s:
    description: Seconds to wait for the other ranks. The run itself may take five times as long.
    type: int
    default: 60
  state:
    description: What to do.
    type: str
    choices: [query, built, published, run]
    required: true
"""

EXAMPLES = r"""
- name: Look what there is
  tandem.spark.fabric_nccl:
    path: /var/lib/tandem/tools/nccl-tests
    state: query
"""

RETURN = r"""
present:
  description: Whether the programs are there and have the digests that were stated when they were built.
  returned: O(state=query), O(state=built), O(state=published)
  type: bool
digest:
  description: SHA-256 over the programs, or null.
  returned: O(state=query), O(state=built), O(state=published)
  type: str
reason:
  description: Why they are not present, or an empty text.
  returned: O(state=query), O(state=built), O(state=published)
  type: str
path:
  description: The directory.
  returned: O(state=query)
  type: str
cannot_build:
  description: What is missing to build here.
  returned: O(state=query)
  type: list
  elements: str
cannot_run:
  description: What is missing to run here.
  returned: O(state=query)
  type: list
  elements: str
available_bytes:
  description: MemAvailable, or null.
  returned: O(state=query)
  type: int
rdma:
  description: RDMA device by interface.
  returned: O(state=query)
  type: dict
rc:
  description: Exit status of the rank.
  returned: O(state=run)
  type: int
stdout:
  description: What the rank printed.
  returned: O(state=run)
  type: str
stderr:
  description: Its errors.
  returned: O(state=run)
  type: str
"""

import glob
import json
import os
import pwd
import shutil
import tarfile
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import (
    _gather_fabric,
    _gather_platform,
    _manifest,
    _meminfo,
    _nccl_tests,
)
from ansible_collections.tandem.spark.plugins.module_utils._files import read_text, replace, sha256, sync_directory
from ansible_collections.tandem.spark.plugins.module_utils._host import Host

UNIT = "tandem-nccl-tests"
RUN_LIMITS = 5  # times limit_s, for the run itself


def look(path: str) -> dict[str, t.Any]:
    """Compare the programs at *path* with what was stated when they were built."""
    nothing = {"present": False, "digest": None}
    stated = _nccl_tests.statement(read_text(os.path.join(path, _nccl_tests.STATEMENT)))
    if stated is None:
        return dict(nothing, reason=f"no nccl-tests at {path}")
    found = []
    for name, wanted in sorted(stated["files"].items()):
        file = os.path.join(path, name)
        if not os.path.isfile(file) or sha256(file) != wanted:
            return dict(nothing, reason=f"{file} is missing or altered")
        found.append({"path": name, "sha256": wanted})
    return {"present": True, "digest": _manifest.digest(found), "reason": ""}


def nccl(engine: str | None) -> dict[str, str | None]:
    """Directory of the headers and path of the library: those of the engine, else the system's."""
    for base in glob.glob(f"{engine}/venv/lib/python3.*/site-packages/nvidia/nccl") if engine else []:
        library = f"{base}/lib/libnccl.so.2"
        if os.path.exists(library):
            return {"include": f"{base}/include" if os.path.exists(f"{base}/include/nccl.h") else None, "so": library}
    libraries = sorted(glob.glob("/usr/lib/*-linux-gnu/libnccl.so.2") + glob.glob("/usr/local/cuda/lib64/libnccl.so.2"))
    headers = [path for path in ("/usr/include", "/usr/local/cuda/include") if os.path.exists(f"{path}/nccl.h")]
    return {"include": headers[0] if headers else None, "so": libraries[0] if libraries else None}


def capability(module: AnsibleModule) -> str | None:
    """Compute capability of the GPU without its point, such as ``121``."""
    program = module.get_bin_path("nvidia-smi")
    if program is None:
        return None
    code, out, _err = module.run_command([program, "--query-gpu=compute_cap", "--format=csv,noheader"])
    return _nccl_tests.architecture(out.splitlines()[0]) if code == 0 and out.strip() else None


def query(module: AnsibleModule) -> dict[str, t.Any]:
    host = Host()
    libraries = nccl(module.params["engine"])
    build, run = [], []
    if capability(module) is None:
        run.append("found no GPU that nvidia-smi names; wanted one")
    if libraries["so"] is None:
        run.append("found no libnccl.so.2; wanted that of the engine (run the engine stage first) or package libnccl2")
    if libraries["include"] is None:
        build.append("found no nccl.h; wanted that of the engine (run the engine stage first) or package libnccl-dev")
    if _gather_platform.cuda(host, compile_probe=False)["nvcc"] is None:
        build.append("found no nvcc; wanted the CUDA toolkit")
    build += [f"found no {tool}; wanted it; install build-essential" for tool in missing(module, "make", "cc", "ar")]
    devices = _gather_fabric.rdma_devices(host) or {}
    return {
        "cannot_build": build,
        "cannot_run": run,
        "available_bytes": _meminfo.parse(host.read("/proc/meminfo")).get("MemAvailable"),
        "rdma": {device["interface"]: name for name, device in devices.items() if device["interface"]},
    }


def missing(module: AnsibleModule, *tools: str) -> list[str]:
    return [tool for tool in tools if module.get_bin_path(tool) is None]


def unpack(module: AnsibleModule, source: str, commit: str, target: str) -> None:
    """The source into *target*, from a directory or an archive (whose commit git and GitHub write into its header)."""
    if os.path.isdir(source):
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        return
    with tarfile.open(source) as archive:
        named = archive.pax_headers.get("comment")
        if named and named != commit:
            module.fail_json(msg=f"{source}: found the commit {named}, wanted {commit}; fetch the archive of that one")
        members = [member for member in archive.getmembers() if member.isfile() or member.isdir()]
        if any(os.path.isabs(member.name) or ".." in member.name.split("/") for member in members):
            module.fail_json(msg=f"{source}: found a path that leads out of the archive; wanted a plain archive")
        # Python 3.9 to 3.11.3 know no filters.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _path: member)
        archive.extractall(target, members=members)
    inside = os.listdir(target)
    if len(inside) == 1:  # GitHub puts everything into one directory
        os.rename(os.path.join(target, inside[0]), f"{target}.inner")
        os.rmdir(target)
        os.rename(f"{target}.inner", target)


def give(path: str, user: str) -> None:
    """The tree below *path* to *user*, who compiles in it."""
    account = pwd.getpwnam(user)
    for parent, directories, names in os.walk(path):
        for name in [".", *directories, *names]:
            os.chown(os.path.join(parent, name), account.pw_uid, account.pw_gid, follow_symlinks=False)


def as_user(user: str) -> list[str]:
    """Words in front of a command so that *user* runs it."""
    if pwd.getpwnam(user).pw_uid == os.geteuid():
        return []
    return ["setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--init-groups", "--"]


def step(module: AnsibleModule, what: str, words: list[str], directory: str) -> None:
    environment = {"HOME": directory, "TMPDIR": directory, "LC_ALL": "C"}
    code, out, err = module.run_command(
        [*as_user(module.params["user"]), *words], cwd=directory, environ_update=environment
    )
    if code != 0:
        last = "\n".join((err or out).strip().splitlines()[-15:])
        module.fail_json(msg=f"{what} failed with exit status {code}: {last}", rc=code, stdout=out, stderr=err)


def compile_(module: AnsibleModule, work: str) -> dict[str, t.Any]:
    """Compile in *work*; the statement about what was built."""
    libraries, cuda = nccl(module.params["engine"]), _gather_platform.cuda(Host(), compile_probe=False)
    architecture = capability(module)
    lacks = query(module)
    if lacks["cannot_build"] or architecture is None or libraries["so"] is None:
        module.fail_json(msg="; ".join([*lacks["cannot_build"], *lacks["cannot_run"]]))
    for directory in ("mpi/include", "mpi/lib", "nccl/lib"):
        os.makedirs(os.path.join(work, directory))
    for name, text in module.params["mpi"].items():
        with open(os.path.join(work, "mpi/include", os.path.basename(name)), "w", encoding="utf-8") as handle:
            handle.write(text)
    # The wheel has libnccl.so.2 only, and the linker looks for libnccl.so.
    os.symlink(t.cast("str", libraries["include"]), os.path.join(work, "nccl/include"))
    os.symlink(libraries["so"], os.path.join(work, "nccl/lib/libnccl.so"))
    unpack(module, module.params["source"], module.params["commit"], os.path.join(work, "source"))
    give(work, module.params["user"])
    compiler = ["cc", "-std=gnu11", "-O2", "-c", "mpi/include/mpi.c", "-o", "mpi/mpi.o"]
    step(module, "compiling mpi.c", compiler, work)
    step(module, "ar", ["ar", "rcs", "mpi/lib/libmpi.a", "mpi/mpi.o"], work)
    build = os.path.join(work, "build")
    words = _nccl_tests.make_words(
        build,
        mpi=f"{work}/mpi",
        nccl=f"{work}/nccl",
        cuda=os.path.dirname(os.path.dirname(cuda["nvcc"])),
        architecture_=architecture,
        jobs=os.cpu_count() or 1,
    )
    step(module, "make", words, os.path.join(work, "source"))
    for program in _nccl_tests.PROGRAMS:
        lister = os.path.join(os.path.dirname(cuda["nvcc"]), "cuobjdump")
        if os.access(lister, os.X_OK):
            code, out, _err = module.run_command([lister, "--list-elf", os.path.join(build, program)])
            kernels = _nccl_tests.built_for(out if code == 0 else None)
            if kernels is not None and architecture not in kernels:
                module.fail_json(msg=f"{program}: found kernels for {kernels}, wanted {architecture}; see nvcc")
    return {"commit": module.params["commit"], "architecture": architecture, "cuda": cuda["version"]}


def build(module: AnsibleModule, path: str) -> None:
    parent, name = os.path.split(path)
    os.makedirs(parent, exist_ok=True)
    work, staging = os.path.join(parent, f".build-{name}"), os.path.join(parent, f".staging-{name}")
    for directory in (work, staging):
        shutil.rmtree(directory, ignore_errors=True)
        os.mkdir(directory, 0o755)
    try:
        made = compile_(module, work)
        for program in _nccl_tests.PROGRAMS:
            shutil.copyfile(os.path.join(work, "build", program), os.path.join(staging, program))
        made["files"] = {program: sha256(os.path.join(staging, program)) for program in _nccl_tests.PROGRAMS}
        text = json.dumps(made, indent=2, sort_keys=True) + "\n"
        replace(os.path.join(staging, _nccl_tests.STATEMENT), text.encode(), 0o644)
        publish(staging, path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(staging, ignore_errors=True)


def publish(staging: str, path: str) -> None:
    # A copy comes without the modes, and another account runs the programs.
    os.chmod(staging, 0o755)
    for program in _nccl_tests.PROGRAMS:
        os.chmod(os.path.join(staging, program), 0o755)
    shutil.rmtree(path, ignore_errors=True)
    os.rename(staging, path)
    sync_directory(os.path.dirname(path))


def run(module: AnsibleModule, path: str) -> dict[str, t.Any]:
    """This node's rank in a transient unit: it ends with its limit whatever becomes of the connection."""
    p = module.params
    library = nccl(p["engine"])["so"]
    variables = {str(name): str(value) for name, value in p["environment"].items()}
    variables.update(_nccl_tests.rank_environment(p["rank"], p["ranks"], p["meet"], p["run_id"], p["limit_s"]))
    variables.update(NCCL_DEBUG="INFO", LD_LIBRARY_PATH=os.path.dirname(library or ""), LC_ALL="C")
    words = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", f"--unit={UNIT}", f"--uid={p['user']}"]
    words += ["--property=LimitMEMLOCK=infinity", "--property=NoNewPrivileges=yes", "--property=ProtectSystem=strict"]
    words += ["--property=PrivateTmp=yes"]
    words += [f"--property=RuntimeMaxSec={p['limit_s'] * (RUN_LIMITS + 1)}"]
    words += [f"--setenv={name}={value}" for name, value in sorted(variables.items())]
    words += [os.path.join(path, _nccl_tests.PROGRAMS[0]), *_nccl_tests.arguments(p["bytes"])]
    code, out, err = module.run_command(words)
    return {"rc": code, "stdout": out, "stderr": err}


def change(module: AnsibleModule, path: str) -> dict[str, t.Any]:
    """For built and published: make it so unless it is."""
    before = look(path)
    wanted = module.params["digest"]
    if before["present"] and wanted in (None, before["digest"]):
        return dict(before, changed=False)
    after = wanted or "the programs of nccl-tests"
    diff = {"before": f"{before['digest'] or ''}\n", "after": f"{after}\n", "before_header": path, "after_header": path}
    if module.check_mode:
        return dict(before, changed=True, diff=diff)
    if module.params["state"] == "built":
        build(module, path)
    else:
        staging = module.params["staging"]
        found = look(staging)
        if not found["present"] or found["digest"] != wanted:
            module.fail_json(msg=f"{staging}: found the digest {found['digest']} ({found['reason']}), wanted {wanted}")
        publish(staging, path)
    return dict(look(path), changed=True, diff=diff)


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "engine": {"type": "path"},
            "user": {"type": "str", "default": "root"},
            "source": {"type": "path"},
            "commit": {"type": "str"},
            "mpi": {"type": "dict"},
            "staging": {"type": "path"},
            "digest": {"type": "str"},
            "rank": {"type": "int"},
            "ranks": {"type": "int"},
            "meet": {"type": "str"},
            "run_id": {"type": "str"},
            "environment": {"type": "dict", "default": {}},
            "bytes": {"type": "int"},
            "limit_s": {"type": "int", "default": 60},
            "state": {"type": "str", "choices": ["query", "built", "published", "run"], "required": True},
        },
        required_if=[
            ("state", "built", ("source", "commit", "mpi")),
            ("state", "published", ("staging", "digest")),
            ("state", "run", ("rank", "ranks", "meet", "run_id", "bytes")),
        ],
        supports_check_mode=True,
    )
    path: str = module.params["path"]
    try:
        if module.params["state"] == "query":
            module.exit_json(changed=False, path=path, **look(path), **query(module))
        if module.params["state"] == "run":
            module.exit_json(changed=False, **({} if module.check_mode else run(module, path)))
        module.exit_json(**change(module, path))
    except KeyError:
        module.fail_json(msg=f"found no account {module.params['user']}, wanted it; run the baseline stage")
    except (OSError, tarfile.TarError) as error:
        module.fail_json(msg=f"{path}: {error}")


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_release
short_description: Verify a model against its manifest and publish it by one rename
description:
  - O(state=published) reads every file of a staging directory against the manifest in it, checks the structure of the
    weights, and renames the directory into its place. A release that is there and sound is left alone.
  - O(state=query) compares a published release with its manifest and changes nothing.
  - O(state=absent) removes a release, O(state=pruned) all that are no longer wanted. What a pointer or the running rank
    names, or a process has open, stays.
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
    description: The release's directory. For V(pruned) the directory of all releases.
    type: path
    required: true
  staging:
    description: The directory that becomes the release. It must be on the same file system.
    type: path
  digest:
    description: Digest that the manifest must have, for nodes that got the model from another node.
    type: str
  revision:
    description: Commit id that the manifest must be of.
    type: str
  full:
    description:
      - Read every byte again. Without it, a file whose inode, size and times are those of its last full verification is
        trusted and not read.
      - Publishing always reads every byte, but those that O(proof) says were read already in this run.
    type: bool
    default: false
  root:
    description: Where C(releases), C(current) and C(previous) are, for V(absent) and V(pruned).
    type: path
    default: /var/lib/tandem
  keep:
    description:
      - How many releases V(pruned) keeps. The default is the current one and the one to go back to.
      - Releases that are needed are kept beyond that.
    type: int
    default: 2
  needed:
    description: Names of releases that V(pruned) keeps in any case, such as one that is about to be served.
    type: list
    elements: str
    default: []
  proof:
    description:
      - The file in which M(tandem.spark.model_replicate) noted what it hashed while it arrived. A file whose inode,
        size and times are still those of that moment is not read again. A proof of another run or manifest counts for
        nothing.
    type: path
  run:
    description: Name of the run that O(proof) must be of.
    type: str
  state:
    description: V(published), V(absent), V(pruned), or only looked at.
    type: str
    choices: [published, query, absent, pruned]
    default: query
"""

EXAMPLES = r"""
- name: Publish the model
  tandem.spark.model_release:
    path: /var/lib/tandem/models/ling-3.0-flash-fp8-a5d248fcca98
    staging: /var/lib/tandem/models/.staging-ling-3.0-flash-fp8-a5d248fcca98
    state: published
"""

RETURN = r"""
removed:
  description: Paths that were removed, or would be in check mode.
  returned: when O(state) is V(absent) or V(pruned)
  type: list
  elements: str
kept:
  description: Why each release that is more than O(keep) was kept, by name.
  returned: when O(state) is V(pruned)
  type: dict
present:
  description: Whether the release is there and agrees with its manifest.
  returned: success
  type: bool
digest:
  description: The manifest's digest.
  returned: success
  type: str
checked:
  description:
    - V(full) when every byte was read, V(trusted) when unchanged files were not read again, V(arrived) when files that
      were read as they arrived in this run were not read again.
  returned: success
  type: str
files_read:
  description: Number of files that were read for this answer.
  returned: success
  type: int
reason:
  description: Why it is not present.
  returned: success
  type: str
bytes:
  description: Size of the model.
  returned: success
  type: int
"""

import os
import shutil
import stat
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _manifest, _release, _replicate, _structure
from ansible_collections.tandem.spark.plugins.module_utils._files import read_text, sync_directory

# What the running rank was started from, as the launcher notes it.
RANK_STATE = "/run/tandem/rank.json"


def read_manifest(path: str) -> dict[str, t.Any] | None:
    text = read_text(os.path.join(path, _manifest.FILE_NAME))
    return None if text is None else _manifest.load(text, os.path.join(path, _manifest.FILE_NAME))


def make_readable(directory: str) -> None:
    """The engine runs as another account, so whatever root's umask was, everybody may read a release."""
    for parent, _directories, names in os.walk(directory):
        os.chmod(parent, 0o755)
        for name in names:
            path = os.path.join(parent, name)
            # A mode that is set again moves the file's ctime, and with it away from its proof.
            if not os.path.islink(path) and stat.S_IMODE(os.lstat(path).st_mode) != 0o644:
                os.chmod(path, 0o644)


def look(
    path: str,
    revision: str | None,
    digest: str | None,
    full: bool,
    proof: tuple[str, str] | None = None,
    noted: dict[str, list[int]] | None = None,
) -> dict[str, t.Any]:
    """What is at *path*, compared with its own manifest and with what is wanted.

    *proof*: file and run in which files were hashed as they arrived. *noted*: filled with what need not be read again.
    """
    result: dict[str, t.Any] = {
        "present": False,
        "digest": None,
        "bytes": 0,
        "files_read": 0,
        "checked": "full" if full else "trusted",
    }
    try:
        manifest = read_manifest(path)
    except (OSError, _manifest.ManifestError) as error:
        return dict(result, reason=str(error))
    if manifest is None:
        return dict(result, reason=f"no manifest in {path}")
    if revision and manifest["model"].get("revision") != revision:
        return dict(result, reason=f"{path} is of revision {manifest['model'].get('revision')}, wanted {revision}")
    if digest and manifest["digest"] != digest:
        return dict(result, reason=f"{path} has the manifest digest {manifest['digest']}, wanted {digest}")
    keys = None if full else _manifest.read_trust(path, manifest)
    if proof:
        keys = _replicate.read_proof(*proof, manifest["digest"])
    try:
        difference, read = _manifest.compare(path, manifest, keys, noted)
    except OSError as error:
        return dict(result, reason=f"{path}: a file cannot be read: {error}")
    if proof and keys and read < len(manifest["files"]):
        result["checked"] = "arrived"
    result.update(files_read=read, bytes=sum(entry["size"] for entry in manifest["files"]))
    if difference:
        return dict(result, reason=f"{path}: {difference.text()}")
    return dict(result, present=True, digest=manifest["digest"], reason="")


def why_needed(root: str, path: str) -> str:
    """Why the release at *path* must stay; empty when nobody needs it."""
    why = _release.needed_by(root, RANK_STATE).get(path)
    if why:
        return why
    users = _release.users(path)
    return f"in use by process {', '.join(users[:5])}" if users else ""


def erase(root: str, path: str) -> list[str]:
    """Remove a model's release, and the rank releases that cannot be started without it; the paths removed."""
    # Under another name first: half a release must not be found under its own.
    parent, name = os.path.split(path)
    aside = os.path.join(parent, f".removed-{name}")
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(path, aside)
    shutil.rmtree(aside)
    _manifest.forget_trust(path)
    without = orphans(root, path)
    for orphan in without:
        shutil.rmtree(orphan)
    return [path, *without]


def orphans(root: str, path: str) -> list[str]:
    """Rank releases that name the model at *path*."""
    releases = os.path.join(root, "releases")
    names = sorted(os.listdir(releases)) if os.path.isdir(releases) else []
    return [os.path.join(releases, name) for name in names if _release.describe(root, name)["model"] == path]


def remove(module: AnsibleModule, path: str) -> t.NoReturn:
    root = module.params["root"]
    if not os.path.isdir(path):
        module.exit_json(changed=False, removed=[], present=False)
    why = why_needed(root, path)
    if why:
        module.fail_json(
            msg=f"{path}: not removed: found it needed ({why}), wanted a release that nobody uses; serve another one "
            "first, or stop what uses it"
        )
    if module.check_mode:
        module.exit_json(changed=True, removed=[path, *orphans(root, path)], present=True)
    try:
        module.exit_json(changed=True, removed=erase(root, path), present=False)
    except OSError as error:
        module.fail_json(msg=f"{path}: cannot be removed: {error}")


def prune(module: AnsibleModule, directory: str) -> t.NoReturn:
    root, keep = module.params["root"], module.params["keep"]
    if keep < 1:
        module.fail_json(msg=f"keep: found {keep}, wanted 1 or more: the release that is served stays in any case")
    ages = {}
    for entry in os.scandir(directory) if os.path.isdir(directory) else []:
        manifest = os.path.join(entry.path, _manifest.FILE_NAME)
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".") and os.path.isfile(manifest):
            ages[entry.name] = os.stat(manifest).st_ctime
    needed = _release.needed_by(root, RANK_STATE)
    protected = {name: "it was asked for" for name in module.params["needed"] if name in ages}
    for name in ages:
        if os.path.join(directory, name) in needed:
            protected.setdefault(name, needed[os.path.join(directory, name)])
    kept = {}
    going = []
    for name in _release.surplus(ages, keep, protected):
        users = _release.users(os.path.join(directory, name))
        if users:
            kept[name] = f"in use by process {', '.join(users[:5])}"
        else:
            going.append(os.path.join(directory, name))
    if len(protected) > keep:
        kept.update(protected)
    removed: list[str] = []
    try:
        for path in going:
            removed += [path, *orphans(root, path)] if module.check_mode else erase(root, path)
    except OSError as error:
        module.fail_json(msg=f"{directory}: cannot be pruned: {error}", removed=removed)
    diff = difference(directory, "\n".join(sorted(removed)), "") if removed else {}
    module.exit_json(changed=bool(removed), removed=removed, kept=kept, diff=diff)


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "staging": {"type": "path"},
            "digest": {"type": "str"},
            "revision": {"type": "str"},
            "full": {"type": "bool", "default": False},
            "root": {"type": "path", "default": "/var/lib/tandem"},
            "keep": {"type": "int", "default": 2},
            "needed": {"type": "list", "elements": "str", "default": []},
            "state": {"type": "str", "choices": ["published", "query", "absent", "pruned"], "default": "query"},
            "proof": {"type": "path"},
            "run": {"type": "str"},
        },
        supports_check_mode=True,
        required_if=[("state", "published", ("staging",))],
        required_together=[("proof", "run")],
    )
    path: str = module.params["path"]
    staging: str = module.params["staging"]
    if module.params["state"] == "absent":
        remove(module, path)
    if module.params["state"] == "pruned":
        prune(module, path)
    wanted = (module.params["revision"], module.params["digest"])
    noted: dict[str, list[int]] = {}
    state = look(path, *wanted, full=module.params["full"], noted=noted)
    if module.params["state"] == "query" or state["present"]:
        if state["present"] and state["files_read"] and not module.check_mode:
            _manifest.write_trust(path, state["digest"], noted)
        module.exit_json(changed=False, **state)
    before = state["digest"]
    if module.check_mode:
        module.exit_json(changed=True, diff=difference(path, before, "a verified release"), **state)

    make_readable(staging)
    proof = (module.params["proof"], module.params["run"]) if module.params["proof"] else None
    noted = {}
    candidate = look(staging, *wanted, full=True, proof=proof, noted=noted)
    if not candidate["present"]:
        module.fail_json(msg=f"not published: {candidate['reason']}. The release at {path} was left as it is.")
    broken = _structure.problems(staging)
    if broken:
        module.fail_json(
            msg=f"not published: {'; '.join(broken[:5])}. The release at {path} was left as it is.", problems=broken
        )
    try:
        old = f"{staging}.old"
        shutil.rmtree(old, ignore_errors=True)
        if os.path.lexists(path):
            os.rename(path, old)
        os.rename(staging, path)
        sync_directory(os.path.dirname(path))
        shutil.rmtree(old, ignore_errors=True)
        _manifest.write_trust(path, candidate["digest"], noted)
        if proof and os.path.exists(proof[0]):
            os.unlink(proof[0])
    except OSError as error:
        module.fail_json(msg=f"{path}: cannot be published: {error}")
    module.exit_json(changed=True, diff=difference(path, before, candidate["digest"]), **candidate)


def difference(path: str, before: str | None, after: str) -> dict[str, str]:
    return {
        "before_header": path,
        "after_header": path,
        "before": f"{before}\n" if before else "",
        "after": f"{after}\n",
    }


if __name__ == "__main__":
    main()

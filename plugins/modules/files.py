#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: files
short_description: Keep a list of files and directories as wanted, in one round trip
description:
  - Writes every file of the list in one rename, makes directories, removes what shall be absent.
  - M(ansible.builtin.copy) does this for one file at a time and needs about five SSH round trips for each, even when
    nothing changes. A stage of this collection has several small files per node, so one module takes them all.
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
  files:
    description: What shall be where, in this order.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Absolute path.
        type: path
        required: true
      state:
        description:
          - V(file) writes O(files[].content) or a secret, V(directory) makes it with its parents, V(absent) removes.
        type: str
        choices: [file, directory, link, absent]
        default: file
      content:
        description: The whole text of the file.
        type: str
      secret:
        description: Take the text from this key of O(secrets). It appears in no diff and no log.
        type: str
      target:
        description: What a V(link) points to. The link is switched in one rename.
        type: path
      keep:
        description: A second link, which is given what the V(link) pointed to so far, whenever that changes.
        type: path
      mode:
        description: Permissions, as an octal string.
        type: str
      owner:
        description: Name of the owner.
        type: str
        default: root
      group:
        description: Name of the group.
        type: str
        default: root
  secrets:
    description: Texts that files are made of and that nobody may see.
    type: dict
    default: {}
seealso:
  - module: ansible.builtin.copy
"""

EXAMPLES = r"""
- name: Write the limits of the service account
  tandem.spark.files:
    files:
      - path: /etc/security/limits.d/60-tandem.conf
        content: |
          tandem - memlock unlimited
        mode: "0644"
"""

RETURN = r"""
paths:
  description: The paths that changed (or would change, in check mode).
  returned: success
  type: list
  elements: str
"""

import grp
import os
import pwd
import re
import shutil
import stat
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils._files import replace

DEFAULT_MODES = {"file": 0o644, "directory": 0o755}


def current(path: str) -> dict[str, t.Any]:
    """What is at *path* now: kind, mode, owner and group ids, content of a file, target of a link."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return {"state": "absent"}
    found: dict[str, t.Any] = {"mode": stat.S_IMODE(status.st_mode), "owner": status.st_uid, "group": status.st_gid}
    if stat.S_ISLNK(status.st_mode):
        return {"state": "link", "target": os.readlink(path)}
    if stat.S_ISDIR(status.st_mode):
        return dict(found, state="directory")
    if stat.S_ISREG(status.st_mode):
        with open(path, "rb") as handle:
            return dict(found, state="file", content=handle.read())
    return dict(found, state="other")


def identity(module: AnsibleModule, kind: str, name: str) -> int | str:
    """The numeric id of an account; in check mode a name that an earlier task would have made stays a name."""
    try:
        return pwd.getpwnam(name).pw_uid if kind == "owner" else grp.getgrnam(name).gr_gid
    except KeyError:
        if module.check_mode:
            return name
        module.fail_json(
            msg=f"{kind}: found no account {name!r} on this node, wanted one; run the baseline stage first"
        )


def wanted(module: AnsibleModule, item: dict[str, t.Any]) -> dict[str, t.Any]:
    """The entry *item* in the form that current() returns."""
    state = item["state"]
    if state == "absent":
        return {"state": "absent"}
    if state == "link":
        if not item["target"]:
            module.fail_json(msg=f"{item['path']}: a link needs a target")
        return {"state": "link", "target": item["target"]}
    # Without quotes YAML reads 0644 as the number 420.
    if item["mode"] and not re.fullmatch("0[0-7]{3,4}", item["mode"]):
        module.fail_json(msg=f'{item["path"]}: mode: found {item["mode"]!r}, wanted an octal string such as "0644"')
    mode = int(item["mode"], 8) if item["mode"] else DEFAULT_MODES[state]
    result: dict[str, t.Any] = {
        "state": state,
        "mode": mode,
        "owner": identity(module, "owner", item["owner"]),
        "group": identity(module, "group", item["group"]),
    }
    if state == "file":
        if (item["content"] is None) == (item["secret"] is None):
            module.fail_json(msg=f"{item['path']}: a file needs either content or secret")
        text = item["content"] if item["secret"] is None else module.params["secrets"].get(item["secret"])
        if text is None:
            module.fail_json(msg=f"{item['path']}: secrets has no key {item['secret']!r}")
        result["content"] = str(text).encode()
    return result


def make_directories(path: str) -> None:
    """Like os.makedirs, but every directory made is 0755 whatever the umask says."""
    if os.path.isdir(path):
        return
    make_directories(os.path.dirname(path))
    os.mkdir(path)
    os.chmod(path, 0o755)


def remove(path: str, state: str) -> None:
    if state == "directory":
        shutil.rmtree(path)
    elif state != "absent":
        os.unlink(path)


def link(path: str, target: str) -> None:
    scratch = f"{path}.tandem-{os.getpid()}"
    os.symlink(target, scratch)
    os.replace(scratch, path)


def apply(path: str, before: dict[str, t.Any], after: dict[str, t.Any], keep: str | None) -> None:
    if after["state"] == "absent":
        remove(path, before["state"])
        return
    make_directories(os.path.dirname(path))
    if after["state"] == "link":
        if before["state"] not in ("absent", "link"):
            remove(path, before["state"])
        if keep and before["state"] == "link":
            # First, so that a run that ends in between finds the same link to change.
            link(keep, before["target"])
        link(path, after["target"])
        return
    if before["state"] not in ("absent", after["state"]):
        remove(path, before["state"])
    if after["state"] == "directory":
        if before["state"] != "directory":
            os.mkdir(path)
        os.chmod(path, after["mode"])
    elif before.get("content") != after["content"]:
        replace(path, after["content"], after["mode"])
    else:
        os.chmod(path, after["mode"])
    os.chown(path, after["owner"], after["group"])


def describe(state: dict[str, t.Any], secret: str | None) -> str:
    """The state as text for a diff; *secret* stands in for a content that nobody may see."""
    if state["state"] == "absent":
        return ""
    if state["state"] == "link":
        return f"link to {state['target']}\n"
    head = f"# {state['state']} mode={state['mode']:04o} owner={state['owner']} group={state['group']}\n"
    if "content" not in state:
        return head
    return head + (secret or state["content"].decode("utf-8", "replace"))


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "files": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "path": {"type": "path", "required": True},
                    "state": {"type": "str", "choices": ["file", "directory", "link", "absent"], "default": "file"},
                    "content": {"type": "str"},
                    "secret": {"type": "str", "no_log": False},
                    "target": {"type": "path"},
                    "keep": {"type": "path"},
                    "mode": {"type": "str"},
                    "owner": {"type": "str", "default": "root"},
                    "group": {"type": "str", "default": "root"},
                },
            },
            "secrets": {"type": "dict", "default": {}, "no_log": True},
        },
        supports_check_mode=True,
    )
    plan = [(item, current(item["path"]), wanted(module, item)) for item in module.params["files"]]
    changes = [(item, before, after) for item, before, after in plan if before != after]
    for item, before, after in changes:
        if module.check_mode:
            continue
        try:
            apply(item["path"], before, after, item["keep"])
        except OSError as error:
            module.fail_json(msg=f"{item['path']}: cannot be written: {error.strerror}")
    module.exit_json(
        changed=bool(changes),
        paths=[item["path"] for item, _before, _after in changes],
        diff=[
            {
                "before_header": item["path"],
                "after_header": item["path"],
                "before": describe(before, "(the old secret)\n" if item["secret"] else None),
                "after": describe(after, "(the new secret)\n" if item["secret"] else None),
            }
            for item, before, after in changes
        ],
    )


if __name__ == "__main__":
    main()

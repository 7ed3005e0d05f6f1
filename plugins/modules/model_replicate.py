#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_replicate
short_description: Copy a model from other nodes over every rail, and verify each file as it arrives
description:
  - Brings every file of a manifest into a staging directory on this node, with several rsyncs spread over the rails.
    What an interrupted copy left is kept, and only the rest is sent. A rail that is lost hands its files to the others.
  - Each file is read against the manifest as soon as it is whole, while it is still in the page cache. A wrong file is
    sent again, once. RV(proof) lets M(tandem.spark.model_release) publish without reading everything again.
  - Refuses before the transfer when the bytes that are still to come do not fit on the disk.
  - The source must offer its release with M(tandem.spark.fabric_share), or be reachable by SSH as root's known host.
version_added: 0.1.0
author:
  - The tandem.spark contributors (@tandem-spark)
extends_documentation_fragment:
  - tandem.spark._attributes
attributes:
  check_mode:
    support: full
    details: Says how many files and bytes would be sent.
  diff_mode:
    support: none
options:
  node:
    description: Name of this node, for messages.
    type: str
    required: true
  staging:
    description: Directory to copy into.
    type: path
    required: true
  manifest:
    description:
      - The manifest of the source, as JSON. Empty in check mode means that the source has none yet, so that what would
        be sent is not known.
    type: str
    required: true
  digest:
    description: Digest that the manifest must have.
    type: str
  lanes:
    description: The ways to the nodes that have the files, from filter P(tandem.spark.replication#filter).
    type: list
    elements: dict
    required: true
    suboptions:
      node:
        description: Name of the other node.
        type: str
        required: true
      address:
        description: Its fabric address on this rail.
        type: str
        required: true
      local:
        description: This node's fabric address on this rail.
        type: str
        required: true
      path:
        description: The directory there.
        type: path
        required: true
      rail:
        description: Number of the rail.
        type: int
      streams:
        description: Number of rsyncs at a time. The default is two, because one is bound by one core.
        type: int
        default: 2
      port:
        description: TCP port of the daemon there.
        type: int
        default: 8730
      relay:
        description: The other node is still receiving, and hands on each file that it has verified.
        type: bool
        default: false
      hops:
        description: Cables on the way.
        type: int
        default: 1
  run:
    description: Name of this run, the same on all nodes that copy together, and never used again.
    type: str
    required: true
  relayed:
    description: Other nodes copy from this one at the same time, so what arrived is kept in the page cache.
    type: bool
    default: false
  transport:
    description:
      - V(fabric) is the rsync daemon of M(tandem.spark.fabric_share). V(ssh) needs keys between the nodes, and a cipher
        bounds its rate.
    type: str
    choices: [fabric, ssh]
    default: fabric
  secret:
    description: The password of this transfer, for O(transport=fabric).
    type: str
  ssh_user:
    description: Account on the other node, for O(transport=ssh).
    type: str
    default: root
  ssh_port:
    description: Port of its SSH server, for O(transport=ssh).
    type: int
    default: 22
  timeout_s:
    description: A rail that is silent for so many seconds is lost.
    type: int
    default: 20
  stall_s:
    description: Give up when nothing arrived over any rail for so many seconds. More than O(timeout_s), so that the
      files of a lost rail can go on over another one.
    type: int
    default: 120
"""

EXAMPLES = r"""
- name: Copy the model
  tandem.spark.model_replicate:
    node: "{{ inventory_hostname }}"
    staging: /var/lib/tandem/models/.staging-ling
    manifest: "{{ __manifest.content | b64decode }}"
    lanes:
      - node: spark-a
        address: 192.168.100.10
        local: 192.168.100.11
        path: /var/lib/tandem/models/ling
    run: "{{ __run }}"
    secret: "{{ __secret }}"
"""

RETURN = r"""
files_sent:
  description: Number of files that were sent, or would be in check mode. Null when it is not known.
  returned: success
  type: int
bytes_sent:
  description: Bytes that came over the cables, or would in check mode. Null when it is not known.
  returned: success
  type: int
files_resent:
  description: Files that were found wrong and sent again.
  returned: success and not in check mode
  type: list
  elements: str
removed:
  description: What was in the staging directory and is not in the manifest.
  returned: success and not in check mode
  type: list
  elements: str
digest:
  description: The manifest's digest.
  returned: success
  type: str
files:
  description: Number of files in the manifest.
  returned: success
  type: int
bytes:
  description: Size of the model.
  returned: success
  type: int
proof:
  description: Path of the file that says what was hashed and found right in this run.
  returned: success and not in check mode
  type: str
run:
  description: Name of the run that the proof is of.
  returned: success and not in check mode
  type: str
rails:
  description: Bytes by fabric address of the other end.
  returned: success and not in check mode
  type: dict
troubles:
  description: Rails that were lost and did not come back.
  returned: success and not in check mode
  type: list
  elements: str
seconds:
  description: Duration, with verification.
  returned: success and not in check mode
  type: float
"""

import re
import shutil
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _replicate, _share

UNKNOWN = {"files_sent": None, "bytes_sent": None, "digest": None, "files": None, "bytes": None}


def strangers(module: AnsibleModule) -> list[str]:
    """Sources whose SSH host key nobody vouched for: named at once, because ssh must never ask (C31)."""
    port, found = module.params["ssh_port"], []
    for lane in module.params["lanes"]:
        host = lane["address"] if port == 22 else f"[{lane['address']}]:{port}"
        code, _out, _err = module.run_command(["ssh-keygen", "-F", host])
        if code != 0:
            found.append(
                f"{module.params['node']}: known_hosts of this account: found no key of {host} ({lane['node']}), "
                "wanted one; add it, or set the transport to fabric, which needs no keys"
            )
    return found


def problems(parameters: dict[str, t.Any]) -> list[str]:
    found = []
    if parameters["transport"] == "fabric" and not parameters["secret"]:
        found.append("secret: found none, wanted the one that the source's share was started with")
    # It stands in the command line of a shell on the other side.
    if not re.fullmatch(r"[a-z_][a-z0-9_.-]*", parameters["ssh_user"]):
        found.append(f"ssh_user: found {parameters['ssh_user']!r}, wanted the name of an account")
    if not re.fullmatch(r"[A-Za-z0-9_.-]{8,}", parameters["run"]):
        found.append(f"run: found {parameters['run']!r}, wanted 8 or more letters and digits")
    if parameters["timeout_s"] < 1:
        found.append(f"timeout_s: found {parameters['timeout_s']}, wanted 1 or more")
    if parameters["stall_s"] <= parameters["timeout_s"]:
        found.append(
            f"stall_s: found {parameters['stall_s']}, wanted more than timeout_s ({parameters['timeout_s']}): only "
            "after that the files of a lost rail go on over another one"
        )
    found += [
        f"lane {lane['address']}: streams: found {lane['streams']}, wanted 1 to 16"
        for lane in parameters["lanes"]
        if not 1 <= lane["streams"] <= 16
    ]
    return [f"{parameters['node']}: {text}" for text in found]


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "staging": {"type": "path", "required": True},
            "manifest": {"type": "str", "required": True},
            "digest": {"type": "str"},
            "lanes": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "node": {"type": "str", "required": True},
                    "address": {"type": "str", "required": True},
                    "local": {"type": "str", "required": True},
                    "path": {"type": "path", "required": True},
                    "rail": {"type": "int"},
                    "streams": {"type": "int", "default": 2},
                    "port": {"type": "int", "default": _share.PORT},
                    "relay": {"type": "bool", "default": False},
                    "hops": {"type": "int", "default": 1},
                },
            },
            "run": {"type": "str", "required": True},
            "relayed": {"type": "bool", "default": False},
            "transport": {"type": "str", "choices": ["fabric", "ssh"], "default": "fabric"},
            "secret": {"type": "str", "no_log": True},
            "ssh_user": {"type": "str", "default": "root"},
            "ssh_port": {"type": "int", "default": 22},
            "timeout_s": {"type": "int", "default": 20},
            "stall_s": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    parameters = module.params
    found = problems(parameters)
    if found:
        module.fail_json(msg=f"{'; '.join(found)}. Nothing was copied.")
    if module.check_mode and not parameters["manifest"].strip():
        module.exit_json(changed=True, **UNKNOWN)
    specification = dict(parameters, ssh={"user": parameters["ssh_user"], "port": parameters["ssh_port"]})
    try:
        if module.check_mode:
            module.exit_json(**_replicate.outlook(specification))
        # Before the keys are looked at: without ssh there is no ssh-keygen either.
        if parameters["transport"] == "ssh" and shutil.which("ssh") is None:
            module.fail_json(msg=f"{parameters['node']}: found no ssh, wanted one, or the transport fabric")
        unknown = strangers(module) if parameters["transport"] == "ssh" else []
        if unknown:
            module.fail_json(msg="; ".join(unknown))
        module.exit_json(**_replicate.replicate(specification))
    except _replicate.ReplicationError as error:
        module.fail_json(msg=f"{error}. Nothing was published.")


if __name__ == "__main__":
    main()

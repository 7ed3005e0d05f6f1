#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_share
short_description: Offer a directory to the other nodes over the fabric for one transfer
description:
  - Starts an rsync daemon as a transient unit, bound to one fabric address, read-only, for the named peers, behind a
    secret made for this transfer. No SSH keys between nodes are needed, and no cipher slows the copy.
  - The daemon ends by itself after O(lifetime_s), also when the controller is lost.
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
  name:
    description: Name of the share.
    type: str
    required: true
  path:
    description: The directory.
    type: path
  address:
    description: Fabric address of this node to listen on.
    type: str
  port:
    description: TCP port.
    type: int
    default: 8730
  peers:
    description: Fabric addresses that may connect.
    type: list
    elements: str
    default: []
  secret:
    description: The password of this transfer.
    type: str
  lifetime_s:
    description: Seconds after which the daemon ends by itself.
    type: int
    default: 86400
  state:
    description: V(present) starts it, V(absent) ends it.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = r"""
- name: Offer the model
  tandem.spark.fabric_share:
    name: model
    path: /var/lib/tandem/models/ling-3.0-flash-fp8-a5d248fcca98
    address: 192.168.100.10
    peers: [192.168.100.11]
    secret: "{{ __model_secret }}"
"""

RETURN = r"""
unit:
  description: Name of the transient unit.
  returned: success
  type: str
"""

import os
import shutil
import socket
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _share
from ansible_collections.tandem.spark.plugins.module_utils._files import replace

READY_S = 10


def listening(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0


def stop(module: AnsibleModule, unit: str, directory: str) -> bool:
    code, _out, _err = module.run_command(["systemctl", "is-active", "--quiet", unit])
    there = code == 0 or os.path.isdir(directory)
    if there and not module.check_mode:
        module.run_command(["systemctl", "stop", unit])
        shutil.rmtree(directory, ignore_errors=True)
    return there


def start(module: AnsibleModule, unit: str, directory: str) -> None:
    parameters = module.params
    rsync = module.get_bin_path("rsync")
    if rsync is None:
        module.fail_json(msg="found no rsync on this node, wanted one; run the baseline stage, or install rsync")
    if listening(parameters["address"], parameters["port"]):
        module.fail_json(
            msg=f"{parameters['address']}:{parameters['port']}: found another server there, wanted a free port"
        )
    os.makedirs(directory, mode=0o700)
    secrets = os.path.join(directory, "secrets")
    replace(secrets, f"{_share.USER}:{parameters['secret']}\n".encode(), 0o600)
    config = os.path.join(directory, "rsyncd.conf")
    lock = os.path.join(directory, "lock")
    replace(config, _share.config(parameters["path"], parameters["peers"], secrets, lock).encode(), 0o600)
    command = ["systemd-run", "--quiet", "--collect", f"--unit={unit}", "--property=ProtectSystem=strict"]
    command += [f"--property=ReadWritePaths={directory}", "--property=PrivateTmp=yes"]
    command += [f"--property=RuntimeMaxSec={parameters['lifetime_s']}"]
    command += [rsync, "--daemon", "--no-detach", f"--config={config}", f"--address={parameters['address']}"]
    # It logs by syslog: /dev/stderr of a unit is a socket, which cannot be opened.
    code, _out, err = module.run_command([*command, f"--port={parameters['port']}"])
    deadline = time.monotonic() + READY_S
    while code == 0 and not listening(parameters["address"], parameters["port"]):
        if time.monotonic() > deadline:
            code, err = 1, f"nothing listens on {parameters['address']}:{parameters['port']} after {READY_S} s"
        time.sleep(0.05)
    if code != 0:
        _code, log, _err = module.run_command(
            ["journalctl", "--no-pager", "--lines=5", "--output=cat", f"--unit={unit}"]
        )
        stop(module, unit, directory)
        module.fail_json(msg=f"the share {parameters['name']} does not start: {err.strip()} {log.strip()}")


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "path": {"type": "path"},
            "address": {"type": "str"},
            "port": {"type": "int", "default": _share.PORT},
            "peers": {"type": "list", "elements": "str", "default": []},
            "secret": {"type": "str", "no_log": True},
            "lifetime_s": {"type": "int", "default": 86400},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
        required_if=[("state", "present", ("path", "address", "peers", "secret"))],
    )
    unit = _share.unit_name(module.params["name"])
    directory = f"/run/{unit}"
    if module.params["state"] == "present" and not module.params["peers"]:
        module.fail_json(msg=f"{module.params['name']}: peers: found none, wanted the addresses that may connect")
    there = stop(module, unit, directory)
    if module.params["state"] == "absent":
        module.exit_json(changed=there, unit=unit)
    if not module.check_mode:
        start(module, unit, directory)
    module.exit_json(changed=True, unit=unit)


if __name__ == "__main__":
    main()

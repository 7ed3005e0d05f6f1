#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_share
short_description: Offer a directory to the other nodes over the fabric for one transfer
description:
  - Starts an rsync daemon as a transient unit for each fabric address, bound to that address, read-only, for the peers
    of that rail, behind a secret made for this transfer. No SSH keys between nodes are needed, and no cipher slows the
    copy.
  - The daemons end by themselves after O(lifetime_s), also when the controller is lost.
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
  listen:
    description: Fabric addresses of this node to listen on, one per rail.
    type: list
    elements: dict
    default: []
    suboptions:
      address:
        description: The address.
        type: str
        required: true
      peers:
        description: Fabric addresses on the same rail that may connect.
        type: list
        elements: str
        required: true
  port:
    description: TCP port.
    type: int
    default: 8730
  relay:
    description:
      - The directory is still being filled by M(tandem.spark.model_replicate). It is made if need be, and the proof
        file beside it is offered too, from which the others learn which files are whole.
    type: bool
    default: false
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
    listen:
      - {address: 192.168.100.10, peers: [192.168.100.11]}
      - {address: 192.168.101.10, peers: [192.168.101.11]}
    secret: "{{ __model_secret }}"
"""

RETURN = r"""
units:
  description: Names of the transient units.
  returned: success
  type: list
  elements: str
"""

import ipaddress
import os
import shutil
import socket
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _replicate, _share
from ansible_collections.tandem.spark.plugins.module_utils._files import replace

READY_S = 10


def listening(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0


def problems(name: str, listen: list[dict[str, t.Any]]) -> list[str]:
    """A daemon on every address, or for everybody, is what this must never start."""
    found = [] if listen else [f"{name}: listen: found nothing, wanted the fabric addresses to listen on"]
    for entry in listen:
        if not plain(entry["address"]):
            found.append(f"{name}: address: found {entry['address']!r}, wanted one IPv4 address of this node's fabric")
        if not entry["peers"]:
            found.append(f"{name}: peers of {entry['address']}: found none, wanted the addresses that may connect")
        found += [
            f"{name}: peers of {entry['address']}: found {peer!r}, wanted IPv4 addresses of the fabric"
            for peer in entry["peers"]
            if not plain(peer)
        ]
    return found


def plain(text: str) -> bool:
    try:
        return not ipaddress.IPv4Address(text).is_unspecified
    except ValueError:
        return False


def places(directory: str) -> list[str]:
    """The addresses that there are daemons for, or were."""
    return sorted(os.listdir(directory)) if os.path.isdir(directory) else []


def stop(module: AnsibleModule, directory: str) -> bool:
    there = os.path.isdir(directory)
    if there and not module.check_mode:
        units = [_share.unit_name(module.params["name"], address) for address in places(directory)]
        if units:
            module.run_command(["systemctl", "stop", *units])
        shutil.rmtree(directory, ignore_errors=True)
    return there


def start(module: AnsibleModule, directory: str) -> None:
    parameters = module.params
    rsync = module.get_bin_path("rsync")
    if rsync is None:
        module.fail_json(msg="found no rsync on this node, wanted one; run the baseline stage, or install rsync")
    for entry in parameters["listen"]:
        if listening(entry["address"], parameters["port"]):
            module.fail_json(
                msg=f"{entry['address']}:{parameters['port']}: found another server there, wanted a free port"
            )
    if parameters["relay"]:
        os.makedirs(parameters["path"], mode=0o755, exist_ok=True)
    for entry in parameters["listen"]:
        place = os.path.join(directory, entry["address"])
        os.makedirs(place, mode=0o700)
        os.chmod(directory, 0o700)
        start_one(module, rsync, place, entry)
    deadline = time.monotonic() + READY_S
    for entry in parameters["listen"]:
        while not listening(entry["address"], parameters["port"]):
            if time.monotonic() > deadline:
                text = f"nothing listens on {entry['address']}:{parameters['port']} after {READY_S} s"
                give_up(module, directory, entry["address"], text)
            time.sleep(0.05)


def start_one(module: AnsibleModule, rsync: str, place: str, entry: dict[str, t.Any]) -> None:
    parameters = module.params
    secrets, config, lock = (os.path.join(place, name) for name in ("secrets", "rsyncd.conf", "lock"))
    replace(secrets, f"{_share.USER}:{parameters['secret']}\n".encode(), 0o600)
    proof = _replicate.proof_file(parameters["path"]) if parameters["relay"] else None
    replace(config, _share.config(parameters["path"], entry["peers"], secrets, lock, proof).encode(), 0o600)
    unit = _share.unit_name(parameters["name"], entry["address"])
    command = ["systemd-run", "--quiet", "--collect", f"--unit={unit}", "--property=ProtectSystem=strict"]
    command += [f"--property=ReadWritePaths={place}", "--property=PrivateTmp=yes"]
    command += [f"--property=RuntimeMaxSec={parameters['lifetime_s']}"]
    command += [rsync, "--daemon", "--no-detach", f"--config={config}", f"--address={entry['address']}"]
    # It logs by syslog: /dev/stderr of a unit is a socket, which cannot be opened.
    code, _out, err = module.run_command([*command, f"--port={parameters['port']}"])
    if code != 0:
        give_up(module, os.path.dirname(place), entry["address"], err.strip())


def give_up(module: AnsibleModule, directory: str, address: str, text: str) -> t.NoReturn:
    unit = _share.unit_name(module.params["name"], address)
    _code, log, _err = module.run_command(["journalctl", "--no-pager", "--lines=5", "--output=cat", f"--unit={unit}"])
    stop(module, directory)
    module.fail_json(msg=f"the share {module.params['name']} does not start: {text} {log.strip()}")


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "path": {"type": "path"},
            "listen": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "address": {"type": "str", "required": True},
                    "peers": {"type": "list", "elements": "str", "required": True},
                },
            },
            "port": {"type": "int", "default": _share.PORT},
            "relay": {"type": "bool", "default": False},
            "secret": {"type": "str", "no_log": True},
            "lifetime_s": {"type": "int", "default": 86400},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
        required_if=[("state", "present", ("path", "listen", "secret"))],
    )
    directory = f"/run/{_share.unit_name(module.params['name'])}"
    if module.params["state"] == "present":
        found = problems(module.params["name"], module.params["listen"])
        if found:
            module.fail_json(msg=f"{'; '.join(found)}. Nothing was started.")
    units = [_share.unit_name(module.params["name"], address) for address in places(directory)]
    there = stop(module, directory)
    if module.params["state"] == "absent":
        module.exit_json(changed=there, units=units)
    if not module.check_mode:
        start(module, directory)
    units = [_share.unit_name(module.params["name"], entry["address"]) for entry in module.params["listen"]]
    module.exit_json(changed=True, units=units)


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_config
short_description: Addresses and MTU of the fabric links, with a timed way back
description:
  - Writes one netplan file for the fabric links and applies it. It never touches another interface's configuration.
  - Before applying it arms a timer on the node that puts the old file back. Call the module again with
    O(state=confirmed) over the management network; if that call never arrives, the node repairs itself.
  - Running interfaces are compared too, so a lost MTU or address is put back although the file is right.
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
  links:
    description: The links of this node.
    type: list
    elements: dict
    default: []
    suboptions:
      interface:
        description: Network interface.
        type: str
        required: true
      address:
        description: IPv4 address with prefix length.
        type: str
        required: true
      mtu:
        description: MTU in bytes.
        type: int
        required: true
  path:
    description: The netplan file.
    type: path
    default: /etc/netplan/60-tandem-fabric.yaml
  revert_after_s:
    description: Seconds after which the old file comes back unless the change is confirmed.
    type: int
    default: 120
  state:
    description: V(present) applies, V(confirmed) stops the timer.
    type: str
    choices: [present, confirmed]
    default: present
"""

EXAMPLES = r"""
- name: Configure the fabric
  tandem.spark.fabric_config:
    links:
      - {interface: enp1s0f0np0, address: 192.168.100.10/24, mtu: 9000}
  register: __fabric_config

- name: Keep it, since the node still answers
  tandem.spark.fabric_config:
    state: confirmed
  when: __fabric_config.changed
"""

RETURN = r"""
drift:
  description: How the running interfaces differed from what is wanted.
  returned: success
  type: list
  elements: str
"""

import glob
import json
import os
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _netplan
from ansible_collections.tandem.spark.plugins.module_utils._files import read_text, replace

UNIT = "tandem-fabric-revert"
BACKUP = "/run/tandem-fabric-before.yaml"
SETTLE_S = 20
# Runs on the node when nobody confirmed: plain shell, since it must work without this module.
REVERT = 'if [ -s "$1" ]; then install -m 0600 "$1" "$2"; else rm -f "$2"; fi; exec netplan apply'


def other_files(path: str) -> dict[str, str]:
    names = [
        name for place in ("/etc/netplan", "/run/netplan", "/lib/netplan") for name in glob.glob(f"{place}/*.yaml")
    ]
    return {name: read_text(name) or "" for name in names if os.path.realpath(name) != os.path.realpath(path)}


def running(module: AnsibleModule) -> list[dict[str, t.Any]]:
    ip = module.get_bin_path("ip", required=True)
    _code, out, _err = module.run_command([ip, "-j", "addr", "show"], check_rc=True)
    return t.cast("list[dict[str, t.Any]]", json.loads(out or "[]"))


def pending(module: AnsibleModule) -> bool:
    """Whether a change waits for its confirmation."""
    code, _out, _err = module.run_command(["systemctl", "is-active", "--quiet", f"{UNIT}.timer"])
    return bool(code == 0 and os.path.exists(BACKUP))


def arm(module: AnsibleModule, path: str, before: str | None) -> None:
    disarm(module)
    replace(BACKUP, (before or "").encode(), 0o600)
    command = ["systemd-run", "--quiet", "--collect", f"--unit={UNIT}"]
    command += [f"--on-active={module.params['revert_after_s']}s", "--timer-property=AccuracySec=1s"]
    code, _out, err = module.run_command([*command, "/bin/sh", "-c", REVERT, UNIT, BACKUP, path])
    if code != 0:
        os.unlink(BACKUP)
        module.fail_json(msg=f"the automatic revert cannot be armed, so nothing was changed: {err.strip()}")


def disarm(module: AnsibleModule) -> None:
    module.run_command(["systemctl", "stop", f"{UNIT}.timer"])
    if os.path.exists(BACKUP):
        os.unlink(BACKUP)


def confirm(module: AnsibleModule) -> None:
    if os.path.exists(BACKUP) and not pending(module):
        module.fail_json(
            msg="the change was not confirmed in time, so the node has put the old configuration back; run the fabric "
            "stage again, with a larger fabric_revert_after_s if this node answers slowly"
        )
    if not module.check_mode:
        disarm(module)


def put_back(module: AnsibleModule, path: str, before: str | None) -> None:
    if before is not None:
        replace(path, before.encode(), 0o600)
    elif os.path.exists(path):
        os.unlink(path)
    module.run_command(["netplan", "apply"])
    disarm(module)


def apply(module: AnsibleModule, path: str, before: str | None, after: str) -> None:
    links = module.params["links"]
    if module.get_bin_path("netplan") is None:
        module.fail_json(msg="found no netplan on this node, wanted it; run the baseline stage, or install netplan.io")
    if pending(module):
        # What stands in the file was never confirmed: what came before it is the way back.
        before = read_text(BACKUP) or None
    arm(module, path, before)
    replace(path, after.encode(), 0o600)
    for step in ("generate", "apply"):
        code, out, err = module.run_command(["netplan", step])
        if code != 0:
            put_back(module, path, before)
            module.fail_json(msg=f"netplan {step} failed, the old configuration is back: {(err or out).strip()}")
    deadline = time.monotonic() + SETTLE_S
    left = _netplan.drift(links, running(module))
    while left and time.monotonic() < deadline:
        time.sleep(0.2)
        left = _netplan.drift(links, running(module))
    if left:
        put_back(module, path, before)
        module.fail_json(
            msg=f"{SETTLE_S} s after netplan apply: {'; '.join(left)}. The old configuration is back. Is the cable "
            "plugged, and is systemd-networkd or NetworkManager in charge of these interfaces?"
        )


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "links": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "interface": {"type": "str", "required": True},
                    "address": {"type": "str", "required": True},
                    "mtu": {"type": "int", "required": True},
                },
            },
            "path": {"type": "path", "default": "/etc/netplan/60-tandem-fabric.yaml"},
            "revert_after_s": {"type": "int", "default": 120},
            "state": {"type": "str", "choices": ["present", "confirmed"], "default": "present"},
        },
        supports_check_mode=True,
    )
    if module.params["state"] == "confirmed":
        confirm(module)
        module.exit_json(changed=False, drift=[])

    path: str = module.params["path"]
    links = module.params["links"]
    before, after = read_text(path), _netplan.render(links)
    conflicts = _netplan.addresses_elsewhere(other_files(path), links)
    if conflicts:
        module.fail_json(
            msg=f"{'; '.join(conflicts)}: netplan would use both sets of addresses. Nothing was changed. Remove the "
            f"interface from that file, or list it no longer in tandem_links.",
            conflicts=conflicts,
        )
    shown = running(module)
    absent = [link["interface"] for link in links if link["interface"] not in {entry.get("ifname") for entry in shown}]
    if absent:
        module.fail_json(
            msg=f"found no interface {', '.join(absent)} on this node, wanted it for tandem_links; plug the cable (an "
            "empty cage removes its card from the system) or name the interface of the cage that has one"
        )
    drift = _netplan.drift(links, shown)
    mode_wrong = before is not None and (os.stat(path).st_mode & 0o777) != 0o600
    wrong = before != after or bool(drift) or mode_wrong
    if wrong and not module.check_mode:
        apply(module, path, before, after)
    state_before, state_after = "".join(f"# {line}\n" for line in drift), ""
    module.exit_json(
        # Something is still to be done while an earlier change waits for its confirmation: the timer would revert it.
        changed=wrong or pending(module),
        drift=drift,
        diff={
            "before_header": path,
            "after_header": path,
            "before": (before or "") + state_before,
            "after": after + state_after,
        },
    )


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_pull
short_description: Copy what another node offers with fabric_share
description:
  - Runs rsync against the daemon that M(tandem.spark.fabric_share) started on the other node. An interrupted copy goes
    on where it stopped. Files are compared by content, and what the source does not have is removed.
  - A finished copy proves nothing yet, verify it with M(tandem.spark.model_release) or M(tandem.spark.wheelhouse).
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
  address:
    description: Fabric address of the other node.
    type: str
    required: true
  port:
    description: TCP port of its daemon.
    type: int
    default: 8730
  secret:
    description: The password of this transfer.
    type: str
    required: true
  path:
    description: Directory to copy into.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Copy the model
  tandem.spark.fabric_pull:
    address: 192.168.100.10
    path: /var/lib/tandem/models/.staging-ling
    secret: "{{ __model_secret }}"
"""

RETURN = r"""
bytes:
  description: Bytes of the files that were transferred.
  returned: success
  type: int
seconds:
  description: Duration of the copy.
  returned: success
  type: float
"""

import os
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _share

REMEDIES = {
    5: "the other node refused: wrong secret, or this node's fabric address is not among its peers",
    10: "the other node does not answer on this address: is the fabric up, and does a firewall stand between?",
    11: "a file cannot be written here: is the disk full?",
    30: "nothing arrived for five minutes: is the cable still in?",
    35: "no connection within 15 seconds: is the fabric up?",
}


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "address": {"type": "str", "required": True},
            "port": {"type": "int", "default": _share.PORT},
            "secret": {"type": "str", "required": True, "no_log": True},
            "path": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    parameters = module.params
    rsync = module.get_bin_path("rsync")
    if rsync is None:
        if module.check_mode:
            module.exit_json(changed=True, bytes=0, seconds=0.0)
        module.fail_json(msg="found no rsync on this node, wanted one; run the baseline stage, or install rsync")
    if module.check_mode:
        # In check mode nobody offers anything, so there is nothing to compare with.
        module.exit_json(changed=True, bytes=0, seconds=0.0)
    began = time.monotonic()
    os.makedirs(parameters["path"], exist_ok=True)
    code, out, err = module.run_command(
        _share.pull_command(rsync, parameters["address"], parameters["port"], parameters["path"]),
        environ_update={"RSYNC_PASSWORD": parameters["secret"], "LC_ALL": "C"},
    )
    if code != 0:
        remedy = REMEDIES.get(code, "see rsync's manual, EXIT VALUES")
        module.fail_json(
            msg=f"the copy from {parameters['address']}:{parameters['port']} ended with rsync status {code} "
            f"({remedy}): {err.strip()[-500:]}",
            rc=code,
        )
    moved = _share.transferred_bytes(out) or 0
    module.exit_json(changed=_share.changes(out) > 0, bytes=moved, seconds=round(time.monotonic() - began, 2))


if __name__ == "__main__":
    main()

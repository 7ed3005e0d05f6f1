#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_state
short_description: What the rank of this node is doing
description:
  - Reports the state of the rank's unit and which configuration the running rank was started from. Changes nothing.
  - While the unit is down it also finds a foreign server on the API's port.
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
  unit:
    description: The unit.
    type: str
    default: tandem-rank.service
  state_file:
    description: Where the launcher notes what it started.
    type: path
    default: /run/tandem/rank.json
  address:
    description: Address of the API on this node, to look for a foreign server. Not given on workers.
    type: str
  port:
    description: Port of the API.
    type: int
  rank_file:
    description: The configuration that shall run. Its digest is taken for O(wanted) unless that is given.
    type: path
  wanted:
    description: Digest of the configuration that shall run.
    type: str
  journal_lines:
    description: Return so many of the last log lines.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Look at the rank
  tandem.spark.rank_state:
"""

RETURN = r"""
active:
  description: Whether the unit runs.
  returned: success
  type: bool
running:
  description: Digest of the configuration that the running rank was started from, null when none runs or none is noted.
  returned: success
  type: str
wanted:
  description: Digest of the configuration that shall run, null when neither O(wanted) nor O(rank_file) tells.
  returned: success
  type: str
unit:
  description: Properties of the unit, as systemd names them.
  returned: success
  type: dict
port_taken:
  description: Whether another program holds the API's port. Null when it was not looked at.
  returned: success
  type: bool
journal:
  description: The last log lines since the rank was started last.
  returned: success
  type: str
"""

import errno
import json
import os
import socket
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _systemd
from ansible_collections.tandem.spark.plugins.module_utils._files import read_text, sha256


def port_taken(address: str, port: int) -> bool | None:
    """Whether the port cannot be bound because somebody has it; null when the address says nothing about that."""
    try:
        family, kind, protocol, _name, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        return True if error.errno == errno.EADDRINUSE else None
    return False


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "default": "tandem-rank.service"},
            "state_file": {"type": "path", "default": "/run/tandem/rank.json"},
            "address": {"type": "str"},
            "port": {"type": "int"},
            "rank_file": {"type": "path"},
            "wanted": {"type": "str"},
            "journal_lines": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    parameters = module.params
    _code, out, _err = module.run_command(_systemd.show_command(parameters["unit"]))
    properties = _systemd.parse_show(out)
    active = _systemd.is_active(properties)
    running = None
    text = read_text(parameters["state_file"]) if active else None
    if text:
        try:
            running = json.loads(text)["rank_sha256"]
        except (ValueError, KeyError, TypeError):
            running = None
    journal = ""
    if parameters["journal_lines"]:
        _code, journal, _err = module.run_command(
            _systemd.journal_command(
                parameters["unit"], parameters["journal_lines"], properties.get("InvocationID", "")
            )
        )
    taken = None
    # A rank that is still ending holds its own port.
    ended = properties.get("ActiveState") in ("inactive", "failed")
    if parameters["address"] and parameters["port"] and ended:
        taken = port_taken(parameters["address"], parameters["port"])
    wanted = parameters["wanted"]
    if wanted is None and parameters["rank_file"] and os.path.isfile(parameters["rank_file"]):
        wanted = sha256(parameters["rank_file"])
    module.exit_json(
        changed=False,
        active=active,
        running=running,
        wanted=wanted,
        unit=properties,
        port_taken=taken,
        journal=journal.strip(),
    )


if __name__ == "__main__":
    main()

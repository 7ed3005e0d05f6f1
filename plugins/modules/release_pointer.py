#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: release_pointer
short_description: Look at the current and the previous release of a node, and switch
description:
  - C(current) and C(previous) below O(root) are links to releases. A release holds C(rank.json) and links to its engine
    and its model, and never changes.
  - O(state=current) exchanges the two links in one step where the file system can, and else changes C(previous) first.
  - Nothing is stopped or started. A rank keeps the release that it was started from until it is started again.
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
  root:
    description: Directory with C(releases), C(current) and C(previous).
    type: path
    default: /var/lib/tandem
  release:
    description: Name of the release that shall be current.
    type: str
  state:
    description: V(query) only looks, V(current) makes O(release) the current one.
    type: str
    choices: [query, current]
    default: query
"""

EXAMPLES = r"""
- name: Look at the releases
  tandem.spark.release_pointer:
  register: pointers

- name: Go back
  tandem.spark.release_pointer:
    release: "{{ pointers.previous.name }}"
    state: current
"""

RETURN = r"""
current:
  description:
    - Name, path, deployment digest, served model name, model and engine of the current release.
    - Null when there is none.
  returned: success
  type: dict
previous:
  description: The same of the previous release.
  returned: success
  type: dict
seconds:
  description: What the switch took.
  returned: success
  type: float
"""

import time
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _release


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/var/lib/tandem"},
            "release": {"type": "str"},
            "state": {"type": "str", "choices": ["query", "current"], "default": "query"},
        },
        supports_check_mode=True,
        required_if=[("state", "current", ("release",))],
    )
    root: str = module.params["root"]
    wanted: str = module.params["release"]
    before = _release.pointed(root)
    if module.params["state"] == "query":
        module.exit_json(changed=False, seconds=0.0, **before)
    name = before["current"]["name"] if before["current"] else ""
    began = time.monotonic()
    try:
        changed = name != wanted if module.check_mode else _release.switch(root, wanted)
    except _release.ReleaseError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{root}/current: cannot be switched: {error}")
    seconds = round(time.monotonic() - began, 4)
    diff = {
        "before_header": f"{root}/current",
        "after_header": f"{root}/current",
        "before": f"{name}\n" if name else "",
        "after": f"{wanted}\n",
    }
    after = before if module.check_mode else _release.pointed(root)
    module.exit_json(changed=changed, seconds=seconds, diff=diff, **after)


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The work is done by the action plugin of the same name, on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: wiring
short_description: Draw the cables that were seen beside those that are declared
description:
  - Compares what M(tandem.spark.fabric_discover) returned on every node with C(tandem_links), C(tandem_cables) or
    C(tandem_switch) of the inventory, draws both as text, and names each cable that is crossed or missing.
  - Runs on the controller only and contacts no node.
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
  group:
    description: Inventory group of the nodes.
    type: str
    default: spark
  result:
    description: Name of the variable in which every node registered its result.
    type: str
    required: true
  strict:
    description: Whether a difference is a failure.
    type: bool
    default: true
seealso:
  - module: tandem.spark.fabric_discover
"""

EXAMPLES = r"""
- name: Draw the wiring
  tandem.spark.wiring:
    result: __discover_seen
  run_once: true
"""

RETURN = r"""
wiring:
  description: The picture, line by line.
  returned: success
  type: list
  elements: str
problems:
  description: Differences, one sentence each.
  returned: success
  type: list
  elements: str
not_checked:
  description: Nodes that were not looked at, with the reason.
  returned: success
  type: list
  elements: str
suggestion:
  description: Lines for the inventory that declare what was seen; empty where a wiring is declared.
  returned: success
  type: str
"""

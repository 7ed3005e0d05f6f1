#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: acceptance
short_description: Ask the running service the recipe's questions
description:
  - Sends the acceptance checks of a recipe to the API, in order, judges the answers, and writes a report on the
    controller as JSON and JUnit XML. Fails unless every check passes.
  - Runs on the controller, which also asks, unless O(from_node) is set. Changes nothing on the nodes; in check mode it
    asks nothing and says so.
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
  url:
    description: Base URL of the API.
    type: str
    required: true
  key:
    description: API key.
    type: str
    required: true
  model:
    description: Served model name.
    type: str
    required: true
  name:
    description: Name of the deployment, for the report.
    type: str
    required: true
  checks:
    description: The checks, as they stand in a recipe under C(acceptance).
    type: list
    elements: dict
    required: true
  ranks:
    description: Results of M(tandem.spark.rank_state) by node name.
    type: dict
    default: {}
  report_directory:
    description: Directory on the controller for the report.
    type: path
    required: true
  from_node:
    description:
      - Let the node of the task ask when the host of O(url) is a loopback address, which only that node reaches.
    type: bool
    default: false
  record:
    description: What was deployed, copied into the report.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Accept
  tandem.spark.acceptance:
    url: http://192.168.1.11:8000
    key: "{{ tandem_api_key }}"
    model: ling
    name: ling-3.0-flash-fp8
    checks:
      - {check: chat, name: arithmetic, prompt: "What is 17*23?", expect: "391"}
    report_directory: artifacts/dual_spark
"""

RETURN = r"""
results:
  description: One entry per check with name, status (passed, failed, not checked), detail and seconds.
  returned: always
  type: list
  elements: dict
report:
  description: Path of the JSON report.
  returned: always
  type: str
"""

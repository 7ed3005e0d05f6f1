#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight
short_description: Judge the facts of all nodes together
description:
  - Turns the facts of all nodes and the deployment into findings, prints them as one table with the worst first, and
    writes them as JSON on the controller. Fails when one of them blocks.
  - Runs on the controller and changes nothing.
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
  deployment:
    description: The fact of M(tandem.spark.deployment).
    type: dict
    required: true
  waivers:
    description: Findings that may pass, as id to the reason. A waived finding stays in the report.
    type: dict
    default: {}
  probe:
    description: Name of the variable that the first facts task registered. A node without it was not asked.
    type: str
    required: true
  started:
    description: Time of the controller in seconds before that task, to compare the nodes' clocks.
    type: float
  ended:
    description: Time of the controller in seconds after that task.
    type: float
  report_directory:
    description: Directory on the controller for C(findings.json).
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Judge all nodes together
  tandem.spark.preflight:
    deployment: "{{ ansible_facts.tandem_deployment }}"
    waivers:
      platform.not_a_spark: a virtual Spark of the lab
    probe: __preflight_platform
    report_directory: artifacts/dual_spark
  run_once: true
"""

RETURN = r"""
findings:
  description: Every finding with id, severity, nodes, found, wanted, remedy, source and the waiver's reason.
  returned: success
  type: list
  elements: dict
report:
  description: Path of the JSON file.
  returned: always
  type: str
"""

#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The work is done by the action plugin of the same name, on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: memory_plan
short_description: Print whether a model fits, and what would
description:
  - Prints what P(tandem.spark.memory_fit#filter) answered as a table, writes it as C(plan.json) on the controller, and
    fails when the model does not fit.
  - Runs on the controller and contacts nobody.
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
  fit:
    description: What the filter answered.
    type: dict
    required: true
  report_directory:
    description: Directory on the controller for C(plan.json).
    type: path
    required: true
seealso:
  - module: tandem.spark.model_shape
"""

EXAMPLES = r"""
- name: Print the plan
  tandem.spark.memory_plan:
    fit: "{{ shape.model | tandem.spark.memory_fit(shape.recipe, shape.nodes) }}"
    report_directory: artifacts/dual_spark
  run_once: true
"""

RETURN = r"""
plan:
  description: The table, line by line.
  returned: always
  type: list
  elements: str
fits:
  description: Whether it fits; null when that depends on which of two sources is right.
  returned: always
  type: bool
report:
  description: Path of C(plan.json).
  returned: always
  type: str
"""

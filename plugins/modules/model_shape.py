#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The work is done by the action plugin of the same name, on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: model_shape
short_description: Say what is known about a recipe's model without its weights
description:
  - Reads the recipe and finds config.json and the size of the weights of its model. They come from a directory, from
    what is recorded beside the recipes in C(shapes/*.json), or from the hub at the pinned revision. Nothing but
    config.json, the quantisation's own file and the index is fetched.
  - Runs on the controller and contacts no node. Proxies are those of the environment.
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
  recipe:
    description: Name of the recipe.
    type: str
    required: true
  recipe_paths:
    description: Directories that are searched for recipes before those of the collection.
    type: list
    elements: str
    default: []
  group:
    description: Inventory group of the nodes.
    type: str
    default: spark
  revision:
    description: Commit of the model, instead of the recipe's.
    type: str
  origin:
    description:
      - V(recorded) asks nobody. V(hub) asks the hub and fails when it does not answer.
      - V(auto) asks the hub when a commit is pinned, and takes what is recorded without one or without an answer.
    type: str
    choices: [auto, recorded, hub]
    default: auto
  directory:
    description: A model directory on the controller with config.json; it comes before O(origin).
    type: path
  endpoint:
    description: Base URL of the hub or of a mirror.
    type: str
  token:
    description: Access token for gated models.
    type: str
  memory_bytes:
    description: Memory of every node (MemTotal) in bytes. With 0 it is that of the facts that are at hand.
    type: int
    default: 0
seealso:
  - module: tandem.spark.memory_plan
"""

EXAMPLES = r"""
- name: Look what the model is
  tandem.spark.model_shape:
    recipe: ling-3.0-flash-fp8
    origin: recorded
  run_once: true
  register: shape
"""

RETURN = r"""
recipe:
  description: What the memory depends on of the recipe.
  returned: success
  type: dict
model:
  description: C(config), C(weights_bytes), C(source) and C(twins), which P(tandem.spark.memory_fit#filter) takes.
  returned: success
  type: dict
nodes:
  description: MemTotal in bytes by node, null where it is not known.
  returned: success
  type: dict
"""

#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: deployment
short_description: Turn an inventory and a recipe into a deployment
description:
  - Reads a recipe and the group of nodes, checks that they fit, and returns what every stage works from.
  - Runs on the controller only and contacts no node, except that the head asks the hub what a branch or tag stands for
    when O(revision) is one. All problems of all nodes stand in one message.
  - Besides its options it reads C(ansible_host), C(tandem_links), C(tandem_cables), C(tandem_switch) and the facts
    C(spark_fabric) of every host of the group. Where the wiring is given as cables or a switch it assigns the
    addresses, keeps those that nodes have already, and avoids every network that is in use on one of them.
version_added: 0.1.0
author:
  - The tandem.spark contributors (@tandem-spark)
extends_documentation_fragment:
  - tandem.spark._attributes
  - tandem.spark._attributes.facts
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  facts:
    support: full
options:
  recipe:
    description: Name of the recipe, which is its file name without C(.yml).
    type: str
    required: true
  recipe_paths:
    description: Directories of the user's own recipes. They are searched before the collection's.
    type: list
    elements: str
    default: []
  group:
    description: Inventory group of the nodes. Its order gives the ranks, the first host is the head.
    type: str
    default: spark
  root:
    description: Directory on the nodes that holds models, engines and releases.
    type: str
    default: /var/lib/tandem
  mtu:
    description: MTU of every link in bytes, unless the link has its own.
    type: int
    default: 9000
  pool:
    description: Private network from which cables and switch get their addresses.
    type: str
    default: 10.100.128.0/20
  gid_index:
    description: Index of the RoCE GID that NCCL uses. Without it NCCL finds the entry itself.
    type: str
  rendezvous:
    description: The network on which the ranks find each other. V(auto) takes the management network in a ring, and the
      fabric everywhere else.
    type: str
    choices: [auto, fabric, management]
    default: auto
  served:
    description: Whether the deployment is to be served. If not, reasons why it cannot be are warnings, and stand in
      C(unserved); only what is wrong with the inventory and the fabric ends the run.
    type: bool
    default: true
  port:
    description: TCP port of the OpenAI API on the head.
    type: int
    default: 8000
  api_address:
    description: Address that the API is bound to on the head. Default is the head's C(ansible_host).
    type: str
  revision:
    description:
      - Full commit id of the model (40 hex digits), instead of the recipe's. For sources without commits also the
        digest of the manifest (64).
      - A branch or tag is refused with what it stands for now, unless O(resolve) is set.
    type: str
  resolve:
    description: Take what a branch or tag stands for, and record it on the head in C(records/revision.json).
    type: bool
    default: false
  hub:
    description: How the head asks the hub, with the options C(source), C(endpoint), C(token), C(http_proxy),
      C(https_proxy) and C(no_proxy) of M(tandem.spark.model_revision). Empty values count as absent.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Read the recipe and the inventory
  tandem.spark.deployment:
    recipe: ling-3.0-flash-fp8
"""

RETURN = r"""
ansible_facts:
  description: The deployment, the same on every node. Run it once for all of them.
  returned: success
  type: dict
  contains:
    tandem_deployment:
      description: Nodes in rank order with links, peers, routes and forwarding; fabric, model, engine, ports, disk
        needed, acceptance, digest.
      type: dict
      returned: success
"""

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Ansible inventory of a lab. Every address follows from the id, so it is the same whether the lab is up or not."""

from __future__ import annotations

from typing import Any

from hub.hub import Digests

from .config import Lab
from .names import MANAGEMENT, Names, cache_dir
from .node import ssh_options
from .services import hub_url


def models() -> dict[str, str]:
    """The commit of every model in the lab's hub: its weights are made on this machine, so no recipe can name it."""
    root = cache_dir() / "hub"
    digests = Digests(root)
    paths = [path for path in sorted(root.glob("*/*")) if path.is_dir()]
    found = {f"{path.parent.name}/{path.name}": digests.commit(path) for path in paths}
    digests.save()
    return found


def inventory(names: Names, lab: Lab, is_up: bool) -> dict[str, Any]:
    """A script inventory (`--list`): group `spark`, its hosts in rank order.

    All values are literal: testinfra reads the SSH settings without templating them.
    """
    ssh = ssh_options(names, connect_timeout=10)
    common = {
        "ansible_user": "root",
        "ansible_become": False,
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_ssh_private_key_file": str(names.key_file),
        "ansible_ssh_common_args": " ".join(ssh[2:]),  # the key has its own variable
        "lab_name": lab.name,
        "lab_id": names.id,
        "lab_is_up": is_up,
        "lab_gateway": names.gateway,
        "lab_subnet": str(names.subnet),
        "lab_management_interface": MANAGEMENT,
        "lab_hub_url": hub_url(names) if lab.services else None,
        "lab_models": models() if lab.services else {},
    }
    hosts = {
        node.name: {
            **common,
            "ansible_host": names.address(node.rank),
            "lab_rank": node.rank,
            "lab_fabric_interfaces": list(lab.interfaces(node.name)),
        }
        for node in lab.nodes
    }
    return {"spark": {"hosts": list(hosts)}, "_meta": {"hostvars": hosts}}

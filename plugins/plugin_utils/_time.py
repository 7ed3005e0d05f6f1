# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""chrony's part in keeping the nodes of a deployment on one clock."""

from __future__ import annotations

import typing as t


def config(deployment: dict[str, t.Any], name: str, servers: list[str]) -> str:
    """A file for chrony's conf.d on node *name*.

    The head serves its time on the fabric, also when it has no source itself (stratum 10), and the workers follow it:
    so the nodes agree with each other even where no time server can be reached.
    """
    head = deployment["nodes"][0]
    node = next(entry for entry in deployment["nodes"] if entry["name"] == name)
    lines = ["# Written by tandem.spark (baseline stage)."]
    lines += [f"server {server} iburst" for server in servers]
    if node["rank"] == 0:
        # Those without a cable to the head as well: what others pass on keeps its sender's address.
        own = [link["network"] for link in head["links"]]
        far = sorted({link["network"] for entry in deployment["nodes"] for link in entry["links"]}.difference(own))
        lines += [f"allow {network}" for network in own + far]
        lines.append("local stratum 10")
    elif node["source_ip"]:
        lines.append(f"server {node['source_ip']} iburst prefer")
    return "\n".join(lines) + "\n"

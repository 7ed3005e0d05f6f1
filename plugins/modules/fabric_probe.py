#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_probe
short_description: Prove every rail with pings that may not be fragmented
description:
  - Pings every peer on every link with packets that fill the link's MTU, and with small ones to tell a dead link from a
    wrong MTU. Success is judged by the replies, never by an error text.
  - Run it on every node, so that both directions are tried.
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
  node:
    description: Name of this node, for messages.
    type: str
    required: true
  links:
    description: The links of this node, each with its peers.
    type: list
    elements: dict
    required: true
    suboptions:
      interface:
        description: Network interface.
        type: str
        required: true
      mtu:
        description: MTU in bytes.
        type: int
        required: true
      peers:
        description: Who is at the other end.
        type: list
        elements: dict
        required: true
        suboptions:
          node:
            description: Name of the other node.
            type: str
            required: true
          interface:
            description: Its interface.
            type: str
            required: true
          ip:
            description: Its address.
            type: str
            required: true
  count:
    description: Number of pings per peer.
    type: int
    default: 3
"""

EXAMPLES = r"""
- name: Prove the rails
  tandem.spark.fabric_probe:
    node: "{{ inventory_hostname }}"
    links:
      - interface: enp1s0f0np0
        mtu: 9000
        peers: [{node: spark-b, interface: enp1s0f0np0, ip: 192.168.100.11}]
"""

RETURN = r"""
proofs:
  description: One entry per peer and link with payload bytes, pings sent and received, mean round trip in ms, verdict.
  returned: always
  type: list
  elements: dict
"""

import asyncio
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _ping

DEADLINE_S = 5
AT_ONCE = 16


async def ping(command: list[str]) -> str:
    # AnsibleModule.run_command runs one program at a time.
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={"LC_ALL": "C"}
    )
    out, _nothing = await process.communicate()
    return out.decode("utf-8", "replace")


async def prove(program: str, link: dict[str, t.Any], peer: dict[str, t.Any], count: int) -> dict[str, t.Any]:
    size = _ping.payload(link["mtu"])
    full = await ping(_ping.command(program, link["interface"], peer["ip"], size, count, DEADLINE_S))
    counted = _ping.received(full) or (count, 0)
    proof = {
        "interface": link["interface"],
        "peer": peer["node"],
        "peer_interface": peer["interface"],
        "peer_ip": peer["ip"],
        "payload_bytes": size,
        "sent": counted[0],
        "received": counted[1],
        "mean_ms": _ping.mean_ms(full),
        "verdict": "ok" if counted[1] else "no reply",
    }
    if not counted[1]:
        output = await ping(_ping.command(program, link["interface"], peer["ip"], 56, count, DEADLINE_S))
        small = _ping.received(output)
        if small and small[1]:
            proof["verdict"] = "mtu"
    return proof


async def prove_all(
    program: str, jobs: list[tuple[dict[str, t.Any], dict[str, t.Any]]], count: int
) -> list[dict[str, t.Any]]:
    """A proof for each link and peer, some of them at once."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(link: dict[str, t.Any], peer: dict[str, t.Any]) -> dict[str, t.Any]:
        async with room:
            return await prove(program, link, peer, count)

    return list(await asyncio.gather(*(one(link, peer) for link, peer in jobs)))


def sentence(node: str, proof: dict[str, t.Any], mtu: int) -> str:
    where = f"{node} {proof['interface']} to {proof['peer']} {proof['peer_interface']} ({proof['peer_ip']})"
    if proof["verdict"] == "mtu":
        return (
            f"{where}: small pings pass, {proof['payload_bytes']}-byte ones do not; wanted mtu {mtu} on both ends and "
            "on any switch between them"
        )
    return f"{where}: no reply; wanted one. Is the cable in these two cages, and is the other node up?"


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "links": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "interface": {"type": "str", "required": True},
                    "mtu": {"type": "int", "required": True},
                    "peers": {
                        "type": "list",
                        "elements": "dict",
                        "required": True,
                        "options": {
                            "node": {"type": "str", "required": True},
                            "interface": {"type": "str", "required": True},
                            "ip": {"type": "str", "required": True},
                        },
                    },
                },
            },
            "count": {"type": "int", "default": 3},
        },
        supports_check_mode=True,
    )
    program = module.get_bin_path("ping")
    if program is None:
        module.fail_json(msg=f"{module.params['node']}: found no ping, wanted one; install iputils-ping", proofs=[])
    jobs = [(link, peer) for link in module.params["links"] for peer in link["peers"]]
    proofs = asyncio.run(prove_all(program, jobs, module.params["count"]))
    bad = [
        sentence(module.params["node"], proof, link["mtu"])
        for proof, (link, _peer) in zip(proofs, jobs)
        if proof["verdict"] != "ok"
    ]
    if bad:
        module.fail_json(msg="; ".join(bad), proofs=proofs)
    module.exit_json(changed=False, proofs=proofs)


if __name__ == "__main__":
    main()

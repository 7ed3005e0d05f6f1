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
  - Where pings come back a TCP connection is asked for too, on a port where nobody listens, since a firewall may let
    pings in and nothing else. The peer's own refusal is the answer that is wanted.
  - Nodes that are reached over others are pinged end to end in the same way, with the smallest MTU on the way.
  - Every neighbour is asked once before that, so that the address tables are filled when the first engine starts.
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
  far:
    description: Nodes that are reached over others.
    type: list
    elements: dict
    default: []
    suboptions:
      node:
        description: Name of the other node.
        type: str
        required: true
      ip:
        description: Its address.
        type: str
        required: true
      mtu:
        description: The smallest MTU on the way.
        type: int
        required: true
      rail:
        description: Half of the cages that the way uses.
        type: int
      hops:
        description: Cables on the way.
        type: int
      through:
        description: Nodes on the way, in order.
        type: list
        elements: str
        default: []
  settle_s:
    description: Seconds to wait for carrier and addresses of the links before the first ping.
    type: int
    default: 20
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
  description:
    - One entry per peer and link, then per far node and rail, with payload bytes, pings sent and received, mean round
      trip in ms, what TCP said, verdict (V(ok), V(mtu), V(no reply), V(firewall), and V(cut off) where the node before
      it does not answer).
  returned: always
  type: list
  elements: dict
"""

import asyncio
import errno
import json
import random
import socket
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _ping

DEADLINE_S = 5
AT_ONCE = 16
TCP_S = 2.5  # a lost first packet is sent again after one second
PORTS = (20000, 29999)  # below those that Linux gives to connections by itself
REFUSED = "refused by the node itself"


async def ping(command: list[str]) -> str:
    # AnsibleModule.run_command runs one program at a time.
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={"LC_ALL": "C"}
    )
    out, _nothing = await process.communicate()
    return out.decode("utf-8", "replace")


def knock(interface: str | None, address: str, port: int) -> str:
    """What a TCP connection to *port* meets. A kernel that gets the packet accepts it or refuses it by a reset."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as asking:
        asking.settimeout(TCP_S)
        try:
            if interface is not None:
                asking.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
            asking.connect((address, port))
        except socket.timeout:  # TimeoutError since Python 3.10
            return "no answer"
        except OSError as error:
            return REFUSED if error.errno == errno.ECONNREFUSED else str(error.strerror or error)
    return "connected"


def wait_for_addresses(module: AnsibleModule) -> None:
    """Wait until every link has an IPv4 address: its carrier may have come with the other end a moment ago."""
    names = {link["interface"] for link in module.params["links"]}
    ip = module.get_bin_path("ip")
    deadline = time.monotonic() + module.params["settle_s"]
    while ip is not None and names:
        code, out, _err = module.run_command([ip, "-j", "-4", "addr", "show"])
        have = (
            {entry.get("ifname") for entry in json.loads(out or "[]") if entry.get("addr_info")} if code == 0 else names
        )
        if names <= have or time.monotonic() > deadline:
            return
        time.sleep(0.2)


async def prove(program: str, target: dict[str, t.Any], count: int) -> dict[str, t.Any]:
    """*target*: ``interface`` (None for a far node), ``mtu``, ``ip`` and whatever shall stand in the proof."""
    size = _ping.payload(target["mtu"])
    full = await ping(_ping.command(program, target["interface"], target["peer_ip"], size, count, DEADLINE_S))
    counted = _ping.received(full) or (count, 0)
    proof = {
        **{key: value for key, value in target.items() if key != "mtu"},
        "payload_bytes": size,
        "sent": counted[0],
        "received": counted[1],
        "mean_ms": _ping.mean_ms(full),
        "verdict": "ok" if counted[1] else "no reply",
    }
    if not counted[1]:
        output = await ping(_ping.command(program, target["interface"], target["peer_ip"], 56, count, DEADLINE_S))
        small = _ping.received(output)
        if small and small[1]:
            proof["verdict"] = "mtu"
    proof["tcp"] = None
    if proof["verdict"] == "ok":
        port = random.randint(*PORTS)
        loop = asyncio.get_running_loop()
        proof["tcp"] = await loop.run_in_executor(None, knock, target["interface"], target["peer_ip"], port)
        if proof["tcp"] not in (REFUSED, "connected"):
            proof["verdict"] = "firewall"
    return proof


async def prove_all(program: str, targets: list[dict[str, t.Any]], count: int) -> list[dict[str, t.Any]]:
    """A proof for each target, some of them at once."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(target: dict[str, t.Any]) -> dict[str, t.Any]:
        async with room:
            return await prove(program, target, count)

    return list(await asyncio.gather(*(one(target) for target in targets)))


async def prime(program: str, near: list[dict[str, t.Any]]) -> None:
    """One small ping to every neighbour, so that its address is known."""
    await asyncio.gather(*(ping(_ping.command(program, n["interface"], n["peer_ip"], 8, 1, 1)) for n in near))


def targets_of(links: list[dict[str, t.Any]], far: list[dict[str, t.Any]]) -> list[dict[str, t.Any]]:
    """Whom to ping: the neighbours through their own link, then the far nodes along the routes."""
    near = [
        {
            "interface": link["interface"],
            "peer": peer["node"],
            "peer_interface": peer["interface"],
            "peer_ip": peer["ip"],
            "mtu": link["mtu"],
            "through": [],
        }
        for link in links
        for peer in link["peers"]
    ]
    beyond = [
        {
            "interface": None,
            "peer": end["node"],
            "peer_interface": None if end.get("rail") is None else f"rail {end['rail']}",
            "peer_ip": end["ip"],
            "mtu": end["mtu"],
            "through": end.get("through") or [],
        }
        for end in far
    ]
    return [*near, *beyond]


def cut_off(proofs: list[dict[str, t.Any]]) -> dict[str, list[str]]:
    """``{silent neighbour: nodes behind it}``, and marks the proofs of those nodes.

    A neighbour counts as silent when no rail to it answers at all.
    """
    near = [proof for proof in proofs if not proof["through"]]
    silent = {p["peer"] for p in near} - {p["peer"] for p in near if p["verdict"] != "no reply"}
    behind: dict[str, list[str]] = {name: [] for name in sorted(silent)}
    for proof in proofs:
        first = proof["through"][0] if proof["through"] else None
        if first in behind and proof["verdict"] == "no reply":
            proof["verdict"] = "cut off"
            if proof["peer"] not in behind[first]:
                behind[first].append(proof["peer"])
    return behind


def sentence(node: str, proof: dict[str, t.Any], mtu: int) -> str:
    there = " ".join(filter(None, [proof["peer"], proof["peer_interface"]]))
    where = " ".join(filter(None, [node, proof["interface"], "to", there])) + f" ({proof['peer_ip']})"
    if proof["verdict"] == "firewall":
        through = "".join(f", {name}" for name in proof["through"])
        return (
            f"{where}: pings pass and TCP does not ({proof['tcp']}); wanted every port open between the nodes. A "
            f"firewall drops it on {proof['peer']}{through}: see `nft list ruleset` there, and fabric_firewall"
        )
    if proof["through"] and proof["verdict"] == "mtu":
        return (
            f"{where}: small pings pass, {proof['payload_bytes']}-byte ones do not; wanted mtu {mtu} on every cable "
            f"through {', '.join(proof['through'])}"
        )
    if proof["through"]:
        return (
            f"{where}: no reply through {', '.join(proof['through'])}; wanted one. Do these nodes pass packets on "
            "(`nft list ruleset`, net.ipv4.conf.INTERFACE.forwarding), or does a firewall there drop them?"
        )
    if proof["verdict"] == "mtu":
        return (
            f"{where}: small pings pass, {proof['payload_bytes']}-byte ones do not; wanted mtu {mtu} on both ends and "
            "on any switch between them"
        )
    return (
        f"{where}: no reply; wanted one. Is the cable in these two cages, is the other node up, and does its firewall "
        "let this in?"
    )


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
            "far": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "node": {"type": "str", "required": True},
                    "ip": {"type": "str", "required": True},
                    "mtu": {"type": "int", "required": True},
                    "rail": {"type": "int"},
                    "hops": {"type": "int"},
                    "through": {"type": "list", "elements": "str", "default": []},
                },
            },
            "settle_s": {"type": "int", "default": 20},
            "count": {"type": "int", "default": 3},
        },
        supports_check_mode=True,
    )
    program = module.get_bin_path("ping")
    if program is None:
        module.fail_json(msg=f"{module.params['node']}: found no ping, wanted one; install iputils-ping", proofs=[])
    node = module.params["node"]
    wait_for_addresses(module)
    targets = targets_of(module.params["links"], module.params["far"])
    near = [target for target in targets if not target["through"]]
    # The first packet to a neighbour waits for its address; that must not be a packet that counts, nor an engine's.
    asyncio.run(prime(program, near if module.params["far"] else []))
    proofs = asyncio.run(prove_all(program, targets, module.params["count"]))
    behind = cut_off(proofs)
    bad = [
        sentence(node, proof, target["mtu"])
        for proof, target in zip(proofs, targets)
        if proof["verdict"] not in ("ok", "cut off")
    ]
    bad += [f"{node}: {', '.join(names)} cut off behind {name}" for name, names in behind.items() if names]
    if bad:
        module.fail_json(msg="; ".join(bad), proofs=proofs)
    module.exit_json(changed=False, proofs=proofs)


if __name__ == "__main__":
    main()

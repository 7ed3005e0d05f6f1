#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_discover
short_description: Tell which cages are cabled to each other, without addresses
description:
  - Sends small Ethernet frames on every fabric interface that has a link, and listens for those of the other nodes.
    Run it on all nodes at the same time, with the same O(run).
  - It needs no address and no route, sends nothing that is routed, and changes no configuration.
  - It ends as soon as every node is known of and every link has answered, and at the latest after O(duration_s).
  - Neighbours that C(lldpd) knows are returned as well, where it runs.
version_added: 0.1.0
author:
  - The tandem.spark contributors (@tandem-spark)
extends_documentation_fragment:
  - tandem.spark._attributes
attributes:
  check_mode:
    support: full
    details: Nothing is sent. RV(checked) is false then.
  diff_mode:
    support: none
options:
  node:
    description: Name of this node, as the others shall know it.
    type: str
    required: true
  run:
    description: A word that all nodes share and that no other run has, so that frames of an earlier one do not count.
    type: str
    required: true
  nodes:
    description: Number of nodes that take part. With V(0) it listens for the whole of O(duration_s).
    type: int
    default: 0
  duration_s:
    description: Seconds to listen at most. Nodes that begin later than that are not heard.
    type: float
    default: 5
  bring_up:
    description: Whether to switch on interfaces that are off, for the time of this task only.
    type: bool
    default: false
seealso:
  - module: tandem.spark.wiring
"""

EXAMPLES = r"""
- name: Look who is at the other end of every cable
  tandem.spark.fabric_discover:
    node: "{{ inventory_hostname }}"
    run: "{{ __discover_run }}"
    nodes: "{{ ansible_play_hosts | length }}"
    bring_up: true
  register: __discover_seen
"""

RETURN = r"""
checked:
  description: Whether the cables were looked at. False in check mode.
  returned: always
  type: bool
interfaces:
  description: The fabric interfaces by name, each with C(cage), C(rail), C(carrier) (null when it is switched off),
    C(admin_up) (before this task), C(neighbours) (C(node), C(interface), C(cage), C(rail)), C(answered)
    (whether somebody has heard this interface) and C(lldp).
  returned: when checked
  type: dict
seconds:
  description: How long it listened.
  returned: when checked
  type: float
"""

import contextlib
import selectors
import socket
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _discovery, _gather_fabric
from ansible_collections.tandem.spark.plugins.module_utils._host import Host

EVERY_S = 0.1
# What a link that was switched on takes to come up; within that time more can be found although everybody is known.
TRAINING_S = 3.0
# Silence after everything is known, so that the neighbours hear our last words too.
FAREWELL_S = 0.3


def fabric_interfaces(host: Host) -> dict[str, dict[str, t.Any]]:
    """Interfaces of the fabric that can have a cable; a VLAN or a bond's member is none of them."""
    names = [name for name in host.names(_gather_fabric.NET) or [] if _gather_fabric.is_fabric(host, name)]
    found = {name: _gather_fabric.interface(host, name, None) for name in names}
    return {name: entry for name, entry in found.items() if entry["cage"] is not None and entry["mac"]}


def carrier(host: Host, name: str) -> bool:
    return host.line(f"{_gather_fabric.NET}/{name}/carrier") == "1"


def switch(module: AnsibleModule, name: str, state: str) -> None:
    module.run_command([module.get_bin_path("ip", required=True), "link", "set", "dev", name, state])


def open_socket(name: str) -> socket.socket:
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_discovery.ETHERTYPE))
    raw.setblocking(False)
    raw.bind((name, _discovery.ETHERTYPE))
    return raw


def converse(
    host: Host, ear: _discovery.Ear, interfaces: dict[str, dict[str, t.Any]], duration_s: float
) -> tuple[float, set[str]]:
    """Send and listen on all *interfaces* until everything is known or the time is over.

    Returns the seconds that it took and the interfaces that had a link. A node that is ready first takes its links down
    again, so what was seen once counts.
    """
    began = time.monotonic()
    last, news = 0.0, began
    linked: set[str] = set()
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        sockets = {}
        for name in interfaces:
            sockets[name] = stack.enter_context(contextlib.closing(open_socket(name)))
            selector.register(sockets[name], selectors.EVENT_READ, name)
        while (now := time.monotonic()) - began < duration_s:
            if now - last >= EVERY_S:
                last = now
                for name in [name for name in interfaces if carrier(host, name)]:
                    linked.add(name)
                    entry = interfaces[name]
                    said = _discovery.frame(entry["mac"], ear.hello(name, entry["cage"], entry["half"]))
                    # A link can go down between the look and the word.
                    with contextlib.suppress(OSError):
                        sockets[name].send(said)
            for key, _events in selector.select(EVERY_S):
                with contextlib.suppress(OSError):
                    if ear.listen(key.data, sockets[key.data].recv(_discovery.LONGEST)):
                        news = time.monotonic()
            settled = linked >= set(interfaces) or now - began > TRAINING_S
            if settled and linked and ear.content(linked) and time.monotonic() - news > FAREWELL_S:
                break
    return round(time.monotonic() - began, 2), linked


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "run": {"type": "str", "required": True},
            "nodes": {"type": "int", "default": 0},
            "duration_s": {"type": "float", "default": 5},
            "bring_up": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    node = module.params["node"]
    if module.check_mode:
        module.exit_json(changed=False, checked=False, msg=f"{node}: not checked, since this is check mode")
    host = Host("/", 10)
    interfaces = fabric_interfaces(host)
    off = [name for name, entry in interfaces.items() if entry["admin_up"] is False]
    ear = _discovery.Ear(node, module.params["run"], module.params["nodes"])
    seconds: float = 0.0
    linked: set[str] = set()
    try:
        if module.params["bring_up"]:
            for name in off:
                switch(module, name, "up")
        used = {name: entry for name, entry in interfaces.items() if module.params["bring_up"] or name not in off}
        if used:
            seconds, linked = converse(host, ear, used, module.params["duration_s"])
        seen = {name: name in linked if name in used else None for name in interfaces}
        told = _discovery.lldp(host.run(["lldpctl", "-f", "json0"]).output) if host.find("lldpctl") else {}
    except PermissionError as error:
        module.fail_json(msg=f"{node}: cannot send on the fabric interfaces ({error}), wanted root; use become")
    finally:
        if module.params["bring_up"]:
            for name in off:
                switch(module, name, "down")
    module.exit_json(
        changed=False,
        checked=True,
        seconds=seconds,
        interfaces={
            name: {
                "cage": entry["cage"],
                "rail": entry["half"],
                "admin_up": entry["admin_up"],
                "carrier": seen[name],
                "neighbours": ear.neighbours(name),
                "answered": name in ear.answered,
                "lldp": told.get(name, []),
            }
            for name, entry in interfaces.items()
        },
    )


if __name__ == "__main__":
    main()

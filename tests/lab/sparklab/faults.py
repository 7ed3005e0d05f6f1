# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of cables: what `lab link` injects, and how each is undone.

rate, loss and delay belong to the cable: they are remembered, and put back when the node behind them reboots.
They live in the node's network namespace (a point-to-point cable has no other), so a guest that flushes all nftables
rules takes `loss` away with them: inject it after the firewall is set up.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from . import LabError, network
from .config import Lab, Node
from .host import run
from .names import Names

TABLE = "lab_fault"
ACTIONS = {
    "up": "set it up again",
    "down": "switch it off on this side (a guest's `netplan apply` switches it on again)",
    "unplug": "pull the cable: the device disappears on both sides",
    "plug": "put the cable back: the devices reappear, down, MTU 1500",
    "rate": "RATE: limit what the node sends, such as 1gbit",
    "loss": "PERCENT: drop so many of the packets that arrive, such as 20",
    "delay": "TIME: delay what the node sends, such as 20ms (needs a kernel with netem)",
    "mtu": "BYTES: change this side's MTU, such as 1500",
    "clear": "undo rate, loss and delay; put back MTU, state and cable if `link` changed them",
}
WITH_VALUE = {"rate", "loss", "delay", "mtu"}


def _file(names: Names, node: str) -> Path:
    return names.node_dir(node) / "faults.json"


def recorded(names: Names, node: str) -> dict[str, dict[str, Any]]:
    try:
        found: dict[str, dict[str, Any]] = json.loads(_file(names, node).read_text())
    except (OSError, ValueError):
        return {}
    return found


def _record(names: Names, node: str, interface: str, **changes: Any) -> None:
    everything = recorded(names, node)
    one = {**everything.get(interface, {}), **changes}
    everything[interface] = {key: value for key, value in one.items() if value is not None}
    everything = {name: value for name, value in everything.items() if value}
    _file(names, node).write_text(json.dumps(everything))


def check(action: str, value: str | None) -> None:
    """Refuse what `link` does not know, before anything is touched."""
    if action not in ACTIONS:
        raise LabError(f"link has no action {action!r}; known are {', '.join(ACTIONS)}")
    if action in WITH_VALUE and not value:
        raise LabError(f"link action {action} wants a value: {ACTIONS[action]}")
    if action not in WITH_VALUE and value:
        raise LabError(f"link action {action} takes no value, got {value!r}")
    pattern, example = {
        "rate": (r"[1-9]\d*(\.\d+)?[kmg]?bit", "1gbit or 500mbit"),
        "loss": (r"100|[1-9]?\d", "a whole percentage, 0 to 100"),
        "delay": (r"\d+(\.\d+)?(us|ms|s)", "20ms"),
        "mtu": (r"\d{2,5}", "1500 or 9000"),
    }.get(action, ("", ""))
    if value and not re.fullmatch(pattern, value):
        raise LabError(f"link {action} got {value!r}; wanted {example}")


def apply(names: Names, lab: Lab, node: Node, interface: str, action: str, value: str | None) -> str:
    """Do it; returns a sentence that says what is now."""
    check(action, value)
    cable, rail = lab.cable_of(node.name, interface)
    netns = names.netns(node.name)
    state = network.link_state(names, node.name, (interface,))[interface]
    if not state["plugged"] and action not in {"plug", "clear"}:
        raise LabError(f"{interface} of {node.name} is unplugged; `link ... plug` puts the cable back")
    if action in {"up", "down"}:
        run("ip", "-n", netns, "link", "set", interface, action)
        _record(names, node.name, interface, down=True if action == "down" else None)
    elif action == "unplug":
        network.unplug(names, cable, rail)
        _record(names, node.name, interface, unplugged=True)
    elif action == "plug":
        if not state["plugged"]:
            network.plug(names, lab, cable, rail)
        for end in (cable.a, cable.b):
            if end.cage is not None:
                _record(names, end.node, _interface(end.cage, rail), unplugged=None)
        reapply(names, lab, node.name)
    elif action == "rate":
        _shape(netns, interface, rate=value)
        _record(names, node.name, interface, rate=value, delay=None)
    elif action == "delay":
        _shape(netns, interface, delay=value)
        _record(names, node.name, interface, delay=value, rate=None)
    elif action == "loss":
        _record(names, node.name, interface, loss=int(value or 0) or None)
        _lose(names, node.name)
    elif action == "mtu":
        run("ip", "-n", netns, "link", "set", interface, "mtu", str(value))
        before = recorded(names, node.name).get(interface, {}).get("mtu_before", state["mtu"])
        _record(names, node.name, interface, mtu_before=before)
    else:
        _clear(names, lab, node, interface)
    now = network.link_state(names, node.name, (interface,))[interface]
    return f"{node.name} {interface}: {describe(now, recorded(names, node.name).get(interface, {}))}"


def _interface(cage: int, rail: int) -> str:
    from .names import cage_interfaces

    return cage_interfaces(cage)[rail]


def _clear(names: Names, lab: Lab, node: Node, interface: str) -> None:
    cable, rail = lab.cable_of(node.name, interface)
    netns = names.netns(node.name)
    had = recorded(names, node.name).get(interface, {})
    if not network.link_state(names, node.name, (interface,))[interface]["plugged"]:
        apply(names, lab, node, interface, "plug", None)
    network.clear_qdiscs(netns, interface)
    if "mtu_before" in had:
        run("ip", "-n", netns, "link", "set", interface, "mtu", str(had["mtu_before"]))
    if had.get("down"):
        run("ip", "-n", netns, "link", "set", interface, "up")
    _record(names, node.name, interface, **dict.fromkeys(had))
    _lose(names, node.name)


def _shape(netns: str, interface: str, rate: str | None = None, delay: str | None = None) -> None:
    base = ("tc", "-n", netns, "qdisc", "replace", "dev", interface, "root")
    if rate:
        run(*base, "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
        return
    answer = run(*base, "netem", "delay", str(delay), check=False)
    if answer.returncode != 0 and "unknown" in answer.stderr:
        raise LabError("this machine's kernel has no netem (CONFIG_NET_SCH_NETEM), so it cannot delay packets")
    if answer.returncode != 0:
        raise LabError(f"tc refused the delay: {' '.join(answer.stderr.split())}")


def _lose(names: Names, node: str) -> None:
    """One table per node with a chain per interface, replaced as a whole."""
    losses = {name: fault["loss"] for name, fault in recorded(names, node).items() if "loss" in fault}
    table = f"table netdev {TABLE}"
    text = f"{table}\ndelete {table}\n"
    if losses:
        chains = "".join(
            f'  chain loss_{name} {{\n    type filter hook ingress device "{name}" priority 0;\n'
            f"    {'' if percent == 100 else f'numgen random mod 100 < {percent} '}counter drop;\n  }}\n"
            for name, percent in losses.items()
        )
        text += f"{table} {{\n{chains}}}\n"
    run("ip", "netns", "exec", names.netns(node), "nft", "-f", "-", text_in=text)


def reapply(names: Names, lab: Lab, node: str) -> None:
    """Put the cable's faults back after the node's namespace was reset."""
    for interface, fault in recorded(names, node).items():
        state = network.link_state(names, node, (interface,))[interface]
        if not state["plugged"]:
            continue
        if "rate" in fault or "delay" in fault:
            _shape(names.netns(node), interface, fault.get("rate"), fault.get("delay"))
        # these two were the running guest's own state, which ended with it
        _record(names, node, interface, down=None, mtu_before=None)
    if any("loss" in fault for fault in recorded(names, node).values()):
        _lose(names, node)


def describe(state: dict[str, Any], fault: dict[str, Any]) -> str:
    if not state["plugged"]:
        return "unplugged"
    words = ["up" if state["up"] else "down", "carrier" if state["carrier"] else "no carrier", f"mtu {state['mtu']}"]
    words += [f"{key} {fault[key]}{'%' if key == 'loss' else ''}" for key in ("rate", "delay", "loss") if key in fault]
    return ", ".join(words)

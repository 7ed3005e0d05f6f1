# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from . import LabError, config, faults, image, lab, node
from .host import require_root
from .inventory import inventory
from .names import CACHE_ENV, ID_ENV, Names
from .setup import setup

DESCRIPTION = "Virtual DGX Sparks (systemd containers with the Spark's own interface names) on this Linux machine."
EPILOG = f"""\
labs: {{labs}} (one file each in {config.LABS})

examples:
  lab setup                                  install what this machine lacks
  lab up pair                                boot the lab, or what of it is off
  lab ssh pair spark-a systemctl status      run something on a node
  lab link pair spark-a enp1s0f0np0 unplug   pull the cable (one half of it); `plug` puts it back
  lab link pair spark-b enp1s0f0np0 loss 20  drop 20 % of what arrives there; `clear` undoes it
  lab kill pair spark-b                      cut the power; `lab start pair spark-b` puts it on again
  lab down pair                              remove everything

environment:
  {ID_ENV:<19} the lab's id, at most 8 letters and digits (default: from checkout and lab name)
  {CACHE_ENV:<19} where images and state live (default: ~/.cache/tandem)
  TANDEM_LAB_TIMEOUT  seconds a boot may take (default: {node.TIMEOUT:.0f})
"""


def _status_text(answer: dict[str, Any]) -> str:
    if not answer["up"]:
        return f"lab {answer['lab']} (id {answer['id']}) is not up; its nodes would be in {answer['subnet']}"
    lines = [
        f"lab {answer['lab']} (id {answer['id']}) is up, subnet {answer['subnet']}, gateway {answer['gateway']}, "
        f"air gap {'on' if answer['air'] else 'off'}, hub {answer['hub'] or 'not running'}"
    ]
    for name, one in answer["nodes"].items():
        used, limit = one["memory_mib"], one["memory_limit_mib"]
        memory = f"{used if used is not None else '?'} of {limit if limit is not None else 'unlimited'} MiB"
        lines.append(f"{name} {one['address']} {'pid ' + str(one['pid']) if one['running'] else 'off'}, {memory}")
        knobs = one["knobs"]
        if knobs:
            lines.append("  " + ", ".join(f"{key} {value}" for key, value in knobs.items()))
        lines += [f"  {device}: {faults.describe(link, link['faults'])}" for device, link in one["links"].items()]
    return "\n".join(lines)


def _ssh(args: argparse.Namespace) -> int:
    names, wanted, _state = lab.running_lab(args.lab)
    argv = node.ssh_argv(names, wanted.node(args.node), *args.command)
    return subprocess.run(argv, check=False).returncode


def _exec(args: argparse.Namespace) -> int:
    names, wanted, _state = lab.running_lab(args.lab)
    prefix = node.enter_argv(names, wanted.node(args.node))
    return subprocess.run([*prefix, *(args.command or ["bash", "-l"])], check=False).returncode


def _inventory(args: argparse.Namespace) -> int:
    wanted = config.load(args.lab)
    names = lab.names_of(args.lab)
    state = lab.load_state(names) if os.access(names.state_dir, os.R_OK) else None
    up = state is not None and state["lab"]["name"] == args.lab and lab.has_network(names, wanted)
    answer = inventory(names, wanted, up)
    if args.host:
        answer = answer["_meta"]["hostvars"].get(args.host, {})
    print(json.dumps(answer, indent=2))
    return 0


def _leftovers(args: argparse.Namespace) -> int:
    require_root()
    names = lab.names_of(args.lab)
    found = lab.leftovers(names)
    for line in found:
        print(line)
    if not found:
        print(f"nothing on this machine carries the id {names.id}")
    return 1 if found else 0


def _gc(args: argparse.Namespace) -> int:
    require_root()
    for path in lab.garbage_images():
        print(f"{'would remove' if args.dry_run else 'removing'} {path}")
        if not args.dry_run:
            image.remove(path)
    return 0


def _build(args: argparse.Namespace) -> int:
    require_root()
    print(image.ensure(args.suite))
    return 0


def _status(args: argparse.Namespace) -> int:
    answer = lab.status(args.lab)
    print(json.dumps(answer, indent=2) if args.json else _status_text(answer))
    return 0 if answer["up"] else 3


def _knob(args: argparse.Namespace) -> int:
    changes = {}
    for item in args.setting:
        key, sign, value = item.partition("=")
        if not sign:
            raise LabError(f"{item!r} is no setting; wanted KNOB=VALUE with one of {', '.join(node.KNOBS)}")
        changes[key] = value
    lab.knob(args.lab, args.node, changes)
    return 0


def _id(args: argparse.Namespace) -> int:
    config.load(args.lab)
    names: Names = lab.names_of(args.lab)
    print(names.id)
    return 0


def _call(function: Callable[..., None], *keys: str) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        function(*(getattr(args, key) for key in keys))
        return 0

    return run


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="lab",
        description=DESCRIPTION,
        epilog=EPILOG.format(labs=", ".join(config.available())),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = top.add_subparsers(metavar="VERB", required=True)

    def verb(name: str, text: str, run: Callable[[argparse.Namespace], int], *places: str) -> argparse.ArgumentParser:
        one = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        one.set_defaults(run=run)
        for place in places:
            one.add_argument(place, metavar=place.upper())
        return one

    ready = verb("setup", "install the packages this machine lacks (apt, root)", _call(setup, "tests"))
    ready.add_argument("--tests", action="store_true", help="also those that only the repository's tests want")
    build = verb("build", "build the guests' image if it is not there yet, print its root", _build)
    build.add_argument("--suite", default="bookworm", help="Debian release of the guests (default: %(default)s)")
    verb("up", "boot a lab; if it is up, start what is off", _call(lab.up, "lab"), "lab")
    verb("down", "remove a lab with everything it made, also after a crash", _call(lab.down, "lab"), "lab")
    status = verb("status", "tell what is there (exit 3 when the lab is not up)", _status, "lab")
    status.add_argument("--json", action="store_true", help="as JSON")
    ssh = verb("ssh", "log in to a node as root, or run a command there", _ssh, "lab", "node")
    ssh.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD")
    enter = verb("exec", "run a command in a node without SSH (with the host's capabilities)", _exec, "lab", "node")
    enter.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD")
    verb("kill", "cut a node's power: its disk stays, its links lose carrier", _call(lab.kill, "lab", "node"), "lab",
         "node")  # fmt: skip
    verb("start", "put a node's power on again", _call(lab.start, "lab", "node"), "lab", "node")
    link = verb("link", "make or undo a fault of one fabric device", _call(
        lab.link, "lab", "node", "iface", "action", "value"), "lab", "node", "iface")  # fmt: skip
    link.formatter_class = argparse.RawDescriptionHelpFormatter
    link.epilog = "actions:\n" + "\n".join(f"  {name:<7} {text}" for name, text in faults.ACTIONS.items())
    link.add_argument("action", metavar="ACTION")
    link.add_argument("value", nargs="?", metavar="VALUE")
    air = verb("air", "the air gap: on = nothing outside can be reached from the nodes", _air, "lab")
    air.add_argument("state", choices=("on", "off"))
    knob = verb("knob", "show or change what a running node's stand-ins report", _knob, "lab", "node")
    knob.add_argument(
        "setting", nargs="*", metavar="KNOB=VALUE",
        help="driver_version=V (sets driver_loaded too), driver_loaded=V, gpu=present|absent",
    )  # fmt: skip
    listing = verb("inventory", "print the lab's Ansible inventory (also when it is down)", _inventory, "lab")
    listing.add_argument("--list", action="store_true", help="all of it (the default)")
    listing.add_argument("--host", help="the variables of one host")
    verb("id", "print the lab's id", _id, "lab")
    verb("leftovers", "list all that carries the lab's id; exit 1 if there is any", _leftovers, "lab")
    gc = verb("gc", "remove images that no lab uses and no current recipe asks for", _gc)
    gc.add_argument("--dry-run", action="store_true", help="only tell")
    return top


def _air(args: argparse.Namespace) -> int:
    lab.air(args.lab, args.state == "on")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    # a terminated `up` rolls back as an interrupted one does
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return int(args.run(args))
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 141

#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_config
short_description: Addresses, routes and forwarding of the fabric links, with a timed way back
description:
  - Writes the configuration of the fabric links for whoever configures the interfaces of this node (netplan,
    NetworkManager or systemd-networkd), with static routes, and with forwarding between links where a chain needs it.
  - Before anything is changed, files and running state go into a journal on the node, and a timer is armed there that
    puts both back. Call the module again with O(state=confirmed) over the management network; if that call never
    arrives, the node repairs itself, also after a power loss.
  - Running interfaces, routes, sysctls and rules are compared too, so what was lost is put back although the files are
    right.
  - Where C(ufw) or C(firewalld) is active it is told to let the nodes of the fabric in, by rules of C(ufw) that carry
    the comment C(tandem.spark fabric), or by a zone C(tandem-fabric) of C(firewalld). Neither is ever switched on or
    off. What another table of the packet filter drops is named in a warning.
version_added: 0.1.0
author:
  - The tandem.spark contributors (@tandem-spark)
extends_documentation_fragment:
  - tandem.spark._attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
options:
  node:
    description: Name of this node, for messages.
    type: str
    default: this node
  links:
    description: The links of this node.
    type: list
    elements: dict
    default: []
    suboptions:
      interface:
        description: Network interface.
        type: str
        required: true
      address:
        description: IPv4 address with prefix length.
        type: str
        required: true
      mtu:
        description: MTU in bytes.
        type: int
        required: true
  routes:
    description: Ways to nodes that are no neighbours. A default route is refused.
    type: list
    elements: dict
    default: []
    suboptions:
      destination:
        description: Network or address with prefix length.
        type: str
        required: true
      via:
        description: Address of the neighbour.
        type: str
        required: true
      interface:
        description: Interface of this node.
        type: str
        required: true
  forwarding:
    description: Pairs of interfaces between which packets are passed on, both ways, and between no others.
    type: list
    elements: list
    default: []
  docker_forward:
    description:
      - Whether Docker's firewall, which drops packets that are passed on, is told to let them through. It is only done
        where its chain C(DOCKER-USER) exists.
    type: bool
    default: true
  firewall:
    description: From whom input is wanted, per link.
    type: list
    elements: dict
    default: []
    suboptions:
      interface:
        description: Network interface, one of O(links).
        type: str
        required: true
      sources:
        description: IPv4 networks.
        type: list
        elements: str
        required: true
  manage_firewall:
    description: Whether C(ufw) and C(firewalld) are told to let O(firewall) in where they are active.
    type: bool
    default: true
  take_over:
    description:
      - Whether a file of somebody else that configures one of the links is moved aside. Only a file that configures
        nothing else is. O(state=restored) puts it back.
    type: bool
    default: false
  path:
    description: The netplan file.
    type: path
    default: /etc/netplan/60-tandem-fabric.yaml
  revert_after_s:
    description: Seconds after which the old state comes back unless the change is confirmed.
    type: int
    default: 120
  state:
    description:
      - V(present) applies, V(confirmed) stops the timer, V(reverted) takes an unconfirmed change back at once.
      - V(restored) puts back what stood on the node before the first change of this module. It has to be confirmed too.
    type: str
    choices: [present, confirmed, reverted, restored]
    default: present
"""

EXAMPLES = r"""
- name: Configure the fabric
  tandem.spark.fabric_config:
    links:
      - {interface: enp1s0f0np0, address: 192.168.100.10/24, mtu: 9000}
  register: __fabric_config

- name: Keep it, since the node still answers
  tandem.spark.fabric_config:
    state: confirmed
  when: __fabric_config.changed
"""

RETURN = r"""
drift:
  description: How the running state differed from what is wanted.
  returned: success
  type: list
  elements: str
renderer:
  description: Who configures the interfaces (V(netplan), V(networkmanager), V(networkd)).
  returned: when O(state=present)
  type: str
notes:
  description: What was found and left alone, such as Docker's firewall.
  returned: success
  type: list
  elements: str
closed:
  description: Where packets of the fabric are dropped on this node, with the rule that is wanted there.
  returned: success
  type: list
  elements: str
firewalls:
  description: Which firewalls are active and were told (V(ufw), V(firewalld)).
  returned: when O(state=present)
  type: list
  elements: str
files:
  description: Paths that changed (or would change, in check mode).
  returned: success
  type: list
  elements: str
taken_over:
  description: Files of somebody else that were moved aside. O(state=restored) puts them back.
  returned: when O(state=present)
  type: list
  elements: str
rdma:
  description: Names of the RDMA devices, or why nothing about RDMA was checked.
  returned: when O(state=present)
  type: raw
msg:
  description: What was done, where there is something to say.
  returned: sometimes
  type: str
"""

import glob
import inspect
import ipaddress
import json
import os
import shutil
import sys
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import (
    _firewall,
    _forward,
    _journal,
    _netplan,
    _renderers,
    _values,
)
from ansible_collections.tandem.spark.plugins.module_utils._files import read_text, replace

SETTLE_S = 20
RDMA = "/sys/class/infiniband"
NO_RDMA = "not checked: no RDMA device"
NETPLAN_PLACES = ("/etc/netplan", "/run/netplan", "/lib/netplan")
KEYFILE_PLACES = ("/etc/NetworkManager/system-connections", "/run/NetworkManager/system-connections")
BOOT_UNIT_TEXT = """\
[Unit]
Description=Take an unconfirmed change of the fabric back (tandem.spark)
ConditionPathExists={pending}
After=network.target

[Service]
Type=oneshot
ExecStart={python} {program}

[Install]
WantedBy=multi-user.target
"""


def other_files(paths: t.Collection[str], renderer: str | None) -> dict[str, str]:
    """Configuration files that are not ours and that *renderer* (or what carries it out) reads."""
    patterns = [f"{place}/*.yaml" for place in NETPLAN_PLACES] if renderer == "netplan" else []
    patterns += [f"{_renderers.NETWORKD}/*.network"]
    # netplan makes its own profiles in /run: its files are looked at instead.
    patterns += [f"{place}/*.nmconnection" for place in KEYFILE_PLACES[: 1 if renderer == "netplan" else None]]
    ours = {os.path.realpath(path) for path in paths}
    names = [name for pattern in patterns for name in glob.glob(pattern)]
    return {name: read_text(name) or "" for name in names if os.path.realpath(name) not in ours}


def running(module: AnsibleModule) -> list[dict[str, t.Any]]:
    ip = module.get_bin_path("ip", required=True)
    _code, out, _err = module.run_command([ip, "-j", "addr", "show"], check_rc=True)
    return t.cast("list[dict[str, t.Any]]", json.loads(out or "[]"))


def routes_now(module: AnsibleModule) -> list[dict[str, t.Any]]:
    ip = module.get_bin_path("ip", required=True)
    _code, out, _err = module.run_command([ip, "-j", "-4", "route", "show"], check_rc=True)
    return t.cast("list[dict[str, t.Any]]", json.loads(out or "[]"))


def answers(module: AnsibleModule, *command: str) -> bool:
    """Whether a command is there and succeeds."""
    if module.get_bin_path(command[0]) is None:
        return False
    return bool(module.run_command(list(command))[0] == 0)


def loaded_rules(module: AnsibleModule) -> list[dict[str, t.Any]] | None:
    """Everything that nft lists; None where it cannot."""
    if module.get_bin_path("nft") is None:
        return None
    code, out, _err = module.run_command(["nft", "-j", "list", "ruleset"])
    return _firewall.objects(out) if code == 0 else None


def active_firewalls(module: AnsibleModule) -> list[str]:
    found = []
    if _values.truth(_values.assignments(read_text(_firewall.UFW_CONF)).get("ENABLED")) and module.get_bin_path("ufw"):
        found.append("ufw")
    if module.get_bin_path("firewall-cmd") and answers(module, "systemctl", "is-active", "--quiet", "firewalld"):
        found.append("firewalld")
    return found


def rdma() -> list[str] | str:
    try:
        return sorted(os.listdir(RDMA)) or NO_RDMA
    except OSError:
        return NO_RDMA


class Wanted:
    """Everything that shall be on this node, and how it differs from what is."""

    def __init__(self, module: AnsibleModule) -> None:
        p = module.params
        self.links: list[dict[str, t.Any]] = p["links"]
        self.routes: list[dict[str, t.Any]] = p["routes"]
        self.pairs: list[list[str]] = p["forwarding"]
        self.notes: list[str] = []
        self.closed: list[str] = []
        self.allowances: list[dict[str, t.Any]] = p["firewall"]
        self._check(module)
        self.chosen = self._renderer(module)
        self.firewalls = active_firewalls(module) if p["manage_firewall"] and self.allowances else []
        self.docker_user = self._docker(module)
        nft, iptables = module.get_bin_path("nft"), module.get_bin_path("iptables")
        if self.pairs and nft is None:
            refuse(module, "found no nft, wanted it for forwarding; run the baseline stage, or install nftables")
        zone = self._zone(module) if "firewalld" in self.firewalls else {}
        owner = _firewall.ZONE if zone else None
        self.network = _renderers.files(self.chosen, self.links, self.routes, p["path"], zone=owner)
        routed = bool(self.routes or self.pairs)
        docker = self.docker_user is not None and p["docker_forward"]
        system = _forward.files(self.links, self.pairs, routed, nft=nft, iptables=iptables, docker=docker)
        self.files: dict[str, t.Any] = {**self.network, **system, **zone}
        self.sysctls = _forward.sysctls(self.links, self.pairs, routed)
        stale = [*_forward.ALL_PATHS, *ours_of_earlier(p["path"])]
        # A firewalld that is only stopped for now shall find its zone again.
        stale += [_firewall.ZONE_FILE] if "firewalld" in self.firewalls or not p["manage_firewall"] else []
        self.absent = [path for path in stale if path not in self.files]

    def _check(self, module: AnsibleModule) -> None:
        names = {link["interface"] for link in self.links}
        wrong = [r for r in self.routes if r["interface"] not in names or r["destination"] in ("default", "0.0.0.0/0")]
        if wrong:
            refuse(module, f"route {wrong[0]}: wanted one over a link of this node, and never a default route")
        if any(len(pair) != 2 or not set(pair) <= names for pair in self.pairs):
            refuse(module, f"forwarding: found {self.pairs}, wanted pairs of this node's links")
        for entry in self.allowances:
            try:
                good = entry["interface"] in names and all(ipaddress.IPv4Network(s) for s in entry["sources"])
            except ValueError:
                good = False
            if not good:
                refuse(module, f"firewall: found {entry}, wanted a link of this node and IPv4 networks")

    def _zone(self, module: AnsibleModule) -> dict[str, t.Any]:
        """The file of our zone. Interfaces that somebody put into a zone that accepts everything stay there."""
        texts = {path: read_text(path) or "" for path in glob.glob(f"{_firewall.ZONES}/*.xml")}
        names = [entry["interface"] for entry in self.allowances]
        elsewhere = _firewall.bound_elsewhere(texts, names)
        for name, (zone, accepts) in elsewhere.items():
            if not accepts:
                refuse(
                    module,
                    f"found {name} in firewalld's zone {zone}, wanted it in {_firewall.ZONE} or in a zone that accepts "
                    f"everything; run `firewall-cmd --permanent --zone={zone} --remove-interface={name}` and "
                    "`firewall-cmd --reload`. Nothing was changed.",
                )
        ours = [entry for entry in self.allowances if entry["interface"] not in elsewhere]
        return {_firewall.ZONE_FILE: (_firewall.zone_text(ours, self.pairs).encode(), 0o644)} if ours else {}

    def _renderer(self, module: AnsibleModule) -> dict[str, t.Any]:
        states = None
        manager = answers(module, "systemctl", "is-active", "--quiet", "NetworkManager")
        if manager and module.get_bin_path("nmcli"):
            code, out, _err = module.run_command(["nmcli", "--terse", "--fields", "DEVICE,STATE", "device"])
            states = _renderers.device_states(out) if code == 0 else None
        return _renderers.choose(
            netplan=module.get_bin_path("netplan") is not None,
            networkmanager=manager,
            networkd=answers(module, "systemctl", "is-active", "--quiet", "systemd-networkd"),
            states=states,
            interfaces=[link["interface"] for link in self.links],
        )

    def _docker(self, module: AnsibleModule) -> str | None:
        """The rules of DOCKER-USER, None where there is no such chain."""
        if not self.pairs or module.get_bin_path("iptables") is None:
            return None
        code, out, _err = module.run_command(["iptables", "-w", "-S", "DOCKER-USER"])
        return out if code == 0 else None

    def entries(self) -> list[dict[str, t.Any]]:
        """The files as entries of a journal."""
        found: list[dict[str, t.Any]] = []
        for path, what in self.files.items():
            if isinstance(what, str):
                found.append({"path": path, "state": "link", "target": what})
            else:
                owner = {"owner": os.geteuid(), "group": os.getegid()}
                found.append({"path": path, "state": "file", "content": what[0], "mode": what[1], **owner})
        return found + [{"path": path, "state": "absent"} for path in self.absent]

    def drift(self, module: AnsibleModule) -> list[str]:
        """How the running state differs.

        A renderer gives no address to an interface without carrier, and applying its file again does not change that:
        the other end is off, or not switched on yet. The probe names it.
        """
        self.notes = []
        shown = running(module)
        dark = _netplan.without_carrier(shown)
        left = _netplan.drift(self.links, shown)
        routes = [route for route in self.routes if route["interface"] not in dark]
        if routes:
            left += _netplan.route_drift(routes, routes_now(module))
        for path, value in _forward.sysctl_paths(self.sysctls, _forward.PROC).items():
            now = read_text(path)
            if now is not None and now.strip() != value:
                left.append(f"{path}: {now.strip()}, wanted {value}")
        listed = loaded_rules(module)
        table = _forward.table_drift(listed, self.pairs)
        self.stale_table = bool(table) and not self.pairs
        rules = _firewall.Rules(listed or [])
        left += table + self._firewall_drift(module, rules)
        self._look_through(module, rules)
        if listed is None and self.allowances:
            self.notes.append("what the packet filter drops was not checked: no answer from nft")
        if self.pairs and self.docker_user is not None:
            missing = _forward.docker_missing(self.docker_user, self.pairs)
            if missing and module.params["docker_forward"]:
                left.append(f"DOCKER-USER: does not accept {', '.join(missing)}")
            elif missing:
                self.notes.append(
                    f"Docker's firewall drops what is passed on between {', '.join(missing)}; set "
                    "fabric_docker_forward: true, or accept it in the chain DOCKER-USER"
                )
        return left

    def _firewall_drift(self, module: AnsibleModule, rules: _firewall.Rules) -> list[str]:
        """How the active firewalls differ from what they were told; sets ``ufw_steps`` and ``reload_zones``."""
        left: list[str] = []
        self.ufw_steps: list[list[str]] = []
        self.reload_zones = False
        if "ufw" in self.firewalls:
            code, out, err = module.run_command(["ufw", "show", "added"])
            if code != 0:
                refuse(module, f"`ufw show added` failed: {(err or out).strip()}; wanted its rules, since it is active")
            wanted = _firewall.ufw_wanted(self.allowances, self.pairs)
            lacking, stale = _firewall.ufw_difference(out, wanted)
            left += [f"ufw: no rule `{_firewall.ufw_text(words)}`" for words in lacking]
            left += [f"ufw: found our rule `{_firewall.ufw_text(words)}`, wanted none" for words in stale]
            lost = [words for words in wanted if words not in lacking and _ufw_has(rules, words) is False]
            left += [f"ufw: rule `{_firewall.ufw_text(words)}` is not loaded" for words in lost]
            self.ufw_steps = [_journal.ufw_delete(words) for words in [*stale, *lost]] + [*lacking, *lost]
        if _firewall.ZONE_FILE in self.files:
            hook, target = ("inet", "firewalld", "filter_INPUT_ZONES"), f"filter_IN_{_firewall.ZONE}"
            text = self.files[_firewall.ZONE_FILE][0].decode()
            names = [e["interface"] for e in self.allowances if f'"{e["interface"]}"' in text]
            lost_names = [n for n in names if hook in rules.chains and not rules.sends(hook, n, target)]
            left += [f"firewalld: {name} is not in the zone {_firewall.ZONE}" for name in lost_names]
            allow = ("inet", "firewalld", f"{target}_allow")
            for source in _firewall.networks(self.allowances) if names else []:
                if rules.has(allow, _firewall.Packet(names[0], None, source)) is False:
                    left.append(f"firewalld: zone {_firewall.ZONE} does not accept {source}")
            self.reload_zones = (read_text(_firewall.ZONE_FILE) or "") != text or any(
                line.startswith("firewalld: ") for line in left
            )
        return left

    def _look_through(self, module: AnsibleModule, rules: _firewall.Rules) -> None:
        """Fill ``closed``: what the loaded rules drop, without what those drop that still have to be told."""
        # Rules for Docker, and those of our own table, are looked for by their text.
        untold = {"ufw": bool(self.ufw_steps), "firewalld": self.reload_zones, "docker": True, "ours": True}
        self.closed = []
        for (hook, drop), entry in _firewall.closed(rules, self.allowances, self.pairs).items():
            who = _firewall.owner(drop, rules)
            if untold.get(who, False):
                continue
            text = _firewall.sentence(hook, drop, entry, who, who in self.firewalls)
            self.closed.append(f"{module.params['node']}: {text}")


def _ufw_has(rules: _firewall.Rules, words: list[str]) -> bool | None:
    """Whether a rule of ufw is loaded; None where its chains are not there."""
    chain = ("ip", "filter", "ufw-user-forward" if words[1] == "route" else "ufw-user-input")
    oif = words[words.index("out") + 2] if "out" in words else None
    return rules.has(chain, _firewall.Packet(words[words.index("in") + 2], oif, words[words.index("from") + 1]))


def ours_of_earlier(netplan_path: str) -> list[str]:
    """Files of ours that an earlier run may have left, under whichever renderer."""
    places = [(_renderers.KEYFILES, "nmconnection"), (_renderers.NETWORKD, "network")]
    found = [path for place, ending in places for path in glob.glob(f"{place}/{_renderers.PREFIX}*.{ending}")]
    return [netplan_path, *found]


def refuse(module: AnsibleModule, msg: str, **more: t.Any) -> t.NoReturn:
    module.fail_json(msg=f"{module.params['node']}: {msg}", **more)


def pending(module: AnsibleModule) -> bool:
    """Whether a change waits for its confirmation."""
    return os.path.exists(_journal.path_of(_journal.PENDING))


def arm(module: AnsibleModule, journal: dict[str, t.Any]) -> None:
    """Write the journal, then arm what leads back: a timer for now, a unit for a power loss before its time."""
    with _journal.Lock():
        _journal.disarm()
        _journal.write(_journal.PENDING, journal)
        shutil.rmtree(_journal.path_of(_journal.REVERTED), ignore_errors=True)
        program = _journal.path_of(_journal.RESTORE)
        # A copy of its own: it must work without this module, from a timer.
        replace(program, inspect.getsource(_journal).encode(), 0o700)
        text = BOOT_UNIT_TEXT.format(pending=_journal.path_of(_journal.PENDING), python=sys.executable, program=program)
        _journal.put({"path": _journal.BOOT_UNIT, "state": "file", "content": text.encode(), "mode": 0o644,
                      "owner": os.geteuid(), "group": os.getegid()})  # fmt: skip
        _journal.put({"path": _journal.BOOT_LINK, "state": "link", "target": _journal.BOOT_UNIT})
        command = ["systemd-run", "--quiet", "--collect", f"--unit={_journal.UNIT}"]
        command += [f"--on-active={module.params['revert_after_s']}s", "--timer-property=AccuracySec=1s"]
        code, _out, err = module.run_command([*command, sys.executable, program])
        if code != 0:
            shutil.rmtree(_journal.path_of(_journal.PENDING))
            _journal.disarm()
            refuse(module, f"the automatic revert cannot be armed, so nothing was changed: {err.strip()}")


def snapshot(paths: t.Collection[str], wanted: Wanted) -> dict[str, t.Any]:
    """The journal of everything that is about to change."""
    names = [link["interface"] for link in wanted.links]
    sysctls = list(_forward.sysctl_paths(wanted.sysctls, _forward.PROC))
    sysctls += [f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6" for name in names]
    zones = [["firewall-cmd", "--reload"]] if _firewall.ZONE_FILE in paths and "firewalld" in wanted.firewalls else []
    return {
        "files": [_journal.look(path) for path in dict.fromkeys(paths)],
        "runtime": _journal.runtime(names, sysctls, [_forward.UNIT, _forward.DOCKER_UNIT]),
        "ours": [link["address"] for link in wanted.links] + [_route_key(r) for r in wanted.routes],
        "reload": [*zones, *_renderers.reload_after_return(wanted.chosen, wanted.links)],
    }


def zone_changes(wanted: Wanted, changes: list[dict[str, t.Any]]) -> bool:
    return "firewalld" in wanted.firewalls and any(entry["path"] == _firewall.ZONE_FILE for entry in changes)


def keep_ssh(module: AnsibleModule, wanted: Wanted, changes: list[dict[str, t.Any]]) -> None:
    """Refuse to let firewalld read its files again where that would forget a rule, such as the one for SSH.

    ufw is only ever given rules that accept, and its others are not touched.
    """
    if not (wanted.reload_zones or zone_changes(wanted, changes)):
        return
    shown = []
    for words in (["--list-all-zones"], ["--permanent", "--list-all-zones"]):
        code, out, err = module.run_command(["firewall-cmd", *words])
        if code != 0:
            refuse(module, f"`firewall-cmd {' '.join(words)}` failed: {(err or out).strip()}. Nothing was changed.")
        shown.append(out)
    lost = _firewall.only_running(shown[0], shown[1])
    if lost:
        refuse(
            module,
            f"found settings of firewalld that are loaded and not written down ({'; '.join(lost)}), wanted none: its "
            "reload, which a new zone needs, forgets them. Run `firewall-cmd --runtime-to-permanent` to keep them, or "
            "`firewall-cmd --reload` to drop them. Nothing was changed.",
        )


def _route_key(route: dict[str, t.Any]) -> str:
    destination = str(route["destination"])
    return destination[:-3] if destination.endswith("/32") else destination


def apply(module: AnsibleModule, wanted: Wanted, changes: list[dict[str, t.Any]]) -> None:
    journal = snapshot([entry["path"] for entry in [*wanted.entries(), *changes]], wanted)
    # What an earlier change left unconfirmed is no state to come back to: what stood before it is.
    journal = _journal.merged(_journal.read(_journal.PENDING), journal)
    arm(module, journal)
    for unit in (_forward.UNIT, _forward.DOCKER_UNIT):
        if any(entry["path"] == f"{_forward.UNITS}/{unit}" and entry["state"] == "absent" for entry in changes):
            module.run_command(["systemctl", "stop", unit])  # while its file still says how
    try:
        for entry in changes:
            _journal.put(entry)
    except OSError as error:
        go_back(module, f"{error.filename}: cannot be written: {error.strerror}")
    # The zone first: NetworkManager asks for it when it brings the links up.
    steps = [["firewall-cmd", "--reload"]] if wanted.reload_zones or zone_changes(wanted, changes) else []
    steps += _renderers.reload(wanted.chosen, wanted.links) if wanted.links else []
    if wanted.sysctls:
        steps.append(["sysctl", "--quiet", f"--load={_forward.SYSCTL_FILE}"])
    if any(entry["path"].startswith(f"{_forward.UNITS}/") for entry in changes):
        steps.append(["systemctl", "daemon-reload"])
    if wanted.stale_table and answers(module, "nft", "list", "table", "inet", _forward.TABLE):
        steps.append(["nft", "delete", "table", "inet", _forward.TABLE])
    if wanted.pairs:
        steps.append(["systemctl", "restart", _forward.UNIT])
        if f"{_forward.UNITS}/{_forward.DOCKER_UNIT}" in wanted.files:
            steps.append(["systemctl", "restart", _forward.DOCKER_UNIT])
    steps += wanted.ufw_steps
    for step in steps:
        code, out, err = module.run_command(step)
        if code != 0:
            go_back(module, f"{' '.join(step)} failed: {(err or out).strip()}")
    wanted.docker_user = wanted._docker(module)
    deadline = time.monotonic() + SETTLE_S
    left = wanted.drift(module)
    while left and time.monotonic() < deadline:
        time.sleep(0.2)
        left = wanted.drift(module)
    if left:
        go_back(
            module,
            f"{SETTLE_S} s after {wanted.chosen['renderer']} was told: {'; '.join(left)}. Is the cable plugged, and is "
            f"{wanted.chosen['backend']} in charge of these interfaces?",
        )


def go_back(module: AnsibleModule, why: str) -> t.NoReturn:
    left = _journal.revert(why=why) or []
    rest = f" Could not be put back: {'; '.join(left)}." if left else ""
    refuse(module, f"{why} The old configuration is back.{rest}")


def confirm(module: AnsibleModule) -> None:
    with _journal.Lock():
        journal = _journal.read(_journal.PENDING)
        if journal is None:
            if os.path.exists(_journal.path_of(_journal.REVERTED)):
                refuse(
                    module,
                    "the change was not confirmed in time, so the node has put the old configuration back; run the "
                    "fabric stage again, with a larger fabric_revert_after_s if this node answers slowly",
                )
            return
        if module.check_mode:
            return
        if journal.get("restores"):
            shutil.rmtree(_journal.path_of(_journal.ORIGINAL), ignore_errors=True)
        else:
            original = _journal.read(_journal.ORIGINAL)
            _journal.write(_journal.ORIGINAL, _journal.merged(original, journal))
        _journal.disarm()
        shutil.rmtree(_journal.path_of(_journal.PENDING))


def revert(module: AnsibleModule) -> t.NoReturn:
    if not pending(module):
        module.exit_json(changed=False, drift=[], notes=[], files=[], msg="no unconfirmed change of the fabric here")
    if module.check_mode:
        module.exit_json(changed=True, drift=[], notes=[], files=[])
    left = _journal.revert(why="the controller took it back") or []
    if left:
        refuse(module, f"the change was taken back, but not all of it: {'; '.join(left)}")
    module.exit_json(changed=True, drift=[], notes=[], files=[], msg="the change was taken back, the old state is here")


def restore(module: AnsibleModule) -> t.NoReturn:
    if not module.check_mode:
        _journal.revert(why="a restore was asked for")
    original = _journal.read(_journal.ORIGINAL)
    if original is None:
        msg = "nothing to restore: the fabric stage has changed no file on this node, or a restore put all of them back"
        module.exit_json(changed=False, drift=[], notes=[], files=[], msg=f"{module.params['node']}: {msg}")
    changes = [entry for entry in original["files"] if _differs(entry)]
    diff = [_diff(entry) for entry in changes]
    before, now_there = original["runtime"].get("ufw"), _journal.ufw_rules()
    if before is not None and now_there is not None and now_there != before:
        diff.append({"before_header": "rules of ufw", "after_header": "rules of ufw",
                     "before": _rule_lines(now_there), "after": _rule_lines(before)})  # fmt: skip
    if not module.check_mode:
        now = {
            **original,
            "restores": True,
            "files": [_journal.look(entry["path"]) for entry in original["files"]],
            "runtime": _journal.runtime(
                original["runtime"]["interfaces"], original["runtime"]["sysctls"], original["runtime"]["units"]
            ),
            "ours": [
                f"{a['local']}/{a['prefixlen']}"
                for entry in original["runtime"]["interfaces"].values()
                for a in entry["addresses"]
            ],
        }
        arm(module, now)
        left = _journal.put_back(original)
        if left:
            go_back(module, f"the journal could not be put back: {'; '.join(left)}.")
    paths = [entry["path"] for entry in changes]
    module.exit_json(changed=True, drift=[], notes=[], files=paths, diff=diff, msg=f"put back {len(paths)} files")


def _rule_lines(rules: list[list[str]]) -> str:
    return "".join(f"{_firewall.ufw_text(words)}\n" for words in rules)


def _differs(entry: dict[str, t.Any]) -> bool:
    now = _journal.look(entry["path"])
    return any(entry.get(key) != value for key, value in now.items())


def _diff(entry: dict[str, t.Any]) -> dict[str, str]:
    """The bytes of a file before and after; mode and absence stand in the header."""
    now = _journal.look(entry["path"])

    def header(state: dict[str, t.Any]) -> str:
        if state["state"] == "file":
            return f"{entry['path']} (mode {state['mode']:04o})"
        return f"{entry['path']} ({state['state']})"

    def text(state: dict[str, t.Any]) -> str:
        if state["state"] == "link":
            return f"link to {state['target']}\n"
        return t.cast("bytes", state.get("content", b"")).decode("utf-8", "replace")

    return {"before_header": header(now), "after_header": header(entry), "before": text(now), "after": text(entry)}


def check(module: AnsibleModule, wanted: Wanted) -> list[dict[str, t.Any]]:
    """Refuse what cannot be, before anything is changed; returns the files of others that are taken over."""
    if wanted.links and wanted.chosen["problem"]:
        refuse(module, wanted.chosen["problem"])
    names = {link["interface"] for link in wanted.links}
    found = _renderers.conflicts(other_files(wanted.files, wanted.chosen["renderer"]), wanted.links)
    kept = [c for c in found if not module.params["take_over"] or c["also"] is None or c["also"]]
    if kept:
        sentences = [_renderers.conflict_sentence(c, wanted.chosen["backend"]) for c in kept]
        refuse(module, f"{'; '.join(sentences)}. Nothing was changed.", conflicts=kept)
    shown = {entry.get("ifname") for entry in running(module)}
    absent = sorted(names - shown)
    if absent:
        refuse(
            module,
            f"found no interface {', '.join(absent)} on this node, wanted it for tandem_links; plug the cable (an "
            "empty cage removes its card from the system) or name the interface of the cage that has one",
        )
    return found


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "default": "this node"},
            "links": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "interface": {"type": "str", "required": True},
                    "address": {"type": "str", "required": True},
                    "mtu": {"type": "int", "required": True},
                },
            },
            "routes": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "destination": {"type": "str", "required": True},
                    "via": {"type": "str", "required": True},
                    "interface": {"type": "str", "required": True},
                },
            },
            "forwarding": {"type": "list", "elements": "list", "default": []},
            "docker_forward": {"type": "bool", "default": True},
            "firewall": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "interface": {"type": "str", "required": True},
                    "sources": {"type": "list", "elements": "str", "required": True},
                },
            },
            "manage_firewall": {"type": "bool", "default": True},
            "take_over": {"type": "bool", "default": False},
            "path": {"type": "path", "default": "/etc/netplan/60-tandem-fabric.yaml"},
            "revert_after_s": {"type": "int", "default": 120},
            "state": {
                "type": "str",
                "choices": ["present", "confirmed", "reverted", "restored"],
                "default": "present",
            },
        },
        supports_check_mode=True,
    )
    if module.params["state"] == "confirmed":
        confirm(module)
        module.exit_json(changed=False, drift=[], notes=[], files=[])
    if module.params["state"] == "reverted":
        revert(module)
    if module.params["state"] == "restored":
        restore(module)

    wanted = Wanted(module)
    taken = check(module, wanted)
    drift = wanted.drift(module)
    aside = [{"path": conflict["path"], "state": "absent"} for conflict in taken]
    changes = [entry for entry in [*aside, *wanted.entries()] if _differs(entry)]
    keep_ssh(module, wanted, changes)
    diff = [_diff(entry) for entry in changes]
    if drift:
        lines = "".join(f"{line}\n" for line in drift)
        diff.append({"before_header": "running state", "after_header": "running state", "before": lines, "after": ""})
    wrong = bool(changes or drift)
    if wrong and not module.check_mode:
        apply(module, wanted, changes)
    for text in wanted.closed:
        module.warn(text)
    module.exit_json(
        # Something is still to be done while an earlier change waits for its confirmation: the timer would revert it.
        changed=wrong or pending(module),
        drift=drift,
        renderer=wanted.chosen["renderer"],
        notes=wanted.notes + wanted.closed,
        closed=wanted.closed,
        firewalls=wanted.firewalls,
        rdma=rdma(),
        taken_over=[conflict["path"] for conflict in taken],
        files=[entry["path"] for entry in changes],
        diff=diff,
    )


if __name__ == "__main__":
    main()

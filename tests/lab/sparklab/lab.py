# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab as a whole: up, down, status, and what must not be left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import LabError, cgroups, config, faults, host, image, network, node, services
from .config import Lab, Node
from .names import Names, cache_dir, lab_id

UP_MB = 300  # disk that a booted lab needs at once, all nodes together, with some air
NODE_MB = 150  # memory that a booted node needs before anything is deployed on it (measured: 25 to 30)


def names_of(lab_name: str) -> Names:
    return Names(lab_id(lab_name))


def load_state(names: Names) -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = json.loads(names.state_file.read_text())
    except (OSError, ValueError):
        return None
    return state


def save_state(names: Names, state: dict[str, Any]) -> None:
    part = names.state_file.with_suffix(".part")
    part.write_text(json.dumps(state, indent=1))
    part.rename(names.state_file)


def has_network(names: Names, lab: Lab) -> bool:
    """Whether all that `up` builds outside the guests is there."""
    wanted = {names.netns(item.name) for item in lab.nodes} | ({names.switch_netns} if lab.has_switch else set())
    return wanted <= set(network.namespaces(names)) and names.bridge in network.host_links(names)


def is_up(names: Names, lab: Lab) -> bool:
    return load_state(names) is not None and has_network(names, lab)


def running_lab(lab_name: str) -> tuple[Names, Lab, dict[str, Any]]:
    """The lab as it was brought up, for the verbs that need it up."""
    host.require_root()
    names = names_of(lab_name)
    state = load_state(names)
    if state is None or state["lab"]["name"] != lab_name:
        config.load(lab_name)  # an unknown name gets its own message
        raise LabError(f"lab {lab_name} (id {names.id}) is not up; bring it up with `lab up {lab_name}`")
    return names, Lab.from_dict(state["lab"]), state


# ---- up ------------------------------------------------------------------------------------------------------------


def up(lab_name: str) -> None:
    host.require_root()
    lab = config.load(lab_name)
    names = names_of(lab_name)
    host.require_tools()
    host.require_kernel()
    cgroups.hierarchies()
    with host.locked(names.lock_file, f"another run on lab {names.id}"):
        state = load_state(names)
        if state and state["lab"]["name"] != lab_name:
            raise LabError(
                f"lab id {names.id} belongs to lab {state['lab']['name']}, which is up; "
                f"bring that one down or set TANDEM_LAB_ID to another id"
            )
        if state and has_network(names, Lab.from_dict(state["lab"])):
            _complete(names, lab, state)
            return
        if left := leftovers(names):
            print(f"removing what an earlier run left ({len(left)} objects)", flush=True)
            _remove(names)
        _build(names, lab)


def _complete(names: Names, wanted: Lab, state: dict[str, Any]) -> None:
    """The lab is up: start what is off, change nothing else."""
    lab = Lab.from_dict(state["lab"])
    print(f"lab {lab.name} (id {names.id}) is already up")
    if lab != wanted:
        print(f"note: {lab.name}.yml changed since; `lab down {lab.name}` and `lab up {lab.name}` apply it")
    off = [item for item in lab.nodes if not node.is_running(names, item.name)]
    for item in off:
        _power_on(names, lab, item, state)
    _announce(names, off, node.wait_ready(names, off))
    _hub(names, lab, state)


def _build(names: Names, lab: Lab) -> None:
    started = time.monotonic()
    have, want = host.memory_available_mb(), NODE_MB * len(lab.nodes)
    if have < want:
        raise LabError(f"{len(lab.nodes)} nodes need {want} MiB of memory to boot, {have} MiB are available")
    network.check_subnet(names)
    host.require_room(cache_dir(), UP_MB, f"lab {lab.name}")
    root = image.ensure(lab.suite)
    built = time.monotonic()
    shutil.rmtree(_failed_dir(names), ignore_errors=True)
    names.state_dir.mkdir(parents=True, exist_ok=True)
    names.state_dir.chmod(0o700)  # keys
    state: dict[str, Any] = {
        "id": names.id,
        "lab": lab.as_dict(),
        "image": str(root),
        "air": lab.air,
        "hub": None,
    }
    save_state(names, state)
    try:
        network.up(names, lab, lab.air)
        node.make_lab_key(names)
        names.known_hosts.write_text("".join(node.prepare(names, item) for item in lab.nodes))
        for item in lab.nodes:
            network.snapshot(names, item.name, names.node_dir(item.name) / "netns.json")
        for item in lab.nodes:
            _power_on(names, lab, item, state)
        _announce(names, list(lab.nodes), node.wait_ready(names, list(lab.nodes)))
        _hub(names, lab, state)
    except BaseException:
        print("rolling back", flush=True)
        _save_consoles(names)
        _remove(names)
        raise
    if not lab.air and network.forwarding_refused():
        print(
            f"note: this machine's firewall drops forwarded packets, so the nodes reach nothing outside; allow them: "
            f"iptables -I DOCKER-USER -i {names.bridge} -j ACCEPT; iptables -I DOCKER-USER -o {names.bridge} -j ACCEPT"
        )
    print(
        f"lab {lab.name} (id {names.id}) is up after {time.monotonic() - built:.1f} s"
        + (f", image {built - started:.0f} s" if built - started > 1 else "")
    )


def _failed_dir(names: Names) -> Path:
    return cache_dir() / "lab" / f"{names.id}-failed"


def _save_consoles(names: Names) -> None:
    """A failed boot is explained by its console, which the roll-back would remove."""
    kept = _failed_dir(names)
    for log in names.state_dir.glob("nodes/*/console.log"):
        with contextlib.suppress(OSError):
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copy(log, kept / f"{log.parent.name}.log")
            print(f"console of {log.parent.name} kept in {kept}", flush=True)


def _power_on(names: Names, lab: Lab, item: Node, state: dict[str, Any]) -> None:
    root = Path(state["image"])
    if not root.is_dir():
        raise LabError(f"the image of this lab, {root}, is gone; `lab down {lab.name}` and `lab up {lab.name}`")
    node.launch(names, lab, item, root)


def _announce(names: Names, nodes: list[Node], words: dict[str, str]) -> None:
    for item in nodes:
        word = words[item.name]
        failed = f", failed: {', '.join(node.failed_units(names, item))}" if word == "degraded" else ""
        print(f"{item.name} {names.address(item.rank)} {word}{failed}", flush=True)


def _hub(names: Names, lab: Lab, state: dict[str, Any]) -> None:
    if lab.services:
        print(services.ensure_hub(names, state), flush=True)
        save_state(names, state)


# ---- down ----------------------------------------------------------------------------------------------------------


def down(lab_name: str) -> None:
    host.require_root()
    names = names_of(lab_name)
    state = load_state(names)
    if state and state["lab"]["name"] != lab_name:
        raise LabError(f"lab id {names.id} belongs to lab {state['lab']['name']}, not to {lab_name}; name that one")
    if state is None:
        config.load(lab_name)  # a misspelt name must not look like a success
    with host.locked(names.lock_file, f"another run on lab {names.id}"):
        was_there = bool(leftovers(names))
        _remove(names)
        if left := leftovers(names):
            raise LabError(f"lab {names.id} left behind: {'; '.join(left)}")
    print(f"lab {lab_name} (id {names.id}) is down" if was_there else f"lab {lab_name} (id {names.id}) was not up")


def _remove(names: Names) -> None:
    """Take everything away that carries the id: processes first, then what they held."""
    addresses = [names.address(rank) for rank in range(config.MAX_NODES)]
    for what in cgroups.groups_of(names):
        owner = cgroups.group(names, what)
        owner.kill()
        owner.remove()
    for folder in cgroups.lab_folders(names):
        cgroups.remove_tree(folder)
    network.down(names)
    for address in addresses:
        network.close_connections(address)
    for path in _nspawn_remains(names):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    shutil.rmtree(names.state_dir, ignore_errors=True)


def _nspawn_remains(names: Names) -> list[Path]:
    base = Path("/run/systemd/nspawn")
    return sorted(base.glob(f"*/{names.netns_prefix}*"))


def _mounts(names: Names) -> Iterator[str]:
    """Mounts under the state folder, in whatever mount namespace they are."""
    needle = f" {names.state_dir}/"
    seen: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            namespace = os.readlink(process / "ns/mnt")
            if namespace in seen:
                continue
            seen.add(namespace)
            for line in (process / "mountinfo").read_text().splitlines():
                if needle in line:
                    yield f"mount {line.split()[4]} (seen by process {process.name})"


def leftovers(names: Names) -> list[str]:
    """Everything on this machine that carries the lab's id."""
    found = [f"network namespace {name}" for name in network.namespaces(names)]
    found += [f"link {name}" for name in network.host_links(names)]
    found += [f"nft table ip {names.table}"] if names.table in network.tables(names.table) else []
    for folder in cgroups.lab_folders(names):
        found.append(f"control group {folder}")
        found += [f"process {pid} ({_command(pid)})" for pid in cgroups.tree_pids(folder)]
    found += list(_mounts(names))
    found += [f"file {path}" for path in _nspawn_remains(names)]
    found += [f"folder {names.state_dir}"] if names.state_dir.exists() else []
    return list(dict.fromkeys(found))


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()[:60]
    return "ended"


# ---- single nodes, air, status -------------------------------------------------------------------------------------


def kill(lab_name: str, node_name: str) -> None:
    names, lab, _state = running_lab(lab_name)
    item = lab.node(node_name)
    with host.locked(names.lock_file, f"another run on lab {names.id}"):
        was_running = node.is_running(names, item.name)
        node.power_off(names, lab, item)
        faults.reapply(names, lab, item.name)
    print(f"{item.name} is off" if was_running else f"{item.name} was off already")


def start(lab_name: str, node_name: str) -> None:
    names, lab, state = running_lab(lab_name)
    item = lab.node(node_name)
    with host.locked(names.lock_file, f"another run on lab {names.id}"):
        if node.is_running(names, item.name):
            print(f"{item.name} is running already")
            return
        _power_on(names, lab, item, state)
        _announce(names, [item], node.wait_ready(names, [item]))


def link(lab_name: str, node_name: str, interface: str, action: str, value: str | None) -> None:
    faults.check(action, value)
    names, lab, _state = running_lab(lab_name)
    item = lab.node(node_name)
    with host.locked(names.lock_file, f"another run on lab {names.id}"):
        print(faults.apply(names, lab, item, interface, action, value))


def air(lab_name: str, on: bool) -> None:
    names, lab, state = running_lab(lab_name)
    with host.locked(names.lock_file, f"another run on lab {names.id}"):
        network.set_air(names, on)
        state["air"] = on
        save_state(names, state)
    reach = "nothing outside can be reached from its nodes" if on else "its nodes reach what this machine reaches"
    print(f"air gap of lab {lab.name} is {'on' if on else 'off'}: {reach}; the gateway's services answer")


def knob(lab_name: str, node_name: str, changes: dict[str, str]) -> None:
    node.check_knobs(changes)
    names, lab, _state = running_lab(lab_name)
    item = lab.node(node_name)
    if changes:
        node.turn_knobs(names, item, changes)
    for key, value in node.read_knobs(names, item).items():
        print(f"{item.name} {key}={value}")


def status(lab_name: str) -> dict[str, Any]:
    """What is there, as data; the command line prints it as text or JSON."""
    host.require_root()
    names = names_of(lab_name)
    state = load_state(names)
    lab = Lab.from_dict(state["lab"]) if state and state["lab"]["name"] == lab_name else config.load(lab_name)
    up_now = is_up(names, lab)
    answer: dict[str, Any] = {
        "lab": lab.name,
        "id": names.id,
        "up": up_now,
        "subnet": str(names.subnet),
        "gateway": names.gateway,
        "nodes": {},
    }
    if not up_now or state is None:
        return answer
    hub = services.reference(state)
    answer |= {
        "air": bool(state["air"]),
        "image": state["image"],
        "hub": services.hub_url(names) if hub and hub.alive() else None,
    }
    for item in lab.nodes:
        owner = cgroups.group(names, item.name)
        used, limit = owner.memory()
        recorded = faults.recorded(names, item.name)
        links = network.link_state(names, item.name, lab.interfaces(item.name))
        answer["nodes"][item.name] = {
            "address": names.address(item.rank),
            "running": owner.populated(),
            "pid": owner.guest_init(),
            "memory_mib": used >> 20 if used is not None else None,
            "memory_limit_mib": limit >> 20 if limit is not None else None,
            "knobs": node.read_knobs(names, item),
            "links": {name: {**links_state, "faults": recorded.get(name, {})} for name, links_state in links.items()},
        }
    return answer


def garbage_images() -> list[Path]:
    in_use: set[str] = set()
    for file in (cache_dir() / "lab").glob("*/state.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            in_use.add(Path(json.loads(file.read_text())["image"]).parent.name)
    suites = {config.load(name).suite for name in config.available()}
    return image.garbage(in_use, suites)

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab file (labs/NAME.yml): which Sparks there are and how they are wired. Reading it touches nothing."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import LabError
from .names import CAGES, LAB_DIR, MAX_NODES, NODE_RE, cage_interfaces

LABS = LAB_DIR / "labs"
SWITCH = "switch"
MEMORY_MIN_MB = 256
DISK_MIN_MB = 512
DRIVER = "580.159.03"  # a driver version seen on DGX Sparks (reference: HW-02)
VERSION_RE = re.compile(r"\d+(\.\d+){1,3}")


@dataclass(frozen=True)
class Node:
    """One virtual Spark."""

    name: str
    rank: int
    memory_mb: int = 7168
    disk_mb: int | None = None
    driver_version: str = DRIVER
    driver_loaded: str | None = None  # None: the installed one
    bind: tuple[str, ...] = ()


@dataclass(frozen=True)
class End:
    """One end of a cable: a cage of a node, or (without a cage) the lab's switch."""

    node: str
    cage: int | None = None

    def __str__(self) -> str:
        return self.node if self.cage is None else f"{self.node}.{self.cage}"


@dataclass(frozen=True)
class Cable:
    """A cable plugged into two cages, or into a cage and the switch. It always carries both PCIe halves."""

    a: End
    b: End


@dataclass(frozen=True)
class Lab:
    name: str
    nodes: tuple[Node, ...]
    cables: tuple[Cable, ...]
    description: str = ""
    services: bool = False
    air: bool = False  # start with the air gap closed (nothing outside reachable)
    suite: str = "bookworm"

    def node(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        raise LabError(f"lab {self.name} has no node {name!r}; its nodes are {', '.join(n.name for n in self.nodes)}")

    @property
    def has_switch(self) -> bool:
        return any(cable.b.node == SWITCH for cable in self.cables)

    def interfaces(self, node: str) -> tuple[str, ...]:
        """The fabric devices the node has: two per cage that holds a cable."""
        cages = sorted(end.cage for c in self.cables for end in (c.a, c.b) if end.node == node and end.cage is not None)
        return tuple(name for cage in cages for name in cage_interfaces(cage))

    def cable_of(self, node: str, interface: str) -> tuple[Cable, int]:
        """The cable behind a fabric device and the rail (0 or 1) the device is on."""
        for cable in self.cables:
            for end in (cable.a, cable.b):
                if end.node == node and end.cage is not None and interface in cage_interfaces(end.cage):
                    return cable, cage_interfaces(end.cage).index(interface)
        have = self.interfaces(node)
        raise LabError(
            f"node {node} of lab {self.name} has no fabric interface {interface!r}; "
            + (f"it has {', '.join(have)}" if have else "no cable is plugged into it")
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Lab:
        nodes = tuple(Node(**{**node, "bind": tuple(node["bind"])}) for node in data["nodes"])
        cables = tuple(Cable(End(**cable["a"]), End(**cable["b"])) for cable in data["cables"])
        return cls(**{**data, "nodes": nodes, "cables": cables})


@dataclass
class _Reader:
    """Checks values and remembers where it is, so that each message names the file and the key."""

    where: str
    problems: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        self.problems.append(text)

    def mapping(self, value: Any, what: str, allowed: set[str]) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.problem(f"{what} is a {type(value).__name__}; wanted a mapping")
            return {}
        for key in value:
            if key not in allowed:
                self.problem(f"{what} has an unknown key {key!r}; known are {', '.join(sorted(allowed))}")
        return {key: item for key, item in value.items() if key in allowed}

    def number(self, value: Any, what: str, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.problem(f"{what} is {value!r}; wanted a whole number of at least {least}")
            return least
        return value

    def boolean(self, value: Any, what: str) -> bool:
        if not isinstance(value, bool):
            self.problem(f"{what} is {value!r}; wanted true or false")
            return False
        return value

    def version(self, value: Any, what: str) -> str:
        if not isinstance(value, str) or not VERSION_RE.fullmatch(value):
            self.problem(f'{what} is {value!r}; wanted a driver version as text, such as "{DRIVER}"')
            return DRIVER
        return value


NODE_KEYS = {"memory_mb", "disk_mb", "driver_version", "driver_loaded", "bind"}
LAB_KEYS = {"description", "nodes", "cables", "services", "air", "suite", "defaults"}


def parse(name: str, data: Any, where: str) -> Lab:
    """Turn a lab file's content into a Lab; every problem at once, in one error."""
    reader = _Reader(where)
    top = reader.mapping(data, "the file", LAB_KEYS)
    if not isinstance(top.get("nodes"), dict) or not top["nodes"]:
        reader.problem("nodes is missing or empty; wanted a mapping from node name to its settings (or to nothing)")
    defaults = reader.mapping(top.get("defaults"), "defaults", NODE_KEYS)
    nodes = _nodes(reader, top.get("nodes"), defaults)
    cables = _cables(reader, top.get("cables"), {node.name for node in nodes})
    suite = top.get("suite", "bookworm")
    if not isinstance(suite, str) or not re.fullmatch(r"[a-z]+", suite):
        reader.problem(f"suite is {suite!r}; wanted a Debian code name, such as bookworm")
    lab = Lab(
        name=name,
        nodes=nodes,
        cables=cables,
        description=str(top.get("description", "")),
        services=reader.boolean(top.get("services", False), "services"),
        air=reader.boolean(top.get("air", False), "air"),
        suite=str(suite),
    )
    if reader.problems:
        raise LabError(f"{where}: " + "; ".join(reader.problems))
    return lab


def _nodes(reader: _Reader, value: Any, defaults: dict[str, Any]) -> tuple[Node, ...]:
    if not isinstance(value, dict):
        return ()
    if len(value) > MAX_NODES:
        reader.problem(f"{len(value)} nodes; at most {MAX_NODES} are supported")
    nodes = []
    for rank, (name, settings) in enumerate(value.items()):
        if not isinstance(name, str) or not NODE_RE.fullmatch(name) or name == SWITCH:
            reader.problem(
                f"node name {name!r} is not usable; wanted up to 20 lower-case letters, digits and dashes, "
                f"a letter first, and not {SWITCH!r}"
            )
            continue
        given = {**defaults, **reader.mapping(settings, f"nodes.{name}", NODE_KEYS)}
        node: dict[str, Any] = {}
        if "memory_mb" in given:
            node["memory_mb"] = reader.number(given["memory_mb"], f"nodes.{name}.memory_mb", MEMORY_MIN_MB)
        if given.get("disk_mb") is not None:
            node["disk_mb"] = reader.number(given["disk_mb"], f"nodes.{name}.disk_mb", DISK_MIN_MB)
        for key in ("driver_version", "driver_loaded"):
            if given.get(key) is not None:
                node[key] = reader.version(given[key], f"nodes.{name}.{key}")
        bind = given.get("bind") or []
        if not isinstance(bind, list) or not all(isinstance(path, str) and path.startswith("/") for path in bind):
            reader.problem(f"nodes.{name}.bind is {bind!r}; wanted a list of absolute directories of this machine")
            bind = []
        nodes.append(Node(name=name, rank=rank, bind=tuple(bind), **node))
    return tuple(nodes)


def _cables(reader: _Reader, value: Any, names: set[str]) -> tuple[Cable, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        reader.problem("cables is not a list; wanted items such as [spark-a.0, spark-b.0]")
        return ()
    cables: list[Cable] = []
    used: set[End] = set()
    for number, item in enumerate(value, start=1):
        what = f"cable {number}"
        if not isinstance(item, list) or len(item) != 2:
            reader.problem(f"{what} is {item!r}; wanted two ends: [spark-a.0, spark-b.0] or [spark-a.0, switch]")
            continue
        ends = [end for end in (_end(reader, text, what, names) for text in item) if end]
        if len(ends) != 2:
            continue
        a, b = ends
        if a.node == SWITCH:
            a, b = b, a
        if a.node == b.node:
            reader.problem(f"{what} joins {a.node} to itself")
            continue
        for end in (a, b):
            if end.cage is not None and end in used:
                reader.problem(f"{what} uses {end}, which holds a cable already")
            used.add(end)
        cables.append(Cable(a, b))
    return tuple(cables)


def _end(reader: _Reader, text: Any, what: str, names: set[str]) -> End | None:
    if text == SWITCH:
        return End(SWITCH)
    node, dot, cage = str(text).rpartition(".")
    if not dot or cage not in {str(c) for c in CAGES}:
        reader.problem(f"{what}: end {text!r} names no cage; wanted NODE.0, NODE.1 or {SWITCH}")
        return None
    if node not in names:
        reader.problem(f"{what}: {node!r} is not one of the nodes")
        return None
    return End(node, int(cage))


def _load_yaml(text: str, where: str) -> Any:
    try:
        import yaml
    except ImportError as error:  # the system's Python may lack it; .venv has it
        raise LabError("PyYAML is missing; run `tests/lab/lab setup`, or `apt-get install python3-yaml`") from error

    class Loader(yaml.SafeLoader):
        """Refuses a key given twice: the second would silently win."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[Any] = set()
            for key_node, _value in node.value:
                key = self.construct_object(key_node, deep=True)
                if key in seen:
                    raise yaml.YAMLError(f"line {key_node.start_mark.line + 1}: {key!r} is given twice")
                seen.add(key)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise LabError(f"{where} is not usable YAML: {' '.join(str(error).split())}") from error


def available(folder: Path = LABS) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yml"))


def load(name: str, folder: Path = LABS) -> Lab:
    """Read a lab by name."""
    path = folder / f"{name}.yml"
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name) or not path.is_file():
        raise LabError(f"there is no lab {name!r}; known are {', '.join(available(folder))} (files in {folder})")
    return parse(name, _load_yaml(path.read_text(encoding="utf-8"), str(path)), str(path))

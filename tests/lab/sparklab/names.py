# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every name a lab uses, derived from its id.

Two labs (or two checkouts) share one machine's network namespaces, bridges, tables and control groups, so each name
carries the id. Because all of them can be derived, `down` needs no state file and `leftovers` knows what to look for.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path

from . import LabError

ID_ENV = "TANDEM_LAB_ID"
CACHE_ENV = "TANDEM_CACHE"
ID_MAX = 8
IFNAME_MAX = 15  # IFNAMSIZ - 1
ID_RE = re.compile(r"[a-z][a-z0-9]{1,7}")
NODE_RE = re.compile(r"[a-z][a-z0-9-]{0,19}")

MANAGEMENT = "enP7s7"
# A cage has two PCIe halves ("rails"); each is a network device of its own on a Spark.
RAILS = ("enp1s0f{cage}np{cage}", "enP2p1s0f{cage}np{cage}")
CAGES = (0, 1)
MAX_NODES = 8
HUB_PORT = 9000

PACKAGE = Path(__file__).resolve().parent
LAB_DIR = PACKAGE.parent  # tests/lab
CHECKOUT = LAB_DIR.parent.parent

# Management subnets: 10.64.0.0 - 10.127.255.255 as /24s. Away from the ranges that people and container tools like
# to use at the two ends of 10.0.0.0/8.
_POOL = ipaddress.IPv4Network("10.64.0.0/10")


def cage_interfaces(cage: int) -> tuple[str, str]:
    """The two network devices (halves) of a cage."""
    first, second = (rail.format(cage=cage) for rail in RAILS)
    return first, second


def fabric_interfaces() -> tuple[str, ...]:
    return tuple(name for cage in CAGES for name in cage_interfaces(cage))


def cache_dir() -> Path:
    configured = os.environ.get(CACHE_ENV, "")
    return Path(configured).expanduser().absolute() if configured else Path.home() / ".cache" / "tandem"


def default_id(lab: str, checkout: Path = CHECKOUT) -> str:
    """Letters of the lab's name, then hex of checkout + name: readable, and different in each checkout."""
    digest = hashlib.sha256(f"{checkout}\0{lab}".encode()).hexdigest()
    letters = re.sub(r"[^a-z]", "", lab.lower())[:4] or "lab"
    return letters + digest[: ID_MAX - len(letters)][:4]


def lab_id(lab: str) -> str:
    """The id from the environment, else the checkout's own for this lab."""
    wanted = os.environ.get(ID_ENV, "")
    if not wanted:
        return default_id(lab)
    if not ID_RE.fullmatch(wanted):
        raise LabError(
            f"{ID_ENV} is {wanted!r}; wanted 2 to {ID_MAX} characters, lower-case letters and digits, starting with a "
            f"letter (it goes into interface names, which hold {IFNAME_MAX}); unset it or shorten it"
        )
    return wanted


def check_ifname(name: str) -> str:
    if len(name) > IFNAME_MAX:
        raise LabError(f"interface name {name!r} has {len(name)} characters; Linux allows {IFNAME_MAX}")
    return name


@dataclass(frozen=True)
class Names:
    """What a lab with this id calls its parts."""

    id: str

    # ---- network -----------------------------------------------------------------------------------------------
    @property
    def bridge(self) -> str:
        return check_ifname(f"br-{self.id}")

    def port(self, rank: int) -> str:
        """The host's end of a node's management cable."""
        return check_ifname(f"{self.id}-m{rank}")

    @property
    def netns_prefix(self) -> str:
        return f"{self.id}-"

    def netns(self, node: str) -> str:
        return f"{self.id}-{node}"

    @property
    def switch_netns(self) -> str:
        return f"{self.id}-switch"

    @property
    def table(self) -> str:
        return f"lab_{self.id}"

    @property
    def subnet(self) -> ipaddress.IPv4Network:
        index = int.from_bytes(hashlib.sha256(f"subnet {self.id}".encode()).digest()[:4], "big") % (1 << 14)
        return ipaddress.IPv4Network((int(_POOL.network_address) + (index << 8), 24))

    @property
    def gateway(self) -> str:
        return str(self.subnet.network_address + 1)

    def address(self, rank: int) -> str:
        return str(self.subnet.network_address + 11 + rank)

    def mac(self, node: str, interface: str) -> str:
        """A stable, locally administered address: the same after each `up`, as on real hardware."""
        digest = hashlib.sha256(f"{self.id}\0{node}\0{interface}".encode()).digest()
        return ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5]))

    # ---- processes, files --------------------------------------------------------------------------------------
    @property
    def cgroup(self) -> str:
        return f"tandem-lab-{self.id}"

    def unit(self, what: str) -> str:
        """The transient unit around a node (or the hub) on hosts that run systemd."""
        return f"tandem-lab-{self.id}-{what}.service"

    def machine(self, node: str) -> str:
        return f"{self.id}-{node}"

    def machine_id(self, node: str) -> str:
        return uuid.uuid5(uuid.NAMESPACE_DNS, f"{node}.{self.id}.lab.tandem.invalid").hex

    @property
    def state_dir(self) -> Path:
        return cache_dir() / "lab" / self.id

    @property
    def state_file(self) -> Path:
        return self.state_dir / "state.json"

    @property
    def key_file(self) -> Path:
        return self.state_dir / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.state_dir / "known_hosts"

    def node_dir(self, node: str) -> Path:
        return self.state_dir / "nodes" / node

    @property
    def lock_file(self) -> Path:
        # beside, not inside, the state folder: `down` removes that one while it holds the lock
        return cache_dir() / "lab" / f"{self.id}.lock"

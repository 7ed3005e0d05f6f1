# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The RDMA lane: two emulated machines with soft-RoCE, the fabric stage on them, and what the real tools print.

The lab's containers have no RDMA, since the host's kernel has none. Here each node is a whole machine in QEMU with a
Debian kernel: `rdma`, `ibv_devinfo`, `ib_write_bw` and `ib_write_lat` are real, the speed says nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parent))

from sparklab import LabError  # noqa: E402
from sparklab import image as lab_image  # noqa: E402
from sparklab.host import locked, require_room, require_root, run, wait_until  # noqa: E402
from sparklab.names import MANAGEMENT, cache_dir, cage_interfaces  # noqa: E402

SUITE = "bookworm"
_PACKAGES = (
    "linux-image-amd64 systemd systemd-sysv dbus udev kmod initramfs-tools zstd openssh-server python3 iproute2 "
    "iputils-ping netplan.io nftables procps ethtool pciutils iperf3 rdma-core ibverbs-providers ibverbs-utils perftest"
)
PACKAGES = _PACKAGES.split()
TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "mmdebstrap": "mmdebstrap", "mkfs.ext4": "e2fsprogs"}
IMAGE_MB = 2048
MEMORY_MB = 768
BOOT_S = 300
RAILS = cage_interfaces(0)
# The names that the ConnectX-7 has in cage 0 of a Spark.
DEVICES = {"enp1s0f0np0": "rocep1s0f0", "enP2p1s0f0np0": "roceP2p1s0f0"}
FIXTURES = ROOT / "tests/unit/fixtures/rdma"
RECORDED_PACKAGES = ["iproute2", "rdma-core", "perftest", "iperf3"]

UNIT = """\
[Unit]
Description=Soft-RoCE on both rails
{wants}
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/modprobe rdma_rxe
{adds}
[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Node:
    """One emulated machine."""

    number: int

    @property
    def name(self) -> str:
        return f"spark-{'ab'[self.number - 1]}"

    def mac(self, place: int) -> str:
        """Place 0 is the management network, then come the rails."""
        return f"52:54:00:00:{self.number:02x}:{place:02x}"

    @property
    def management(self) -> str:
        """The address on this host that leads to it; the stages want one for each node."""
        return f"127.0.0.{self.number}"

    def address(self, rail: int) -> str:
        return f"192.168.{100 + rail}.{9 + self.number}"


NODES = (Node(1), Node(2))


# ---- the image -------------------------------------------------------------------------------------------------------


def guest_files() -> dict[str, str]:
    """What the image holds beside Debian's packages: interface names, soft-RoCE, SSH."""
    files = {
        "etc/systemd/network/20-management.network": f"[Match]\nName={MANAGEMENT}\n[Network]\nDHCP=ipv4\n",
        "etc/systemd/system/lane-rdma.service": UNIT.format(
            wants="".join(
                f"{key}=sys-subsystem-net-devices-{rail}.device\n" for rail in RAILS for key in ("Wants", "After")
            ),
            adds="\n".join(
                f"ExecStart=/usr/bin/rdma link add {DEVICES[rail]} type rxe netdev {rail}" for rail in RAILS
            ),
        ),
        "etc/ssh/sshd_config.d/lane.conf": "PermitRootLogin prohibit-password\nPasswordAuthentication no\nUseDNS no\n",
    }
    for node in NODES:
        for place, name in enumerate((MANAGEMENT, *RAILS)):
            text = f"[Match]\nMACAddress={node.mac(place)}\n[Link]\nName={name}\n"
            files[f"etc/systemd/network/10-lane-{node.number}-{place}.link"] = text
    return files


def image() -> Path:
    """The directory with root.img, vmlinuz, initrd.img, key and known_hosts; built now if it is not there yet."""
    wanted = lab_image.recipe(SUITE)
    parts = [PACKAGES, guest_files(), wanted.sources, wanted.apt, IMAGE_MB]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
    folder = cache_dir() / "rdma" / f"image-{digest}"
    if not (folder / "root.img").exists():
        with locked(cache_dir() / "rdma/.lock", "another build of the image"):
            if not (folder / "root.img").exists():
                build(wanted, folder)
    return folder


def build(wanted: lab_image.Recipe, folder: Path) -> None:
    require_room(folder.parent, 2 * IMAGE_MB, "building the image of the RDMA lane")
    print("building the image (two to four minutes, once)", flush=True)
    started = time.monotonic()
    for left in folder.parent.glob("image.part-*"):  # of a build that was killed
        shutil.rmtree(left)
    work = Path(tempfile.mkdtemp(prefix="image.part-", dir=folder.parent))
    work.chmod(0o755)
    try:
        root = work / "root"
        argv = ["mmdebstrap", "--mode=root", "--variant=minbase", "--arch=amd64", f"--include={','.join(PACKAGES)}"]
        argv += [f"--aptopt={setting}" for setting in [*wanted.apt, 'APT::Install-Recommends "false"']]
        argv += [f"--dpkgopt=path-exclude={pattern}" for pattern in lab_image.LEFT_OUT]
        done = run(*argv, "--dpkgopt=force-unsafe-io", SUITE, str(root), *wanted.sources, check=False, timeout=1800)
        if done.returncode != 0:
            raise LabError(f"mmdebstrap failed: {done.stderr[-600:]}")
        furnish(root, work)
        for name in ("vmlinuz", "initrd.img"):
            shutil.copyfile(next((root / "boot").glob(f"{name}-*")), work / name)
        run("mkfs.ext4", "-q", "-F", "-d", root, work / "disk", f"{IMAGE_MB}M", timeout=600)
        shutil.rmtree(root)
        (work / "disk").rename(work / "root.img")
        shutil.rmtree(folder, ignore_errors=True)
        work.rename(folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    print(f"the image is ready after {time.monotonic() - started:.0f} s", flush=True)


def furnish(root: Path, work: Path) -> None:
    for name, text in guest_files().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "etc/machine-id").write_text("")
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "rdma lane", "-f", work / "id_ed25519")
    (root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    shutil.copyfile(work / "id_ed25519.pub", root / "root/.ssh/authorized_keys")
    key = " ".join((root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[:2])
    (work / "host_key").write_text(key)
    units = ("systemd-networkd.service", "ssh.service", "lane-rdma.service")
    run("systemctl", f"--root={root}", "enable", *units)
    for unit in ("apt-daily.timer", "apt-daily-upgrade.timer", "systemd-networkd-wait-online.service"):
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")


# ---- the machines ----------------------------------------------------------------------------------------------------


def free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


class Machine:
    """A node while it runs."""

    def __init__(self, node: Node, folder: Path, place: Path) -> None:
        self.node, self.port, self.console = (
            node,
            free_port(node.management),
            cache_dir() / f"rdma/console-{node.name}.log",
        )
        # They die with this program, whatever becomes of it; snapshot=on: nothing is written to the image.
        words = ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-smp", "1"]
        words += ["-m", str(MEMORY_MB), "-nographic", "-monitor", "none", "-serial", f"file:{self.console}"]
        words += ["-kernel", str(folder / "vmlinuz"), "-initrd", str(folder / "initrd.img"), "-append"]
        words += [f"root=/dev/vda rw console=ttyS0 quiet systemd.hostname={node.name}"]
        words += ["-drive", f"file={folder}/root.img,format=raw,if=virtio,snapshot=on"]
        words += ["-netdev", f"user,id=management,restrict=on,hostfwd=tcp:{node.management}:{self.port}-:22"]
        words += ["-device", f"virtio-net-pci,netdev=management,mac={node.mac(0)}"]
        for number in range(1, len(RAILS) + 1):
            # A cable is a socket in the lane's own directory: nothing of the host's network is touched.
            # Datagrams: a stream (-netdev stream, QEMU 7.2) stood still for good after some hundred Mb/s both ways.
            ends = [f"{end}.type=unix,{end}.path={place}/rail{number}-" for end in ("local", "remote")]
            ends = [f"{end}{who}" for end, who in zip(ends, (node.number, 3 - node.number))]
            words += ["-netdev", f"dgram,id=rail{number},{','.join(ends)}"]
            words += ["-device", f"virtio-net-pci,netdev=rail{number},mac={node.mac(number)},host_mtu=9000"]
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.options = ["-i", str(folder / "id_ed25519"), "-o", f"UserKnownHostsFile={place}/known_hosts"]
        self.options += ["-o", "IdentitiesOnly=yes", "-o", "GlobalKnownHostsFile=/dev/null"]
        self.options += ["-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=20"]

    def ssh(self, command: str, check: bool = True, timeout: float = 120) -> str:
        words = ["ssh", "-F", "none", *self.options, "-p", str(self.port), f"root@{self.node.management}", command]
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise LabError(f"{self.node.name}: `{command}` ended with {done.returncode}: {done.stdout.strip()[-600:]}")
        return done.stdout

    def is_up(self) -> bool:
        if self.process.poll() is not None:
            said = self.process.stderr.read() if self.process.stderr else ""
            raise LabError(f"{self.node.name}: QEMU ended with {self.process.returncode}: {said.strip()[-600:]}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            return "up" in self.ssh("systemctl is-active --quiet lane-rdma && echo up", check=False, timeout=40)
        return False

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def machines(folder: Path) -> Iterator[list[Machine]]:
    """Both machines, until the end of the block."""
    found: list[Machine] = []
    with tempfile.TemporaryDirectory(prefix="tandem-rdma-") as name:
        place = Path(name)
        try:
            for node in NODES:
                machine = Machine(node, folder, place)
                found.append(machine)
            key = (folder / "host_key").read_text()
            (place / "known_hosts").write_text("".join(f"[{m.node.management}]:{m.port} {key}\n" for m in found))
            for machine in found:
                if not wait_until(machine.is_up, BOOT_S, step=2):
                    raise LabError(
                        f"{machine.node.name}: no SSH with soft-RoCE within {BOOT_S} s; see {machine.console}"
                    )
            yield found
        finally:
            for machine in found:
                machine.stop()


def inventory(found: list[Machine]) -> dict[str, Any]:
    hosts = {
        machine.node.name: {
            "ansible_host": machine.node.management,
            "ansible_port": machine.port,
            "ansible_user": "root",
            "ansible_become": False,
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_common_args": " ".join(machine.options),
            "tandem_links": [
                {"interface": name, "address": f"{machine.node.address(rail)}/24"} for rail, name in enumerate(RAILS)
            ],
        }
        for machine in found
    }
    # Any recipe will do: nothing is served here.
    settings = {
        "tandem_recipe": "lab-smollm2",
        "tandem_recipe_paths": [str(HERE.parent / "recipes")],
        "tandem_model_revision": "0" * 40,
        "fabric_throughput": True,
    }
    return {"spark": {"hosts": hosts, "vars": settings}}


# ---- what is done with them ------------------------------------------------------------------------------------------


def playbook(found: list[Machine], place: Path) -> None:
    """The fabric stage as a user runs it, with its RDMA measurement."""
    (place / "hosts.yml").write_text(json.dumps(inventory(found)))
    words = [str(Path(sys.executable).parent / "ansible-playbook"), str(HERE / "stage.yml"), "-i", f"{place}/hosts.yml"]
    words += ["-e", f"lane_output={place}"]
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_TIMEOUT": "60"}
    if subprocess.run(words, cwd=ROOT, env=environment, check=False, timeout=1800).returncode != 0:
        raise LabError("the fabric stage failed on the emulated machines, see above")


def perftest(found: list[Machine], program: str, *options: str) -> str:
    """Output of a perftest program on the first machine, with its server on the second one."""
    client, server = found
    line = " ".join([program, "-d", DEVICES[RAILS[0]], "-F", *options])
    server.ssh(f"systemd-run --quiet --collect --unit=lane-server {line}")
    try:
        server.ssh("timeout 20 sh -c 'until ss -Htln sport = 18515 | grep -q .; do sleep 0.1; done'", check=False)
        return client.ssh(f"{line} {server.node.address(0)}", check=False, timeout=180)
    finally:
        server.ssh("systemctl stop lane-server", check=False)


def record(found: list[Machine]) -> dict[str, str]:
    """What the real tools print, by the name of the fixture."""
    first = found[0]
    index = first.ssh(f"grep -l {gid(first.node.address(0))} /sys/class/infiniband/{DEVICES[RAILS[0]]}/ports/1/gids/*")
    chosen = ["-x", index.split("/")[-1].strip()]
    return {
        "versions.txt": first.ssh(f"uname -r; dpkg-query -W {' '.join(RECORDED_PACKAGES)}"),
        "rdma-link.txt": first.ssh("rdma link show"),
        "rdma-link.json": first.ssh("rdma -j link show"),
        "ibv_devices.txt": first.ssh("ibv_devices"),
        "ibv_devinfo-v.txt": first.ssh(f"ibv_devinfo -v -d {DEVICES[RAILS[0]]}"),
        "ib_write_bw.txt": perftest(found, "ib_write_bw", *chosen, "-n", "200", "--report_gbits"),
        "ib_write_bw-duration.txt": perftest(found, "ib_write_bw", *chosen, "-D", "2", "--report_gbits"),
        "ib_write_bw-both-ways.txt": perftest(found, "ib_write_bw", *chosen, "-b", "-D", "2", "--report_gbits"),
        "ib_write_lat.txt": perftest(found, "ib_write_lat", *chosen, "-n", "200"),
        "ib_write_lat-duration.txt": perftest(found, "ib_write_lat", *chosen, "-D", "2"),
        "ib_write_bw-no-server.txt": first.ssh(
            f"ib_write_bw -d {DEVICES[RAILS[0]]} -F -D 1 {found[1].node.address(0)}", check=False
        ),
    }


def gid(address: str) -> str:
    """The GID of an IPv4 address as sysfs shows it."""
    return f"0000:0000:0000:0000:0000:ffff:{socket.inet_aton(address)[:2].hex()}:{socket.inet_aton(address)[2:].hex()}"


def problems(measured: dict[str, dict[str, Any]], recorded: dict[str, str]) -> list[str]:
    """What is not as it must be with real tools; the figures themselves say nothing here."""
    wrong = []
    figures = (("ib_write_bw", "gbps"), ("ib_write_lat", "microseconds"), ("ib_write_bw_both_ways", "gbps"))
    for node in NODES:
        entries = [entry for entry in measured[node.name]["links"] if entry["test"].startswith("ib_")]
        for rail in RAILS:
            for test, figure in figures:
                mine = [e for e in entries if e["interface"] == rail and e["test"] == test]
                if not mine or not all(entry[figure] for entry in mine):
                    wrong.append(f"{node.name}: {rail}: {test} gave no figure: {mine}")
            if not any(entry.get("at_once") for entry in entries if entry["interface"] == rail):
                wrong.append(f"{node.name}: {rail}: was not measured together with the other rail")
        if measured[node.name]["not_checked"]:
            wrong.append(f"{node.name}: {measured[node.name]['not_checked']}")
    wrong += [f"{name}: empty" for name, text in recorded.items() if not text.strip()]
    return wrong


def lane(keep: bool) -> int:
    require_root()
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        raise LabError(f"missing on this machine: {', '.join(missing)}; run apt-get install {' '.join(missing)}")
    folder = image()
    started = time.monotonic()
    with machines(folder) as found, tempfile.TemporaryDirectory(prefix="tandem-rdma-out-") as name:
        print(f"both machines are up after {time.monotonic() - started:.0f} s", flush=True)
        place = Path(name)
        playbook(found, place)
        print(f"the fabric stage is through after {time.monotonic() - started:.0f} s", flush=True)
        recorded = record(found)
        answers = {node.name: json.loads((place / f"{node.name}.json").read_text()) for node in NODES}
        recorded["fabric_facts.json"] = json.dumps(answers["spark-a"]["facts"], indent=1, sort_keys=True) + "\n"
        measured = {name_: answer["measured"] for name_, answer in answers.items()}
        if not keep:  # no tool printed it
            recorded["measured.json"] = json.dumps(measured, indent=1, sort_keys=True) + "\n"
    output = FIXTURES if keep else ROOT / "tests/output/rdma"
    output.mkdir(parents=True, exist_ok=True)
    for file, text in recorded.items():
        (output / file).write_text(re.sub(r"\r", "", text))
    for node, answer in measured.items():
        for entry in answer["links"]:
            print(f"{node}: {json.dumps(entry)}")
    print(f"outputs are in {output.relative_to(ROOT)}; {time.monotonic() - started:.0f} s without the image")
    wrong = problems(measured, recorded)
    print("\n".join(wrong) or "every rail was measured in both directions, alone and together", flush=True)
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="put the outputs into tests/unit/fixtures/rdma")
    parser.add_argument("--image", action="store_true", help="only build the image")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if options.image:
            require_root()
            print(image())
            return 0
        return lane(options.record)
    except LabError as error:
        print(f"rdma lane: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

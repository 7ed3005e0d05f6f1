# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab itself, on this machine: needs root, boots guests (a minute or two in all, plus the image once)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sparklab import cgroups, host
from sparklab.names import ID_ENV, LAB_DIR, Names

pytestmark = pytest.mark.lab

# Its own labs, beside the demo's and those of another checkout.
ID = f"t{hashlib.sha256(str(Path(__file__).parent).encode()).hexdigest()[:5]}a"
RAILS = {"enp1s0f0np0": 1, "enP2p1s0f0np0": 2}  # device -> subnet 192.168.20N.0/24


class Tool:
    """The command line, under an id of the tests' own."""

    def __init__(self, identifier: str, lab: str) -> None:
        self.names = Names(identifier)
        self.lab = lab
        self.env = {**os.environ, ID_ENV: identifier}

    def __call__(self, verb: str, *words: str, rc: int = 0) -> str:
        argv = [str(LAB_DIR / "lab"), verb, self.lab, *words]
        done = subprocess.run(argv, capture_output=True, text=True, env=self.env, check=False, timeout=600)
        assert done.returncode == rc, f"{argv}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def ssh(self, node: str, command: str, rc: int = 0) -> str:
        return self("ssh", node, command, rc=rc).strip()

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self("status", "--json"))
        return answer

    def link(self, node: str, device: str) -> dict[str, Any]:
        link: dict[str, Any] = self.status()["nodes"][node]["links"][device]
        return link


@pytest.fixture(scope="module")
def pair() -> Iterator[Tool]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    tool = Tool(ID, "pair")
    tool("down")
    tool("up")
    yield tool
    tool("down")
    assert "nothing on this machine" in tool("leftovers")


@pytest.fixture
def cabled(pair: Tool) -> Tool:
    """The pair with both rails configured by hand, as a role would do it."""
    cable_up(pair)
    return pair


def cable_up(pair: Tool) -> None:
    for last, node in enumerate(("spark-a", "spark-b"), start=1):
        pair.ssh(
            node,
            " && ".join(
                f"ip link set {device} mtu 9000 up && ip addr replace 192.168.20{net}.{last}/24 dev {device}"
                for device, net in RAILS.items()
            ),
        )


def ping(pair: Tool, net: int, size: int = 8972, count: int = 1, rc: int = 0) -> str:
    # the first packet after a link came up may be lost to address resolution: -c 1 with a deadline repeats it
    return pair.ssh("spark-a", f"ping -q -M do -s {size} -i 0.2 -c {count} -w 3 192.168.20{net}.2", rc=rc)


# ---- boot ----------------------------------------------------------------------------------------------------------


def test_guests_are_running_without_failed_units(pair: Tool) -> None:
    for node in ("spark-a", "spark-b"):
        assert pair.ssh(node, "systemctl is-system-running; hostname") == f"running\n{node}"


def test_up_twice(pair: Tool) -> None:
    pids = {name: one["pid"] for name, one in pair.status()["nodes"].items()}
    assert "is already up" in pair("up")
    assert {name: one["pid"] for name, one in pair.status()["nodes"].items()} == pids


def test_links_are_down_plain_and_without_address(pair: Tool) -> None:
    pair("kill", "spark-b")
    pair("start", "spark-b")
    for device in RAILS:
        words = pair.ssh("spark-b", f"ip -o link show {device}; ip -o -4 addr show {device}")
        assert "mtu 1500" in words and "state DOWN" in words and "inet" not in words


def test_no_interface_without_cable(pair: Tool) -> None:
    assert "enp1s0f1np1" not in pair.ssh("spark-a", "ls /sys/class/net")


def test_both_rails_carry_jumbo_frames(cabled: Tool) -> None:
    for net in RAILS.values():
        assert "0% packet loss" in ping(cabled, net)


def test_identity(pair: Tool) -> None:
    assert 'DGX_NAME="DGX Spark"' in pair.ssh("spark-a", "cat /etc/dgx-release")
    assert "SERIAL" not in pair.ssh("spark-a", "cat /etc/dgx-release")
    query = "nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv,noheader"
    assert pair.ssh("spark-a", query) == "NVIDIA GB10, 12.1, 580.159.03, [N/A]"
    assert "580.159.03" in pair.ssh("spark-a", "cat /proc/driver/nvidia/version")
    assert pair.ssh("spark-a", "cat /sys/module/nvidia/version") == "580.159.03"


CUDA = """
import ctypes, uuid
cuda = ctypes.CDLL("libcuda.so.1")
number, size, name, raw = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(64), (ctypes.c_char * 16)()
assert cuda.cuDeviceGetCount(ctypes.byref(number)) == 3
start = cuda.cuInit(0)
if start:
    text = ctypes.c_char_p()
    cuda.cuGetErrorName(start, ctypes.byref(text))
    raise SystemExit(text.value.decode())
def attribute(which):
    code = cuda.cuDeviceGetAttribute(ctypes.byref(number), which, 0)
    return number.value if code == 0 else f"error {code}"
cuda.cuDeviceTotalMem_v2(ctypes.byref(size), 0)
cuda.cuDeviceGetName(name, 64, 0)
cuda.cuDeviceGetUuid_v2(raw, 0)
print(name.value.decode(), size.value, uuid.UUID(bytes=raw.raw))
print([attribute(which) for which in (75, 76, 16, 18, 88, 100, 101, 9999)])
"""


def cuda(pair: Tool, node: str, rc: int = 0) -> str:
    return pair.ssh(node, f"python3 -c '{CUDA}'", rc=rc)


def test_libcuda(pair: Tool) -> None:
    gpu = pair.ssh("spark-a", "nvidia-smi --query-gpu=uuid --format=csv,noheader").removeprefix("GPU-")
    assert cuda(pair, "spark-a").splitlines() == [
        f"NVIDIA GB10 128452014080 {gpu}",
        "[12, 1, 48, 1, 1, 1, 0, 'error 1']",
    ]


def test_knobs(pair: Tool) -> None:
    pair("knob", "spark-a", "driver_version=580.95.05", "driver_loaded=580.159.03")
    assert "version mismatch" in pair.ssh("spark-a", "nvidia-smi -L", rc=18)
    assert cuda(pair, "spark-a", rc=1) == "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
    assert pair("knob", "spark-b", "gpu=absent").endswith("gpu=absent\n")
    assert pair.ssh("spark-b", "nvidia-smi", rc=6) == "No devices were found"
    pair("knob", "spark-b", "gpu=present")
    pair("knob", "spark-a", "driver_version=580.159.03")
    for node in ("spark-a", "spark-b"):
        assert pair.ssh(node, "nvidia-smi -L").startswith("GPU 0: NVIDIA GB10")
    assert "no knob 'colour'" in pair("knob", "spark-a", "colour=red", rc=1)


def test_what_services_need_from_systemd(pair: Tool) -> None:
    run = "systemd-run --quiet --wait --pipe --property=DynamicUser=yes --property=LoadCredential=k:/etc/hostname"
    assert pair.ssh("spark-a", f"{run} sh -c 'id -un; cat $CREDENTIALS_DIRECTORY/k'").split()[1] == "spark-a"
    pair.ssh("spark-a", "systemd-run --quiet --on-active=100ms --timer-property=AccuracySec=1ms touch /run/timer-ran")
    assert host.wait_until(lambda: pair.ssh("spark-a", "ls /run | grep -c timer-ran || true") == "1", 10)
    assert pair.ssh("spark-a", "systemctl is-active chrony") == "active"
    assert int(pair.ssh("spark-a", "df --output=size -k /dev/shm | tail -1")) >= 1 << 20


def test_sysctls_of_the_host_are_safe(pair: Tool) -> None:
    keys = {"vm.swappiness": "/proc/sys/vm/swappiness", "net.core.rmem_max": "/proc/sys/net/core/rmem_max"}
    before = {key: Path(file).read_text().strip() for key, file in keys.items()}
    for key, value in before.items():
        other = str(int(value) + 1)
        assert pair.ssh("spark-a", f"sysctl -qw {key}={other} && sysctl -n {key}") == other
        assert Path(keys[key]).read_text().strip() == value


def test_netplan_apply(pair: Tool) -> None:
    plan = "{network: {version: 2, ethernets: {enp1s0f0np0: {addresses: [192.168.209.1/24], mtu: 9000}}}}"
    pair.ssh("spark-a", f"umask 077; echo '{plan}' > /etc/netplan/60-test.yaml; netplan apply")
    try:
        shown = "ip -o addr show enp1s0f0np0; ip -o link show enp1s0f0np0"
        assert host.wait_until(lambda: "192.168.209.1" in pair.ssh("spark-a", shown), 10)
        assert "mtu 9000" in pair.ssh("spark-a", shown)
    finally:
        pair.ssh("spark-a", "rm /etc/netplan/60-test.yaml; netplan apply; ip addr flush dev enp1s0f0np0")


# ---- the inventory, as Ansible reads it ------------------------------------------------------------------------------


def test_ansible_reaches_the_nodes(pair: Tool, tmp_path: Path) -> None:
    script = tmp_path / "lab"
    script.write_text(f'#!/bin/sh\nexec {LAB_DIR}/lab inventory pair "$@"\n')
    script.chmod(0o755)
    ansible = LAB_DIR.parent.parent / ".venv/bin/ansible"
    argv = [str(ansible), "-i", str(script), "spark", "-m", "ping", "-o"]
    done = subprocess.run(argv, capture_output=True, text=True, env=pair.env, check=False, timeout=120)
    assert done.stdout.count("SUCCESS") == 2, done.stdout + done.stderr


# ---- faults, each with its undo ------------------------------------------------------------------------------------


def test_link_down_and_up(cabled: Tool) -> None:
    assert "down, no carrier" in cabled("link", "spark-a", "enp1s0f0np0", "down")
    assert cabled.ssh("spark-b", "cat /sys/class/net/enp1s0f0np0/carrier") == "0"
    assert "0% packet loss" in ping(cabled, 2)  # the other half does not care
    cabled("link", "spark-a", "enp1s0f0np0", "up")
    assert host.wait_until(lambda: cabled.link("spark-b", "enp1s0f0np0")["carrier"], 5)
    cable_up(cabled)
    assert "0% packet loss" in ping(cabled, 1)


def test_unplug_and_plug(cabled: Tool) -> None:
    assert "unplugged" in cabled("link", "spark-a", "enp1s0f0np0", "unplug")
    for node in ("spark-a", "spark-b"):
        assert cabled.ssh(node, "ls /sys/class/net | grep -c enp1s0f0np0 || true") == "0"
    assert "is unplugged" in cabled("link", "spark-b", "enp1s0f0np0", "down", rc=1)
    cabled("link", "spark-b", "enp1s0f0np0", "plug")
    assert cabled.link("spark-a", "enp1s0f0np0") == {
        "plugged": True,
        "up": False,
        "carrier": False,
        "mtu": 1500,
        "faults": {},
    }
    cable_up(cabled)
    assert "0% packet loss" in ping(cabled, 1)


def test_rate(cabled: Tool) -> None:
    cabled("link", "spark-a", "enp1s0f0np0", "rate", "20mbit")
    send = "dd if=/dev/zero bs=1M count=8 status=none | (timeout 20 bash -c 'cat > /dev/tcp/192.168.201.2/5001')"

    def seconds() -> float:
        cabled.ssh(
            "spark-b",
            "systemd-run --quiet --collect --unit=sink python3 -c "
            '\'import socket; s = socket.create_server(("192.168.201.2", 5001)); c, _ = s.accept()\n'
            "while c.recv(1 << 20): pass'",
        )
        host.wait_until(lambda: ":5001" in cabled.ssh("spark-b", "ss -Hltn"), 5)
        began = time.monotonic()
        cabled.ssh("spark-a", send)
        cabled.ssh("spark-b", "while systemctl is-active -q sink; do sleep 0.05; done")
        return time.monotonic() - began

    slow = seconds()
    assert "rate" not in cabled("link", "spark-a", "enp1s0f0np0", "clear")
    fast = seconds()
    assert slow > 2 and slow > fast + 1, (slow, fast)  # 64 Mbit at 20 Mbit/s, less a burst


def test_loss(cabled: Tool) -> None:
    cabled("link", "spark-b", "enp1s0f0np0", "loss", "100")
    assert "100% packet loss" in ping(cabled, 1, rc=1)
    cabled("link", "spark-b", "enp1s0f0np0", "loss", "50")
    lost = re.search(r"([\d.]+)% packet loss", cabled.ssh("spark-a", "ping -q -i 0.01 -c 200 -W 1 192.168.201.2"))
    assert lost and 20 < float(lost.group(1)) < 80
    cabled("link", "spark-b", "enp1s0f0np0", "clear")
    assert "0% packet loss" in ping(cabled, 1, count=5)


def test_mtu(cabled: Tool) -> None:
    assert "mtu 1500" in cabled("link", "spark-b", "enp1s0f0np0", "mtu", "1500")
    # a veth tells the sender at once that the other side drops a frame, and then ping counts nothing as sent
    assert ", 0 received" in ping(cabled, 1, rc=1)
    assert "0% packet loss" in ping(cabled, 1, size=1400)
    assert "mtu 9000" in cabled("link", "spark-b", "enp1s0f0np0", "clear")
    assert "0% packet loss" in ping(cabled, 1)


def test_delay_or_why_not(cabled: Tool) -> None:
    argv = [str(LAB_DIR / "lab"), "link", "pair", "spark-a", "enp1s0f0np0", "delay", "20ms"]
    done = subprocess.run(argv, capture_output=True, text=True, env=cabled.env, check=False)
    if done.returncode:
        assert "no netem" in done.stderr
    else:
        cabled("link", "spark-a", "enp1s0f0np0", "clear")


def test_air_gap(pair: Tool) -> None:
    outside = "192.0.2.77"  # documentation range: never answers, but the way to it tells
    probe = f"python3 -c \"import socket\ns = socket.socket(); s.settimeout(1)\nprint(s.connect_ex(('{outside}', 9)))\""
    gateway = pair.names.gateway
    pair("air", "on")
    try:
        assert pair.ssh("spark-a", probe) in {"101", "113"}  # unreachable, told at once
        assert "0% packet loss" in pair.ssh("spark-a", f"ping -q -c 1 -w 3 {gateway}")
        assert pair.status()["air"] is True
        with subprocess.Popen(["python3", "-m", "http.server", "--bind", gateway, "8123"], stderr=-3, stdout=-3) as web:
            try:
                fetch = f"curl -s -o /dev/null --retry 9 --retry-connrefused -w '%{{http_code}}' http://{gateway}:8123/"
                assert pair.ssh("spark-a", fetch) == "200"
            finally:
                web.terminate()
    finally:
        pair("air", "off")
    assert pair.ssh("spark-a", probe) not in {"101"}


# ---- power ---------------------------------------------------------------------------------------------------------


def test_kill_and_start(cabled: Tool) -> None:
    cabled.ssh("spark-b", "echo kept > /root/kept; sysctl -qw net.ipv4.tcp_keepalive_time=1234")
    cabled.ssh("spark-b", "nft add table inet leftover; sysctl -qw vm.swappiness=7; ip link add br9 type bridge")
    assert cabled("kill", "spark-b") == "spark-b is off\n"
    assert cabled.ssh("spark-a", "cat /sys/class/net/enp1s0f0np0/carrier") == "0"
    assert "is not running" in cabled("exec", "spark-b", "true", rc=1)
    assert "spark-b 1" in cabled("start", "spark-b")
    assert cabled.ssh("spark-b", "cat /root/kept") == "kept"
    # nothing that no role persisted may be back
    assert cabled.ssh("spark-b", "cat /proc/sys/net/ipv4/tcp_keepalive_time") == "7200"
    assert cabled.ssh("spark-b", "sysctl -n vm.swappiness") != "7"
    assert "leftover" not in cabled.ssh("spark-b", "nft list ruleset")
    assert "br9" not in cabled.ssh("spark-b", "ls /sys/class/net")
    assert cabled.link("spark-b", "enp1s0f0np0")["mtu"] == 1500


def test_up_starts_what_is_off(pair: Tool) -> None:
    pair("kill", "spark-a")
    text = pair("up")
    assert "is already up" in text and "spark-a 1" in text and "spark-b 1" not in text


def test_reboot_from_inside(cabled: Tool) -> None:
    cabled("link", "spark-a", "enp1s0f0np0", "rate", "1gbit")
    before = cabled.ssh("spark-a", "cat /proc/sys/kernel/random/boot_id")
    cabled.ssh("spark-a", "systemd-run --quiet --on-active=100ms --timer-property=AccuracySec=1ms systemctl reboot")

    def new_boot() -> bool:
        argv = [str(LAB_DIR / "lab"), "ssh", "pair", "spark-a", "cat /proc/sys/kernel/random/boot_id"]
        done = subprocess.run(argv, capture_output=True, text=True, env=cabled.env, check=False)
        return done.returncode == 0 and done.stdout.strip() != before

    assert host.wait_until(new_boot, 60, 0.3)
    assert cabled.ssh("spark-a", "systemctl is-system-running --wait") == "running"
    one = cabled.link("spark-a", "enp1s0f0np0")
    assert (one["mtu"], one["faults"]) == (1500, {"rate": "1gbit"})  # the cable is as slow as it was
    assert "tbf" in cabled("exec", "spark-a", "tc", "qdisc", "show", "dev", "enp1s0f0np0")
    cabled("link", "spark-a", "enp1s0f0np0", "clear")
    cable_up(cabled)
    assert "0% packet loss" in ping(cabled, 1)


# ---- side by side, and the end -------------------------------------------------------------------------------------


def test_a_second_lab_beside_it(pair: Tool) -> None:
    other = Tool(f"{ID[:-1]}b", "chain4")
    other("down")
    try:
        began = time.monotonic()
        other("up")
        print(f"chain4 up in {time.monotonic() - began:.1f} s")
        assert "is up" in pair("status") and "is up" in other("status")
        assert f"id {ID} belongs to lab pair" in Tool(ID, "chain4")("up", rc=1)
        across = f"ping -q -c 1 -w 1 {pair.names.address(0)}"
        assert "0 received" in other.ssh("spark-a", across, rc=1)  # labs do not reach each other
        assert other.ssh("spark-b", "ls /sys/class/net | grep -c ^enp1s0f") == "2"
    finally:
        other("down")
    assert "nothing on this machine" in other("leftovers")
    assert pair.ssh("spark-a", "hostname") == "spark-a"
    assert Path("/proc/sys/net/ipv4/ip_forward").read_text().strip() == "1"


def test_the_switch_carries_jumbo_frames_on_separate_rails() -> None:
    lab = Tool(f"{ID[:-1]}c", "switch")
    lab("down")
    try:
        lab("up")
        for last, node in ((1, "spark-a"), (4, "spark-d")):
            for device, net in RAILS.items():
                lab.ssh(node, f"ip link set {device} mtu 9000 up; ip addr add 192.168.20{net}.{last}/24 dev {device}")
        for net in RAILS.values():
            command = f"ping -q -M do -s 8972 -c 1 -w 5 192.168.20{net}.4"
            assert "0% packet loss" in lab.ssh("spark-a", command)
    finally:
        lab("down")
    assert "nothing on this machine" in lab("leftovers")


def test_down_after_the_supervisors_died() -> None:
    lab = Tool(f"{ID[:-1]}d", "pair")
    lab("down")
    lab("up")
    for node in ("spark-a", "spark-b"):
        group = cgroups.group(lab.names, node)
        for pid in cgroups.tree_pids(group.path / "lab"):
            if "sparklab.supervisor" in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)
    lab.names.state_file.unlink()  # and without a state file
    assert "network namespace" in lab("leftovers", rc=1)
    lab("down")
    assert "nothing on this machine" in lab("leftovers")


def test_a_failed_up_leaves_nothing() -> None:
    lab = Tool(f"{ID[:-1]}e", "pair")
    lab.env["TANDEM_LAB_TIMEOUT"] = "0.1"
    assert "rolling back" in lab("up", rc=1)
    assert "nothing on this machine" in lab("leftovers")


def test_a_size_limited_disk_runs_full(tmp_path: Path) -> None:
    from sparklab import config, lab

    folder = tmp_path / "labs"
    folder.mkdir()
    (folder / "small.yml").write_text("nodes: {spark-a: {disk_mb: 512, memory_mb: 512, driver_loaded: '580.95.05'}}\n")
    names = Names(f"{ID[:-1]}f")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ID_ENV, names.id)
        patch.setattr(config, "LABS", folder)
        patch.setattr(config.load, "__defaults__", (folder,))
        try:
            lab.up("small")
            _names, one, _state = lab.running_lab("small")
            from sparklab.node import ssh_argv

            def ssh(command: str) -> subprocess.CompletedProcess[str]:
                argv = ssh_argv(names, one.node("spark-a"), command)
                return subprocess.run(argv, capture_output=True, text=True, check=False)

            assert "No space left" in ssh("dd if=/dev/zero of=/big bs=1M count=600").stderr
            assert ssh("rm /big; df -h / | tail -1; nvidia-smi").returncode == 18  # half-upgraded until a reboot
        finally:
            lab.down("small")
    assert lab.leftovers(names) == []

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import socket
import time

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.tandem.spark.plugins.module_utils import _gather_platform
from ansible_collections.tandem.spark.plugins.module_utils._host import Host
from ansible_collections.tandem.spark.plugins.modules import platform_facts

LISTEN = (
    "   0: 0100007F:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0\n"
)


@pytest.fixture
def run(capsys):
    def call(machine, **args):
        with patch_module_args({"root": str(machine.root), **args}), pytest.raises(SystemExit) as stop:
            platform_facts.main()
        result = json.loads(capsys.readouterr().out)
        assert stop.value.code == 0 and result["changed"] is False
        return result["ansible_facts"]["spark_platform"]

    return call


def test_a_healthy_spark(run, spark):
    found = run(spark)
    assert found["is_spark"] is True and found["platform"] == "gb10" and found["contradictions"] == []
    assert found["basis"] == ["pci", "gpu", "product_family", "product_name", "dgx_release", "fastos_release"]
    assert found["vendor"] == "NVIDIA" and found["architecture"] == "aarch64"
    assert found["dgx_os"]["factory"] == "7.2.3" and found["dgx_os"]["ota"] == "7.5.0"
    assert found["kernel_running"] == found["kernel_installed"] == "6.17.0-1021-nvidia"
    assert found["packages"]["held"] == ["nvidia-driver-580-open"]
    assert found["packages"]["installed"]["libnccl2"] == "2.30.7-1+cuda13.0"
    assert (
        "zlib1g" not in found["packages"]["installed"] and "libnvidia-compute-535" not in found["packages"]["installed"]
    )
    assert found["nccl"] == {"installed": True, "version": "2.30.7", "source": "package libnccl2"}
    assert found["glibc"] == "2.39" and found["container_toolkit"] == "1.19.0"
    assert found["time"]["synchronised"] is True and found["time"]["source"] == "chronyc tracking"
    assert abs(found["time"]["epoch_seconds"] - time.time()) < 60
    assert found["unattended_upgrades"]["enabled"] is True
    assert found["unattended_upgrades"]["spares_driver"] == {"nvidia": True, "libnvidia": True, "cuda": True}
    assert [m["name"] for m in found["cpu"]["models"]] == ["Cortex-X925", "Cortex-A725"]
    assert found["earlyoom"]["running"] is False
    assert found["cuda"]["installed"] is False and found["cuda"]["compiles_sm_121a"] is None


def test_no_serial_number_is_returned(run, spark):
    assert "1234567890123" not in json.dumps(run(spark))


def test_nothing_is_there(run, empty_machine):
    found = run(empty_machine)
    assert found["is_spark"] is None and found["platform"] is None
    assert found["architecture"] is None and found["kernel_running"] is None and found["kernel_installed"] is None
    assert found["time"]["synchronised"] is None
    assert found["packages"] == {"installed": None, "held": None, "busy": None}
    assert found["unattended_upgrades"]["enabled"] is None
    assert found["image_replaced"] is None and found["gpu_probe"] == "tool_missing"


def test_x86_that_pretends_to_be_a_spark(run, spark):
    spark.write("/proc/sys/kernel/arch", "x86_64\n")
    found = run(spark)
    assert found["is_spark"] is False and found["platform"] == "other"
    assert "x86_64" in found["contradictions"][0]


@pytest.mark.parametrize(("identity", "kind"), [("0x2e03", "n1x"), ("0x2e06", "n1x")])
def test_the_similar_machine_is_rejected(run, spark, identity, kind):
    spark.write("/sys/devices/pci000f:00/000f:01:00.0/device", identity)
    found = run(spark)
    assert found["is_spark"] is False and found["platform"] == kind


def test_a_replaced_factory_image(run, spark):
    spark.remove("/etc/dgx-release")
    spark.remove("/etc/fastos-release")
    found = run(spark)
    assert found["is_spark"] is True and found["image_replaced"] is True


def test_a_hanging_tool_does_not_hold_it_up(run, spark):
    for tool in ("nvidia-smi", "chronyc", "lscpu"):
        spark.tool(tool, "sleep 60")
    start = time.monotonic()
    found = run(spark, timeout=0.3)
    assert time.monotonic() - start < 3
    assert found["markers"]["gpu"] is None and found["gpu_probe"] == "timeout"
    assert found["is_spark"] is True and found["time"]["synchronised"] is None


def test_time_from_timedatectl(run, spark):
    spark.prints("chronyc", ("*", "chronyc/not-running.txt"), rc=1)
    spark.prints("timedatectl", ("show", "timedatectl/show-synchronised.txt"))
    found = run(spark)["time"]
    assert found["synchronised"] is True and found["source"] == "timedatectl"
    spark.prints("timedatectl", ("show", "timedatectl/no-bus.txt"), rc=1)
    assert run(spark)["time"]["synchronised"] is None


def test_ports_and_who_listens(run, spark):
    with open(spark.path("/proc/net/tcp"), "a", encoding="ascii") as handle:
        handle.write(LISTEN.format(port=8000, inode=4242))
    spark.write("/proc/77/comm", "python3\n")
    spark.write("/proc/77/cgroup", "0::/system.slice/tandem-rank.service\n")
    spark.write("/proc/77/fd/.keep", "")
    spark.link("/proc/77/fd/3", "socket:[4242]")
    assert run(spark, ports=[8000, 8001])["ports"] == [
        {
            "port": 8000,
            "listening": True,
            "process": {"pid": 77, "name": "python3", "unit": "tandem-rank.service"},
        },
        {"port": 8001, "listening": False, "process": None},
    ]


def test_who_listens_is_unknown_to_an_ordinary_user(run, spark):
    with open(spark.path("/proc/net/tcp"), "a", encoding="ascii") as handle:
        handle.write(LISTEN.format(port=8000, inode=4242))
    assert run(spark, ports=[8000])["ports"] == [{"port": 8000, "listening": True, "process": None}]


def test_ports_that_cannot_be_read(run, spark):
    spark.remove("/proc/net/tcp")
    assert run(spark, ports=[8000])["ports"] == [{"port": 8000, "listening": None, "process": None}]


def test_disk_of_a_directory_that_does_not_exist_yet(run, spark):
    entry = run(spark, disk_paths=["/var/lib/tandem/models/x", "/nowhere/at/all"])["disk"]
    assert entry[0]["measured_at"] == "/var/lib/tandem" and entry[0]["exists"] is False
    assert entry[0]["available_bytes"] > 0 and entry[0]["total_bytes"] >= entry[0]["available_bytes"]
    assert entry[1]["measured_at"] == "/" and entry[1]["mount"] == "/"


def test_a_pending_kernel_and_a_reboot(run, spark):
    spark.write("/boot/vmlinuz-6.17.0-1032-nvidia", "")
    spark.write("/run/reboot-required", "")
    spark.write("/run/reboot-required.pkgs", "linux-image-6.17.0-1032-nvidia\nlinux-base\n")
    found = run(spark)
    assert found["kernel_installed"] == "6.17.0-1032-nvidia"
    assert found["reboot_required"] == {"marker": True, "packages": ["linux-image-6.17.0-1032-nvidia", "linux-base"]}


def test_the_kernel_log_is_counted(run, spark, read):
    spark.write("/tmp/previous", read("kernel-log/memdesc.txt") * 3)
    spark.write("/tmp/this", read("kernel-log/cable-hot.txt") + read("kernel-log/27w.txt"))
    spark.tool(
        "journalctl",
        f'case "$*" in *"-b -1"*) cat {spark.path("/tmp/previous")} ;; *) cat {spark.path("/tmp/this")} ;; esac',
    )
    found = run(spark)["kernel_log"]
    assert found["previous_boot"]["memory_allocation_failures"] == 3
    assert found["this_boot"]["cable_high_temperature"] == 1 and found["this_boot"]["memory_allocation_failures"] == 0
    spark.tool("journalctl", "echo '-- No entries --'; exit 1")
    assert run(spark)["kernel_log"] == {"this_boot": None, "previous_boot": None}


def nvcc(machine, directory, version, codes="sm_120\nsm_121", compiles=True, ptxas=True):
    end = "exit 0" if compiles else "echo \"nvcc fatal   : Unsupported gpu architecture 'sm_121a'\" >&2; exit 1"
    machine.tool(
        "x",
        f'case "$1" in --version) echo "Cuda compilation tools, release {version[:4]}, V{version}" ;;'
        f' --list-gpu-code) printf "{codes}\\n" ;; *) {end} ;; esac',
    )
    target = machine.path(f"{directory}/nvcc")
    target.parent.mkdir(parents=True, exist_ok=True)
    machine.path("/usr/bin/x").rename(target)
    end = (
        "exit 0"
        if ptxas
        else "echo \"ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'\" >&2; exit 255"
    )
    machine.tool("x", f'case "$1" in --version) echo "release {version[:4]}, V{version}" ;; *) {end} ;; esac')
    machine.path("/usr/bin/x").rename(target.with_name("ptxas"))


def test_c37_the_newest_compiler_is_chosen_by_its_full_path(run, spark):
    nvcc(spark, "/usr/local/cuda/bin", "13.0.88")
    nvcc(spark, "/usr/bin", "12.0.140", codes="sm_90")
    found = run(spark)["cuda"]
    assert found["nvcc"] == "/usr/local/cuda/bin/nvcc" and found["version"] == "13.0.88"
    assert found["nvcc_on_path"] == "/usr/bin/nvcc"
    assert found["knows_sm_121"] is True and found["compiles_sm_121a"] is True and found["ptxas_knows_sm_121a"] is True


def test_c37_a_compiler_that_does_not_know_the_gpu(run, spark):
    nvcc(spark, "/usr/local/cuda/bin", "12.8.93", codes="sm_100\nsm_120", compiles=False, ptxas=False)
    found = run(spark)["cuda"]
    assert found["version"] == "12.8.93" and found["knows_sm_121"] is False
    assert found["compiles_sm_121a"] is False and found["ptxas_knows_sm_121a"] is False
    assert "sm_121a" in found["message"]


def test_a_compiler_that_hangs_is_neither_good_nor_bad(run, spark):
    nvcc(spark, "/usr/local/cuda/bin", "13.0.88")
    text = spark.path("/usr/local/cuda/bin/nvcc").read_text().replace("exit 0", "sleep 60")
    spark.path("/usr/local/cuda/bin/nvcc").write_text(text)
    assert run(spark, timeout=0.4)["cuda"]["compiles_sm_121a"] is None


def test_compilation_can_be_left_out(run, spark):
    nvcc(spark, "/usr/local/cuda/bin", "13.0.88")
    found = run(spark, compile=False)["cuda"]
    assert found["version"] == "13.0.88" and found["compiles_sm_121a"] is None


@pytest.fixture
def configured(spark):
    spark.write("/etc/environment", 'http_proxy="http://user:secret@proxy.example:3128"\nno_proxy="inside.example"\n')
    spark.write(
        "/etc/apt/sources.list.d/ubuntu.sources", "Types: deb\nURIs: http://ports.example/ubuntu-ports\nSuites: noble\n"
    )
    spark.write(
        "/etc/apt/sources.list.d/cuda.list",
        "deb [signed-by=/x.gpg] https://inside.example/cuda /\n# deb http://no.example x\n",
    )
    spark.write("/etc/pip.conf", "[global]\nindex-url = https://pypi.example/simple\n")
    spark.write(
        "/etc/gitconfig",
        '[url "https://git.example/"]\n\tinsteadOf = https://github.com/\n[http]\n\tproxy = proxy.example:3128\n',
    )
    return spark


def test_addresses_that_do_not_answer(configured):
    asked = []

    def connect(host, port, timeout):
        asked.append((host, port))
        return None if host == "inside.example" else "Connection refused"

    host = Host(str(configured.root), environ={"HOME": "/root"}, connector=connect)
    found = _gather_platform.network(host, _gather_platform.addresses(host, {}), True)
    by_url = {entry["url"]: entry for entry in found}
    assert by_url["http://proxy.example:3128"]["answers"] is False
    assert sorted(by_url["http://proxy.example:3128"]["tools"]) == ["environment", "git"]
    assert by_url["https://inside.example/cuda"]["answers"] is True
    assert by_url["http://ports.example/ubuntu-ports"]["answers"] is None  # behind the proxy
    assert sorted(set(asked)) == [("inside.example", 443), ("proxy.example", 3128)]
    assert "secret" not in json.dumps(found) and "no.example" not in json.dumps(found)


def test_an_address_that_hangs_is_given_up(configured, monkeypatch):
    monkeypatch.setattr(_gather_platform, "CONNECT_SECONDS", -0.8)
    host = Host(str(configured.root), environ={}, connector=lambda *_args: time.sleep(5))
    start = time.monotonic()
    found = _gather_platform.network(host, _gather_platform.addresses(host, {}), True)
    assert time.monotonic() - start < 2
    assert all(entry["answers"] is not True for entry in found)
    assert any("no answer" in str(entry["detail"]) for entry in found)


def test_a_real_connection(spark):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert Host(str(spark.root)).connect("127.0.0.1", port, 1) is None
    assert Host(str(spark.root)).connect("127.0.0.1", port, 1)


def test_mirrors_need_not_be_asked(run, configured):
    assert {entry["answers"] for entry in run(configured, probe_mirrors=False)["network"]} == {None}

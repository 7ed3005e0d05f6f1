# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import itertools

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _gpu, _packages, _platform

NOTHING = dict.fromkeys(
    ("dgx_release", "fastos_release", "pci", "gpu", "product_family", "product_name", "n1x", "jetson")
)


def identify(architecture="aarch64", **markers):
    return _platform.identify({**NOTHING, **markers}, architecture)


def test_c03_dmi_alone_when_nothing_else_can_be_asked():
    assert identify(product_name=True)["is_spark"] is True


def test_c03_nothing_can_be_asked():
    found = identify()
    assert found["is_spark"] is None and found["platform"] is None


def test_c03_in_a_container_without_files_and_tools():
    assert identify(dgx_release=False, fastos_release=False)["is_spark"] is None
    assert identify(dgx_release=False, fastos_release=False, product_name=True)["is_spark"] is True


@pytest.mark.parametrize("product", ["NVIDIA_DGX_Spark", "Dell Pro Max with GB10 FCM1253", "30KL0005GF"])
@pytest.mark.parametrize("vendor", ["NVIDIA", "Dell Inc.", "LENOVO"])
def test_c04_machines_of_other_makers(product, vendor):
    gpu = _platform.gpu_marker("ok", [{"name": "NVIDIA GB10", "compute_capability": "12.1"}])
    named = _platform.equals(product, None, _platform.PRODUCT_NAMES)
    assert identify(gpu=gpu, product_name=named)["platform"] == "gb10"


def test_c04_the_maker_is_a_label():
    vendors = {
        _platform.vendor({"sys_vendor": vendor, "product_name": product, "board_name": None}, None)
        for vendor, product in (
            ("NVIDIA", "NVIDIA_DGX_Spark"),
            ("Dell Inc.", "Dell Pro Max with GB10 FCM1253"),
            ("LENOVO", "30KL0005GF"),
            ("ASUSTeK COMPUTER INC.", "GX10"),
            ("HP", "HP ZGX Nano G1n AI Station"),
        )
    }
    assert vendors == {"NVIDIA", "Dell", "Lenovo", "ASUS", "HP"}
    assert _platform.vendor({"sys_vendor": None, "product_name": "MS-C931"}, None) == "MSI"
    assert _platform.vendor({"sys_vendor": None}, "GX10") == "ASUS"
    assert _platform.vendor({"sys_vendor": "Somebody"}, None) == "Somebody"
    assert _platform.vendor({}, None) is None


def test_c04_a_spark_by_name_on_x86_is_a_contradiction():
    found = identify("x86_64", product_name=True)
    assert found["is_spark"] is False and found["platform"] == "other"
    assert found["contradictions"] == ["product_name say DGX Spark on x86_64"]


def test_two_markers_or_one_of_the_hardware():
    assert identify(pci=True, dgx_release=True)["is_spark"] is True
    assert identify(dgx_release=True, fastos_release=True)["is_spark"] is True
    assert identify(dgx_release=True)["is_spark"] is None  # an image proves little about the machine
    assert identify(pci=True)["is_spark"] is True


def test_an_image_of_a_spark_on_another_machine_is_not_settled():
    found = identify(dgx_release=True, fastos_release=True, pci=False)
    assert found["is_spark"] is None and "pci say otherwise" in found["contradictions"][0]


def test_other_machines():
    assert identify(pci=False, gpu=False)["is_spark"] is False
    assert identify("x86_64")["is_spark"] is False
    for other in ("n1x", "jetson"):
        found = identify(**{other: True, "dgx_release": True, "fastos_release": True})
        assert found["is_spark"] is False and found["platform"] == other and found["contradictions"]


def test_without_an_architecture_nothing_is_settled():
    assert identify(None, pci=True, gpu=True)["is_spark"] is None


def test_no_combination_of_markers_calls_an_unknown_false():
    for values in itertools.product((True, None), repeat=len(NOTHING) - 2):
        markers = dict(zip(NOTHING, (*values, None, None)))
        assert _platform.identify(markers, "aarch64")["is_spark"] is not False


@pytest.mark.parametrize(
    ("state", "devices", "expected"),
    [
        ("ok", [{"name": "NVIDIA GB10", "compute_capability": "12.1"}], True),
        ("ok", [{"name": "NVIDIA GB10", "compute_capability": None}], True),
        ("ok", [{"name": "NVIDIA GB10", "compute_capability": "12.0"}], False),
        ("ok", [{"name": "NVIDIA H200", "compute_capability": "9.0"}], False),
        ("ok", [{"name": None, "compute_capability": "12.1"}], None),
        ("ok", [], None),
        ("no_devices", [], False),
        ("tool_missing", [], None),
        ("timeout", [], None),
        ("version_mismatch", [], None),
    ],
)
def test_what_nvidia_smi_says_about_the_machine(state, devices, expected):
    assert _platform.gpu_marker(state, devices) is expected


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (None, (None, None)),
        ([], (False, False)),
        ([{"id": "10de:2e12"}], (True, False)),
        ([{"id": "10de:2e03"}], (False, True)),
        ([{"id": "10de:2335"}], (False, False)),
    ],
)
def test_what_the_pci_bus_says(devices, expected):
    assert _platform.pci_markers(devices) == expected


@pytest.mark.parametrize(
    ("markers", "expected"),
    [
        ({"pci": True, "dgx_release": False, "fastos_release": False}, True),
        ({"pci": True, "dgx_release": None, "fastos_release": False}, None),
        ({"pci": True, "dgx_release": True, "fastos_release": False}, False),
        ({"pci": None, "dgx_release": False, "fastos_release": False}, None),
    ],
)
def test_a_replaced_image(markers, expected):
    assert _platform.image_replaced({**NOTHING, **markers}) is expected


def test_hw03_two_kinds_of_cores(read):
    found = _platform.lscpu(read("lscpu/gb10.txt"))
    assert found["architecture"] == "aarch64" and found["count"] == 20 and found["aes"] is True
    assert found["models"] == [
        {"name": "Cortex-X925", "cores": 10, "maximum_mhz": 3900.0},
        {"name": "Cortex-A725", "cores": 10, "maximum_mhz": 2808.0},
    ]
    assert _platform.lscpu(None) == {"architecture": None, "count": None, "models": [], "aes": None}


def test_hw04_uname(read):
    assert _platform.uname(read("uname/gb10-tail.txt")) == {"kernel": "6.17.0-1021-nvidia", "architecture": "aarch64"}
    whole = (
        "Linux spark-a 6.17.0-1021-nvidia #21-Ubuntu SMP Wed May 27 19:14:05 UTC 2026 aarch64 aarch64 aarch64 GNU/Linux"
    )
    assert _platform.uname(whole) == {"kernel": "6.17.0-1021-nvidia", "architecture": "aarch64"}
    assert _platform.uname("") == {"kernel": None, "architecture": None}


def test_hw05_release_of_a_founders_edition(read):
    found = _platform.dgx_release(read("dgx-release/founders.txt"))
    assert found["name"] == "DGX Spark" and found["factory"] == "7.2.3" and found["ota"] == "7.5.0"
    assert "1234567890123" not in str(found)


def test_hw06_variants(read):
    found = _platform.dgx_release(read("dgx-release/hp.txt"))
    assert found["name"] == "DGX Spark" and found["platform"] == "HP ZGX Nano G1n AI Station" and found["ota"] is None
    assert _platform.dgx_release(read("dgx-release/two-updates.txt"))["ota"] == "7.5.0"  # the last one counts
    assert _platform.dgx_release(read("dgx-release/two-updates.txt"))["ota_date"].startswith("mer.")


def test_hw07_fastos(read):
    assert _platform.fastos_release(read("fastos-release/oem.txt")) == {
        "name": "DGX SPARK FASTOS",
        "version": "1.91.51",
        "build_type": "customer",
    }


def test_hw11_hw15_kernel_log(read):
    assert _platform.kernel_log(read("kernel-log/memdesc.txt"))["memory_allocation_failures"] == 1
    assert _platform.kernel_log(read("kernel-log/cable-hot.txt"))["cable_high_temperature"] == 1
    assert _platform.kernel_log("") is None and _platform.kernel_log(None) is None


def test_c20_the_message_about_27_watts_is_no_sign(read):
    assert set(_platform.kernel_log(read("kernel-log/27w.txt")).values()) == {0}


def test_hw14_a_compiler_that_does_not_know_the_gpu(read):
    assert _platform.refused_target(read("ptxas/sm_121a-unknown.txt"))
    assert _platform.refused_target("nvcc fatal   : Unsupported gpu architecture 'sm_999'")
    assert not _platform.refused_target("ptxas info : Used 4 registers")


def test_c37_the_compilers(read):
    assert _platform.nvcc_version(read("nvcc/13.0.88.txt")) == "13.0.88"
    assert "sm_121" in _platform.gpu_codes(read("nvcc/list-gpu-code-13.0.txt"))
    assert _platform.gpu_codes("nvcc fatal : Unknown option") is None
    path, full = (
        {"path": "/usr/bin/nvcc", "version": "12.0.140"},
        {"path": "/usr/local/cuda/bin/nvcc", "version": "13.0.88"},
    )
    assert _platform.choose_toolkit([path, full])["path"] == "/usr/local/cuda/bin/nvcc"
    assert _platform.choose_toolkit([{"path": "x", "version": None}]) is None


def test_the_newest_kernel():
    boot = ["vmlinuz-6.17.0-1014-nvidia", "vmlinuz-6.17.0-1021-nvidia", "initrd.img-7.0.0", "vmlinuz.old"]
    assert _platform.kernels(boot, None) == "6.17.0-1021-nvidia"
    assert (
        _platform.kernels(None, {"linux-image-6.17.0-1021-nvidia": {}, "linux-image-generic": {}})
        == "6.17.0-1021-nvidia"
    )
    assert _platform.kernels(None, None) is None


def test_chrony(read):
    found = _platform.chrony(read("chronyc/tracking-synchronised.csv"))
    assert found["synchronised"] is True and found["reference"] == "192.0.2.1" and found["stratum"] == 3
    assert _platform.chrony(read("chronyc/tracking-not-synchronised.csv"))["synchronised"] is False
    for content in (read("chronyc/not-running.txt"), None, "", "a,b,c", "," * 13):
        assert _platform.chrony(content) is None


def test_timedatectl(read):
    assert _platform.timedatectl(read("timedatectl/show-synchronised.txt"))["synchronised"] is True
    assert _platform.timedatectl("NTPSynchronized=no")["synchronised"] is False
    assert _platform.timedatectl(read("timedatectl/no-bus.txt")) is None


@pytest.mark.parametrize(
    ("content", "percent"),
    [
        ('EARLYOOM_ARGS="-r 3600"', 10.0),
        ('EARLYOOM_ARGS="-m 2 -s 80"', 2.0),
        ('EARLYOOM_ARGS="-m2,1"', 2.0),
        ('EARLYOOM_ARGS="-M 400000"', None),
        ('EARLYOOM_ARGS="-m"', None),
        ("# nothing", None),
        (None, None),
    ],
)
def test_earlyoom(content, percent):
    assert _platform.earlyoom(content)["memory_percent"] == percent


def test_listening_ports():
    header = "  sl  local_address rem_address   st\n"
    line = "   1: {address}:1F40 00000000:0000 {state} 0:0 0:0 0 0 0 {inode} 1\n"
    four = header + line.format(address="0100007F", state="0A", inode=11)
    six = header + line.format(address="00000000000000000000000000000000", state="0A", inode=12)
    assert _platform.listening([four, six]) == {8000: ["11", "12"]}
    assert _platform.listening([header + line.format(address="0100007F", state="01", inode=11), None]) == {}
    assert _platform.listening([None, None]) is None
    assert _platform.listening(["nonsense"]) is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://user:secret@proxy.example:3128", ("http://proxy.example:3128", "proxy.example", 3128)),
        ("https://pypi.example/simple?x=1#y", ("https://pypi.example/simple", "pypi.example", 443)),
        ("proxy.example:3128", ("http://proxy.example:3128", "proxy.example", 3128)),
        ('"http://a.example"', ("http://a.example", "a.example", 80)),
        ("http://[2001:db8::1]:80/x", ("http://[2001:db8::1]:80/x", "2001:db8::1", 80)),
        ("file:///srv/mirror", None),
        ("cdrom:[Ubuntu]", None),
        ("mirror+file:/etc/apt/mirrors", None),
        ("git@github.com:", None),
        ("http://[broken", None),
        ("http://a.example:99999", None),
        ("", None),
    ],
)
def test_addresses_to_connect_to(url, expected):
    found = _platform.endpoint(url)
    assert (found and (found["url"], found["host"], found["port"])) == expected


@pytest.mark.parametrize(
    ("host", "exceptions", "expected"),
    [
        ("a.inside.example", "localhost,.inside.example", True),
        ("a.inside.example", "inside.example", True),
        ("a.inside.example", "*.inside.example", True),
        ("outside.example", "inside.example", False),
        ("notinside.example", "inside.example", False),
        ("x.example", "", False),
    ],
)
def test_hosts_that_bypass_the_proxy(host, exceptions, expected):
    assert _platform.bypasses(host, exceptions) is expected


def test_a_disabled_source_is_left_out():
    content = "URIs: http://a.example/x http://b.example/y\nSuites: noble\n\nEnabled: no\nURIs: http://c.example\n"
    assert [s.url for s in _platform.apt_sources("x.sources", content)] == ["http://a.example/x", "http://b.example/y"]


def test_packages(read):
    found = _packages.installed(read("dpkg/status-gb10.txt"), _gpu.is_driver_package)
    assert found == {
        "libnvidia-compute-580": {"version": "580.142-0ubuntu0.24.04.1", "held": False},
        "nvidia-driver-580-open": {"version": "580.142-0ubuntu0.24.04.1", "held": True},
    }
    assert _packages.held(read("dpkg/status-gb10.txt")) == ["nvidia-driver-580-open"]
    assert _packages.installed(None, lambda _n: True) is None and _packages.held("") is None
    assert "cmake" in _packages.installed(read("dpkg/status-gb10.txt"), lambda _n: True)


def test_apt_configuration():
    content = """
// a comment; with "quotes";
APT::Periodic::Enable "1"; # not a comment for apt, ignored here
APT { Periodic { Unattended-Upgrade "1"; }; };
Unattended-Upgrade::Package-Blacklist {
    "nvidia"; // one
    /* "libnvidia"; */
    "cuda-";
};
Acquire::http::Proxy "http://proxy.example:3128//";
Acquire::Languages:: "en";
"""
    found = _packages.apt_configuration([content])
    assert found["apt::periodic::unattended-upgrade"] == ["1"]
    assert found["unattended-upgrade::package-blacklist"] == ["nvidia", "cuda-"]
    assert found["acquire::http::proxy"] == ["http://proxy.example:3128//"]
    assert found["acquire::languages"] == ["en"]
    later = _packages.apt_configuration(
        [content, '#clear Unattended-Upgrade::Package-Blacklist;\nAPT::Periodic::Unattended-Upgrade "0";']
    )
    assert "unattended-upgrade::package-blacklist" not in later
    assert later["apt::periodic::unattended-upgrade"] == ["0"]


@pytest.mark.parametrize(
    ("settings", "present", "enabled"),
    [
        ({"apt::periodic::unattended-upgrade": ["1"]}, True, True),
        ({"apt::periodic::unattended-upgrade": ["1"], "apt::periodic::enable": ["0"]}, True, False),
        ({"apt::periodic::unattended-upgrade": ["0"]}, True, False),
        ({}, True, False),
        ({"apt::periodic::unattended-upgrade": ["1"]}, False, False),
        ({"apt::periodic::unattended-upgrade": ["1"]}, None, True),
        ({}, None, None),
    ],
)
def test_unattended_upgrades(settings, present, enabled):
    assert _packages.unattended_upgrades(settings, present)["enabled"] is enabled


def test_c06_a_broken_pattern_spares_nothing():
    settings = {"unattended-upgrade::package-blacklist": ["nvidia-[", "^libnvidia"]}
    assert _packages.unattended_upgrades(settings, True)["spares_driver"] == {
        "nvidia": False,
        "libnvidia": True,
        "cuda": False,
    }

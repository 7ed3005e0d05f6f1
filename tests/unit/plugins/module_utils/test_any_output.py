# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whatever a tool or a kernel file prints: no parser raises, and nothing that was not told becomes 0 or false."""

from __future__ import annotations

import json
import pathlib

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import (
    _cuda,
    _fabric,
    _gather_fabric,
    _gather_memory,
    _gpu,
    _meminfo,
    _nccl_log,
    _nvidia_smi,
    _packages,
    _platform,
    _values,
    _version,
)
from ansible_collections.tandem.spark.plugins.module_utils._host import Host, Outcome, pci_address
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures"
SILENT = [
    "[N/A]",
    "N/A",
    "[Not Supported]",
    "Not Supported",
    "[Unknown Error]",
    "Unknown Error",
    "",
    " ",
    "[GPU is lost]",
]
MEASURED = (
    "memory_total_bytes",
    "memory_used_bytes",
    "memory_free_bytes",
    "power_draw_watts",
    "power_limit_watts",
    "clock_sm_mhz",
    "clock_memory_mhz",
    "temperature_celsius",
    "utilisation_percent",
    "persistence_mode",
    "compute_capability",
    "memory_unified",
    "integrated",
    "multiprocessors",
)

fixture_texts = st.sampled_from(
    sorted(
        path.read_text(encoding="utf-8")
        for path in FIXTURES.rglob("*")
        if path.is_file() and path.suffix in (".txt", ".csv", ".json") and path.stat().st_size < 20000
    )
)
# recorded outputs, cut off, with pieces of other outputs in them, and plain noise
noise = st.text(max_size=80) | st.sampled_from(SILENT)


@st.composite
def damaged(draw):
    content = draw(fixture_texts)
    start = draw(st.integers(0, len(content)))
    end = draw(st.integers(start, len(content)))
    return content[start:end] + draw(noise) + content[end : end + draw(st.integers(0, 200))]


contents = damaged() | noise | st.none()
outcomes = st.builds(
    Outcome,
    st.sampled_from(["ok", "failed", "missing", "denied", "timeout"]),
    st.none() | st.integers(-15, 255),
    damaged() | noise,
    noise,
    st.none() | st.floats(0, 20),
)
cells = (
    st.sampled_from(SILENT) | st.text(st.characters(blacklist_characters=",\n\r"), max_size=12) | st.integers().map(str)
)

PARSERS = [
    _values.assignments,
    _values.pairs,
    _values.text,
    _values.number,
    _values.integer,
    _values.size,
    _values.truth,
    _version.key,
    _version.debian_upstream,
    _nvidia_smi.query,
    _nvidia_smi.table,
    _nvidia_smi.processes,
    _gpu.nvrm_version,
    _gpu.unit_of,
    _meminfo.parse,
    lambda content: _meminfo.assemble(content, content, 4096, content, True, "x"),
    lambda content: _packages.installed(content, lambda _name: True),
    _packages.held,
    lambda content: _packages.apt_configuration([content or ""]),
    _platform.dgx_release,
    _platform.fastos_release,
    _platform.lscpu,
    _platform.uname,
    _platform.chrony,
    _platform.timedatectl,
    _platform.nvcc_version,
    _platform.gpu_codes,
    lambda content: _platform.listening([content, None]),
    _platform.earlyoom,
    _platform.kernel_log,
    lambda content: _platform.endpoint(content or ""),
    lambda content: _platform.apt_sources("x.sources", content or ""),
    lambda content: _platform.apt_sources("x.list", content or ""),
    lambda content: _platform.pip_settings("x", content or ""),
    lambda content: _platform.git_settings("x", content or ""),
    _fabric.ip_addresses,
    _fabric.ip_routes,
    _fabric.ip_neighbours,
    lambda content: _fabric.route_to(content, "192.168.100.10"),
    _fabric.ibdev2netdev,
    _fabric.rdma_links,
    _fabric.port_state,
    _fabric.link_speed,
    _fabric.nccl_conf,
    _fabric.forward_policy,
    _fabric.packet_filter,
    lambda content: _fabric.gid(0, content, content, content),
    lambda content: _fabric.management(None, None, content),
    lambda content: _fabric.place(content or "", content, content),
    _nccl_log.transport,
    _nccl_log.average_bus_bandwidth,
    _nccl_log.results,
    _gather_memory.pressure,
    pci_address,
]


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: getattr(parser, "__qualname__", "?"))
@settings(max_examples=40, deadline=None)
@given(content=contents)
def test_no_parser_raises(parser, content):
    json.dumps(parser(content), default=str)


@settings(max_examples=150, deadline=None)
@given(row=st.lists(cells, max_size=len(_nvidia_smi.FIELDS) + 2), cut=st.integers(0, 60))
def test_c01_c02_any_mixture_of_cells(row, cut):
    line = ", ".join(["0", "NVIDIA GB10", *row])
    stdout = line[: max(len("0, NVIDIA GB10"), len(line) - cut)]
    found = _gpu.assemble(_gpu.Sources(query=Outcome("ok", 0, stdout), memory_total=None))
    raw = _nvidia_smi.rows(stdout, _nvidia_smi.FIELDS)
    assert found["probe"] in ("ok", "no_devices") and found["count"] in (0, 1)
    for device in found["devices"]:
        assert device["memory_unified"] is True  # the name tells
        assert device["memory_total_bytes"] is None  # /proc/meminfo could not be read
        for field, csv in (
            ("memory_used_bytes", "memory.used"),
            ("power_draw_watts", "power.draw"),
            ("clock_memory_mhz", "clocks.mem"),
            ("persistence_mode", "persistence_mode"),
        ):
            if raw and _values.text(raw[0].get(csv)) is None:
                assert device[field] is None


@settings(max_examples=60, deadline=None)
@given(tokens=st.lists(st.sampled_from(SILENT), min_size=len(_nvidia_smi.FIELDS), max_size=len(_nvidia_smi.FIELDS)))
def test_c02_a_row_of_silence_has_no_value_at_all(tokens):
    row = dict(zip(_nvidia_smi.FIELDS, tokens))
    row.update(index="0", name="NVIDIA X1")
    line = ", ".join(row[field] for field in _nvidia_smi.FIELDS)
    found = _gpu.assemble(_gpu.Sources(query=Outcome("ok", 0, line)))
    assert found["count"] == 1
    for field in MEASURED:
        assert found["devices"][0][field] is None


@settings(max_examples=150, deadline=None)
@given(
    query=outcomes,
    details=outcomes,
    applications=outcomes,
    cuda=outcomes,
    nvrm=contents,
    module=contents,
    links=st.dictionaries(st.text(max_size=10), st.text(max_size=20), max_size=2),
)
def test_c03_c06_any_outcome_of_any_tool(query, details, applications, cuda, nvrm, module, links):
    found = _gpu.assemble(
        _gpu.Sources(
            query=query,
            details=details,
            applications=applications,
            cuda=cuda,
            nvrm=nvrm,
            module=module,
            library_links=links,
        )
    )
    json.dumps(found)
    assert (found["count"] == 0) <= (found["probe"] == "no_devices" or found["cuda_probe"] == "ok")
    if query.state in ("missing", "timeout", "denied"):
        assert found["probe"] in ("tool_missing", "timeout", "denied")
        assert found["compute_processes"] is None
    if found["driver"]["loaded"] is None and found["probe"] != "version_mismatch":
        assert found["driver"]["reboot_required"] is None


answers = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["devices", "attributes", "library", "error", "name", "integrated"]) | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(answer=answers)
def test_any_answer_of_the_cuda_child(answer):
    outcome = Outcome("ok", 0, json.dumps(answer))
    assert _cuda.state(outcome) in ("ok", "failed", "library_missing", "garbage")
    for device in _cuda.devices(outcome):
        assert device["integrated"] in (True, False, None)
    _cuda.driver_api(outcome)
    _cuda.message(outcome)


@settings(max_examples=100, deadline=None)
@given(
    values=st.dictionaries(
        st.sampled_from(
            [
                "MemTotal",
                "MemFree",
                "MemAvailable",
                "Buffers",
                "Cached",
                "Shmem",
                "Mapped",
                "Dirty",
                "SReclaimable",
                "SwapFree",
            ]
        ),
        st.integers(0, 2**40),
    )
)
def test_what_an_engine_may_take_is_never_more_than_there_is(values):
    found = _meminfo.engine_share(values, True)
    if found["now_bytes"] is None:
        assert "MemFree" not in values
    if found["after_drop_caches_bytes"] is not None:
        assert found["after_drop_caches_bytes"] >= found["now_bytes"]
        if "MemAvailable" in values:
            assert found["after_drop_caches_bytes"] <= max(values["MemAvailable"], values["MemFree"])
    assert _meminfo.engine_share(values, None)["now_bytes"] is None


@settings(max_examples=100, deadline=None)
@given(
    markers=st.fixed_dictionaries(
        {
            name: st.sampled_from([True, False, None])
            for name in (
                "dgx_release",
                "fastos_release",
                "pci",
                "gpu",
                "product_family",
                "product_name",
                "n1x",
                "jetson",
            )
        }
    ),
    architecture=st.sampled_from(["aarch64", "arm64", "x86_64", None]),
)
def test_c03_c04_the_verdict_needs_evidence(markers, architecture):
    found = _platform.identify(markers, architecture)
    hardware = [name for name in _platform.HARDWARE_MARKERS if markers[name]]
    if found["is_spark"] is True:
        assert architecture in ("aarch64", "arm64") and not markers["n1x"] and not markers["jetson"]
        assert len(found["basis"]) >= 2 or hardware
    if found["is_spark"] is False:
        assert (
            architecture == "x86_64"
            or markers["n1x"]
            or markers["jetson"]
            or markers["pci"] is False
            or markers["gpu"] is False
        )
    assert (found["platform"] == "gb10") == (found["is_spark"] is True)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(
        st.sampled_from(["carrier", "mtu", "speed", "flags", "phys_port_name", "carrier_down_count"]), unique=True
    ),
    content=noise,
)
def test_c05_any_content_of_sysfs(spark, names, content):
    for name in names:
        spark.path(f"/sys/class/net/enp1s0f0np0/{name}").write_text(content, encoding="utf-8", errors="replace")
    found = _gather_fabric.interface(Host(str(spark.root), environ={}), "enp1s0f0np0", None)
    json.dumps(found)
    assert found["carrier"] in (True, False, None) and found["addresses"] is None
    for name in names:
        if _values.text(content) is None and name in ("carrier", "carrier_down_count"):
            assert found[name] is None

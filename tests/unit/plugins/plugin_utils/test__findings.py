# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import json

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _advisories, _findings, _review_group, _review_node
from ansible_collections.tandem.spark.plugins.plugin_utils._catalogue import CATALOGUE, SEVERITIES
from ansible_collections.tandem.spark.plugins.plugin_utils._review import NOT_IN_THE_RUN

GIB = 1024**3
GB = 1000**3


def plan(**changes):
    """A deployment as the deployment module builds it, on one cable."""
    found = {
        "name": "glm",
        "head": "spark-a",
        "engine": {"name": "sglang", "version": "0.5.23", "python": "3.12", "environment": {}},
        "memory": {"minimum_total_bytes": 110 * GIB, "minimum_available_bytes": 90 * GIB},
        "tensor_parallel": 2,
        "api": {"address": "192.0.2.10", "port": 8000},
        "serve": {"rendezvous_port": 25000},
        "root": "/var/lib/tandem",
        "disk_needed_bytes": {"/var/lib/tandem": 200 * GB},
        "nodes": [
            {
                "name": name,
                "rank": rank,
                "address": f"192.0.2.{number}",
                "links": [
                    {"interface": "enp1s0f0np0", "address": f"192.168.100.{number}/24"},
                    {"interface": "enP2p1s0f0np0", "address": f"192.168.101.{number}/24"},
                ],
            }
            for rank, (name, number) in enumerate((("spark-a", 10), ("spark-b", 11)))
        ],
    }
    found.update(changes)
    return found


@pytest.fixture
def pair(healthy):
    return {"spark-a": healthy(10), "spark-b": healthy(11)}


def put(facts, path, value):
    *parents, last = path.split(".")
    for part in parents:
        facts = facts[int(part)] if isinstance(facts, list) else facts[part]
    facts[last] = value


def ids(found, severity=None):
    return [f.id for f in found if f.waived is None and severity in (None, f.severity)]


def one(found, id_):
    (finding,) = [f for f in found if f.id == id_]
    return finding


def test_a_healthy_pair_has_nothing_to_say(pair):
    assert _findings.findings(pair, plan()) == []


def test_a_healthy_single_node(healthy):
    deployment = plan(nodes=[plan()["nodes"][0] | {"links": []}])
    assert _findings.findings({"spark-a": healthy()}, deployment) == []


def test_a_node_left_out_by_limit_is_not_told_to_check_its_cable(pair):
    left_out = {**pair, "spark-b": {"unreachable": NOT_IN_THE_RUN}}
    finding = one(_findings.findings(left_out, plan()), "node.unreachable")
    assert "without --limit" in finding.remedy and "cable" not in finding.remedy


def test_every_part_of_the_deployment_is_optional(pair):
    for deployment in (None, {}, {"recipe": {}}, {"nodes": []}, {"recipe": {"engine": {"name": "vllm"}}}):
        assert ids(_findings.findings(pair, deployment), "blocked") == []


def test_nothing_is_changed_in_the_facts(pair):
    before = copy.deepcopy(pair)
    _findings.findings(pair, plan())
    assert pair == before


def test_a_node_that_cannot_be_reached_is_named_with_the_reason(pair):
    for silent in (None, "Connection timed out", {"unreachable": "Connection timed out"}):
        found = _findings.findings({**pair, "spark-b": silent}, plan())
        finding = one(found, "node.unreachable")
        assert finding.nodes == ("spark-b",) and finding.blocks
        assert finding.found == ("Connection timed out" if silent else "no reason given")


def test_facts_that_are_missing_block(pair):
    del pair["spark-b"]["spark_fabric"]
    finding = one(_findings.findings(pair, plan()), "node.facts_missing")
    assert finding.nodes == ("spark-b",) and "spark_fabric" in finding.found
    found = _findings.findings({"spark-a": {}}, plan(nodes=[]))
    assert ids(found, "blocked") == ["node.facts_missing", "disk.unknown"]


def test_the_number_of_nodes_must_fit(pair):
    finding = one(_findings.findings(pair, {"recipe": {"name": "four", "nodes": 4}}), "node.count")
    assert "2 nodes" in finding.found and "4 nodes for recipe four" in finding.wanted


# -- lockstep ---------------------------------------------------------------------------------------------------------

DIFFERENT = {
    "spark_gpu.driver.loaded": "580.126.09",
    "spark_gpu.driver.installed": "580.126.09",
    "spark_platform.kernel_running": "6.17.0-1014-nvidia",
    "spark_platform.kernel_installed": "6.17.0-1014-nvidia",
    "spark_platform.dgx_os.ota": "7.4.0",
    "spark_platform.firmware.bios_version": "5.36_0ACUM018",
    "spark_platform.glibc": "2.36",
    "spark_platform.container_toolkit": "1.20.0",
    "spark_platform.cuda.version": "13.1.20",
    "spark_platform.nccl.version": "2.28.9",
    "spark_engine.digest": "sha256:bbbb",
}


@pytest.mark.parametrize("rule", _review_group.LOCKSTEP, ids=lambda rule: rule.id)
def test_each_lockstep_field_names_both_nodes_and_both_values(pair, rule):
    for facts in pair.values():
        facts["spark_engine"] = {"digest": "sha256:aaaa"}
    ours = _advisories.value(pair["spark-a"], rule.fact)
    put(pair["spark-b"], rule.fact, DIFFERENT[rule.fact])
    finding = one(_findings.findings(pair, plan()), rule.id)
    assert finding.severity == rule.severity and finding.nodes == ("spark-a", "spark-b")
    assert f"{ours} on spark-a" in finding.found and f"{DIFFERENT[rule.fact]} on spark-b" in finding.found


@pytest.mark.parametrize("rule", _review_group.LOCKSTEP, ids=lambda rule: rule.id)
def test_each_lockstep_field_that_is_unknown_is_not_checked_and_never_differs(pair, rule):
    for facts in pair.values():
        facts["spark_engine"] = {"digest": "sha256:aaaa"}
    put(pair["spark-b"], rule.fact, None)
    if rule.fallback:
        put(pair["spark-b"], rule.fallback, None)
    if rule.absent:
        put(pair["spark-b"], rule.absent, None)
    found = _findings.findings(pair, plan())
    assert rule.id not in ids(found)
    note = one(found, "preflight.not_checked")
    assert f"{rule.what} in lockstep (spark-b)" in note.found and note.severity == "note"


@pytest.mark.parametrize(
    ("path", "value", "id_"),
    [
        ("spark_gpu.devices.0.vbios", "9A.0B.1E.00.00", "gpu.vbios_lockstep"),
        ("spark_fabric.rdma_devices.rocep1s0f0.firmware", "28.44.1000", "fabric.firmware_lockstep"),
    ],
)
def test_firmware_in_lockstep(pair, path, value, id_):
    put(pair["spark-b"], path, value)
    finding = one(_findings.findings(pair, plan()), id_)
    assert value in finding.found and finding.severity == "slow"


@pytest.mark.parametrize("fact", ["spark_platform.firmware.bios_version", "spark_gpu.devices.0.vbios"])
def test_firmware_is_compared_within_a_maker_only(pair, fact):
    put(pair["spark-b"], fact, "something else")
    put(pair["spark-b"], "spark_platform.vendor", "ASUS")
    assert ids(_findings.findings(pair, plan())) == []


def test_installed_on_one_node_only_is_a_difference(pair):
    put(pair["spark-b"], "spark_platform.nccl", {"installed": False, "version": None, "source": None})
    finding = one(_findings.findings(pair, plan()), "nccl.lockstep")
    assert "2.30.7 on spark-a" in finding.found and "not installed on spark-b" in finding.found


def test_the_same_number_in_two_spellings_is_no_difference(pair):
    put(pair["spark-a"], "spark_gpu.driver.loaded", "580.142")
    put(pair["spark-b"], "spark_gpu.driver.loaded", "580.142.00")
    assert "gpu.driver_lockstep" not in ids(_findings.findings(pair, plan()))


def test_flavours_of_one_kernel_are_a_difference(pair):
    put(pair["spark-b"], "spark_platform.kernel_running", "6.17.0-1021-nvidia-64k")
    assert "platform.kernel_lockstep" in ids(_findings.findings(pair, plan()))


def test_four_nodes_in_one_pass(healthy):
    nodes = {f"spark-{letter}": healthy(10 + number) for number, letter in enumerate("abcd")}
    put(nodes["spark-c"], "spark_gpu.driver.loaded", "580.95.05")
    finding = one(_findings.findings(nodes, {}), "gpu.driver_lockstep")
    assert finding.found == "loaded driver 580.142 on spark-a, spark-b and spark-d, 580.95.05 on spark-c"
    assert "the newest is 580.142" in finding.wanted


def test_c06_a_driver_half_upgraded_on_one_node(pair):
    put(pair["spark-a"], "spark_gpu.probe", "version_mismatch")
    pair["spark-a"]["spark_gpu"]["driver"].update(loaded="580.126.09", installed="580.142", reboot_required=True)
    finding = one(_findings.findings(pair, plan()), "gpu.driver_reboot_required")
    assert finding.blocks and finding.nodes == ("spark-a",)
    assert "580.126.09" in finding.found and "580.142" in finding.found


def test_c06_a_pair_with_two_healthy_drivers(pair):
    pair["spark-b"]["spark_gpu"]["driver"].update(loaded="580.126.09", installed="580.126.09")
    pair["spark-b"]["spark_gpu"]["devices"][0]["gsp_firmware"] = "580.126.09"
    found = _findings.findings(pair, plan())
    finding = one(found, "gpu.driver_lockstep")
    assert ids(found) == ["gpu.driver_lockstep", "gpu.driver_installed_lockstep"]
    for text in ("spark-a", "spark-b", "580.142", "580.126.09"):
        assert text in finding.found


@pytest.mark.parametrize(
    ("minimum", "loaded", "blocks"),
    [
        ("590.48", "580.159.03", True),
        ("580.126", "580.9", True),
        ("590.48", "590.48.00", False),
        ("580.126", "580.142", False),
    ],
)
def test_c07_the_engine_needs_a_newer_driver(healthy, minimum, loaded, blocks):
    facts = healthy()
    facts["spark_gpu"]["driver"].update(loaded=loaded, installed=loaded)
    deployment = {"recipe": {"engine": {"name": "sglang", "minimum_driver": minimum}}}
    found = _findings.findings({"spark-a": facts}, deployment)
    assert ("gpu.driver_below_minimum" in ids(found)) is blocks
    if blocks:
        finding = one(found, "gpu.driver_below_minimum")
        assert finding.nodes == ("spark-a",) and loaded in finding.found and minimum in finding.wanted


# -- one node ---------------------------------------------------------------------------------------------------------


def alone(facts, deployment=None, **keywords):
    return _findings.findings({"spark-a": facts}, deployment or {}, **keywords)


def test_c02_unknown_memory_is_not_zero(healthy):
    facts = healthy()
    put(facts, "spark_memory.total_bytes", None)
    finding = one(alone(facts, plan(nodes=[])), "memory.unknown")
    assert finding.found == "memory total unknown on spark-a" and finding.blocks
    assert "memory.below_plan" not in ids(alone(facts, plan(nodes=[])))


def test_c03_a_missing_tool_is_named(healthy):
    facts = healthy()
    put(facts, "spark_gpu.probe", "tool_missing")
    put(facts, "spark_gpu.compute_processes", None)
    found = alone(facts)
    assert "nvidia-smi" in one(found, "gpu.tool_missing").found
    assert "platform.not_a_spark" not in ids(found)


def test_c03_a_machine_that_cannot_be_identified(healthy):
    facts = healthy()
    facts["spark_platform"].update(is_spark=None, platform=None, basis=[], contradictions=[])
    found = alone(facts)
    assert "platform.unidentified" in ids(found, "blocked") and "platform.not_a_spark" not in ids(found)


def test_c04_x86_that_pretends_to_be_a_spark_gets_one_finding(healthy):
    facts = healthy()
    facts["spark_platform"].update(is_spark=False, platform="other", architecture="x86_64")
    found = alone(facts)
    assert ids(found) == ["platform.architecture"]
    assert "x86_64" in found[0].found and "DGX Spark" in found[0].found


def test_c04_a_lab_node_passes_with_one_waiver(healthy):
    facts = healthy()
    facts["spark_platform"].update(is_spark=False, platform="other", architecture="x86_64")
    found = alone(facts, waivers={"platform.architecture": "virtual Sparks have the processor of their host"})
    assert _findings.blocking(found) == []
    assert found[0].waived == "virtual Sparks have the processor of their host"


@pytest.mark.parametrize("kind", ["n1x", "jetson", "other"])
def test_another_machine(healthy, kind):
    facts = healthy()
    facts["spark_platform"].update(is_spark=False, platform=kind, basis=[])
    assert ids(alone(facts), "blocked") == ["platform.not_a_spark"]


@pytest.mark.parametrize(
    ("probe", "id_"),
    [
        ("timeout", "gpu.timeout"),
        ("tool_missing", "gpu.tool_missing"),
        ("driver_not_loaded", "gpu.driver_not_loaded"),
        ("no_devices", "gpu.none"),
        ("garbage", "gpu.probe_failed"),
        ("failed", "gpu.probe_failed"),
        ("denied", "gpu.probe_failed"),
        ("not_permitted", "gpu.probe_failed"),
    ],
)
def test_every_way_in_which_nvidia_smi_fails_has_its_finding(healthy, probe, id_):
    facts = healthy()
    facts["spark_gpu"].update(probe=probe, count=None, devices=[], compute_processes=None)
    facts["spark_gpu"]["probe_detail"].update(state=probe, seconds=10.0, message="text of the tool")
    finding = one(alone(facts), id_)
    assert finding.blocks and "nvidia-smi" in finding.found or id_ == "gpu.none"


def test_a_hanging_tool_is_named_with_its_time(healthy):
    facts = healthy()
    facts["spark_gpu"].update(probe="timeout", devices=[], compute_processes=None)
    facts["spark_gpu"]["probe_detail"].update(seconds=10.003)
    assert "nvidia-smi gave no answer within 10" in one(alone(facts), "gpu.timeout").found


@pytest.mark.parametrize("state", ["library_missing", "timeout", "crashed", "failed", "garbage"])
def test_the_cuda_library(healthy, state):
    facts = healthy()
    facts["spark_gpu"].update(cuda_probe=state)
    assert state in one(alone(facts), "gpu.cuda_library").found


# (path, value, id, severity): one thing is wrong on one node, and one finding says so
ONE_THING = [
    ("spark_platform.image_replaced", True, "platform.image_replaced", "slow"),
    ("spark_platform.kernel_installed", "6.17.0-1032-nvidia", "platform.kernel_pending", "slow"),
    ("spark_platform.reboot_required.marker", True, "platform.reboot_pending", "slow"),
    ("spark_platform.python.headers", False, "platform.python_headers", "note"),
    ("spark_platform.time.synchronised", False, "time.not_synchronised", "slow"),
    ("spark_platform.unattended_upgrades.spares_driver.nvidia", False, "upgrades.unattended", "slow"),
    ("spark_platform.packages.busy", ["apt-get"], "upgrades.busy", "slow"),
    ("spark_platform.cuda.version", "12.8.93", "cuda.toolkit_too_old", "blocked"),
    ("spark_platform.cuda.version", "12.9.41", "cuda.toolkit_aged", "note"),
    ("spark_platform.cuda.compiles_sm_121a", False, "cuda.cannot_compile", "blocked"),
    ("spark_platform.cuda.ptxas_knows_sm_121a", False, "cuda.cannot_compile", "blocked"),
    (
        "spark_platform.kernel_log",
        {"previous_boot": {"memory_allocation_failures": 2}},
        "memory.previous_wedge",
        "note",
    ),
    (
        "spark_platform.network",
        [
            {
                "kind": "proxy",
                "url": "http://p:1",
                "tools": ["apt"],
                "sources": ["apt.conf"],
                "answers": False,
                "detail": "x",
            }
        ],
        "network.proxy_unreachable",
        "slow",
    ),
    (
        "spark_platform.network",
        [
            {
                "kind": "mirror",
                "url": "http://m",
                "tools": ["pip"],
                "sources": ["pip.conf"],
                "answers": False,
                "detail": "x",
            }
        ],
        "network.mirror_unreachable",
        "slow",
    ),
    ("spark_gpu.devices.0.compute_capability", "12.0", "gpu.capability", "blocked"),
    ("spark_gpu.devices.0.gsp_firmware", "580.95.05", "gpu.gsp_mismatch", "blocked"),
    (
        "spark_gpu.disagreements",
        [{"field": "compute_capability", "device": 0, "values": {"nvidia-smi": "12.1", "CUDA driver API": "12.0"}}],
        "gpu.sources_disagree",
        "slow",
    ),
    (
        "spark_gpu.compute_processes",
        [{"pid": 7, "name": "python3", "used_memory_bytes": GIB, "unit": "docker-1.scope"}],
        "gpu.other_processes",
        "blocked",
    ),
    ("spark_gpu.driver.reboot_required", True, "gpu.driver_reboot_required", "blocked"),
    ("spark_memory.total_bytes", 100 * GIB, "memory.below_plan", "blocked"),
    ("spark_memory.available_bytes", 50 * GIB, "memory.below_plan", "blocked"),
    ("spark_memory.free_bytes", 60 * GIB, "memory.page_cache", "note"),
    ("spark_memory.buddy.large_free_bytes", GIB, "memory.fragmented", "note"),
    ("spark_memory.swap_total_bytes", 0, "memory.no_swap", "note"),
    ("spark_memory.cma", {"exceeds": True, "excess_bytes": 9961472 * 1024}, "memory.cma_exceeds_total", "slow"),
]


@pytest.mark.parametrize(
    ("path", "value", "id_", "severity"), ONE_THING, ids=[f"{e[2]}-{n}" for n, e in enumerate(ONE_THING)]
)
def test_one_thing_wrong_is_one_finding(healthy, path, value, id_, severity):
    facts = healthy()
    put(facts, path, value)
    found = alone(facts, plan(nodes=[]))
    assert id_ in ids(found, severity)
    assert set(ids(found)) - {id_} <= {"memory.total_unusual"}
    finding = one(found, id_)
    assert finding.nodes == ("spark-a",) and finding.found and finding.wanted and finding.remedy and finding.source


@pytest.mark.parametrize("total", [100 * GIB, 192 * GIB])
def test_memory_that_no_spark_has(healthy, total):
    facts = healthy()
    put(facts, "spark_memory.total_bytes", total)
    assert "memory.total_unusual" in ids(alone(facts), "slow")


def test_c09_the_reserve_of_kexec_handover(pair):
    cma = {"exceeds": True, "excess_bytes": 9961472 * 1024, "kho_option": None, "cmdline_known": True}
    for facts in pair.values():
        facts["spark_memory"]["cma"] = dict(cma)
    finding = one(_findings.findings(pair, plan()), "memory.cma_exceeds_total")
    assert finding.found == "CmaFree exceeds CmaTotal by 9.5 GiB" and finding.blocks  # RDMA registration fails
    assert one(alone(pair["spark-a"]), "memory.cma_exceeds_total").severity == "slow"
    pair["spark-a"]["spark_memory"]["cma"]["kho_option"] = "off"
    assert ids(alone(pair["spark-a"])) == []


def test_memory_is_not_judged_while_our_own_engine_has_it(healthy):
    facts = healthy()
    put(facts, "spark_memory.available_bytes", 5 * GIB)
    put(facts, "spark_memory.free_bytes", 2 * GIB)
    unit = "tandem-rank.service"
    facts["spark_gpu"]["compute_processes"] = [{"pid": 7, "name": "sglang", "used_memory_bytes": GIB, "unit": unit}]
    facts["spark_platform"]["ports"] = [
        {"port": 8000, "listening": True, "process": {"pid": 7, "name": "sglang", "unit": unit}}
    ]
    found = alone(facts, plan(nodes=[]))
    assert set(ids(found)) <= {"preflight.not_checked", "memory.fragmented"}


def test_another_program_with_its_memory_and_unit(healthy):
    facts = healthy()
    facts["spark_gpu"]["compute_processes"] = [
        {"pid": 7, "name": None, "used_memory_bytes": None, "unit": None},
        {"pid": 8, "name": "VLLM::EngineCore", "used_memory_bytes": 89093 * 1024**2, "unit": "docker-1.scope"},
    ]
    finding = one(alone(facts), "gpu.other_processes")
    assert finding.found == "unnamed (pid 7), VLLM::EngineCore (pid 8, 87.0 GiB, docker-1.scope)"


@pytest.mark.parametrize(
    ("running", "percent", "expected"),
    [(True, 10.0, True), (True, 2.0, False), (False, 10.0, False), (None, 10.0, False), (True, None, False)],
)
def test_earlyoom(healthy, running, percent, expected):
    facts = healthy()
    facts["spark_platform"]["earlyoom"].update(running=running, memory_percent=percent)
    assert ("memory.earlyoom" in ids(alone(facts))) is expected


def test_c37_the_floor_of_the_compiler():
    for version, state in (
        ("12.8.93", "too_old"),
        ("12.9", "aged"),
        ("12.9.41", "aged"),
        ("13.0.88", "ok"),
        (None, None),
    ):
        assert _review_node.toolkit_state(version) == state


def test_c37_the_compiler_on_the_path_is_older(healthy):
    facts = healthy()
    facts["spark_platform"]["cuda"].update(
        nvcc_on_path="/usr/bin/nvcc",
        candidates=[
            {"path": "/usr/local/cuda/bin/nvcc", "version": "13.0.88"},
            {"path": "/usr/bin/nvcc", "version": "12.0.140"},
        ],
    )
    finding = one(alone(facts), "cuda.path_nvcc")
    assert finding.severity == "note" and "/usr/bin/nvcc (12.0.140)" in finding.found
    assert "/usr/local/cuda/bin/nvcc" in finding.wanted


@pytest.mark.parametrize(
    ("engine", "expected"), [("sglang", True), ("vllm", True), ("llama.cpp", False), (None, False)]
)
def test_a_missing_compiler_matters_to_engines_that_compile(healthy, engine, expected):
    facts = healthy()
    facts["spark_platform"]["cuda"].update(installed=False, version=None, nvcc=None, compiles_sm_121a=None)
    found = alone(facts, {"engine": {"name": engine}})
    assert ("cuda.toolkit_missing" in ids(found)) is expected


@pytest.mark.parametrize(
    ("wanted", "available", "expected"),
    [
        ("3.12", ["3.12"], False),
        ("3.12.3", ["3.12"], False),
        ("3.11", ["3.12"], True),
        ("3.11", ["3.11", "3.12"], False),
    ],
)
def test_the_python_of_the_engine(healthy, wanted, available, expected):
    facts = healthy()
    facts["spark_platform"]["python"]["available"] = available
    found = alone(facts, {"engine": {"name": "sglang", "python": wanted}})
    assert ("platform.python_version" in ids(found)) is expected


def disk(path, mount, available):
    return {"path": path, "exists": False, "mount": mount, "total_bytes": 10**12, "available_bytes": available}


def test_two_directories_on_one_file_system_need_their_sum(healthy):
    facts = healthy()
    facts["spark_platform"]["disk"] = [disk("/a", "/", 300 * GB), disk("/b", "/", 300 * GB)]
    assert ids(alone(facts, {"disk_needed_bytes": {"/a": 150 * GB, "/b": 149 * GB}})) == []
    finding = one(alone(facts, {"disk_needed_bytes": {"/a": 200 * GB, "/b": 150 * GB}}), "disk.too_little")
    assert "300.0 GB" in finding.found and "350.0 GB for /a and /b" in finding.wanted


def test_room_that_is_not_known_blocks_as_unknown(healthy):
    facts = healthy()
    facts["spark_platform"]["disk"] = [disk("/a", None, None)]
    assert ids(alone(facts, {"disk_needed_bytes": {"/a": 1}}), "blocked") == ["disk.unknown"]
    assert ids(alone(facts, {"disk_needed_bytes": {"/a": 0}})) == []


def test_a_port_that_is_taken(pair):
    for facts in pair.values():
        facts["spark_platform"]["ports"][0] = {
            "port": 8000,
            "listening": True,
            "process": {"pid": 9, "name": "nginx", "unit": "nginx.service"},
        }
    finding = one(_findings.findings(pair, plan()), "ports.in_use")
    assert finding.nodes == ("spark-a",)  # only the head opens the port of the API
    assert "nginx (pid 9, nginx.service)" in finding.found and "8000" in finding.found


def test_a_port_that_could_not_be_asked_is_not_checked(pair):
    pair["spark-a"]["spark_platform"]["ports"] = []
    found = _findings.findings(pair, plan())
    assert ids(found) == ["preflight.not_checked"]
    assert "port 8000 (api) (spark-a)" in found[0].found


def test_ports_of_the_contract(pair):
    assert _findings.findings(pair, {"ports": {"api": 8000, "metrics": {"port": 25000, "nodes": ["spark-b"]}}}) == []


# -- clocks -----------------------------------------------------------------------------------------------------------


def test_clocks_are_compared_through_the_controller(pair):
    for name, ahead in (("spark-a", 0.0), ("spark-b", 12.0)):
        pair[name]["spark_platform"]["time"]["epoch_seconds"] = 1000.4 + ahead
        pair[name]["collected"] = {"before": 1000.0, "after": 1001.0}
    finding = one(_findings.findings(pair, plan()), "time.skew")
    assert finding.blocks and finding.found == "spark-b is at least 11.0 s ahead of spark-a"


def test_slow_gathering_proves_no_difference(pair):
    for name, seen in (("spark-a", 1000.2), ("spark-b", 1019.0)):
        pair[name]["spark_platform"]["time"]["epoch_seconds"] = seen
        pair[name]["collected"] = {"before": 1000.0, "after": 1020.0}
    assert _findings.findings(pair, plan()) == []


# -- advisories -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {
                "spark_platform.kernel_running": "7.0.0-1019-nvidia",
                "spark_platform.kernel_installed": "7.0.0-1019-nvidia",
            },
            {"advisory.kernel_7_kho"},
        ),
        (
            {
                "spark_platform.kernel_running": "7.0.0-1019-nvidia",
                "spark_platform.kernel_installed": "7.0.0-1019-nvidia",
                "spark_memory.cma.kho_option": "off",
            },
            set(),
        ),
        (
            {"spark_platform.kernel_installed": "7.0.0-1019-nvidia"},
            {"advisory.kernel_7_pending", "platform.kernel_pending"},
        ),
        (
            {
                "spark_platform.kernel_running": "7.0.0-1019-nvidia",
                "spark_platform.kernel_installed": "7.0.0-1019-nvidia",
                "spark_memory.cma.kho_option": "off",
                "spark_gpu.driver.loaded": "580.178.04",
                "spark_gpu.devices.0.gsp_firmware": "580.178.04",
            },
            {"advisory.kernel_freeze"},
        ),
        (
            {
                "spark_platform.kernel_running": "6.11.0-1016-nvidia",
                "spark_platform.kernel_installed": "6.11.0-1016-nvidia",
            },
            {"advisory.kernel_slow_mmap"},
        ),
        (
            {"spark_gpu.driver.loaded": "595.58.03", "spark_gpu.devices.0.gsp_firmware": "595.58.03"},
            {"advisory.driver_series"},
        ),
        (
            {"spark_gpu.driver.loaded": "580.159.03", "spark_gpu.devices.0.gsp_firmware": None},
            {"advisory.driver_580_159"},
        ),
        ({"spark_platform.nccl.version": "2.29.7"}, {"advisory.nccl_2_29_7"}),
        ({"spark_gpu.driver.loaded": None}, set()),
        ({"spark_platform.kernel_running": None}, {"preflight.not_checked"}),
    ],
)
def test_advisories(pair, changes, expected):
    for facts in pair.values():
        for path, value in changes.items():
            put(facts, path, value)
    found = _findings.findings(pair, plan())
    assert set(ids(found)) == expected
    for finding in found:
        if finding.id.startswith("advisory."):
            assert (
                finding.nodes == ("spark-a", "spark-b")
                and "None" not in finding.found
                and "http" in finding.source + "http"
            )


def test_an_advisory_about_rdma_does_not_concern_one_node(healthy):
    facts = healthy()
    put(facts, "spark_platform.kernel_running", "7.0.0-1019-nvidia")
    put(facts, "spark_platform.kernel_installed", "7.0.0-1019-nvidia")
    assert "advisory.kernel_7_kho" not in ids(alone(facts))


def test_advisories_are_complete_data():
    for advisory in _advisories.ADVISORIES:
        assert {"id", "severity", "title", "when", "found", "wanted", "remedy", "source"} <= set(advisory)
        assert advisory["severity"] in SEVERITIES and advisory["when"]
        for condition in advisory["when"]:
            assert len(set(condition) & {"series", "not_series", "below", "is", "is_not"}) == 1


# -- waivers and the report -------------------------------------------------------------------------------------------


def test_a_waiver_takes_the_block_away_and_stays_visible(healthy):
    facts = healthy()
    put(facts, "spark_gpu.driver.loaded", "595.58.03")
    put(facts, "spark_gpu.devices.0.gsp_firmware", "595.58.03")
    for waivers in (
        {"advisory.driver_series": " needed here "},
        [{"id": "advisory.driver_series", "reason": "needed here"}],
    ):
        found = alone(facts, waivers=waivers)
        finding = one(found, "advisory.driver_series")
        assert finding.waived == "needed here" and not finding.blocks and finding.severity == "blocked"
        assert found[-1] is finding and _findings.blocking(found) == []
        assert _findings.summary(found)["waived"] == 1


@pytest.mark.parametrize(
    ("waivers", "id_"),
    [
        ({"gpu.nonsense": "a reason"}, "preflight.waiver_unknown"),
        ({"preflight.not_checked": "a reason"}, "preflight.waiver_unknown"),
        ({"gpu.timeout": ""}, "preflight.waiver_without_reason"),
        ({"gpu.timeout": None}, "preflight.waiver_without_reason"),
        ({"gpu.timeout": True}, "preflight.waiver_without_reason"),
        ({"gpu.timeout": "a reason"}, "preflight.waiver_unused"),
    ],
)
def test_waivers_that_do_nothing_are_told(healthy, waivers, id_):
    assert ids(alone(healthy(), waivers=waivers)) == [id_]


def test_a_waiver_without_a_reason_does_not_count(healthy):
    facts = healthy()
    put(facts, "spark_gpu.devices.0.compute_capability", "9.0")
    assert "gpu.capability" in [f.id for f in _findings.blocking(alone(facts, waivers={"gpu.capability": "  "}))]


def test_the_worst_comes_first(pair):
    put(pair["spark-a"], "spark_memory.swap_total_bytes", 0)
    put(pair["spark-a"], "spark_platform.packages.busy", ["apt"])
    put(pair["spark-b"], "spark_gpu.devices.0.compute_capability", "9.0")
    found = _findings.findings(pair, plan())
    assert [f.severity for f in found] == ["blocked", "slow", "note"]
    assert _findings.summary(found) == {
        "blocked": 1,
        "slow": 1,
        "note": 1,
        "waived": 0,
        "blocking_ids": ["gpu.capability"],
    }


def test_the_same_on_both_nodes_is_one_finding(pair):
    for facts in pair.values():
        put(facts, "spark_memory.swap_total_bytes", 0)
    assert one(_findings.findings(pair, plan()), "memory.no_swap").nodes == ("spark-a", "spark-b")


def test_findings_are_plain_data(pair):
    put(pair["spark-b"], "spark_gpu.driver.loaded", "580.95.05")
    data = json.loads(json.dumps([f.as_dict() for f in _findings.findings(pair, plan())]))
    assert set(data[0]) == {"id", "severity", "nodes", "found", "wanted", "remedy", "source", "waived", "title"}


def test_ids_are_stable_names_with_a_title_and_a_source():
    for id_, (title, source) in CATALOGUE.items():
        area, _dot, name = id_.partition(".")
        assert area.isalpha() and name.replace("_", "").isalnum() and id_ == id_.lower()
        assert title and source and len(id_) <= 36

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from ansible_collections.tandem.spark.plugins.plugin_utils import _deployment, _engines, _rank, _recipe
from ansible_collections.tandem.spark.plugins.plugin_utils._engines import _common, llama_cpp, sglang, vllm
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[4]


def test_flags_in_the_order_given():
    words = _common.flags({"b": 2, "a": "x y", "on": True, "list": [1, 2], "zero": 0, "part": 0.75})
    assert words == ["--b", "2", "--a", "x y", "--on", "--list", "1", "2", "--zero", "0", "--part", "0.75"]


def test_a_flag_set_to_nothing_is_absent():
    assert _common.flags({"a": None, "b": False, "c": "", "d": []}) == []


@pytest.mark.parametrize("value", [{}, {"a": 1}, [[1]], [None], [True], [{}]], ids=repr)
def test_flags_that_cannot_be_rendered(value):
    with pytest.raises(_common.ArgumentError, match="cuda-graph-bs"):
        _common.flags({"cuda-graph-bs": value})


@pytest.mark.parametrize("name", ["--dtype", "-d", "a b", "a=b", "", "a\nb"])
def test_names_that_are_no_flags(name):
    with pytest.raises(_common.ArgumentError):
        _common.flags({name: 1})


@given(
    st.dictionaries(st.text(max_size=8), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4))
)
def test_only_argument_errors_for_anything(arguments):
    try:
        words = _common.flags(arguments)
    except _common.ArgumentError:
        return
    assert all(isinstance(word, str) and word for word in words if word.startswith("--")) and "" not in words[:1]


def test_c13_an_environment_variable_set_to_nothing_is_absent():
    assert _common.settings({"A": None, "B": "", "C": 0, "D": "x"}) == {"C": "0", "D": "x"}
    for value in (True, [], {}):
        with pytest.raises(_common.ArgumentError, match="quotes"):
            _common.settings({"A": value})


@pytest.mark.parametrize("flag", sglang.OWNED)
def test_flags_that_follow_from_the_inventory(make_recipe, flag):
    recipe = _recipe.validate(make_recipe(engine__arguments={flag: "x"}), "here")
    assert any(flag in problem and "small" in problem for problem in sglang.problems(recipe))


def test_what_else_is_refused(make_recipe):
    recipe = _recipe.validate(
        make_recipe(engine__lock=None, engine__arguments={"page-size": {}}, engine__rank_environment=[{"A": True}, {}]),
        "here",
    )
    problems = sglang.problems(recipe)
    assert "lock" in problems[0] and "page-size" in problems[1]
    recipe["engine"]["arguments"] = {}
    assert "environment A" in sglang.problems(recipe)[1]


NAMES = ("OWNED", "BACKENDS", "TENSOR_PARALLEL", "STOP_S", "METRICS", "LOG_LINES", "problems", "by_layers", "rank")


@pytest.mark.parametrize("engine", _engines.ADAPTERS)
def test_every_adapter_has_the_whole_interface(engine):
    adapter = _engines.ADAPTERS[engine]
    assert [name for name in NAMES if not hasattr(adapter, name)] == []
    assert adapter.METRICS["path"].startswith("/")
    assert (
        0
        < adapter.STOP_S
        <= yaml.safe_load((ROOT / "roles/serve/defaults/main.yml").read_text())["serve_stop_timeout_s"]
    )
    assert engine in (ROOT / "docs/engines.md").read_text(encoding="utf-8")


# --- what each engine refuses

SHA = "a" * 64
LAUNCH = {"program": "/opt/serve", "sha256": SHA, "head": ["{rank}"], "worker": ["{rank}"], "key_variable": "KEY"}


@pytest.fixture
def problems(make_recipe):
    def problems_(engine, **changes):
        recipe = make_recipe(engine__name=engine, **changes)
        return _engines.problems(_recipe.validate(recipe, "here"))

    return problems_


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize(
    ("heads", "size", "words"),
    [
        ([64], 3, ("found 3", "64 attention heads", "owner/Model")),
        ([96, 64], 3, ("64 attention heads",)),
        ([96], 3, None),
        ([64, 96], 2, None),
        ([], 3, ("found 3", "1, 2, 4 or 8", "attention_heads")),
        ([], 4, None),
    ],
)
def test_c58_a_size_that_does_not_divide_the_heads(problems, engine, heads, size, words):
    found = problems(engine, nodes=size, model__attention_heads=heads)
    assert bool(found) is bool(words)
    for word in words or ():
        assert word in found[0]


def test_c58_layers_are_shared_by_any_number_of_nodes(problems):
    assert problems("llama_cpp", nodes=3, model__file="a.gguf", model__attention_heads=[64]) == []


def test_an_engine_that_nobody_knows(problems):
    (found,) = problems("trtllm")
    assert "'trtllm'" in found and "sglang, vllm" in found


@pytest.mark.parametrize("flag", vllm.OWNED)
def test_vllm_flags_that_follow_from_the_inventory(problems, flag):
    assert flag in problems("vllm", engine__arguments={flag: "x"})[0]


@pytest.mark.parametrize("flag", llama_cpp.OWNED)
def test_llama_cpp_flags_that_follow_from_the_inventory(problems, flag):
    assert flag in problems("llama_cpp", engine__arguments={flag: "x"}, model__file="a.gguf")[0]


@pytest.mark.parametrize(
    ("engine", "changes", "words"),
    [
        ("vllm", {"engine__backend": "uni"}, ("engine.backend", "'uni'", "mp, ray")),
        ("sglang", {"engine__backend": "ray"}, ("engine.backend", "'ray'", "none")),
        ("vllm", {"engine__helper_arguments": {"num-cpus": 1}}, ("helper_arguments", "ray start")),
        ("vllm", {"engine__backend": "ray", "nodes": 1}, ("one node", "mp")),
        ("vllm", {"engine__lock": None}, ("engine.lock",)),
        ("llama_cpp", {"engine__lock": None, "model__file": "a.gguf"}, ("engine.lock",)),
        ("llama_cpp", {}, ("model.file", "none", "GGUF")),
        ("llama_cpp", {"model__file": "../a.gguf"}, ("model.file", "../a.gguf")),
        ("llama_cpp", {"model__file": "a.safetensors"}, ("model.file",)),
        ("llama_cpp", {"model__file": "a.gguf", "engine__helper_arguments": {"-t": 1}}, ("-t",)),
        ("external", {}, ("engine.launch", "found none")),
    ],
)
def test_what_an_engine_refuses(problems, engine, changes, words):
    (found,) = problems(engine, **changes)
    for word in ("small", *words):
        assert word in found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"head": ["--model", "<MODEL>"]}, ("head", "placeholder '<MODEL>'")),
        ({"worker": ["CHANGEME"]}, ("worker", "CHANGEME")),
        ({"program": "<PROGRAM>"}, ("program", "<PROGRAM>")),
        ({"sha256": "<SHA256>"}, ("sha256", "<SHA256>")),
        ({"sha256": "abc"}, ("sha256", "'abc'", "64 hex")),
        ({"program": "bin/serve"}, ("absolute path", "bin/serve")),
        ({"head": ["{modle}"]}, ("{modle}", "model")),
        ({"head": []}, ("head", "no words")),
        ({"worker": []}, ("worker", "no words")),
        ({"key_variable": ""}, ("key_variable", "key_file_flag")),
        ({"key_file_flag": "--key"}, ("key_variable", "key_file_flag")),
        ({"head": ['{"method": "mtp"}']}, None),
    ],
)
def test_what_an_external_engine_refuses(problems, change, words):
    found = problems("external", engine__launch={**LAUNCH, **change}, engine__lock=None)
    assert len(found) == (1 if words else 0), found
    for word in words or ():
        assert word in found[0]


def test_a_placeholder_left_in_the_environment(problems):
    (found,) = problems("external", engine__launch=LAUNCH, engine__environment={"NET_IF": "<INTERFACE>"})
    assert "environment NET_IF" in found and "<INTERFACE>" in found


def test_an_external_engine_says_how_it_splits():
    recipe = {"engine": {"name": "external", "launch": {"split": "layers"}}}
    assert _engines.by_layers(recipe)
    recipe["engine"]["launch"]["split"] = "tensors"
    assert not _engines.by_layers(recipe) and not _engines.by_layers({"engine": {"name": "nobody"}})


# --- known lines


@pytest.mark.parametrize(
    ("engine", "line", "word"),
    [
        ("sglang", "DistStoreError: Timed out after 21 seconds waiting for clients. 1/2 clients joined.", "rendezvous"),
        ("vllm", "DistStoreError: Timed out after 21 seconds waiting for clients. 1/2 clients joined.", "rendezvous"),
        ("vllm", "ValueError: current platform cpu does not support ray.", "mp"),
        ("vllm", "World size (2) is larger than the number of available GPUs (1) in this node.", "one node"),
        ("llama_cpp", "Remote RPC server crashed or returned malformed response", "RPC server ended"),
    ],
)
def test_known_lines_are_explained_once(engine, line, word):
    (found,) = _engines.explain(engine, f"a\n{line}\n{line}\nb")
    assert word in found


@pytest.mark.parametrize(
    ("engine", "line"),
    [
        ("sglang", "The server is fired up and ready to roll!"),
        ("sglang", "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1912896, KV size: 14.37 GB"),
        ("vllm", "INFO:     Application startup complete."),
        ("vllm", "GPU KV cache size: 12,345 tokens"),
        ("llama_cpp", "load_tensors: RPC0[10.77.0.2:50052] model buffer size = 74.30 MiB"),
        ("llama_cpp", "0.01.427.812 I srv  llama_server: listening on http://10.95.93.11:8000"),
    ],
)
def test_known_lines_that_are_no_trouble(engine, line):
    assert any(each.pattern.search(line) for each in _engines.ADAPTERS[engine].LOG_LINES)
    assert _engines.explain(engine, line) == [] and _engines.explain("nobody", line) == []


# --- ranks


def specification(build, make_recipe, links, name, **changes):
    deployment, found = build(links, make_recipe(nodes=len(links), **changes))
    assert found == []
    fabric = {"interfaces": {link[0]: {"rdma_device": f"rdma-{link[0]}"} for link in links[name]}}
    return _rank.specification(deployment, name, fabric, "a-key-of-sixteen-or-more")


def ranks(build, make_recipe, links, **changes):
    return [specification(build, make_recipe, links, name, **changes) for name in links]


def test_c39_vllm_ranks_advertise_their_own_fabric_address(build, make_recipe, pair_links):
    found = ranks(build, make_recipe, pair_links, engine__name="vllm")
    assert [rank["environment"]["VLLM_HOST_IP"] for rank in found] == ["192.168.100.10", "192.168.100.11"]
    alone = specification(build, make_recipe, {"spark-a": []}, "spark-a", engine__name="vllm")
    assert "VLLM_HOST_IP" not in alone["environment"] and "--nnodes" not in alone["argv"]


def test_c45_only_the_head_has_an_api(build, make_recipe, pair_links):
    for backend in ("mp", "ray"):
        head, worker = ranks(build, make_recipe, pair_links, engine__name="vllm", engine__backend=backend)
        assert head["http"]["health"] == "/health" and worker["http"] is None
        assert "--host" in head["argv"] and "--host" not in worker["argv"]
        assert head["key"] and worker["key"] is None
    assert "--headless" not in head["argv"]
    assert "--headless" in ranks(build, make_recipe, pair_links, engine__name="vllm")[1]["argv"]


def test_c46_every_ray_node_has_its_own_fabric_address(build, make_recipe, pair_links):
    head, worker = ranks(build, make_recipe, pair_links, engine__name="vllm", engine__backend="ray")
    for words, address in ((head["beside"][0], "192.168.100.10"), (worker["argv"], "192.168.100.11")):
        assert words[words.index("--node-ip-address") + 1] == address
        assert words[words.index("--num-gpus") + 1] == "1"
    assert worker["wait_for"] == ["192.168.100.10:6379"]
    assert head["argv"][1:4] == [
        "/usr/local/libexec/tandem-ray",
        "192.168.100.10:6379",
        "192.168.100.10,192.168.100.11",
    ]


def test_c12_ray_gives_nothing_of_the_heads_node_to_a_worker(build, make_recipe, pair_links):
    changes = {"engine__rank_environment": [{"MINE": "1"}, {"MINE": "2"}]}
    head, _worker = ranks(build, make_recipe, pair_links, engine__name="vllm", engine__backend="ray", **changes)
    stays = set(head["files"]["vllm/ray_non_carry_over_env_vars.json"])
    own = {name for name, value in head["environment"].items() if "enp1s0" in value or value == "192.168.100.10"}
    assert own and own <= stays
    assert {"VLLM_API_KEY", "MINE", "NCCL_IB_HCA", "GLOO_SOCKET_IFNAME"} <= stays


def test_c48_rpc_servers_listen_on_the_fabric_only_and_have_two_names(build, make_recipe, pair_links):
    changes = {"engine__name": "llama_cpp", "model__file": "m.gguf"}
    head, worker = ranks(build, make_recipe, pair_links, **changes)
    assert worker["argv"][worker["argv"].index("--host") + 1] == "192.168.100.11"
    assert [Path(name).name for name in (worker["argv"][0], *worker["also"])] == ["ggml-rpc-server", "rpc-server"]
    assert head["argv"][head["argv"].index("--rpc") + 1] == "192.168.100.11:25000" == head["wait_for"][0]
    assert "0.0.0.0" not in json.dumps([head, worker])
    # One build: both programs come from the same environment, whose digest is compared between nodes.
    assert Path(head["argv"][0]).parent == Path(worker["argv"][0]).parent


def test_external_templates_are_filled_from_each_node(build, make_recipe, pair_links):
    words = ["{rank}", "{nodes}", "{fabric_ip}", "{head_ip}", "{rendezvous_ip}:{rendezvous_port}", "{worker_ips}"]
    launch = {**LAUNCH, "head": words, "worker": [*words, "{interface}", "{rdma_devices}", '{"a": 1}']}
    changes = {"engine__name": "external", "engine__launch": launch, "engine__environment": {"IP": "{fabric_ip}"}}
    head, worker = ranks(build, make_recipe, pair_links, **changes)
    assert head["argv"] == [
        "/opt/serve", "0", "2", "192.168.100.10", "192.168.100.10", "192.168.100.10:25000", "192.168.100.11"
    ]  # fmt: skip
    assert worker["argv"][1:4] == ["1", "2", "192.168.100.11"]
    assert worker["argv"][-3:] == ["enp1s0f0np0", "rdma-enp1s0f0np0,rdma-enP2p1s0f0np0", '{"a": 1}']
    assert worker["environment"]["IP"] == "192.168.100.11"
    assert head["key"] == {"variable": "KEY"} and worker["key"] is None


def test_an_open_chain_carries_llama_cpp_and_no_other(build, make_recipe):
    links = {f"spark-{letter}": [] for letter in "abcd"}
    recipe = {"nodes": 4, "model__file": "m.gguf", "engine__launch": LAUNCH}
    cables = [["spark-a.1", "spark-b.0"], ["spark-b.1", "spark-c.0"], ["spark-c.1", "spark-d.0"]]
    nodes = [{"name": name, "address": f"192.0.2.{number}", "cables": cables} for number, name in enumerate(links, 11)]
    for engine in _engines.ADAPTERS:
        data = _recipe.validate(make_recipe(engine__name=engine, **recipe), "here")
        found = _deployment.build("spark", nodes, data)[1]
        assert (found == []) is (engine == "llama_cpp"), (engine, found)
        if found:
            assert "an open chain" in found[0] and "llama.cpp over RPC" in found[0]

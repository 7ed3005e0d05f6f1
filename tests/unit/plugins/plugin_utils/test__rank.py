# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import itertools
import json

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _rank

KEY = "a-key-of-sixteen-or-more"


def facts(**devices):
    return {"interfaces": {name: {"rdma_device": device} for name, device in devices.items()}}


FABRIC = facts(enp1s0f0np0="rocep1s0f0", enP2p1s0f0np0="roceP2p1s0f0", wlP9s9=None)


def rank(deployment, name, fabric=None):
    return _rank.specification(deployment, name, fabric or FABRIC, KEY)


def flag(argv, name):
    return argv[argv.index(name) + 1]


def test_the_two_ranks_of_a_pair(pair):
    head, worker = rank(pair, "spark-a"), rank(pair, "spark-b")
    for node, spec in enumerate((head, worker)):
        assert spec["argv"][:3] == [f"{pair['engine']['path']}/venv/bin/python", "-m", "sglang.launch_server"]
        assert flag(spec["argv"], "--node-rank") == str(node)
        assert flag(spec["argv"], "--nnodes") == flag(spec["argv"], "--tp-size") == "2"
        assert flag(spec["argv"], "--model-path") == pair["model"]["path"]
    assert flag(head["argv"], "--host") == "192.0.2.11"
    assert flag(worker["argv"], "--host") == "127.0.0.1"
    assert head["http"]["health"] == "/health" and worker["http"] is None
    assert worker["wait_for_address"] == "192.168.100.11"


def test_c12_crossed_ports(build):
    deployment, problems = build(
        {
            "spark-a": [("enp1s0f0np0", "192.168.100.10/24"), ("enP2p1s0f0np0", "192.168.101.10/24")],
            "spark-b": [("enp1s0f1np1", "192.168.100.11/24"), ("enP2p1s0f1np1", "192.168.101.11/24")],
        }
    )
    assert problems == []
    own = facts(
        enp1s0f1np1="rocep1s0f1", enP2p1s0f1np1="roceP2p1s0f1", enp1s0f0np0="rocep1s0f0", enP2p1s0f0np0="roceP2p1s0f0"
    )
    spec = rank(deployment, "spark-b", own)
    environment = spec["environment"]
    assert environment["NCCL_IB_HCA"] == "=rocep1s0f1,roceP2p1s0f1"  # C21: both halves of the cage
    assert environment["GLOO_SOCKET_IFNAME"] == "enp1s0f1np1"
    assert "f0np0" not in json.dumps(spec) and "s0f0" not in json.dumps(spec)


def test_c12_a_worker_that_lists_its_rails_the_other_way_round(build, pair_links):
    pair_links["spark-b"].reverse()
    environment = rank(build(pair_links)[0], "spark-b")["environment"]
    assert environment["GLOO_SOCKET_IFNAME"] == "enp1s0f0np0"
    assert environment["SGLANG_HOST_IP"] == "192.168.100.11"


def test_c13_no_gid_index_key(pair):
    for name in ("spark-a", "spark-b"):
        assert "NCCL_IB_GID_INDEX" not in _rank.text(rank(pair, name))


def test_c13_a_recipe_that_sets_it_to_nothing(build, make_recipe, pair_links):
    recipe = make_recipe(
        engine__environment={"NCCL_IB_GID_INDEX": None, "NCCL_DEBUG": ""},
        engine__rank_environment=[{"NCCL_IB_GID_INDEX": ""}, {}],
    )
    environment = rank(build(pair_links, recipe)[0], "spark-a")["environment"]
    assert "NCCL_IB_GID_INDEX" not in environment and "NCCL_DEBUG" not in environment


def test_c18_exact_name_for_nccl_and_bare_name_for_gloo(pair):
    environment = rank(pair, "spark-a")["environment"]
    assert environment["NCCL_SOCKET_IFNAME"] == "=enp1s0f0np0"
    assert environment["GLOO_SOCKET_IFNAME"] == environment["TP_SOCKET_IFNAME"] == "enp1s0f0np0"


def test_c19_with_rdma_it_fails_closed_and_without_it_says_nothing(pair):
    assert rank(pair, "spark-a")["environment"]["NCCL_NET"] == "IB"
    for fabric in ({}, {"interfaces": None}, facts(enp1s0f0np0=None)):
        environment = _rank.specification(pair, "spark-a", fabric, KEY)["environment"]
        assert not {"NCCL_NET", "NCCL_IB_HCA"} & set(environment)
    assert "NCCL_NET" not in _rank.specification(pair, "spark-a", None, KEY)["environment"]


def test_c39_each_rank_advertises_its_own_fabric_address(pair):
    found = [rank(pair, name)["environment"]["SGLANG_HOST_IP"] for name in ("spark-a", "spark-b")]
    assert found == ["192.168.100.10", "192.168.100.11"]


def test_c39_one_node_has_none_of_it(build):
    spec = rank(build({"spark-a": []})[0], "spark-a")
    assert not [name for name in spec["environment"] if name.startswith(("NCCL", "GLOO", "SGLANG", "TP_", "UCX"))]
    assert not {"--nnodes", "--node-rank", "--dist-init-addr"} & set(spec["argv"])
    assert spec["wait_for_address"] is None


def test_c40_both_ranks_meet_on_the_fabric(pair):
    for name in ("spark-a", "spark-b"):
        assert flag(rank(pair, name)["argv"], "--dist-init-addr") == "192.168.100.10:25000"


def test_c51_the_key_stands_nowhere_and_its_digest_with_the_head_only(pair):
    head, worker = rank(pair, "spark-a"), rank(pair, "spark-b")
    for entry in [*_rank.files(pair, head, "tandem"), *_rank.files(pair, worker, "tandem")]:
        assert KEY not in json.dumps(entry)
    assert head["key_sha256"] == hashlib.sha256(KEY.encode()).hexdigest()
    assert head["key"] == {"config_flag": "--config", "config_key": "api-key"}
    assert "--api-key" not in head["argv"]
    assert worker["key"] is None and worker["key_sha256"] is None


def test_a_new_key_is_another_configuration_of_the_head_only(pair):
    digests = [
        [_rank.digest(_rank.specification(pair, name, FABRIC, key)) for key in (KEY, KEY + "2")]
        for name in ("spark-a", "spark-b")
    ]
    assert digests[0][0] != digests[0][1] and digests[1][0] == digests[1][1]


def test_the_environment_of_the_recipe_and_of_the_rank(build, make_recipe, pair_links):
    recipe = make_recipe(
        engine__environment={"MAX_JOBS": 2, "A": "all"}, engine__rank_environment=[{"A": "head"}, {"B": "worker"}]
    )
    deployment, problems = build(pair_links, recipe)
    assert problems == []
    assert [rank(deployment, n)["environment"].get("A") for n in ("spark-a", "spark-b")] == ["head", "all"]
    assert rank(deployment, "spark-b")["environment"]["MAX_JOBS"] == "2"


def test_the_digest_is_that_of_the_file(pair):
    entries = {entry["path"]: entry for entry in _rank.files(pair, rank(pair, "spark-b"), "tandem")}
    text = next(entry["content"] for path, entry in entries.items() if path.endswith("/rank.json"))
    assert _rank.digest(rank(pair, "spark-b")) == hashlib.sha256(text.encode()).hexdigest()
    assert json.loads(text)["deployment"] == pair["digest"]


def test_another_unit_or_launcher_is_another_configuration(pair):
    digests = {
        _rank.digest(_rank.specification(pair, "spark-b", FABRIC, KEY, parts))
        for parts in (
            {},
            {"unit": "a", "launcher": "b"},
            {"unit": "b", "launcher": "a"},
            {"unit": "a", "launcher": "c"},
        )
    }
    assert len(digests) == 4
    one = _rank.specification(pair, "spark-b", FABRIC, KEY, {"launcher": "b", "unit": "a"})
    assert _rank.digest(one) == _rank.digest(
        _rank.specification(pair, "spark-b", FABRIC, KEY, {"unit": "a", "launcher": "b"})
    )


def test_the_pointer_is_switched_last(pair):
    entries = _rank.files(pair, rank(pair, "spark-a"), "tandem")
    assert entries[-1] == {
        "path": "/var/lib/tandem/current",
        "state": "link",
        "target": entries[0]["path"],
        "keep": "/var/lib/tandem/previous",
    }
    assert entries[0]["path"].endswith(f"small-{_rank.digest(rank(pair, 'spark-a'))[:12]}")


def test_rdma_devices():
    assert _rank.rdma_devices(None) == {} == _rank.rdma_devices({})
    assert _rank.rdma_devices(FABRIC)["wlP9s9"] is None


# --- C42: half a group


def state(kind):
    return {
        "same": {"active": True, "running": "g", "wanted": "g"},
        "other": {"active": True, "running": "f", "wanted": "g"},
        "unnoted": {"active": True, "running": None, "wanted": "g"},
        "absent": {"active": False, "running": None, "wanted": "g"},
    }[kind]


KINDS = ("same", "other", "unnoted", "absent")


@pytest.mark.parametrize(("head", "worker"), list(itertools.product(KINDS, KINDS)))
def test_c42_the_group_is_judged_as_a_whole(pair, head, worker):
    found = _rank.group_action({"spark-a": state(head), "spark-b": state(worker)}, pair)
    assert found["restart"] is ((head, worker) != ("same", "same"))
    if not found["restart"]:
        assert found["stop"] == [] == found["reasons"]
        return
    running = [name for name, kind in (("spark-a", head), ("spark-b", worker)) if kind != "absent"]
    assert found["stop"] == running
    for name, kind in (("spark-a", head), ("spark-b", worker)):
        assert any(reason.startswith(f"{name}:") for reason in found["reasons"]) is (kind != "same")


@pytest.mark.parametrize("unseen", [{}, None])
def test_c42_a_node_that_was_not_seen_ends_it(pair, unseen):
    states = {"spark-a": state("same")}
    if unseen is not None:
        states["spark-b"] = unseen
    with pytest.raises(ValueError, match="spark-b.*--limit"):
        _rank.group_action(states, pair)

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ipaddress
import json

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _deployment, _recipe
from hypothesis import given
from hypothesis import strategies as st


def one(problems):
    assert len(problems) == 1, problems
    return problems[0]


def test_a_pair(pair):
    assert pair["rendezvous"] == "192.168.100.10:25000"
    assert pair["api"] == {"address": "192.0.2.11", "port": 8000, "url": "http://192.0.2.11:8000"}
    head, worker = pair["nodes"]
    assert (head["rank"], head["fabric_ip"], head["source_ip"]) == (0, "192.168.100.10", None)
    assert (worker["rank"], worker["fabric_ip"], worker["source_ip"]) == (1, "192.168.100.11", "192.168.100.10")
    assert worker["links"][1]["peers"] == [{"node": "spark-a", "interface": "enP2p1s0f0np0", "ip": "192.168.101.10"}]
    assert pair["model"]["path"] == "/var/lib/tandem/models/Model-a5d248fcca98"
    assert pair["disk_needed_bytes"] == {"/var/lib/tandem": 1100}


def test_one_node_needs_no_fabric(build):
    deployment, problems = build({"spark-a": []})
    assert problems == [] and deployment["rendezvous"] is None
    assert deployment["nodes"][0]["fabric_ip"] is None


def test_the_digest_covers_what_the_ranks_are_started_from(build, pair_links, make_recipe):
    first = build(pair_links)[0]["digest"]
    assert build(pair_links)[0]["digest"] == first
    pair_links["spark-b"][0] = ("enp1s0f0np0", "192.168.100.12/24")
    assert build(pair_links)[0]["digest"] != first
    assert build({"spark-a": []}, lock_sha256="a" * 64)[0]["digest"] != build({"spark-a": []})[0]["digest"]


def test_another_question_does_not_restart_the_ranks(pair, build, make_recipe, pair_links):
    recipe = make_recipe(nodes=2)
    recipe["title"], recipe["sources"] = "Another title", ["another source"]
    recipe["acceptance"][0]["name"] = "another name"
    assert build(pair_links, recipe=recipe)[0]["digest"] == pair["digest"]


def test_an_ipv6_address_gets_its_brackets():
    assert _deployment.api("2001:db8::1", 8000)["url"] == "http://[2001:db8::1]:8000"


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_an_api_on_every_address_is_asked_at_the_heads(build, pair_links, address):
    found = build(pair_links, api_address=address)[0]["api"]
    assert found == {"address": address, "port": 8000, "url": "http://192.0.2.11:8000"}


# --- C10: the same address on two nodes


@pytest.mark.parametrize("prefix", [24, 30])
def test_c10_the_same_address_on_two_nodes(build, pair_links, prefix):
    pair_links["spark-b"][0] = ("enp1s0f0np0", f"192.168.100.10/{prefix}")
    _built, problems = build(pair_links)
    assert any(all(w in p for w in ("spark-a", "spark-b", "192.168.100.10")) for p in problems)


def test_c10_the_same_address_on_two_interfaces_of_a_node(build, pair_links):
    pair_links["spark-a"][1] = ("enP2p1s0f0np0", "192.168.100.10/24")
    text = build(pair_links)[1][0]
    assert all(word in text for word in ("spark-a", "enp1s0f0np0", "enP2p1s0f0np0", "192.168.100.10"))


def test_c10_a_malformed_address(build, pair_links):
    pair_links["spark-b"][1] = ("enP2p1s0f0np0", "192.168.101.011/24")
    problems = build(pair_links)[1]
    assert any("spark-b" in p and "192.168.101.011" in p and "enP2p1s0f0np0" in p for p in problems)


def test_c10_two_nodes_with_one_management_address(make_recipe):
    nodes = [{"name": name, "address": "192.0.2.1", "links": []} for name in ("spark-a", "spark-b")]
    problems = _deployment.build("spark", nodes, _recipe.validate(make_recipe(), "x"))[1]
    assert any("spark-a and spark-b" in p and "192.0.2.1" in p for p in problems)


# --- C11: overlapping networks


def test_c11_two_rails_in_one_network(build, pair_links):
    for node in pair_links:
        pair_links[node][1] = (pair_links[node][1][0], pair_links[node][1][1].replace("101.", "100.2"))
    problems = build(pair_links)[1]
    assert len(problems) == 2
    assert all(w in problems[0] for w in ("spark-a", "enp1s0f0np0", "enP2p1s0f0np0", "192.168.100.0/24"))


def test_c11_the_wider_network_is_named(build, pair_links):
    pair_links["spark-a"] = [("enp1s0f0np0", "192.168.5.12/20"), ("enP2p1s0f0np0", "192.168.3.12/24")]
    assert "192.168.0.0/20" in build(pair_links)[1][0]


def test_c11_networks_side_by_side_pass(build, pair_links):
    assert build(pair_links)[1] == []


# --- links that cannot be


def test_c14_one_end_with_another_mtu(make_recipe):
    nodes = [
        {"name": "spark-a", "address": "a", "links": [{"interface": "x", "address": "10.0.0.1/24", "mtu": 9000}]},
        {"name": "spark-b", "address": "b", "links": [{"interface": "y", "address": "10.0.0.2/24", "mtu": 1500}]},
    ]
    text = one(_deployment.build("spark", nodes, _recipe.validate(make_recipe(), "x"))[1])
    assert all(word in text for word in ("spark-a", "spark-b", "x", "y", "9000", "1500"))


@pytest.mark.parametrize("mtu", ["jumbo", -1, 68, 100000, [1], 1e999, True], ids=repr)
def test_an_mtu_that_cannot_be(make_recipe, mtu):
    link = {"interface": "x", "address": "10.0.0.1/24", "mtu": mtu}
    nodes = [{"name": "spark-a", "address": "a", "links": [link]}]
    problems = _deployment.build("spark", nodes, _recipe.validate(make_recipe(nodes=1), "x"))[1]
    assert any("spark-a" in p and "mtu" in p for p in problems)


@pytest.mark.parametrize("links", ["enp1s0f0np0", {"interface": "x"}, [1], ["x"], [[]]], ids=repr)
def test_links_that_are_no_list_of_mappings(make_recipe, links):
    nodes = [{"name": "spark-a", "address": "a", "links": links}]
    text = _deployment.build("spark", nodes, _recipe.validate(make_recipe(nodes=1), "x"))[1][0]
    assert "spark-a" in text and "tandem_links" in text


@pytest.mark.parametrize(
    ("link", "word"),
    [
        ({}, "no interface"),
        ({"interface": "x"}, "no address"),
        ({"interface": "x", "address": None}, "no address"),
        ({"interface": "x", "address": "10.0.0.1/24", "adress": 1}, "unknown key adress"),
        ({"interface": "x", "address": "10.0.0.1/24", 1: 1, "b": 1}, "unknown key 1"),
        ({"interface": "a b", "address": "10.0.0.1/24"}, "a b"),
        ({"interface": "x\ny", "address": "10.0.0.1/24"}, "x\\ny"),
        ({"interface": "a" * 16, "address": "10.0.0.1/24"}, "a" * 16),
    ],
    ids=repr,
)
def test_a_link_that_cannot_be(make_recipe, link, word):
    nodes = [{"name": "spark-a", "address": "a", "links": [link]}]
    text = _deployment.build("spark", nodes, _recipe.validate(make_recipe(nodes=1), "x"))[1][0]
    assert word in text and "spark-a" in text


def test_an_interface_that_stands_twice(build, pair_links):
    pair_links["spark-a"][1] = ("enp1s0f0np0", "192.168.101.10/24")
    assert any("spark-a" in p and "twice" in p for p in build(pair_links)[1])


def test_every_lonely_link_is_named(build, pair_links):
    pair_links["spark-b"] = [("enp1s0f0np0", "192.168.110.11/24"), ("enP2p1s0f0np0", "192.168.111.11/24")]
    problems = build(pair_links)[1]
    assert len(problems) == 4
    assert all("no node at its other end" in p for p in problems)


# --- C12, C40: addresses of the rail where the group meets


def test_c12_crossed_ports(build):
    deployment, problems = build(
        {"spark-a": [("enp1s0f0np0", "192.168.100.10/24")], "spark-b": [("enp1s0f1np1", "192.168.100.11/24")]}
    )
    assert problems == []
    assert deployment["nodes"][1]["links"][0]["peers"][0]["interface"] == "enp1s0f0np0"


def test_c12_rails_listed_in_another_order(build, pair_links):
    pair_links["spark-b"].reverse()
    deployment, problems = build(pair_links)
    head, worker = deployment["nodes"]
    assert problems == []
    # Copies: the head's daemon listens on its fabric_ip, the worker asks source_ip.
    assert worker["source_ip"] == head["fabric_ip"] == "192.168.100.10"
    assert worker["fabric_ip"] == "192.168.100.11"


def test_c40_the_meeting_link_need_not_be_the_heads_first(build):
    deployment, problems = build(
        {
            "a": [("cable", "10.1.0.1/30"), ("switch", "10.0.0.1/24")],
            "b": [("cable", "10.1.0.2/30"), ("switch", "10.0.0.2/24")],
            "c": [("switch", "10.0.0.3/24")],
        }
    )
    assert problems == []
    assert deployment["rendezvous"] == "10.0.0.1:25000"
    assert [node["fabric_ip"] for node in deployment["nodes"]] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert [node["source_ip"] for node in deployment["nodes"]] == [None, "10.0.0.1", "10.0.0.1"]


def test_c40_a_loopback_management_address_is_no_rendezvous(make_recipe, pair_links):
    nodes = [
        {"name": name, "address": address, "links": [{"interface": i, "address": a} for i, a in pair_links[name]]}
        for name, address in (("spark-a", "127.0.0.1"), ("spark-b", "192.0.2.12"))
    ]
    deployment, problems = _deployment.build("spark", nodes, _recipe.validate(make_recipe(), "x"))
    assert problems == [] and deployment["rendezvous"] == "192.168.100.10:25000"
    assert "127.0.0.1" not in _deployment.hosts_map(deployment)


@pytest.mark.parametrize("empty", ["spark-a", "spark-b"])
def test_c40_no_link_on_a_node_of_two(build, pair_links, empty):
    pair_links[empty] = []
    problems = build(pair_links)[1]
    assert any(p.startswith(f"{empty}: tandem_links is empty") for p in problems)


@pytest.mark.parametrize("address", ["localhost", "127.0.1.1/8", "::1", "0.0.0.0/0"])
def test_c40_addresses_that_nobody_reaches(build, pair_links, address):
    pair_links["spark-a"][0] = ("enp1s0f0np0", address)
    assert any("spark-a" in p and address in p for p in build(pair_links)[1])


def test_a_chain_is_refused_for_tensor_parallel(build):
    chain = {
        "a": [("f1", "10.0.0.1/30")],
        "b": [("f0", "10.0.0.2/30"), ("f1", "10.0.1.1/30")],
        "c": [("f0", "10.0.1.2/30"), ("f1", "10.0.2.1/30")],
        "d": [("f0", "10.0.2.2/30")],
    }
    text = one(build(chain)[1])
    assert "b, c, d" in text and "one hop" in text


# --- C41, C58 and the rest


def test_c41_workers_by_rank_then_the_head(build):
    assert _deployment.rank_order(build({"a": []})[0]) == ["a"]
    for count in (2, 4):
        names = [f"n{number}" for number in range(count)]
        deployment, problems = build({name: [("sw", f"10.0.0.{i}/24")] for i, name in enumerate(names, 1)})
        assert problems == []
        order = _deployment.rank_order(deployment)
        assert order == [*names[1:], names[0]]


def test_c58_a_recipe_for_another_number_of_nodes(build, make_recipe):
    text = build({"spark-a": []}, make_recipe(nodes=2))[1][0]
    assert all(word in text for word in ("spark-a", "1 node", "wants 2", "small"))
    text = build({}, make_recipe(nodes=2))[1][0]
    assert "none" in text


@pytest.mark.parametrize("revision", [None, "main", "a" * 39, "A" * 40, "a" * 40 + "\n"], ids=repr)
def test_a_revision_must_be_a_commit(build, make_recipe, revision):
    text = one(build({"spark-a": []}, make_recipe(nodes=1, model__revision=revision))[1])
    assert "owner/Model" in text and "40 hex" in text and "tandem_model_revision" in text


def test_the_inventorys_revision_wins(build):
    deployment, problems = build({"spark-a": []}, revision="b" * 40)
    assert problems == [] and deployment["model"]["revision"] == "b" * 40
    assert deployment["model"]["release"] == "Model-bbbbbbbbbbbb"


@pytest.mark.parametrize("engine", ["trtllm", "llama.cpp", "SGLang", ""])
def test_an_engine_without_an_adapter(build, make_recipe, engine):
    text = one(build({"spark-a": []}, make_recipe(nodes=1, engine__name=engine))[1])
    assert "small" in text and "sglang" in text


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_cannot_be(build, port):
    assert "tandem_api_port" in one(build({"spark-a": []}, port=port)[1])


def test_the_api_and_the_rendezvous_on_one_port(build, pair_links):
    assert "25000" in one(build(pair_links, port=25000)[1])
    assert build({"spark-a": []}, port=25000)[1] == []


def test_a_relative_root(build):
    assert "tandem_root" in one(build({"spark-a": []}, root="var")[1])


@pytest.mark.parametrize(
    "root", ["/srv/x y", "/srv/50%", '/srv/"x"', "/srv/x\\y", "/srv/x\ny", "/srv/../home/x", "/srv//x", "", "/srv/ä"]
)
def test_a_root_that_no_unit_file_can_hold(build, root):
    problem = one(build({"spark-a": []}, root=root)[1])
    assert "tandem_root" in problem and repr(root) in problem and "wanted an absolute path" in problem


@pytest.mark.parametrize("root", ["/home/nvidia/tandem", "/root", "/tmp/x", "/var/tmp/x", "/run/tandem"])
def test_a_root_that_the_service_cannot_see(build, root):
    problem = one(build({"spark-a": []}, root=root)[1])
    assert "tandem_root" in problem and root in problem and "outside" in problem


@pytest.mark.parametrize("root", ["/srv/tandem", "/data", "/homes/x", "/mnt/nvme-1/tandem_2.0@a+b", "/tmpfs"])
def test_a_root_elsewhere(build, root):
    assert build({"spark-a": []}, root=root)[1] == []


def test_everything_that_is_wrong_is_said_at_once(build, make_recipe):
    problems = build({"spark-a": [("x", "10.0.0.1")]}, make_recipe(nodes=2, model__revision="main"), port=0)[1]
    assert len(problems) == 4


def test_hosts_map(pair):
    assert _deployment.hosts_map(pair).splitlines() == [
        "192.0.2.11 spark-a",
        "192.168.100.10 spark-a-rail0",
        "192.168.101.10 spark-a-rail1",
        "192.0.2.12 spark-b",
        "192.168.100.11 spark-b-rail0",
        "192.168.101.11 spark-b-rail1",
    ]


def test_a_deployment_is_json(pair):
    assert json.loads(json.dumps(pair)) == pair


@given(st.text(max_size=20), st.text(max_size=20))
def test_release_names_are_plain_directory_names(name, version):
    found = _deployment.release_name(name, version)
    assert "/" not in found and not found.startswith(".") and found.isascii()


# --- C51, C52: keys


@pytest.mark.parametrize(("text", "key"), [("abc\n", "abc"), ("abc\r\n", "abc"), ("abc", "abc"), ("a b\n", "a b")])
def test_c52_the_line_end_of_a_key_file(text, key):
    assert _deployment.clean_key(text) == key


def test_c52_a_key_of_digits_is_text():
    assert _deployment.clean_key(12345678901234567890) == "12345678901234567890"
    assert _deployment.clean_key(None) == ""


@pytest.mark.parametrize(
    "key",
    [
        "",
        "short",
        "a" * 15,
        "inner space inner",
        '"quoted-quoted-quoted"',
        "'quoted-quoted-quoted'",
        "back\\slash-back\\slash",
        "carriage\rreturn-return",
        "tab\ttab-tab-tab-tab",
        "bell\x07bell-bell-bell",
        "\ufeffbyte-order-mark-key",
        "schl\u00fcssel-schl\u00fcssel",
    ],
    ids=repr,
)
def test_c52_keys_that_cannot_work_are_refused_without_being_shown(key):
    text = one(_deployment.problems_of_key(key))
    assert "tandem_api_key" in text
    assert not key or key not in text


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="\"'\\"), min_size=16))
def test_c52_every_other_key_passes(key):
    assert _deployment.problems_of_key(key) == []
    key.encode("latin-1")


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "interface": st.text(max_size=4) | st.none() | st.integers(),
                "address": st.sampled_from(["10.0.0.1/24", "10.0.0.2/24", "10.0.1.1/30", "x", ""]) | st.none(),
                "mtu": st.integers() | st.text(max_size=3) | st.none() | st.floats(),
                "other": st.none(),
            },
        )
        | st.none(),
        max_size=3,
    )
)
def test_links_never_raise(links):
    recipe = _recipe.validate(
        {
            "name": "n",
            "nodes": 2,
            "tensor_parallel": 2,
            "model": {"id": "a/b", "revision": "a" * 40, "served_name": "m", "size_bytes": 1},
            "engine": {"name": "sglang", "version": "1", "python": "3.12", "lock": "x"},
            "acceptance": [{"check": "ready", "name": "r"}],
        },
        "here",
    )
    other = {"interface": "x", "address": "10.0.0.9/24"}
    nodes = [{"name": "a", "address": "a", "links": links}, {"name": "b", "address": "b", "links": [other]}]
    deployment, problems = _deployment.build("spark", nodes, recipe)
    assert bool(deployment) != bool(problems)
    for node in deployment.get("nodes", []):
        assert all(ipaddress.ip_interface(link["address"]) for link in node["links"])

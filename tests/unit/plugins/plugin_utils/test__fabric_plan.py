# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import ipaddress
import itertools
import json
import os
import time
from pathlib import Path

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import (
    _deployment,
    _engines,
    _fabric_carry,
    _fabric_plan,
    _fabric_routes,
    _rank,
    _recipe,
)
from ansible_collections.tandem.spark.plugins.plugin_utils._engines import _common
from hypothesis import given
from hypothesis import strategies as st

GOLDEN = Path(__file__).parents[2] / "fixtures/fabric_plan"
LETTERS = "abcdefgh"


def nodes_of(count, **wiring):
    return [
        {"name": f"spark-{letter}", "address": f"192.168.1.{number}", **wiring}
        for number, letter in enumerate(LETTERS[:count], 11)
    ]


def chain(count):
    return [[f"spark-{a}.1", f"spark-{b}.0"] for a, b in itertools.pairwise(LETTERS[:count])]


def ring(count):
    return [*chain(count), [f"spark-{LETTERS[count - 1]}.1", "spark-a.0"]]


WIRINGS = {
    "pair": nodes_of(2, cables=[["spark-a.0", "spark-b.0"]]),
    "chain3": nodes_of(3, cables=chain(3)),
    "chain4": nodes_of(4, cables=chain(4)),
    "chain5": nodes_of(5, cables=chain(5)),
    "ring3": nodes_of(3, cables=ring(3)),
    "ring4": nodes_of(4, cables=ring(4)),
    "switch2": nodes_of(2, switch={"cage": 0}),
    "switch4": nodes_of(4, switch={"cage": 1}),
}


def plan_of(nodes, **options):
    plan, problems = _fabric_plan.plan(nodes, **options)
    assert problems == []
    return plan


def problem_of(nodes, **options):
    problems = _fabric_plan.plan(nodes, **options)[1]
    assert len(problems) == 1, problems
    return problems[0]


def by_name(plan, name):
    return next(node for node in plan["nodes"] if node["name"] == name)


def facts(plan=None, name="", *, management="enP7s7", others=(), routes=(), names=("enp1s0f{}np{}", "enP2p1s0f{}np{}")):
    """``spark_fabric`` of a node of which *plan* was applied."""
    links = {link["interface"]: link for link in (by_name(plan, name)["links"] if plan else [])}
    interfaces = {}
    for cage, half in itertools.product((0, 1), (0, 1)):
        interface = names[half].format(cage, cage)
        addresses = [links[interface]["address"]] if interface in links else []
        interfaces[interface] = {"cage": cage, "half": half, "addresses": addresses, "carrier": True}
    table = [{"destination": "default", "interface": management, "gateway": "192.168.1.1"}]
    table += [{"destination": link["network"], "interface": link["interface"]} for link in links.values()]
    if plan:
        table += [
            {"destination": route["destination"], "interface": route["interface"], "gateway": route["via"]}
            for route in by_name(plan, name)["routes"]
        ]
    return {
        "interfaces": interfaces,
        "other_interfaces": {
            management: {"addresses": ["192.168.1.11/24"]},
            **{f"other{number}": {"addresses": [address]} for number, address in enumerate(others)},
        },
        "routes": [*table, *({"destination": route, "interface": management, "gateway": None} for route in routes)],
        "management_interface": management,
        "management_address": "192.168.1.11",
    }


def with_facts(nodes, plan=None, **options):
    return [{**node, "facts": facts(plan, node["name"], **options)} for node in nodes]


# --- golden files: the whole plan of every wiring


@pytest.mark.parametrize("name", WIRINGS)
def test_the_plan_of_a_wiring(name):
    """After a change on purpose: TANDEM_GOLDEN=write pytest …, and read the difference."""
    plan, path = plan_of(with_facts(WIRINGS[name])), GOLDEN / f"{name}.json"
    if os.environ.get("TANDEM_GOLDEN") == "write":
        path.write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8")) == plan


@pytest.mark.parametrize("name", WIRINGS)
def test_names_of_the_halves_need_no_facts(name):
    plan = plan_of(WIRINGS[name])
    assert [node["links"] for node in plan["nodes"]] == [
        node["links"] for node in plan_of(with_facts(WIRINGS[name]))["nodes"]
    ]


def test_four_nodes_are_planned_in_a_moment():
    nodes = with_facts(WIRINGS["ring4"], others=("172.17.0.1/16", "10.0.0.1/8"), routes=("10.100.128.0/24",))
    began = time.perf_counter()
    _fabric_plan.plan(nodes, pool="172.16.0.0/12")
    assert time.perf_counter() - began < 0.2


# --- properties


@st.composite
def wirings(draw):
    """A chain, ring or switch, its cables in any order and either way round, nodes in any order, networks in use."""
    count = draw(st.integers(2, 6))
    kind = draw(st.sampled_from(["chain", "ring", "switch"] if count > 2 else ["chain", "switch"]))
    nodes = nodes_of(count)
    if kind == "switch":
        wiring = {"switch": {"cage": draw(st.sampled_from([0, 1]))}}
    else:
        cables = [draw(st.permutations(cable)) for cable in (ring(count) if kind == "ring" else chain(count))]
        wiring = {"cables": draw(st.permutations(cables))}
    nodes = draw(st.permutations(nodes))
    busy = draw(
        st.lists(
            st.builds(
                lambda host, prefix: str(ipaddress.ip_interface(f"10.100.{128 + host // 256}.{host % 256}/{prefix}")),
                st.integers(0, 4095),
                st.integers(22, 30),
            ),
            max_size=3,
        )
    )
    return [{**node, **wiring, "facts": facts(others=busy)} for node in nodes], busy


def networks(texts):
    return [ipaddress.ip_interface(text).network for text in texts]


@given(wirings())
def test_every_node_has_a_way_to_every_address(case):
    nodes, _busy = case
    plan, problems = _fabric_plan.plan(nodes)
    if problems:
        assert "tandem_fabric_pool" in problems[0]
        return
    for a, b in itertools.permutations(plan["nodes"], 2):
        for link in b["links"]:
            way = _fabric_routes.follow(plan["nodes"], a["name"], link["ip"])
            assert way and way[0][0] == a["name"] and way[-1][0] == b["name"]
            assert len({at for at, _came, _out in way}) == len(way), "in a circle"
            for at, came, out in way[1:-1]:
                pair = {came, out}
                assert pair in [set(between) for between in by_name(plan, at)["forwarding"]]
                # A rail's packets stay on their rail.
                assert len({entry["rail"] for entry in by_name(plan, at)["links"] if entry["interface"] in pair}) == 1
            shortest = _fabric_routes.distances(_fabric_routes.neighbours(plan["nodes"]), b["name"])[a["name"]]
            assert len(way) - 1 <= shortest
        assert a["fabric_ip"] != b["fabric_ip"]


@given(wirings())
def test_addresses_differ_and_networks_are_free(case):
    nodes, busy = case
    plan, problems = _fabric_plan.plan(nodes)
    if problems:
        return
    addresses = [link["ip"] for node in plan["nodes"] for link in node["links"]]
    assert len(set(addresses)) == len(addresses)
    used = [*networks(busy), ipaddress.ip_network("192.168.1.0/24")]
    own = {ipaddress.ip_network(link["network"]) for node in plan["nodes"] for link in node["links"]}
    assert not [(a, b) for a in own for b in used if a.overlaps(b)]
    assert not [(a, b) for a, b in itertools.combinations(own, 2) if a.overlaps(b)]
    assert all(network.subnet_of(ipaddress.ip_network("10.100.128.0/20")) for network in own)


@given(wirings())
def test_a_plan_that_was_applied_is_planned_again(case):
    nodes, busy = case
    plan, problems = _fabric_plan.plan(nodes)
    if not problems:
        again = [{**node, "facts": facts(plan, node["name"], others=busy)} for node in nodes]
        assert _fabric_plan.plan(again) == (plan, [])


@given(st.permutations(ring(4)))
def test_the_order_of_the_cables_says_nothing(cables):
    assert plan_of(nodes_of(4, cables=cables)) == plan_of(nodes_of(4, cables=ring(4)))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.sampled_from(["spark-a.0", "spark-b.1"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
        max_leaves=8,
    )
)
def test_no_wiring_raises(raw):
    for key in ("cables", "switch", "links"):
        plan, problems = _fabric_plan.plan(nodes_of(2, **{key: raw}))
        assert problems or plan["topology"] == "pair"


# --- what exists is kept


def test_addresses_that_nodes_have_already_are_kept():
    nodes = with_facts(WIRINGS["pair"])
    for node, last in zip(nodes, (10, 11)):
        node["facts"]["interfaces"]["enp1s0f0np0"]["addresses"] = [f"192.168.100.{last}/24"]
    a, b = plan_of(nodes)["nodes"]
    assert [link["address"] for link in a["links"]] == ["192.168.100.10/24", "10.100.128.1/30"]
    assert [link["address"] for link in b["links"]] == ["192.168.100.11/24", "10.100.128.2/30"]


def test_one_end_is_enough_to_keep_a_network():
    nodes = with_facts(WIRINGS["pair"])
    nodes[1]["facts"]["interfaces"]["enp1s0f0np0"]["addresses"] = ["192.168.100.1/24"]
    a, b = plan_of(nodes)["nodes"]
    assert (a["links"][0]["address"], b["links"][0]["address"]) == ("192.168.100.2/24", "192.168.100.1/24")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("169.254.3.4/16", "169.254.9.9/16"),
        ("192.168.1.50/24", "192.168.1.51/24"),  # the management network
        ("10.0.0.1/32", "10.0.0.2/32"),
        ("10.0.0.1/31", "10.0.0.0/31"),
    ],
)
def test_addresses_that_cannot_stay(first, second):
    nodes = with_facts(WIRINGS["pair"])
    for node, address in zip(nodes, (first, second)):
        node["facts"]["interfaces"]["enp1s0f0np0"]["addresses"] = [address]
    assert plan_of(nodes)["nodes"][0]["links"][0]["address"] == "10.100.128.1/30"


def test_the_same_address_at_both_ends():
    nodes = with_facts(WIRINGS["pair"])
    for node in nodes:
        node["facts"]["interfaces"]["enp1s0f0np0"]["addresses"] = ["10.0.0.1/24"]
    a, b = plan_of(nodes)["nodes"]
    assert (a["links"][0]["ip"], b["links"][0]["ip"]) == ("10.0.0.1", "10.0.0.2")


def test_c11_both_rails_in_one_network_are_taken_apart():
    nodes = with_facts(WIRINGS["pair"])
    for node, last in zip(nodes, (1, 2)):
        for number, interface in enumerate(("enp1s0f0np0", "enP2p1s0f0np0")):
            node["facts"]["interfaces"][interface]["addresses"] = [f"192.168.100.{last + 10 * number}/24"]
    a, _b = plan_of(nodes)["nodes"]
    assert [link["network"] for link in a["links"]] == ["192.168.100.0/24", "10.100.128.0/30"]


def test_names_of_interfaces_come_from_the_node():
    nodes = with_facts(WIRINGS["pair"], names=("cx{}p{}", "CX{}p{}"))
    assert [link["interface"] for link in plan_of(nodes)["nodes"][1]["links"]] == ["cx0p0", "CX0p0"]


def test_links_with_addresses_stay_as_they_are():
    links = [{"interface": "enp1s0f0np0", "address": "192.168.100.10/24"}]
    nodes = nodes_of(2)
    nodes[0]["links"], nodes[1]["links"] = links, [{"interface": "enp1s0f1np1", "address": "192.168.100.11/24"}]
    plan = plan_of(with_facts(nodes, others=["10.100.0.1/16"]))
    assert plan["cables"] == [["spark-a.0", "spark-b.1"]]
    assert [node["links"][0]["address"] for node in plan["nodes"]] == ["192.168.100.10/24", "192.168.100.11/24"]


def test_a_pool_in_use_is_left_and_a_full_one_is_refused():
    nodes = with_facts(WIRINGS["pair"], routes=("10.100.128.0/21",))
    assert plan_of(nodes)["nodes"][0]["links"][0]["address"] == "10.100.136.1/30"
    text = problem_of(with_facts(WIRINGS["pair"], others=("10.1.2.3/8",)))
    assert all(word in text for word in ("tandem_fabric_pool", "10.100.128.0/20", "10.0.0.0/8", "2 of 2"))
    assert "1 of 2" in problem_of(WIRINGS["pair"], pool="10.0.0.0/30")


@pytest.mark.parametrize("pool", ["8.8.8.0/24", "10.0.0.1/24", "x", "127.0.0.0/24", "fd00::/64", ""])
def test_a_pool_that_cannot_be(pool):
    assert "tandem_fabric_pool" in problem_of(WIRINGS["pair"], pool=pool)


# --- wirings that cannot be


@pytest.mark.parametrize(
    ("cables", "words"),
    [
        ([["spark-a.0"]], ["tandem_cables[0]", "two ends"]),
        ([["spark-a.0", "spark-x.0"]], ["spark-x", "did you mean"]),
        ([["spark-a.0", "zzz.0"]], ["zzz", "spark-a, spark-b"]),
        ([["spark-a", "spark-b.0"]], ["'spark-a'", "node.cage"]),
        ([["spark-a.2", "spark-b.0"]], ["spark-a.2", "cage 0 or 1"]),
        ([["spark-a.0", "spark-a.1"]], ["spark-a", "itself"]),
        ([["spark-a.0", "spark-b.0"], ["spark-a.0", "spark-b.1"]], ["2 cables in spark-a.0"]),
        ("spark-a.0", ["wanted [["]),
    ],
    ids=repr,
)
def test_cables_that_cannot_be(cables, words):
    text = problem_of(nodes_of(2, cables=cables))
    assert "tandem_cables" in text and all(word in text for word in words)


def test_a_node_without_a_cable_and_two_fabrics():
    assert problem_of(nodes_of(3, cables=chain(2))).startswith("spark-c: tandem_cables has no cable")
    text = problem_of(nodes_of(4, cables=[["spark-a.0", "spark-b.0"], ["spark-c.0", "spark-d.0"]]))
    assert "spark-a, spark-b" in text and "spark-c, spark-d" in text


@pytest.mark.parametrize("switch", [{"cage": 2}, {"cages": 0}, {"cage": True}, 1, "cage"], ids=repr)
def test_a_switch_that_cannot_be(switch):
    nodes = nodes_of(2, switch={"cage": 0})
    nodes[1]["switch"] = switch
    assert problem_of(nodes).startswith("spark-b: tandem_switch")


def test_one_wiring_and_the_same_for_all():
    nodes = nodes_of(2, cables=chain(2))
    nodes[0]["links"] = [{"interface": "x", "address": "10.0.0.1/24"}]
    assert "tandem_links on spark-a" in problem_of(nodes)
    nodes = nodes_of(2, cables=chain(2))
    nodes[1]["cables"] = []
    assert "differs" in problem_of(nodes)


def test_a_node_of_its_own_cage_on_the_switch():
    nodes = nodes_of(3, switch={"cage": 0})
    nodes[2]["switch"] = {"cage": 1}
    assert by_name(plan_of(nodes), "spark-c")["links"][0]["interface"] == "enp1s0f1np1"


# --- what it can carry


def build(make_recipe, nodes, **options):
    recipe = make_recipe(nodes=len(nodes), **options)
    return _deployment.build("spark", nodes, _recipe.validate(recipe, "x"))


@pytest.mark.parametrize("name", ["pair", "ring3", "ring4", "switch2", "switch4"])
def test_tensor_parallelism_goes(make_recipe, name):
    assert build(make_recipe, with_facts(WIRINGS[name]))[1] == []


@pytest.mark.parametrize("name", ["chain3", "chain4"])
def test_an_open_chain_is_refused_with_the_ways_out(make_recipe, name):
    (text,) = build(make_recipe, WIRINGS[name])[1]
    last = WIRINGS[name][-1]["name"]
    for words in ("open chain", "sglang", "one hop", f"from {last}.1 to spark-a.0", "switch", "llama.cpp"):
        assert words in text
    assert f"spark-a and {last}" in text


def test_other_lines(make_recipe):
    assert "ring of 5" in build(make_recipe, nodes_of(5, cables=ring(5)))[1][0]
    assert "close the ring" not in build(make_recipe, WIRINGS["chain5"])[1][0]
    assert _engines.by_layers({"engine": {"name": "llama_cpp"}})
    assert _fabric_carry.carries(plan_of(WIRINGS["chain4"]), "llama_cpp", 4, by_layers=True) == []


def test_the_ranks_of_a_ring_follow_its_cables(make_recipe):
    nodes = [WIRINGS["ring4"][number] for number in (0, 2, 1, 3)]
    (text,) = build(make_recipe, nodes)[1]
    assert "spark-a, spark-c, spark-b, spark-d" in text and "reorder" in text
    nodes = [WIRINGS["ring4"][number] for number in (0, 3, 2, 1)]
    assert build(make_recipe, nodes)[1] == []


@pytest.mark.parametrize(
    ("lock", "version"),
    [
        ("a==1\nnvidia-nccl-cu13==2.30.7 \\\n    --hash=x\n", "2.30.7"),
        ("nvidia-nccl-cu12==2.29.7\n", "2.29.7"),
        ("nccl4py==0.6.0\n", None),
        ("", None),
    ],
)
def test_nccl_of_a_lock(lock, version):
    assert _fabric_carry.nccl_of(lock) == version


def test_a_ring_wants_a_new_nccl(make_recipe):
    recipe = _recipe.validate(make_recipe(nodes=3), "x")
    (text,) = _deployment.build("spark", WIRINGS["ring3"], recipe, nccl="2.29.7")[1]
    assert all(word in text for word in ("2.29.7", "2.30.7", "ring of 3", "sglang"))
    for version in ("2.30.7", "2.31", None, "unknown"):
        assert _deployment.build("spark", WIRINGS["ring3"], recipe, nccl=version)[1] == []
    pair = _recipe.validate(make_recipe(), "x")
    assert _deployment.build("spark", WIRINGS["pair"], pair, nccl="2.29.7")[1] == []


# --- the environment that follows


def environment_of(make_recipe, name, node, **options):
    nodes = with_facts(WIRINGS[name])
    recipe = _recipe.validate(make_recipe(nodes=len(nodes)), "x")
    deployment, problems = _deployment.build("spark", nodes, recipe, **options)
    assert problems == []
    own = {
        "interfaces": {f"en{p}1s0f{c}np{c}": {"rdma_device": f"roce{p}1s0f{c}"} for p in ("p", "P2p") for c in (0, 1)}
    }
    return _rank.specification(deployment, node, own)["environment"], deployment


def test_c12_c21_each_node_its_own_names_and_both_halves(make_recipe):
    environment, deployment = environment_of(make_recipe, "ring3", "spark-b")
    assert environment["NCCL_IB_HCA"] == "=rocep1s0f0,roceP2p1s0f0,rocep1s0f1,roceP2p1s0f1"
    assert environment["SGLANG_HOST_IP"] == deployment["nodes"][1]["fabric_ip"]


def test_a_ring_of_three(make_recipe):
    environment, deployment = environment_of(make_recipe, "ring3", "spark-a")
    assert {name: environment.get(name) for name in _fabric_carry.NCCL["ring3"]} == {
        "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
        "NCCL_IB_MERGE_NICS": "0",
        "NCCL_NET_PLUGIN": "none",
    }
    # C18: the exact name of the network on which the ranks meet
    assert environment["NCCL_SOCKET_IFNAME"] == "=enP7s7" and environment["GLOO_SOCKET_IFNAME"] == "enP7s7"
    assert deployment["rendezvous"] == "192.168.1.11:25000"
    assert "NCCL_IB_GID_INDEX" not in environment


def test_a_pair_gets_nothing_that_nccl_finds_itself(make_recipe):
    environment, deployment = environment_of(make_recipe, "pair", "spark-a")
    assert not {"NCCL_IB_MERGE_NICS", "NCCL_IB_GID_INDEX", "NCCL_IB_SUBNET_AWARE_ROUTING"} & set(environment)
    assert environment["NCCL_SOCKET_IFNAME"] == "=enp1s0f0np0"
    assert deployment["rendezvous"] == "10.100.128.1:25000"


def test_c13_the_index_is_pinned_only_when_asked(make_recipe):
    environment, _deployment_ = environment_of(make_recipe, "pair", "spark-a", gid_index="3")
    assert environment["NCCL_IB_GID_INDEX"] == "3"
    assert "tandem_gid_index" in problem_of(WIRINGS["pair"], gid_index="three")
    assert plan_of(WIRINGS["pair"], gid_index="")["environment"] == {}


def test_without_rdma_nothing_is_said_of_it():
    plan = plan_of(WIRINGS["ring3"])
    environment = _common.network_environment(plan["nodes"][0], {}, plan)
    assert set(environment) == {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES"}


def test_where_the_ranks_meet():
    assert plan_of(with_facts(WIRINGS["ring3"]))["rendezvous"] == "management"
    assert plan_of(with_facts(WIRINGS["ring3"], management="wlP9s9"))["rendezvous"] == "fabric"  # Wi-Fi
    assert plan_of(WIRINGS["ring3"])["rendezvous"] == "fabric"  # unknown
    assert plan_of(with_facts(WIRINGS["ring3"]), rendezvous="fabric")["rendezvous"] == "fabric"
    assert plan_of(with_facts(WIRINGS["pair"]), rendezvous="management")["rendezvous_ip"] == "192.168.1.11"
    assert "spark-a (unknown)" in problem_of(WIRINGS["pair"], rendezvous="management")
    assert "wlP9s9" in problem_of(with_facts(WIRINGS["pair"], management="wlP9s9"), rendezvous="management")
    assert "tandem_rendezvous" in problem_of(WIRINGS["pair"], rendezvous="wifi")


def test_c40_a_head_that_is_called_by_loopback():
    nodes = with_facts(copy.deepcopy(WIRINGS["ring3"]))
    nodes[0]["address"] = "127.0.0.1"
    assert plan_of(nodes)["rendezvous_ip"] == "192.168.1.11"
    nodes[0]["facts"]["management_address"] = None
    assert plan_of(nodes)["rendezvous"] == "fabric"


# --- what is still to be done


def test_unsettled_nodes():
    nodes = with_facts(WIRINGS["pair"])
    deployment = plan_of(nodes)

    def hostvars(change=None, **other):
        found = {}
        for node in nodes:
            own = facts(deployment, node["name"])
            for entry in own["interfaces"].values():
                entry["mtu"] = 9000
            found[node["name"]] = {"ansible_facts": {"spark_fabric": own}}
        if change:
            found["spark-b"]["ansible_facts"]["spark_fabric"]["interfaces"]["enp1s0f0np0"].update(change)
        return {**found, **other}

    assert _fabric_plan.unsettled(hostvars(), deployment) == []
    for change in ({"mtu": 1500}, {"carrier": False}, {"carrier": None}, {"addresses": []}):
        assert _fabric_plan.unsettled(hostvars(change), deployment) == ["spark-b"]
    assert _fabric_plan.unsettled(hostvars(**{"spark-a": {}}), deployment) == []
    before = {node["name"]: {"ansible_facts": {"spark_fabric": node["facts"]}} for node in nodes}
    assert _fabric_plan.unsettled(before, deployment) == ["spark-a", "spark-b"]


def test_links_with_addresses_tell_what_is_on_a_switch():
    nodes = nodes_of(3)
    for number, node in enumerate(nodes, 1):
        node["links"] = [{"interface": "enp1s0f1np1", "address": f"10.0.0.{number}/24"}]
    assert plan_of(nodes)["cables"] == [[f"spark-{letter}.1", "switch"] for letter in "abc"]


# --- ways where not every cable has both rails


def test_a_rail_that_ends_half_way_goes_on_over_the_other():
    def link(interface, address):
        return {"interface": interface, "address": address}

    nodes = nodes_of(3)
    nodes[0]["links"] = [link("enp1s0f1np1", "10.0.0.1/30"), link("enP2p1s0f1np1", "10.0.0.5/30")]
    nodes[1]["links"] = [
        link("enp1s0f0np0", "10.0.0.2/30"),
        link("enP2p1s0f0np0", "10.0.0.6/30"),
        link("enp1s0f1np1", "10.0.0.9/30"),
    ]
    nodes[2]["links"] = [link("enp1s0f0np0", "10.0.0.10/30")]
    plan = plan_of(nodes)
    for a, b in itertools.permutations(plan["nodes"], 2):
        assert all(_fabric_routes.follow(plan["nodes"], a["name"], entry["ip"]) for entry in b["links"])
    assert ["enP2p1s0f0np0", "enp1s0f1np1"] in by_name(plan, "spark-b")["forwarding"]
    assert [entry["rail"] for entry in by_name(plan, "spark-a")["far"]] == [0]


def test_other_networks_of_a_switch_that_joins_all_need_no_routes(build):
    deployment, problems = build(
        {
            "a": [("cable", "10.1.0.1/30"), ("switch", "10.0.0.1/24")],
            "b": [("cable", "10.1.0.2/30"), ("switch", "10.0.0.2/24")],
            "c": [("switch", "10.0.0.3/24")],
        }
    )
    assert problems == [] and deployment["fabric"]["topology"] == "switch" and deployment["fabric"]["cables"] == []
    assert all(not node["routes"] and not node["forwarding"] for node in deployment["nodes"])

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import types

import pytest
import yaml
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.tandem.spark.plugins.action import deployment


@pytest.fixture
def deploy(tmp_path, make_recipe, monkeypatch, pair_links):
    """Run the action on a pair; *change* alters the host variables before."""

    def run(change=None, recipe=None, groups=None, hub=None, **options):
        (tmp_path / "small.yml").write_text(yaml.safe_dump(recipe or make_recipe()))
        hostvars = {
            name: {
                "ansible_host": f"192.0.2.{number}",
                "tandem_links": [{"interface": i, "address": a} for i, a in pair_links[name]],
            }
            for number, name in enumerate(pair_links, 11)
        }
        if change:
            change(hostvars)
        action = object.__new__(deployment.ActionModule)
        options = {"hub" if key == "hub_" else key: value for key, value in options.items()}
        arguments = {"recipe": "small", "recipe_paths": [str(tmp_path)], **options}
        action._task = types.SimpleNamespace(args=arguments, action="tandem.spark.deployment", async_val=0)
        monkeypatch.setattr(deployment.ActionBase, "run", lambda *_arguments, **_options: {})

        def execute(_action, module_name, module_args, task_vars):
            asked.append((module_name, module_args))
            if hub is None:
                raise AnsibleConnectionFailure("spark-b does not answer")
            return hub

        monkeypatch.setattr(deployment.ActionModule, "_execute_module", execute)
        variables = {"hostvars": hostvars, "groups": {"spark": list(hostvars)} if groups is None else groups}
        return action.run(None, {**variables, "inventory_hostname": "spark-b"})

    (tmp_path / "x.lock").write_text("a==1\n")
    asked = run.asked = []
    return run


def test_a_branch_is_refused_with_what_it_stands_for(deploy):
    result = deploy(revision="main", hub={"revision": "b" * 40})
    assert result["failed"] and f"it stands for {'b' * 40} now" in result["msg"]
    assert "model_revision_resolve" in result["msg"] and "record" not in deploy.asked[0][1]


def test_a_branch_is_resolved_on_the_head(deploy):
    hub = {"source": "", "endpoint": "http://mirror.example", "token": ""}
    found = deploy(revision="main", resolve=True, hub={"revision": "b" * 40}, root="/srv/t/", **{"hub_": hub})
    assert found["ansible_facts"]["tandem_deployment"]["model"]["revision"] == "b" * 40
    name, words = deploy.asked[0]
    assert name == "tandem.spark.model_revision" and words["record"] == "/srv/t/records/revision.json"
    assert words["endpoint"] == "http://mirror.example" and words["source"] == "huggingface" and "token" not in words


@pytest.mark.parametrize("hub", [None, {"failed": True, "msg": "the hub answered 404"}], ids=["silent", "404"])
def test_a_branch_that_cannot_be_resolved(deploy, hub):
    result = deploy(revision="main", resolve=True, hub=hub)
    assert result["failed"] and "'main' cannot be resolved on the head" in result["msg"]


def test_a_commit_and_words_that_are_no_name_ask_nobody(deploy):
    assert "failed" not in deploy() and deploy(revision="run make demo first")["failed"]
    assert "failed" not in deploy(revision="c" * 64) and deploy.asked == []


def test_a_deployment(deploy, tmp_path):
    result = deploy()
    found = result["ansible_facts"]["tandem_deployment"]
    assert result["changed"] is False and found["head"] == "spark-a"
    assert found["engine"]["lock"] == str(tmp_path / "x.lock")
    assert found["engine"]["release"].startswith("sglang-0.5.23-") and len(found["engine"]["lock_sha256"]) == 64
    json.dumps(result)


def test_the_place_of_the_lock_is_not_part_of_the_digest(deploy, tmp_path):
    first = deploy()["ansible_facts"]["tandem_deployment"]["digest"]
    (tmp_path / "x.lock").write_text("a==2\n")
    assert deploy()["ansible_facts"]["tandem_deployment"]["digest"] != first


def test_c10_every_problem_in_one_message_and_nothing_was_changed(deploy):
    def change(hostvars):
        hostvars["spark-a"]["tandem_recpie"] = "x"
        hostvars["spark-b"]["tandem_links"][0]["address"] = "192.168.100.10/24"

    result = deploy(change, revision="main")
    assert result["failed"] and result["msg"].count("\n- ") == 3
    assert "3 problems" in result["msg"] and "nothing was changed" in result["msg"]
    for text in ("tandem_recpie", "did you mean tandem_recipe?", "192.168.100.10", "spark-a", "spark-b", "main"):
        assert text in result["msg"]


def test_a_misspelt_variable_is_said_although_the_recipe_is_not_there(deploy):
    result = deploy(lambda hostvars: hostvars["spark-a"].update(tandem_recpie="small"), recipe_paths=[], recipe="")
    assert result["failed"] and "tandem_recpie" in result["msg"] and "ling-3.0-flash-fp8" in result["msg"]


@pytest.mark.parametrize("groups", [{}, {"spark": []}, {"sparks": ["spark-a"]}])
def test_no_nodes(deploy, groups):
    result = deploy(groups=groups)
    assert result["failed"] and "spark" in result["msg"] and "hosts:" in result["msg"]


def test_no_lock(deploy, tmp_path):
    (tmp_path / "x.lock").unlink()
    result = deploy()
    assert result["failed"] and str(tmp_path / "x.lock") in result["msg"]
    (tmp_path / "x.lock").mkdir()
    assert deploy()["failed"]


def test_empty_options_are_absent(deploy):
    result = deploy(api_address="", revision="", root="/srv/tandem/")
    found = result["ansible_facts"]["tandem_deployment"]
    assert found["api"]["address"] == "192.0.2.11" and found["root"] == "/srv/tandem"
    assert deploy(api_address="127.0.0.1")["ansible_facts"]["tandem_deployment"]["api"]["address"] == "127.0.0.1"


def test_an_engine_that_this_release_cannot_launch(deploy, make_recipe):
    result = deploy(recipe=make_recipe(engine__name="trtllm", engine__lock=""))
    assert result["failed"] and "trtllm" in result["msg"] and "sglang" in result["msg"]


# --- a recipe that cannot be served, and cables


def test_stages_before_the_engine_run_although_the_recipe_cannot_be_served(deploy, make_recipe):
    recipe = make_recipe(engine__name="trtllm", engine__lock="", model__revision="main")
    result = deploy(recipe=recipe, served=False)
    found = result["ansible_facts"]["tandem_deployment"]
    assert "failed" not in result and [node["name"] for node in found["nodes"]] == ["spark-a", "spark-b"]
    assert len(found["unserved"]) == len(result["warnings"]) == 2 and "trtllm" in "".join(result["warnings"])
    assert found["engine"] == {"packages": []} and len(found["digest"]) == 64
    assert deploy(recipe="none", served=False, recipe_paths=[])["ansible_facts"]["tandem_deployment"]["unserved"]


def test_a_deployment_that_can_be_served_is_the_same_for_all_stages(deploy):
    assert deploy(served=False) == deploy(served=True)


def test_a_wrong_inventory_ends_every_stage(deploy):
    def change(hostvars):
        hostvars["spark-b"]["tandem_links"][0]["address"] = "192.168.100.10/24"

    result = deploy(change, served=False, revision="main")
    assert result["failed"] and "192.168.100.10" in result["msg"] and "main" in result["msg"]
    assert deploy(lambda hostvars: hostvars["spark-a"].update(tandem_recpie=1), served=False)["failed"]


def test_cables_and_what_the_nodes_said(deploy):
    def change(hostvars):
        for variables in hostvars.values():
            variables["tandem_links"] = []
            variables["tandem_cables"] = [["spark-a.0", "spark-b.1"]]
            busy = {"docker0": {"addresses": ["10.100.128.1/24"]}}
            variables["ansible_facts"] = {"spark_fabric": {"other_interfaces": busy}}

    found = deploy(change)["ansible_facts"]["tandem_deployment"]
    assert found["nodes"][1]["links"][0] | {"peers": []} == {
        "interface": "enp1s0f1np1",
        "address": "10.100.129.2/30",
        "ip": "10.100.129.2",
        "network": "10.100.129.0/30",
        "mtu": 9000,
        "cage": 1,
        "rail": 0,
        "peers": [],
    }
    assert found["rendezvous"] == "10.100.129.1:25000"
    assert deploy(change, pool="10.200.0.0/24")["ansible_facts"]["tandem_deployment"]["nodes"][0]["links"][0]["ip"] == (
        "10.200.0.1"
    )

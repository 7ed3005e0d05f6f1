# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.tandem.spark.plugins.plugin_utils import _recipe

ROOT = Path(__file__).parents[1]
FARM = ROOT / "collections/ansible_collections/tandem/spark"
ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir())
MODULES = sorted((ROOT / "plugins/modules").glob("*.py"))
INVENTORIES = sorted(path for path in (ROOT / "inventories").iterdir() if path.is_dir())
PLAYBOOKS = [ROOT / "site.yml", *sorted((ROOT / "playbooks").glob("*.yml"))]
STAGES = ["preflight", "baseline", "fabric", "engine", "model", "serve", "accept"]
BIN = Path(sys.executable).parent
NODES = {"single": 1, "dual": 2, "pair": 2, "ring3": 3, "quad": 4, "ring4": 4, "switch": 4}
# Connection and magic variables, which are no facts.
NO_FACTS = {
    "ansible_check_mode",
    "ansible_connection",
    "ansible_facts",
    "ansible_failed_result",
    "ansible_failed_task",
    "ansible_host",
    "ansible_managed",
    "ansible_password",
    "ansible_play_hosts",
    "ansible_play_hosts_all",
    "ansible_playbook_python",
    "ansible_port",
    "ansible_python_interpreter",
    "ansible_run_tags",
    "ansible_ssh_extra_args",
    "ansible_ssh_private_key_file",
    "ansible_user",
    "ansible_collections",
}

by_name = pytest.mark.parametrize("role", ROLES, ids=lambda path: path.name)


def load(path):
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {}


def tracked(*patterns):
    """Files of the repository by name, without what is ignored."""
    words = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    try:
        names = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not checked: this is no git checkout")
    paths = [ROOT / name for name in names if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def ansible(program, *arguments, tmp_path):
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_HOME": str(tmp_path),
        "ANSIBLE_NOCOLOR": "1",
        "TANDEM_CACHE": str(tmp_path),
    }
    words = [str(BIN / program), *map(str, arguments)]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- the collection's place


@pytest.mark.parametrize("entry", sorted(FARM.iterdir()), ids=lambda path: path.name)
def test_a_farm_entry_is_a_link_to_its_source(entry):
    assert entry.is_symlink() and not os.path.isabs(os.readlink(entry)) and entry.resolve() == ROOT / entry.name
    assert entry.exists()


def test_the_farm_is_complete():
    assert {"galaxy.yml", "README.md", "meta", "plugins", "roles", "playbooks", "recipes"} <= set(os.listdir(FARM))


def test_one_version_everywhere():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version = load(ROOT / "galaxy.yml")["version"]
    assert re.search(r'^version = "(.+)"$', project, re.M)[1] == version
    assert re.search(r"^## (?:v|\[)?(\d+\.\d+\.\d+)", changelog, re.M)[1] == version


def test_the_oldest_ansible_core_is_the_same_everywhere():
    wanted = load(ROOT / "meta/runtime.yml")["requires_ansible"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'"ansible-core>=(\d+\.\d+)', project)[1] == re.search(r">=(\d+\.\d+)", wanted)[1]


# --- roles


@by_name
def test_defaults_specs_and_readme_agree(role):
    defaults = load(role / "defaults/main.yml")
    options = load(role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    documented = re.findall(r"^\| `(\w+)` \|", (role / "README.md").read_text(encoding="utf-8"), re.M)
    assert documented == list(options) == list(defaults)
    # When Ansible refuses an argument it prints the specification, templates filled in: no secret's default is in it.
    assert not [name for name, option in options.items() if option.get("no_log") and option.get("default")]
    secrets = [name for name, option in options.items() if option.get("no_log") and "default" not in option]
    written = {name: option["default"] for name, option in options.items() if "default" in option}
    assert {name: value for name, value in defaults.items() if name not in secrets} == written
    for name, option in options.items():
        assert name.startswith(f"{role.name}_") and option["description"] and option["type"]


@by_name
def test_internal_variables_carry_the_roles_name(role):
    names = set(load(role / "vars/main.yml")) if (role / "vars/main.yml").exists() else set()
    allowed = {"tandem_deployment", "tandem_node"} if role.name == "tandem" else set()
    assert all(name.startswith(f"__{role.name}_") for name in names - allowed)


def test_no_roles_name_begins_anothers():
    names = [role.name for role in ROLES]
    assert [(a, b) for a in names for b in names if a != b and b.startswith(f"{a}_")] == []


def tasks_of(data):
    for item in data or []:
        yield item
        for key in ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks", "handlers"):
            yield from tasks_of(item.get(key))


KEYWORDS = set(
    re.findall(
        r"\w+",
        """
        name block rescue always when vars register loop loop_control until retries delay notify listen tags become
        become_user no_log run_once delegate_to delegate_facts async poll changed_when failed_when check_mode diff
        environment ignore_errors ignore_unreachable args any_errors_fatal throttle timeout hosts gather_facts roles
        tasks pre_tasks post_tasks handlers connection serial order vars_files module_defaults strategy
        """,
    )
)
TASK_FILES = [
    *ROOT.glob("roles/*/tasks/*.yml"),
    *ROOT.glob("roles/*/handlers/*.yml"),
    *PLAYBOOKS,
    *ROOT.glob("extensions/molecule/*/*.yml"),
]


@pytest.mark.parametrize("path", sorted(TASK_FILES), ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_by_their_full_names_and_no_shell(path):
    data = load(path)
    if not isinstance(data, list):
        return
    for task in tasks_of(data):
        (action,) = [key for key in task if key not in KEYWORDS] or ["none.none.none"]
        assert action.count(".") == 2, f"{task.get('name')}: {action}"
        assert action not in ("ansible.builtin.shell", "ansible.builtin.raw"), task.get("name")
        assert task.get("name"), task
        assert task.get("no_log") is not True, "a variable says whether secrets are logged"
        for role in task.get("roles", []):
            assert (role if isinstance(role, str) else role["role"]).count(".") == 2


def test_no_pause_as_synchronisation():
    for path in TASK_FILES:
        text = path.read_text(encoding="utf-8")
        assert "ansible.builtin.pause" not in text and not re.search(r"\bsleep \d", text), path


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_a_role_and_a_playbook_of_its_name(stage):
    play = load(ROOT / f"playbooks/{stage}.yml")[-1]
    assert play["roles"] == [{"role": f"tandem.spark.{stage}"}] and play["any_errors_fatal"] is True
    assert "tandem.spark.tandem" in [one["role"] for one in load(ROOT / f"roles/{stage}/meta/main.yml")["dependencies"]]


def test_site_is_the_stages_in_their_order():
    imported = [play["ansible.builtin.import_playbook"] for play in load(ROOT / "playbooks/site.yml")]
    assert imported == [f"tandem.spark.{stage}" for stage in STAGES]
    assert load(ROOT / "site.yml")[0]["ansible.builtin.import_playbook"] == "tandem.spark.site"


def test_no_injected_facts():
    found = []
    for path in [*ROOT.glob("roles/**/*.yml"), *ROOT.glob("roles/**/*.j2"), *PLAYBOOKS]:
        for name in re.findall(r"(?<![\w.'\"-])ansible_\w+", path.read_text(encoding="utf-8")):
            if name not in NO_FACTS:
                found.append(f"{path.relative_to(ROOT)}: {name}")
    assert found == []


# --- modules


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_module_is_documented(path):
    source = ast.parse(path.read_text(encoding="utf-8"))
    texts = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in source.body
        if isinstance(node, ast.Assign) and node.targets[0].id in ("DOCUMENTATION", "EXAMPLES", "RETURN")
    }
    documentation = yaml.safe_load(texts["DOCUMENTATION"])
    assert documentation["module"] == path.stem and documentation["author"]
    assert documentation["version_added"] == load(ROOT / "galaxy.yml")["version"]
    assert {"check_mode", "diff_mode"} <= set(documentation["attributes"])
    examples = yaml.safe_load(texts["EXAMPLES"])
    assert all(f"tandem.spark.{path.stem}" in task for task in examples[:1])
    returned = yaml.safe_load(texts["RETURN"])
    assert all({"description", "returned", "type"} <= set(entry) for entry in returned.values())


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_options_are_documented_as_they_are_taken(path):
    """The argument specification in the source, read without running it, where it is a plain literal."""
    source = path.read_text(encoding="utf-8")
    documentation = yaml.safe_load(re.search(r'DOCUMENTATION = r"""(.*?)"""', source, re.S)[1])
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "argument_spec" and isinstance(node.value, ast.Dict):
            named = {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
            # What comes from a shared specification is documented by a shared fragment.
            assert named == set(documentation.get("options") or {})


def test_the_action_group_has_every_module():
    assert load(ROOT / "meta/runtime.yml")["action_groups"] == {"spark": [path.stem for path in MODULES]}


def test_an_action_plugin_has_a_module_that_documents_it():
    for path in ROOT.glob("plugins/action/*.py"):
        assert (ROOT / "plugins/modules" / path.name).is_file(), path.name


# --- inventories and playbooks


@pytest.mark.parametrize("path", INVENTORIES, ids=lambda path: path.name)
def test_every_inventory_can_be_read(path, tmp_path):
    # The program of a lab's inventory asks the lab, which need not be there.
    source = path / "hosts.yml" if path.name.startswith("lab_") else path
    inventory = json.loads(ansible("ansible-inventory", "-i", source, "--list", tmp_path=tmp_path))
    hosts = inventory["spark"]["hosts"]
    assert len(hosts) == NODES[re.findall("|".join(NODES), path.name)[0]]
    if source is path:
        assert all("ansible_host" in inventory["_meta"]["hostvars"][name] for name in hosts)


@pytest.mark.parametrize(
    "path", [path for path in INVENTORIES if not path.name.startswith("lab_")], ids=lambda p: p.name
)
def test_an_inventory_names_a_recipe_for_its_nodes(path):
    recipe = _recipe.load(load(path / "group_vars/spark.yml")["tandem_recipe"], [])
    assert recipe["nodes"] == len(load(path / "hosts.yml")["spark"]["hosts"])


@pytest.mark.parametrize("path", INVENTORIES, ids=lambda path: path.name)
def test_commented_variables_of_an_inventory_exist(path):
    known = {
        name for role in ROLES for name in load(role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    }
    for file in path.glob("group_vars/*"):
        for name in re.findall(
            r"^#? ?((?:tandem|model|engine|baseline|fabric|serve|accept|preflight)_\w+):", file.read_text(), re.M
        ):
            assert name in known, f"{file.name}: {name}"


def test_every_playbook_passes_the_syntax_check(tmp_path):
    ansible("ansible-playbook", "-i", "inventories/dual_spark", "--syntax-check", *PLAYBOOKS, tmp_path=tmp_path)


def test_every_node_keeps_its_own_variables_and_facts(tmp_path):
    both = "{{ hostvars['spark-a'].@ }} {{ hostvars['spark-b'].@ }}"
    message = f"registered: {both.replace('@', 'r.stdout')}, facts: {both.replace('@', 'ansible_facts.me')}"
    play = {
        "hosts": "spark",
        "gather_facts": False,
        "roles": ["tandem.spark.tandem"],
        "tasks": [
            {"ansible.builtin.command": "echo {{ inventory_hostname }}", "register": "r"},
            {"ansible.builtin.set_fact": {"me": "{{ inventory_hostname }}", "cacheable": True}},
            {"ansible.builtin.debug": {"msg": message}},
        ],
    }
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    local = json.dumps({"ansible_connection": "local", "ansible_python_interpreter": sys.executable})
    words = [tmp_path / "play.yml", "-i", "inventories/dual_spark", "-e", local]
    shown = ansible("ansible-playbook", *words, tmp_path=tmp_path)
    assert "registered: spark-a spark-b, facts: spark-a spark-b" in shown


def test_a_refused_argument_does_not_show_the_key(tmp_path):
    (tmp_path / "hosts.yml").write_text("spark: {hosts: {node: {ansible_connection: local}}}\n")
    words = [str(BIN / "ansible-playbook"), "tandem.spark.preflight", "-i", str(tmp_path / "hosts.yml")]
    words += ["-e", "tandem_api_port=none", "-vvv"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_HOME": str(tmp_path)}
    environment["HOME"] = str(tmp_path)
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert done.returncode != 0 and "argument 'tandem_api_port'" in output
    (key,) = (tmp_path / ".config/tandem").glob("*.key")
    assert key.read_text().strip() not in output


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_can_be_chosen_by_its_tag(stage, tmp_path):
    words = ["-i", "inventories/dual_spark", "--list-tasks", "--tags", stage, "site.yml"]
    shown = ansible("ansible-playbook", *words, tmp_path=tmp_path)
    tasks = re.findall(r"^ +tandem\.spark\.(\w+) : (.+)\tTAGS", shown, re.M)
    # Arguments and inventory are looked at always.
    chosen = {role for role, name in tasks if not name.startswith("Validating arguments")}
    assert chosen - {"tandem"} == {stage}


# --- texts


def make_targets():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return re.findall(r"^([a-z-]+):.*## ", text, re.M)


def test_every_make_target_says_what_it_does():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", text, re.M)[1].split()
    assert sorted(re.findall(r"^([a-z-]+):(?!=)", text, re.M)) == sorted(phony) == sorted(make_targets())


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_readme_names_every_make_target(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = make_targets()
    assert sorted(re.findall(r"^\| `make ([a-z-]+)` \|", text, re.M)) == sorted(targets)
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= set(targets)


def test_make_help_says_the_same(tmp_path):
    try:
        shown = subprocess.run(
            ["make", "-C", str(ROOT), "--no-print-directory", "help"], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        pytest.skip("not checked: make is not on this machine")
    lines = [line.split() for line in shown.stdout.splitlines() if line.startswith("  ")]
    assert [words[1] if words[0] == "make" else words[0] for words in lines] == make_targets()


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_relative_links_of_the_readme_lead_somewhere(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / target).exists(), target


def test_line_ends_and_document_starts():
    wrong = []
    for path in tracked("*.yml", "*.yaml", "*.py", "*.md", "*.sh", "*.j2", "*.toml", "*.cfg", "Makefile"):
        raw = path.read_bytes()
        name = str(path.relative_to(ROOT))
        if b"\r" in raw and "fixtures" not in name:
            wrong.append(f"{name}: CR")
        if raw and not raw.endswith(b"\n"):
            wrong.append(f"{name}: no line end at the end")
        if name.endswith((".yml", ".yaml")) and "fixtures" not in name and not re.match(rb"(#.*\n|\n)*---\n", raw):
            wrong.append(f"{name}: does not begin with ---")
    assert wrong == []


def test_every_python_file_carries_the_licence():
    lines = (
        "# Copyright (c) 2026, The tandem.spark contributors",
        "# SPDX-License-Identifier: GPL-3.0-or-later",
    )
    paths = [path for path in tracked("*.py") if path.stat().st_size]
    found = [str(path.relative_to(ROOT)) for path in paths if not all(line in path.read_text()[:600] for line in lines)]
    assert found == []


def test_no_secret_in_the_repository():
    for path in tracked():
        if path.suffix in (".key", ".pem") or path.name in ("id", "id_ed25519", ".vault_pass"):
            pytest.fail(str(path))

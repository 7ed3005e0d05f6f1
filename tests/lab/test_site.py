# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The main job on two virtual Sparks of its own: site.yml, twice, in check mode, with bad input, and with a bad model.

The tests of this file build on each other in their order, so that the nodes are converged once.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from test_engines import complaints

ROOT = Path(__file__).parents[2]
INVENTORY = "inventories/lab_pair"
NODES = ("spark-a", "spark-b")
# What a node keeps on disk outside of logs and run-time state.
WATCHED = "/etc /var/lib /usr/local /srv /opt /root"

pytestmark = pytest.mark.lab


def run(*command: str, timeout: float = 900, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )


class Lab:
    """A pair of virtual Sparks beside the demo's."""

    def __init__(self, home: Path) -> None:
        digest = hashlib.sha256(str(ROOT).encode()).hexdigest()
        self.home = home
        self.environment = {"TANDEM_LAB_ID": f"ts{digest[:5]}"}

    def __call__(self, *verb: str) -> str:
        done = run(str(ROOT / "tests/lab/lab"), *verb, **self.environment)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def ssh(self, node: str, command: str) -> str:
        return self("ssh", "pair", node, command)

    def play(
        self, *arguments: str, playbook: str = "site.yml", inventory: str = INVENTORY
    ) -> subprocess.CompletedProcess[str]:
        binary = Path(sys.executable).parent / "ansible-playbook"
        defaults = [f"accept_report_directory={self.home}", f"preflight_report_directory={self.home}"]
        extra = [word for default in defaults for word in ("-e", default)]
        return run(str(binary), playbook, "-i", inventory, *extra, *arguments, **self.environment)

    def variables(self, node: str) -> dict[str, str]:
        inventory = json.loads(self("inventory", "pair"))
        return inventory["_meta"]["hostvars"][node]

    @property
    def endpoint(self) -> str:
        return f"http://{self.variables('spark-a')['ansible_host']}:8000"

    @property
    def key(self) -> str:
        return (Path.home() / ".config/tandem/lab_pair.key").read_text().strip()

    def ask(self, question: str, key: str | None) -> requests.Response:
        body = {"model": "lab", "temperature": 0, "max_tokens": 32, "messages": [{"role": "user", "content": question}]}
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        session = requests.Session()
        session.trust_env = False
        return session.post(f"{self.endpoint}/v1/chat/completions", json=body, headers=headers, timeout=120)

    def fingerprint(self) -> set[tuple[str, str]]:
        """Names, modes, sizes and times of everything that a stage could change on the nodes, as (node, line)."""
        listing = f"find {WATCHED} -xdev -not -path '/var/lib/systemd/*' -not -path '/root/.ansible*' -not -path /root "
        listing += "-not -path '/var/lib/chrony*' -printf '%p %m %u %s %T@ %l\\n' | sort; "
        listing += "systemctl list-units --all --plain --no-legend 'tandem*'; "
        # A kernel that is still looking for a second owner of its own address says so for a second.
        listing += "ip -o addr show | sed 's/ tentative//'; ip -o link show | sed 's/ state .*//'"
        return {(node, line) for node in NODES for line in self.ssh(node, listing).splitlines()}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("site"))
    lab("down", "pair")
    lab("up", "pair")
    yield lab
    lab("down", "pair")


def recap(output: str) -> dict[str, dict[str, int]]:
    found = {}
    for line in output.split("PLAY RECAP")[-1].splitlines():
        match = re.match(r"(\S+)\s+: (ok=.*)", line)
        if match:
            found[match[1]] = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", match[2])}
    return found


def round_trips(output: str) -> dict[str, int]:
    """SSH executions by address in the output of a run with -vvvv."""
    return dict(collections.Counter(re.findall(r"^<([^>]+)> SSH: EXEC ", output, re.MULTILINE)))


def difference(before: set[tuple[str, str]], after: set[tuple[str, str]]) -> list[str]:
    """What went (-) and what came (+) between two fingerprints."""
    gone, come = sorted(before - after), sorted(after - before)
    return [f"- {node}: {line}" for node, line in gone] + [f"+ {node}: {line}" for node, line in come]


# ---------------------------------------------------------------- a fresh pair
HUGE = {"tandem_recipe_paths": ["RECIPES"], "tandem_recipe": "huge"}
BAD_INPUT = {
    "no spark group": (["-i", "localhost,"], ["found no host in the group spark", "under spark"]),
    "one node for a recipe of two": (
        ["--extra-vars", '{"tandem_group": "one"}'],
        ["found 1 node(s) (spark-a)", "recipe lab-smollm2 wants 2"],
    ),
    "unknown recipe": (["-e", "tandem_recipe=no-such"], ["found 'no-such'", "lab-smollm2", "Set tandem_recipe"]),
    "misspelt variable": (["-e", "tandem_api_prot=1"], ["tandem_api_prot", "did you mean tandem_api_port?"]),
    "duplicate link address": (
        ["-e", '{"tandem_links": [{"interface": "enp1s0f0np0", "address": "192.168.100.10/24"}]}'],
        ["spark-a", "spark-b", "192.168.100.10", "wanted a different one on each node"],
    ),
    "too little disk": (
        ["-e", json.dumps({**HUGE, "tandem_model_revision": "0" * 40})],
        ["disk.too_little", "spark-a", "spark-b", "/var/lib/tandem"],
    ),
    "a port that is no number": (["-e", "tandem_api_port=none"], ["argument 'tandem_api_port'"]),
    "a key that cannot work": (["-e", "tandem_api_key=short"], ["found 5 characters", "wanted 16"]),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_refused_before_anything_is_changed(lab: Lab, name: str, tmp_path: Path) -> None:
    arguments, wanted = BAD_INPUT[name]
    (tmp_path / "one.yml").write_text("one: {hosts: {spark-a: }}\n")
    recipe = (ROOT / "tests/lab/recipes/lab-smollm2.yml").read_text()
    recipe = recipe.replace("name: lab-smollm2", "name: huge")
    recipe = recipe.replace("size_bytes: 300000000", "size_bytes: 900000000000000")
    lock = ROOT / "tests/lab/engines/sglang/requirements.lock"
    (tmp_path / "huge.yml").write_text(re.sub(r"lock: .*", f"lock: {lock}", recipe))
    arguments = [argument.replace("RECIPES", str(tmp_path)) for argument in arguments]
    if name == "one node for a recipe of two":
        arguments += ["-i", str(tmp_path / "one.yml")]
    inventory = INVENTORY
    if name == "no spark group":
        inventory = "localhost,"
        arguments = [argument for argument in arguments if argument not in ("-i", inventory)]
    before = lab.fingerprint()
    done = lab.play(*arguments, inventory=inventory)
    assert done.returncode != 0, done.stdout
    for text in wanted:
        assert text in done.stdout
    assert "Traceback" not in done.stdout
    assert name == "no spark group" or lab.key not in done.stdout
    assert all(host["changed"] == 0 for host in recap(done.stdout).values())
    assert difference(before, lab.fingerprint()) == []


def test_without_root_the_demo_says_why_it_cannot() -> None:
    script = (ROOT / "tests/tools/root.sh").read_text()
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    done = run(*nobody, "bash", "-c", script, "root.sh", "make demo")
    assert done.returncode == 1
    assert "make demo needs root" in done.stdout
    assert "Wanted: root" in done.stdout


def test_unreachable_node_is_one_message(lab: Lab) -> None:
    lab("kill", "pair", "spark-b")
    try:
        done = lab.play()
    finally:
        lab("start", "pair", "spark-b")
    assert done.returncode != 0
    assert "node.unreachable" in done.stdout
    assert "spark-b" in done.stdout
    assert recap(done.stdout)["spark-a"]["changed"] == 0


def test_a_skewed_driver_names_both_nodes_and_both_versions(lab: Lab) -> None:
    lab("knob", "pair", "spark-b", "driver_version=580.126.09")
    try:
        done = lab.play()
    finally:
        lab("knob", "pair", "spark-b", "driver_version=580.159.03")
    assert done.returncode != 0
    for text in ("gpu.driver_lockstep", "spark-a", "580.159.03", "spark-b", "580.126.09"):
        assert text in done.stdout
    assert {node: recap(done.stdout)[node]["changed"] for node in NODES} == dict.fromkeys(NODES, 0)


def test_check_mode_on_fresh_nodes_fails_nowhere_and_changes_nothing(lab: Lab) -> None:
    before = lab.fingerprint()
    done = lab.play("--check", "--diff")
    assert done.returncode == 0, done.stdout
    assert difference(before, lab.fingerprint()) == []
    # It also says what it would do.
    assert all(recap(done.stdout)[node]["changed"] > 5 for node in NODES)


# ---------------------------------------------------------------- the main job
def test_site_converges(lab: Lab) -> None:
    done = lab.play()
    assert done.returncode == 0, done.stdout
    report = json.loads((lab.home / "acceptance.json").read_text())
    assert report["accepted"] is True
    assert "platform.architecture" in report["record"]["waivers"]
    assert [result["status"] for result in report["results"]] == ["passed"] * 6


def test_second_run_changes_nothing(lab: Lab) -> None:
    done = lab.play("-vvvv")
    assert done.returncode == 0, done.stdout
    assert {node: recap(done.stdout)[node]["changed"] for node in NODES} == dict.fromkeys(NODES, 0)
    assert lab.key not in done.stdout
    limit = json.loads((ROOT / "tests/bench/limits.json").read_text())["ssh_round_trips_per_node"]
    trips = round_trips(done.stdout)
    assert len(trips) == len(NODES)
    assert max(trips.values()) <= limit, trips


def test_check_mode_on_a_converged_pair_has_nothing_to_say(lab: Lab) -> None:
    done = lab.play("--check", "--diff")
    assert done.returncode == 0, done.stdout
    assert {node: recap(done.stdout)[node]["changed"] for node in NODES} == dict.fromkeys(NODES, 0)


@pytest.mark.parametrize("stage", ["preflight", "baseline", "fabric", "engine", "model", "serve", "accept"])
def test_every_stage_runs_alone(lab: Lab, stage: str) -> None:
    done = lab.play(playbook=f"tandem.spark.{stage}")
    assert done.returncode == 0, done.stdout
    assert {node: recap(done.stdout)[node]["changed"] for node in NODES} == dict.fromkeys(NODES, 0)


def test_ranks_run_and_both_nodes_hold_the_same_bytes(lab: Lab) -> None:
    for node in NODES:
        assert lab.ssh(node, "systemctl is-active tandem-rank").strip() == "active"
        assert lab.ssh(node, "systemctl is-enabled tandem-rank").strip() == "enabled"
    for record, key in (("engine", "digest"), ("model", "manifest_digest")):
        values = {json.loads(lab.ssh(node, f"cat /var/lib/tandem/records/{record}.json"))[key] for node in NODES}
        assert len(values) == 1
        assert re.fullmatch(r"[0-9a-f]{64}", values.pop())


def test_sglang_takes_every_launch_line(lab: Lab) -> None:
    assert complaints(lab, "sglang", "sglang") == {}


def test_only_the_key_opens_the_api(lab: Lab) -> None:
    answer = lab.ask("What is 17*23?", lab.key)
    assert answer.status_code == 200
    assert "391" in answer.json()["choices"][0]["message"]["content"]
    assert lab.ask("What is 17*23?", None).status_code == 401


def test_the_key_is_in_no_command_line_log_or_open_file(lab: Lab) -> None:
    for node in NODES:
        for place in (
            "cat /proc/[0-9]*/cmdline | tr '\\0' ' '",
            "journalctl --no-pager -o cat",
            "cat /etc/systemd/system/tandem-rank.service",
        ):
            assert lab.key not in lab.ssh(node, place)
        assert lab.ssh(node, f"grep -rlF -- '{lab.key}' /etc /var/lib/tandem /var/cache/tandem || true").split() == (
            ["/etc/tandem/api-key"] if node == "spark-a" else []
        )
    assert lab.ssh("spark-a", "stat -c '%a %U' /etc/tandem/api-key").strip() == "600 root"


def test_tensors_cross_the_fabric(lab: Lab) -> None:
    def sent() -> int:
        return int(lab.ssh("spark-b", "cat /sys/class/net/enp1s0f0np0/statistics/tx_bytes"))

    before = sent()
    assert lab.ask("What is the capital of France?", lab.key).status_code == 200
    assert sent() - before > 10_000


# ---------------------------------------------------------------- what goes wrong
def test_a_lost_mtu_is_put_back(lab: Lab) -> None:
    lab.ssh("spark-b", "ip link set enP2p1s0f0np0 mtu 1500")
    done = lab.play(playbook="tandem.spark.fabric")
    assert done.returncode == 0, done.stdout
    assert recap(done.stdout)["spark-b"]["changed"] == 1
    assert recap(done.stdout)["spark-a"]["changed"] == 0
    assert lab.ssh("spark-b", "cat /sys/class/net/enP2p1s0f0np0/mtu").strip() == "9000"


def test_a_flipped_byte_in_the_model_is_found_and_repaired(lab: Lab) -> None:
    path = lab.ssh("spark-b", "ls /var/lib/tandem/current/model/*.safetensors | head -1").strip()
    flip = f"printf X | dd of={path} bs=1 seek=5000 conv=notrunc status=none"
    lab.ssh("spark-b", f"touch -r {path} /tmp/t; {flip}; touch -r /tmp/t {path}")
    done = lab.play(playbook="tandem.spark.model")
    assert done.returncode == 0, done.stdout
    assert recap(done.stdout)["spark-b"]["changed"] >= 1
    sums = {lab.ssh(node, f"sha256sum {path}").split()[0] for node in NODES}
    assert len(sums) == 1


def test_half_a_group_is_started_again_as_a_whole(lab: Lab) -> None:
    head_before = lab.ssh("spark-a", "systemctl show -p InvocationID tandem-rank")
    lab.ssh("spark-b", "systemctl kill -s KILL tandem-rank")
    done = lab.play(playbook="tandem.spark.serve")
    assert done.returncode == 0, done.stdout
    assert lab.ssh("spark-a", "systemctl show -p InvocationID tandem-rank") != head_before
    assert lab.ask("What is 17*23?", lab.key).status_code == 200


def test_serve_waits_for_a_group_that_somebody_else_started(lab: Lab) -> None:
    for node in NODES:
        lab.ssh(node, "systemctl restart tandem-rank")
    done = lab.play(playbook="tandem.spark.serve")
    assert done.returncode == 0, done.stdout
    assert {node: recap(done.stdout)[node]["changed"] for node in NODES} == dict.fromkeys(NODES, 0)
    assert lab.ask("What is 17*23?", lab.key).status_code == 200


def test_a_unit_edited_by_hand_is_put_back_and_read_again(lab: Lab) -> None:
    lab.ssh("spark-b", "sed -i s/TimeoutStopSec=60/TimeoutStopSec=61/ /etc/systemd/system/tandem-rank.service")
    done = lab.play(playbook="tandem.spark.serve")
    assert done.returncode == 0, done.stdout
    assert {node: recap(done.stdout)[node]["changed"] for node in NODES} == {"spark-a": 0, "spark-b": 1}
    assert lab.ssh("spark-b", "systemctl show -p NeedDaemonReload tandem-rank").strip() == "NeedDaemonReload=no"


def test_a_port_that_somebody_has_is_refused_by_preflight(lab: Lab) -> None:
    lab.ssh("spark-a", "systemd-run --quiet --unit=foreign python3 -m http.server 8001")
    try:
        done = lab.play("-e", "tandem_api_port=8001", playbook="tandem.spark.preflight")
    finally:
        lab.ssh("spark-a", "systemctl stop foreign")
    assert done.returncode != 0
    assert "ports.in_use on spark-a: found port 8001" in done.stdout


def test_the_untaught_model_is_not_accepted(lab: Lab) -> None:
    done = lab.play("-e", "tandem_recipe=lab-smollm2-untaught")
    assert done.returncode != 0
    assert "is not accepted" in done.stdout
    assert "wanted 391" in done.stdout
    report = json.loads((lab.home / "acceptance.json").read_text())
    assert report["accepted"] is False
    by_name = {result["name"]: result["status"] for result in report["results"]}
    assert by_name["17*23 = 391"] == "failed"
    assert by_name["nobody gets in without a key"] == "passed"


def test_one_node_needs_no_fabric(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "one.yml").write_text("one: {hosts: {spark-a: }}\n")
    one = ["-i", str(tmp_path / "one.yml"), "-e", "tandem_group=one", "-e", "tandem_recipe=lab-smollm2-single"]
    done = lab.play(*one, "-e", '{"tandem_links": []}')
    assert done.returncode == 0, done.stdout
    assert "spark-b" not in recap(done.stdout)
    assert "391" in lab.ask("What is 17*23?", lab.key).text
    assert "--nnodes" not in lab.ssh("spark-a", "cat /var/lib/tandem/current/rank.json")


def test_and_back_to_the_taught_one(lab: Lab) -> None:
    done = lab.play()
    assert done.returncode == 0, done.stdout
    assert "391" in lab.ask("What is 17*23?", lab.key).text

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.tandem.spark.plugins.module_utils import _firewall, _forward, _journal, _netplan
from ansible_collections.tandem.spark.plugins.modules import fabric_config

LINK = {"interface": "enp1s0f0np0", "address": "192.168.100.10/24", "mtu": 9000}
SECOND = {"interface": "enp1s0f1np1", "address": "192.168.101.10/24", "mtu": 9000}
NFT = Path(__file__).parents[2] / "fixtures/nft"
LISTED = Path(__file__).parents[2] / "fixtures/firewalld"
OLD = _netplan.render([dict(LINK, address="192.168.100.9/24")], backend="networkd")


@pytest.fixture
def node(commands, monkeypatch, tmp_path):
    """A node whose interface takes what its netplan file says, with a timer that can be armed."""
    path, bin_ = tmp_path / "60-tandem-fabric.yaml", tmp_path / "bin"
    bin_.mkdir()
    for program in ("ip", "netplan", "systemctl", "nft", "iptables", "nmcli"):
        (bin_ / program).write_text("#!/bin/sh\nexit 3\n")
        (bin_ / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:/usr/bin:/bin")
    monkeypatch.setattr(_journal, "DIRECTORY", str(tmp_path / "journal"))
    monkeypatch.setattr(_journal, "BOOT_UNIT", str(tmp_path / "boot.service"))
    monkeypatch.setattr(_journal, "BOOT_LINK", str(tmp_path / "boot.wants"))
    monkeypatch.setattr(_journal, "SETTLE_S", 0.2)
    monkeypatch.setattr(_journal.time, "sleep", lambda _seconds: None)
    for name in ("SYSCTL_FILE", "NFT_FILE", "UNITS", "PROC"):
        monkeypatch.setattr(_forward, name, str(tmp_path / name.lower()))
    monkeypatch.setattr(_forward, "ALL_PATHS", tuple(p.replace("/etc", str(tmp_path)) for p in _forward.ALL_PATHS))
    monkeypatch.setattr(fabric_config, "SETTLE_S", 0)
    monkeypatch.setattr(fabric_config, "other_files", lambda _paths, _renderer: state["others"])
    state = {"path": path, "timer": False, "others": {}, "links": {}, "deaf": False, "table": False, "docker": None}
    state.update(journal=tmp_path / "journal", bin=bin_, routes=[], dark=False, manager=False, devices="")
    state.update(rules=None, loaded=[], ufw="", zone=False, units=[])
    state["netplan"] = {"generate": (0, "", ""), "apply": (0, "", "")}

    def shown():
        found = [{"ifname": "lo", "addr_info": [], "flags": ["UP"]}]
        for name, link in {LINK["interface"]: None, **state["links"]}.items():
            ip, prefix = link["address"].split("/") if link else ("", "0")
            info = [{"family": "inet", "local": ip, "prefixlen": int(prefix), "scope": "global"}] if link else []
            info = [] if state["dark"] else info
            flags = ["UP", "NO-CARRIER"] if state["dark"] else ["UP"]
            found.append({"ifname": name, "mtu": (link or {}).get("mtu", 1500), "flags": flags, "addr_info": info})
        return json.dumps(found)

    def netplan(words, _options):
        if words[1] == "apply" and not state["deaf"]:
            data = yaml.safe_load(path.read_text()) if path.exists() else {"network": {"ethernets": {}}}
            entries = data["network"]["ethernets"]
            state["links"] = {n: {"address": e["addresses"][0], "mtu": e["mtu"]} for n, e in entries.items()}
            state["routes"] = [
                {"dst": r["to"], "gateway": r["via"], "dev": n} for n, e in entries.items() for r in e.get("routes", [])
            ]
        return state["netplan"][words[1]]

    def arm(words, _options):
        state["timer"] = True
        state["revert"] = words[words.index(sys.executable) :]
        return state.get("arm", (0, "", ""))

    def ruleset():
        """What nft lists: the table that was recorded, where it is there, beside *others*."""
        own = json.loads((NFT / "tandem-fabric.json").read_text())["nftables"] if state["table"] else []
        return json.dumps({"nftables": [*own[: state["rules"]], *state["loaded"]]})

    def restart(words, _options):
        state["table"] = state["table"] or words[2] == _forward.UNIT
        return 0, "", ""

    def way_back(words):
        """What _journal runs by itself."""
        if words[0] == "netplan":
            netplan(words, {})
        elif words[:3] == ["ip", "addr", "del"]:  # ADDRESS dev NAME
            state["links"].pop(words[5], None)
        return (0, shown()) if "addr" in words else ((0, "[]") if "-j" in words else (3, ""))

    def old():
        path.write_text(OLD)
        netplan(["netplan", "apply"], {})

    state["old"] = old
    monkeypatch.setattr(_journal, "execute", way_back)
    commands[f"{bin_}/ip -j addr"] = lambda _words, _options: (0, shown(), "")
    commands[f"{bin_}/ip -j -4 route"] = lambda _words, _options: (0, json.dumps(state["routes"]), "")
    commands["netplan"] = netplan
    commands["sysctl --quiet"] = (0, "", "")
    commands["systemd-run"] = arm
    commands["systemctl is-active --quiet NetworkManager"] = lambda _w, _o: (0 if state["manager"] else 3, "", "")
    commands["systemctl is-active --quiet systemd-networkd"] = (0, "", "")
    commands["systemctl daemon-reload"] = (0, "", "")
    commands["systemctl restart"] = restart
    commands["nmcli --terse"] = lambda _words, _options: (0, state["devices"], "")
    commands["nft -j list ruleset"] = lambda _words, _options: (0, ruleset(), "")
    commands["nft list table inet tandem_fabric"] = lambda _words, _options: (0 if state["table"] else 1, "", "")

    def docker_rules(_words, _options):
        return (1, "", "") if state["docker"] is None else (0, state["docker"], "")

    commands["iptables -w -S DOCKER-USER"] = docker_rules
    return state


def pending(state):
    return (state["journal"] / "pending").exists()


@pytest.fixture
def configure(run_module, node):
    def run(*links, check_mode=False, **options):
        arguments = {"links": list(links or [LINK]), "path": str(node["path"]), **options}
        return run_module(fabric_config, arguments, check_mode=check_mode)

    return run


def ran(commands, word):
    return [words for words in commands["ran"] if words[0] == word]


def own_diff(result, state):
    return next(d for d in result["diff"] if str(state["path"]) in d["before_header"])


def test_apply_confirm_and_a_second_run(configure, node, commands):
    would = configure(check_mode=True)
    assert would["changed"] is True and not node["path"].exists() and not node["journal"].exists()
    assert not ran(commands, "netplan") and not ran(commands, "systemd-run")
    first = configure()
    assert first["changed"] is True and "none" in first["drift"][0] and first["renderer"] == "netplan"
    assert stat.S_IMODE(node["path"].stat().st_mode) == 0o600  # C16
    assert node["path"].read_text() == own_diff(would, node)["after"] == own_diff(first, node)["after"]
    assert "192.168.100.10/24" in node["path"].read_text()
    assert node["timer"] and pending(node)
    confirmed = configure(state="confirmed")
    assert confirmed["changed"] is False and not pending(node) and (node["journal"] / "original").exists()
    assert not Path(_journal.BOOT_UNIT).exists()
    second = configure()
    assert second["changed"] is False and second["drift"] == [] and second["diff"] == []
    assert len(ran(commands, "systemd-run")) == 1
    assert second["rdma"] == "not checked: no RDMA device"


def test_the_timer_is_armed_before_anything_is_written(configure, node, commands):
    node["arm"] = (1, "", "no systemd here")
    result = configure()
    assert result["failed"] and "nothing was changed" in result["msg"] and not node["path"].exists()
    assert not ran(commands, "netplan") and not pending(node)
    words = ran(commands, "systemd-run")[0]
    assert "--on-active=120s" in words and "--unit=tandem-fabric-revert" in words


@pytest.mark.parametrize("step", ["generate", "apply"])
@pytest.mark.parametrize("before", [None, OLD], ids=["no file", "old file"])
def test_netplan_fails(configure, node, step, before):
    if before:
        node["path"].write_text(before)
        node["path"].chmod(0o640)
    node["netplan"][step] = (1, "", "line 3: error")
    result = configure()
    assert result["failed"] and f"netplan {step}" in result["msg"] and "line 3: error" in result["msg"]
    assert (node["path"].read_text() if node["path"].exists() else None) == before
    assert not before or stat.S_IMODE(node["path"].stat().st_mode) == 0o640
    assert not pending(node) and (node["journal"] / "reverted/note.json").exists()


def test_an_interface_that_does_not_take_it(configure, node):
    node["path"].write_text(OLD)
    node["deaf"] = True
    result = configure()
    assert result["failed"] and "enp1s0f0np0" in result["msg"] and node["path"].read_text() == OLD
    assert not pending(node)


def test_an_interface_without_carrier_is_no_failure_yet(configure, node):
    """The other end may be switched on after this one; the probe waits and judges."""
    node["dark"] = True
    result = configure()
    assert "failed" not in result and result["changed"] and pending(node)
    configure(state="confirmed")
    assert configure()["changed"] is False  # applying it again would not bring the carrier


@pytest.mark.parametrize("before", [None, OLD], ids=["no file", "old file"])
def test_a_run_after_one_that_never_confirmed(configure, node, before):
    """The timer of the first run still goes: saying 'unchanged' would let it take the configuration away."""
    if before:
        node["path"].write_text(before)
    configure()
    again = configure()
    assert again["changed"] is True and configure(check_mode=True)["changed"] is True
    assert configure(state="confirmed")["changed"] is False and not pending(node)
    assert configure()["changed"] is False


def test_the_way_back_of_a_second_change_is_what_was_confirmed(configure, node):
    node["path"].write_text(OLD)
    configure()
    configure(dict(LINK, mtu=4200))
    assert _journal.read("pending")["files"][0]["content"].decode() == OLD
    node["netplan"]["generate"] = (1, "", "bad")
    assert configure(dict(LINK, mtu=1500))["failed"]
    assert node["path"].read_text() == OLD


def test_reverted_at_once(configure, node):
    node["old"]()
    assert configure(state="reverted")["changed"] is False
    configure()
    assert configure(state="reverted", check_mode=True)["changed"] is True and pending(node)
    assert configure(state="reverted")["changed"] is True and node["path"].read_text() == OLD and not pending(node)


def test_a_confirmation_that_comes_too_late(configure, node):
    configure()
    _journal.revert()
    result = configure(state="confirmed")
    assert result["failed"] and "fabric_revert_after_s" in result["msg"]


def test_a_confirmation_of_nothing(configure, node):
    assert configure(state="confirmed")["changed"] is False


@pytest.mark.parametrize("before", [None, OLD], ids=["no file", "old file"])
def test_what_the_timer_runs_puts_the_old_file_back(configure, node, before, tmp_path):
    if before:
        node["path"].write_text(before)
    configure()
    program = Path(node["revert"][1])
    assert program.read_text() == Path(_journal.__file__).read_text()
    program.write_text(program.read_text().replace("/var/lib/tandem/journal/fabric", str(node["journal"])))
    (node["bin"] / "netplan").write_text(f"#!/bin/sh\necho $1 > {tmp_path}/applied\n")
    done = subprocess.run(node["revert"], check=True, capture_output=True, text=True)
    assert "the old configuration is back" in done.stdout
    assert (node["path"].read_text() if node["path"].exists() else None) == before
    assert (tmp_path / "applied").read_text() == "apply\n"
    assert "nothing was put back" in subprocess.run(node["revert"], check=True, capture_output=True, text=True).stdout


def test_restored(configure, node):
    nothing = configure(state="restored")
    assert nothing["changed"] is False and "nothing to restore" in nothing["msg"]
    node["old"]()
    node["path"].chmod(0o604)
    for mtu in (9000, 4200):
        configure(dict(LINK, mtu=mtu))
        configure(state="confirmed")
    would = configure(state="restored", check_mode=True)
    assert would["changed"] is True and would["diff"][0]["after"] == OLD and node["path"].read_text() != OLD
    assert configure(state="restored")["changed"] is True
    assert node["path"].read_text() == OLD and stat.S_IMODE(node["path"].stat().st_mode) == 0o604
    assert pending(node)  # a restore can cut SSH just as well
    configure(state="confirmed")
    assert "nothing to restore" in configure(state="restored")["msg"]


def test_a_restore_that_nobody_confirms(configure, node):
    node["old"]()
    configure()
    configure(state="confirmed")
    new = node["path"].read_text()
    configure(state="restored")
    _journal.revert()
    assert node["path"].read_text() == new and _journal.read("original")["files"][0]["content"].decode() == OLD


def test_c14_an_mtu_that_was_lost_is_put_back(configure, node):
    configure()
    configure(state="confirmed")
    node["links"]["enp1s0f0np0"]["mtu"] = 1500
    result = configure()
    assert result["changed"] is True and result["drift"] == ["enp1s0f0np0: mtu 1500, wanted 9000"]
    assert result["diff"] == [
        {
            "before_header": "running state",
            "after_header": "running state",
            "before": "enp1s0f0np0: mtu 1500, wanted 9000\n",
            "after": "",
        }
    ]


def test_c16_a_file_that_others_may_read(configure, node):
    configure()
    configure(state="confirmed")
    node["path"].chmod(0o644)
    assert configure()["changed"] is True
    assert stat.S_IMODE(node["path"].stat().st_mode) == 0o600


CX7 = "network:\n  ethernets:\n    enp1s0f0np0:\n      addresses: [192.168.100.9/24]\n"
MORE = CX7 + "    enP7s7:\n      dhcp4: true\n"


def test_c16_another_file_with_our_interface(configure, node, commands):
    node["others"] = {"/etc/netplan/40-cx7.yaml": CX7}
    for check_mode in (True, False):
        result = configure(check_mode=check_mode)
        assert result["failed"] and "/etc/netplan/40-cx7.yaml" in result["msg"] and "enp1s0f0np0" in result["msg"]
        assert "fabric_take_over" in result["msg"]
    assert not node["path"].exists() and not ran(commands, "netplan")


def test_c16_taken_over_and_put_back(configure, node, tmp_path):
    other = tmp_path / "40-cx7.yaml"
    other.write_text(CX7)
    other.chmod(0o640)
    node["others"] = {str(other): CX7}
    result = configure(take_over=True)
    assert result["changed"] and not other.exists() and str(other) in result["files"]
    assert result["taken_over"] == [str(other)] and result["notes"] == []
    node["others"] = {}
    configure(state="confirmed")
    configure(state="restored")
    assert other.read_text() == CX7 and stat.S_IMODE(other.stat().st_mode) == 0o640


@pytest.mark.parametrize("text", [MORE, "network: {ethernets: {enp1s0f0np0: {}}}"], ids=["more in it", "flow style"])
def test_c16_a_file_that_does_more_is_never_moved(configure, node, text):
    node["others"] = {"/etc/netplan/40-cx7.yaml": text}
    result = configure(take_over=True)
    assert result["failed"] and "by hand" in result["msg"] and ("enP7s7" in result["msg"]) == ("enP7s7" in text)


ROUTES = [{"destination": "10.0.2.0/30", "via": "192.168.101.11", "interface": "enp1s0f1np1"}]
PAIRS = [["enp1s0f0np0", "enp1s0f1np1"]]


@pytest.fixture
def middle(configure, node):
    node["links"] = {"enp1s0f1np1": {"address": "192.168.9.9/24", "mtu": 1500}}

    def run(**options):
        return configure(LINK, SECOND, routes=ROUTES, forwarding=PAIRS, **options)

    return run


def test_a_middle_node(middle, node, commands):
    result = middle()
    assert "failed" not in result and any("no table" in line for line in result["drift"])
    assert ["systemctl", "restart", "tandem-fabric-forward.service"] in commands["ran"]
    assert "net.ipv4.conf.enp1s0f1np1.forwarding = 1" in Path(_forward.SYSCTL_FILE).read_text()
    assert '"via": "192.168.101.11"' in node["path"].read_text()
    middle(state="confirmed")
    assert middle()["changed"] is False
    node["routes"] = []
    assert middle(check_mode=True)["drift"] == ["enp1s0f1np1: no route to 10.0.2.0/30 via 192.168.101.11"]


def test_a_sysctl_that_somebody_changed(middle, node):
    middle()
    middle(state="confirmed")
    place = Path(_forward.PROC) / "enp1s0f0np0"
    place.mkdir(parents=True)
    (place / "forwarding").write_text("0\n")
    assert middle(check_mode=True)["drift"] == [f"{place}/forwarding: 0, wanted 1"]


def test_docker_drops_what_is_passed_on(middle, node):
    node["docker"] = "-N DOCKER-USER\n"
    result = middle(docker_forward=False)
    assert "fabric_docker_forward" in result["notes"][0] and "enp1s0f0np0 to enp1s0f1np1" in result["notes"][0]
    middle(state="confirmed")
    result = middle()
    assert result["failed"] and "DOCKER-USER" in result["msg"]  # the unit's rule did not come
    rules = "".join(f"-A DOCKER-USER -i {a} -o {b} -j ACCEPT\n" for a, b in (PAIRS[0], PAIRS[0][::-1]))
    node["docker"] = rules
    assert "failed" not in middle()
    assert "docker.service.wants" in str(next(Path(_forward.UNITS).glob("docker.service.wants/*")))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"routes": [dict(ROUTES[0], interface="eth0")]}, "over a link of this node"),
        ({"routes": [dict(ROUTES[0], destination="0.0.0.0/0", interface="enp1s0f0np0")]}, "default route"),
        ({"forwarding": [["enp1s0f0np0", "enP7s7"]]}, "pairs of this node's links"),
    ],
)
def test_plans_that_make_no_sense(configure, node, options, text):
    result = configure(**options)
    assert result["failed"] and text in result["msg"] and not node["path"].exists()


def test_the_owner_of_the_interface_carries_it_out(configure, node):
    node["manager"], node["devices"] = True, "enp1s0f0np0:disconnected\nenP7s7:connected\n"
    assert '"renderer": "NetworkManager"' in own_diff(configure(check_mode=True), node)["after"]
    node["devices"] = "enp1s0f0np0:unmanaged\n"
    assert '"renderer": "networkd"' in own_diff(configure(check_mode=True), node)["after"]


ALLOW = [{"interface": "enp1s0f0np0", "sources": ["10.100.0.0/30"]}]


@pytest.fixture
def guarded(configure, node, commands, monkeypatch, tmp_path):
    """A node with ufw, firewalld, or both; what they are told shows when they are asked again."""
    for name, path in (("UFW_CONF", "ufw.conf"), ("ZONES", "zones"), ("ZONE_FILE", "zones/tandem-fabric.xml")):
        monkeypatch.setattr(_firewall, name, str(tmp_path / path))
    added = ["ufw allow 22/tcp"]
    node.update(
        added=added, lists=dict.fromkeys(("running", "permanent"), (LISTED / "permanent-zones.txt").read_text())
    )

    def ufw(words, _options):
        if words[1:] == ["show", "added"]:
            return 0, "\n".join(added), ""
        if "delete" in words:
            added[:] = [line for line in added if not line.startswith(" ".join(w for w in words if w != "delete"))]
        else:
            added.append(" ".join(words[:-1]) + f" '{words[-1]}'")
        return 0, "", ""

    commands["ufw"] = ufw
    commands["firewall-cmd --list-all-zones"] = lambda _w, _o: (0, node["lists"]["running"], "")
    commands["firewall-cmd --permanent"] = lambda _w, _o: (0, node["lists"]["permanent"], "")
    commands["firewall-cmd --reload"] = (0, "success", "")
    commands["systemctl is-active --quiet firewalld"] = lambda _w, _o: (0 if node["zone"] else 3, "", "")

    def run(*active, **options):
        for program in active:
            (node["bin"] / {"ufw": "ufw", "firewalld": "firewall-cmd"}[program]).touch(mode=0o755)
        node["zone"] = "firewalld" in active
        (tmp_path / "ufw.conf").write_text(f"ENABLED={'yes' if 'ufw' in active else 'no'}\n")
        return configure(firewall=ALLOW, **options)

    return run


def test_ufw_is_told_and_told_once(guarded, node, commands):
    would = guarded("ufw", check_mode=True)
    assert "ufw: no rule `allow in on enp1s0f0np0 from 10.100.0.0/30`" in would["diff"][-1]["before"]
    assert node["added"] == ["ufw allow 22/tcp"]
    first = guarded("ufw")
    rule = "ufw allow in on enp1s0f0np0 from 10.100.0.0/30 comment 'tandem.spark fabric'"
    assert first["firewalls"] == ["ufw"] and node["added"] == ["ufw allow 22/tcp", rule]
    guarded("ufw", state="confirmed")
    second = guarded("ufw")
    assert second["changed"] is False and second["closed"] == []
    assert not [w for w in commands["ran"] if w[0] == "ufw" and w[1] in ("enable", "disable", "reload", "reset")]


def test_where_no_firewall_is_active_none_is_asked(guarded, commands):
    assert guarded()["firewalls"] == [] and guarded("ufw", manage_firewall=False)["firewalls"] == []
    assert not [w for w in commands["ran"] if w[0] in ("ufw", "firewall-cmd")]


def test_firewalld_gets_a_zone_and_one_reload(guarded, node, commands, tmp_path):
    result = guarded("firewalld")
    assert "failed" not in result, result["msg"]
    assert 'address="10.100.0.0/30"' in (tmp_path / "zones/tandem-fabric.xml").read_text()
    assert commands["ran"].count(["firewall-cmd", "--reload"]) == 1
    guarded("firewalld", state="confirmed")
    assert guarded("firewalld")["changed"] is False


def test_firewalld_is_not_reloaded_where_that_forgets_something(guarded, node, commands, tmp_path):
    node["lists"]["running"] = (LISTED / "running-zones.txt").read_text()
    for check_mode in (True, False):
        result = guarded("firewalld", check_mode=check_mode)
        assert result["failed"] and "public: ports 99/tcp" in result["msg"] and "Nothing was changed" in result["msg"]
    assert not pending(node) and not node["path"].exists() and not (tmp_path / "zones").exists()


@pytest.mark.parametrize(("target", "refused"), [("", True), (' target="ACCEPT"', False)])
def test_a_link_in_a_zone_of_somebody_else(guarded, tmp_path, target, refused):
    (tmp_path / "zones").mkdir()
    (tmp_path / "zones/lab.xml").write_text(f'<zone{target}><interface name="enp1s0f0np0"/></zone>')
    result = guarded("firewalld")
    assert bool(result.get("failed")) is refused and not (tmp_path / "zones/tandem-fabric.xml").exists()
    assert not refused or "--zone=lab --remove-interface=enp1s0f0np0" in result["msg"]


def test_a_table_by_hand_is_named(guarded, node):
    node["loaded"] = json.loads((NFT / "hand-written.json").read_text())["nftables"]
    result = guarded()
    assert "failed" not in result and result["closed"] == result["notes"]
    assert "this node: found that table inet hand, chain input (policy drop)" in result["closed"][0]
    assert "ip saddr { 10.100.0.0/30 } accept`" in result["closed"][0]


@pytest.mark.parametrize("entry", [dict(ALLOW[0], interface="eth0"), dict(ALLOW[0], sources=["10.0.0.300"])])
def test_allowances_that_make_no_sense(configure, node, entry):
    result = configure(firewall=[entry])
    assert result["failed"] and "firewall:" in result["msg"] and not node["path"].exists()


def test_a_rule_that_is_missing_from_our_table_is_drift(middle, node):
    middle()
    middle(state="confirmed")
    assert middle()["changed"] is False
    node["rules"] = -1
    drift = middle(check_mode=True)["drift"]
    assert len(drift) == 1 and drift[0].startswith("nftables: tandem_fabric lacks `iifname")


def test_an_interface_that_is_not_there(configure, node):
    result = configure(LINK, dict(LINK, interface="enp1s0f1np1", address="10.0.0.1/24"))
    assert result["failed"] and "enp1s0f1np1" in result["msg"] and "enp1s0f0np0" not in result["msg"]


def test_nobody_configures_interfaces(configure, node, commands):
    (node["bin"] / "netplan").unlink()
    commands["systemctl is-active --quiet systemd-networkd"] = (3, "", "")
    result = configure()
    assert result["failed"] and "netplan.io" in result["msg"] and not node["path"].exists() and not node["timer"]


def test_other_files(monkeypatch, tmp_path):
    own, other = tmp_path / "60.yaml", tmp_path / "40.yaml"
    own.write_text("own")
    other.write_text("other")
    monkeypatch.setattr(
        fabric_config.glob, "glob", lambda pattern: [str(own), str(other)] if "etc/netplan" in pattern else []
    )
    assert fabric_config.other_files([str(own)], "netplan") == {str(other): "other"}
    assert fabric_config.other_files([str(own)], "networkd") == {}

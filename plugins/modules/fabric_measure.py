#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_measure
short_description: Measure TCP and RDMA on the fabric links, and judge the numbers
description:
  - With O(state=listening) starts the servers of iperf3, and of C(ib_write_bw) and C(ib_write_lat) where there are RDMA
    devices, as transient units that end by themselves. With O(state=measured) measures every link to every peer, RDMA
    also in both directions at the same time, then all links at once. Call it on one node after another, so that both
    directions are measured and nobody disturbs.
  - What a rail should give comes from sysfs, the rate of the port and the PCIe link of the half.
  - What is not there is "not checked", with the reason, and never "ok".
version_added: 0.1.0
author:
  - The tandem.spark contributors (@tandem-spark)
extends_documentation_fragment:
  - tandem.spark._attributes
attributes:
  check_mode:
    support: none
  diff_mode:
    support: none
options:
  links:
    description: The links of this node, each with its peers.
    type: list
    elements: dict
    required: true
    suboptions:
      interface:
        description: Network interface.
        type: str
        required: true
      ip:
        description: Its address.
        type: str
        required: true
      peers:
        description: Who is at the other end.
        type: list
        elements: dict
        required: true
  seconds:
    description: Duration of one measurement.
    type: int
    default: 3
  streams:
    description: TCP streams at the same time. One stream says nothing about the link.
    type: int
    default: 4
  lifetime_s:
    description: Seconds after which a server ends.
    type: int
    default: 900
  state:
    description: What to do.
    type: str
    choices: [listening, measured, stopped]
    required: true
"""

EXAMPLES = r"""
- name: Measure the links
  tandem.spark.fabric_measure:
    links: "{{ tandem_node.links }}"
    state: measured
  throttle: 1
"""

RETURN = r"""
measured:
  description: One entry per link, peer and test with C(gbps) (or C(microseconds)) and the verdict.
  returned: when O(state=measured)
  type: list
  elements: dict
not_checked:
  description: What was not measured, with the reason.
  returned: success
  type: list
  elements: str
"""

import asyncio
import os
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _fabric, _gather_fabric, _throughput
from ansible_collections.tandem.spark.plugins.module_utils._host import Host

PREFIX = "tandem-fabric-measure-"
PORTS = {"tcp": 18400, "ib_write_bw": 18410, "ib_write_lat": 18420, "ib_write_bw_both_ways": 18430}
# Test to perftest's program and what it gets beside the usual.
RDMA_TESTS = {
    "ib_write_bw": ("ib_write_bw", ["--report_gbits"]),
    "ib_write_lat": ("ib_write_lat", []),
    "ib_write_bw_both_ways": ("ib_write_bw", ["-b", "--report_gbits"]),
}


def port(test: str, interface: str) -> int:
    """A port of its own for every half of every cage, the same on all nodes."""
    cage, half = _fabric.fabric_name(interface) or (2, 0)
    return PORTS[test] + 2 * cage + half


def devices(links: list[dict[str, t.Any]]) -> dict[str, dict[str, t.Any]]:
    """RDMA device of each link that has one: ``name``, ``gid``, ``rate``, ``pcie`` (Gb/s), ``speed`` (Mb/s)."""
    host = Host()
    found = _gather_fabric.rdma_devices(host) or {}
    result = {}
    for link in links:
        for name, device in found.items():
            if device["interface"] == link["interface"]:
                card = _gather_fabric.interface(host, link["interface"], None)
                result[link["interface"]] = {
                    "name": name,
                    "gid": _fabric.roce_index(device["gids"], link["ip"]),
                    "rate": device["rate"],
                    "pcie": _throughput.pcie_gbps(card["pcie"]["speed_gts"], card["pcie"]["width"]),
                    "speed": card["speed_mbps"],
                }
    return result


def rdma_words(program: str, test: str, device: dict[str, t.Any], where: int, seconds: int) -> list[str]:
    words = [program, "-d", device["name"], "-p", str(where), "-F"]
    words += ["-x", str(device["gid"])] if device["gid"] is not None else []
    return [*words, "-D", str(seconds), *RDMA_TESTS[test][1]]


class Tools:
    """What this node can measure with, and why not with the rest."""

    def __init__(self, module: AnsibleModule) -> None:
        self.links: list[dict[str, t.Any]] = module.params["links"]
        self.iperf3 = module.get_bin_path("iperf3")
        self.rdma = devices(self.links)
        self.perftest = {test: module.get_bin_path(test) for test in ("ib_write_bw", "ib_write_lat")}
        self.not_checked = []
        if self.iperf3 is None:
            self.not_checked.append("TCP: not checked: no iperf3; install it")
        without = [link["interface"] for link in self.links if link["interface"] not in self.rdma]
        if without and self.rdma:
            self.not_checked += [f"RDMA on {interface}: not checked: no RDMA device" for interface in without]
        if not self.rdma:
            self.not_checked.append("RDMA: not checked: no RDMA device")
        elif None in self.perftest.values():
            self.not_checked.append("RDMA: not checked: no ib_write_bw or ib_write_lat; install perftest")

    def tests_of(self, interface: str) -> dict[str, str]:
        """Programs for RDMA tests of one link."""
        ready = interface in self.rdma and None not in self.perftest.values()
        return {test: str(self.perftest[program]) for test, (program, _more) in RDMA_TESTS.items()} if ready else {}

    def halves(self, interface: str) -> int:
        """How many RDMA devices share the cable of *interface*."""
        places = {name: _fabric.fabric_name(name) or (name, 0) for name in self.rdma}
        return sum(place[0] == places[interface][0] for place in places.values())


def servers(tools: Tools, seconds: int) -> dict[str, list[str]]:
    """Unit name to command of every server."""
    found: dict[str, list[str]] = {}
    for link in tools.links:
        name = link["interface"]
        if tools.iperf3:
            found[f"{PREFIX}tcp-{name}"] = [tools.iperf3, "-s", "-B", link["ip"], "-p", str(port("tcp", name))]
        for test, program in tools.tests_of(name).items():
            words = rdma_words(program, test, tools.rdma[name], port(test, name), seconds)
            found[f"{PREFIX}{test}-{name}"] = words
    return found


def listen(module: AnsibleModule, tools: Tools) -> None:
    for unit, words in servers(tools, module.params["seconds"]).items():
        # perftest's servers end after one client, and with the connection that started them: so they are units.
        command = ["systemd-run", "--quiet", "--collect", f"--unit={unit}", "--property=Restart=always"]
        command += ["--property=RestartSec=100ms", "--property=StartLimitIntervalSec=0"]
        command += [f"--property=RuntimeMaxSec={module.params['lifetime_s']}"]
        code, _out, err = module.run_command([*command, *words])
        if code != 0 and "already" not in err:
            module.fail_json(msg=f"{unit} cannot be started: {err.strip()}")


def stop(module: AnsibleModule) -> None:
    module.run_command(["systemctl", "stop", f"{PREFIX}*"])


async def run(command: list[str], limit_s: float) -> str:
    """Output of *command*; several run at once, which AnsibleModule.run_command cannot."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={**os.environ, "LC_ALL": "C"}
    )
    try:
        out, _nothing = await asyncio.wait_for(process.communicate(), limit_s)
    except asyncio.TimeoutError:
        process.kill()
        await process.wait()
        return ""
    return out.decode("utf-8", "replace")


async def tcp(module: AnsibleModule, tools: Tools, link: dict[str, t.Any], peer: dict[str, t.Any]) -> dict[str, t.Any]:
    p = module.params
    words = [str(tools.iperf3), "-c", peer["ip"], "-B", link["ip"], "-p", str(port("tcp", peer["interface"]))]
    words += ["-P", str(p["streams"]), "-t", str(p["seconds"]), "--json", "--connect-timeout", "3000"]
    out = await run(words, p["seconds"] + 15)
    figure = _throughput.iperf3(out)
    # A stream of TCP says what the processor can do; it is a figure, not a verdict (hardware, section 12.3).
    verdict = "recorded" if figure else _throughput.NOT_MEASURED
    found = {"test": "tcp", "interface": link["interface"], "peer": peer["node"], "gbps": figure, "verdict": verdict}
    return {**found, "streams": p["streams"], **({} if figure else {"hint": _throughput.iperf3_error(out)})}


async def rdma(
    module: AnsibleModule, tools: Tools, test: str, link: dict[str, t.Any], peer: dict[str, t.Any]
) -> dict[str, t.Any]:
    name = link["interface"]
    program = tools.tests_of(name)[test]
    words = rdma_words(program, test, tools.rdma[name], port(test, peer["interface"]), module.params["seconds"])
    out = ""
    end = time.monotonic() + module.params["seconds"] + 20
    for _attempt in range(5):  # the server starts anew after each client
        out = await run([*words, peer["ip"]], max(1.0, end - time.monotonic())) or out
        if _throughput.write_bandwidth(out) or _throughput.write_latency(out) or time.monotonic() > end:
            break
        await asyncio.sleep(0.3)
    found = {"test": test, "interface": name, "peer": peer["node"], "device": tools.rdma[name]["name"]}
    trouble = _throughput.perftest_error(out) or "no answer"
    if test == "ib_write_lat":
        figure = _throughput.write_latency(out)
        judged = {"microseconds": figure, "verdict": "recorded" if figure else _throughput.NOT_MEASURED, "hint": None}
    else:
        figure = _throughput.write_bandwidth(out)
        if figure and test == "ib_write_bw_both_ways":
            figure = round(figure / 2, 2)  # perftest gives the sum
        device = tools.rdma[name]
        judged = _throughput.rail(figure, device["rate"], tools.halves(name), device["speed"], device["pcie"])
    return {**found, **judged, **({} if figure else {"hint": trouble})}


async def measure(module: AnsibleModule, tools: Tools) -> list[dict[str, t.Any]]:
    """Every link alone, then all of them at the same time."""
    ways = [(link, peer) for link in tools.links for peer in link["peers"]]
    found: list[dict[str, t.Any]] = []
    for link, peer in ways:
        if tools.iperf3:
            found.append(await tcp(module, tools, link, peer))
        for test in tools.tests_of(link["interface"]):
            found.append(await rdma(module, tools, test, link, peer))
    # One peer for each link: two clients of one server would wait for each other.
    first = [(link, link["peers"][0]) for link in tools.links if link["peers"]]
    together = []
    if tools.iperf3:
        together += [tcp(module, tools, link, peer) for link, peer in first]
    found += [{**entry, "at_once": True} for entry in await asyncio.gather(*together)]
    ready = [(link, peer) for link, peer in first if tools.tests_of(link["interface"])]
    answers = await asyncio.gather(*(rdma(module, tools, "ib_write_bw", link, peer) for link, peer in ready))
    return found + [{**entry, "at_once": True} for entry in answers]


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "links": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "interface": {"type": "str", "required": True},
                    "ip": {"type": "str", "required": True},
                    "peers": {"type": "list", "elements": "dict", "required": True},
                },
            },
            "seconds": {"type": "int", "default": 3},
            "streams": {"type": "int", "default": 4},
            "lifetime_s": {"type": "int", "default": 900},
            "state": {"type": "str", "choices": ["listening", "measured", "stopped"], "required": True},
        },
    )
    tools = Tools(module)
    measured: list[dict[str, t.Any]] = []
    if module.params["state"] == "listening":
        listen(module, tools)
    elif module.params["state"] == "measured":
        measured = asyncio.run(measure(module, tools))
    else:
        stop(module)
    module.exit_json(changed=False, measured=measured, not_checked=tools.not_checked)


if __name__ == "__main__":
    main()

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Passing packets on between the cables of one node, and nowhere else. Pure functions.

Linux asks only the interface on which a packet *arrives* whether it may be passed on
(``net.ipv4.conf.INTERFACE.forwarding``); the global ``ip_forward`` merely sets all of them. So it stays as it is.
"""

from __future__ import annotations

import json
import typing as t

SYSCTL_FILE = "/etc/sysctl.d/60-tandem-fabric.conf"
NFT_FILE = "/etc/tandem/fabric.nft"
UNIT = "tandem-fabric-forward.service"
DOCKER_UNIT = "tandem-fabric-docker.service"
UNITS = "/etc/systemd/system"
PROC = "/proc/sys/net/ipv4/conf"
TABLE = "tandem_fabric"
# Names of network cards: between them and the fabric nothing is passed on. Bridges of containers are not among them.
CARDS = ("en*", "eth*", "wl*", "ww*")
HOOK = {"type": "filter", "hook": "forward", "prio": -5, "policy": "accept"}
MARK = "# Written by tandem.spark (fabric stage).\n"

Pairs = t.Sequence[t.Sequence[str]]


def interfaces(pairs: Pairs) -> list[str]:
    return sorted({name for pair in pairs for name in pair})


def sysctls(links: t.Sequence[t.Mapping[str, t.Any]], pairs: Pairs, routed: bool) -> dict[str, dict[str, str]]:
    """``{interface: {key: value}}``.

    arp_*: both halves of a cage can sit on one Ethernet segment, where Linux answers for any address of the host on any
    interface, so that a neighbour learns the wrong half's MAC (reference: hardware, section 3.6). rp_filter: with more
    than one way through a ring an answer may come back on another cable than the question left by; 2 accepts it when
    there is any route to its sender.
    """
    passing = interfaces(pairs)
    found = {}
    for link in links:
        values = {"arp_ignore": "1", "arp_announce": "2"}
        if routed:
            values["rp_filter"] = "2"
        if link["interface"] in passing:
            values["forwarding"] = "1"
        found[str(link["interface"])] = values
    return found


def sysctl_text(values: t.Mapping[str, t.Mapping[str, str]]) -> str:
    """The file for /etc/sysctl.d. sysctl reads a dot as a separator; a VLAN's name has one."""
    lines = [
        f"net.ipv4.conf.{name.replace('.', '/')}.{key} = {value}"
        for name, settings in values.items()
        for key, value in settings.items()
    ]
    return MARK + "\n".join(lines) + "\n"


def sysctl_paths(values: t.Mapping[str, t.Mapping[str, str]], proc: str = PROC) -> dict[str, str]:
    return {f"{proc}/{name}/{key}": value for name, settings in values.items() for key, value in settings.items()}


def rules(pairs: Pairs) -> list[str]:
    """The rules of our chain. Pairs are accepted, and nothing else is passed on between them and other cards."""
    accepted = [f'iifname "{a}" oifname "{b}" accept' for pair in pairs for a, b in (tuple(pair), tuple(pair)[::-1])]
    ours = ", ".join(f'"{name}"' for name in interfaces(pairs))
    refused = [f'iifname {{ {ours} }} oifname "{cards}" counter drop' for cards in CARDS]
    return accepted + refused + [f'iifname "{cards}" oifname {{ {ours} }} counter drop' for cards in CARDS]


def nft_text(pairs: Pairs) -> str:
    """A table of our own, replaced as a whole; nobody else's rules are touched.

    An accept here ends this chain only: another table can still drop, as Docker's does.
    """
    return "\n".join(
        [
            MARK.rstrip("\n"),
            f"table inet {TABLE}",
            f"delete table inet {TABLE}",
            f"table inet {TABLE} {{",
            "  chain forward {",
            "    type filter hook forward priority filter - 5; policy accept;",
            *(f"    {rule}" for rule in rules(pairs)),
            "  }",
            "}",
            "",
        ]
    )


def shown_rule(expressions: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    """A rule of ``nft -j list`` as :func:`rules` writes it; whatever is no rule of that kind, as JSON."""
    words = []
    for expression in expressions:
        match = expression.get("match") or {}
        key, right = ((match.get("left") or {}).get("meta") or {}).get("key"), match.get("right")
        names = right.get("set") if isinstance(right, dict) else right
        if match.get("op") == "==" and key in ("iifname", "oifname") and isinstance(names, str):
            words.append(f'{key} "{names}"')
        elif match.get("op") == "==" and key in ("iifname", "oifname") and isinstance(names, list):
            quoted = sorted(f'"{name}"' for name in names)
            words.append(f"{key} {{ {', '.join(quoted)} }}")
        elif set(expression) <= {"counter", "accept", "drop"} and len(expression) == 1:
            words.append(next(iter(expression)))
        else:
            words.append(json.dumps(expression, sort_keys=True))
    return " ".join(words)


def table_drift(listed: t.Sequence[t.Mapping[str, t.Any]] | None, pairs: Pairs) -> list[str]:
    """How our table differs from what it shall be; *listed* is what ``nft -j list ruleset`` lists, None if unread."""
    if listed is None:
        return [f"nftables: table inet {TABLE} cannot be read"] if pairs else []
    tables = [entry["table"] for entry in listed if "table" in entry]
    if not any((table.get("family"), table.get("name")) == ("inet", TABLE) for table in tables):
        return [f"nftables: no table inet {TABLE}"] if pairs else []
    if not pairs:
        return [f"nftables: found table inet {TABLE}, wanted none: nothing is passed on here"]
    ours = [
        (kind, one)
        for entry in listed
        for kind, one in entry.items()
        if kind != "table" and isinstance(one, dict) and (one.get("family"), one.get("table")) == ("inet", TABLE)
    ]
    found = []
    chains = {str(one.get("name")): one for kind, one in ours if kind == "chain"}
    hook = {key: chains.get("forward", {}).get(key) for key in HOOK}
    if hook != HOOK:
        found.append(f"nftables: chain {TABLE} forward is {hook}, wanted {HOOK}")
    found += [f"nftables: {TABLE} has a chain {name}, wanted none" for name in sorted(set(chains) - {"forward"})]
    found += [f"nftables: {TABLE} has a {kind}, wanted none" for kind, _one in ours if kind not in ("chain", "rule")]
    have = [shown_rule(one.get("expr") or []) for kind, one in ours if kind == "rule" and one.get("chain") == "forward"]
    wanted = rules(pairs)
    found += [f"nftables: {TABLE} lacks `{rule}`" for rule in wanted if rule not in have]
    found += [f"nftables: {TABLE} has `{rule}`, wanted no such rule" for rule in have if rule not in wanted]
    if not found and have != wanted:
        found.append(f"nftables: the rules of {TABLE} are in another order, or one is there twice")
    return found


def unit_text(nft: str) -> str:
    return f"""{MARK}[Unit]
Description=Forwarding between the fabric links (tandem.spark)
After=network-pre.target nftables.service
# It begins with `flush ruleset`, which takes our table too.
PartOf=nftables.service
ReloadPropagatedFrom=nftables.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={nft} -f {NFT_FILE}
ExecReload={nft} -f {NFT_FILE}
ExecStop=-{nft} delete table inet {TABLE}

[Install]
WantedBy=multi-user.target
"""


def docker_unit_text(iptables: str, pairs: Pairs) -> str:
    """Docker sets the policy of FORWARD to drop and leaves the chain DOCKER-USER to the administrator.

    Started with Docker each time, because a restart of Docker may empty that chain.
    """
    ways = [way for pair in pairs for way in (tuple(pair), tuple(pair)[::-1])]
    rules = [f"DOCKER-USER -i {a} -o {b} -j ACCEPT" for a, b in ways]
    begin = "\n".join(f"ExecStart=-{iptables} -w -D {rule}\nExecStart=-{iptables} -w -I {rule}" for rule in rules)
    end = "\n".join(f"ExecStop=-{iptables} -w -D {rule}" for rule in rules)
    return f"""{MARK}[Unit]
Description=Let Docker's firewall pass packets between the fabric links (tandem.spark)
After=docker.service
PartOf=docker.service

[Service]
Type=oneshot
RemainAfterExit=yes
{begin}
{end}

[Install]
WantedBy=docker.service
"""


def files(
    links: t.Sequence[t.Mapping[str, t.Any]],
    pairs: Pairs,
    routed: bool,
    *,
    nft: str | None,
    iptables: str | None,
    docker: bool,
) -> dict[str, tuple[bytes, int] | str]:
    """Path to (content, mode), or to the target of a link."""
    found: dict[str, tuple[bytes, int] | str] = {}
    values = sysctls(links, pairs, routed)
    if values:
        found[SYSCTL_FILE] = (sysctl_text(values).encode(), 0o644)
    if pairs:
        found[NFT_FILE] = (nft_text(pairs).encode(), 0o644)
        found[f"{UNITS}/{UNIT}"] = (unit_text(nft or "/usr/sbin/nft").encode(), 0o644)
        found[f"{UNITS}/multi-user.target.wants/{UNIT}"] = f"{UNITS}/{UNIT}"
        if docker and iptables:
            found[f"{UNITS}/{DOCKER_UNIT}"] = (docker_unit_text(iptables, pairs).encode(), 0o644)
            found[f"{UNITS}/docker.service.wants/{DOCKER_UNIT}"] = f"{UNITS}/{DOCKER_UNIT}"
    return found


ALL_PATHS = (
    SYSCTL_FILE,
    NFT_FILE,
    f"{UNITS}/{UNIT}",
    f"{UNITS}/multi-user.target.wants/{UNIT}",
    f"{UNITS}/{DOCKER_UNIT}",
    f"{UNITS}/docker.service.wants/{DOCKER_UNIT}",
)


def docker_missing(rules: str, pairs: Pairs) -> list[str]:
    """Ways between links that ``iptables -S DOCKER-USER`` does not accept yet."""
    have = set(rules.splitlines())
    return [
        f"{a} to {b}"
        for pair in pairs
        for a, b in (tuple(pair), tuple(pair)[::-1])
        if f"-A DOCKER-USER -i {a} -o {b} -j ACCEPT" not in have
    ]

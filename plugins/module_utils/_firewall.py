# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What a node's firewall does with packets of the fabric, and the rules that let them through. Pure functions.

ufw and firewalld are told by their own means, in rules that carry our name. Whose rules they are not, such as a table
that somebody wrote by hand, is read and named, and left alone: an accept in a table of ours could not overrule it.
"""

from __future__ import annotations

import ipaddress
import json
import re
import typing as t
from xml.sax.saxutils import quoteattr

from ansible_collections.tandem.spark.plugins.module_utils import _forward, _journal

UFW_CONF = "/etc/ufw/ufw.conf"
ZONES = "/etc/firewalld/zones"
ZONE = "tandem-fabric"  # firewalld takes at most 17 characters
ZONE_FILE = f"{ZONES}/{ZONE}.xml"
LEGACY = "/proc/net/ip_tables_names"
DEEPEST = 16  # jumps, as in the kernel
NEUTRAL = ("counter", "log", "comment", "notrack")

Allowances = t.Sequence[t.Mapping[str, t.Any]]
Pairs = t.Sequence[t.Sequence[str]]
Network = ipaddress.IPv4Network


def networks(allowances: Allowances) -> list[str]:
    """All sources, as few networks that hold the same addresses."""
    return collapsed([source for entry in allowances for source in entry["sources"]])


def collapsed(sources: t.Iterable[str]) -> list[str]:
    return [str(network) for network in ipaddress.collapse_addresses(ipaddress.IPv4Network(s) for s in sources)]


def both_ways(pairs: Pairs) -> list[tuple[str, str]]:
    return [way for a, b in pairs for way in ((a, b), (b, a))]


# -- ufw --------------------------------------------------------------------------------------------------------------


def ufw_wanted(allowances: Allowances, pairs: Pairs) -> list[list[str]]:
    """The commands that add our rules, word for word as ``ufw show added`` repeats them."""
    sources = [source.replace("/32", "") for source in networks(allowances)]
    found = [
        ["ufw", "allow", "in", "on", entry["interface"], "from", source.replace("/32", "")]
        for entry in allowances
        for source in collapsed(entry["sources"])
    ]
    for a, b in both_ways(pairs):
        found += [["ufw", "route", "allow", "in", "on", a, "out", "on", b, "from", source] for source in sources]
    return [[*words, "comment", _journal.UFW_MARK] for words in found]


def ufw_difference(shown: str, wanted: t.Sequence[list[str]]) -> tuple[list[list[str]], list[list[str]]]:
    """(rules of ours to add, rules of ours to take away). The same rule without our name serves as well."""
    there = _journal.ufw_commands(shown)
    bare = [_journal.without_comment(words) for words in there]
    lacking = [words for words in wanted if _journal.without_comment(words) not in bare]
    stale = [words for words in there if _journal.is_ours(words) and words not in wanted]
    return lacking, stale


def ufw_text(words: t.Sequence[str]) -> str:
    return " ".join(_journal.without_comment(words)[1:])


# -- firewalld --------------------------------------------------------------------------------------------------------


def zone_text(allowances: Allowances, pairs: Pairs) -> str:
    """A zone of our own: bound to these interfaces, accepting these sources, and refusing the rest as any zone does.

    ``forward`` passes on between all interfaces of the zone; which of them may is said by the table of our own.
    """
    lines = ['<?xml version="1.0" encoding="utf-8"?>', "<!-- Written by tandem.spark (fabric stage). -->", "<zone>"]
    lines += [f"  <short>{ZONE}</short>"]
    lines += [f"  <interface name={quoteattr(entry['interface'])}/>" for entry in allowances]
    for source in networks(allowances):
        lines += ['  <rule family="ipv4">', f"    <source address={quoteattr(source)}/>", "    <accept/>", "  </rule>"]
    return "\n".join([*lines, *(["  <forward/>"] if pairs else []), "</zone>", ""])


def bound_elsewhere(files: t.Mapping[str, str], names: t.Iterable[str]) -> dict[str, tuple[str, bool]]:
    """Interfaces that another zone of *files* (path to text) claims: zone, and whether it lets everything in."""
    found = {}
    for path, text in sorted(files.items()):
        if path == ZONE_FILE:
            continue
        head = re.search(r"<zone\b[^>]*>", text)
        zone = path.rsplit("/", 1)[-1][: -len(".xml")]
        for name in names:
            if re.search(rf"""<interface\s+name=["']{re.escape(name)}["']""", text):
                found[name] = (zone, head is not None and "ACCEPT" in head.group(0))
    return found


def zones(text: str) -> dict[str, dict[str, set[str]]]:
    """``firewall-cmd --list-all-zones``: by zone and key the values. Interfaces are left out: a reload keeps them."""
    found: dict[str, dict[str, set[str]]] = {}
    zone: dict[str, set[str]] = {}
    key = ""
    for line in text.splitlines():
        if line and not line[0].isspace():
            zone = found.setdefault(line.split(" ")[0], {})
        elif re.match(r"  \S", line):
            key, _colon, rest = line.strip().partition(":")
            zone[key] = {rest.strip()} if key == "target" else set(rest.split())
        elif line.strip():
            zone.setdefault(key, set()).add(line.strip())
    for values in found.values():
        values.pop("interfaces", None)
    return found


def only_running(running: str, permanent: str) -> list[str]:
    """What firewalld would forget when it reads its files again: ``public: ports 99/tcp``."""
    kept = zones(permanent)
    return [
        f"{zone}: {key} {' '.join(sorted(values - kept.get(zone, {}).get(key, set())))}"
        for zone, settings in zones(running).items()
        for key, values in settings.items()
        if values - kept.get(zone, {}).get(key, set())
    ]


# -- the rules that are loaded ----------------------------------------------------------------------------------------


class Packet(t.NamedTuple):
    """The first packet of a TCP connection from an address of *source* to some port."""

    iif: str
    oif: str | None
    source: str


class Drop(t.NamedTuple):
    """Where packets end: a base chain, and why."""

    family: str
    table: str
    chain: str
    why: str


def objects(content: str | None) -> list[dict[str, t.Any]] | None:
    """What ``nft -j list ruleset`` lists; None when that cannot be read."""
    try:
        parsed = json.loads(content or "")
    except (ValueError, RecursionError):
        return None
    listed = parsed.get("nftables") if isinstance(parsed, dict) else None
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else None


class Rules:
    """The loaded rules, read the way the kernel goes through them.

    A condition on what a packet of ours may or may not be (a port, a rate, a module of iptables) is taken as not met:
    such an accept does not let all of them in, and such a drop is meant for something else. A return is taken as met:
    what the rest of its chain drops is not meant for every packet of ours (as in ufw's own ``ufw-not-local``).
    """

    def __init__(self, listed: t.Sequence[t.Mapping[str, t.Any]]) -> None:
        self.chains: dict[tuple[str, str, str], dict[str, t.Any]] = {}
        self.sets: dict[tuple[str, str, str], list[t.Any]] = {}
        for entry in listed:
            for kind in ("chain", "set", "map"):
                one = entry.get(kind)
                if not isinstance(one, dict):
                    continue
                key = (str(one.get("family")), str(one.get("table")), str(one.get("name")))
                if kind == "chain":
                    self.chains[key] = {**one, "rules": []}
                else:
                    self.sets[key] = one.get("elem") or []
        for entry in listed:
            rule = entry.get("rule")
            if isinstance(rule, dict) and isinstance(rule.get("expr"), list):
                key = (str(rule.get("family")), str(rule.get("table")), str(rule.get("chain")))
                if key in self.chains:
                    self.chains[key]["rules"].append([e for e in rule["expr"] if isinstance(e, dict)])

    def drops(self, hook: str, packet: Packet) -> list[Drop]:
        """Every base chain on *hook* in which the packet ends. Empty: it gets through."""
        found = []
        for key, chain in self.chains.items():
            if key[0] not in ("ip", "inet") or (chain.get("type"), chain.get("hook")) != ("filter", hook):
                continue
            verdict, where = self._walk(key, packet, 0) or (str(chain.get("policy") or "accept"), "")
            if verdict in ("drop", "reject"):
                found.append(Drop(*key, f"a rule in {where} says {verdict}" if where else f"policy {verdict}"))
        return found

    def has(self, chain: tuple[str, str, str], packet: Packet) -> bool | None:
        """Whether a rule in *chain* accepts just this; None where there is no such chain."""
        if chain not in self.chains:
            return None
        return any(
            "accept" in rule[-1] and self._met(rule[:-1], packet, chain) is True
            for rule in self.chains[chain]["rules"]
            if rule
        )

    def sends(self, chain: tuple[str, str, str], name: str, target: str) -> bool:
        """Whether a rule in *chain* that names the interface *name* leads to *target*."""
        texts = [json.dumps(rule) for rule in self.chains.get(chain, {}).get("rules", [])]
        return any(f'"{name}"' in text and f'"{target}"' in text for text in texts)

    def _walk(self, key: tuple[str, str, str], packet: Packet, depth: int) -> tuple[str, str] | None:
        """The verdict and the chain that gave it; None when the chain was left without one."""
        if key not in self.chains or depth > DEEPEST:
            return None
        for rule in self.chains[key]["rules"]:
            verdict = self._verdict(rule, packet, key, depth)
            if verdict is None:
                continue
            name, target = verdict
            if name in ("accept", "drop", "reject"):
                return name, key[2]
            if name == "return":
                return None
            found = self._walk((*key[:2], target), packet, depth + 1)
            if found or name == "goto":
                return found
        return None

    def _verdict(
        self, rule: list[dict[str, t.Any]], packet: Packet, key: tuple[str, ...], depth: int
    ) -> tuple[str, str] | None:
        """``(accept, "")`` or ``(jump, chain)`` of a rule that applies, else None."""
        for number, expression in enumerate(rule):
            found = _decision(expression)
            if "vmap" in expression:
                found = self._looked_up(expression["vmap"], packet, key)
            if found:
                met = self._met(rule[:number], packet, key)
                return found if met or (met is None and found[0] == "return" and depth) else None
        return None

    def _looked_up(self, vmap: t.Any, packet: Packet, key: tuple[str, ...]) -> tuple[str, str] | None:
        if not isinstance(vmap, dict):
            return None
        data = vmap.get("data")
        for pair in self._elements(data, key):
            if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], dict):
                match = {"op": "==", "left": vmap.get("key"), "right": pair[0]}
                if self._match(match, packet, key) is True:
                    return _decision(pair[1])
        return None

    def _elements(self, right: t.Any, key: tuple[str, ...]) -> list[t.Any]:
        if isinstance(right, str) and right.startswith("@"):
            return self.sets.get((key[0], key[1], right[1:]), [])
        if isinstance(right, dict) and isinstance(right.get("set"), list):
            return t.cast("list[t.Any]", right["set"])
        return right if isinstance(right, list) else [right]

    def _met(self, rule: t.Iterable[dict[str, t.Any]], packet: Packet, key: tuple[str, ...]) -> bool | None:
        answers = [self._condition(expression, packet, key) for expression in rule]
        return False if False in answers else (None if None in answers else True)

    def _condition(self, expression: dict[str, t.Any], packet: Packet, key: tuple[str, ...]) -> bool | None:
        if "match" in expression and isinstance(expression["match"], dict):
            return self._match(expression["match"], packet, key)
        return True if any(word in expression for word in NEUTRAL) else None

    def _match(self, match: t.Mapping[str, t.Any], packet: Packet, key: tuple[str, ...]) -> bool | None:
        answer = self._equal(match.get("left"), self._elements(match.get("right"), key), packet)
        if match.get("op") in ("==", "in"):
            return answer
        return None if match.get("op") != "!=" or answer is None else not answer

    def _equal(self, left: t.Any, values: list[t.Any], packet: Packet) -> bool | None:
        if not isinstance(left, dict):
            return None
        values = [
            v["elem"].get("val") if isinstance(v, dict) and isinstance(v.get("elem"), dict) else v for v in values
        ]
        meta, payload, ct = (_part(left, word) for word in ("meta", "payload", "ct"))
        what = meta.get("key")
        if what in ("iif", "iifname"):
            return _named(packet.iif, values)
        if what in ("oif", "oifname"):
            return False if packet.oif is None else _named(packet.oif, values)
        if what == "nfproto":
            return "ipv4" in values
        if what == "l4proto" or (payload.get("protocol"), payload.get("field")) == ("ip", "protocol"):
            return "tcp" in values or 6 in values
        if ct.get("key") == "state":
            return "new" in values
        if ct.get("key") == "status":
            return False
        if (payload.get("protocol"), payload.get("field")) == ("ip", "saddr"):
            answers = [_holds(value, ipaddress.IPv4Network(packet.source)) for value in values]
            return True if True in answers else (None if None in answers else False)
        if payload.get("protocol") in ("udp", "icmp", "icmpv6", "ip6", "sctp", "esp", "ah", "arp"):
            return False
        return None


def _part(left: t.Mapping[str, t.Any], word: str) -> dict[str, t.Any]:
    part = left.get(word)
    return part if isinstance(part, dict) else {}


def _decision(expression: t.Mapping[str, t.Any]) -> tuple[str, str] | None:
    for word in ("accept", "drop", "reject", "return"):
        if word in expression:
            return word, ""
    for word in ("jump", "goto"):
        if isinstance(expression.get(word), dict):
            return word, str(expression[word].get("target"))
    xt = expression.get("xt")
    return ("reject", "") if isinstance(xt, dict) and xt.get("name") == "REJECT" else None


def _named(name: str, values: list[t.Any]) -> bool:
    return any(
        isinstance(value, str) and (name.startswith(value[:-1]) if value.endswith("*") else name == value)
        for value in values
    )


def _holds(value: t.Any, network: Network) -> bool | None:
    """Whether an element of a set holds all of *network*; None when some of it."""
    try:
        if isinstance(value, dict) and isinstance(value.get("prefix"), dict):
            parts = [ipaddress.IPv4Network(f"{value['prefix']['addr']}/{value['prefix']['len']}")]
        elif isinstance(value, dict) and isinstance(value.get("range"), list):
            first, last = (ipaddress.IPv4Address(text) for text in value["range"])
            parts = list(ipaddress.summarize_address_range(first, last))
        else:
            parts = [ipaddress.IPv4Network(value)]
    except (ValueError, KeyError, TypeError):
        return None
    if any(network.subnet_of(part) for part in parts):
        return True
    return None if any(network.overlaps(part) for part in parts) else False


# -- what is wrong, and what to do -----------------------------------------------------------------------------------


def owner(drop: Drop, rules: Rules) -> str:
    """``ufw``, ``firewalld``, ``docker``, ``ours``, or ``nobody``: whose chain that is."""
    if drop.table == _forward.TABLE:
        return "ours"
    if drop.table == "firewalld":
        return "firewalld"
    if (drop.family, drop.table, "ufw-user-input") in rules.chains:
        return "ufw"
    if drop.chain == "FORWARD" and (drop.family, drop.table, "DOCKER-USER") in rules.chains:
        return "docker"
    return "nobody"


def closed(rules: Rules, allowances: Allowances, pairs: Pairs) -> dict[tuple[str, Drop], dict[str, t.Any]]:
    """What does not get through, by hook and place: ``interfaces`` and ``ways`` and ``sources`` that end there."""
    found: dict[tuple[str, Drop], dict[str, t.Any]] = {}

    def note(hook: str, packet: Packet) -> None:
        for drop in rules.drops(hook, packet):
            entry = found.setdefault((hook, drop), {"ways": [], "sources": []})
            way = (packet.iif, packet.oif)
            entry["ways"] += [way] if way not in entry["ways"] else []
            entry["sources"] += [packet.source] if packet.source not in entry["sources"] else []

    for entry in allowances:
        for source in collapsed(entry["sources"]):
            note("input", Packet(entry["interface"], None, source))
    for a, b in both_ways(pairs):
        for source in networks(allowances):
            note("forward", Packet(a, b, source))
    return found


def sentence(hook: str, drop: Drop, entry: t.Mapping[str, t.Any], who: str, told: bool) -> str:
    """Where packets of the fabric end, the rule that is wanted there, and the way out; *told*: *who* has our rules."""
    sources = ", ".join(entry["sources"])
    ways = ", ".join(a if b is None else f"{a} to {b}" for a, b in entry["ways"])
    what = f"found that table {drop.family} {drop.table}, chain {drop.chain} ({drop.why}) drops "
    what += f"{'what comes in' if hook == 'input' else 'what is passed on'} from {sources} on {ways}"
    if who in ("ufw", "firewalld") and not told:
        return f"{what}, wanted it accepted; set fabric_firewall: true, or tell {who} yourself"
    if who in ("ufw", "firewalld"):
        return f"{what}, wanted it accepted; take away the rule of {who} that stands before ours"
    first, second = entry["ways"][0]
    if drop.table == "filter" and drop.chain in ("INPUT", "FORWARD"):
        out = "" if second is None else f" -o {second}"
        rule = f"iptables -I {drop.chain} -i {first}{out} -s {entry['sources'][0]} -j ACCEPT"
    else:
        out = "" if second is None else f' oifname "{second}"'
        rule = f'nft insert rule {drop.family} {drop.table} {drop.chain} iifname "{first}"{out} ip saddr '
        rule += f"{{ {sources} }} accept"
    rest = " and the same for the others" if len(entry["ways"]) > 1 else ""
    return f"{what}, wanted it accepted: `{rule}`{rest}; put it where that table is written, so that it comes again"

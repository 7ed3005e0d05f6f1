# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Installed Debian packages, and the part of apt's configuration that decides what changes by itself."""

from __future__ import annotations

import re
import typing as t

STATUS = "/var/lib/dpkg/status"

_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|([{};])|([^\s"{};]+)')
_COMMENT = re.compile(r"/\*.*?\*/|^\s*(?://|#(?!include|clear)).*?$|(?<=[\s;{}])//.*?$", re.DOTALL | re.MULTILINE)


def installed(content: str | None, wanted: t.Callable[[str], bool]) -> dict[str, dict[str, t.Any]] | None:
    """``{name: {"version", "held"}}`` of the wanted packages that are installed, out of dpkg's status file.

    A package for several architectures is named once. None when the file could not be read.
    """
    if content is None or "Package: " not in content:
        return None
    found: dict[str, dict[str, t.Any]] = {}
    for stanza in content.split("\n\n"):
        head, _newline, rest = stanza.lstrip("\n").partition("\n")
        name = head[9:].strip()
        if not head.startswith("Package: ") or not wanted(name):
            continue
        status = version = ""
        for line in rest.splitlines():
            if line.startswith("Status: "):
                status = line[8:].strip()
            elif line.startswith("Version: "):
                version = line[9:].strip()
        words = status.split()
        if len(words) == 3 and words[2] in ("installed", "triggers-pending", "triggers-awaited") and version:
            found[name] = {"version": version, "held": words[0] == "hold"}
    return found


def held(content: str | None) -> list[str] | None:
    """The packages on hold, or None when that could not be read."""
    if content is None or "Package: " not in content:
        return None
    found = []
    for stanza in content.split("\nStatus: hold ")[:-1]:
        start = stanza.rfind("Package: ")
        found.append(stanza[start + 9 :].split("\n", 1)[0].strip())
    return sorted(set(found))


def apt_configuration(files: t.Iterable[str]) -> dict[str, list[str]]:
    """The assignments of apt configuration files, in order, as ``{"a::b": [values]}`` with lower-case keys.

    ``A::B "x";`` replaces, ``A::B:: "x";`` and bare values in a block add. What cannot be parsed is skipped.
    """
    found: dict[str, list[str]] = {}
    for content in files:
        scope: list[str] = []
        words: list[tuple[str, bool]] = []
        for token in _TOKEN.finditer(_COMMENT.sub("", content)):
            quoted, mark, bare = token.groups()
            if mark is None:
                words.append((quoted if quoted is not None else bare, quoted is not None))
                continue
            if mark == "{":
                scope.append(words[-1][0] if words else "")
            elif mark == ";" and words:
                _assign(found, scope, words)
            elif mark == "}" and scope:
                scope.pop()
            words = []
    return found


def _assign(found: dict[str, list[str]], scope: list[str], words: list[tuple[str, bool]]) -> None:
    if words[0][0].lower() == "#clear":
        for name, _quoted in words[1:]:
            prefix = name.lower().rstrip(":")
            for key in [key for key in found if key == prefix or key.startswith(prefix + "::")]:
                del found[key]
        return
    if len(words) == 1:  # a bare value in a block: an element of a list
        name, value, adds = "", words[0][0], True
    else:
        name, value, adds = words[0][0], words[1][0], words[0][0].endswith("::")
    key = "::".join(part for part in [*scope, name.rstrip(":")] if part).lower()
    if adds:
        found.setdefault(key, []).append(value)
    else:
        found[key] = [value]


def unattended_upgrades(settings: t.Mapping[str, list[str]], present: bool | None) -> dict[str, t.Any]:
    """Whether packages change without being asked, and whether the driver's packages are left out of that."""

    def last(key: str) -> str | None:
        values = settings.get(key)
        return values[-1].strip() if values else None

    switch = last("apt::periodic::unattended-upgrade")
    master = last("apt::periodic::enable")
    enabled: bool | None
    if present is False:
        enabled = False
    elif switch is None:
        enabled = None if present is None else False
    else:
        enabled = switch not in ("0", "no", "false", "") and master != "0"
    blacklist = list(settings.get("unattended-upgrade::package-blacklist", []))
    return {
        "installed": present,
        "enabled": enabled,
        "blacklist": blacklist,
        "spares_driver": {name: _spared(blacklist, example) for name, example in SPARED.items()},
    }


# A package of each kind that must not change on one node alone.
SPARED = {"nvidia": "nvidia-driver-580-open", "libnvidia": "libnvidia-compute-580", "cuda": "cuda-toolkit-13-0"}


def _spared(blacklist: t.Iterable[str], package: str) -> bool:
    for pattern in blacklist:
        try:
            if re.match(pattern, package):
                return True
        except (re.error, OverflowError, RecursionError):
            continue
    return False

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What stood on a node before the fabric was changed, and the way back to it.

This file is also a program of its own: fabric_config puts a copy of it on the node, and a timer there runs that copy
when nobody confirms a change. So it imports the standard library only, and nothing of this collection.

``DIRECTORY/pending`` holds the state before a change that is not confirmed yet, ``original`` the state before the first
change of all, ``reverted`` what was taken back last. Each is a ``journal.json`` and, under ``files``, the old files as
they were, byte for byte.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import time
import typing as t

DIRECTORY = "/var/lib/tandem/journal/fabric"
PENDING, ORIGINAL, REVERTED, RESTORE = "pending", "original", "reverted", "restore"
UNIT = "tandem-fabric-revert"
BOOT_UNIT = "/etc/systemd/system/tandem-fabric-revert-boot.service"
BOOT_LINK = "/etc/systemd/system/multi-user.target.wants/tandem-fabric-revert-boot.service"
SETTLE_S = 15
PATIENCE = 8  # looks, 0.3 s apart
FAMILIES = {"inet": "-4", "inet6": "-6"}
UFW_MARK = "tandem.spark fabric"  # the comment of a ufw rule that is ours


def execute(arguments: t.Sequence[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            list(arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=60,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace")


def _json(answer: tuple[int, str]) -> list[dict[str, t.Any]]:
    try:
        parsed = json.loads(answer[1] or "[]") if answer[0] == 0 else []
    except ValueError:
        return []
    return [entry for entry in parsed if isinstance(entry, dict)] if isinstance(parsed, list) else []


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as handle:
            return handle.read().strip()
    except OSError:
        return None


# -- files ------------------------------------------------------------------------------------------------------------


def look(path: str) -> dict[str, t.Any]:
    """What is at *path*: a file with its bytes, a link, or nothing."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return {"path": path, "state": "absent"}
    if stat.S_ISLNK(status.st_mode):
        return {"path": path, "state": "link", "target": os.readlink(path)}
    if not stat.S_ISREG(status.st_mode):
        return {"path": path, "state": "other"}
    with open(path, "rb") as handle:
        content = handle.read()
    mode = stat.S_IMODE(status.st_mode)
    owner = {"owner": status.st_uid, "group": status.st_gid}
    return {"path": path, "state": "file", "mode": mode, **owner, "content": content}


def put(entry: dict[str, t.Any]) -> bool:
    """Make *entry* true again, in one rename; whether there was something to do."""
    now = look(entry["path"])
    if {key: value for key, value in now.items() if entry.get(key) != value} == {}:
        return False
    path, scratch = entry["path"], f"{entry['path']}.tandem-{os.getpid()}"
    if entry["state"] == "absent":
        os.unlink(path)
        return True
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    if entry["state"] == "link":
        os.symlink(entry["target"], scratch)
    else:
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(entry["content"])
            os.fchown(handle.fileno(), entry["owner"], entry["group"])
            os.fchmod(handle.fileno(), entry["mode"])
            handle.flush()
            os.fsync(handle.fileno())
    os.replace(scratch, path)
    return True


# -- rules of ufw -----------------------------------------------------------------------------------------------------

# Its own files hold everybody's rules: an old copy of them would take away what others added since. So rules are put
# back and taken away one by one, by the commands that ufw itself names them with.


def ufw_commands(shown: str) -> list[list[str]]:
    """``ufw show added``: the commands that make every rule."""
    found = []
    for line in shown.splitlines():
        if line.startswith("ufw "):
            try:
                found.append(shlex.split(line))
            except ValueError:  # an apostrophe in somebody's comment
                found.append(line.split())
    return found


def is_ours(words: t.Sequence[str]) -> bool:
    return list(words[-2:]) == ["comment", UFW_MARK]


def without_comment(words: t.Sequence[str]) -> list[str]:
    return list(words[: words.index("comment")]) if "comment" in words else list(words)


def ufw_rules() -> list[list[str]] | None:
    """Our rules; None where ufw is not there or does not say."""
    code, out = execute(["ufw", "show", "added"])
    return [words for words in ufw_commands(out) if is_ours(words)] if code == 0 else None


def ufw_delete(words: t.Sequence[str]) -> list[str]:
    """The command that takes back what *words* made."""
    bare = without_comment(words)
    at = 2 if bare[1] == "route" else 1
    return [*bare[:at], "delete", *bare[at:]]


def ufw_steps(before: t.Sequence[list[str]], now: t.Sequence[list[str]]) -> list[list[str]]:
    """Commands that lead from our rules *now* to those of *before*; what is wanted comes first."""
    return [words for words in before if words not in now] + [ufw_delete(w) for w in now if w not in before]


# -- the running state ------------------------------------------------------------------------------------------------


def runtime(interfaces: t.Iterable[str], sysctls: t.Iterable[str], units: t.Iterable[str]) -> dict[str, t.Any]:
    """Addresses, MTU, state and routes of *interfaces*, the values of *sysctls*, and which *units* are active."""
    names = set(interfaces)
    shown = {e.get("ifname"): e for e in _json(execute(["ip", "-j", "-d", "addr", "show"]))}
    routes = [r for r in _json(execute(["ip", "-j", "-4", "route", "show"])) if r.get("dev") in names]
    return {
        "interfaces": {name: _interface(shown[name]) for name in sorted(names) if name in shown},
        "routes": [{k: v for k, v in route.items() if k != "flags"} for route in routes],
        "sysctls": {path: value for path, value in ((p, _read(p)) for p in sysctls) if value is not None},
        "units": {unit: execute(["systemctl", "is-active", "--quiet", unit])[0] == 0 for unit in units},
        "ufw": ufw_rules(),
    }


def _interface(entry: dict[str, t.Any]) -> dict[str, t.Any]:
    return {
        "mtu": entry.get("mtu"),
        "up": "UP" in (entry.get("flags") or []),
        "addrgenmode": entry.get("inet6_addr_gen_mode"),
        # An address that a DHCP client or a router gave is theirs to put back.
        "addresses": [
            {key: info.get(key) for key in ("family", "local", "prefixlen", "broadcast", "scope")}
            for info in entry.get("addr_info") or []
            if not info.get("dynamic")
        ],
    }


def _key(address: dict[str, t.Any]) -> tuple[t.Any, ...]:
    return address["family"], address["local"], address["prefixlen"]


def _route_words(route: dict[str, t.Any]) -> list[str]:
    words = [route["dst"]]
    if route.get("gateway"):
        words += ["via", route["gateway"]]
    words += ["dev", route["dev"]]
    for key, word in (("protocol", "proto"), ("scope", "scope"), ("prefsrc", "src"), ("metric", "metric")):
        if route.get(key) not in (None, ""):
            words += [word, str(route[key])]
    return words


def steps_back(before: dict[str, t.Any], now: dict[str, t.Any], ours: t.Collection[str]) -> list[list[str]]:
    """Commands that lead from the running state *now* to *before*.

    What is there now and was not there before goes away if it is *ours*: addresses and route destinations that the
    change brought. Others' additions stay.
    """
    steps: list[list[str]] = []
    for name, old in before["interfaces"].items():
        new = now["interfaces"].get(name)
        if new is None:  # its cable was pulled meanwhile
            continue
        if old["addrgenmode"] and new["addrgenmode"] != old["addrgenmode"]:
            steps.append(["ip", "link", "set", "dev", name, "addrgenmode", old["addrgenmode"]])
        if new["up"] != old["up"]:
            steps.append(["ip", "link", "set", "dev", name, "up" if old["up"] else "down"])
        if old["mtu"] and new["mtu"] != old["mtu"]:
            steps.append(["ip", "link", "set", "dev", name, "mtu", str(old["mtu"])])
        kept, have = {_key(a) for a in old["addresses"]}, {_key(a) for a in new["addresses"]}
        for _family, local, prefix in sorted(have - kept):
            if f"{local}/{prefix}" in ours:
                steps.append(["ip", "addr", "del", f"{local}/{prefix}", "dev", name])
        for address in old["addresses"]:
            # The kernel makes link-local addresses itself, once the mode is back.
            if _key(address) in have or (address["family"] == "inet6" and address["scope"] == "link"):
                continue
            words = ["ip", FAMILIES[address["family"]], "addr", "add", f"{address['local']}/{address['prefixlen']}"]
            words += ["broadcast", address["broadcast"]] if address.get("broadcast") else []
            steps.append([*words, "dev", name])
    # NetworkManager counts its metrics up with each activation: a route with another one is the same route.
    kept_routes, have_routes = [[_same(r) for r in state["routes"]] for state in (before, now)]
    for route, words in zip(now["routes"], have_routes):
        if words not in kept_routes and route["dst"] in ours:
            steps.append(["ip", "-4", "route", "del", *_route_words(route)])
    # A gateway needs the network that it is in.
    for route, words in sorted(zip(before["routes"], kept_routes), key=lambda pair: "via" in pair[1]):
        # Whoever sets an address adds the way into its network: the kernel, or NetworkManager a moment later.
        if words not in have_routes and route.get("protocol") != "kernel":
            steps.append(["ip", "-4", "route", "replace", *_route_words(route)])
    return steps


def _same(route: dict[str, t.Any]) -> list[str]:
    return _route_words({key: value for key, value in route.items() if key != "metric"})


# -- the journal ------------------------------------------------------------------------------------------------------


def path_of(name: str) -> str:
    return os.path.join(DIRECTORY, name)


def read(name: str) -> dict[str, t.Any] | None:
    """A journal with the old files' bytes in it, or None."""
    try:
        with open(os.path.join(path_of(name), "journal.json"), encoding="utf-8") as handle:
            journal: dict[str, t.Any] = json.load(handle)
    except FileNotFoundError:
        return None
    for entry in journal["files"]:
        if entry["state"] == "file":
            with open(os.path.join(path_of(name), "files", entry["path"].lstrip("/")), "rb") as handle:
                entry["content"] = handle.read()
    return journal


def write(name: str, journal: dict[str, t.Any]) -> None:
    """Write a journal as a whole: it is complete or it is not there."""
    target, scratch = path_of(name), path_of(f"{name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    os.makedirs(scratch, mode=0o700)
    entries = []
    for entry in journal["files"]:
        if entry["state"] == "file":
            place = os.path.join(scratch, "files", entry["path"].lstrip("/"))
            os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
            _write(place, entry["content"])
        entries.append({key: value for key, value in entry.items() if key != "content"})
    text = json.dumps({**journal, "files": entries}, indent=2, sort_keys=True)
    _write(os.path.join(scratch, "journal.json"), text.encode() + b"\n")
    shutil.rmtree(target, ignore_errors=True)
    os.rename(scratch, target)
    descriptor = os.open(DIRECTORY, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: str, content: bytes, mode: int = 0o600) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())


def merged(older: dict[str, t.Any] | None, newer: dict[str, t.Any]) -> dict[str, t.Any]:
    """The *older* journal, with what only the *newer* one knows: that was not touched before, so it is just as old."""
    if older is None:
        return newer
    paths = {entry["path"] for entry in older["files"]}
    state: dict[str, t.Any] = {}
    for key in ("interfaces", "sysctls", "units"):
        state[key] = {**newer["runtime"][key], **older["runtime"][key]}
    # A journal of an earlier version, or from before ufw was there, says nothing of it.
    known_ufw = older["runtime"].get("ufw")
    state["ufw"] = newer["runtime"].get("ufw") if known_ufw is None else known_ufw
    known = older["runtime"]["interfaces"]
    state["routes"] = older["runtime"]["routes"] + [r for r in newer["runtime"]["routes"] if r["dev"] not in known]
    return {
        **older,
        "files": older["files"] + [entry for entry in newer["files"] if entry["path"] not in paths],
        "runtime": state,
        "ours": sorted(set(older["ours"]) | set(newer["ours"])),
        "reload": older["reload"] + [words for words in newer["reload"] if words not in older["reload"]],
    }


class Lock:
    """One at a time: the timer may go off while a confirmation arrives."""

    def __enter__(self) -> Lock:
        os.makedirs(DIRECTORY, mode=0o700, exist_ok=True)
        self.handle = open(os.path.join(DIRECTORY, "lock"), "a")  # noqa: SIM115
        fcntl.flock(self.handle, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_error: t.Any) -> None:
        self.handle.close()


def put_back(journal: dict[str, t.Any]) -> list[str]:
    """Put back files and running state; returns what could not be put back."""
    left: list[str] = []
    before = journal["runtime"]
    for unit, was_active in before["units"].items():
        if not was_active:  # while its file still says how
            execute(["systemctl", "stop", unit])
    for entry in journal["files"]:
        try:
            put(entry)
        except OSError as error:
            left.append(f"{entry['path']}: {error.strerror}")
    execute(["systemctl", "daemon-reload"])
    for words in journal["reload"]:
        execute(words)
    left += _put_back_ufw(before.get("ufw"))
    for unit, was_active in before["units"].items():
        if was_active:
            execute(["systemctl", "restart", unit])
    deadline, quiet, seen = time.monotonic() + SETTLE_S, 0, 0
    # NetworkManager takes its time, and what is put under its hands meanwhile stays beside what it puts there itself.
    patience = PATIENCE if any(words[0] == "nmcli" for words in journal["reload"]) else 1
    steps: list[list[str]] = []
    # What netplan and NetworkManager were told they do a little later: look until nothing moves any more.
    while True:
        for path, value in before["sysctls"].items():
            if os.path.exists(path) and _read(path) != value:
                with open(path, "w", encoding="ascii") as handle:
                    handle.write(value)
        now = runtime(before["interfaces"], before["sysctls"], ())
        last, steps = steps, steps_back(before, now, set(journal["ours"]))
        seen = seen + 1 if steps == last else 1
        late = time.monotonic() > deadline
        if seen >= patience or late:
            for step in steps:
                execute(step)
        quiet = 0 if steps else quiet + 1
        if quiet >= 3 or late:
            break
        time.sleep(0.3)
    return left + [" ".join(step) for step in steps]


def _put_back_ufw(before: list[list[str]] | None) -> list[str]:
    now = None if before is None else ufw_rules()
    if before is None or now is None:
        return []
    for words in ufw_steps(before, now):
        execute(words)
    return [f"ufw: {' '.join(words)}" for words in ufw_steps(before, ufw_rules() or [])]


def disarm() -> None:
    execute(["systemctl", "stop", f"{UNIT}.timer"])
    for path in (BOOT_LINK, BOOT_UNIT):
        if os.path.lexists(path):
            os.unlink(path)


def revert(why: str = "") -> list[str] | None:
    """Take an unconfirmed change back; None when there is none."""
    with Lock():
        journal = read(PENDING)
        if journal is None:
            return None
        left = put_back(journal)
        shutil.rmtree(path_of(REVERTED), ignore_errors=True)
        os.rename(path_of(PENDING), path_of(REVERTED))
        note = {"why": why, "left": left, "restored": [entry["path"] for entry in journal["files"]]}
        _write(os.path.join(path_of(REVERTED), "note.json"), json.dumps(note, indent=2).encode() + b"\n")
        disarm()
        return left


def main() -> int:
    left = revert(why="nobody confirmed the change in time")
    if left is None:
        sys.stdout.write("There is no unconfirmed change of the fabric; nothing was put back.\n")
        return 0
    sys.stdout.write("The change of the fabric was not confirmed: the old configuration is back.\n")
    sys.stdout.writelines(f"could not be put back: {line}\n" for line in left)
    return 1 if left else 0


if __name__ == "__main__":
    raise SystemExit(main())

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Bring a model from other nodes into a staging directory, over every rail at once, proven file by file as it arrives.

Several rsyncs run side by side, each with a list of files. A file is hashed the moment it is whole, while its pages are
still in the page cache, so the proof costs no second pass from the disk; then it is synced and its pages are let go.

The manifest decides what is sent, never a time stamp or a rolling checksum: clocks of nodes may differ, and comparing
content would read everything on both sides first. What a dead run left of a file is a beginning of it, so the rest is
appended (``rsync --append``: it survives a SIGKILL and a power loss, where ``--partial-dir`` keeps nothing). When a
beginning was not right after all, the digest tells, and the file is sent again from its first byte, once.

A relay is a node that receives and hands on. It notes every proven file in its proof file; those and no others are
fetched from it, so a chain works as a pipeline of files, and a wrong byte travels one cable at most.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _manifest, _share
from ansible_collections.tandem.spark.plugins.module_utils._files import BLOCK, read_text, replace
from ansible_collections.tandem.spark.plugins.module_utils._lock import BusyError, alone
from ansible_collections.tandem.spark.plugins.module_utils._progress import Progress, Report, silent

FORMAT = 1
POLL_S = 0.05
NEWS_S = 0.5
RETRY_S = 3.0
LOCK_S = 60.0
# A batch is half of a stream's list, so that the other streams can help at the end; below this it is not split.
BATCH = 256 << 20
# The kernel begins to write late, and in bursts; asked for this often, the disk works while the rest arrives.
SYNC = 64 << 20
# rsync's statuses of a way that does not carry: the files go on over another one.
LOST = {
    10: "no connection",
    12: "the connection broke",
    19: "the other end was ended",
    20: "the other end was ended",
    30: "nothing arrived in time",
    35: "no answer",
    255: "no ssh",
}
UNREADABLE = (23, 24)
FULL = (errno.ENOSPC, errno.EDQUOT)
SSH_REFUSALS = ("Permission denied (", "Host key verification failed")
QUEUED, MOVING, WHOLE, SUSPECT, PROVEN = "queued", "moving", "whole", "suspect", "proven"


class ReplicationError(Exception):
    """The copy cannot be made or finished; the text names the node, what was found, what was wanted, the remedy."""


@dataclasses.dataclass
class Lane:
    """One way to one node that has the files: an address of it and the own address on the same rail."""

    node: str
    address: str
    local: str
    path: str
    rail: int | None = None
    streams: int = 2
    port: int = _share.PORT
    relay: bool = False
    hops: int = 1
    trouble: str = ""
    down_until: float = 0.0
    carried: int = 0


@dataclasses.dataclass
class Item:
    """One file of the manifest."""

    path: str
    size: int
    sha256: str
    here: int = 0  # bytes when they were counted last
    synced: int = 0  # those of them that were sent to the disk
    state: str = QUEUED
    moving: bool = False  # an rsync has it in hand
    sent: bool = False
    wrong: int = 0  # how often it was sent and found wrong
    unread: int = 0  # how often the source could not give it
    key: list[int] | None = None


def proof_file(staging: str) -> str:
    """Where the proof of a *staging* directory is: beside it, hidden."""
    parent, name = os.path.split(staging.rstrip("/"))
    return os.path.join(parent, f".{name.lstrip('.')}.arrived.json")


def read_proof(path: str, run: str, digest: str) -> dict[str, list[int]]:
    """Keys (``_manifest.trust_key``) of the files that the run *run* hashed and found right; of no other run ever.

    A file whose key is still the same has not been written to, renamed over or touched since. Empty when the proof is
    of another run or manifest, or cannot be read: then every byte is to be read.
    """
    try:
        with open(path, encoding="utf-8") as handle:
            statement = json.load(handle)
        same = (statement["format"], statement["run"], statement["digest"]) == (FORMAT, run, digest)
        return dict(statement["files"]) if same and run else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def assign(files: t.Sequence[tuple[str, int]], streams: int) -> list[list[str]]:
    """Spread files (path, bytes) over *streams* lists of about the same size, the largest first in each.

    The largest first, because the last file of a run is hashed when nothing else is left to do.
    """
    lists: list[list[str]] = [[] for _number in range(streams)]
    loads = [0] * streams
    for path, size in sorted(files, key=lambda entry: (-entry[1], entry[0])):
        number = loads.index(min(loads))
        lists[number].append(path)
        loads[number] += size
    return lists


def look(staging: str, manifest: dict[str, t.Any]) -> tuple[list[Item], list[str]]:
    """The manifest's files with the bytes of each that are here, and what is here and does not belong; only looks."""
    items = {entry["path"]: Item(entry["path"], entry["size"], entry["sha256"]) for entry in manifest["files"]}
    parents = {os.path.dirname(path) for path in items}
    parents |= {path.rsplit("/", depth)[0] for path in items for depth in range(1, path.count("/") + 1)}
    strange = []
    for parent, directories, names in os.walk(staging):
        for name in list(directories):
            relative = os.path.relpath(os.path.join(parent, name), staging)
            # A link to a directory would lead the copy out of here.
            if relative not in parents or os.path.islink(os.path.join(parent, name)):
                strange.append(relative)
                directories.remove(name)
        for name in names:
            relative = os.path.relpath(os.path.join(parent, name), staging)
            status = os.lstat(os.path.join(parent, name))
            if relative in items and stat.S_ISREG(status.st_mode) and status.st_size <= items[relative].size:
                items[relative].here = status.st_size
            elif relative != _manifest.FILE_NAME or not stat.S_ISREG(status.st_mode):
                strange.append(relative)
    for item in items.values():
        there = item.here == item.size and (item.size > 0 or os.path.lexists(os.path.join(staging, item.path)))
        item.state = WHOLE if there else QUEUED
    return list(items.values()), sorted(strange)


def outlook(specification: dict[str, t.Any]) -> dict[str, t.Any]:
    """What :func:`replicate` would send, without changing anything. Raises ReplicationError when it could not."""
    manifest = _manifest_of(specification)
    staging = specification["staging"]
    items, strange = look(staging, manifest)
    missing = [item for item in items if item.state == QUEUED]
    _check_space(specification, items, sum(_size(os.path.join(staging, path)) for path in strange))
    return {
        "changed": bool(missing or strange),
        "files_sent": len(missing),
        "bytes_sent": sum(item.size - item.here for item in missing),
        "files": len(items),
        "bytes": sum(item.size for item in items),
        "digest": manifest["digest"],
    }


def replicate(specification: dict[str, t.Any], report: Report = silent) -> dict[str, t.Any]:
    """Bring every file of a manifest into ``staging`` and prove each. Raises ReplicationError.

    The specification: ``node`` (this one's name), ``run`` (the same on all nodes of a run, in no other), ``staging``,
    ``manifest`` and its ``digest`` as the head has it, ``lanes`` (see :class:`Lane`), ``transport`` (``fabric`` or
    ``ssh``), ``secret``, ``ssh`` (``user``, ``port``), ``timeout_s`` (a rail is lost when it is silent for this long)
    and ``stall_s`` (give up when nothing arrived on any rail for this long).

    The result: ``changed``, ``run``, ``proof`` (path of the proof file), ``digest``, ``files``, ``bytes`` (of the
    model), ``files_sent``, ``bytes_sent`` (what really came over the cables), ``files_resent`` (found wrong and sent
    again), ``removed``, ``rails`` (bytes by address of the other end), ``troubles``, ``seconds``.
    """
    began = time.monotonic()
    manifest = _manifest_of(specification)
    staging = specification["staging"]
    try:
        os.makedirs(staging, mode=0o755, exist_ok=True)
        with alone(staging, LOCK_S) as descriptor:
            return dict(
                _Copy(specification, manifest, report, descriptor).run(), seconds=round(time.monotonic() - began, 2)
            )
    except BusyError as error:
        raise ReplicationError(f"{specification['node']}: {error}") from error
    except OSError as error:
        raise ReplicationError(f"{specification['node']}: {staging}: {error}") from error


def _manifest_of(specification: dict[str, t.Any]) -> dict[str, t.Any]:
    given = specification["manifest"]
    if not specification["lanes"]:
        raise ReplicationError(
            f"{specification['node']}: found no way over the fabric to a node that has the model, wanted one; run the "
            "fabric stage, and name this node's cables in the inventory"
        )
    where = f"{specification['node']}: the manifest of the source"
    try:
        manifest = _manifest.load(given if isinstance(given, str) else json.dumps(given), where)
    except _manifest.ManifestError as error:
        raise ReplicationError(str(error)) from error
    if specification.get("digest") and manifest["digest"] != specification["digest"]:
        raise ReplicationError(
            f"{where}: found the digest {manifest['digest']}, wanted {specification['digest']}; run this stage again"
        )
    return manifest


def _size(path: str) -> int:
    if os.path.isdir(path) and not os.path.islink(path):
        return sum(_size(os.path.join(parent, name)) for parent, _d, names in os.walk(path) for name in names)
    try:
        return os.lstat(path).st_blocks * 512
    except OSError:
        return 0


def _check_space(specification: dict[str, t.Any], items: list[Item], freed: int = 0) -> None:
    """The bytes that are still to come must fit; not twice, because nothing is copied twice."""
    place = specification["staging"]
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    system = os.statvfs(place)
    free = system.f_bavail * system.f_frsize + freed
    needed = sum(item.size - item.here for item in items)
    if free < needed:
        raise ReplicationError(
            f"{specification['node']}: {place}: found {free} bytes free, wanted {needed} for what is still to come of "
            f"{len(items)} files; free {needed - free} bytes and run this stage again"
        )


class _StoppedError(Exception):
    """The copy ends, so this reader ends too."""


class _Copy:
    """One run of :func:`replicate`: threads around one condition.

    Streams (one rsync each), readers (hash), one that syncs, one per relay that asks for news; and the caller's own
    thread, which watches how files grow.
    """

    def __init__(
        self, specification: dict[str, t.Any], manifest: dict[str, t.Any], report: Report, descriptor: int
    ) -> None:
        self.specification, self.manifest, self.report = specification, manifest, report
        self.node, self.staging, self.run_id = (specification[key] for key in ("node", "staging", "run"))
        self.descriptor = descriptor
        rsync = shutil.which("rsync", path=f"{os.environ.get('PATH', '')}:/usr/bin:/usr/local/bin")
        if rsync is None:
            raise ReplicationError(f"{self.node}: found no rsync, wanted one; run the baseline stage, or install rsync")
        self.rsync = rsync
        self.lanes = [Lane(**lane) for lane in specification["lanes"]]
        # The first streams of all lanes come first, so that few files still use every rail.
        most = max(lane.streams for lane in self.lanes)
        self.streams = [lane for number in range(most) for lane in self.lanes if number < lane.streams]
        self.proof = proof_file(self.staging)
        self.changed = threading.Condition()
        self.refusal = ""
        self.done = False
        self.children: dict[int | str, subprocess.Popen[str]] = {}
        # What each stream has in hand: its files, their bytes, and since when there are no more of them.
        self.hands: dict[int, tuple[list[Item], int, float]] = {}
        self.silent: set[int] = set()
        self.arriving: collections.deque[Item] = collections.deque()
        self.present: collections.deque[Item] = collections.deque()
        self.to_sync: collections.deque[Item] = collections.deque()
        self.received = 0
        self.resent: list[str] = []
        # What each relay has proven so far, and how many bytes it had.
        self.offered: dict[str, set[str]] = {lane.node: set() for lane in self.lanes if lane.relay}
        self.heard: dict[str, int] = {}
        self.news = time.monotonic()
        self.noted: tuple[t.Any, ...] = ()

    # -- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, t.Any]:
        items, strange = look(self.staging, self.manifest)
        for path in strange:
            whole = os.path.join(self.staging, path)
            shutil.rmtree(whole) if os.path.isdir(whole) and not os.path.islink(whole) else os.unlink(whole)
        self.items = {item.path: item for item in items}
        _check_space(self.specification, items)
        self._prepare()
        missing = [item for item in items if item.state == QUEUED]
        self.present.extend(item for item in items if item.state == WHOLE)
        self.lists = [
            collections.deque(self.items[path] for path in paths)
            for paths in assign([(item.path, item.size - item.here) for item in missing], len(self.streams))
        ]
        self._note()
        threads = [threading.Thread(target=self._guard, args=(self._stream, n), daemon=True) for n in self._numbers()]
        threads += [threading.Thread(target=self._guard, args=(self._reader,), daemon=True) for _n in self._readers()]
        threads += [
            threading.Thread(target=self._guard, args=(self._asker, node), daemon=True) for node in self.offered
        ]
        threads.append(threading.Thread(target=self._guard, args=(self._syncer,), daemon=True))
        for thread in threads:
            thread.start()
        try:
            self._watch()
        finally:
            self._end(threads)
        if self.refusal:
            raise ReplicationError(self.refusal)
        self._flush()
        return {
            "changed": bool(missing or strange or self.resent),
            "run": self.run_id,
            "proof": self.proof,
            "digest": self.manifest["digest"],
            "files": len(items),
            "bytes": sum(item.size for item in items),
            "files_sent": sum(item.sent for item in items),
            "bytes_sent": self.received,
            "files_resent": sorted(self.resent),
            "removed": strange,
            "rails": {lane.address: lane.carried for lane in self.lanes},
            "troubles": [f"{lane.address}: {lane.trouble}" for lane in self.lanes if lane.trouble],
        }

    def _numbers(self) -> range:
        return range(len(self.streams))

    def _readers(self) -> range:
        return range(os.cpu_count() or 1)

    def _prepare(self) -> None:
        """Directories and modes as they will be published: changing them later would change the keys."""
        os.chmod(self.staging, 0o755)
        for item in self.items.values():
            at = self.staging
            for part in item.path.split("/")[:-1]:
                at = os.path.join(at, part)
                if not os.path.isdir(at):
                    os.mkdir(at)
                    os.chmod(at, 0o755)
            whole = os.path.join(self.staging, item.path)
            if item.state == WHOLE and stat.S_IMODE(os.stat(whole).st_mode) != 0o644:
                os.chmod(whole, 0o644)
        place = os.path.join(self.staging, _manifest.FILE_NAME)
        content = _manifest.dump(self.manifest)
        if read_text(place) != content.decode():
            replace(place, content, 0o644)

    def _watch(self) -> None:
        stall_s = self.specification["stall_s"]
        total = sum(item.size for item in self.items.values())
        counted = -1
        while True:
            with self.changed:
                if self.refusal or all(item.state == PROVEN for item in self.items.values()):
                    return
                self.changed.wait(POLL_S)
                moving = [item for item in self.items.values() if item.state == MOVING]
                for item in moving:
                    if self._count(item) >= item.size and item.sent:
                        self._whole(item)
                self._end_silent()
                arrived = sum(item.here for item in self.items.values())
                proven = [item for item in self.items.values() if item.state == PROVEN]
                reading = any(item.state == WHOLE for item in self.items.values())
                if arrived != counted or reading:
                    self.news, counted = time.monotonic(), arrived
                if time.monotonic() - self.news > stall_s:
                    self._refuse(self._stalled(stall_s))
                    return
                stage = "copy" if len(proven) < len(self.items) and moving else "verify"
                progress = Progress(stage, arrived, total, moving[0].path if moving else "")
            self._note()
            self.report(progress)

    def _end_silent(self) -> None:
        """End an rsync to which nothing comes any more.

        Its own --timeout does not: on the receiving side each keep-alive that still fits the socket's buffer counts as
        a sign of life, also when the cable is out.
        """
        now = time.monotonic()
        for number, (batch, seen, since) in list(self.hands.items()):
            there = sum(item.here for item in batch)
            if there != seen:
                self.hands[number] = (batch, there, now)
            elif now - since > self.specification["timeout_s"] and number not in self.silent:
                self.silent.add(number)
                if number in self.children:
                    _kill(self.children[number])

    def _stalled(self, stall_s: float) -> str:
        troubles = "; ".join(sorted({f"{x.node} {x.address}: {x.trouble}" for x in self.lanes if x.trouble}))
        left = sum(item.state != PROVEN for item in self.items.values())
        return (
            f"{self.node}: found nothing arriving for {stall_s:g} s with {left} of {len(self.items)} files to come "
            f"({troubles or 'every connection stands, none gives anything'}), wanted at least one way that carries; "
            "look at the cables and the source node, and run this stage again: it goes on where it stopped"
        )

    def _refuse(self, text: str) -> None:
        with self.changed:
            self.refusal = self.refusal or text
            self.changed.notify_all()

    def _guard(self, work: t.Callable[..., None], *arguments: t.Any) -> None:
        """No thread ends in silence."""
        try:
            work(*arguments)
        except _StoppedError:
            return
        except OSError as error:
            self._refuse(self._full() if error.errno in FULL else f"{self.node}: {self.staging}: {error}")
        except Exception as error:  # pylint: disable=broad-except
            self._refuse(f"{self.node}: {self.staging}: {type(error).__name__}: {error}")

    def _end(self, threads: list[threading.Thread]) -> None:
        with self.changed:
            self.done = True
            for child in self.children.values():
                _kill(child)
            self.changed.notify_all()
        for thread in threads:
            thread.join()
        self._note()

    def _flush(self) -> None:
        """What is left to be synced; and no file may have changed since it was proven."""
        for item in self.to_sync:
            self._sync(item)
        for item in self.items.values():
            if _manifest.trust_key(os.stat(os.path.join(self.staging, item.path))) != item.key:
                raise ReplicationError(
                    f"{self.node}: {item.path}: found it changed after it was verified, wanted nobody else at work in "
                    f"{self.staging}; run this stage again"
                )

    def _note(self) -> None:
        """Write the proof file: for the publication, and for the nodes that copy from here."""
        files = {item.path: item.key for item in self.items.values() if item.state == PROVEN}
        arrived = sum(item.here for item in self.items.values())
        state = (len(files), arrived, self.refusal)
        now = time.monotonic()
        if self.noted and not self.done and (state == self.noted[0] or now - self.noted[1] < NEWS_S):
            return
        self.noted = (state, now)
        statement = {"format": FORMAT, "run": self.run_id, "digest": self.manifest["digest"], "files": files}
        statement.update(arrived=arrived, ended=self.refusal)
        # Of use in this run only, so it need not survive a power loss: no fsync, which would wait for the weights.
        scratch = f"{self.proof}.new"
        try:
            with open(scratch, "w", encoding="utf-8") as handle:
                json.dump(statement, handle)
            os.chmod(scratch, 0o644)
            os.replace(scratch, self.proof)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(scratch)
            self._refuse(self._full() if error.errno in FULL else f"{self.node}: {self.proof}: {error}")

    def _full(self) -> str:
        system = os.statvfs(self.staging)
        free = system.f_bavail * system.f_frsize
        needed = sum(item.size - item.here for item in self.items.values())
        return (
            f"{self.node}: {self.staging}: found the disk full ({free} bytes free), wanted {needed} for what is still "
            "to come; something else filled it during the copy; free it and run this stage again: it goes on where it "
            "stopped"
        )

    # -- files -------------------------------------------------------------------------------------------------------

    def _count(self, item: Item) -> int:
        try:
            now = os.lstat(os.path.join(self.staging, item.path)).st_size
        except FileNotFoundError:
            return item.here
        # An empty file arrives too.
        item.sent = item.sent or item.moving
        self.received += max(0, now - item.here)
        item.here = now
        return now

    def _whole(self, item: Item) -> None:
        item.state = WHOLE
        self.arriving.append(item)
        self.changed.notify_all()

    def _reader(self) -> None:
        """Hash what is whole; what has just arrived first, because its pages are still there."""
        buffer = memoryview(bytearray(BLOCK))
        while True:
            with self.changed:
                while not (self.arriving or self.present):
                    if self.done:
                        return
                    self.changed.wait()
                if self.done:
                    return
                item = (self.arriving or self.present).popleft()
            found, key = self._prove(item, buffer)
            with self.changed:
                self._judge(item, found, key)
                self.changed.notify_all()

    def _prove(self, item: Item, buffer: memoryview) -> tuple[str, list[int]]:
        """Digest of a file as it is here now, and its key: the same before the first and after the last byte."""
        path = os.path.join(self.staging, item.path)
        key: list[int] = []
        while True:
            digest = hashlib.sha256()
            with open(path, "rb", buffering=0) as handle:
                before = _manifest.trust_key(os.fstat(handle.fileno()))
                while True:
                    count = handle.readinto(buffer)
                    if not count:
                        break
                    digest.update(buffer[:count])
                    if self.done:
                        raise _StoppedError
            key = _manifest.trust_key(os.stat(path))
            # rsync sets a file's mode after its last byte: then it is read again.
            if before == key:
                return digest.hexdigest(), key

    def _judge(self, item: Item, found: str, key: list[int]) -> None:
        if found == item.sha256:
            item.state, item.key = PROVEN, key
            self.to_sync.append(item)
            return
        if item.moving:
            # rsync found it wrong too, perhaps, and is about to send it again.
            item.state = SUSPECT
            return
        if item.sent:
            item.wrong += 1
        if item.wrong > 1:
            sources = ", ".join(sorted({lane.node for lane in self.lanes}))
            self.refusal = self.refusal or (
                f"{self.node}: {item.path}: found sha256 {found} ({key[1]} bytes), wanted {item.sha256} ({item.size} "
                f"bytes), also after it was sent again; the copy on {sources} may be damaged: run the model stage with "
                "model_verify_all=true, which reads every byte there"
            )
            return
        os.unlink(os.path.join(self.staging, item.path))
        if item.sent or item.here:
            self.resent.append(item.path)
        item.here, item.synced, item.state, item.sent = 0, 0, QUEUED, False
        self.lists[0].append(item)

    def _syncer(self) -> None:
        """Keep the disk at work: files that are proven, and what has come of those that still grow."""
        while True:
            with self.changed:
                while not (self.to_sync or self._grown()):
                    if self.done:
                        return
                    self.changed.wait(POLL_S)
                item = self.to_sync.popleft() if self.to_sync else self._grown()[0]
                whole, item.synced = item.state == PROVEN, item.here
            self._sync(item, forget=whole)

    def _grown(self) -> list[Item]:
        return [item for item in self.items.values() if item.state == MOVING and item.here - item.synced >= SYNC]

    def _sync(self, item: Item, forget: bool = True) -> None:
        """On the disk; and when it is proven, out of the page cache, which on unified memory is taken from the GPU."""
        try:
            with open(os.path.join(self.staging, item.path), "rb", buffering=0) as handle:
                os.fdatasync(handle.fileno())
                advise: t.Callable[..., None] | None = getattr(os, "posix_fadvise", None)
                # A node that copies from here reads them soon.
                if advise is not None and forget and not self.specification.get("relayed"):
                    advise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except FileNotFoundError:
            # Found wrong in the meantime, and removed.
            if forget:
                raise

    # -- streams -----------------------------------------------------------------------------------------------------

    def _available(self, lane: Lane, item: Item) -> bool:
        return not lane.relay or item.path in self.offered[lane.node]

    def _take(self, number: int) -> list[Item]:
        """Files for one rsync: of the own list, else of that with the most left, and first of a rail that is down."""
        lane, now = self.streams[number], time.monotonic()
        if lane.down_until > now:
            return []
        others = sorted(
            (n for n in self._numbers() if n != number),
            key=lambda n: (self.streams[n].down_until <= now, -sum(x.size - x.here for x in self.lists[n])),
        )
        for n in [number, *others]:
            usable = [item for item in self.lists[n] if self._available(lane, item)]
            limit = max(BATCH if n == number else 0, sum(item.size - item.here for item in usable) // 2)
            batch: list[Item] = []
            for item in usable:
                if not batch or sum(x.size - x.here for x in batch) + item.size - item.here <= limit:
                    batch.append(item)
            for item in batch:
                self.lists[n].remove(item)
                item.state, item.moving = MOVING, True
            if batch:
                return batch
        return []

    def _stream(self, number: int) -> None:
        lane = self.streams[number]
        while True:
            with self.changed:
                batch = self._take(number)
                while not batch:
                    if self.done:
                        return
                    # A rail may come back, and a relay may have more.
                    self.changed.wait(NEWS_S)
                    batch = [] if self.done else self._take(number)
            names = "\0".join(item.path for item in batch)
            before = sum(item.here for item in batch)
            with self.changed:
                self.hands[number] = (batch, before, time.monotonic())
            code, err = self._rsync(number, _share.files_command(self.rsync, lane, self.specification), names)
            with self.changed:
                del self.hands[number]
                if number in self.silent:
                    self.silent.discard(number)
                    code, err = 30, f"ended after {self.specification['timeout_s']} s"
                for item in batch:
                    self._count(item)
                    item.moving = False
                lane.carried += sum(item.here for item in batch) - before
                self._after(lane, number, batch, code, err)
                self.changed.notify_all()

    def _rsync(self, who: int | str, command: list[str], names: str = "") -> tuple[int, str]:
        """Run one rsync for *who*, a stream or an asker; its status and what it complained of."""
        variables = dict(os.environ, LC_ALL="C")
        if self.specification["transport"] == "fabric":
            variables["RSYNC_PASSWORD"] = self.specification["secret"]
        with self.changed:
            if self.done:
                raise _StoppedError
            child = subprocess.Popen(  # pylint: disable=ansible-bad-function
                command,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                # The lock lives as long as any rsync writes here, also when this process is killed.
                pass_fds=[self.descriptor],
                start_new_session=True,
            )
            self.children[who] = child
        try:
            # A stream is watched by its bytes; an answer to a question takes no longer than this.
            limit_s = None if isinstance(who, int) else _share.CONNECT_S + self.specification["timeout_s"]
            _out, err = child.communicate(names, timeout=limit_s)
        except subprocess.TimeoutExpired:
            _kill(child)
            child.communicate()
            return 30, f"no answer within {limit_s} s"
        finally:
            with self.changed:
                self.children.pop(who, None)
        return child.returncode, err.strip()[:4000]

    def _after(self, lane: Lane, number: int, batch: list[Item], code: int, err: str) -> None:
        """What an rsync that ended leaves behind: whole files to read, others to send over this way or another."""
        unfinished = []
        for item in batch:
            there = os.path.lexists(os.path.join(self.staging, item.path))
            if item.state == SUSPECT or (item.state == MOVING and there and item.here >= item.size):
                self._whole(item)
            elif item.state == MOVING:
                item.state = QUEUED
                unfinished.append(item)
        self.lists[number].extendleft(reversed(unfinished))
        if code == 0 and not unfinished:
            lane.trouble = ""
            return
        if self.done:
            return
        what = f"{self.node}: the copy from {lane.node} ({lane.address})"
        if any(os.strerror(number) in err for number in FULL):
            self._refuse(self._full())
        elif self.specification["transport"] == "ssh" and any(text in err for text in SSH_REFUSALS):
            self._refuse(
                f"{what} was refused: found {_complaint(err)}; wanted an SSH key of this account that opens "
                f"{self.specification['ssh']['user']}@{lane.address} and a known host key; add them, or set the "
                "transport to fabric, which needs no keys"
            )
        elif code in LOST or code < 0 or "max connections" in err:
            lane.trouble = f"{LOST.get(code, 'ended')} (rsync status {code}: {_complaint(err)})"
            lane.down_until = time.monotonic() + RETRY_S
        elif code == 5:
            self._refuse(
                f"{what} was refused: found {_complaint(err)}; wanted the secret of this run and an allowed address; "
                "another run may have taken over: wait until it ends, or run this stage again"
            )
        elif code == 0 or code in UNREADABLE:
            for item in unfinished:
                item.unread += 1
            worst = next((item for item in unfinished if item.unread > 1), None)
            if worst is not None:
                self._refuse(
                    f"{what}: {worst.path}: found {worst.here} bytes, wanted {worst.size} ({_complaint(err)}); the "
                    f"copy on {lane.node} is not that of the manifest: run the model stage with model_verify_all=true, "
                    "which reads every byte there"
                )
        else:
            self._refuse(f"{what} ended with rsync status {code} ({_complaint(err)}), wanted 0; see rsync's manual")

    # -- relays ------------------------------------------------------------------------------------------------------

    def _asker(self, node: str) -> None:
        """Ask a relay what it has proven, until it has everything."""
        ways = [lane for lane in self.lanes if lane.node == node]
        with tempfile.TemporaryDirectory() as scratch:
            place = os.path.join(scratch, "arrived.json")
            turn = 0
            while len(self.offered[node]) < len(self.items):
                lane = ways[turn % len(ways)]
                code, err = self._rsync(node, self._proof_command(lane, place))
                news = self._read_news(place) if code == 0 else None
                with self.changed:
                    if code == 5:
                        self._refuse(f"{self.node}: {node} ({lane.address}) refused: {_complaint(err)}; run this again")
                    if code in LOST:
                        turn += 1
                    if news:
                        self._hear(node, news)
                    if self.done or self.changed.wait_for(lambda: self.done, NEWS_S):
                        return

    def _proof_command(self, lane: Lane, place: str) -> list[str]:
        return _share.proof_command(self.rsync, lane, self.specification, proof_file(lane.path), place)

    def _read_news(self, place: str) -> dict[str, t.Any]:
        with contextlib.suppress(OSError, ValueError), open(place, encoding="utf-8") as handle:
            news = json.load(handle)
            if (news.get("run"), news.get("digest")) == (self.run_id, self.manifest["digest"]):
                return dict(news)
        return {}

    def _hear(self, node: str, news: dict[str, t.Any]) -> None:
        offered = set(news["files"])
        if (offered, news["arrived"]) != (self.offered[node], self.heard.get(node)):
            self.news = time.monotonic()
        self.offered[node], self.heard[node] = offered, news["arrived"]
        if news["ended"]:
            self._refuse(f"{self.node}: {node}, from which this node copies, gave up: {news['ended']}")
        self.changed.notify_all()


def _kill(child: subprocess.Popen[str]) -> None:
    """End an rsync with the process that it writes files by: that one would wait on a dead connection by itself."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _complaint(text: str) -> str:
    """The first thing that rsync complained of: the later lines only say that it ended."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[0].strip() if lines else "no message"

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small read-only model hub for the lab: ``hub.py ROOT [--bind ADDRESS] [--port 9000] [--wheels DIR] …``.

Serves the folders ``ROOT/OWNER/NAME/`` to the real clients of Hugging Face (``hf``) and ModelScope (``modelscope``),
through both APIs at once. One file, standard library only: it runs on any host of the lab.

- A repository has one commit. Its id is made from the names and digests of its files, so it changes when they do;
  ``main`` and ``master`` mean it, any other revision is unknown.
- ``/wheels/`` is a plain page of links for ``pip`` and ``uv`` (``--find-links http://HOST:9000/wheels/``).
- ``/files/OWNER/NAME/FILE`` is a file without any API, and ``/files/OWNER/NAME/SHA256SUMS`` the checksums of all.
- ``/healthz`` answers when everything is hashed and served.

Digests are kept in ``ROOT.digests.json`` beside ROOT, by size and time of change: only the first start reads all.

Faults, for tests: ``--corrupt OWNER/NAME/FILE …``, or ``--control FILE``, a JSON list, read again when it changes::

    [{"fault": "corrupt",  "match": "tandem-lab/tiny-random/model.safetensors"},
     {"fault": "truncate", "match": "*/model.safetensors", "bytes": 1000},
     {"fault": "stop",     "match": "*.safetensors", "bytes": 1000, "times": 1},
     {"fault": "slow",     "match": "*.safetensors", "rate": 5000000},
     {"fault": "html",     "match": "tandem-lab/tiny-random/config.json"},
     {"fault": "refuse",   "match": "tandem-lab/*", "status": 429, "times": 3, "retry_after": 1}]

``match`` is a shell pattern over ``OWNER/NAME/FILE`` (``OWNER/NAME`` for a question about a repository, ``wheels/FILE``
for a wheel). ``times`` ends a fault after so many answers. ``corrupt`` flips one byte: full length, right digest in the
metadata. ``truncate`` sends less and calls it complete. ``stop`` closes the connection after so many bytes.
``slow`` sends so many bytes per second.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import html
import http.server
import json
import re
import socket
import socketserver
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

CHUNK = 1 << 20
LFS_SUFFIXES = (".bin", ".gguf", ".model", ".onnx", ".pt", ".safetensors")
LFS_SIZE = 10 << 20
CORRUPT_AT = 100
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
REPO = r"(?P<repo>[^/]+/[^/]+)"
RANGE = re.compile(r"bytes=(\d*)-(\d*)")
CAPTIVE = b"<!DOCTYPE html><html><body><h1>Sign in to the network</h1></body></html>\n"


class Digests:
    """SHA-256 and git blob id of files under a root, remembered on disk by size and time of change."""

    def __init__(self, root: Path, store: Path | None = None) -> None:
        self.root = root.absolute()
        self.store = store or self.root.parent / f"{self.root.name}.digests.json"
        self.lock = threading.Lock()
        self.known: dict[str, list[Any]] = {}
        self.changed = False
        with contextlib.suppress(OSError, ValueError):
            self.known = dict(json.loads(self.store.read_text(encoding="utf-8")))

    def both(self, path: Path) -> tuple[str, str]:
        """SHA-256 and git blob id."""
        status = path.stat()
        key, stamp = path.relative_to(self.root).as_posix(), [status.st_size, status.st_mtime_ns]
        with self.lock:
            found = self.known.get(key)
        if not found or found[:2] != stamp:
            sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % status.st_size)
            with path.open("rb") as file:
                while block := file.read(CHUNK):
                    sha256.update(block)
                    git.update(block)
            found = [*stamp, sha256.hexdigest(), git.hexdigest()]
            with self.lock:
                self.known[key], self.changed = found, True
        return str(found[2]), str(found[3])

    def sha256(self, path: Path) -> str:
        return self.both(path)[0]

    def git(self, path: Path) -> str:
        return self.both(path)[1]

    def commit(self, repo: Path) -> str:
        """The id of a repository's one commit, made from what it holds."""
        total = hashlib.sha1()
        for name, path in files_in(repo).items():
            total.update(f"{name}\0{self.sha256(path)}\n".encode())
        return total.hexdigest()

    def save(self) -> None:
        """Keep what is known; where the folder cannot be written, the next start reads again."""
        with self.lock, contextlib.suppress(OSError):
            if self.changed:
                partial = self.store.with_suffix(".partial")
                partial.write_text(json.dumps(self.known, indent=0, sort_keys=True), encoding="utf-8")
                partial.replace(self.store)
                self.changed = False


def files_in(repo: Path) -> dict[str, Path]:
    """The files of a repository by their name in it, sorted."""
    found = {path.relative_to(repo).as_posix(): path for path in repo.rglob("*") if path.is_file()}
    return dict(sorted(found.items()))


def is_lfs(path: Path) -> bool:
    return path.name.endswith(LFS_SUFFIXES) or path.stat().st_size >= LFS_SIZE


class Faults:
    """Which faults are on, from the command line and the control file."""

    def __init__(self, corrupt: list[str], control: Path | None) -> None:
        self.fixed = [{"fault": "corrupt", "match": name} for name in corrupt]
        self.control = control
        self.lock = threading.Lock()
        self.stamp: tuple[int, int] | None = None
        self.read: list[dict[str, Any]] = []

    def _current(self) -> list[dict[str, Any]]:
        stamp = None
        if self.control:
            with contextlib.suppress(OSError):
                status = self.control.stat()
                stamp = (status.st_mtime_ns, status.st_size)
        if stamp != self.stamp:
            self.stamp, self.read = stamp, []
            if self.control and stamp:
                try:
                    self.read = list(json.loads(self.control.read_text(encoding="utf-8")))
                except (OSError, ValueError) as error:
                    print(f"hub: {self.control}: {error}; no faults", file=sys.stderr)
        return [*self.fixed, *self.read]

    def take(self, subject: str, *kinds: str) -> dict[str, Any] | None:
        """The first fault of one of these kinds for a subject; it is used up once."""
        with self.lock:
            for fault in self._current():
                if fault.get("fault") not in kinds or fault.get("times", 1) < 1:
                    continue
                if fnmatch.fnmatchcase(subject, fault.get("match", "*")):
                    if "times" in fault:
                        fault["times"] -= 1
                    return fault
        return None


class Handler(http.server.BaseHTTPRequestHandler):
    """One request."""

    server: Hub
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "tandem-lab-hub", ""
    timeout = 120  # an idle connection's end
    sent = 0

    # ---- log: who asked for what, never a token

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        pass

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        self.status = code

    def write_log(self, seconds: float) -> None:
        if self.server.log:
            authorized = " authorized" if self.headers.get("Authorization") else ""
            wanted = f" {self.headers['Range']}" if self.headers.get("Range") else ""
            line = f"{self.client_address[0]} {self.command} {self.path}{wanted}{authorized}"
            with self.server.log_lock:
                print(f"{line} {self.status} {self.sent} bytes {seconds:.3f} s", file=self.server.log, flush=True)

    # ---- answers

    def answer(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            self.sent = len(body)

    def answer_json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.answer(status, json.dumps(value).encode(), "application/json", headers)

    def refuse(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        """An error in the words of both APIs."""
        body = {"error": message, "Code": status, "Success": False, "Message": message}
        more = {"X-Error-Code": code, "X-Error-Message": message} if code else {}
        self.answer_json(body, status, {**more, **(headers or {})})

    def answer_file(self, path: Path, subject: str, headers: dict[str, str]) -> None:
        """A file or the range of it that was asked for, faults included."""
        size = path.stat().st_size
        first, end, status = 0, size, 200
        if wanted := RANGE.fullmatch(self.headers.get("Range") or ""):
            if wanted[1]:
                first, end = int(wanted[1]), min(int(wanted[2] or size - 1) + 1, size)
            elif wanted[2]:
                first = max(0, size - int(wanted[2]))
            if first >= end:
                return self.refuse(416, "", "no such range", {"Content-Range": f"bytes */{size}"})
            status = 206
        fault: dict[str, Any] = {}
        if self.command == "GET":
            fault = self.server.faults.take(subject, "html", "truncate", "stop", "slow", "corrupt") or {}
        if fault.get("fault") == "html":
            return self.answer(200, CAPTIVE, "text/html")
        if fault.get("fault") == "truncate":
            end = min(end, first + int(fault.get("bytes", 0)))
        self.send_response(status)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Accept-Ranges", "bytes")
        for key, value in headers.items():
            self.send_header(key, value)
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{size}")
        self.send_header("Content-Length", str(end - first))
        self.end_headers()
        if self.command == "HEAD":
            return None
        flip = min(CORRUPT_AT, size - 1) if fault.get("fault") == "corrupt" else -1
        if fault.get("fault") == "stop":
            end = min(end, first + int(fault.get("bytes", 0)))
            self.close_connection = True
        with path.open("rb") as file:
            pace = int(fault["rate"]) if fault.get("fault") == "slow" else 0
            if flip < 0 and not pace:
                self.sent = self.connection.sendfile(file, first, end - first) if end > first else 0
                return None
            file.seek(first)
            while first < end:
                block = bytearray(file.read(min(CHUNK // 8 if pace else CHUNK, end - first)))
                if first <= flip < first + len(block):
                    block[flip - first] ^= 0xFF
                self.wfile.write(block)
                first += len(block)
                self.sent += len(block)
                if pace:
                    time.sleep(len(block) / pace)
        return None

    # ---- the tree: names from a request are looked up among what is there, never joined to a path

    def repo(self, name: str) -> Path | None:
        owner, _slash, project = name.partition("/")
        folder = self.server.root / owner / project
        return folder if NAME.fullmatch(owner) and NAME.fullmatch(project) and folder.is_dir() else None

    def found(self, name: str, revision: str) -> tuple[Path, str] | None:
        """A repository's folder and commit; answers itself when there is none."""
        if not (folder := self.repo(name)):
            self.refuse(404, "RepoNotFound", f"no repository {name}")
            return None
        commit = self.server.digests.commit(folder)
        if revision not in {"main", "master", commit}:
            self.refuse(404, "RevisionNotFound", f"{name} has no revision {revision}")
            return None
        return folder, commit

    def answer_entry(self, repo: str, revision: str, name: str) -> None:
        """A file of a repository, for either API."""
        if not (found := self.found(repo, revision)):
            return None
        folder, commit = found
        if not (path := files_in(folder).get(name)):
            return self.refuse(404, "EntryNotFound", f"{repo} has no file {name}", {"X-Repo-Commit": commit})
        sha256, git = self.server.digests.both(path)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{sha256 if is_lfs(path) else git}"'}
        if is_lfs(path):
            headers |= {"X-Linked-ETag": f'"{sha256}"', "X-Linked-Size": str(path.stat().st_size)}
        return self.answer_file(path, f"{repo}/{name}", headers)

    # ---- Hugging Face

    def hf_model(self, repo: str, revision: str) -> None:
        if not (found := self.found(repo, revision)):
            return
        folder, commit = found
        siblings = []
        for name, path in files_in(folder).items():
            sha256, git = self.server.digests.both(path)
            size = path.stat().st_size
            lfs = {"lfs": {"sha256": sha256, "size": size, "pointerSize": 134}} if is_lfs(path) else {}
            siblings.append({"rfilename": name, "size": size, "blobId": git, **lfs})
        flags = {"private": False, "gated": False, "disabled": False, "tags": [], "downloads": 0, "likes": 0}
        names = {"_id": commit[:24], "id": repo, "modelId": repo, "sha": commit}
        self.answer_json({**names, **flags, "siblings": siblings})

    def hf_tree(self, repo: str, revision: str, below: str = "") -> None:
        if not (found := self.found(repo, revision)):
            return
        folder, commit = found
        listed = []
        for name, path in files_in(folder).items():
            if not below or name.startswith(f"{below.strip('/')}/"):
                listed.append(self.hf_entry(name, path))
        self.answer_json(listed, headers={"X-Repo-Commit": commit})

    def hf_entry(self, name: str, path: Path) -> dict[str, Any]:
        sha256, git = self.server.digests.both(path)
        size = path.stat().st_size
        lfs = {"lfs": {"oid": sha256, "size": size, "pointerSize": 134}} if is_lfs(path) else {}
        return {"type": "file", "path": name, "size": size, "oid": git, **lfs}

    def hf_paths(self, repo: str, revision: str, body: bytes) -> None:
        if not (found := self.found(repo, revision)):
            return
        try:
            asked = json.loads(body).get("paths", [])
        except (ValueError, AttributeError):
            asked = urllib.parse.parse_qs(body.decode(errors="replace")).get("paths", [])
        here = files_in(found[0])
        self.answer_json([self.hf_entry(name, here[name]) for name in asked if name in here])

    # ---- ModelScope

    def ms_files(self, repo: str, revision: str, page: int) -> None:
        if not (found := self.found(repo, revision)):
            return
        folder, commit = found
        listed = []
        for name, path in files_in(folder).items():
            entry = {"Name": path.name, "Path": name, "Type": "blob", "Mode": "33188", "Size": path.stat().st_size}
            entry |= {"Sha256": self.server.digests.sha256(path), "IsLFS": is_lfs(path), "Revision": commit}
            listed.append({**entry, "CommittedDate": 0, "CommitId": commit, "Id": commit})
        data = {"Files": listed if page == 1 else [], "TotalCount": len(listed), "LatestCommitter": {"Id": commit}}
        self.answer_json({"Code": 200, "Success": True, "Message": "success", "Data": data})

    # ---- a plain directory with a checksum file

    def plain(self, repo: str, name: str) -> None:
        folder = self.repo(repo)
        here = files_in(folder) if folder else {}
        if folder and name == "SHA256SUMS":
            lines = [f"{self.server.digests.sha256(path)}  {each}\n" for each, path in here.items()]
            return self.answer(200, "".join(lines).encode(), "text/plain")
        if name not in here:
            return self.refuse(404, "EntryNotFound", f"{repo} has no file {name}")
        return self.answer_file(here[name], f"{repo}/{name}", {"ETag": f'"{self.server.digests.sha256(here[name])}"'})

    # ---- wheels and health

    def wheels(self, name: str) -> None:
        folder = self.server.wheels
        here = {path.name: path for path in sorted(folder.glob("*.whl"))} if folder else {}
        if not folder or (name and name not in here):
            return self.refuse(404, "EntryNotFound", f"no wheel {name}" if folder else "no wheels are served here")
        if name:
            return self.answer_file(here[name], f"wheels/{name}", {})
        links = "\n".join(f'<a href="{urllib.parse.quote(each)}">{html.escape(each)}</a><br>' for each in here)
        page = f"<!DOCTYPE html>\n<html><head><title>wheels</title></head><body>\n{links}\n</body></html>\n"
        return self.answer(200, page.encode(), "text/html; charset=utf-8")

    def health(self) -> None:
        folders = {f"{path.parent.name}/{path.name}": path for path in self.server.repositories()}
        commits = {name: self.server.digests.commit(path) for name, path in folders.items()}
        self.answer_json({"status": "ok", "repositories": commits})

    # ---- requests

    def do_HEAD(self) -> None:
        self.serve()

    def do_GET(self) -> None:
        self.serve()

    def do_POST(self) -> None:
        self.serve()

    def serve(self) -> None:
        start, self.sent, self.status = time.monotonic(), 0, "-"
        url = urllib.parse.urlsplit(self.path)
        try:
            self.route(urllib.parse.unquote(url.path), dict(urllib.parse.parse_qsl(url.query)))
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except FileNotFoundError:  # removed while it was being served
            self.close_connection = True
        self.write_log(time.monotonic() - start)

    def route(self, path: str, query: dict[str, str]) -> None:
        length = self.headers.get("Content-Length") or "0"
        body = self.rfile.read(min(int(length), CHUNK)) if self.command == "POST" and length.isdigit() else b""
        if path == "/healthz":
            return self.health()
        question = r"(?:/(?P<what>revision|tree|paths-info)/(?P<rev>[^/]+)(?P<below>/.*)?)?"
        hf_api = re.fullmatch(rf"/api/models/{REPO}{question}", path)
        hf_file = re.fullmatch(rf"/{REPO}/resolve/(?P<rev>[^/]+)/(?P<file>.+)", path)
        ms_api = re.fullmatch(rf"/api/v1/models/{REPO}/repo(?P<files>/files)?", path)
        wheel = re.fullmatch(r"/wheels/(?P<file>[^/]*)", path)
        plain = re.fullmatch(rf"/files/{REPO}/(?P<file>.+)", path)
        hf_file = plain or hf_file
        file = hf_file["file"] if hf_file else query.get("FilePath", "") if ms_api and not ms_api["files"] else ""
        match = hf_file or ms_api or hf_api
        subject = f"wheels/{wheel['file']}" if wheel else match["repo"] + (f"/{file}" if file else "") if match else ""
        if subject and (fault := self.server.faults.take(subject, "refuse")):
            headers = {"Retry-After": str(fault["retry_after"])} if "retry_after" in fault else {}
            return self.refuse(int(fault.get("status", 503)), "", "the lab refuses this request", headers)
        revision = query.get("Revision") or "master"
        if wheel:
            return self.wheels(wheel["file"])
        if plain:
            return self.plain(plain["repo"], file)
        if hf_file:
            return self.answer_entry(hf_file["repo"], hf_file["rev"], file)
        if ms_api and ms_api["files"]:
            page = query.get("PageNumber", "1")
            return self.ms_files(ms_api["repo"], revision, int(page) if page.isdigit() else 1)
        if ms_api:
            return self.answer_entry(ms_api["repo"], revision, file)
        if hf_api and hf_api["what"] == "tree":
            return self.hf_tree(hf_api["repo"], hf_api["rev"], hf_api["below"] or "")
        if hf_api and hf_api["what"] == "paths-info":
            return self.hf_paths(hf_api["repo"], hf_api["rev"], body)
        if hf_api and not hf_api["below"]:
            return self.hf_model(hf_api["repo"], hf_api["rev"] or "main")
        return self.refuse(404, "", "nothing here")


class Hub(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """The server: what it serves and its state."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        root: Path,
        address: tuple[str, int],
        *,
        wheels: Path | None = None,
        log: TextIO | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.root, self.wheels, self.log = root.absolute(), wheels, log
        self.log_lock = threading.Lock()
        self.faults = faults or Faults([], None)
        self.digests = Digests(self.root)
        for repo in self.repositories():  # before it listens: no client waits for hashing
            self.digests.commit(repo)
        self.digests.save()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler)

    def repositories(self) -> Iterator[Path]:
        return (path for path in sorted(self.root.glob("*/*")) if path.is_dir() and not path.name.startswith("."))

    def server_bind(self) -> None:
        """Without the base class's look-up of the address in DNS: seconds, where there is none."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", type=Path, help="holds OWNER/NAME/ folders")
    parser.add_argument("--bind", default="127.0.0.1", metavar="ADDRESS")
    parser.add_argument("--port", type=int, default=9000, help="0: any free one, printed at the start")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="serve the wheels in DIR under /wheels/")
    parser.add_argument("--log", type=Path, metavar="FILE", help="a line for each request")
    parser.add_argument("--corrupt", nargs="+", default=[], metavar="OWNER/NAME/FILE", help="flip one byte of these")
    parser.add_argument("--control", type=Path, metavar="FILE", help="faults as JSON, read again when it changes")
    args = parser.parse_args()
    if not args.root.is_dir():
        parser.error(f"{args.root} is not a folder")
    log = args.log.open("a", encoding="utf-8") if args.log else None
    faults = Faults(args.corrupt, args.control)
    with Hub(args.root, (args.bind, args.port), wheels=args.wheels, log=log, faults=faults) as hub:
        print(f"hub: {hub.root} at http://{args.bind}:{hub.server_port}/", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            hub.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())

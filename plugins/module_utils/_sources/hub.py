# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""The model hubs, through their own clients: ``hf`` and ``modelscope``, pinned, in an environment of their own."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import threading
import typing as t
import urllib.error
import urllib.parse

from ansible_collections.tandem.spark.plugins.module_utils import _hub
from ansible_collections.tandem.spark.plugins.module_utils._hub import HubFile
from ansible_collections.tandem.spark.plugins.module_utils._progress import Progress, Report
from ansible_collections.tandem.spark.plugins.module_utils._sources import _http, web
from ansible_collections.tandem.spark.plugins.module_utils._sources._request import Request, SourceError, part_of

SAMPLE_S = 1.0
# A hub that is busy or a line that breaks: worth another start of the client, which goes on where it stopped.
PASSING = re.compile(r"\b(429|5\d\d)\b|time[d ]*out|connection (reset|aborted|error|broken)|incomplete ?read", re.I)
STARTS = 4
BEGUN = re.compile(r".+\.(?P<etag>[0-9a-f]{40}|[0-9a-f]{64})\.[0-9a-f]{8}\.incomplete")


def _json(request: Request, url: str) -> tuple[t.Any, t.Any]:
    try:
        with _http.ask(url, request.endpoint, request.token) as answer:
            return json.load(answer), answer.headers
    except urllib.error.HTTPError as error:
        raise _http.refusal(
            f"{request.id} at {request.revision}", f"the hub at {request.endpoint}", error.code
        ) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise SourceError(f"the hub at {request.endpoint} gave no usable listing of {request.id}: {error}") from error


def listing(request: Request) -> list[HubFile]:
    """Ask the hub what the revision consists of."""
    url: str | None = _hub.listing_url(request.source, request.endpoint, request.id, request.revision)
    files: list[HubFile] = []
    seen = set()
    while url and url not in seen:
        seen.add(url)
        answer, headers = _json(request, url)
        try:
            files += _hub.parse_listing(request.source, answer)
        except _hub.HubError as error:
            raise SourceError(
                f"the hub at {request.endpoint} gave no usable listing of {request.id}: {error}"
            ) from error
        page = _hub.next_page(headers.get("Link"))
        url = urllib.parse.urljoin(url, page) if page else None
    return files


def revision(request: Request, _files: t.Sequence[HubFile] = ()) -> str | None:
    """The commit that a branch or tag stands for now; ``None`` when the hub does not say."""
    answer, _headers = _json(request, _hub.revision_url(request.source, request.endpoint, request.id, request.revision))
    return _hub.parse_revision(request.source, answer)


def on_disk(path: str) -> int:
    """Bytes that are there by now, the client's own partial files included."""
    total = 0
    for parent, _directories, names in os.walk(path):
        for name in names:
            try:
                status = os.lstat(os.path.join(parent, name))
            except OSError:
                continue
            # A file with holes is shorter than it says.
            total += min(status.st_size, status.st_blocks * 512)
    return total


def salvage(request: Request, files: t.Sequence[HubFile]) -> list[HubFile]:
    """Take over what a killed ``hf`` had begun; the files that these are the beginnings of.

    Each process of it writes to a name of its own and begins every file anew (huggingface_hub pull request 4228),
    so with shards of 5 GB a kill would cost up to 5 GB for each worker, and the beginnings would stay on the disk.
    """
    wanted = {digest: file for file in files for digest in (file.sha256, file.git_blob) if digest}
    best: dict[str, tuple[int, str]] = {}
    for parent, _directories, names in os.walk(os.path.join(request.path, ".cache", "huggingface", "download")):
        for match in filter(None, map(BEGUN.fullmatch, names)):
            path = os.path.join(parent, match[0])
            status = os.stat(path)
            file = wanted.get(match["etag"])
            # One with holes was not written from its beginning on.
            good = file and status.st_blocks * 512 >= status.st_size > best.get(file.path, (0, ""))[0]
            if not file or not good or os.path.exists(os.path.join(request.path, file.path)):
                os.unlink(path)
                continue
            if file.path in best:
                os.unlink(best[file.path][1])
            best[file.path] = (status.st_size, path)
    for name, (size, path) in best.items():
        part = part_of(request, name)
        os.makedirs(os.path.dirname(part), exist_ok=True)
        if os.path.exists(part) and os.path.getsize(part) >= size:
            os.unlink(path)
        else:
            os.replace(path, part)
    return [file for file in files if os.path.isfile(part_of(request, file.path))]


def fetch(request: Request, files: t.Sequence[HubFile], report: Report) -> None:
    """Run the hub's client until it has everything."""
    if request.source == "huggingface":
        begun_files = salvage(request, files)
        if begun_files:
            web.fetch(request, begun_files, report)
    command = _hub.download_command(
        request.source, request.client, request.id, request.revision, request.path, request.workers
    )
    environment = {**os.environ, **_hub.client_environment(request.source, request.endpoint, request.token)}
    # The clients keep a cache in HOME; beside the model it is on the same disk and goes away with the staging.
    environment["HOME"] = os.path.join(request.path, ".cache")
    total = sum(file.size or 0 for file in files)
    for start in range(STARTS):
        before = on_disk(request.path)
        code, said = _watch(command, environment, request.path, total, report)
        if code == 0:
            return
        if not PASSING.search(said) or start == STARTS - 1:
            break
        if on_disk(request.path) <= before:
            _http.pause(_http.patience(start + 1, None))
    raise SourceError(f"{os.path.basename(command[0])} ended with exit status {code}: {said}")


def _watch(command: list[str], environment: dict[str, str], path: str, total: int, report: Report) -> tuple[int, str]:
    """Run the client and report what is on the disk meanwhile; its status and last lines."""
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_S):
            report(Progress("download", min(on_disk(path), total), total))

    report(Progress("download", min(on_disk(path), total), total))
    watcher = threading.Thread(target=sample, daemon=True)
    watcher.start()
    try:
        # No module is there to ask: this runs in a unit of its own.
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise SourceError(
            f"{command[0]}: found no client that runs ({error.strerror}), wanted one; run the model stage"
        ) from error
    finally:
        ended.set()
        watcher.join()
    return done.returncode, "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-10:])


def begun(request: Request) -> int:
    """Bytes that an earlier run left and that are not fetched again."""
    return on_disk(request.path)

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""A directory on a web server with a checksum file: ``ENDPOINT/SHA256SUMS`` and, beside it, what it names."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import os
import re
import threading
import typing as t
import urllib.error
import urllib.parse

from ansible_collections.tandem.spark.plugins.module_utils import _checksums, _manifest
from ansible_collections.tandem.spark.plugins.module_utils._hub import HubFile
from ansible_collections.tandem.spark.plugins.module_utils._progress import Progress, Report
from ansible_collections.tandem.spark.plugins.module_utils._sources import _http
from ansible_collections.tandem.spark.plugins.module_utils._sources._request import (
    Request,
    SourceError,
    part_of,
    settle,
)

CHECKSUMS = "SHA256SUMS"
CHECKSUMS_LIMIT = 16 << 20
BLOCK = 1 << 20
RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class _Again(Exception):
    """A transfer that broke off; what came is kept."""


def _url(request: Request, name: str) -> str:
    if request.source == "huggingface":
        # What its client began and another start of it would begin again (hub.py).
        rev = urllib.parse.quote(request.revision, safe="")
        return f"{request.endpoint}/{urllib.parse.quote(request.id)}/resolve/{rev}/{urllib.parse.quote(name)}"
    return f"{request.endpoint}/{urllib.parse.quote(name)}"


def _is_page(kind: str | None, name: str) -> bool:
    return (kind or "").split(";")[0].strip().lower() in ("text/html", "application/xhtml+xml") and not name.endswith(
        (".html", ".htm", ".xhtml")
    )


def _page(url: str) -> SourceError:
    return SourceError(
        f"{url}: found an HTML page, wanted the file; is it the page of a login or a proxy, or does the server show "
        "its directory elsewhere (model_endpoint)?"
    )


def listing(request: Request) -> list[HubFile]:
    """What the checksum file names. Sizes are the server's, null where it does not tell them."""
    name = request.checksums or CHECKSUMS
    url = _url(request, name)
    try:
        with _http.ask(url, request.endpoint, request.token) as answer:
            kind = answer.headers.get("Content-Type")
            raw = answer.read(CHECKSUMS_LIMIT + 1)
    except urllib.error.HTTPError as error:
        raise _http.refusal(name, request.endpoint, error.code) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise SourceError(f"{request.endpoint} gave no usable {name} of {request.id}: {error}") from error
    if _is_page(kind, name):
        raise _page(url)
    if len(raw) > CHECKSUMS_LIMIT:
        raise SourceError(f"{url}: found more than {CHECKSUMS_LIMIT} bytes, wanted a checksum file")
    try:
        entries = _checksums.parse(raw, url)
    except _manifest.ManifestError as error:
        raise SourceError(str(error)) from error
    with concurrent.futures.ThreadPoolExecutor(max_workers=request.workers) as pool:
        sizes = list(pool.map(lambda path: _size(request, path), entries))
    return [HubFile(path, size, entries[path], None) for path, size in zip(entries, sizes)]


def _size(request: Request, name: str) -> int | None:
    """What the server says of a file's size; null when it does not, a page for the file included."""
    try:
        with _http.ask(_url(request, name), request.endpoint, request.token, method="HEAD") as answer:
            length = answer.headers.get("Content-Length", "")
            known = length.isdecimal() and not _is_page(answer.headers.get("Content-Type"), name)
            return int(length) if known else None
    except (OSError, ValueError, http.client.HTTPException):
        # The download itself says what is wrong.
        return None


def revision(_request: Request, files: t.Sequence[HubFile] = ()) -> str | None:
    """A directory has no commits: what names its content is the manifest's digest."""
    return _manifest.digest([{"path": file.path, "sha256": file.sha256} for file in files])


def begun(request: Request) -> int:
    """Bytes that an earlier run left and that are not fetched again."""
    whole = sum(status.st_size for status in _manifest.walk(request.path)[0].values())
    parts = part_of(request, "")
    return whole + sum(
        os.path.getsize(os.path.join(parent, name))
        for parent, _directories, names in os.walk(parts)
        for name in names
        if not name.endswith(".tag")
    )


def fetch(request: Request, files: t.Sequence[HubFile], report: Report) -> None:
    """Download what is not there, several files at a time; each goes on where an earlier run stopped."""
    total = None if any(file.size is None for file in files) else sum(file.size or 0 for file in files)
    missing = [file for file in files if not os.path.isfile(os.path.join(request.path, file.path))]
    lock = threading.Lock()
    done = sum(_length(os.path.join(request.path, file.path)) or _length(part_of(request, file.path)) for file in files)
    stop = threading.Event()

    def count(step: int, name: str) -> None:
        nonlocal done
        with lock:
            done += step
            report(Progress("download", done, total, name))

    count(0, "")
    with concurrent.futures.ThreadPoolExecutor(max_workers=request.workers) as pool:
        running = [pool.submit(_download, request, file, count, stop) for file in missing]
        try:
            for each in concurrent.futures.as_completed(running):
                each.result()
        except BaseException:
            # The first that fails ends the others; what came is kept.
            stop.set()
            for each in running:
                each.cancel()
            raise


def _download(request: Request, file: HubFile, count: t.Callable[[int, str], None], stop: threading.Event) -> None:
    part = part_of(request, file.path)
    os.makedirs(os.path.dirname(part), exist_ok=True)
    attempt = 0
    while not stop.is_set():
        had = _length(part)
        try:
            _transfer(request, file, part, count, stop)
            break
        except _Again as error:
            # Counted only while nothing comes: a line that breaks every minute still brings the file.
            attempt = 0 if _length(part) > had else attempt + 1
            if attempt >= _http.ATTEMPTS:
                raise SourceError(
                    f"{_url(request, file.path)}: broke off {attempt} times in a row ({error}); what came is kept: run "
                    "this stage again, and it goes on"
                ) from error
            if attempt:
                _http.pause(_http.patience(attempt, None))
    if not stop.is_set():
        settle(request, file.path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{part}.tag")


def _length(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0


def _tag(path: str) -> str:
    try:
        with open(path, encoding="latin-1") as handle:
            return handle.read()
    except FileNotFoundError:
        return ""


def _transfer(
    request: Request, file: HubFile, part: str, count: t.Callable[[int, str], None], stop: threading.Event
) -> None:
    """One connection: from the first missing byte to the end. Raises _Again when it broke off."""
    url, offset, tag = _url(request, file.path), _length(part), _tag(f"{part}.tag")
    if offset and file.size == offset:
        return
    headers = {"Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
        # Another file under the same name is sent whole instead of being joined to the beginning of the old one.
        if tag and not tag.startswith("W/"):
            headers["If-Range"] = tag
    try:
        answer = _http.ask(url, request.endpoint, request.token, headers=headers)
    except urllib.error.HTTPError as error:
        if error.code == 416 and offset:
            # There is more here than there: not the same file any more.
            count(-offset, file.path)
            os.unlink(part)
            raise _Again("the server has less than what is here") from error
        raise _http.refusal(file.path, request.endpoint, error.code) from error
    except ValueError as error:
        raise SourceError(f"{url}: {error}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Again(str(error)) from error
    with answer:
        if _is_page(answer.headers.get("Content-Type"), file.path):
            raise _page(url)
        span = RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        goes_on = answer.status == 206 and span is not None and int(span[1]) == offset
        if offset and not goes_on:
            count(-offset, file.path)
        begin = offset if goes_on else 0
        length = answer.headers.get("Content-Length", "")
        expected = begin + int(length) if length.isdecimal() else file.size
        if file.size is not None and expected != file.size:
            raise SourceError(
                f"{url}: found {expected} bytes, wanted {file.size} as the server said before; it changes in the "
                "middle of the download, or is cut on the way. Run this stage again"
            )
        with open(f"{part}.tag", "w", encoding="latin-1") as handle:
            handle.write(answer.headers.get("ETag", "") or answer.headers.get("Last-Modified", ""))
        with open(part, "r+b" if goes_on else "wb", buffering=0) as handle:
            handle.seek(begin)
            while not stop.is_set():
                try:
                    block = answer.read(BLOCK)
                except (OSError, http.client.HTTPException) as error:
                    raise _Again(str(error)) from error
                if not block:
                    break
                handle.write(block)
                begin += len(block)
                count(len(block), file.path)
        if expected is not None and begin < expected and not stop.is_set():
            raise _Again(f"{begin} of {expected} bytes came")

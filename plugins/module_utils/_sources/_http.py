# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Asking over HTTP: who may see the token, when it is worth asking again, and after how long."""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import time
import typing as t
import urllib.error
import urllib.parse
import urllib.request

from ansible_collections.tandem.spark.plugins.module_utils._sources._request import SourceError

TIMEOUT_S = 60
ATTEMPTS = 6
# A server that is busy is left alone for as long as it asks, but not for ever.
WAIT_MOST_S = 300.0
BUSY = (408, 425, 429, 500, 502, 503, 504)
pause = time.sleep


def may_see_token(url: str, endpoint: str) -> bool:
    """A mirror can name other hosts: the token is for the endpoint only."""
    return urllib.parse.urlsplit(url)[:2] == urllib.parse.urlsplit(endpoint)[:2]


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds of a ``Retry-After`` header, which gives seconds or a date."""
    if not value:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(email.utils.parsedate_to_datetime(value).timestamp() - now, 0.0)
    except (TypeError, ValueError, OverflowError):
        return None


def patience(attempt: int, asked: float | None) -> float:
    """Seconds to wait before the attempt after number *attempt* (from 0)."""
    return min(asked if asked is not None else 2.0**attempt, WAIT_MOST_S)


def ask(
    url: str, endpoint: str, token: str, *, method: str = "GET", headers: t.Mapping[str, str] | None = None
) -> http.client.HTTPResponse:
    """One answer, asked for again while the server is busy. Raises HTTPError, OSError, ValueError, HTTPException."""
    # No file: and no ftp: urllib would read them as well.
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"found the address {url!r}, wanted http:// or https://")
    request = urllib.request.Request(url, headers={"User-Agent": "tandem.spark", **(headers or {})}, method=method)
    if token and may_see_token(url, endpoint):
        # Not sent along when the server redirects to another place.
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    # Ansible's own open_url is not there in a unit of its own.
    opener = urllib.request.build_opener()
    for attempt in range(ATTEMPTS):
        try:
            return t.cast("http.client.HTTPResponse", opener.open(request, timeout=TIMEOUT_S))
        except urllib.error.HTTPError as error:
            if error.code not in BUSY or attempt == ATTEMPTS - 1:
                raise
            asked = retry_after(error.headers.get("Retry-After"), time.time())
            with contextlib.suppress(OSError, http.client.HTTPException):
                error.close()
            pause(patience(attempt, asked))
    raise AssertionError("the last attempt returns or raises")


def refusal(what: str, endpoint: str, code: int) -> SourceError:
    """What to say of a status that is no answer."""
    if code in BUSY:
        hint = f"wanted an answer within {ATTEMPTS} attempts; run this stage again later, it goes on where it stopped"
    else:
        hint = "wanted something that exists there and, where it is protected, a token that may read it (model_token)"
    return SourceError(f"{what}: {endpoint} answered {code}; {hint}")

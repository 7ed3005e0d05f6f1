# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Where a model's config.json and the size of its weights come from: recorded beside the recipes, a directory, the hub.

Every function returns what :func:`_memory_plan.fit` takes as its model. No weights are read or fetched.
"""

from __future__ import annotations

import json
import os
import typing as t
import urllib.parse

from ansible_collections.tandem.spark.plugins.module_utils import _hub
from ansible_collections.tandem.spark.plugins.plugin_utils._model_shape import weights_of

try:
    import requests
except ImportError:
    HAS_REQUESTS = False
else:
    HAS_REQUESTS = True

RECORDED = "shapes"
CONFIG, QUANTISATION, INDEX = "config.json", "hf_quant_config.json", ".safetensors.index.json"
TIMEOUT_S = 30
LIMIT_BYTES = 64 << 20  # the index of a model with 500 experts a layer has 10 MB
NEEDED = {"model": str, "config": dict, "source": str}


class SourceError(ValueError):
    """A description that is not there or cannot be used; the text says where it was looked for."""


def recorded(model: str, directories: t.Iterable[str]) -> dict[str, t.Any] | None:
    """What is recorded about *model* in ``shapes/*.json`` of recipe *directories*, or None; the first one wins.

    ``twins`` has the recorded releases of the same ``base`` model. Raises SourceError for a file that is broken.
    """
    known: dict[str, dict[str, t.Any]] = {}
    for directory in directories:
        place = os.path.join(directory, RECORDED)
        for name in sorted(os.listdir(place)) if os.path.isdir(place) else ():
            if name.endswith(".json"):
                entry = _checked(_json(os.path.join(place, name)), os.path.join(place, name))
                known.setdefault(entry["model"], entry)
    found = known.get(model)
    if found is None:
        return None
    base = found.get("base")
    twins = [entry for entry in known.values() if base and entry.get("base") == base and entry is not found]
    return dict(found, twins=[entry for entry in twins if entry.get("weights_bytes")])


def _checked(entry: t.Any, path: str) -> dict[str, t.Any]:
    if not isinstance(entry, dict):
        raise SourceError(f"{path}: found {type(entry).__name__}, wanted a mapping with {', '.join(NEEDED)}")
    wrong = [key for key, kind in NEEDED.items() if not isinstance(entry.get(key), kind)]
    wrong += [
        key
        for key in ("weights_bytes", "weights_upper_bytes")
        if entry.get(key) is not None and (isinstance(entry[key], bool) or not isinstance(entry[key], int))
    ]
    if wrong:
        raise SourceError(f"{path}: {', '.join(wrong)} missing or of another kind than a recorded shape has")
    return entry


def _json(path: str) -> t.Any:
    try:
        with open(path, encoding="utf-8") as handle:
            return json.load(handle)
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{path}: cannot be read as JSON: {error}") from error


def from_directory(path: str) -> dict[str, t.Any]:
    """A model directory on this machine, which may hold no more than config.json and the index."""
    path = os.path.abspath(os.path.expanduser(path))
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise SourceError(f"model directory {path}: cannot be read: {error.strerror}") from error
    if CONFIG not in names:
        raise SourceError(f"model directory {path}: found no {CONFIG}, wanted that of the model")
    index = index_name(names)
    files = [(name, os.path.getsize(os.path.join(path, name))) for name in names]
    return {
        "config": _json(os.path.join(path, CONFIG)),
        "quantisation": _json(os.path.join(path, QUANTISATION)) if QUANTISATION in names else None,
        "weights_bytes": weights_of(_json(os.path.join(path, index)) if index else None, files),
        "source": path,
    }


def index_name(names: t.Iterable[str]) -> str | None:
    """The index of the weights among *names*; that of the usual name first."""
    found = sorted((name for name in names if name.endswith(INDEX) and "/" not in name), key=lambda n: (len(n), n))
    usual = f"model{INDEX}"
    return usual if usual in found else next(iter(found), None)


def file_url(source: str, endpoint: str, model: str, revision: str, path: str) -> str:
    """Where the hub serves one file of a revision."""
    quoted, rev = urllib.parse.quote(model), urllib.parse.quote(revision, safe="")
    if source == "huggingface":
        return f"{endpoint}/{quoted}/resolve/{rev}/{urllib.parse.quote(path)}"
    return f"{endpoint}/api/v1/models/{quoted}/repo?Revision={rev}&FilePath={urllib.parse.quote(path, safe='')}"


class _Token:
    """The token, or none; it keeps requests from taking a login out of ~/.netrc."""

    def __init__(self, token: str | None) -> None:
        self.token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self.token:
            request.headers["Authorization"] = f"Bearer {self.token}"
        return request


def from_hub(
    source: str, model: str, revision: str, *, endpoint: str | None = None, token: str | None = None
) -> dict[str, t.Any]:
    """config.json and the index of one revision, and nothing else, from the hub or a mirror; proxies as in the shell.

    Raises SourceError when the hub does not answer, does not know the revision, or wants a token.
    """
    if not HAS_REQUESTS:
        raise SourceError("the Python library requests: found none on the controller, wanted it to ask the hub with")
    place = (endpoint or _hub.ENDPOINTS[source]).rstrip("/")
    with requests.Session() as session:
        session.headers["User-Agent"] = "tandem.spark"
        session.auth = _Token(token)
        files = _listing(session, source, place, model, revision)
        names = [file.path for file in files]
        if CONFIG not in names:
            raise SourceError(
                f"{model} at {revision}: found no {CONFIG} at {place}, wanted one; no weights were fetched"
            )

        def fetched(name: str | None) -> t.Any:
            if name is None or name not in names:
                return None
            return _get(session, file_url(source, place, model, revision, name), place, f"{name} of {model}")[0]

        return {
            "config": fetched(CONFIG),
            "quantisation": fetched(QUANTISATION),
            "weights_bytes": weights_of(fetched(index_name(names)), [(file.path, file.size) for file in files]),
            "source": f"{place}, {model} at {revision}",
        }


def _listing(session: requests.Session, source: str, place: str, model: str, revision: str) -> list[_hub.HubFile]:
    url: str | None = _hub.listing_url(source, place, model, revision)
    files: list[_hub.HubFile] = []
    seen = set()
    while url and url not in seen:
        seen.add(url)
        if urllib.parse.urlsplit(url)[:2] != urllib.parse.urlsplit(place)[:2]:
            session.auth = _Token(None)  # a mirror can name pages of another host
        answer, link = _get(session, url, place, f"the list of files of {model} at {revision}")
        try:
            files += _hub.parse_listing(source, answer)
        except ValueError as error:
            raise SourceError(f"{model} at {revision}: {error}") from error
        page = _hub.next_page(link)
        url = urllib.parse.urljoin(url, page) if page else None
    return files


def _get(session: requests.Session, url: str, place: str, what: str) -> tuple[t.Any, str | None]:
    """Parsed JSON and the Link header."""
    try:
        with session.get(url, timeout=TIMEOUT_S, stream=True) as answer:
            if answer.status_code != 200:
                raise SourceError(
                    f"{what}: the hub at {place} answered {answer.status_code}, wanted 200: a revision that exists "
                    "there and, for a gated model, a token that may read it (model_token)"
                )
            content = b""
            for block in answer.iter_content(1 << 20):
                content += block
                if len(content) > LIMIT_BYTES:
                    raise SourceError(f"{what}: the hub at {place} sent more than {LIMIT_BYTES >> 20} MiB, wanted less")
            return json.loads(content), answer.headers.get("Link")
    except (requests.RequestException, RecursionError) as error:
        # requests puts its whole stack of retries into the text; the last cause is what somebody can act on.
        cause: BaseException = error
        while cause.__cause__ or cause.__context__:
            cause = t.cast("BaseException", cause.__cause__ or cause.__context__)
        raise SourceError(f"{what}: the hub at {place} gave no answer: {type(error).__name__}: {cause}") from error
    except ValueError as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{what}: the hub at {place} gave no JSON: {error}") from error

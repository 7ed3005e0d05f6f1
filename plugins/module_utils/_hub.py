# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What the model hubs say about the files of a revision: parsers of their answers and the clients' command lines."""

from __future__ import annotations

import hashlib
import os
import re
import typing as t
import urllib.parse

from ansible_collections.tandem.spark.plugins.module_utils._manifest import safe_path

ENDPOINTS = {"huggingface": "https://huggingface.co", "modelscope": "https://modelscope.cn"}


class HubError(ValueError):
    """An answer of a hub that cannot be used."""


class HubFile(t.NamedTuple):
    """A file as the hub describes it. Exactly one of *sha256* and *git_blob* is known, or neither."""

    path: str
    size: int | None  # None when the source does not tell it
    sha256: str | None
    git_blob: str | None


def listing_url(source: str, endpoint: str, model: str, revision: str) -> str:
    """Where the hub lists every file of a revision."""
    quoted = urllib.parse.quote(model)
    rev = urllib.parse.quote(revision, safe="")
    if source == "huggingface":
        return f"{endpoint}/api/models/{quoted}/tree/{rev}?recursive=true&expand=false"
    return f"{endpoint}/api/v1/models/{quoted}/repo/files?Revision={rev}&Recursive=True&PageNumber=1&PageSize=5000"


def revision_url(source: str, endpoint: str, model: str, revision: str) -> str:
    """Where the hub says which commit a branch or tag stands for."""
    quoted, rev = urllib.parse.quote(model), urllib.parse.quote(revision, safe="")
    if source == "huggingface":
        return f"{endpoint}/api/models/{quoted}/revision/{rev}"
    return f"{endpoint}/api/v1/models/{quoted}/repo/files?Revision={rev}&PageNumber=1&PageSize=1"


def parse_revision(source: str, answer: t.Any) -> str | None:
    """The commit in a hub's answer (parsed JSON); ``None`` when it names none."""
    try:
        commit = answer["sha"] if source == "huggingface" else answer["Data"]["LatestCommitter"]["Id"]
    except (KeyError, TypeError):
        return None
    return commit if isinstance(commit, str) and re.fullmatch("[0-9a-f]{40}", commit) else None


def parse_listing(source: str, answer: t.Any) -> list[HubFile]:
    """The files in a hub's answer (parsed JSON). Raises HubError."""
    try:
        if source == "huggingface":
            files = [_hugging_face(entry) for entry in answer if entry["type"] == "file"]
        else:
            files = [_model_scope(entry) for entry in answer["Data"]["Files"] if entry.get("Type", "blob") != "tree"]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise HubError(f"the {source} listing has an unknown shape: {error!r}") from error
    if not files:
        raise HubError(f"the {source} listing names no file")
    return files


def _hugging_face(entry: dict[str, t.Any]) -> HubFile:
    lfs = entry.get("lfs")
    if lfs:
        return HubFile(safe_path(entry["path"]), int(lfs["size"]), lfs["oid"].split(":")[-1], None)
    return HubFile(safe_path(entry["path"]), int(entry["size"]), None, entry["oid"])


def _model_scope(entry: dict[str, t.Any]) -> HubFile:
    return HubFile(safe_path(entry["Path"]), int(entry["Size"]), entry.get("Sha256") or None, None)


def next_page(link_header: str | None) -> str | None:
    """The address of the next page in a Link header."""
    for address, attributes in re.findall(r"<([^>]*)>([^<]*)", link_header or ""):
        if re.search(r'\brel="?next\b', attributes):
            return t.cast("str", address)
    return None


def git_blob(path: str) -> str:
    """The git object id of a file, which Hugging Face gives for files outside LFS."""
    digest = hashlib.sha1(b"blob %d\0" % os.path.getsize(path))
    with open(path, "rb") as handle:
        for block in iter(lambda: handle.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def mismatch(file: HubFile, size: int, sha256: str, blob: t.Callable[[], str]) -> str | None:
    """Say how a downloaded file differs from the hub's description, or ``None`` when it does not."""
    empty = hashlib.sha256(b"").hexdigest()
    if size == 0 and (file.size or (file.sha256 and file.sha256 != empty)):
        return f"{file.path}: the download is empty (0 bytes), the hub says {file.size or file.sha256}"
    if file.size is not None and size != file.size:
        return f"{file.path}: {size} bytes, the hub says {file.size}"
    if file.sha256 and sha256 != file.sha256:
        return f"{file.path}: sha256 {sha256}, the hub says {file.sha256}"
    if file.git_blob and blob() != file.git_blob:
        return f"{file.path}: content differs from the hub's git object {file.git_blob}"
    return None


def download_command(source: str, client: str, model: str, revision: str, directory: str, workers: int) -> list[str]:
    """The real client's command line. Tokens travel in the environment, never here."""
    if source == "huggingface":
        command = [f"{client}/bin/hf", "download", model, "--revision", revision, "--local-dir", directory]
        return [*command, "--max-workers", str(workers), "--quiet"]
    command = [f"{client}/bin/modelscope", "download", model, "--revision", revision, "--local-dir", directory]
    return [*command, "--max-workers", str(workers)]


def client_environment(source: str, endpoint: str, token: str | None) -> dict[str, str]:
    """Environment of the client: where to ask, who asks, and no telemetry."""
    if source == "huggingface":
        environment = {
            "HF_ENDPOINT": endpoint,
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            # Xet speaks to other hosts than the endpoint, which mirrors do not offer.
            "HF_HUB_DISABLE_XET": "0" if endpoint == ENDPOINTS[source] else "1",
        }
        return dict(environment, HF_TOKEN=token) if token else environment
    environment = {"MODELSCOPE_ENDPOINT": endpoint}
    return dict(environment, MODELSCOPE_API_TOKEN=token) if token else environment

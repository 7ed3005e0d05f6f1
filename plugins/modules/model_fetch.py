#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_fetch
short_description: Download one revision of a model and prove every byte of it
description:
  - Runs the hub's own client (C(hf) or C(modelscope)), which resumes what an earlier run left.
  - Then compares every file with the hub's own digests, since C(hf) accepts a file of the right length with wrong
    bytes. A bad file is deleted and fetched again, once.
  - Writes the manifest into the directory, which is a staging place. M(tandem.spark.model_release) publishes it.
version_added: 0.1.0
author:
  - The tandem.spark contributors (@tandem-spark)
extends_documentation_fragment:
  - tandem.spark._attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
options:
  source:
    description: Which hub.
    type: str
    choices: [huggingface, modelscope]
    required: true
  id:
    description: The model, as C(owner/name).
    type: str
    required: true
  revision:
    description: Full commit id. A branch name is refused, it can move in the middle of a download.
    type: str
    required: true
  licence:
    description: Licence of the weights, for the manifest.
    type: str
    default: ""
  path:
    description: Directory to download to.
    type: path
    required: true
  client:
    description: Virtual environment with the hub's client.
    type: path
    required: true
  endpoint:
    description: Base URL of the hub or of a mirror. Default is the hub's own.
    type: str
  token:
    description: Access token for gated models.
    type: str
  workers:
    description: Parallel downloads.
    type: int
    default: 8
"""

EXAMPLES = r"""
- name: Fetch the model once
  tandem.spark.model_fetch:
    source: modelscope
    id: inclusionAI/Ling-3.0-flash-fp8
    revision: 0123456789abcdef0123456789abcdef01234567
    path: /var/lib/tandem/models/.staging-ling
    client: /var/lib/tandem/tools/hub-clients/venv
"""

RETURN = r"""
digest:
  description: The manifest's digest, one SHA-256 over all files.
  returned: success
  type: str
bytes:
  description: Size of all files together.
  returned: success
  type: int
files:
  description: Number of files.
  returned: success
  type: int
fetched_again:
  description: Files that arrived wrong and were fetched a second time.
  returned: success
  type: list
  elements: str
"""

import functools
import http.client
import json
import os
import re
import shutil
import typing as t
import urllib.error
import urllib.parse

from ansible.module_utils import urls
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _hub, _manifest
from ansible_collections.tandem.spark.plugins.module_utils._files import replace

COMMIT = re.compile(r"[0-9a-f]{40}")
TIMEOUT_S = 60


def listing(module: AnsibleModule, endpoint: str) -> list[_hub.HubFile]:
    """Ask the hub what the revision consists of."""
    parameters = module.params
    url: str | None = _hub.listing_url(parameters["source"], endpoint, parameters["id"], parameters["revision"])
    files: list[_hub.HubFile] = []
    seen = set()
    while url and url not in seen:
        seen.add(url)
        try:
            headers = {}
            # A mirror can name pages of another host: the token is for the endpoint only.
            if parameters["token"] and urllib.parse.urlsplit(url)[:2] == urllib.parse.urlsplit(endpoint)[:2]:
                headers["Authorization"] = f"Bearer {parameters['token']}"
            with urls.open_url(
                url,
                headers=headers,
                unredirected_headers=["Authorization"],
                http_agent="tandem.spark",
                timeout=TIMEOUT_S,
                use_netrc=False,
            ) as answer:
                files += _hub.parse_listing(parameters["source"], json.load(answer))
                page = _hub.next_page(answer.headers.get("Link"))
                url = urllib.parse.urljoin(url, page) if page else None
        except urllib.error.HTTPError as error:
            module.fail_json(
                msg=f"{parameters['id']} at {parameters['revision']}: the hub at {endpoint} answered {error.code}; "
                "wanted a revision that exists there and, for a gated model, a token that may read it (model_token)"
            )
        except (OSError, ValueError, http.client.HTTPException, urls.ConnectionError) as error:
            module.fail_json(msg=f"the hub at {endpoint} gave no usable listing of {parameters['id']}: {error}")
    return files


def download(module: AnsibleModule, endpoint: str) -> None:
    parameters = module.params
    source = parameters["source"]
    command = _hub.download_command(
        source,
        parameters["client"],
        parameters["id"],
        parameters["revision"],
        parameters["path"],
        parameters["workers"],
    )
    environment = _hub.client_environment(source, endpoint, parameters["token"])
    # The clients keep a cache in HOME; beside the model it is on the same disk and goes away with the staging.
    environment["HOME"] = os.path.join(parameters["path"], ".cache")
    code, out, err = module.run_command(command, environ_update=environment)
    if code != 0:
        last = "\n".join((err or out).strip().splitlines()[-10:])
        module.fail_json(msg=f"{os.path.basename(command[0])} ended with exit status {code}: {last}", rc=code)


def check(path: str, files: list[_hub.HubFile]) -> tuple[dict[str, str], dict[str, str]]:
    """(SHA-256 by path, what is wrong by path) of the downloaded files."""
    there = [file for file in files if os.path.isfile(os.path.join(path, file.path))]
    digests = _manifest.hash_files(path, [file.path for file in there])
    wrong = {file.path: f"{file.path}: absent after the download" for file in files if file not in there}
    for file in there:
        full = os.path.join(path, file.path)
        text = _hub.mismatch(file, os.path.getsize(full), digests[file.path], functools.partial(_hub.git_blob, full))
        if text:
            wrong[file.path] = text
    return digests, wrong


def discard(path: str, names: t.Iterable[str]) -> None:
    """Remove these files, whatever stands under their names."""
    for name in names:
        full = os.path.join(path, name)
        if os.path.isdir(full) and not os.path.islink(full):
            shutil.rmtree(full)
        elif os.path.lexists(full):
            os.unlink(full)


def remove_foreign(path: str, files: list[_hub.HubFile]) -> None:
    """Leave exactly the files that the hub lists: no cache, no partial, no lock of a client."""
    listed = {file.path for file in files}
    for parent, directories, names in os.walk(path, topdown=False):
        for name in names:
            full = os.path.join(parent, name)
            if os.path.relpath(full, path) not in listed:
                os.unlink(full)
        for name in directories:
            full = os.path.join(parent, name)
            if os.path.islink(full):
                os.unlink(full)
            elif not os.listdir(full):
                os.rmdir(full)


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "str", "choices": ["huggingface", "modelscope"], "required": True},
            "id": {"type": "str", "required": True},
            "revision": {"type": "str", "required": True},
            "licence": {"type": "str", "default": ""},
            "path": {"type": "path", "required": True},
            "client": {"type": "path", "required": True},
            "endpoint": {"type": "str"},
            "token": {"type": "str", "no_log": True},
            "workers": {"type": "int", "default": 8},
        },
        supports_check_mode=True,
    )
    parameters = module.params
    if not COMMIT.fullmatch(parameters["revision"]):
        module.fail_json(msg=f"revision: found {parameters['revision']!r}, wanted a full commit id (40 hex digits)")
    endpoint = (parameters["endpoint"] or _hub.ENDPOINTS[parameters["source"]]).rstrip("/")
    if module.check_mode:
        module.exit_json(changed=True, digest=None, bytes=0, files=0, fetched_again=[])

    path: str = parameters["path"]
    files = listing(module, endpoint)
    needed = sum(file.size for file in files)
    os.makedirs(path, exist_ok=True)
    have = sum(status.st_size for status in _manifest.walk(path)[0].values())
    free = shutil.disk_usage(path).free
    if needed - have > free:
        module.fail_json(
            msg=f"{path}: found {free} bytes free, wanted {needed - have} for {parameters['id']}; free some space or "
            "set tandem_root to a larger disk"
        )
    download(module, endpoint)
    digests, wrong = check(path, files)
    again = sorted(wrong)
    if wrong:
        discard(path, wrong)
        # hf remembers what it fetched by length only: forget it, or the bad file would be called complete again.
        shutil.rmtree(os.path.join(path, ".cache"), ignore_errors=True)
        download(module, endpoint)
        digests, wrong = check(path, files)
        if wrong:
            discard(path, wrong)
            module.fail_json(
                msg=f"{parameters['id']} from {endpoint}: {len(wrong)} file(s) wrong after two downloads: "
                + "; ".join(sorted(wrong.values())[:5])
            )
    remove_foreign(path, files)
    manifest = _manifest.make(
        {
            "id": parameters["id"],
            "revision": parameters["revision"],
            "source": parameters["source"],
            "licence": parameters["licence"],
        },
        [{"path": file.path, "size": file.size, "sha256": digests[file.path]} for file in files],
    )
    replace(os.path.join(path, _manifest.FILE_NAME), _manifest.dump(manifest), 0o644)
    module.exit_json(changed=True, digest=manifest["digest"], bytes=needed, files=len(files), fetched_again=again)


if __name__ == "__main__":
    main()

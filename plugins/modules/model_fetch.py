#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_fetch
short_description: Download one revision of a model and prove every byte of it
description:
  - From a hub it runs the hub's own client (C(hf) or C(modelscope)). From a web server it asks for what the checksum
    file names, and from a directory or a bundle it copies. Each goes on with what an earlier run left.
  - Then compares every file with the source's own digests, since C(hf) accepts a file of the right length with wrong
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
    description:
      - V(huggingface) and V(modelscope) are the hubs. V(http) is a directory on a web server with a checksum file.
      - V(directory) is one of the node, local or mounted, with C(tandem-manifest.json), with a checksum file, or bare.
      - V(bundle) is a directory or a plain tar with C(tandem-manifest.json), in which large files may be cut into
        C(NAME.part-0001) and so on.
    type: str
    choices: [huggingface, modelscope, http, directory, bundle]
    required: true
  id:
    description: The model, as C(owner/name).
    type: str
    required: true
  revision:
    description:
      - Full commit id. For sources without commits also the digest of the manifest, one SHA-256 over all files.
      - A branch or tag can move. It is refused with what it stands for now, unless O(resolve) is set.
    type: str
    required: true
  resolve:
    description: Take what a branch or tag stands for now, and record both.
    type: bool
    default: false
  licence:
    description: Licence of the weights, for the manifest.
    type: str
    default: ""
  path:
    description: Directory to download to.
    type: path
    required: true
  client:
    description: Virtual environment with the hub's client. Needed for the hubs.
    type: path
  endpoint:
    description:
      - Base URL of the hub or of a mirror. Default is the hub's own.
      - For V(http) the directory's URL, for V(directory) and V(bundle) a path of the node.
    type: str
  checksums:
    description:
      - Name of the checksum file, for V(http) and V(directory). Default is C(SHA256SUMS) for V(http), and for
        V(directory) the first of the usual names that is there.
    type: str
  http_proxy:
    description: Proxy for http, such as V(http://proxy.example:3128).
    type: str
  https_proxy:
    description: Proxy for https.
    type: str
  no_proxy:
    description: Hosts that are asked without a proxy, with commas between.
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
revision:
  description: The commit or digest that was fetched.
  returned: success
  type: str
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

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _fetch, _lock
from ansible_collections.tandem.spark.plugins.module_utils._sources._request import SourceError


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "source": {
                "type": "str",
                "choices": ["huggingface", "modelscope", "http", "directory", "bundle"],
                "required": True,
            },
            "id": {"type": "str", "required": True},
            "revision": {"type": "str", "required": True},
            "resolve": {"type": "bool", "default": False},
            "licence": {"type": "str", "default": ""},
            "path": {"type": "path", "required": True},
            "client": {"type": "path"},
            "endpoint": {"type": "str"},
            "checksums": {"type": "str"},
            "token": {"type": "str", "no_log": True},
            "http_proxy": {"type": "str", "no_log": True},
            "https_proxy": {"type": "str", "no_log": True},
            "no_proxy": {"type": "str"},
            "workers": {"type": "int", "default": 8},
        },
        supports_check_mode=True,
        required_if=[
            ("source", "huggingface", ("client",)),
            ("source", "modelscope", ("client",)),
            ("source", "http", ("endpoint",)),
            ("source", "directory", ("endpoint",)),
            ("source", "bundle", ("endpoint",)),
        ],
    )
    parameters = module.params
    if module.check_mode:
        module.exit_json(changed=True, digest=None, revision=None, bytes=0, files=0, fetched_again=[])
    try:
        result = _fetch.work(parameters)
    except (_fetch.FetchError, SourceError, _lock.BusyError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=True, **result)


if __name__ == "__main__":
    main()

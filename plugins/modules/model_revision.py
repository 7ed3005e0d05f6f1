#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_revision
short_description: Ask a hub which commit a branch or tag stands for, and keep the answer
description:
  - Runs on the node that fetches, since the others need no way to the hub.
  - An answer that is recorded for the same model and name is given again, so that all stages and all runs mean the same
    commit. Remove O(record) to have it resolved anew.
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
    description: Branch or tag.
    type: str
    required: true
  endpoint:
    description: Base URL of the hub or of a mirror. Default is the hub's own.
    type: str
  token:
    description: Access token for gated models.
    type: str
  http_proxy:
    description: Proxy for http.
    type: str
  https_proxy:
    description: Proxy for https.
    type: str
  no_proxy:
    description: Hosts that are asked without a proxy, with commas between.
    type: str
  record:
    description: File that keeps the answer. Without it the hub is asked, and nothing is kept.
    type: path
"""

EXAMPLES = r"""
- name: Pin what main stands for
  tandem.spark.model_revision:
    source: huggingface
    id: inclusionAI/Ling-3.0-flash-fp8
    revision: main
    record: /var/lib/tandem/records/revision.json
"""

RETURN = r"""
revision:
  description: The commit.
  returned: success
  type: str
recorded:
  description: Whether it was recorded before.
  returned: success
  type: bool
"""

import json
import os
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _fetch
from ansible_collections.tandem.spark.plugins.module_utils._files import read_text, replace


def recorded(path: str | None, asked: dict[str, str]) -> str | None:
    """The commit in the record, when it is about the same question."""
    try:
        record = json.loads(read_text(path) or "{}") if path else {}
        return t.cast("str", record["revision"]) if all(record.get(key) == asked[key] for key in asked) else None
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "str", "choices": ["huggingface", "modelscope"], "required": True},
            "id": {"type": "str", "required": True},
            "revision": {"type": "str", "required": True},
            "endpoint": {"type": "str"},
            "token": {"type": "str", "no_log": True},
            "http_proxy": {"type": "str", "no_log": True},
            "https_proxy": {"type": "str", "no_log": True},
            "no_proxy": {"type": "str"},
            "record": {"type": "path"},
        },
        supports_check_mode=True,
    )
    parameters = module.params
    path = parameters["record"]
    asked = {"id": parameters["id"], "source": parameters["source"], "asked": parameters["revision"]}
    known = recorded(path, asked)
    if known:
        module.exit_json(changed=False, revision=known, recorded=True)
    try:
        with _fetch.proxies(parameters):
            commit = _fetch.resolve(_fetch.request_of(dict(parameters, path="")), True)
        if path and not module.check_mode:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            replace(path, json.dumps(dict(asked, revision=commit), indent=2).encode() + b"\n", 0o644)
    except _fetch.FetchError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{path}: cannot be written: {error.strerror}")
    module.exit_json(changed=path is not None, revision=commit, recorded=False)


if __name__ == "__main__":
    main()

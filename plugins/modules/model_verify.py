#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_verify
short_description: Compare a model with its manifest, file by file
description:
  - Names every missing, wrong and extra file of a model, and every header that an engine could not read.
  - Files are read on every core, the largest first. SHA-256 has no parallel form, so one file keeps one core. The page
    cache of a file is emptied before and behind the reading, since on unified memory its pages are taken from the GPU;
    so what is compared is what the disk has.
  - The module does not fail for what is wrong with a model. RV(agrees) and RV(problems) say it, RV(checked) says how
    closely it looked. Only RV(verified) means that every byte was read now.
  - The format of the manifest is in docs/manifest.md of the collection.
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
  path:
    description: The model's directory.
    type: path
    required: true
  mode:
    description:
      - V(full) reads every byte, and the headers.
      - V(structure) compares names and sizes and reads headers and indexes.
      - V(size) compares names and sizes.
    type: str
    choices: [full, structure, size]
    default: full
  trust:
    description:
      - With V(full), do not read a file whose inode, size and times are those of its last full verification.
        RV(checked) is then V(trusted, not re-read), and RV(verified) is false.
      - Publishing a model never trusts.
    type: bool
    default: false
  digest:
    description: Digest that the manifest must have, such as the recipe's or another node's.
    type: str
  revision:
    description: Commit id that the manifest must be of.
    type: str
  quantization:
    description: Precision that the weights must be in. Without it nothing is compared.
    type: dict
    suboptions:
      method:
        description: C(quant_method) of the publisher's C(quantization_config), such as V(fp8); V(none) for weights that
          are not quantised.
        type: str
        required: true
      bits:
        description: Bits of a weight.
        type: int
  checksums:
    description:
      - A checksum file (as of C(sha256sum)) to compare with in place of the manifest. It knows no sizes, and files that
        it does not name are wrong only when they are weights.
    type: path
  workers:
    description: Files read at the same time. Default is one per core.
    type: int
"""

EXAMPLES = r"""
- name: Read every byte
  tandem.spark.model_verify:
    path: /var/lib/tandem/models/ling-3.0-flash-fp8-a5d248fcca98
  register: verified

- name: Stop when a file is wrong
  ansible.builtin.assert:
    that: verified.verified
    fail_msg: "{{ verified.text }}"
"""

RETURN = r"""
agrees:
  description: Whether nothing is wrong as far as RV(checked) looked.
  returned: success
  type: bool
verified:
  description: Whether nothing is wrong and every byte was read now.
  returned: success
  type: bool
checked:
  description: V(full), V(trusted, not re-read), V(structure) or V(size).
  returned: success
  type: str
problems:
  description: Everything that is wrong.
  returned: success
  type: list
  elements: dict
  contains:
    kind:
      description: V(missing), V(wrong), V(empty), V(extra), V(structure), V(precision) or V(manifest).
      type: str
    file:
      description: The file, from the model's directory on.
      type: str
    found:
      description: What is there.
      type: str
    wanted:
      description: What should be there.
      type: str
notes:
  description: What is unusual and read by engines all the same, in the form of RV(problems).
  returned: success
  type: list
  elements: dict
text:
  description: All of it in one message.
  returned: success
  type: str
digest:
  description: The manifest's digest, null without a manifest.
  returned: success
  type: str
precision:
  description: Precision that the configuration says, and bytes of the weights by dtype; null in mode V(size).
  returned: success
  type: dict
files:
  description: Number of files in the manifest, null without a manifest.
  returned: success
  type: int
bytes:
  description: Size of the model by its manifest in bytes, null when the manifest does not know.
  returned: success
  type: int
files_read:
  description: Number of files that were read in full.
  returned: success
  type: int
bytes_read:
  description: Bytes that were read for digests.
  returned: success
  type: int
files_trusted:
  description: Number of files that were not read because they are unchanged.
  returned: success
  type: int
seconds:
  description: What it took.
  returned: success
  type: float
"""

import os
import re
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _verify

DIGEST = re.compile(r"[0-9a-f]{64}")


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "mode": {"type": "str", "choices": list(_verify.MODES), "default": "full"},
            "trust": {"type": "bool", "default": False},
            "digest": {"type": "str"},
            "revision": {"type": "str"},
            "quantization": {
                "type": "dict",
                "options": {"method": {"type": "str", "required": True}, "bits": {"type": "int"}},
            },
            "checksums": {"type": "path"},
            "workers": {"type": "int"},
        },
        supports_check_mode=True,
    )
    specification = dict(module.params)
    for name, wanted, usable in (
        ("digest", "64 hex digits", DIGEST.fullmatch),
        ("workers", "1 or more", lambda value: value > 0),
    ):
        value = specification[name]
        if value is not None and not usable(value):
            module.fail_json(msg=f"{name}: found {value}, wanted {wanted}")
    try:
        # A note of what was read is kept beside the model, if it can be.
        specification["remember"] = not module.check_mode and os.access(os.path.dirname(specification["path"]), os.W_OK)
        result = _verify.work(specification)
    except OSError as error:
        module.fail_json(msg=f"{specification['path']}: cannot be looked at: {error}")
    # AnsibleModule puts a file's permissions in the place of these two.
    told = {key: value for key, value in result.items() if key not in ("path", "mode")}
    module.exit_json(changed=False, text=_verify.text(result), **told)


if __name__ == "__main__":
    main()

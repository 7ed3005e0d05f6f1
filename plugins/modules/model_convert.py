#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_convert
short_description: Convert a published model to FP8, shard by shard
description:
  - Runs C(model_free_ptq) of llm-compressor, which holds a few shards and never the model, as a transient systemd unit.
    The unit outlives a lost session; a second run waits for it and starts no other.
  - Refuses a model that is quantised already, one that is not what its manifest says, and a node without the memory or
    disk for it.
  - Leaves the result in a staging directory with its own manifest and a provenance file (C(tandem-conversion.json)).
    M(tandem.spark.model_release) publishes it.
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
    description: Directory of the published model. The result gets a place beside it.
    type: path
    required: true
  environment:
    description: Directory of llm-compressor's environment, as M(tandem.spark.python_environment) makes it.
    type: path
    required: true
  environment_digest:
    description: Digest of that environment, for the provenance and the name of the result.
    type: str
    required: true
  scheme:
    description: Scheme of llm-compressor. The weights of V(FP8_DYNAMIC) need no calibration data.
    type: str
    choices: [FP8_DYNAMIC, FP8_BLOCK]
    default: FP8_DYNAMIC
  ignore:
    description: Layers that stay as they are, names or C(re:) and a regular expression.
    type: list
    elements: str
    default: [lm_head, "re:.*gate$"]
  workers:
    description: Shards converted at the same time.
    type: int
    default: 1
  device:
    description: Device that torch computes on.
    type: str
    default: cuda:0
  reserve_bytes:
    description:
      - Memory that stays free, in bytes. The unit may use the rest of what is available (C(MemoryMax)).
      - The kernel does not count what the GPU's driver allocates, so the shards are also counted before the start.
    type: int
    default: 8589934592
  timeout_s:
    description: How long the unit is waited for, in seconds. It is not ended then.
    type: int
    default: 86400
"""

EXAMPLES = r"""
- name: Convert the model
  tandem.spark.model_convert:
    source: /var/lib/tandem/models/Step-3.5-Flash-0123456789ab
    environment: /var/lib/tandem/tools/llmcompressor
    environment_digest: "{{ installed.digest }}"
"""

RETURN = r"""
release:
  description: Directory that the result is to be published as.
  returned: success
  type: str
staging:
  description: Directory that holds the result until then.
  returned: success
  type: str
published:
  description: Whether the release is there already; then nothing was done.
  returned: success
  type: bool
revision:
  description: Id of the result, from its provenance. Null in check mode.
  returned: success
  type: str
digest:
  description: Digest of the result's manifest. Null in check mode.
  returned: success
  type: str
unit:
  description: The transient unit.
  returned: success
  type: str
"""

import contextlib
import json
import os
import shutil
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import (
    _convert,
    _manifest,
    _meminfo,
    _precision,
    _structure,
    _systemd,
    _verify,
)
from ansible_collections.tandem.spark.plugins.module_utils._files import read_text, replace

POLL_S = 0.5


def source_manifest(module: AnsibleModule, source: str) -> dict[str, t.Any]:
    """The manifest of a model that may be converted, else the module ends."""
    result = _verify.work({"path": source, "mode": "full", "trust": True})
    if result["problems"]:
        module.fail_json(msg=f"not converted: {_verify.text(result)}")
    precision = result["precision"]
    found = _precision.Precision(precision["method"], precision["bits"], precision["source"])
    quantised = _precision.quantised(found, precision["bytes_by_dtype"])
    if quantised:
        module.fail_json(
            msg=f"not converted: {source}: found {quantised}, wanted weights that are not quantised: a second "
            "conversion only loses precision; serve it as it is"
        )
    file = os.path.join(source, _manifest.FILE_NAME)
    return _manifest.load(read_text(file) or "", file)


def room_problems(module: AnsibleModule, source: str, manifest: dict[str, t.Any], available: int | None) -> list[str]:
    weights = [entry["size"] for entry in manifest["files"] if entry["path"].endswith(".safetensors")]
    memory = _convert.memory_problem(
        available, module.params["reserve_bytes"], max(weights, default=0), module.params["workers"]
    )
    need, free = sum(entry["size"] for entry in manifest["files"]), shutil.disk_usage(source).free
    disk = f"{source}: found {free} bytes free, wanted {need} for the result; free some space" if need > free else None
    return [problem for problem in (memory, disk) if problem]


def state_of(module: AnsibleModule, unit: str) -> dict[str, str]:
    return _systemd.parse_show(module.run_command(_systemd.show_command(unit))[1])


def start(module: AnsibleModule, unit: str, work: str, job: dict[str, t.Any], limit: int) -> None:
    module.run_command(["systemctl", "reset-failed", unit])
    for directory in (work, job["staging"]):
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
    replace(f"{work}/convert.py", _convert.SCRIPT.encode(), 0o600)
    replace(f"{work}/job.json", json.dumps(job).encode() + b"\n", 0o600)
    python = os.path.join(module.params["environment"], "venv", "bin", "python")
    code, _out, err = module.run_command(_convert.command(unit, python, f"{work}/convert.py", job, limit, work))
    if code != 0:
        module.fail_json(msg=f"{unit}: cannot be started: {err.strip()}")


def wait(module: AnsibleModule, unit: str) -> None:
    deadline = time.monotonic() + module.params["timeout_s"]
    while _systemd.is_active(state_of(module, unit)):
        if time.monotonic() > deadline:
            module.fail_json(
                msg=f"{unit}: found it at work after {module.params['timeout_s']} s, wanted its end; it goes on: run "
                "this again to wait longer, or end it with systemctl stop"
            )
        time.sleep(POLL_S)


def failed(module: AnsibleModule, unit: str, limit: int) -> t.NoReturn:
    state = state_of(module, unit)
    _code, log, _err = module.run_command(_systemd.journal_command(unit, 15))
    why = f"result {state.get('Result')}, exit status {state.get('ExecMainStatus')}"
    if state.get("Result") == "oom-kill":
        why += f": it wanted more than the {limit} bytes that it may use; lower convert_workers"
    module.fail_json(msg=f"{unit} did not convert the model: {why}; last lines: {log.strip()}")


def finish(module: AnsibleModule, manifest: dict[str, t.Any], job: dict[str, t.Any]) -> tuple[str, str]:
    """Check the result and give it its provenance and manifest; return revision and digest."""
    staging = job["staging"]
    structure = _structure.inspect(staging)
    problems = [problem.text() for problem in structure.problems]
    if not problems and not _precision.quantised(structure.precision, structure.dtypes):
        problems = [f"{staging}: found weights that are not quantised, wanted {job['scheme']}"]
    if problems:
        module.fail_json(msg=f"the converted model is not usable: {'; '.join(problems[:5])}", problems=problems)
    with open(job["done"], encoding="utf-8") as handle:
        versions = json.load(handle)
    content = _convert.provenance(manifest, job["scheme"], job["ignore"], module.params["environment_digest"], versions)
    replace(os.path.join(staging, _convert.PROVENANCE), content, 0o644)
    sizes = {path: status.st_size for path, status in _manifest.walk(staging)[0].items()}
    digests = _manifest.hash_files(staging, list(sizes))
    revision = _convert.revision(content)
    model = dict(manifest["model"], revision=revision, source="conversion")
    made = _manifest.make(
        model, [{"path": path, "size": size, "sha256": digests[path]} for path, size in sizes.items()]
    )
    replace(os.path.join(staging, _manifest.FILE_NAME), _manifest.dump(made), 0o644)
    return revision, made["digest"]


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "path", "required": True},
            "environment": {"type": "path", "required": True},
            "environment_digest": {"type": "str", "required": True},
            "scheme": {"type": "str", "choices": ["FP8_DYNAMIC", "FP8_BLOCK"], "default": "FP8_DYNAMIC"},
            "ignore": {"type": "list", "elements": "str", "default": ["lm_head", "re:.*gate$"]},
            "workers": {"type": "int", "default": 1},
            "device": {"type": "str", "default": "cuda:0"},
            "reserve_bytes": {"type": "int", "default": 8 << 30},
            "timeout_s": {"type": "int", "default": 86400},
        },
        supports_check_mode=True,
    )
    parameters = module.params
    if parameters["workers"] < 1:
        module.fail_json(msg=f"workers: found {parameters['workers']}, wanted 1 or more")
    source = os.path.normpath(parameters["source"])
    try:
        manifest = source_manifest(module, source)
        request = _convert.request(
            manifest, parameters["scheme"], parameters["ignore"], parameters["environment_digest"]
        )
        parent, name = os.path.split(source)
        release = _convert.release(name, parameters["scheme"], request)
        work = os.path.join(parent, f".converting-{release}")
        job = {key: parameters[key] for key in ("scheme", "ignore", "workers", "device")}
        job.update(source=source, staging=os.path.join(parent, f".staging-{release}"), done=f"{work}/done.json")
        told = {
            "release": os.path.join(parent, release),
            "staging": job["staging"],
            "unit": f"tandem-convert-{request[:12]}.service",
        }
        provenance = read_text(os.path.join(told["release"], _convert.PROVENANCE))
        if provenance is not None:
            file = os.path.join(told["release"], _manifest.FILE_NAME)
            made = _manifest.load(read_text(file) or "", file)
            told.update(revision=made["model"].get("revision"), digest=made["digest"])
            module.exit_json(changed=False, published=True, **told)
        available = _meminfo.parse(read_text("/proc/meminfo")).get("MemAvailable")
        limit = (available or 0) - parameters["reserve_bytes"]
        active = _systemd.is_active(state_of(module, told["unit"]))
        if not active and not os.path.exists(job["done"]):
            problems = room_problems(module, source, manifest, available)
            if problems:
                module.fail_json(msg=f"not converted: {'; '.join(problems)}. The models are as they were.")
            if not module.check_mode:
                start(module, told["unit"], work, job, limit)
        if module.check_mode:
            module.exit_json(changed=True, published=False, revision=None, digest=None, **told)
        wait(module, told["unit"])
        if not os.path.exists(job["done"]):
            failed(module, told["unit"], limit)
        revision, digest = finish(module, manifest, job)
        with contextlib.suppress(OSError):
            shutil.rmtree(work)
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"{source}: cannot be converted: {error}")
    module.exit_json(changed=True, published=False, revision=revision, digest=digest, **told)


if __name__ == "__main__":
    main()

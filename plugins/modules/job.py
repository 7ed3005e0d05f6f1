#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: job
short_description: Long work of a node, which outlives the connection
description:
  - Starts the work as a transient systemd unit C(tandem-job-NAME), waits for it on the controller with percent, rate
    and time left, and returns its result.
  - A run that finds the same work running attaches to it, and one that finds it ended since anybody looked takes its
    result. A work that failed, was killed or was lost in a reboot is started again, and goes on with what it left on
    the disk.
  - While another work runs under the same name, it is refused, and the message names what differs.
  - What can be done stands in the table C(WORKS) of C(plugins/module_utils/_works.py). A line in it, a function
    C(work(specification, report) -> result) as C(plugins/module_utils/_progress.py) describes it, adds a work.
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
  name:
    description: Name of the job, in small letters, digits and dashes. One job of a name runs at a time.
    type: str
    required: true
  work:
    description:
      - Which work, a key of C(WORKS).
      - C(fetch) takes the options of M(tandem.spark.model_fetch).
    type: str
  specification:
    description: What the work needs to know. It is kept on the node, in a file for root only, while the job is known.
    type: dict
    default: {}
  secrets:
    description:
      - Texts that are added to O(specification) and that nobody may see, such as a token.
      - They reach the unit in a file for root only, which it removes at once, and are in no command line or unit.
    type: dict
    default: {}
  directory:
    description: Where the program of the unit is put, once per version.
    type: path
    default: /var/lib/tandem/tools
  timeout_s:
    description: Seconds after which the unit is ended. The default is a day, for a terabyte at 12 MB/s.
    type: int
    default: 86400
  state:
    description: V(started) starts or attaches and waits, V(query) only looks, V(absent) ends the job and forgets it.
    type: str
    choices: [started, query, absent]
    default: started
"""

EXAMPLES = r"""
- name: Fetch the model
  tandem.spark.job:
    name: model
    work: fetch
    specification:
      source: huggingface
      id: inclusionAI/Ling-3.0-flash-fp8
      revision: a5d248fcca98b9d9a0c225cc22372f2fd1b3540b
      path: /var/lib/tandem/models/.staging-ling
      client: /var/lib/tandem/tools/hub-clients/venv
    secrets:
      token: "{{ model_token }}"
"""

RETURN = r"""
state:
  description: V(started), V(attached) to one that was running, V(finished), V(failed), V(running) or V(absent).
  returned: always
  type: str
unit:
  description: Name of the transient unit.
  returned: always
  type: str
result:
  description: What the work returned.
  returned: when it has finished
  type: dict
progress:
  description: Stage, bytes done, bytes in all (or null) and detail, as last reported.
  returned: when there is a job
  type: dict
program:
  description: The program of the unit, which also tells the state.
  returned: when there is a job
  type: str
python:
  description: The interpreter of the node.
  returned: always
  type: str
log:
  description: The last lines of a job that failed.
  returned: failure
  type: str
"""

import sys
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _job, _lock, _works


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "work": {"type": "str"},
            "specification": {"type": "dict", "default": {}},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "directory": {"type": "path", "default": "/var/lib/tandem/tools"},
            "timeout_s": {"type": "int", "default": 86400},
            "state": {"type": "str", "choices": ["started", "query", "absent"], "default": "started"},
        },
        supports_check_mode=True,
        required_if=[("state", "started", ("work",))],
    )
    parameters = module.params
    name: str = parameters["name"]
    if not _job.NAME.fullmatch(name):
        module.fail_json(msg=f"name: found {name!r}, wanted small letters, digits and dashes, 40 at most")
    always = {"unit": _job.unit_name(name), "python": sys.executable}
    if parameters["state"] == "absent":
        there = bool(_job.status(name)["order"])
        if not module.check_mode:
            _job.stop(name)
        module.exit_json(changed=there, state="absent", **always)
    if parameters["state"] == "query" or module.check_mode:
        module.exit_json(changed=parameters["state"] == "started", **always, **told(_job.status(name)))
    if parameters["work"] not in _works.WORKS:
        module.fail_json(msg=f"work: found {parameters['work']!r}, wanted one of {', '.join(sorted(_works.WORKS))}")
    if parameters["timeout_s"] < 1:
        module.fail_json(msg=f"timeout_s: found {parameters['timeout_s']}, wanted 1 or more")
    secrets = {key: str(value) for key, value in parameters["secrets"].items() if value not in (None, "")}
    try:
        now = _job.start(
            name,
            parameters["work"],
            parameters["specification"],
            secrets,
            directory=parameters["directory"],
            timeout_s=parameters["timeout_s"],
        )
    except (_job.JobError, _lock.BusyError) as error:
        module.fail_json(msg=str(error), state="failed", **always)
    except OSError as error:
        module.fail_json(msg=f"the job {name} cannot be started: {error}", state="failed", **always)
    module.exit_json(changed=True, **always, **told(now), program=now["program"])


def told(now: dict[str, t.Any]) -> dict[str, t.Any]:
    """What the controller is told of a job's state."""
    answer = {"state": now["state"], "progress": now["progress"], "log": now["log"]}
    return dict(answer, outcome=now["outcome"])


if __name__ == "__main__":
    main()

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Figures of a converged site.yml on the demo's lab, one JSON line each: what a run costs when nothing is to do.

Run `make demo` before. Limits that later work must not raise stand in limits.json.
"""

from __future__ import annotations

import collections
import json
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMITS = json.loads((Path(__file__).parent / "limits.json").read_text())


def figure(name: str, value: float, unit: str, against: str) -> None:
    print(json.dumps({"name": name, "value": value, "unit": unit, "against": against}), flush=True)


def main() -> int:
    binary = Path(sys.executable).parent / "ansible-playbook"
    command = [str(binary), "site.yml", "-i", "inventories/lab_pair"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "-vvvv"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    seconds = time.monotonic() - began
    if done.returncode != 0:
        print("\n".join(done.stdout.splitlines()[-30:]), file=sys.stderr)
        print("site.yml failed on inventories/lab_pair; run `make demo` before", file=sys.stderr)
        return 1
    changed = sum(map(int, re.findall(r"changed=(\d+)", done.stdout)))
    if changed:
        print(f"found {changed} changes, wanted a converged pair; run this again", file=sys.stderr)
        return 1
    trips = collections.Counter(re.findall(r"^<([^>]+)> SSH: EXEC ", done.stdout, re.MULTILINE))
    limit = LIMITS["ssh_round_trips_per_node"]
    most = max(trips.values())
    figure("ssh_round_trips_per_node", most, "SSH executions", f"limit {limit} (tests/bench/limits.json)")
    idle = "45 s on an idle machine with two cores, acceptance included"
    figure("converged_site_seconds", round(seconds, 1), "s", idle)
    return int(most > limit)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env bash
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# demo.sh: boot two virtual Sparks and run the whole of site.yml on them, with a real engine serving a real small model.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
began=$SECONDS
say() { printf '\n\033[1m[%3d s] %s\033[0m\n' "$((SECONDS - began))" "$*"; }

tests/tools/root.sh "make demo"
say "Python environment of the controller (10 to 90 s, once)"
tests/tools/venv.sh
say "Programs that the lab needs on this machine (10 to 60 s, once)"
tests/lab/lab setup
say "Wheels, model and hub of the lab, in ~/.cache/tandem (3 to 6 min, once)"
.venv/bin/python tests/lab/assets.py all
say "Two virtual Sparks (image 1 to 2 min once, then 5 s)"
tests/lab/lab up pair
say "site.yml on them (3 to 5 min on a fresh lab, under a minute when nothing is to do)"
.venv/bin/ansible-playbook site.yml -i inventories/lab_pair

key=$HOME/.config/tandem/lab_pair.key
address=$(.venv/bin/python -c 'import json; print(json.load(open("artifacts/lab_pair/acceptance.json"))["endpoint"])')
say "Done. The API of the two virtual Sparks:"
cat <<T

  Endpoint  $address/v1
  Key       $key (yours only)
  Report    artifacts/lab_pair/acceptance.json, acceptance.junit.xml, findings.json
  Try it    curl -s $address/v1/chat/completions -H "Authorization: Bearer \$(cat $key)" \\
              -H 'Content-Type: application/json' \\
              -d '{"model": "lab", "temperature": 0, "messages": [{"role": "user", "content": "What is 17*23?"}]}'
  Look      tests/lab/lab ssh pair spark-a systemctl status tandem-rank
  Undo      make down

T

#!/usr/bin/env bash
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# venv.sh: make .venv with the newest Python that works, and install what pyproject.toml asks for. Does nothing when it is
# already there for that. TANDEM_PYTHON names an interpreter to use instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# The environment that may be replaced is no interpreter to make it with.
PATH=${PATH//"$PWD/.venv/bin:"/}

works() { "$1" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1; }

find_python() {
  local candidate minor
  if [[ -n ${TANDEM_PYTHON:-} ]]; then
    works "$TANDEM_PYTHON" || { echo "TANDEM_PYTHON=$TANDEM_PYTHON is no Python 3.11 to 3.14 with the venv module" >&2; return 1; }
    echo "$TANDEM_PYTHON"
    return
  fi
  for minor in 14 13 12 11; do
    for candidate in "python3.$minor" "$HOME"/.pyenv/versions/3."$minor".*/bin/python3; do
      if works "$candidate"; then
        command -v "$candidate"
        return
      fi
    done
  done
  return 1
}

if ! python=$(find_python); then
  if [[ $(id -u) = 0 ]] && command -v apt-get >/dev/null; then
    echo "No Python 3.11 or newer with the venv module: installing python3-venv (about 10 seconds)." >&2
    { apt-get -q update && apt-get -q -y --no-install-recommends install python3-venv; } >&2
  fi
  if ! python=$(find_python); then
    echo "Found no Python 3.11 or newer with the venv module, wanted one. On Debian or Ubuntu: apt install python3-venv" >&2
    exit 1
  fi
fi

stamp=$("$python" - <<'P'
import hashlib
import os
import sys
import tomllib

with open("pyproject.toml", "rb") as handle:
    asked = tomllib.load(handle)
# What goes into the environment; the settings of tools do not.
links = asked["tool"]["hatch"]["build"]["dev-mode-dirs"]
parts = [asked["build-system"], asked["project"], asked["dependency-groups"], links]
print(hashlib.sha256(repr(parts).encode()).hexdigest(), sys.version.split()[0], os.getcwd())
P
)
if [[ -x .venv/bin/ansible-playbook && $(cat .venv/tandem-stamp 2>/dev/null) = "$stamp" ]]; then
  exit 0
fi
echo "Making .venv with $("$python" -V) (10 to 90 seconds)." >&2
rm -rf .venv
"$python" -m venv .venv
.venv/bin/python -m pip install -qq --disable-pip-version-check 'pip>=25.1'   # the first that knows dependency groups
.venv/bin/python -m pip install -qq --disable-pip-version-check -e . --group test --group lint
echo "$stamp" > .venv/tandem-stamp

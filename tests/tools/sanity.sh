#!/usr/bin/env bash
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# sanity.sh [ARGUMENT...]: ansible-test sanity over the working tree, without the files that git ignores.
# It insists on .../ansible_collections/NAMESPACE/NAME, refuses links to directories, and fetches its pip bootstrap from a
# server of its own, which the interpreter's ensurepip replaces.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD
export PATH=$root/.venv/bin:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pip_version=$(python - <<'P'
import inspect
import re

from ansible_test._internal import python_requirements as requirements

print(re.search(r"pip='([^']+)'", inspect.getsource(requirements.get_venv_packages)).group(1))
P
)
bootstrap=$HOME/.ansible/test/cache/get_pip_${pip_version//./_}.py
mkdir -p "${bootstrap%/*}"
[[ -e $bootstrap ]] || printf 'import ensurepip\n\nensurepip.bootstrap(default_pip=True)\n' > "$bootstrap"

target=$work/ansible_collections/tandem/spark
mkdir -p "$target"
git ls-files -z --cached --others --exclude-standard -- . ':!collections' ':!molecule' \
  | while IFS= read -r -d '' name; do [[ ! -e $name ]] || printf '%s\0' "$name"; done \
  | xargs -0 cp --parents -P -t "$target"
cd "$target"
git init -q . && git add -A
python=$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
ansible-test sanity --local --python "$python" "$@"
[[ $# = 0 ]] || exit 0

# Modules run with the Python of a node: the other ones that this machine has must be able to read and import them.
for minor in 9 10 11 12 13 14; do
  [[ 3.$minor != "$python" ]] || continue
  for candidate in "python3.$minor" "$HOME"/.pyenv/versions/3."$minor".*/bin/python3; do
    if executable=$("$candidate" -c 'import ensurepip, sys, venv; print(sys.executable)' 2>/dev/null); then
      PATH=${executable%/*}:$PATH \
        "$root/.venv/bin/ansible-test" sanity --local --python "3.$minor" --test compile --test import
      break
    fi
  done
done

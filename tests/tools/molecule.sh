#!/usr/bin/env bash
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# molecule.sh [SCENARIO...]: run molecule scenarios on a lab of their own, by default all of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PATH=$PWD/.venv/bin:$PATH
# Beside the demo's lab and that of another checkout.
TANDEM_LAB_ID=mo$(printf '%s' "$PWD" | sha256sum | cut -c1-5)
export TANDEM_LAB_ID
if [[ $# = 0 ]]; then
  set -- baseline fabric
fi
for scenario in "$@"; do
  molecule test -s "$scenario"
done

#!/usr/bin/env bash
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# root.sh WHAT: say clearly that WHAT needs root, and why, when it has not got it.
if [[ $(id -u) != 0 ]]; then
  cat >&2 <<T
$1 needs root: the virtual Sparks are containers with a network of their own, which only root can make.
Found: user $(id -un). Wanted: root. Run "sudo $1", or, without root, "make unit lint" for what needs no lab.
T
  exit 1
fi

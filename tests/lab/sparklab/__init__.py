# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The virtual Spark lab: systemd-nspawn guests wired like DGX Sparks, on one Linux machine."""

from __future__ import annotations

__all__ = ["LabError"]


class LabError(Exception):
    """A refusal or failure that one sentence explains: what was found, what is wanted, what to do."""

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What can run as a job: ``work(specification, report) -> result``, as ``_progress.py`` says. One line adds a work."""

from __future__ import annotations

import typing as t

from ansible_collections.tandem.spark.plugins.module_utils import _fetch
from ansible_collections.tandem.spark.plugins.module_utils._progress import Report

Work = t.Callable[[dict[str, t.Any], Report], dict[str, t.Any]]

WORKS: dict[str, Work] = {
    "fetch": _fetch.work,
}

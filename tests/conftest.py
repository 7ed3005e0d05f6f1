# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What holds for every test: one that is skipped says what the machine lacks, and `make test` has it all."""

from __future__ import annotations

import os
import typing as t

import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> t.Generator[None, t.Any, None]:
    """With TANDEM_EVERY_TEST a test that would be skipped has failed."""
    report = (yield).get_result()
    if report.skipped and os.environ.get("TANDEM_EVERY_TEST") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{report.longrepr[2]}; TANDEM_EVERY_TEST wants every test to run"

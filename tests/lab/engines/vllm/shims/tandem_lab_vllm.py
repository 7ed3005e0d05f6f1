# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A platform of vLLM for the lab: its CPU platform, but one that Ray can place.

vLLM's CPU platform names no resource of Ray, so the Ray backend is refused. Nodes of the lab offer one GPU to Ray
(``ray start --num-gpus 1``), as a Spark does. Read by vLLM through the entry point group vllm.platform_plugins.
"""

from __future__ import annotations


def register() -> str:
    """The class of the platform; apart, because it imports vLLM."""
    return "tandem_lab_vllm_platform.LabPlatform"

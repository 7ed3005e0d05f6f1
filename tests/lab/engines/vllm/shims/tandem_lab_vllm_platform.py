# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""See tandem_lab_vllm; apart, because vLLM is imported."""

from __future__ import annotations

from vllm.platforms.cpu import CpuPlatform


class LabPlatform(CpuPlatform):
    """A CPU that Ray counts as a GPU."""

    ray_device_key = "GPU"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "tandem_lab_vllm_communicator.LabCommunicator"

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""See tandem_lab_vllm."""

from __future__ import annotations

from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.platforms.cpu import CpuPlatform


class LabCommunicator(CpuCommunicator):
    """Ranks that Ray started all get one name for shared memory, so vLLM takes those of other hosts for neighbours."""

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        return False


class LabPlatform(CpuPlatform):
    """A CPU that Ray counts as a GPU."""

    ray_device_key = "GPU"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "tandem_lab_vllm_platform.LabCommunicator"

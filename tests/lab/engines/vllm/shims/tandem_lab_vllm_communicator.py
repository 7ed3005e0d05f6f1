# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""See tandem_lab_vllm; apart, because what is imported here asks for the platform."""

from __future__ import annotations

from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class LabCommunicator(CpuCommunicator):
    """Ranks that Ray started all get one name for shared memory, so vLLM takes those of other hosts for neighbours."""

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        return False

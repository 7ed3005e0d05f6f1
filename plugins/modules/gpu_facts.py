#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_facts
short_description: Tell what the GPU of a node is and how its driver stands
description:
  - Returns the facts of the NVIDIA GPUs of a node under the key C(spark_gpu).
  - On a DGX Spark C(nvidia-smi) prints V([N/A]) for the memory, and the GPU has none of its own. The module says so
    instead of reporting zero, and takes the total from C(/proc/meminfo).
  - Two independent sources are asked at the same time, C(nvidia-smi) and the CUDA driver library. The library is called
    by a child process with a time limit, so that a driver that hangs or crashes cannot take the module with it. No CUDA
    context is created, so nothing is allocated on the GPU.
  - Every value says where it came from (RV(ansible_facts.spark_gpu.devices[].sources)), and values that the sources
    tell differently are listed in RV(ansible_facts.spark_gpu.disagreements).
version_added: 0.1.0
author:
  - The tandem.spark contributors (@tandem-spark)
extends_documentation_fragment:
  - tandem.spark._attributes
  - tandem.spark._attributes.facts
  - tandem.spark._attributes.platform
  - tandem.spark._attributes.host
attributes:
  check_mode:
    support: full
    details: The module only reads.
  diff_mode:
    support: none
    details: There is nothing to compare.
  facts:
    support: full
  platform:
    support: full
    platforms: linux
seealso:
  - module: tandem.spark.memory_facts
  - module: tandem.spark.platform_facts
  - module: tandem.spark.fabric_facts
"""

EXAMPLES = r"""
- name: Read the GPU
  tandem.spark.gpu_facts:

- name: Stop unless the GPU is a GB10 that can be asked
  ansible.builtin.assert:
    that:
      - ansible_facts["spark_gpu"]["probe"] == "ok"
      - ansible_facts["spark_gpu"]["devices"][0]["architecture"] == "sm_121"
    fail_msg: "nvidia-smi: {{ ansible_facts['spark_gpu']['probe_detail'] }}"

- name: Reboot into the driver that is installed
  ansible.builtin.reboot:
  when: ansible_facts["spark_gpu"]["driver"]["reboot_required"] is true
"""

RETURN = r"""
ansible_facts:
  description: The facts, under one key.
  returned: always
  type: dict
  contains:
    spark_gpu:
      description: GPUs and driver of the node.
      returned: always
      type: dict
      contains:
        count:
          description: Number of GPUs. Null when nobody could be asked; V(0) only when the driver answered that there is
            none.
          type: int
          sample: 1
        count_source:
          description: Where RV(ansible_facts.spark_gpu.count) comes from.
          type: str
          sample: nvidia-smi
        probe:
          description:
            - How asking C(nvidia-smi) went.
            - V(ok), or V(tool_missing), V(timeout), V(denied), V(version_mismatch) (libraries replaced, module still
              loaded), V(driver_not_loaded), V(no_devices), V(not_permitted), V(invalid_field), V(garbage) (it succeeded
              and printed nothing that can be read) or V(failed).
          type: str
          sample: ok
        probe_detail:
          description: The tool (C(tool)), the same state (C(state)), its first line on failure (C(message)), and how
            long it took in seconds (C(seconds)).
          type: dict
          sample: {"tool": "nvidia-smi", "state": "ok", "message": null, "seconds": 0.041}
        cuda_probe:
          description: How asking the CUDA driver library went. V(ok), V(library_missing), V(timeout), V(crashed),
            V(failed) or V(garbage).
          type: str
          sample: ok
        cuda_probe_detail:
          description: As RV(ansible_facts.spark_gpu.probe_detail), for C(libcuda.so.1).
          type: dict
          sample: {"tool": "libcuda.so.1", "state": "ok", "message": null, "seconds": 0.19}
        devices:
          description: One entry for each GPU.
          type: list
          elements: dict
          contains:
            index:
              description: Number of the GPU, from zero.
              type: int
              sample: 0
            name:
              description: Product name.
              type: str
              sample: NVIDIA GB10
            uuid:
              description: Identity of the GPU as the driver gives it.
              type: str
              sample: GPU-6f3a0c1e-7d55-4f7c-9c0b-2f0f3f1f6b1d
            pci_address:
              description: PCI address with the eight-digit domain of C(nvidia-smi).
              type: str
              sample: "0000000F:01:00.0"
            compute_capability:
              description: CUDA compute capability. A GB10 has V(12.1).
              type: str
              sample: "12.1"
            architecture:
              description: The same as compilers name it.
              type: str
              sample: sm_121
            multiprocessors:
              description: Number of streaming multiprocessors, from the CUDA driver library.
              type: int
              sample: 48
            integrated:
              description: Whether the driver calls the GPU integrated with the memory of the host.
              type: bool
              sample: true
            memory_unified:
              description: Whether GPU and CPU share one memory. True only for a GPU that is known to be integrated,
                false when the driver says otherwise or C(nvidia-smi) gives a memory size.
              type: bool
              sample: true
            memory_total_bytes:
              description: Memory that the GPU can use, in bytes. With unified memory this is MemTotal of the node.
              type: int
              sample: 130663165952
            memory_used_bytes:
              description: Used GPU memory in bytes; null with unified memory, where nobody can tell.
              type: int
              sample: null
            memory_free_bytes:
              description: Free GPU memory in bytes; null with unified memory (see M(tandem.spark.memory_facts)).
              type: int
              sample: null
            cuda_total_bytes:
              description: Total memory as the CUDA driver library reports it, in bytes.
              type: int
              sample: 128452014080
            addressing_mode:
              description: How the GPU translates addresses, V(ATS) on a GB10 and V(None) on a discrete GPU without it.
              type: str
              sample: ATS
            c2c_mode:
              description: State of the chip-to-chip link between CPU and GPU.
              type: str
              sample: Enabled
            pageable_memory_access:
              description: Whether the GPU can read and write ordinary memory of a process.
              type: bool
              sample: true
            pageable_uses_host_page_tables:
              description: Whether it does so through the page tables of the CPU.
              type: bool
              sample: true
            managed_memory:
              description: Whether managed memory can be allocated.
              type: bool
              sample: true
            concurrent_managed_access:
              description: Whether CPU and GPU may use managed memory at the same time.
              type: bool
              sample: true
            direct_managed_access_from_host:
              description: Whether the CPU can use managed memory on the GPU without a move.
              type: bool
              sample: false
            host_native_atomics:
              description: Whether the link between CPU and GPU knows all native atomic operations.
              type: bool
              sample: true
            unified_addressing:
              description: Whether CPU and GPU use one address space. Also true for discrete GPUs, so it is no sign of
                unified memory.
              type: bool
              sample: true
            can_map_host_memory:
              description: Whether memory of the host can be mapped.
              type: bool
              sample: true
            virtual_memory_management:
              description: Whether the virtual memory functions of CUDA work.
              type: bool
              sample: true
            gpu_direct_rdma:
              description: Whether a network card can reach GPU memory directly. False on a GB10, which is normal.
              type: bool
              sample: false
            gpu_direct_rdma_with_vmm:
              description: The same for memory from the virtual memory functions.
              type: bool
              sample: false
            dma_buf:
              description: Whether buffers can be shared with other devices. False on a GB10.
              type: bool
              sample: false
            shared_memory_per_block_optin_bytes:
              description: The most shared memory that a block may ask for, in bytes.
              type: int
              sample: 101376
            vbios:
              description: Version of the GPU's firmware image.
              type: str
              sample: 9A.0B.1E.00.00
            gsp_firmware:
              description: Version of the firmware of the GPU system processor; equals the driver's on a sound system.
              type: str
              sample: 580.95.05
            temperature_celsius:
              description: Temperature of the GPU.
              type: float
              sample: 35.0
            power_draw_watts:
              description: Power of the GPU domain only, not of the machine.
              type: float
              sample: 11.17
            power_limit_watts:
              description: Power limit; null on a GB10.
              type: float
              sample: null
            clock_sm_mhz:
              description: Clock of the multiprocessors.
              type: int
              sample: 2418
            clock_sm_maximum_mhz:
              description: Highest clock of the multiprocessors.
              type: int
              sample: 3003
            clock_memory_mhz:
              description: Memory clock; null on a GB10, whose memory has no clock domain of the GPU.
              type: int
              sample: null
            clock_memory_maximum_mhz:
              description: Highest memory clock; null on a GB10.
              type: int
              sample: null
            utilisation_percent:
              description: Share of the time in which a kernel ran.
              type: float
              sample: 0.0
            performance_state:
              description: Performance state.
              type: str
              sample: P0
            persistence_mode:
              description: Whether the driver stays loaded without clients.
              type: bool
              sample: true
            sources:
              description: The source of each value that is not null.
              type: dict
              sample: {"compute_capability": "nvidia-smi", "memory_total_bytes": "/proc/meminfo MemTotal"}
        driver:
          description: The NVIDIA driver.
          type: dict
          contains:
            loaded:
              description: Version of the kernel module that is loaded.
              type: str
              sample: 580.126.09
            loaded_source:
              description: Where RV(ansible_facts.spark_gpu.driver.loaded) was read.
              type: str
              sample: /proc/driver/nvidia/version
            installed:
              description: Newest version among the installed packages and the libraries on the disk.
              type: str
              sample: "580.142"
            installed_source:
              description: Where RV(ansible_facts.spark_gpu.driver.installed) was read.
              type: str
              sample: package libnvidia-compute-580
            reboot_required:
              description: Whether loaded and installed differ; null when one of them is not known.
              type: bool
              sample: true
            kernel_module:
              description: V(open) or V(proprietary).
              type: str
              sample: open
            cuda:
              description: CUDA version that the driver library offers.
              type: str
              sample: "13.0"
        compute_processes:
          description: Processes that compute on the GPU. Null when that could not be told.
          type: list
          elements: dict
          contains:
            pid:
              description: Process number.
              type: int
              sample: 4174
            name:
              description: Name of the program.
              type: str
              sample: VLLM::EngineCore
            used_memory_bytes:
              description: GPU memory of the process in bytes; C(nvidia-smi) tells it on a GB10 too.
              type: int
              sample: 93416587264
            unit:
              description: The systemd unit that the process belongs to.
              type: str
              sample: tandem-rank.service
        pci_devices:
          description: NVIDIA functions on the PCI bus with C(address), C(id) (vendor and device) and C(class). Null
            when the bus cannot be listed.
          type: list
          elements: dict
          sample: [{"address": "000f:01:00.0", "id": "10de:2e12", "class": "0x030000"}]
        disagreements:
          description: Values that two sources tell differently, with C(field), C(device) (its index, or null) and
            C(values) by source.
          type: list
          elements: dict
          sample: []
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _gather
from ansible_collections.tandem.spark.plugins.module_utils._host import ROOT_OPTIONS, Host


def main() -> t.NoReturn:
    module = AnsibleModule(argument_spec=ROOT_OPTIONS, supports_check_mode=True)
    host = Host(module.params["root"], module.params["timeout"])
    module.exit_json(changed=False, ansible_facts={"spark_gpu": _gather.gpu(host)})


if __name__ == "__main__":
    main()

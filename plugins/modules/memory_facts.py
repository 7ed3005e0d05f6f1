#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: memory_facts
short_description: Tell how much memory a node has and what an engine may take of it
description:
  - Returns the memory of a node under the key C(spark_memory), all sizes in bytes.
  - The GPU of a DGX Spark has no memory of its own, and C(nvidia-smi) cannot tell any. What counts is what the kernel
    says. The driver takes memory that is free (MemFree) and does not make the kernel give up page cache, so the module
    tells what an engine may allocate now and what it may allocate after the page cache has been dropped.
  - Memory is called unified only when the node has a GPU that is known to be integrated.
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
  - module: tandem.spark.gpu_facts
  - name: Known issues of DGX Spark
    description: What NVIDIA says about memory reporting.
    link: https://docs.nvidia.com/dgx/dgx-spark/known-issues.html
"""

EXAMPLES = r"""
- name: Read the memory
  tandem.spark.memory_facts:

- name: Stop when less is available than the plan needs
  ansible.builtin.assert:
    that: ansible_facts["spark_memory"]["available_bytes"] >= 100 * 1024 * 1024 * 1024
    fail_msg: "found {{ ansible_facts['spark_memory']['available_bytes'] }} bytes, wanted 100 GiB"

- name: Say how much dropping the page cache would give
  ansible.builtin.debug:
    msg: >-
      now {{ ansible_facts["spark_memory"]["engine"]["now_bytes"] | human_readable }},
      then {{ ansible_facts["spark_memory"]["engine"]["after_drop_caches_bytes"] | human_readable }}
"""

RETURN = r"""
ansible_facts:
  description: The facts, under one key.
  returned: always
  type: dict
  contains:
    spark_memory:
      description: Memory of the node. All sizes are bytes and come from C(/proc/meminfo) unless said otherwise.
      returned: always
      type: dict
      contains:
        unified:
          description: Whether GPU and CPU share this memory. True only with a GPU that is known to be integrated, false
            with a GPU that reports a memory of its own, null when that could not be told or there is no GPU.
          type: bool
          sample: true
        unified_source:
          description: What RV(ansible_facts.spark_memory.unified) rests on.
          type: str
          sample: PCI 10de:2e12
        total_bytes:
          description: MemTotal. A DGX Spark shows about 121.7 GiB of its 128 GB.
          type: int
          sample: 130663165952
        available_bytes:
          description: MemAvailable, what can be had without swapping once the page cache gives way.
          type: int
          sample: 124386082816
        free_bytes:
          description: MemFree. The GPU driver can take this much at once; page cache counts as used.
          type: int
          sample: 110863843328
        buffers_bytes:
          description: Buffers.
          type: int
          sample: 214958080
        cached_bytes:
          description: Cached, the page cache with shared memory.
          type: int
          sample: 13572096000
        shared_bytes:
          description: Shmem, which is part of Cached and cannot be dropped.
          type: int
          sample: 4194304
        mapped_bytes:
          description: Mapped, files in use by processes.
          type: int
          sample: 268435456
        dirty_bytes:
          description: Dirty, pages that have to be written before they can be dropped.
          type: int
          sample: 65536
        slab_reclaimable_bytes:
          description: SReclaimable.
          type: int
          sample: 536870912
        reclaimable_bytes:
          description: What dropping the page cache frees at least. Buffers + Cached + SReclaimable - Shmem - Mapped -
            Dirty - Writeback.
          type: int
          sample: 13421772800
        locked_bytes:
          description: Mlocked, memory that processes have pinned.
          type: int
          sample: 0
        swap_total_bytes:
          description: SwapTotal; V(0) when there is no swap.
          type: int
          sample: 17179865088
        swap_free_bytes:
          description: SwapFree.
          type: int
          sample: 17179865088
        commit_limit_bytes:
          description: CommitLimit.
          type: int
          sample: 82511448064
        committed_bytes:
          description: Committed_AS.
          type: int
          sample: 6442450944
        hugepages:
          description: C(total) and C(free) are numbers of pages, C(size_bytes) is the size of one.
          type: dict
          sample: {"total": 0, "free": 0, "size_bytes": 2097152}
        cma:
          description: Contiguous memory. C(total_bytes) and C(free_bytes) as the kernel says; C(exceeds) is true when
            more is free than there is, which is the sign of a kexec-handover reserve that makes RDMA registration fail
            (C(excess_bytes)); C(kho_option) is the value of C(kho=) on the kernel command line, null when it is not
            set; C(cmdline_known) says whether the command line could be read.
          type: dict
          sample:
            total_bytes: 0
            free_bytes: 0
            excess_bytes: 0
            exceeds: false
            kho_option: "off"
            cmdline_known: true
        buddy:
          description: Free blocks of C(/proc/buddyinfo). C(page_size_bytes); C(large_free_bytes) is what is free in
            blocks of 2 MiB and more, which is what the driver asks for; C(blocks) counts free blocks by size in bytes.
          type: dict
          sample: {"page_size_bytes": 4096, "large_free_bytes": 97911832576, "blocks": {"4194304": 23344}}
        engine:
          description: What an engine may allocate. Every number is null unless
            RV(ansible_facts.spark_memory.unified) is true.
          type: dict
          contains:
            now_bytes:
              description: MemFree, what an allocation can get at once.
              type: int
              sample: 110863843328
            after_drop_caches_bytes:
              description: The smaller of MemAvailable and MemFree + RV(ansible_facts.spark_memory.reclaimable_bytes).
              type: int
              sample: 124285616128
            vendor_estimate_bytes:
              description: NVIDIA's estimate, MemAvailable + SwapFree, or HugePages_Free x Hugepagesize when huge pages
                are set up.
              type: int
              sample: 141565947904
            arithmetic:
              description: The formula of each number.
              type: dict
              sample: {"now_bytes": "MemFree"}
        settings:
          description: Settings of the kernel that decide how memory is given up, from C(/proc/sys) and
            C(/sys/kernel/mm).
          type: dict
          sample:
            swappiness: 60
            min_free_kbytes: 67584
            overcommit_memory: 0
            transparent_hugepage: madvise
            numa_balancing: 0
        pressure:
          description: Share of the last 10, 60 and 300 seconds in which some or all tasks waited for memory, in
            percent, from C(/proc/pressure/memory).
          type: dict
          sample:
            some: {"avg10": 0.0, "avg60": 0.0, "avg300": 0.0}
            full: {"avg10": 0.0, "avg60": 0.0, "avg300": 0.0}
        source:
          description: Where the sizes were read; null when that was not possible.
          type: str
          sample: /proc/meminfo
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _gather_memory
from ansible_collections.tandem.spark.plugins.module_utils._host import ROOT_OPTIONS, Host


def main() -> t.NoReturn:
    module = AnsibleModule(argument_spec=ROOT_OPTIONS, supports_check_mode=True)
    host = Host(module.params["root"], module.params["timeout"])
    module.exit_json(changed=False, ansible_facts={"spark_memory": _gather_memory.memory(host)})


if __name__ == "__main__":
    main()

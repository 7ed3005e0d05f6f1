#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: platform_facts
short_description: Tell whether a node is a DGX Spark and what is installed on it
description:
  - Returns identity, system, toolchain and surroundings of a node under the key C(spark_platform).
  - A DGX Spark is recognised by markers (release files, PCI bus, C(nvidia-smi), DMI), never by the maker's name, since
    each maker calls the machine something else. Each marker is true, false, or null when it could not be asked.
  - Serial numbers are never read or returned, and user names and passwords in addresses are left out.
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
    details: The module only reads; for O(compile=true) it works in a temporary directory that is gone afterwards.
  diff_mode:
    support: none
    details: There is nothing to compare.
  facts:
    support: full
  platform:
    support: full
    platforms: linux
options:
  disk_paths:
    description:
      - Directories whose file systems are measured.
      - For a directory that does not exist yet the nearest existing one above it is measured.
    type: list
    elements: path
    default: [/]
  ports:
    description: TCP ports for which to tell whether something listens on them.
    type: list
    elements: int
    default: []
  compile:
    description: Whether to compile an empty kernel for C(sm_121a) when C(nvcc) is installed, which takes about 0.1 s.
    type: bool
    default: true
  probe_mirrors:
    description:
      - Whether to connect to each configured proxy and mirror.
      - All of them are tried at the same time, and it takes 3 s at most.
    type: bool
    default: true
seealso:
  - module: tandem.spark.gpu_facts
  - module: tandem.spark.fabric_facts
"""

EXAMPLES = r"""
- name: Read the platform
  tandem.spark.platform_facts:
    disk_paths: [/var/lib/tandem]
    ports: [8000, 29500]

- name: Stop unless this is a DGX Spark
  ansible.builtin.assert:
    that: ansible_facts["spark_platform"]["is_spark"] is true
    fail_msg: "{{ ansible_facts['spark_platform']['markers'] }}"

- name: Show who listens on the port of the engine
  ansible.builtin.debug:
    msg: "{{ ansible_facts['spark_platform']['ports'] | selectattr('listening', 'true') }}"
"""

RETURN = r"""
ansible_facts:
  description: The facts, under one key.
  returned: always
  type: dict
  contains:
    spark_platform:
      description: Identity, system, toolchain and surroundings of the node.
      returned: always
      type: dict
      contains:
        is_spark:
          description: Whether this is a DGX Spark; null when too little could be asked or the markers contradict each
            other.
          type: bool
          sample: true
        platform:
          description: V(gb10), V(n1x), V(jetson) or V(other); null as RV(ansible_facts.spark_platform.is_spark).
          type: str
          sample: gb10
        basis:
          description: The markers that speak for a Spark.
          type: list
          elements: str
          sample: [pci, gpu, dgx_release]
        contradictions:
          description: Sentences about markers that do not fit together.
          type: list
          elements: str
          sample: []
        markers:
          description: Each marker as true, false or null. C(dgx_release) (C(/etc/dgx-release)), C(fastos_release)
            (C(/etc/fastos-release)), C(pci) (10de:2e12 on the bus), C(gpu) (C(nvidia-smi) names a GB10 of capability
            12.1), C(product_family) and C(product_name) (DMI), and the signs of other machines, C(n1x) and C(jetson).
          type: dict
          sample:
            dgx_release: true
            fastos_release: true
            pci: true
            gpu: true
            product_family: null
            product_name: false
            n1x: false
            jetson: false
        image_replaced:
          description: True when the hardware is that of a Spark and neither release file of the factory image is there.
          type: bool
          sample: false
        gpu_probe:
          description: How asking C(nvidia-smi) went, as in M(tandem.spark.gpu_facts).
          type: str
          sample: ok
        vendor:
          description: The maker, as a label.
          type: str
          sample: ASUS
        dmi:
          description: Names in C(/sys/class/dmi/id), without serial numbers.
          type: dict
          sample: {"sys_vendor": "ASUSTeK COMPUTER INC.", "product_name": "GX10"}
        architecture:
          description: Machine type as the kernel names it.
          type: str
          sample: aarch64
        cpu:
          description: C(models) with C(name), C(cores) and C(maximum_mhz); C(count) of CPUs; C(aes) is whether AES is
            done in hardware. From C(lscpu).
          type: dict
          sample:
            architecture: aarch64
            count: 20
            aes: true
            models:
              - {"name": "Cortex-X925", "cores": 10, "maximum_mhz": 3900.0}
              - {"name": "Cortex-A725", "cores": 10, "maximum_mhz": 2808.0}
        kernel_running:
          description: Release of the running kernel.
          type: str
          sample: 6.17.0-1026-nvidia
        kernel_installed:
          description: Release of the newest kernel in C(/boot), or among the packages.
          type: str
          sample: 6.17.0-1032-nvidia
        os:
          description: C(id), C(version) and C(name) out of C(/etc/os-release).
          type: dict
          sample: {"id": "ubuntu", "version": "24.04", "name": "Ubuntu 24.04.3 LTS"}
        dgx_os:
          description: Out of C(/etc/dgx-release). C(factory) is the version that was installed in the factory, C(ota)
            the last update; C(name), C(platform), C(commit) and the dates as they stand there; C(fastos) is the version
            in C(/etc/fastos-release).
          type: dict
          sample: {"name": "DGX Spark", "factory": "7.2.3", "ota": "7.5.0", "fastos": "1.91.51"}
        firmware:
          description: C(bios_version) and C(bios_date), comparable between machines of one maker only.
          type: dict
          sample: {"bios_version": "5.36_0ACUM027", "bios_date": "06/12/2026"}
        glibc:
          description: Version of the C library.
          type: str
          sample: "2.39"
        time:
          description: The clock.
          type: dict
          contains:
            synchronised:
              description: Whether the clock follows a reference.
              type: bool
              sample: true
            source:
              description: Who says so, C(chronyc tracking) or C(timedatectl).
              type: str
              sample: chronyc tracking
            reference:
              description: The reference that the clock follows.
              type: str
              sample: 192.0.2.1
            stratum:
              description: Distance to the reference clock.
              type: int
              sample: 3
            offset_seconds:
              description: How far the clock is from the reference.
              type: float
              sample: 0.000021
            epoch_seconds:
              description: Time of the node when the facts were read, in seconds since 1970.
              type: float
              sample: 1796068442.31
            monotonic_seconds:
              description: The monotonic clock at the same moment.
              type: float
              sample: 86211.7
            timezone:
              description: Time zone.
              type: str
              sample: Etc/UTC
        python:
          description: The interpreter that ran the module.
          type: dict
          contains:
            version:
              description: Its version.
              type: str
              sample: 3.12.3
            executable:
              description: Its path.
              type: str
              sample: /usr/bin/python3
            headers:
              description: Whether C(Python.h) is there, which compilers of kernels need at run time.
              type: bool
              sample: true
            include:
              description: Where C(Python.h) is looked for.
              type: str
              sample: /usr/include/python3.12
            available:
              description: Versions of Python in C(/usr/bin).
              type: list
              elements: str
              sample: ["3.12"]
        cuda:
          description: The CUDA toolkit.
          type: dict
          contains:
            installed:
              description: Whether there is a C(nvcc).
              type: bool
              sample: true
            nvcc:
              description: The compiler to build with, the newest that was found, as a full path.
              type: str
              sample: /usr/local/cuda/bin/nvcc
            version:
              description: Its version.
              type: str
              sample: 13.0.88
            nvcc_on_path:
              description: The C(nvcc) that comes first on PATH.
              type: str
              sample: /usr/bin/nvcc
            candidates:
              description: Everything that was found, with C(path) and C(version).
              type: list
              elements: dict
              sample: [{"path": "/usr/local/cuda/bin/nvcc", "version": "13.0.88"}]
            knows_sm_121:
              description: Whether C(nvcc --list-gpu-code) lists C(sm_121).
              type: bool
              sample: true
            compiles_sm_121a:
              description: Whether an empty kernel could be compiled for C(sm_121a); null when that was not tried.
              type: bool
              sample: true
            ptxas:
              description: The assembler next to C(nvcc), or the one on PATH.
              type: str
              sample: /usr/local/cuda/bin/ptxas
            ptxas_version:
              description: Its version.
              type: str
              sample: 13.0.88
            ptxas_knows_sm_121a:
              description: Whether it assembled an empty kernel for C(sm_121a).
              type: bool
              sample: true
            message:
              description: What the compiler complained about.
              type: str
              sample: null
        nccl:
          description: Whether a package of NCCL is C(installed), its C(version), and its C(source).
          type: dict
          sample: {"installed": true, "version": "2.30.7", "source": "package libnccl2"}
        container_toolkit:
          description: Version of C(nvidia-container-toolkit).
          type: str
          sample: 1.19.0
        packages:
          description: C(installed) are versions of packages that matter here, C(held) the packages on hold, C(busy) the
            package managers that are running. Each is null when it could not be read.
          type: dict
          sample: {"installed": {"rdma-core": "50.0-2ubuntu0.2"}, "held": [], "busy": []}
        reboot_required:
          description: C(marker) is whether the system asks for a reboot, C(packages) for which packages.
          type: dict
          sample: {"marker": false, "packages": []}
        unattended_upgrades:
          description: C(installed), C(enabled), the C(blacklist) of packages that are left alone, and C(spares_driver),
            which tells for packages called nvidia, libnvidia and cuda whether they are on it.
          type: dict
          sample:
            installed: true
            enabled: true
            blacklist: []
            spares_driver: {"nvidia": false, "libnvidia": false, "cuda": false}
        earlyoom:
          description: C(installed), C(running), its C(arguments), and below which share of free memory it acts
            (C(memory_percent); 10 without arguments).
          type: dict
          sample: {"installed": true, "running": true, "arguments": "-m 2 -s 80", "memory_percent": 2.0}
        network:
          description: Configured proxies and mirrors of apt, pip, git, the model hub and the environment.
          type: list
          elements: dict
          contains:
            kind:
              description: V(proxy) or V(mirror).
              type: str
              sample: mirror
            url:
              description: The address without user name and password.
              type: str
              sample: http://ports.ubuntu.com/ubuntu-ports
            tools:
              description: Who uses it.
              type: list
              elements: str
              sample: [apt]
            sources:
              description: Where it stands.
              type: list
              elements: str
              sample: [/etc/apt/sources.list.d/ubuntu.sources]
            answers:
              description: Whether a connection was accepted; null when it was not tried.
              type: bool
              sample: true
            detail:
              description: What went wrong, or why it was not tried.
              type: str
              sample: null
        disk:
          description: One entry for each of O(disk_paths).
          type: list
          elements: dict
          contains:
            path:
              description: The directory that was asked for.
              type: str
              sample: /var/lib/tandem
            exists:
              description: Whether it exists.
              type: bool
              sample: false
            measured_at:
              description: The nearest directory that exists.
              type: str
              sample: /var/lib
            mount:
              description: Its mount point.
              type: str
              sample: /
            total_bytes:
              description: Size of the file system in bytes.
              type: int
              sample: 983350071296
            available_bytes:
              description: What an ordinary user may still write, in bytes.
              type: int
              sample: 124554051584
        ports:
          description: One entry for each of O(ports).
          type: list
          elements: dict
          contains:
            port:
              description: The port.
              type: int
              sample: 8000
            listening:
              description: Whether something listens on it, on any address.
              type: bool
              sample: false
            process:
              description: C(pid), C(name) and systemd C(unit) of who listens; null when only root may know.
              type: dict
              sample: null
        kernel_log:
          description: For C(this_boot) and C(previous_boot) how often the kernel said something that explains a
            failure. Null when the journal of that boot could not be read.
          type: dict
          sample:
            this_boot: {"memory_allocation_failures": 0, "cable_high_temperature": 0, "gpu_errors": 0}
            previous_boot: null
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _gather_platform
from ansible_collections.tandem.spark.plugins.module_utils._host import ROOT_OPTIONS, Host


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            **ROOT_OPTIONS,
            "disk_paths": {"type": "list", "elements": "path", "default": ["/"]},
            "ports": {"type": "list", "elements": "int", "default": []},
            "compile": {"type": "bool", "default": True},
            "probe_mirrors": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    host = Host(module.params["root"], module.params["timeout"])
    found = _gather_platform.describe(
        host,
        module.params["disk_paths"],
        module.params["ports"],
        module.params["compile"],
        module.params["probe_mirrors"],
    )
    module.exit_json(changed=False, ansible_facts={"spark_platform": found})


if __name__ == "__main__":
    main()

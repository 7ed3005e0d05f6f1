#!/usr/bin/python
# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_facts
short_description: Tell how the ConnectX-7 network of a node is wired and configured
description:
  - Returns the fast network of a node under the key C(spark_fabric).
  - A DGX Spark has two QSFP cages, and each cage is reached over two PCIe halves. One cable therefore shows as two
    network interfaces and two RDMA devices (rails). The module groups them into cages by the port name that the driver
    gives, else by the PCI function, else by the interface's name, and says which of them it used.
  - An interface belongs to the fabric when its card is a ConnectX or when it is named as on a Spark. A virtual
    interface with such a name is grouped by that name.
  - With no cable the card removes itself from the PCI bus. RV(ansible_facts.spark_fabric.rdma_present) is false then.
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
  - module: tandem.spark.platform_facts
"""

EXAMPLES = r"""
- name: Read the fabric
  tandem.spark.fabric_facts:

- name: Show which interfaces have a carrier
  ansible.builtin.debug:
    msg: "{{ __interfaces | dict2items | selectattr('value.carrier', 'true') | map(attribute='key') | join(', ') }}"
  vars:
    __interfaces: "{{ ansible_facts['spark_fabric']['interfaces'] }}"

- name: Show the GID index of each rail, which differs between nodes and changes with reboots
  ansible.builtin.debug:
    msg: "{{ item.key }}: {{ item.value.roce_gid_index }}"
  loop: "{{ ansible_facts['spark_fabric']['rdma_devices'] | dict2items }}"
"""

RETURN = r"""
ansible_facts:
  description: The facts, under one key.
  returned: always
  type: dict
  contains:
    spark_fabric:
      description: Cages, rails, addresses and what else decides how the fabric behaves.
      returned: always
      type: dict
      contains:
        cages:
          description: The QSFP cages, with C(index), the C(interfaces) that belong to it (first half first), and the
            C(source) of the grouping (C(phys_port_name), C(pci_function) or C(name)).
          type: list
          elements: dict
          sample: [{"index": 0, "interfaces": ["enp1s0f0np0", "enP2p1s0f0np0"], "source": "phys_port_name"}]
        interfaces:
          description: The fabric interfaces by name.
          type: dict
          contains:
            INTERFACE:
              description: One interface; the key is its name.
              type: dict
              contains:
                cage:
                  description: Number of the cage, from zero; null when it could not be told.
                  type: int
                  sample: 0
                half:
                  description: V(0) for the half in PCI domain 0000, V(1) for the other one.
                  type: int
                  sample: 0
                cage_source:
                  description: What told the cage.
                  type: str
                  sample: phys_port_name
                pci_address:
                  description: PCI function; null for a virtual interface.
                  type: str
                  sample: "0000:01:00.0"
                driver:
                  description: Kernel driver.
                  type: str
                  sample: mlx5_core
                virtual:
                  description: Whether there is no device behind the interface. Its speed says nothing then.
                  type: bool
                  sample: false
                phys_port_name:
                  description: Name of the port as the driver gives it; the halves of a cage share it.
                  type: str
                  sample: p0
                phys_switch_id:
                  description: Identity of the card as the driver gives it.
                  type: str
                  sample: 385af50003b1e09c
                admin_up:
                  description: Whether the interface is switched on.
                  type: bool
                  sample: true
                carrier:
                  description: Whether there is a link. Null when the interface is switched off, since that cannot be
                    told then.
                  type: bool
                  sample: true
                operstate:
                  description: State as the kernel names it.
                  type: str
                  sample: up
                speed_mbps:
                  description: Negotiated speed in Mb/s, V(200000) on a sound link.
                  type: int
                  sample: 200000
                mtu:
                  description: Largest packet in bytes.
                  type: int
                  sample: 9000
                mac:
                  description: Hardware address.
                  type: str
                  sample: "4c:bb:47:00:00:01"
                master:
                  description: The bond or bridge that the interface is part of.
                  type: str
                  sample: null
                addresses:
                  description: Addresses with prefix length, without link-local IPv6. Null when C(ip) could not be
                    asked.
                  type: list
                  elements: str
                  sample: [192.168.100.10/24]
                rdma_device:
                  description: The RDMA device of this rail.
                  type: str
                  sample: rocep1s0f0
                gids:
                  description: Its GIDs, as in RV(ansible_facts.spark_fabric.rdma_devices).
                  type: list
                  elements: dict
                  sample: []
                carrier_down_count:
                  description: How often the link was lost since boot.
                  type: int
                  sample: 0
                carrier_up_count:
                  description: How often the link came up since boot.
                  type: int
                  sample: 1
                pcie:
                  description: Speed in GT/s and number of lanes of the PCIe link, and the most that both ends can.
                  type: dict
                  sample: {"speed_gts": 32.0, "width": 4, "maximum_speed_gts": 32.0, "maximum_width": 4}
                statistics:
                  description: Error counters of the interface. RDMA traffic does not show in them.
                  type: dict
                  sample: {"rx_errors": 0, "tx_errors": 0, "rx_dropped": 0, "tx_dropped": 0, "rx_crc_errors": 0}
                ip_settings:
                  description: Kernel settings of the interface.
                  type: dict
                  sample: {"rp_filter": 2, "arp_ignore": 1, "arp_announce": 2, "forwarding": 0}
        interfaces_known:
          description: Whether the interfaces of the node could be listed.
          type: bool
          sample: true
        other_interfaces:
          description: The remaining interfaces by name, with C(addresses), C(mtu), C(mac) and C(admin_up).
          type: dict
          sample:
            enP7s7: {"addresses": ["192.0.2.11/24"], "mtu": 1500, "mac": "4c:bb:47:00:00:07", "admin_up": true}
        rdma_devices:
          description: The RDMA devices by name. Null when C(/sys) could not be read.
          type: dict
          contains:
            DEVICE:
              description: One device; the key is its name.
              type: dict
              contains:
                interface:
                  description: Its network interface.
                  type: str
                  sample: enp1s0f0np0
                pci_address:
                  description: PCI function.
                  type: str
                  sample: "0000:01:00.0"
                state:
                  description: State of port 1.
                  type: str
                  sample: ACTIVE
                physical_state:
                  description: Physical state of port 1.
                  type: str
                  sample: LinkUp
                rate:
                  description: Rate of port 1.
                  type: str
                  sample: 200 Gb/sec (4X HDR)
                firmware:
                  description: Firmware version.
                  type: str
                  sample: 28.45.4028
                board_id:
                  description: Board identity (PSID).
                  type: str
                  sample: NVD0000000087
                gids:
                  description: The slots of the GID table that are in use, with C(index), C(gid), C(type), C(interface)
                    and the C(ipv4) address in it.
                  type: list
                  elements: dict
                  sample:
                    - index: 3
                      gid: "0000:0000:0000:0000:0000:ffff:c0a8:640a"
                      type: RoCE v2
                      interface: enp1s0f0np0
                      ipv4: 192.168.100.10
                roce_gid_index:
                  description: The slot of type RoCE v2 with an IPv4 address; null when there is none.
                  type: int
                  sample: 3
                counters:
                  description: Traffic and error counters of port 1.
                  type: dict
                  sample: {"port_xmit_data": 918273645, "port_rcv_data": 918273640, "link_downed": 0}
                hw_counters:
                  description: Loss and congestion counters of port 1.
                  type: dict
                  sample: {"packet_seq_err": 0, "out_of_sequence": 0}
        rdma_present:
          description: Whether there is any RDMA device. False is what a node without a cable shows.
          type: bool
          sample: true
        pci_functions:
          description: ConnectX functions on the PCI bus with C(address), C(id) and C(class); null when the bus cannot
            be listed.
          type: list
          elements: dict
          sample: [{"address": "0000:01:00.0", "id": "15b3:1021", "class": "0x020000"}]
        management_interface:
          description: The interface on which this SSH connection ends, else that of the default route.
          type: str
          sample: enP7s7
        management_address:
          description: Its address.
          type: str
          sample: 192.0.2.11
        management_source:
          description: C(SSH_CONNECTION) or C(default route).
          type: str
          sample: SSH_CONNECTION
        routes:
          description: The main routing table, with C(destination), C(interface), C(gateway), C(source), C(metric),
            C(protocol) and C(flags). Null when C(ip) could not be asked.
          type: list
          elements: dict
          sample: [{"destination": "default", "interface": "enP7s7", "gateway": "192.0.2.1", "metric": 100}]
        neighbours:
          description: Neighbours on fabric interfaces, with C(address), C(interface), C(mac) and C(state).
          type: list
          elements: dict
          sample: [{"address": "192.168.100.11", "interface": "enp1s0f0np0", "state": ["REACHABLE"]}]
        hotplug_marker:
          description: Whether C(/etc/nvidia/cx7-hotplug-enabled) is there. Rebooting one node alone can then detach the
            card of its neighbour.
          type: bool
          sample: true
        hotplug:
          description: Whether the marker has been moved aside (C(disabled)), and whether the handler is installed.
          type: dict
          sample: {"disabled": false, "handler": true}
        ip_forward:
          description: Whether the node forwards packets between its interfaces.
          type: bool
          sample: false
        managers:
          description: Which network managers are at work, C(networkd), C(networkmanager) and C(netplan).
          type: dict
          sample: {"networkd": true, "networkmanager": false, "netplan": true}
        leftovers:
          description: What earlier attempts and other software left behind.
          type: dict
          contains:
            nccl_conf:
              description: Names that C(/etc/nccl.conf) and C(~/.nccl.conf) set for every process, by file.
              type: dict
              sample: {"/etc/nccl.conf": ["NCCL_IB_GID_INDEX"]}
            nccl_environment:
              description: Variables for NCCL and Gloo in C(/etc/environment).
              type: list
              elements: str
              sample: []
            ufw_enabled:
              description: Whether the firewall ufw is enabled.
              type: bool
              sample: false
            ufw_accepts:
              description: Fabric interfaces that ufw has a rule for.
              type: list
              elements: str
              sample: []
            packet_filter:
              description: Policies of the packet filter (C(input_policy), C(forward_policy)) and the interfaces that it
                accepts (C(input_accepts)). Null when only root may know.
              type: dict
              sample: {"input_policy": "accept", "forward_policy": "drop", "input_accepts": []}
            docker_forward_policy:
              description: Policy of the FORWARD chain, which Docker sets to V(DROP).
              type: str
              sample: ACCEPT
            configuration:
              description: Files that mention fabric interfaces, with C(path) and C(interfaces).
              type: list
              elements: dict
              sample: [{"path": "/etc/netplan/40-cx7.yaml", "interfaces": ["enp1s0f0np0"]}]
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tandem.spark.plugins.module_utils import _gather_fabric
from ansible_collections.tandem.spark.plugins.module_utils._host import ROOT_OPTIONS, Host


def main() -> t.NoReturn:
    module = AnsibleModule(argument_spec=ROOT_OPTIONS, supports_check_mode=True)
    host = Host(module.params["root"], module.params["timeout"])
    module.exit_json(changed=False, ansible_facts={"spark_fabric": _gather_fabric.describe(host)})


if __name__ == "__main__":
    main()

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What every node has to do for the fabric: addresses, routes, forwarding, allowances, environment. Pure functions.

``plan`` takes the wiring (``tandem_links`` per node, or ``tandem_cables`` / ``tandem_switch``), the pool, and what the
nodes say of themselves where that is known (``spark_fabric``). It returns the plan and every problem found. The plan:

``topology``
    ``single``, ``pair``, ``ring3``, ``ring4``, ``ring`` (five and more), ``chain`` (three and more, open), ``switch``
    (one network joins all), ``mesh`` (anything else that hangs together).
``order``
    Node names along the cables: of a chain from the end with the lower rank, of a ring from the head.
``cables``
    ``[[spark-a.1, spark-b.0], …]``, the wiring that was declared; ``[spark-a.0, switch]`` on a switch; empty where links
    were given whose interfaces do not tell their cage.
``rendezvous``
    ``fabric`` or ``management``: on which network the ranks find each other, with its ``rendezvous_ip`` (of the head).
``environment``
    NCCL settings of this topology, for nodes that have RDMA devices.
``nodes``, in rank order, each with
    ``name``, ``rank``, ``address`` (management)
    ``links``
        One per rail: ``interface``, ``address`` (with prefix length), ``ip``, ``network``, ``mtu``, ``rail`` (the half of
        the cage: 0, 1, or null), ``cage`` (0, 1, or null), ``peers`` (``node``, ``interface``, ``ip``: all that are
        reached without a hop).
    ``routes``
        One per network or address that is no neighbour's: ``destination`` (``10.100.128.8/30`` or ``10.100.128.9/32``),
        ``via`` (a neighbour's address), ``interface`` (own), ``rail``, ``nodes`` (whom it leads to). Never a default.
    ``forwarding``
        Pairs ``[interface, interface]`` between which this node passes packets on, both ways; and between no others.
        Empty: no forwarding is needed here.
    ``firewall``
        Per link: ``interface``, ``rail``, ``sources`` (networks from which input is to be accepted: those of the whole
        fabric, own ones included, because relayed packets keep the sender's address and ranks use ports of their choice).
    ``far``
        Nodes that are reached over others, one entry per rail: ``node``, ``ip``, ``rail``, ``hops`` (cables on the
        way), ``through`` (node names in order), ``mtu`` (the smallest on the way). What an end-to-end proof has to ping.
    ``fabric_ip``
        The node's one address towards the group: on its link that leads to the head. Every other node has a way to it.
        Null without a fabric.
    ``source_ip``
        The head's ``fabric_ip``, from which copies are fetched; null on the head itself.
    ``socket_interface``
        Interface that rendezvous traffic uses (NCCL's and Gloo's sockets).

No dummy interface carries the identity: an address of a real link and routes to it do the same with one kind of device
less, and the way to a node then ends where its cable ends (reference: hardware, section 3.6).
"""

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Link addresses: one strict parser, used by every check that compares addresses of several nodes."""

from __future__ import annotations

import ipaddress
import re
import typing as t

_PLAIN = re.compile(r"^(0|[1-9]\d{0,2})(\.(0|[1-9]\d{0,2})){3}/\d{1,2}$")
NOT_A_PEER_ADDRESS = ("localhost", "127.", "0.0.0.0", "::1")


class AddressError(ValueError):
    """An address that cannot be used; the text says what was found and what is wanted."""


def parse_link_address(text: t.Any) -> ipaddress.IPv4Interface:
    """Parse ``192.168.100.10/24``; leading zeros, a missing prefix length or a network address are refused."""
    found = str(text)
    if "/" not in found:
        raise AddressError(f"found {found!r}, wanted an IPv4 address with its prefix length, such as 192.168.100.10/24")
    if not _PLAIN.match(found):
        raise AddressError(f"found {found!r}, wanted an IPv4 address such as 192.168.100.10/24 (no leading zeros)")
    try:
        interface = ipaddress.IPv4Interface(found)
    except ValueError as error:
        raise AddressError(f"found {found!r}: {error}") from error
    if interface.ip.is_loopback or interface.ip.is_unspecified or interface.ip.is_multicast:
        raise AddressError(f"found {found!r}, wanted an address that another node can reach")
    if interface.network.prefixlen < 31 and interface.ip in (
        interface.network.network_address,
        interface.network.broadcast_address,
    ):
        raise AddressError(f"found {found!r}, which is the network or broadcast address of {interface.network}")
    return interface


def is_address(text: str) -> bool:
    """True for a literal IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

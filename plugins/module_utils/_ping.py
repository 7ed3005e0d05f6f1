# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""Don't-fragment pings: how large, and what the answer says."""

from __future__ import annotations

import re

# An IPv4 header is 20 bytes, an ICMP header 8: the payload of a packet that just fits.
HEADERS = 28
_COUNTS = re.compile(r"(\d{1,9}) packets transmitted, (\d{1,9}) (?:packets )?received", re.ASCII)
_TIMES = re.compile(r"= [\d.]+/(\d+(?:\.\d+)?)/", re.ASCII)


def payload(mtu: int) -> int:
    """Payload bytes of a ping that fills a packet of *mtu* bytes."""
    return mtu - HEADERS


def command(ping: str, interface: str | None, target: str, size: int, count: int, deadline_s: int) -> list[str]:
    """The ping of *size* payload bytes that may not be fragmented, bound to *interface* if one is given."""
    words = [ping, "-n", "-q", "-M", "do", "-s", str(size), "-c", str(count), "-i", "0.2", "-w", str(deadline_s)]
    return [*words, *(["-I", interface] if interface else []), target]


def received(output: str) -> tuple[int, int] | None:
    """(sent, received), or ``None`` when the output says neither. A lost reply counts, an error text does not."""
    match = _COUNTS.search(output)
    return (int(match[1]), int(match[2])) if match else None


def mean_ms(output: str) -> float | None:
    """Mean round trip in milliseconds."""
    match = _TIMES.search(output)
    return float(match[1]) if match else None

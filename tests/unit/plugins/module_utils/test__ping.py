# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _ping
from hypothesis import example, given
from hypothesis import strategies as st

GOOD = """PING 192.168.100.11 (192.168.100.11) from 192.168.100.10 enp1s0f0np0: 8972(9000) bytes of data.

--- 192.168.100.11 ping statistics ---
3 packets transmitted, 3 received, 0% packet loss, time 401ms
rtt min/avg/max/mdev = 0.033/0.041/0.052/0.007 ms
"""
LOST = "3 packets transmitted, 0 received, +3 errors, 100% packet loss, time 2048ms\n\n"
BUSYBOX = "3 packets transmitted, 2 packets received, 33% packet loss\nround-trip min/avg/max = 0.1/0.2/0.3 ms\n"


@pytest.mark.parametrize(("mtu", "payload"), [(9000, 8972), (4200, 4172), (1500, 1472)])
def test_c14_payload(mtu, payload):
    assert _ping.payload(mtu) == payload


def test_c14_no_fragments_and_the_interface_is_bound():
    words = _ping.command("/usr/bin/ping", "enp1s0f0np0", "192.168.100.11", 8972, 3, 5)
    for pair in (["-M", "do"], ["-s", "8972"], ["-c", "3"], ["-w", "5"], ["-I", "enp1s0f0np0"]):
        assert words[words.index(pair[0]) + 1] == pair[1]
    assert words[0] == "/usr/bin/ping" and words[-1] == "192.168.100.11"


def test_what_ping_says():
    assert (_ping.received(GOOD), _ping.mean_ms(GOOD)) == ((3, 3), 0.041)
    assert (_ping.received(LOST), _ping.mean_ms(LOST)) == ((3, 0), None)
    assert (_ping.received(BUSYBOX), _ping.mean_ms(BUSYBOX)) == ((3, 2), 0.2)
    assert _ping.received("ping: connect: Network is unreachable") is None


@given(st.text() | st.from_regex(r"= [\d.]+/[\d.]+/|\d+ packets transmitted, \d+ received"))
@example("= ./1.2.3/")
@example("= ././.")
@example("9" * 5000 + " packets transmitted, 1 received")
def test_any_output(text):
    _ping.received(text)
    _ping.mean_ms(text)

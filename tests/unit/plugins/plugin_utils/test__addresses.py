# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ipaddress

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils._addresses import (
    AddressError,
    is_address,
    parse_link_address,
)
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    "text",
    [
        "192.168.100.010/24",  # C10
        "192.168.100.10",  # C16
        "localhost/8",  # C40, and the next four
        "127.0.1.1/8",
        "::1/128",
        "0.0.0.0/0",
        "127.0.0.1/8",
        "192.168.100.0/24",
        "192.168.100.255/24",
        "224.0.0.1/24",
        "192.168.100.256/24",
        "192.168.100.10/33",
        "192.168.100.10/24\n",
        " 192.168.100.10/24",
        "192.168.100.10/255.255.255.0",
        "1\u0661.1.1.1/24",
        "",
        "/",
        None,
        10,
    ],
    ids=repr,
)
def test_c10_c16_c40_addresses_that_are_refused(text):
    with pytest.raises(AddressError) as stop:
        parse_link_address(text)
    assert repr(str(text))[1:-1] in str(stop.value)


@pytest.mark.parametrize("text", ["192.168.100.10/24", "192.168.100.1/30", "10.0.0.0/31", "10.0.0.1/31", "10.0.0.1/32"])
def test_addresses_that_are_taken(text):
    assert str(parse_link_address(text)) == text


@given(st.text(max_size=24) | st.from_regex(r"\A[0-9./]{1,20}\Z") | st.integers() | st.none())
def test_only_address_errors_for_anything(text):
    try:
        found = parse_link_address(text)
    except AddressError:
        return
    assert isinstance(found, ipaddress.IPv4Interface) and str(found) == str(ipaddress.IPv4Interface(text))


def test_is_address():
    assert is_address("192.0.2.1") and is_address("2001:db8::1") and not is_address("spark-a") and not is_address("")

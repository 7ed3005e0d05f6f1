# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _values, _version


@pytest.mark.parametrize(
    "token",
    [
        "[N/A]",
        "N/A",
        "n/a",
        "[Not Supported]",
        "Not Supported",
        "[Unknown Error]",
        "Unknown Error",
        "[GPU requires reset]",
        "[Insufficient Permissions]",
        "Requested functionality has been deprecated",
        "ERR!",
        "",
        "  ",
        "-",
        None,
        7,
        b"7",
    ],
)
def test_what_says_no_value_is_none(token):
    for reader in (_values.text, _values.number, _values.integer, _values.size, _values.truth):
        assert reader(token) is None


@pytest.mark.parametrize(
    ("token", "value"),
    [
        ("0", 0.0),
        ("11.17 W", 11.17),
        ("0 %", 0.0),
        ("-8 C", -8.0),
        ("35", 35.0),
        ("1e5", None),
        ("12abc3", None),
        ("٣", None),
    ],
)
def test_numbers(token, value):
    assert _values.number(token) == value


@pytest.mark.parametrize(("token", "value"), [("0", 0), ("2418 MHz", 2418), ("12.5", None), ("0x10", None), ("-3", -3)])
def test_whole_numbers(token, value):
    assert _values.integer(token) == value


@pytest.mark.parametrize(
    ("token", "unit", "value"),
    [
        ("84MiB", "B", 84 * 1024**2),
        ("143771 MiB", "B", 143771 * 1024**2),
        ("24564", "MiB", 25757220864),
        ("127600748 kB", "B", 130663165952),
        ("1.5 GiB", "B", 3 * 512 * 1024**2),
        ("5 parsecs", "B", None),
        ("-1 MiB", "B", None),
        ("-0", "B", None),
    ],
)
def test_sizes(token, unit, value):
    assert _values.size(token, unit) == value


@pytest.mark.parametrize(
    ("token", "value"), [("Enabled", True), ("no", False), ("1", True), ("0", False), ("maybe", None)]
)
def test_truth(token, value):
    assert _values.truth(token) is value


@pytest.mark.parametrize(
    ("number", "value"), [(1, True), (0, False), (2, None), (True, None), (None, None), ("1", None)]
)
def test_flags(number, value):
    assert _values.flag(number) is value


def test_assignments_last_wins_and_quotes_go():
    content = "A=1\n# A=2\nexport B='x y'\nA=\"3\"\nno equals sign\n=4\nC=\n"
    assert _values.assignments(content) == {"A": "3", "B": "x y", "C": ""}
    assert _values.assignments(None) == {}


def test_pairs_first_wins():
    assert _values.pairs("a: 1\nb\na: 2\n: 3\n") == {"a": "1"}


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("580.9", "580.126"),
        ("580.126.09", "580.142"),
        ("580.159.03", "590.48"),
        ("6.17.0-1014-nvidia", "6.17.0-1021-nvidia"),
        ("6.17.0-1032-nvidia", "7.0.0-1019-nvidia"),
        ("12.8.93", "12.9"),
    ],
)
def test_c07_versions_compare_as_numbers(older, newer):
    assert _version.compare(older, newer) == -1
    assert _version.compare(newer, older) == 1


@pytest.mark.parametrize(("left", "right"), [("590.48", "590.48.00"), ("13.0", "13"), ("v1.2", "1.2.0")])
def test_c07_trailing_zeros_do_not_count(left, right):
    assert _version.compare(left, right) == 0


@pytest.mark.parametrize("version", [None, "", "unknown", "[N/A]", "nvidia-580"])
def test_what_is_no_version_compares_with_nothing(version):
    assert _version.compare(version, "580.126") is None
    assert _version.compare("580.126", version) is None
    assert _version.matches(version, "580") is None
    assert _version.key(version) is None


@pytest.mark.parametrize(
    ("version", "pattern", "expected"),
    [
        ("580.178.04", "580", True),
        ("580.178.04", "580.178.04", True),
        ("580.178.04", "580.17", False),
        ("7.0.0-1019-nvidia", "7.0.0-1019", True),
        ("7.0.0-10190-nvidia", "7.0.0-1019", False),
        ("7.0.0-31-generic", "7.0.0-1019", False),
    ],
)
def test_series(version, pattern, expected):
    assert _version.matches(version, pattern) is expected


def test_newest_leaves_out_what_is_no_version():
    assert _version.newest(["580.9", "none", "580.126.09", "580.95.05"]) == "580.126.09"
    assert _version.newest(["none"]) is None


@pytest.mark.parametrize(
    ("package", "upstream"),
    [
        ("580.142-0ubuntu0.24.04.1", "580.142"),
        ("1:2.3-4", "2.3"),
        ("2.30.7-1+cuda13.0", "2.30.7"),
        ("7", "7"),
        ("", None),
        (None, None),
    ],
)
def test_upstream_version_of_a_package(package, upstream):
    assert _version.debian_upstream(package) == upstream

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import json

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _precision
from hypothesis import given
from hypothesis import strategies as st

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
GROUPS = {"group_0": {"weights": {"num_bits": 4}}, "group_1": {"weights": {"num_bits": 8}}}


@pytest.mark.parametrize(
    ("files", "method", "bits"),
    [
        ({}, None, None),
        ({"config.json": {}}, "none", None),
        ({"config.json": {"quantization_config": None}}, "none", None),
        ({"config.json": {"quantization_config": FP8}}, "fp8", 8),
        ({"config.json": {"text_config": {"quantization_config": FP8}}}, "fp8", 8),
        ({"config.json": {"compression_config": {"quant_method": "compressed-tensors"}}}, "compressed-tensors", None),
        (
            {"config.json": {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": GROUPS}}},
            "compressed-tensors",
            4,
        ),
        ({"config.json": {"quantization_config": {"quant_method": "gptq", "bits": 4}}}, "gptq", 4),
        (
            {"config.json": {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}},
            "bitsandbytes",
            8,
        ),
        ({"config.json": {}, "hf_quant_config.json": {"quantization": {"quant_algo": "NVFP4"}}}, "modelopt", 4),
        ({"hf_quant_config.json": {"quantization": {"quant_algo": None}}}, "none", None),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_a_publisher_says(tmp_path, files, method, bits):
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    found = _precision.read(str(tmp_path))
    assert (found.method, found.bits) == (method, bits)


@pytest.mark.parametrize("content", [b"", b"[]", b"<html>", b"\xff", b"[" * 100000])
def test_a_configuration_that_cannot_be_read_is_named(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json: found"):
        _precision.read(str(tmp_path))


NONE = _precision.Precision("none", None, "config.json")
EIGHT = _precision.Precision("fp8", 8, "config.json")


@pytest.mark.parametrize(
    ("wanted", "found", "dtypes", "differs"),
    [
        ({}, EIGHT, {}, None),
        ({"method": "fp8", "bits": 8}, EIGHT, {"F8_E4M3": 9}, None),
        ({"method": "fp8"}, EIGHT, {}, None),
        ({"method": "fp8", "bits": 4}, EIGHT, {}, "fp8, 8 bits"),
        ({"method": "none"}, EIGHT, {}, "fp8, 8 bits"),
        ({"method": "fp8"}, NONE, {}, "none"),
        ({"method": "none"}, NONE, {"BF16": 100, "I32": 4}, None),
        ({"method": "none"}, NONE, {"BF16": 100, "F8_E4M3": 1}, "F8_E4M3"),
        ({"method": "none"}, NONE, {"BF16": 10, "I32": 90}, "I32"),
        ({"method": "none"}, _precision.Precision(None, None, None), {}, "no configuration"),
    ],
)
def test_an_unnoticed_quantised_copy(wanted, found, dtypes, differs):
    text = _precision.difference(wanted, found, dtypes)
    assert text is None if differs is None else differs in text[0] and wanted["method"] in text[1]


def test_what_needs_no_conversion():
    assert "fp8, 8 bits" in _precision.quantised(EIGHT, {})
    assert "F8_E4M3" in _precision.quantised(NONE, {"F8_E4M3": 5})
    assert _precision.quantised(NONE, {"BF16": 5}) is None


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "quantization_config",
                    "text_config",
                    "config_groups",
                    "weights",
                    "bits",
                    "quant_method",
                    "quantization",
                ]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_configuration_makes_it_raise_anything_else(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "precision"
    path.mkdir(exist_ok=True)
    for name in ("config.json", "hf_quant_config.json"):
        (path / name).write_text(json.dumps(data))
    with contextlib.suppress(ValueError):
        _precision.read(str(path))

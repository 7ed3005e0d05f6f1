# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import hashlib

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _hub
from hypothesis import example, given
from hypothesis import strategies as st

SHA = "c" * 64
HUGGING_FACE = [
    {"type": "directory", "oid": "d1", "size": 0, "path": "sub"},
    {"type": "file", "oid": "a" * 40, "size": 5, "path": "config.json"},
    {
        "type": "file",
        "oid": "b" * 40,
        "size": 135,
        "path": "sub/model.safetensors",
        "lfs": {"oid": SHA, "size": 4000000000, "pointerSize": 135},
    },
]
MODEL_SCOPE = {
    "Code": 200,
    "Data": {
        "Files": [
            {"Path": "sub", "Size": 0, "Type": "tree", "Sha256": ""},
            {"Path": "config.json", "Size": 5, "Type": "blob", "Sha256": SHA},
            {"Path": "README.md", "Size": 7, "Sha256": ""},
        ]
    },
}


def test_both_listings():
    assert _hub.parse_listing("huggingface", HUGGING_FACE) == [
        _hub.HubFile("config.json", 5, None, "a" * 40),
        _hub.HubFile("sub/model.safetensors", 4000000000, SHA, None),
    ]
    assert _hub.parse_listing("modelscope", MODEL_SCOPE) == [
        _hub.HubFile("config.json", 5, SHA, None),
        _hub.HubFile("README.md", 7, None, None),
    ]


@pytest.mark.parametrize("source", ["huggingface", "modelscope"])
@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        "text",
        [1],
        ["x"],
        [{"type": "file"}],
        [{"type": "file", "path": "../x", "size": 1, "oid": "a"}],
        [{"type": "file", "path": "/x", "size": 1, "oid": "a"}],
        [{"type": "file", "path": "x", "size": "many", "oid": "a"}],
        [{"type": "file", "path": "x", "size": 1, "lfs": {"oid": None, "size": 1}}],
        [{"type": "file", "path": None, "size": 1, "oid": "a"}],
        [{"type": "directory", "path": "x"}],
        {"error": "Repository not found"},
        {"Code": 10010205001, "Data": None, "Message": "not found"},
        {"Data": {"Files": None}},
        {"Data": {"Files": []}},
        {"Data": {"Files": ["x"]}},
        {"Data": {"Files": [{"Path": "../x", "Size": 1}]}},
        {"Data": {"Files": [{"Path": "x", "Size": "y"}]}},
        {"Data": {"Files": [{"Path": "x", "Size": 1e999}]}},
    ],
    ids=repr,
)
def test_answers_that_cannot_be_used(source, answer):
    with pytest.raises(_hub.HubError, match=source):
        _hub.parse_listing(source, answer)


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "path", "size", "oid", "lfs", "Data", "Files", "Path", "Size", "Type", "Sha256"]),
            inner,
        )
    ),
    max_leaves=10,
)


@given(st.sampled_from(["huggingface", "modelscope"]), JSON)
def test_only_hub_errors_for_anything(source, answer):
    with contextlib.suppress(_hub.HubError):
        assert _hub.parse_listing(source, answer)


def test_listing_urls():
    url = _hub.listing_url("huggingface", "https://hub", "owner/Model name", "a/b")
    assert url == "https://hub/api/models/owner/Model%20name/tree/a%2Fb?recursive=true&expand=false"
    assert "Revision=main&Recursive=True" in _hub.listing_url("modelscope", "https://hub", "o/m", "main")


@pytest.mark.parametrize(
    ("header", "page"),
    [
        (None, None),
        ("", None),
        ('<https://hub/a?cursor=x>; rel="next"', "https://hub/a?cursor=x"),
        ('<https://hub/a?c=1,2>; rel="next"', "https://hub/a?c=1,2"),
        ('<https://hub/1>; rel="prev", <https://hub/2>; rel="next"', "https://hub/2"),
        ('<https://hub/1>; rel="next", <https://hub/2>; rel="last"', "https://hub/1"),
        ("</a?b>; rel=next", "/a?b"),
        ('<https://hub/next>; rel="prev"', None),
    ],
)
def test_next_page(header, page):
    assert _hub.next_page(header) == page


@given(st.text())
@example("<" * 50)
def test_next_page_takes_any_header(text):
    assert _hub.next_page(text) is None or "<" in text


def test_git_blob(tmp_path):
    (tmp_path / "f").write_bytes(b"hello\n")
    assert _hub.git_blob(str(tmp_path / "f")) == "ce013625030ba8dba906f756967f9e9ca394464a"  # git hash-object


def test_c27_an_empty_download_is_called_empty():
    file = _hub.HubFile("m.safetensors", 5, SHA, None)
    text = _hub.mismatch(file, 0, hashlib.sha256(b"").hexdigest(), str)
    assert "empty (0 bytes)" in text and "m.safetensors" in text and "5" in text
    assert "empty" not in (_hub.mismatch(file, 5, "d" * 64, str) or "empty")


def test_mismatches():
    lfs, blob, bare = (
        _hub.HubFile("a", 5, SHA, None),
        _hub.HubFile("b", 5, None, "1" * 40),
        _hub.HubFile("c", 0, None, None),
    )
    assert _hub.mismatch(lfs, 5, SHA, str) is None
    assert "4 bytes" in _hub.mismatch(lfs, 4, SHA, str)
    text = _hub.mismatch(lfs, 5, "d" * 64, str)
    assert "d" * 64 in text and SHA in text
    assert _hub.mismatch(blob, 5, SHA, lambda: "1" * 40) is None
    assert "git object" in _hub.mismatch(blob, 5, SHA, lambda: "2" * 40)
    assert _hub.mismatch(bare, 0, SHA, str) is None


@pytest.mark.parametrize("source", ["huggingface", "modelscope"])
def test_c51_the_token_travels_in_the_environment(source):
    command = _hub.download_command(source, "/client", "o/m", "a" * 40, "/to", 8)
    environment = _hub.client_environment(source, "https://mirror", "secret-token")
    assert command[0].startswith("/client/bin/") and "a" * 40 in command and "/to" in command
    assert "secret-token" not in command and "secret-token" in environment.values()
    assert "secret-token" not in _hub.client_environment(source, "https://mirror", None).values()
    assert "https://mirror" in environment.values()


def test_xet_is_for_the_hub_itself_only():
    assert _hub.client_environment("huggingface", "https://huggingface.co", None)["HF_HUB_DISABLE_XET"] == "0"
    assert _hub.client_environment("huggingface", "https://mirror", None)["HF_HUB_DISABLE_XET"] == "1"

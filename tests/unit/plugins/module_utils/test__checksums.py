# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _checksums
from ansible_collections.tandem.spark.plugins.module_utils._manifest import ManifestError
from hypothesis import given
from hypothesis import strategies as st

H = hashlib.sha256(b"x").hexdigest()
OTHER = hashlib.sha256(b"y").hexdigest()


@pytest.mark.parametrize(
    "raw",
    [
        f"{H}  m.safetensors",
        f"{H} *m.safetensors",
        f"{H} m.safetensors",
        f"{H}\tm.safetensors\n",
        f"{H}  ./m.safetensors\n",
        f"{H}  m.safetensors\r\n",
        f"\ufeff{H}  m.safetensors\n",
        f"SHA256 (m.safetensors) = {H}\n",
        f"SHA256(m.safetensors)= {H}\n",
        f"SHA2-256(./m.safetensors)= {H}\n",
        f"{H.upper()}  m.safetensors\n",
        f"# made by hand\n\n{H}  m.safetensors\n\n",
        f"{H}  m.safetensors\n{H} *m.safetensors\n",
        f"\ufeffSHA256 (m.safetensors) = {H.upper()}\r\n",
    ],
    ids=repr,
)
def test_c28_every_form_of_a_line(raw):
    assert _checksums.parse(raw.encode(), "SHA256SUMS") == {"m.safetensors": H}


def test_c28_a_windows_shells_utf_16():
    assert _checksums.parse(f"{H}  m\r\n".encode("utf-16"), "sums") == {"m": H}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (f"{H}  a b.bin", "a b.bin"),
        (f"{H}  sub/a.bin", "sub/a.bin"),
        (f"{H}  *a", "*a"),
        (f"{H} * a", " a"),
        (f"\\{H}  a\\nb\\\\c", None),
        (f"\\{H}  a\\nb", "a\nb"),
        (f"SHA256 (a (1).bin) = {H}", "a (1).bin"),
        (f"{H}  {H}", H),
    ],
)
def test_c28_names(line, name):
    if name is None:  # a backslash in a name could leave the directory elsewhere
        with pytest.raises(ManifestError):
            _checksums.parse(line.encode(), "sums")
    else:
        assert _checksums.parse(line.encode(), "sums") == {name: H}


def test_c28_a_bare_digest_needs_exactly_one_file():
    assert _checksums.parse(f"{H}\n".encode(), "sums", ["m"]) == {"m": H}
    for expected in ([], ["m", "n"]):
        with pytest.raises(ManifestError, match="without a file name"):
            _checksums.parse(f"{H}\n".encode(), "sums", expected)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (f"{H}  /home/x/m", ["line 1", "absolute path", "/home/x/m"]),
        (f"SHA256 (/m) = {H}", ["absolute path"]),
        (f"{H}  ../m", ["line 1", "leave"]),
        (f"{H}  a\n{H[:-1]}  m", ["line 2", "63 hex digits", "64"]),
        (f"{H}0  m", ["65 hex digits"]),
        (f"SHA256 (m) = {H[:-1]}", ["63 hex digits"]),
        ("d41d8cd98f00b204e9800998ecf8427e  m", ["32 hex digits"]),
        ("MD5 (m) = d41d8cd98f00b204e9800998ecf8427e", ["MD5", "SHA256"]),
        ("m:\n" + H, ["line 1", "'m:'"]),
        ("", ["no entries"]),
        ("\ufeff", ["no entries"]),
        ("# nothing\n\n", ["no entries"]),
        (f"{H}  m\n{OTHER}  ./m", ["line 2", "m stands twice"]),
        ("<!DOCTYPE html>", ["line 1", "DOCTYPE"]),
    ],
)
def test_c28_files_that_cannot_be_used(raw, words):
    with pytest.raises(ManifestError) as stop:
        _checksums.parse(raw.encode(), "SHA256SUMS")
    assert all(word in str(stop.value) for word in ["SHA256SUMS", *words])


def test_c28_bytes_that_are_no_text():
    with pytest.raises(ManifestError, match="sums: found bytes"):
        _checksums.parse(b"\xff\x00\x81", "sums")


@pytest.mark.parametrize("options", [[], ["--binary"], ["--tag"]])
def test_c28_what_sha256sum_writes_is_read(tmp_path, options):
    assert shutil.which("sha256sum")
    (tmp_path / "a b").write_bytes(b"x")
    (tmp_path / "new\nline").write_bytes(b"y")
    done = subprocess.run(["sha256sum", *options, "a b", "./new\nline"], cwd=tmp_path, capture_output=True, check=True)
    assert _checksums.parse(done.stdout, "sums") == {"a b": H, "new\nline": OTHER}


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_only_manifest_errors_for_anything(raw):
    with contextlib.suppress(ManifestError):
        assert _checksums.parse(raw, "sums")

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import contextlib
import hashlib

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _environment
from hypothesis import example, given
from hypothesis import strategies as st


def recorded(content):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def install(site, name, files):
    rows = []
    for path, content in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
        rows.append(f"{path},{recorded(content)},{len(content)}")
    info = site / f"{name}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "RECORD").write_text("\n".join([*rows, f"{name}.dist-info/RECORD,,"]) + "\n")


@pytest.fixture
def site(tmp_path):
    install(tmp_path, "torch-2.14.1", {"torch/__init__.py": b"1", 'torch/a,"b".py': b"22"[:0] + b"22"})
    install(tmp_path, "flash_attn-1.0.post1", {"flash.so": b"333"})
    return tmp_path


def quoted(site):
    record = site / "torch-2.14.1.dist-info/RECORD"
    record.write_text(record.read_text().replace('torch/a,"b".py,', '"torch/a,""b"".py",'))
    return site


def test_records_by_distribution(site):
    records = _environment.read_records(str(quoted(site)))
    assert list(records) == ["flash-attn==1.0.post1", "torch==2.14.1"]
    assert records["torch==2.14.1"][1].path == 'torch/a,"b".py'
    assert records["flash-attn==1.0.post1"] == [("flash.so", hashlib.sha256(b"333").hexdigest(), 3)]


def test_what_the_installer_writes_about_itself_does_not_count():
    text = "\n".join(
        [
            f"a.py,{recorded(b'1')},1",
            f"x-1.dist-info/INSTALLER,{recorded(b'uv')},2",
            f"x-1.dist-info/direct_url.json,{recorded(b'{}')},2",
            f"x-1.dist-info/METADATA,{recorded(b'm')},1",
            f"__pycache__/a.cpython-312.pyc,{recorded(b'c')},1",
            f"INSTALLER,{recorded(b'mine')},4",
            "x-1.dist-info/RECORD,,",
        ]
    )
    assert [row.path for row in _environment.parse_record(text)] == ["INSTALLER", "a.py", "x-1.dist-info/METADATA"]


def test_the_digest_depends_on_every_byte_and_on_the_interpreter(site):
    quoted(site)
    first = _environment.read_records(str(site))
    same = dict(reversed(first.items()))
    assert _environment.digest("CPython 3.12.3", first) == _environment.digest("CPython 3.12.3", same)
    assert _environment.digest("CPython 3.12.3", first) != _environment.digest("CPython 3.12.4", first)
    install(site, "flash_attn-1.0.post1", {"flash.so": b"334"})
    assert _environment.digest("CPython 3.12.3", first) != _environment.digest(
        "CPython 3.12.3", _environment.read_records(str(site))
    )


def test_c23_wrong_files_by_size_and_by_content(site):
    records = _environment.read_records(str(quoted(site)))
    assert _environment.wrong_files(str(site), records, full=True) == []
    (site / "flash.so").write_bytes(b"334")
    assert _environment.wrong_files(str(site), records, full=False) == []
    assert _environment.wrong_files(str(site), records, full=True) == ["flash.so"]
    (site / "torch/__init__.py").write_bytes(b"")
    (site / "flash.so").unlink()
    assert _environment.wrong_files(str(site), records, full=False) == ["flash.so", "torch/__init__.py"]


@pytest.mark.parametrize(
    "text",
    ["a,sha256=x,1\n", "a,sha256=AAAA,many\n", f"a,{recorded(b'')},1\n" + "x" * 200000 + "\n"],
    ids=lambda t: t[:20],
)
def test_a_record_that_cannot_be_read_names_its_file(tmp_path, text):
    install(tmp_path, "x-1", {})
    (tmp_path / "x-1.dist-info/RECORD").write_text(text)
    with pytest.raises(_environment.RecordError, match="x-1.dist-info/RECORD"):
        _environment.read_records(str(tmp_path))


def test_a_record_that_is_no_text(tmp_path):
    install(tmp_path, "x-1", {})
    (tmp_path / "x-1.dist-info/RECORD").write_bytes(b"\xff\xfe")
    with pytest.raises(_environment.RecordError, match="RECORD"):
        _environment.read_records(str(tmp_path))


@given(
    st.text() | st.lists(st.tuples(st.text(), st.text(), st.text())).map(lambda rows: "\n".join(map(",".join, rows)))
)
@example("a,sha256=\u00fc,1")
@example('"a,sha256=,')
def test_only_record_errors_for_anything(text):
    with contextlib.suppress(_environment.RecordError):
        _environment.parse_record(text)


def test_distribution_names():
    assert _environment.distribution_name("Flash_Attn-2.0+cu130.dist-info") == "flash-attn==2.0+cu130"

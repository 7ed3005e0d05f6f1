# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import grp
import json
import os
import pwd
import stat

import pytest
from ansible_collections.tandem.spark.plugins.modules import files

USER, GROUP = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name


@pytest.fixture
def keep(run_module):
    def run(*items, check_mode=False, **options):
        own = [{"owner": USER, "group": GROUP, **item} for item in items]
        return run_module(files, {"files": own, **options}, check_mode=check_mode)

    return run


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def test_every_kind_and_a_second_run(keep, tmp_path):
    items = [
        {"path": str(tmp_path / "a/b"), "state": "directory", "mode": "0750"},
        {"path": str(tmp_path / "a/b/file"), "content": "text\n", "mode": "0640"},
        {"path": str(tmp_path / "a/link"), "state": "link", "target": "b/file"},
        {"path": str(tmp_path / "gone"), "state": "absent"},
        {"path": str(tmp_path / "new/deep/file"), "content": "ü"},
    ]
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone/inside").touch()
    old = os.umask(0o077)
    try:
        first = keep(*items)
    finally:
        os.umask(old)
    assert first["changed"] and first["paths"] == [item["path"] for item in items]
    assert (tmp_path / "a/link").read_text() == "text\n" and os.readlink(tmp_path / "a/link") == "b/file"
    assert mode(tmp_path / "a/b") == 0o750 and mode(tmp_path / "a/b/file") == 0o640
    assert mode(tmp_path / "new/deep") == 0o755 and mode(tmp_path / "new/deep/file") == 0o644
    assert not (tmp_path / "gone").exists()
    second = keep(*items)
    assert second["changed"] is False and second["paths"] == [] == second["diff"]


def test_check_mode_tells_the_same_and_changes_nothing(keep, tmp_path):
    items = [
        {"path": str(tmp_path / "d"), "state": "directory"},
        {"path": str(tmp_path / "d/file"), "content": "text\n"},
        {"path": str(tmp_path / "link"), "state": "link", "target": "d"},
    ]
    dry = keep(*items, check_mode=True)
    assert os.listdir(tmp_path) == []
    wet = keep(*items)
    assert (dry["changed"], dry["paths"], dry["diff"]) == (wet["changed"], wet["paths"], wet["diff"])
    assert dry["diff"][1]["before"] == "" and dry["diff"][1]["after"].endswith("\ntext\n")


def test_check_mode_before_the_account_is_made(keep, tmp_path):
    item = {"path": str(tmp_path / "f"), "content": "x", "owner": "no-such-account", "group": "no-such-group"}
    assert keep(item, check_mode=True)["changed"] is True
    refused = keep(item)
    assert refused["failed"] and "no-such-account" in refused["msg"] and "baseline" in refused["msg"]


@pytest.mark.parametrize("before", ["directory", "file", "link", "dangling", "socket"])
@pytest.mark.parametrize("after", ["directory", "file", "link"])
def test_one_kind_takes_the_place_of_another(keep, tmp_path, before, after):
    path = tmp_path / "x"
    (tmp_path / "other").write_text("keep me")
    if before == "directory":
        path.mkdir()
        (path / "inside").touch()
    elif before == "file":
        path.write_text("old")
    elif before == "socket":
        os.mkfifo(path)
    else:
        path.symlink_to("other" if before == "link" else "nowhere")
    item = {
        "directory": {"state": "directory"},
        "file": {"content": "new"},
        "link": {"state": "link", "target": "elsewhere"},
    }[after]
    assert keep({"path": str(path), **item})["changed"] is not (before == after == "directory")
    assert (path.is_dir() and not path.is_symlink()) is (after == "directory")
    assert path.is_symlink() is (after == "link")
    assert after != "file" or path.read_text() == "new"
    assert (tmp_path / "other").read_text() == "keep me"
    assert keep({"path": str(path), **item})["changed"] is False


def test_only_the_mode_is_wrong(keep, tmp_path):
    (tmp_path / "f").write_text("x")
    (tmp_path / "f").chmod(0o666)
    inode = (tmp_path / "f").stat().st_ino
    result = keep({"path": str(tmp_path / "f"), "content": "x", "mode": "0600"})
    assert result["changed"] and mode(tmp_path / "f") == 0o600 and (tmp_path / "f").stat().st_ino == inode
    assert "mode=0666" in result["diff"][0]["before"] and "mode=0600" in result["diff"][0]["after"]


def test_c51_a_secret_is_in_no_output(keep, tmp_path):
    item = {"path": str(tmp_path / "key"), "secret": "api_key", "mode": "0600"}
    for key in ("first-key-of-20-chars\n", "second-key-of-20-char\n"):
        result = keep(item, secrets={"api_key": key})
        assert result["changed"] and (tmp_path / "key").read_text() == key and mode(tmp_path / "key") == 0o600
        assert "-key-of-20" not in json.dumps(result)
    assert "(the old secret)" in result["diff"][0]["before"] and "(the new secret)" in result["diff"][0]["after"]
    assert keep(item, secrets={"api_key": key})["changed"] is False


@pytest.mark.parametrize("wrong", ["420", "644", "9", "0o644", "u+r", "0999", "rw-r--r--"])
def test_a_mode_that_is_no_octal_string(keep, tmp_path, wrong):
    result = keep({"path": str(tmp_path / "f"), "content": "x", "mode": wrong})
    assert result["failed"] and wrong in result["msg"] and "0644" in result["msg"]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("item", "word"),
    [
        ({}, "either content or secret"),
        ({"content": "x", "secret": "k"}, "either content or secret"),
        ({"secret": "absent"}, "absent"),
        ({"state": "link"}, "target"),
        ({"state": "hardlink"}, "hardlink"),
    ],
    ids=str,
)
def test_entries_that_cannot_be(keep, tmp_path, item, word):
    result = keep({"path": str(tmp_path / "first"), "content": "x"}, {"path": str(tmp_path / "x"), **item})
    assert result["failed"] and word in result["msg"]
    assert os.listdir(tmp_path) == []


def test_a_path_that_cannot_be_written_is_named(keep, tmp_path):
    (tmp_path / "file").touch()
    result = keep({"path": str(tmp_path / "file/below"), "content": "x"})
    assert result["failed"] and str(tmp_path / "file/below") in result["msg"]


def test_the_pointer_of_a_release_is_switched(keep, tmp_path):
    for release in ("one", "two"):
        (tmp_path / release).mkdir()
        (tmp_path / release / "f").write_text(release)
        keep({"path": str(tmp_path / "current"), "state": "link", "target": str(tmp_path / release)})
        assert (tmp_path / "current/f").read_text() == release
    assert (tmp_path / "one/f").read_text() == "one"
    assert sorted(os.listdir(tmp_path)) == ["current", "one", "two"]

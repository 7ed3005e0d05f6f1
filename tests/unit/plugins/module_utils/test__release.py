# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest
from ansible_collections.tandem.spark.plugins.module_utils import _manifest, _release
from ansible_collections.tandem.spark.plugins.modules import files, model_release, release_pointer

RANK = {"deployment": "d" * 64, "argv": ["python", "-m", "x", "--served-model-name", "lab"]}


@pytest.fixture
def root(tmp_path):
    """A node with the models one, two, three and a release of each; three is current, two is previous."""
    for number, name in enumerate(("one", "two", "three"), 1):
        model = tmp_path / "models" / name
        model.mkdir(parents=True)
        (model / "model.safetensors").write_bytes(name.encode() * 2000)
        (model / _manifest.FILE_NAME).write_text("{}")
        (tmp_path / f"models/.{name}.verified.json").write_text("{}")
        release = tmp_path / "releases" / f"r-{name}"
        release.mkdir(parents=True)
        (release / "rank.json").write_text(json.dumps({**RANK, "rank": number}))
        (release / "model").symlink_to(model)
        (release / "engine").symlink_to(tmp_path / "engines/sglang")
    (tmp_path / "current").symlink_to(tmp_path / "releases/r-three")
    (tmp_path / "previous").symlink_to(tmp_path / "releases/r-two")
    return tmp_path


def names(root):
    return [os.path.basename(os.readlink(root / pointer)) for pointer in ("current", "previous")]


def test_pointers_are_exchanged_and_exchanged_back(run_module, root):
    look = run_module(release_pointer, {"root": str(root)})
    assert look["changed"] is False and look["previous"]["model"] == str(root / "models/two")
    assert look["current"]["served_name"] == "lab" and look["current"]["deployment"] == "d" * 64
    wanted = {"root": str(root), "release": look["previous"]["name"], "state": "current"}
    would = run_module(release_pointer, wanted, check_mode=True)
    assert would["changed"] is True and names(root) == ["r-three", "r-two"]
    done = run_module(release_pointer, wanted)
    assert done["changed"] is True and names(root) == ["r-two", "r-three"]
    assert done["diff"]["before"] == "r-three\n" and done["current"]["name"] == "r-two" and done["seconds"] < 1
    assert run_module(release_pointer, wanted)["changed"] is False
    run_module(release_pointer, {**wanted, "release": "r-three"})
    assert names(root) == ["r-three", "r-two"]
    assert not [name for name in os.listdir(root) if "tandem-" in name]


def test_without_exchange_the_current_pointer_is_last(root, monkeypatch):
    order = []
    monkeypatch.setattr(_release, "_exchange", lambda *_names: False)
    point = _release._point
    monkeypatch.setattr(_release, "_point", lambda *words: (order.append(words[1]), point(*words)))
    assert _release.switch(str(root), "r-two") and names(root) == ["r-two", "r-three"]
    assert order == ["previous", "current"]


def test_a_release_that_is_not_there_is_refused(run_module, root):
    result = run_module(release_pointer, {"root": str(root), "release": "r-four", "state": "current"})
    assert result["failed"] and "r-four: found no rank.json" in result["msg"] and names(root) == ["r-three", "r-two"]


def test_no_pointers_are_null(run_module, tmp_path):
    look = run_module(release_pointer, {"root": str(tmp_path)})
    assert look["current"] is None and look["previous"] is None


def test_files_keeps_what_a_link_pointed_to(run_module, tmp_path):
    def link(target):
        entry = {"path": str(tmp_path / "current"), "state": "link", "target": target}
        return run_module(files, {"files": [{**entry, "keep": str(tmp_path / "previous")}]})

    link("/one")
    assert not (tmp_path / "previous").is_symlink()
    link("/two")
    assert os.readlink(tmp_path / "previous") == "/one"
    assert link("/two")["changed"] is False and os.readlink(tmp_path / "previous") == "/one"
    link("/three")
    assert (os.readlink(tmp_path / "current"), os.readlink(tmp_path / "previous")) == ("/three", "/two")


# --- retention


def prune(run_module, root, check_mode=False, **options):
    arguments = {"path": str(root / "models"), "root": str(root), "state": "pruned", **options}
    return run_module(model_release, arguments, check_mode=check_mode)


def there(root):
    return sorted(path.name for path in (root / "models").iterdir() if not path.name.startswith("."))


def test_old_models_make_room_and_what_a_pointer_names_stays(run_module, root):
    would = prune(run_module, root, check_mode=True)
    assert would["removed"] == [str(root / "models/one"), str(root / "releases/r-one")]
    assert would["changed"] and there(root) == ["one", "three", "two"]
    done = prune(run_module, root)
    assert done["removed"] == would["removed"] and there(root) == ["three", "two"]
    assert sorted(os.listdir(root / "releases")) == ["r-three", "r-two"]
    assert not (root / "models/.one.verified.json").exists()
    assert prune(run_module, root)["changed"] is False


def test_more_stay_while_they_are_needed(run_module, root):
    done = prune(run_module, root, keep=1, needed=["one"])
    assert done["changed"] is False
    assert set(done["kept"]) == {"one", "two", "three"} and "previous points at it" in done["kept"]["two"]


def test_what_the_running_rank_was_started_from_stays(run_module, root, monkeypatch, tmp_path):
    digest = hashlib.sha256((root / "releases/r-one/rank.json").read_bytes()).hexdigest()
    (tmp_path / "rank.json").write_text(json.dumps({"rank_sha256": digest}))
    monkeypatch.setattr(model_release, "RANK_STATE", str(tmp_path / "rank.json"))
    assert "running rank" in prune(run_module, root)["kept"]["one"] and "one" in there(root)
    result = run_module(model_release, {"path": str(root / "models/one"), "root": str(root), "state": "absent"})
    assert result["failed"] and "the running rank was started from it" in result["msg"] and "one" in there(root)


HOLD = "import mmap, os, sys\nf = open(sys.argv[2], 'rb')\n"
HOLDERS = {
    "open": "",
    "mapped": "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\nf.close()\n",
    "directory": "f.close()\nos.chdir(os.path.dirname(sys.argv[2]))\n",
}


@pytest.mark.parametrize("how", HOLDERS)
def test_what_a_process_has_open_stays_and_the_process_is_named(run_module, root, how):
    script = f"{HOLD}{HOLDERS[how]}print('held', flush=True)\nsys.stdin.read()\n"
    path = str(root / "models/one/model.safetensors")
    with subprocess.Popen(
        [sys.executable, "-c", script, "x", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        done = prune(run_module, root)
        assert done["changed"] is False and f"process {holder.pid} (" in done["kept"]["one"]
        arguments = {"path": str(root / "models/one"), "root": str(root), "state": "absent"}
        refused = run_module(model_release, arguments)
        assert refused["failed"] and f"in use by process {holder.pid} (" in refused["msg"] and "one" in there(root)
        holder.stdin.close()
    assert run_module(model_release, arguments)["removed"] == [str(root / "models/one"), str(root / "releases/r-one")]
    assert run_module(model_release, arguments)["changed"] is False


def test_a_file_is_known_by_its_inode_where_its_path_is_another(root, tmp_path):
    other = tmp_path / "seen-in-a-container"
    os.link(root / "models/one/model.safetensors", other)
    script = "import sys\nf = open(sys.argv[1], 'rb')\nprint('held', flush=True)\nsys.stdin.read()\n"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(other)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        assert [user.split()[0] for user in _release.users(str(root / "models/one"))] == [str(holder.pid)]
        holder.stdin.close()


def test_keeping_none_is_refused(run_module, root):
    assert "keep: found 0, wanted 1 or more" in prune(run_module, root, keep=0)["msg"]


def test_stagings_and_strangers_are_left_alone(run_module, root):
    for name in (".staging-four", "notes"):
        (root / "models" / name).mkdir()
    prune(run_module, root, keep=1)
    assert (root / "models/.staging-four").exists() and (root / "models/notes").exists()


@pytest.mark.parametrize(
    ("keep", "protected", "gone"),
    [(2, [], ["a"]), (1, ["a"], ["b", "c"]), (2, ["a"], ["b"]), (1, ["a", "b"], ["c"]), (9, [], [])],
)
def test_surplus(keep, protected, gone):
    assert _release.surplus({"a": 1.0, "b": 2.0, "c": 3.0}, keep, protected) == gone


def test_served_names():
    assert _release.served_name(["llama-server", "--alias", "m"]) == "m"
    assert _release.served_name(["x", "--served-model-name"]) is None

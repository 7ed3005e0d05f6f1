# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The tarball and the wheel: what is in them, and that each works with no checkout around."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WHEEL_ROOT = "ansible_collections/tandem/spark"
STAGES = ["preflight", "baseline", "fabric", "engine", "model", "serve", "accept"]
# Made by the build.
MANIFESTS = {"MANIFEST.json", "FILES.json"}
# No part of an installed collection.
LEFT_OUT = ("collections/", ".ci/", "molecule", "galaxy.yml")
# Of the wheel; an example inventory is what a user copies first, and those of the lab need the checkout.
IN_WHEEL = ("meta/", "plugins/", "roles/", "playbooks/", "recipes/", "inventories/")


def run(*words, cwd, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "PYTHON"))}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**kept, "ANSIBLE_HOME": str(cwd), "ANSIBLE_NOCOLOR": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def repository():
    """Names of the repository's files, new ones included and ignored ones not."""
    words = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not checked: this is no git checkout")
    return {name for name in done.stdout.split("\n") if name and os.path.lexists(ROOT / name)}


@pytest.fixture(scope="module")
def tarball(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tarball")
    galaxy = Path(sys.executable).parent / "ansible-galaxy"
    run(galaxy, "collection", "build", ROOT, "--output-path", directory, cwd=directory)
    (path,) = directory.glob("tandem-spark-*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", directory, ROOT, cwd=directory)
    (path,) = directory.glob("tandem_spark-*.whl")
    return path


class Controller:
    """An environment with ansible-core and without this checkout, in a directory of its own."""

    def __init__(self, directory):
        self.directory = directory
        venv.create(directory / "venv", symlinks=True)
        self.python = directory / "venv/bin/python"
        (self.site,) = directory.glob("venv/lib/python*/site-packages")
        self.paths = {}

    def lend(self):
        """Lend it the packages of this environment. A .pth file in there, the checkout's, does not count here."""
        (self.site / "lent.pth").write_text("\n".join(site.getsitepackages()) + "\n")

    def ansible(self, program, *arguments):
        return run(self.python, "-m", "ansible", program, *arguments, cwd=self.directory, **self.paths)

    def prove(self, collection):
        """The collection installed at *collection* is found, and its recipes are."""
        inventory = self.directory / "inventories/dual_spark"
        shutil.copytree(collection / "inventories/dual_spark", inventory)
        tasks = self.ansible("playbook", "tandem.spark.site", "-i", inventory, "--list-tasks")
        for stage in STAGES:
            assert f"tandem.spark.{stage} : " in tasks or f"    {stage} : " in tasks, tasks
        assert str(collection) in self.ansible("doc", "tandem.spark.deployment")
        assert str(collection) in self.ansible("doc", "-t", "filter", "tandem.spark.hosts_map")
        module = ["spark[0]", "-i", inventory, "-m", "tandem.spark.deployment"]
        assert '"head": "spark-a"' in self.ansible("adhoc", *module, "-a", "recipe={{ tandem_recipe }}")


def test_the_tarball_has_the_repositorys_files_and_no_others(tarball, repository):
    with tarfile.open(tarball) as packed:
        names = {member.name for member in packed.getmembers() if not member.isdir()}
    assert names - MANIFESTS == {name for name in repository if not name.startswith(LEFT_OUT)}


def test_the_tarball_works_where_it_is_installed(tarball, tmp_path):
    controller = Controller(tmp_path)
    controller.lend()
    controller.paths = {"ANSIBLE_COLLECTIONS_PATH": str(tmp_path / "collections")}
    controller.ansible("galaxy", "collection", "install", tarball, "-p", tmp_path / "collections", "--offline")
    controller.prove(tmp_path / "collections" / WHEEL_ROOT)


def test_the_wheel_has_what_the_collection_is_made_of(wheel, repository):
    with zipfile.ZipFile(wheel) as packed:
        names = {name[len(WHEEL_ROOT) + 1 :] for name in packed.namelist() if name.startswith(WHEEL_ROOT)}
        others = {name for name in packed.namelist() if not name.startswith(WHEEL_ROOT)}
    wanted = {name for name in repository if name.startswith(IN_WHEEL) and not name.startswith("inventories/lab_")}
    assert names == wanted | {"galaxy.yml", "README.md", "LICENSE", "CHANGELOG.md"}
    assert all(".dist-info/" in name for name in others)


def test_the_wheel_works_where_it_is_installed(wheel, tmp_path):
    controller = Controller(tmp_path)
    pip = [sys.executable, "-m", "pip", "--python", controller.python, "--disable-pip-version-check"]
    run(*pip, "install", "-q", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    controller.lend()
    controller.prove(controller.site / WHEEL_ROOT)

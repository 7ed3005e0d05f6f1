# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guests' image: built once, named by a hash over everything that defines it, published by one rename."""

from __future__ import annotations

import configparser
import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import LabError
from .host import locked, missing_tools, require_room, run
from .names import LAB_DIR, cache_dir

RECIPE = 1  # raise when the way of building changes in a way that no input shows
OVERLAY = LAB_DIR / "image"
STANDINS = LAB_DIR / "standins"
BUILD_MB = 1500
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_PACKAGES = (
    "systemd systemd-sysv systemd-resolved dbus udev libpam-systemd libnss-systemd openssh-server sudo "
    "python3 python3-apt python3-venv rsync iproute2 iputils-ping ethtool nftables netplan.io chrony "
    "curl git ca-certificates procps kmod xz-utils libnuma1 libgomp1"
)
_MASKED = (
    # nothing in a guest may wake up by itself, wait for the network or fight the host
    "apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service dpkg-db-backup.timer fstrim.timer "
    "console-getty.service getty@.service systemd-networkd-wait-online.service systemd-timesyncd.service "
    "systemd-udevd.service systemd-udev-trigger.service systemd-resolved.service"
)
PACKAGES = _PACKAGES.split()
MASKED = _MASKED.split()
ENABLED = ("tandem-lab-boot.service", "tandem-lab-trim.service", "systemd-networkd.service", "ssh.service")
LEFT_OUT = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*")
PROXY_KEYS = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
CERTIFICATE_KEYS = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS")
_LOOPBACK = re.compile(r"//([^/@]*@)?(localhost|127\.|\[::1\])", re.IGNORECASE)


@dataclass
class Recipe:
    """All that an image depends on."""

    suite: str
    arch: str
    sources: list[str]
    apt: list[str]
    certificates: dict[str, str]
    environment: dict[str, str]
    pip: str
    pip_constraints: str
    files: dict[str, str] = field(default_factory=dict)  # overlay and stand-ins: path -> mode and digest

    def digest(self) -> str:
        everything: dict[str, Any] = {
            "recipe": RECIPE,
            "packages": PACKAGES,
            "masked": MASKED,
            "enabled": ENABLED,
            "left_out": LEFT_OUT,
            **vars(self),
        }
        return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()

    @property
    def tag(self) -> str:
        return f"{self.suite}-{self.arch}-{self.digest()[:12]}"


def images_dir() -> Path:
    return cache_dir() / "images"


def recipe(suite: str = "bookworm") -> Recipe:
    pip, constraints = _pip_settings()
    return Recipe(
        suite=suite,
        arch=_architecture(),
        sources=_apt_sources(suite),
        apt=_apt_settings(),
        certificates={
            path.name: path.read_text() for path in sorted(Path("/usr/local/share/ca-certificates").rglob("*.crt"))
        },
        environment={
            key: value
            for key in PROXY_KEYS
            if (value := os.environ.get(key)) and not _LOOPBACK.search(f"//{value.rpartition('//')[2]}")
        },
        pip=pip,
        pip_constraints=constraints,
        files=dict(_fingerprints()),
    )


def ensure(suite: str = "bookworm") -> Path:
    """The image's root directory; built now if it is not there yet."""
    wanted = recipe(suite)
    target = images_dir() / wanted.tag
    if not (target / "recipe.json").exists():
        with locked(images_dir() / ".lock", "another build of an image"):
            if not (target / "recipe.json").exists():
                _build(wanted, target)
    return target / "root"


def garbage(in_use: set[str], suites: set[str]) -> list[Path]:
    """Images that no lab uses and no current recipe asks for, and what killed builds left."""
    keep = {recipe(suite).tag for suite in suites} | in_use
    if not images_dir().is_dir():
        return []
    return sorted(path for path in images_dir().iterdir() if path.is_dir() and path.name not in keep)


def remove(path: Path) -> None:
    with locked(images_dir() / ".lock", "a build of an image"):
        # not half an image under a valid name, should this be interrupted
        (path / "recipe.json").unlink(missing_ok=True)
        shutil.rmtree(path)


# ---- what the host passes on ---------------------------------------------------------------------------------------


def _architecture() -> str:
    machine = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def _apt_sources(suite: str) -> list[str]:
    """The host's own Debian archive as one-line sources, for the guests' suite; empty when the host is no Debian."""
    release = _os_release()
    host_suite = release.get("VERSION_CODENAME", "")
    if release.get("ID") != "debian" or not host_suite:
        return []
    found: list[str] = []
    for uri, suites, components, signed_by in _host_sources():
        for name in suites:
            base, dash, pocket = name.partition("-")
            if base != host_suite or pocket not in {"", "updates", "security"}:
                continue
            option = f"[signed-by={signed_by}] " if signed_by.startswith("/usr/share/keyrings/") else ""
            line = f"deb {option}{uri} {suite}{dash}{pocket} {' '.join(c for c in components if c == 'main')}".rstrip()
            if line.endswith(" main") and line not in found:
                found.append(line)
    return found


def _os_release() -> dict[str, str]:
    with contextlib.suppress(OSError):
        lines = Path("/etc/os-release").read_text().splitlines()
        return {key: value.strip('"') for key, _equals, value in (line.partition("=") for line in lines)}
    return {}


def _host_sources() -> Iterator[tuple[str, list[str], list[str], str]]:
    """(URI, suites, components, Signed-By) of each binary source of the host, in either format."""
    etc = Path("/etc/apt")
    for path in [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*.list"))]:
        if not path.is_file():
            continue
        for line in path.read_text().splitlines():
            match = re.match(r"deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s+([^#]*)", line)
            if match:
                options, uri, suite, components = match.groups()
                signed = re.search(r"signed-by=(\S+)", options or "")
                yield uri, [suite], components.split(), signed.group(1) if signed else ""
    for path in sorted((etc / "sources.list.d").glob("*.sources")):
        for block in re.split(r"\n\s*\n", path.read_text()):
            lines = [line for line in block.splitlines() if not line.startswith("#")]
            fields: dict[str, str] = {}
            key = ""
            for line in lines:
                if line[:1].isspace():
                    fields[key] = fields.get(key, "") + " " + line.strip()
                elif ":" in line:
                    key, _colon, value = line.partition(":")
                    key = key.strip().lower()
                    fields[key] = value.strip()
            if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
                continue
            for uri in fields.get("uris", "").split():
                yield (
                    uri,
                    fields.get("suites", "").split(),
                    fields.get("components", "").split(),
                    fields.get("signed-by", ""),
                )


def _apt_settings() -> list[str]:
    """The host's settings that decide whether and how its archive can be reached."""
    wanted = re.compile(
        r"Acquire::(Check-Valid-Until|Check-Date|Languages|Retries|ForceIPv4|(http|https)::[^ ]*) \"", re.IGNORECASE
    )
    if missing_tools(["apt-config"]):
        return []
    lines = [line for line in run("apt-config", "dump").stdout.splitlines() if wanted.match(line)]
    return [line.rstrip(";") for line in lines if not line.endswith('"";')]


def _pip_settings() -> tuple[str, str]:
    """pip.conf for the guests (index addresses that a guest can reach), and the constraints it refers to."""
    kept: dict[str, str] = {"cert": BUNDLE}
    constraints: list[str] = []
    files = ["/etc/xdg/pip/pip.conf", "/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf"]
    for path in (Path(name).expanduser() for name in files):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path)
        except configparser.Error:
            continue
        for section in ("global", "install"):
            for key, value in parser.items(section) if parser.has_section(section) else ():
                words = value.split()
                if key in {"index-url", "extra-index-url"}:
                    reachable = [w for w in words if w.startswith(("http://", "https://")) and not _LOOPBACK.search(w)]
                    if reachable:
                        kept[key] = " ".join(reachable)
                elif key in {"trusted-host", "timeout", "retries"}:
                    kept[key] = " ".join(words)
                elif key == "constraint":
                    constraints += [Path(word).read_text() for word in words if Path(word).is_file()]
    if constraints:
        kept["constraint"] = "/etc/pip-constraints.txt"
    return "[global]\n" + "".join(f"{key} = {value}\n" for key, value in kept.items()), "".join(constraints)


def _overlay_files() -> list[Path]:
    return sorted(path for path in OVERLAY.rglob("*") if path.is_file())


def _fingerprints() -> Iterator[tuple[str, str]]:
    for path in [*_overlay_files(), STANDINS / "nvidia_smi.py", STANDINS / "libcuda.c"]:
        mode = "x" if os.access(path, os.X_OK) else "-"
        yield str(path.relative_to(LAB_DIR)), f"{mode} {hashlib.sha256(path.read_bytes()).hexdigest()}"


# ---- building ------------------------------------------------------------------------------------------------------


def _build(wanted: Recipe, target: Path) -> None:
    missing = missing_tools(["mmdebstrap", "gcc"])
    if missing:
        raise LabError(f"building the image needs {' and '.join(missing)}; run `tests/lab/lab setup`")
    require_room(images_dir(), BUILD_MB, "building the guests' image")
    print(f"building image {wanted.tag} (one to two minutes, once)", flush=True)
    started = time.monotonic()
    work = images_dir() / f"{wanted.tag}.part-{secrets.token_hex(4)}"
    work.mkdir(parents=True)
    work.chmod(0o755)
    try:
        _bootstrap(wanted, work / "root")
        _customise(wanted, work / "root")
        (work / "recipe.json").write_text(json.dumps(vars(wanted), indent=1))
        if target.exists():  # a removal that was interrupted
            shutil.rmtree(target)
        work.rename(target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    print(f"image {wanted.tag} is ready after {time.monotonic() - started:.0f} s", flush=True)


def _bootstrap(wanted: Recipe, root: Path) -> None:
    argv = ["mmdebstrap", "--mode=root", "--variant=minbase", f"--arch={wanted.arch}"]
    argv.append(f"--include={','.join(PACKAGES)}")
    argv += [f"--aptopt={setting}" for setting in [*wanted.apt, 'APT::Install-Recommends "false"']]
    argv += [f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT] + ["--dpkgopt=force-unsafe-io"]
    argv += [wanted.suite, str(root), *wanted.sources]
    done = run(*argv, check=False, timeout=1500)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:", "dpkg:", "Err"))]
        raise LabError(f"mmdebstrap failed: {'; '.join(lines[-4:]) or done.stderr[-400:]}")


def _customise(wanted: Recipe, root: Path) -> None:
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    (root / "etc/machine-id").write_text("")
    run("chroot", root, "dpkg-divert", "--quiet", "--local", "--rename", "--divert", "/usr/bin/udevadm.distrib",
        "--add", "/usr/bin/udevadm")  # fmt: skip
    for path in _overlay_files():
        _install(path, root / path.relative_to(OVERLAY), executable=os.access(path, os.X_OK))
    _install(STANDINS / "nvidia_smi.py", root / "usr/bin/nvidia-smi", executable=True)
    _libcuda(root)
    units = root / "etc/systemd/system"
    for unit in MASKED:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    run("systemctl", f"--root={root}", "enable", *ENABLED)
    _host_settings(wanted, root)
    # mmdebstrap leaves the package lists empty but their folder new: the apt module's cache_valid_time would trust them
    os.utime(root / "var/lib/apt/lists", (0, 0))


def _install(source: Path, destination: Path, executable: bool) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    destination.write_bytes(source.read_bytes())
    destination.chmod(0o755 if executable else 0o644)


def _libcuda(root: Path) -> None:
    triplet = run("gcc", "-dumpmachine").stdout.strip()
    folder = next((path for path in (root / "usr/lib" / triplet, root / "usr/lib") if path.is_dir()), root / "usr/lib")
    run("gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1",
        STANDINS / "libcuda.c")  # fmt: skip
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    run("chroot", root, "ldconfig")


def _host_settings(wanted: Recipe, root: Path) -> None:
    """Certificates, proxies, apt and pip settings, so that a guest reaches what its host reaches."""
    if wanted.certificates:
        folder = root / "usr/local/share/ca-certificates"
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in wanted.certificates.items():
            (folder / name).write_text(text)
        run("chroot", root, "update-ca-certificates")
    environment = {**dict.fromkeys(CERTIFICATE_KEYS, BUNDLE), **wanted.environment}
    (root / "etc/environment").write_text("".join(f"{key}={value}\n" for key, value in environment.items()))
    # pam_env gives /etc/environment to logins; units get it from the manager
    folder = root / "etc/systemd/system.conf.d"
    folder.mkdir(parents=True, exist_ok=True)
    assignments = " ".join(f'"{key}={value.replace("%", "%%")}"' for key, value in environment.items())
    (folder / "lab.conf").write_text(f"[Manager]\nDefaultEnvironment={assignments}\n")
    for leftover in (root / "etc/apt/apt.conf.d").glob("99mmdebstrap"):
        leftover.unlink()
    settings = [line for line in wanted.apt if not _LOOPBACK.search(line)]
    text = "".join(f"{line};\n" for line in [*settings, 'APT::Install-Recommends "false"'])
    (root / "etc/apt/apt.conf.d/90lab").write_text(text)
    (root / "etc/pip.conf").write_text(wanted.pip)
    if wanted.pip_constraints:
        (root / "etc/pip-constraints.txt").write_text(wanted.pip_constraints)

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What a machine is, out of the files and tools that say so. Pure functions; a missing source is None, not false."""

from __future__ import annotations

import re
import typing as t
import urllib.parse

from ansible_collections.tandem.spark.plugins.module_utils import _gpu, _values, _version

SPARK_NAME = "DGX Spark"
FASTOS_NAME = "DGX SPARK FASTOS"
PRODUCT_NAMES = ("NVIDIA_DGX_Spark", "DGXSpark")
ARCHITECTURES = ("aarch64", "arm64")
CAPABILITY = "12.1"

# Markers that speak about the machine; the two release files speak about the system that is installed on it.
HARDWARE_MARKERS = ("pci", "gpu", "product_family", "product_name")
# Of these, the ones whose absence speaks against a Spark. Makers use other product names, old kernels show no family.
DECIDING_MARKERS = ("pci", "gpu")

_VENDORS = (
    ("ASUS", ("asus", "gx10")),
    ("Dell", ("dell",)),
    ("Lenovo", ("lenovo", "thinkstationpgx")),
    ("HP", ("hp ", "hp\n", "hewlett", "zgx nano")),
    ("MSI", ("micro-star", "msi", "edgexpert", "ms-c931")),
    ("Gigabyte", ("gigabyte", "giga-byte", "ai top atom")),
    ("Acer", ("acer", "veriton")),
    ("NVIDIA", ("nvidia",)),
)


def dgx_release(content: str | None) -> dict[str, t.Any]:
    """/etc/dgx-release: every update appends to it, so the last value of a key counts. The serial number stays out."""
    values = _values.assignments(content)
    return {
        "name": values.get("DGX_NAME"),
        "pretty_name": values.get("DGX_PRETTY_NAME"),
        "platform": values.get("DGX_PLATFORM"),
        "factory": values.get("DGX_SWBUILD_VERSION"),
        "factory_date": values.get("DGX_SWBUILD_DATE"),
        "ota": values.get("DGX_OTA_VERSION"),
        "ota_date": values.get("DGX_OTA_DATE"),
        "commit": values.get("DGX_COMMIT_ID"),
    }


def fastos_release(content: str | None) -> dict[str, t.Any]:
    """/etc/fastos-release, the image that is also on machines of other makers."""
    values = _values.assignments(content)
    return {"name": values.get("NAME"), "version": values.get("VERSION"), "build_type": values.get("BUILD_TYPE")}


def vendor(dmi: t.Mapping[str, str | None], dgx_platform: str | None) -> str | None:
    """The maker's name as a label; nothing is decided by it."""
    for words in ((dmi.get("sys_vendor"),), (dmi.get("product_name"), dmi.get("board_name")), (dgx_platform,)):
        said = "\n".join(word for word in words if word).lower() + "\n"
        for name, signs in _VENDORS:
            if any(sign in said for sign in signs):
                return name
    return dmi.get("sys_vendor")


def gpu_marker(state: str, devices: t.Sequence[t.Mapping[str, t.Any]]) -> bool | None:
    """Whether nvidia-smi names a GB10 of capability 12.1; None when it told nothing."""
    if state != "ok" or not devices:
        return False if state == "no_devices" else None
    told = [(entry.get("name"), entry.get("compute_capability")) for entry in devices if entry.get("name")]
    if not told:
        return None
    return any(name in _gpu.INTEGRATED_NAMES and capability in (CAPABILITY, None) for name, capability in told)


def pci_markers(devices: t.Sequence[t.Mapping[str, str]] | None) -> tuple[bool | None, bool | None]:
    """Whether the PCI bus shows the GPU of a Spark, and whether it shows that of an RTX Spark N1X."""
    if devices is None:
        return None, None
    identities = {entry.get("id") for entry in devices}
    return bool(identities & set(_gpu.INTEGRATED_PCI)), bool(identities & set(_gpu.RTX_SPARK_PCI))


def equals(value: str | None, known: bool | None, wanted: t.Container[str]) -> bool | None:
    """Three values: *known* false means absent, *known* None or a value that cannot be read means could not tell."""
    if value is not None:
        return value in wanted
    return False if known is False else None


def identify(markers: t.Mapping[str, bool | None], architecture: str | None) -> dict[str, t.Any]:
    """Decide from the markers whether this is a DGX Spark.

    Two positive markers are wanted. One alone is enough when it is a hardware marker and neither the PCI bus nor
    nvidia-smi says otherwise: makers name their machines differently, and an image may have been replaced. The
    architecture must be aarch64, and the markers of other machines (``n1x``, ``jetson``) rule it out. Where nothing
    could be asked the answer is None.
    """
    positive = [name for name in (*HARDWARE_MARKERS, "dgx_release", "fastos_release") if markers.get(name) is True]
    contrary = [name for name in DECIDING_MARKERS if markers.get(name) is False]
    supporting = [name for name in DECIDING_MARKERS if markers.get(name) is True]
    other = next((name for name in ("n1x", "jetson") if markers.get(name) is True), None)
    contradictions = []
    if positive and other:
        contradictions.append(f"{', '.join(positive)} say DGX Spark, and the machine is marked as {other}")
    if positive and architecture is not None and architecture not in ARCHITECTURES:
        contradictions.append(f"{', '.join(positive)} say DGX Spark on {architecture}")
    if positive and contrary:
        contradictions.append(f"{', '.join(positive)} say DGX Spark, {', '.join(contrary)} say otherwise")
    verdict: bool | None
    if other or (architecture is not None and architecture not in ARCHITECTURES):
        verdict = False
    elif not positive:
        verdict = False if contrary else None
    elif architecture is None or (contrary and not supporting):
        verdict = None
    elif len(positive) >= 2:
        verdict = True
    else:
        verdict = True if positive[0] in HARDWARE_MARKERS and not contrary else None
    kind = "gb10" if verdict else (None if verdict is None else (other or "other"))
    return {"is_spark": verdict, "platform": kind, "basis": positive, "contradictions": contradictions}


def image_replaced(markers: t.Mapping[str, bool | None]) -> bool | None:
    """Whether the machine is a Spark by its hardware while both release files of the factory image are missing."""
    if any(markers.get(name) is True for name in ("dgx_release", "fastos_release")):
        return False
    if not any(markers.get(name) is True for name in HARDWARE_MARKERS):
        return None
    return True if markers.get("dgx_release") is False and markers.get("fastos_release") is False else None


def kernels(boot: t.Sequence[str] | None, packages: t.Mapping[str, t.Mapping[str, t.Any]] | None) -> str | None:
    """The newest kernel that is installed: files in /boot, else packages ``linux-image-VERSION``."""
    found = [name[8:] for name in boot or [] if name.startswith("vmlinuz-")]
    if not found:
        found = [name[12:] for name in packages or {} if re.match(r"^linux-image-\d", name)]
    return _version.newest(found)


def lscpu(content: str | None) -> dict[str, t.Any]:
    """CPU models with their number of cores; a machine with two kinds of cores prints two blocks."""
    models: list[dict[str, t.Any]] = []
    flags: set[str] = set()
    known: dict[str, str] = {}
    for line in (content or "").splitlines():
        name, colon, value = line.partition(":")
        name, value = name.strip(), value.strip()
        if not colon:
            continue
        if name == "Model name":
            models.append({"name": value or None, "cores": None, "maximum_mhz": None})
        elif name in ("Core(s) per socket", "Core(s) per cluster") and models:
            models[-1]["cores"] = _values.integer(value)
        elif name == "CPU max MHz" and models:
            models[-1]["maximum_mhz"] = _values.number(value)
        elif name == "Flags":
            flags |= set(value.split())
        else:
            known.setdefault(name, value)
    return {
        "architecture": _values.text(known.get("Architecture")),
        "count": _values.integer(known.get("CPU(s)")),
        "models": models,
        "aes": ("aes" in flags) if flags else None,
    }


def uname(content: str | None) -> dict[str, str | None]:
    """Kernel release and machine out of ``uname -a``, with or without system and host name in front."""
    words = [word for word in (content or "").split() if word != "GNU/Linux"]
    release = next((word for word in words if re.match(r"^\d+\.\d+\.\d+", word)), None)
    machine = words[-1] if release and words[-1] != release else None
    return {"kernel": release, "architecture": machine}


def chrony(content: str | None) -> dict[str, t.Any] | None:
    """``chronyc -c -n tracking``; None when it did not answer."""
    for line in (content or "").splitlines():
        cells = line.strip().split(",")
        if len(cells) < 14:
            continue
        stratum, offset, leap = _values.integer(cells[2]), _values.number(cells[4]), cells[13].strip()
        if leap not in ("Normal", "Insert second", "Delete second", "Not synchronised"):
            return None
        return {
            "synchronised": leap != "Not synchronised",
            "source": "chronyc tracking",
            "reference": cells[1].strip() or None,
            "stratum": stratum,
            "offset_seconds": offset,
        }
    return None


def timedatectl(content: str | None) -> dict[str, t.Any] | None:
    """``timedatectl show``; None when it did not answer."""
    values = _values.assignments(content)
    if "NTPSynchronized" not in values:
        return None
    return {
        "synchronised": _values.truth(values["NTPSynchronized"]),
        "source": "timedatectl",
        "reference": None,
        "stratum": None,
        "offset_seconds": None,
    }


def nvcc_version(content: str | None) -> str | None:
    """``13.0.88`` out of ``nvcc --version`` or ``ptxas --version``."""
    match = re.search(r"release (\d+\.\d+), V(\d+(?:\.\d+)+)", content or "", re.ASCII)
    return match.group(2) if match else None


def gpu_codes(content: str | None) -> list[str] | None:
    """``nvcc --list-gpu-code``, or None when it printed something else."""
    words = (content or "").split()
    return words if words and all(re.match(r"^(sm|lto)_\d+[a-z]?$", word) for word in words) else None


def choose_toolkit(candidates: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, t.Any] | None:
    """The compiler to build with: the newest that told its version, whatever comes first on PATH."""
    best: t.Mapping[str, t.Any] | None = None
    for candidate in candidates:
        if candidate.get("version") is None:
            continue
        if best is None or _version.compare(candidate["version"], best["version"]) == 1:
            best = candidate
    return dict(best) if best else None


def refused_target(printed: str) -> bool:
    """True when ptxas or nvcc said that it does not know the GPU (triton-lang/triton#8539)."""
    return "is not defined for option 'gpu-name'" in printed or "Unsupported gpu architecture" in printed


def listening(contents: t.Iterable[str | None]) -> dict[int, list[str]] | None:
    """Ports in state LISTEN with the socket inodes, out of /proc/net/tcp and tcp6; None when neither could be read."""
    found: dict[int, list[str]] = {}
    told = False
    for content in contents:
        if content is None or "local_address" not in content:
            continue
        told = True
        for line in content.splitlines()[1:]:
            cells = line.split()
            if len(cells) < 10 or cells[3] != "0A":
                continue
            try:
                port = int(cells[1].rpartition(":")[2], 16)
            except ValueError:
                continue
            found.setdefault(port, []).append(cells[9])
    return found if told else None


def earlyoom(content: str | None) -> dict[str, t.Any]:
    """The thresholds in /etc/default/earlyoom. Without ``-m`` and ``-M`` earlyoom acts below 10 % of free memory."""
    arguments = _values.assignments(content).get("EARLYOOM_ARGS") if content is not None else None
    words = (arguments or "").split()
    percent: float | None = None if arguments is None else 10.0
    for position, word in enumerate(words):
        if word.startswith("-m"):
            value = word[2:] or (words[position + 1] if position + 1 < len(words) else "")
            percent = _values.number(value.split(",")[0])
        elif word.startswith("-M"):
            percent = None
    return {"arguments": arguments, "memory_percent": percent}


def kernel_log(content: str | None) -> dict[str, int] | None:
    """Counts of lines that explain a failure; None when there was no log.

    ConnectX messages about 27 W are printed on healthy machines too and are not counted.
    """
    if content is None or not content.strip():
        return None
    counts = {
        "memory_allocation_failures": r"NVRM:.*(NV_ERR_NO_MEMORY|_memdescAlloc)",
        "cable_high_temperature": r"mlx5_core.*Cable error, High Temperature",
        "gpu_errors": r"NVRM: Xid",
        "out_of_memory_kills": r"Out of memory: Killed process|oom-kill:",
        "hung_tasks": r"blocked for more than \d+ seconds",
    }
    return {name: len(re.findall(pattern, content)) for name, pattern in counts.items()}


# -- proxies and mirrors ----------------------------------------------------------------------------------------------

_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "PIP_PROXY")
_MIRROR_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "HF_ENDPOINT")
_SCHEMES = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080, "socks4": 1080}
_PIP = re.compile(r"^\s*(index-url|extra-index-url|proxy)\s*[=:]\s*(.+)$", re.MULTILINE)
_DEB = re.compile(r"^\s*deb(?:-src)?\s+(?:\[[^\]]*\]\s*)?(\S+)", re.MULTILINE)
_GIT_SECTION = re.compile(r'^\s*\[\s*(\w+)(?:\s+"([^"]*)")?\s*\]')
_GIT_VALUE = re.compile(r"^\s*(\w+)\s*=\s*(.*?)\s*$")


def endpoint(url: str, assume: str = "http") -> dict[str, t.Any] | None:
    """Host and port of a URL and the URL without user name and password; None when it is not one to connect to."""
    text = url.strip().strip("\"'")
    if "://" not in text:
        text = f"{assume}://{text}" if re.match(r"^[\w.-]+:\d+/?$", text) else ""
    try:
        parts = urllib.parse.urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme.lower() not in _SCHEMES or not host:
        return None
    shown = f"[{host}]" if ":" in host else host
    if port is not None:
        shown += f":{port}"
    return {
        "url": urllib.parse.urlunsplit((parts.scheme.lower(), shown, parts.path, "", "")),
        "host": host,
        "port": port or _SCHEMES[parts.scheme.lower()],
        "scheme": parts.scheme.lower(),
    }


class Setting(t.NamedTuple):
    """A configured address: ``proxy`` or ``mirror``, the tool it is for, where it stands, and the URL."""

    kind: str
    tool: str
    source: str
    url: str


def environment_settings(values: t.Mapping[str, str], source: str) -> list[Setting]:
    """Proxies and mirrors in environment variables."""
    found = []
    for name in (*_PROXY_VARIABLES, *_MIRROR_VARIABLES):
        kind = "proxy" if name in _PROXY_VARIABLES else "mirror"
        tool = "pip" if name.startswith(("PIP_", "UV_")) else ("hub" if name == "HF_ENDPOINT" else "environment")
        for url in values.get(name, "").split():
            found.append(Setting(kind, tool, f"{source} ({name})", url))
    return found


def apt_settings(settings: t.Mapping[str, t.Sequence[str]]) -> list[Setting]:
    """Proxies in the configuration of apt."""
    found = []
    for scheme in ("http", "https"):
        for value in list(settings.get(f"acquire::{scheme}::proxy", []))[-1:]:
            if value.upper() != "DIRECT":
                found.append(Setting("proxy", "apt", f"apt.conf (Acquire::{scheme}::Proxy)", value))
    return found


def apt_sources(name: str, content: str) -> list[Setting]:
    """Archives in a ``.list`` or ``.sources`` file; a disabled entry is left out."""
    urls: list[str] = []
    if name.endswith(".sources"):
        for stanza in re.split(r"\n\s*\n", content):
            values = {key.lower(): value for key, value in _values.pairs(stanza).items()}
            if values.get("enabled", "yes").lower() != "no":
                urls.extend(values.get("uris", "").split())
    else:
        urls = _DEB.findall(content)
    return [Setting("mirror", "apt", name, url) for url in dict.fromkeys(urls)]


def pip_settings(name: str, content: str) -> list[Setting]:
    """Index addresses and proxy in a pip configuration file."""
    return [
        Setting("proxy" if key == "proxy" else "mirror", "pip", name, url)
        for key, value in _PIP.findall(content)
        for url in value.split()
    ]


def git_settings(name: str, content: str) -> list[Setting]:
    """``http.proxy`` and the mirrors of ``url.MIRROR.insteadOf`` in a git configuration file."""
    found = []
    section, argument = "", ""
    for line in content.splitlines():
        start = _GIT_SECTION.match(line)
        if start:
            section, argument = start.group(1).lower(), start.group(2) or ""
            continue
        value = _GIT_VALUE.match(line)
        if value is None:
            continue
        key = value.group(1).lower()
        if section in ("http", "https") and key == "proxy" and value.group(2):
            found.append(Setting("proxy", "git", name, value.group(2)))
        elif section == "url" and key in ("insteadof", "pushinsteadof") and argument:
            found.append(Setting("mirror", "git", name, argument))
    return found


def bypasses(host: str, exceptions: str) -> bool:
    """Whether ``no_proxy`` lets a host be reached directly."""
    for entry in re.split(r"[,\s]+", exceptions):
        entry = entry.strip().lstrip("*").lower()
        if entry and (host.lower() == entry.lstrip(".") or host.lower().endswith("." + entry.lstrip("."))):
            return True
    return False

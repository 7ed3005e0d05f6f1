# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""In which precision the weights are, as the publisher wrote it down: the guard against an unnoticed quantised copy."""

from __future__ import annotations

import json
import os
import typing as t

# Weights in these are quantised whatever the configuration says. Packed 4-bit weights stand in I32 or U8.
QUANTISED_DTYPES = ("F4", "F6_E2M3", "F6_E3M2", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8")
PACKED_DTYPES = ("U8", "I32")
# Bits that are known from the method's name alone.
BITS = {"fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4, "mxfp8": 8, "nvfp4": 4}
CONFIG_LIMIT = 16 << 20


class Precision(t.NamedTuple):
    """*method* is ``none`` for weights as they were trained; ``None`` when nothing says how they are."""

    method: str | None
    bits: int | None
    source: str | None
    formats: tuple[str, ...] = ()


def read(directory: str) -> Precision:
    """What the files in *directory* say. Raises ValueError naming a file that cannot be read as JSON."""
    config = _json(os.path.join(directory, "config.json"))
    separate = _json(os.path.join(directory, "hf_quant_config.json"))
    section = quantization_config(config)
    if section is not None:
        return _from_config(section, "config.json")
    if separate is not None:
        algorithm = str(_mapping(separate.get("quantization")).get("quant_algo") or "").lower()
        return Precision("modelopt" if algorithm else "none", BITS.get(algorithm), "hf_quant_config.json", (algorithm,))
    return Precision(None, None, None) if config is None else Precision("none", None, "config.json")


def quantization_config(config: dict[str, t.Any] | None) -> dict[str, t.Any] | None:
    """The section of a config.json that says how the weights are quantised, of the model itself or of its text part."""
    for part in (config or {}, (config or {}).get("text_config")):
        for key in ("quantization_config", "compression_config"):
            if isinstance(part, dict) and isinstance(part.get(key), dict) and part[key]:
                return t.cast("dict[str, t.Any]", part[key])
    return None


def _from_config(section: dict[str, t.Any], source: str) -> Precision:
    method = str(section.get("quant_method") or "unnamed").lower()
    bits = section.get("bits", section.get("w_bit"))
    groups = section.get("config_groups")
    formats = [str(section[key]) for key in ("format", "fmt", "quant_algo") if section.get(key)]
    if _whole(bits) is None and isinstance(groups, dict):
        widths = [_whole(_mapping(_mapping(group).get("weights")).get("num_bits")) for group in groups.values()]
        bits = min((width for width in widths if width is not None), default=None)
    if _whole(bits) is None:
        bits = 4 if section.get("load_in_4bit") else 8 if section.get("load_in_8bit") else None
    if bits is None:
        bits = BITS.get(method) or BITS.get(str(section.get("quant_algo", "")).lower())
    return Precision(method, bits, source, tuple(formats))


def _whole(value: t.Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _mapping(value: t.Any) -> dict[str, t.Any]:
    return value if isinstance(value, dict) else {}


def _json(path: str) -> dict[str, t.Any] | None:
    if os.path.lexists(path) and not os.path.isfile(path):
        # A pipe would keep the reader waiting for ever.
        raise ValueError(f"{os.path.basename(path)}: found no regular file, wanted the model's configuration")
    try:
        with open(path, encoding="utf-8") as handle:
            found = json.loads(handle.read(CONFIG_LIMIT))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{os.path.basename(path)}: found no JSON, wanted the model's configuration") from error
    if not isinstance(found, dict):
        raise ValueError(f"{os.path.basename(path)}: found {type(found).__name__}, wanted a mapping")
    return found


def quantised_by_weights(dtypes: dict[str, int]) -> list[str]:
    """The formats in the weights (bytes by dtype) that only quantised weights have."""
    total = sum(dtypes.values())
    names = [name for name in QUANTISED_DTYPES if dtypes.get(name)]
    # A few integers are position tables and the like; most of the bytes are not.
    return names + [name for name in PACKED_DTYPES if dtypes.get(name, 0) * 4 > total]


def difference(wanted: dict[str, t.Any], found: Precision, dtypes: dict[str, int]) -> tuple[str, str] | None:
    """(found, wanted) when the weights are not in the precision of a recipe (``method``, ``bits``), else None."""
    method, bits = wanted.get("method"), wanted.get("bits")
    if not method:
        return None
    wish = method if bits is None else f"{method}, {bits} bits"
    have = "no configuration that says it" if found.method is None else found.method
    have += f", {found.bits} bits" if found.bits is not None else ""
    have += f" ({found.source})" if found.source else ""
    if found.method != method or (bits is not None and found.bits is not None and found.bits != bits):
        return have, wish
    hidden = quantised_by_weights(dtypes) if method == "none" else []
    return (f"{have}, but weights in {', '.join(hidden)}", wish) if hidden else None


def quantised(found: Precision, dtypes: dict[str, int]) -> str | None:
    """Why these weights count as quantised already, or None when they do not."""
    if found.method not in (None, "none"):
        return f"{found.method}{f', {found.bits} bits' if found.bits else ''} ({found.source})"
    hidden = quantised_by_weights(dtypes)
    return f"weights in {', '.join(hidden)}" if hidden else None

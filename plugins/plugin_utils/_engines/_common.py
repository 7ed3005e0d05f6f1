# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What all engines share: flags from data, and the network environment of a rank from its node's own links."""

from __future__ import annotations

import re
import typing as t


class ArgumentError(ValueError):
    """Engine arguments that cannot be rendered."""


def flags(arguments: dict[str, t.Any]) -> list[str]:
    """Render ``{flag: value}`` as command-line words, in the order given.

    ``true`` gives the bare flag, ``false``, ``null``, an empty text and an empty list leave it out (an option set to
    nothing is absent, not empty), a list repeats its values behind one flag, anything else is one word.
    """
    words: list[str] = []
    for name, value in arguments.items():
        if value is None or value is False or value in ("", []):
            continue
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*", name):
            raise ArgumentError(
                f"argument {name}: wanted the flag's name without the leading dashes, such as page-size"
            )
        words.append(f"--{name}")
        if value is True:
            continue
        for item in value if isinstance(value, list) else [value]:
            if item is None or isinstance(item, (dict, list, bool)):
                raise ArgumentError(f"argument {name}: found {item!r}, wanted a string or a number")
            words.append(str(item))
    return words


def settings(environment: dict[str, t.Any]) -> dict[str, str]:
    """Variables as text. One set to nothing is absent: an empty one can mean zero (NVIDIA/nccl#1333)."""
    for name, value in environment.items():
        if isinstance(value, (bool, dict, list)):
            raise ArgumentError(f"environment {name}: found {value!r}, wanted a text; put it in quotes")
    return {name: str(value) for name, value in environment.items() if value is not None and value != ""}


def network_environment(
    node: dict[str, t.Any], rdma: dict[str, str | None], fabric: t.Mapping[str, t.Any] | None = None
) -> dict[str, str]:
    """Environment that ties every library of a rank to the fabric, from this node's own interfaces.

    *rdma* maps interface to RDMA device (``None``: the node has none); *fabric* is the deployment's, whose
    ``environment`` is what this topology needs. ``NCCL_SOCKET_IFNAME`` takes an exact name only with a leading ``=``
    (NVIDIA/nccl-tests#9); Gloo takes the bare name. ``NCCL_IB_GID_INDEX`` is set only where the inventory asks for it:
    the table moves, and NCCL finds the right entry itself since 2.21 (NVIDIA/nccl#1333).
    """
    if not node["links"]:
        return {}
    meets = node["socket_interface"]
    environment = {
        "GLOO_SOCKET_IFNAME": meets,
        "NCCL_SOCKET_IFNAME": f"={meets}",
        "TP_SOCKET_IFNAME": meets,
        "UCX_NET_DEVICES": meets,
    }
    devices = [device for link in node["links"] if (device := rdma.get(link["interface"]))]
    if devices:
        environment["NCCL_IB_HCA"] = "=" + ",".join(devices)
        environment["NCCL_IB_ADDR_FAMILY"] = "AF_INET"
        environment["NCCL_IB_ROCE_VERSION_NUM"] = "2"
        # Fail closed: without it NCCL goes on over TCP, four times slower, and says nothing (sgl-project/sglang#1427).
        environment["NCCL_NET"] = "IB"
        environment.update((fabric or {}).get("environment") or {})
    return environment

# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets PyPI's torchvision (a CUDA build) be imported beside a CPU torch.

Its C library does not load there, so two operators whose fake kernels it registers in Python are unknown and the import
fails with ``operator torchvision::nms does not exist``. Their schemas are declared here, just before torchvision is
first imported. ``labvision.pth`` loads this module in every process; torch is not imported before torchvision is.
"""

from __future__ import annotations

import importlib.abc
import sys
from typing import Any

OPERATORS = ("nms", "qnms")
KEPT: list[Any] = []  # a torch.library.Library lives as long as it is referenced


class DeclareOperators(importlib.abc.MetaPathFinder):
    """Finds nothing; it only notices that torchvision is about to be imported."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname != "torchvision":
            return None
        sys.meta_path.remove(self)
        import torch

        library = torch.library.Library("torchvision", "DEF")
        for operator in OPERATORS:
            library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        KEPT.append(library)
        return None


sys.meta_path.insert(0, DeclareOperators())

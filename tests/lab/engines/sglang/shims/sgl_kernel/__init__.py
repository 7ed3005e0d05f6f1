# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lab stand-in for SGLang's kernel package, of which PyPI has CUDA builds only.

Every name can be imported and every call fails loudly. With ``--attention-backend torch_native`` on a processor without
AMX the engine imports names from here and never calls one.
"""

from __future__ import annotations

from typing import Any, NoReturn


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name}: the lab has no kernels, and this code path called one")

    missing.__name__ = name
    return missing

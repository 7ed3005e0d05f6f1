# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this package, and it may change without notice.

"""Engine adapters: one module per engine, all with the same functions.

``problems(recipe)`` says what of a recipe the engine cannot do. ``rank(deployment, node, rdma)`` returns what the
launcher on that node needs: command line, environment, how the API key reaches the engine, and which HTTP paths tell
its state.
"""

from __future__ import annotations

import types

from ansible_collections.tandem.spark.plugins.plugin_utils._engines import sglang

ADAPTERS: dict[str, types.ModuleType] = {"sglang": sglang}

# Engines that split a model by its layers and speak TCP: any fabric with routes will do. All others let every rank talk
# to every other one over RDMA.
SPLIT_BY_LAYERS = frozenset({"llama_cpp"})

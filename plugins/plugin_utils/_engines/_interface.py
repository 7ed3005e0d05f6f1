# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What an engine adapter is: the names that every module of this package defines."""

from __future__ import annotations

import re
import typing as t


class LogLine(t.NamedTuple):
    """A line that the engine is known to write. *meaning*: what to tell the user; *trouble*: it explains a failure."""

    pattern: re.Pattern[str]
    meaning: str
    trouble: bool = True


class Adapter(t.Protocol):
    """An engine. A module with these names is one; mypy and a test check that each of them is."""

    @property
    def OWNED(self) -> t.Sequence[str]:
        """Flags that follow from the inventory. A recipe that sets one would say something else than the inventory."""

    @property
    def BACKENDS(self) -> t.Sequence[str]:
        """What a recipe may set as C(engine.backend), the default first; empty where there is nothing to choose."""

    @property
    def TENSOR_PARALLEL(self) -> t.Sequence[int]:
        """Sizes of a tensor-parallel group that the engine can be started with; empty: not limited by this."""

    @property
    def STOP_S(self) -> int:
        """Seconds that a rank may need to end when it is asked to; after C(serve_stop_timeout_s) it is killed."""

    @property
    def METRICS(self) -> t.Mapping[str, str]:
        """C(path) of the metrics on the head, and the engine's names for what dashboards and alerts ask for."""

    @property
    def LOG_LINES(self) -> t.Sequence[LogLine]:
        """Known lines of its log."""

    def problems(self, recipe: dict[str, t.Any], /) -> list[str]:
        """What of *recipe* this engine cannot do, one sentence each: value found, value wanted, remedy."""

    def by_layers(self, recipe: t.Mapping[str, t.Any], /) -> bool:
        """Whether it splits the model by layers over TCP, so that ranks need no RDMA path to each other."""

    def rank(
        self, deployment: dict[str, t.Any], node: dict[str, t.Any], rdma: dict[str, str | None], /
    ) -> dict[str, t.Any]:
        """What the launcher on *node* needs; its keys: docs/engines.md. *rdma*: interface to RDMA device."""

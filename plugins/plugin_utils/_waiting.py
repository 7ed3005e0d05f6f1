# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: nothing outside it may import this file, and it may change without notice.

"""What the controller says while it waits for a job: how far it is, how fast, and how long it still takes."""

from __future__ import annotations

import typing as t

WINDOW_S = 30.0
POLL_FIRST_S = 0.5
POLL_MOST_S = 5.0
# Lines of one stage: often at first, so that one sees it moves; seldom later, an hour must not fill the screen.
SAY_FIRST_S = 2.0
SAY_MOST_S = 60.0
UNITS = ("B", "kB", "MB", "GB", "TB")


def size(count: float) -> str:
    """Bytes for people, in powers of 1000: ``124.0 GB``."""
    power = 0
    while abs(count) >= 999.95 and power < len(UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.1f} {UNITS[power]}" if power else f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Seconds for people, in two units at most: ``1 min 10 s``."""
    whole = max(int(seconds + 0.5), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def next_poll(interval: float) -> float:
    """A job of seconds is asked often, one of hours seldom."""
    return min(max(interval * 1.5, POLL_FIRST_S), POLL_MOST_S)


class Meter:
    """The rate of a stage over the last half minute, from what the node noted with its own clock."""

    def __init__(self) -> None:
        self.stage = ""
        self.samples: list[tuple[float, int]] = []

    def add(self, progress: dict[str, t.Any]) -> None:
        """Take a note of ``{stage, done, total, at}``. What is older than the window, or of another stage, goes."""
        if progress["stage"] != self.stage:
            self.stage, self.samples = progress["stage"], []
        at, done = float(progress["at"]), int(progress["done"])
        if self.samples and (at < self.samples[-1][0] or done < self.samples[-1][1]):
            # Another start of the job, or a file that is fetched again.
            self.samples = []
        if not self.samples or at > self.samples[-1][0]:
            self.samples.append((at, done))
        while len(self.samples) > 2 and self.samples[1][0] <= at - WINDOW_S:
            del self.samples[0]

    def rate(self) -> float | None:
        """Bytes per second; ``None`` while it is not known."""
        if len(self.samples) < 2:
            return None
        (began, had), (at, done) = self.samples[0], self.samples[-1]
        return (done - had) / (at - began)


def line(job: str, node: str, progress: dict[str, t.Any], rate: float | None) -> str:
    """``model on spark-a: download 43 % of 124.0 GB, 1.2 GB/s, 1 min 10 s left``; what is not known is left out."""
    done, total = int(progress["done"]), progress["total"]
    if total:
        parts = [f"{progress['stage']} {min(100 * done // total, 100)} % of {size(total)}"]
    else:
        parts = [f"{progress['stage']} {size(done)}" if done else progress["stage"]]
    if rate is not None and (done or rate):
        parts.append(f"{size(rate)}/s")
        if total and rate > 0 and done < total:
            parts.append(f"{duration((total - done) / rate)} left")
        elif total and done < total:
            parts.append("nothing arrives")
    if progress.get("detail"):
        parts.append(str(progress["detail"]))
    return f"{job} on {node}: {', '.join(parts)}"


class Speaker:
    """Decides when a line is worth a line: a new stage at once, then at growing distances."""

    def __init__(self) -> None:
        self.stage = ""
        self.last = float("-inf")
        self.distance = SAY_FIRST_S

    def due(self, stage: str, now: float) -> bool:
        """Whether to speak at *now* (seconds of any clock)."""
        if stage != self.stage:
            self.stage, self.last, self.distance = stage, now, SAY_FIRST_S
            return True
        if now - self.last < self.distance:
            return False
        self.last, self.distance = now, min(self.distance * 1.5, SAY_MOST_S)
        return True

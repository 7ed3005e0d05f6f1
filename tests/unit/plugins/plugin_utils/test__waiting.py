# Copyright (c) 2026, The tandem.spark contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.tandem.spark.plugins.plugin_utils import _waiting


def note(at, done, stage="download", total=124_000_000_000, detail=""):
    return {"stage": stage, "done": done, "total": total, "at": at, "detail": detail}


def test_the_line_says_percent_rate_and_time_left():
    meter = _waiting.Meter()
    for at, done in ((100.0, 52_120_000_000), (105.0, 53_320_000_000)):
        meter.add(note(at, done))
    meter.add(note(110.0, 54_520_000_000))
    assert meter.rate() == 240_000_000
    text = _waiting.line("model", "spark-a", note(110.0, 54_520_000_000), meter.rate())
    assert text == "model on spark-a: download 43 % of 124.0 GB, 240.0 MB/s, 4 min 50 s left"


def test_the_first_look_knows_no_rate():
    meter = _waiting.Meter()
    meter.add(note(5.0, 0))
    meter.add(note(5.0, 0))
    assert meter.rate() is None
    assert _waiting.line("model", "a", note(5.0, 0), None) == "model on a: download 0 % of 124.0 GB"


def test_only_the_last_half_minute_counts():
    meter = _waiting.Meter()
    for second in range(0, 601, 5):
        meter.add(note(float(second), min(second, 300) * 1_000_000))
    assert meter.rate() == 0 and len(meter.samples) <= 8
    text = _waiting.line("model", "a", note(600.0, 300_000_000), meter.rate())
    assert text.endswith("0 B/s, nothing arrives")


@pytest.mark.parametrize("news", [note(1.0, 5), note(30.0, 3), note(30.0, 5, stage="verify")], ids=str)
def test_another_start_another_stage_and_a_file_fetched_again_begin_anew(news):
    meter = _waiting.Meter()
    meter.add(note(10.0, 1))
    meter.add(note(20.0, 10))
    meter.add(news)
    assert meter.rate() is None


def test_what_is_not_known_is_left_out():
    assert _waiting.line("model", "a", note(1.0, 0, "list", None), None) == "model on a: list"
    text = _waiting.line("model", "a", note(1.0, 2_500_000, "download", None, "x.bin"), 1e6)
    assert text == "model on a: download 2.5 MB, 1.0 MB/s, x.bin"
    assert "left" not in _waiting.line("model", "a", note(1.0, 10, total=10), 5.0)
    assert " 100 % of" in _waiting.line("model", "a", note(1.0, 12, total=10), 5.0)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_960, "1.0 MB"), (124e9, "124.0 GB"), (5e15, "5000.0 TB")],
)
def test_sizes(count, text):
    assert _waiting.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (59.4, "59 s"), (59.5, "1 min 0 s"), (70, "1 min 10 s"), (3600, "1 h 0 min"), (90061, "25 h 1 min")],
)
def test_durations(seconds, text):
    assert _waiting.duration(seconds) == text


def test_looks_and_lines_grow_rarer():
    interval, looks = 0.0, []
    for _number in range(12):
        interval = _waiting.next_poll(interval)
        looks.append(interval)
    assert looks[0] == 0.5 and looks == sorted(looks) and looks[-1] == 5.0
    speaker = _waiting.Speaker()
    spoken = [second for second in range(3600) if speaker.due("download", float(second))]
    assert spoken[:3] == [0, 2, 5] and len(spoken) < 80
    assert speaker.due("verify", 3600.0)

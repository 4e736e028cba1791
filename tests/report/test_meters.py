"""Meters of the report: parts that add up to the work, histograms without a gap, cores and memory
of a kind over time.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from equipoise.histograms import SECONDS, VERSIONS
from equipoise.report import meters
from equipoise.report.figures import bars, segments, tick_text
from equipoise.report.page import page
from equipoise.report.runs import read
from tests.report import made


def worker(**parts: float) -> dict[str, Any]:
    return {"worked": 3.0, "preempted": 1.0, "starved": 9.0, "blocked": 0.0, "parts": parts}


def test_parts_are_shares_of_the_work() -> None:
    assert meters.parts_of([worker(env=2.0, act=1.0, reset=0.0)]) == {"env": 0.5, "act": 0.25}, (
        "waiting is no work"
    )
    assert meters.parts_of([worker(env=2.0), worker(act=2.0)]) == {"env": 0.25, "act": 0.25}
    estimated = meters.parts_of([worker(env=4.0, act=4.0)])
    assert estimated == {"env": 0.5, "act": 0.5}, (
        "parts of which a sample was measured fill the bar at most"
    )
    assert meters.parts_of([{"worked": 0.0, "preempted": 0.0}]) == {} == meters.parts_of([])


def test_a_bar_has_its_pieces_side_by_side() -> None:
    pieces = re.findall(
        r'<rect class="part(\d)" x="([\d.]+)%" width="([\d.]+)%"', segments([0.5, 0.25, 0.125])
    )
    assert pieces == [("0", "0", "50"), ("1", "50", "25"), ("2", "75", "12.5")]


def test_a_histogram_has_every_bin_between_its_ends() -> None:
    shares = meters.histogram([{"1": 3}, {"4": 1, "1": 4}], VERSIONS, tick_text)
    assert shares == {"1": 7 / 8, "2": 0.0, "3": 0.0, "4": 1 / 8}
    assert list(meters.histogram([{"inf": 2, "nonsense": 9}], SECONDS, tick_text).items()) == [
        ("more", 1.0)
    ]
    assert meters.histogram([{}], VERSIONS, tick_text) == {}


@pytest.mark.parametrize("count", [1, 5, 52])
def test_bars_have_few_labels_and_the_last_of_them(count: int) -> None:
    text = bars(
        [(f"b{i}", (i % 3) / count) for i in range(1, count + 1)], label="age", x_label="windows"
    )
    labels = re.findall(r">(b\d+)</span>", text)
    assert labels[-1] == f"b{count}" and len(labels) <= 6 and "nan" not in text
    heights = [float(x) for x in re.findall(r'height="([\d.]+)%"', text)]
    assert max(heights) == 100 and len(heights) == sum(i % 3 > 0 for i in range(1, count + 1))


def test_cores_and_memory_are_of_a_kind(tmp_path: Path) -> None:
    lines = [made.line(i, random.Random(0), actors=3) for i in range(1, 11)]
    x, y = meters.cores_of(lines, "actor")
    assert x == [2.0 * i for i in range(2, 11)] and y == pytest.approx([1.5] * 9), (
        "three actors have half of a core each"
    )
    assert meters.memory_of(lines, "actor")[1] == [300.0] * 10
    assert meters.memory_of(lines, "learner")[1][-1] == 210.0
    lines[5]["usage"]["actor 1"]["cpu_s"] = 1.0  # another process has its place since
    assert meters.cores_of(lines, "actor")[1][4] == pytest.approx(1.5)
    assert meters.cores_of([], "actor") == ([], [])


def test_the_page_has_them_and_an_old_run_has_none(tmp_path: Path) -> None:
    titles = ("Parts of the work", "Age of experience", "Processes over time")
    place = made.run(tmp_path / "run", summary=False)
    text = page(read([place])[0])
    assert all(title in text for title in titles) and "backward" in text and "cores" in text
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["lags"], line["usage"]
        for one in line["balance"].values():
            del one["parts"]
    made.write_lines(place, lines)
    text = page(read([place])[0])
    assert not any(title in text for title in titles)


def test_a_run_that_goes_on_adds_up_its_reports(tmp_path: Path) -> None:
    place = made.run(tmp_path / "run", summary=False, reports=4)
    (one,) = read([place])[0]
    assert one.ages["seconds"] == {"0.04": 80, "0.1": 48}
    (ended,) = read([made.run(tmp_path / "ended")])[0]
    assert ended.ages["seconds"] == {"0.04": 20, "0.1": 12}

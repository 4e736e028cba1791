"""Figures: arcs that add up, strips whose shares fill them, axes with round numbers, lines without
a point that is none.
"""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from equipoise.balance.shares import STATES
from equipoise.record.described import clipped
from equipoise.report import figures, workers
from equipoise.report.figures import (
    CENTRE,
    INNER,
    LEFT,
    OUTER,
    Line,
    Track,
    arcs,
    chart,
    sector,
    stacked,
    thinned,
    ticks,
)
from equipoise.report.markup import Html, joined, tag
from equipoise.report.style import DASHES, style

WHOLE = {"worked": 0.5, "preempted": 0.25, "starved": 0.25, "blocked": 0.0}


def numbers(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)]


# ------------------------------------------------------------------------------------------- markup


def test_text_is_escaped_and_markup_is_not() -> None:
    made = tag("p", "<script>\"'&", tag("b", "bold"), None, 7, class_='a"b', data_label="x<y")
    assert (
        made == '<p class="a&quot;b" '
        'data-label="x&lt;y">&lt;script&gt;&quot;&#x27;&amp;<b>bold</b>7</p>'
    )
    assert (
        tag("rect", x=1.005, y=-0.001) == '<rect x="1" y="0"/>'
        and tag("meta", charset="utf-8") == '<meta charset="utf-8">'
    )
    assert joined("\x1b[31mred\x00\ud800\u202e", Html("<br>")) == "red\\x00\\ud800\\u202e<br>", (
        "nothing moves a reader's text"
    )
    assert clipped("a" * 500, 21) == "a" * 10 + "…" + "a" * 10 and clipped("short", 21) == "short"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_attribute_is_nan(value: float) -> None:
    with pytest.raises(ValueError, match="expected a finite number"):
        tag("rect", x=value)


# ----------------------------------------------------------------------------------------- the ring


def test_a_sector_begins_and_ends_where_it_says() -> None:
    path = sector(50, 100, 0, 90, centre=(0, 0))
    assert path == "M0 -100A100 100 0 0 1 100 0L50 0A50 50 0 0 0 0 -50Z", (
        "from the top to the right, clockwise"
    )
    assert " 1 1 " in sector(50, 100, 0, 200, centre=(0, 0)), (
        "more than half a turn is the long way"
    )


def angles(svg: str, state: str) -> float:
    """The degrees that the arcs of a state take, measured at their outer ends."""
    total = 0.0
    for path in re.findall(rf'<path class="{state}" d="M([^Z]*)Z"', svg):
        x0, y0, *_, x1, y1 = numbers(path.partition("L")[0])
        begin, end = (
            math.degrees(math.atan2(x - CENTRE[0], CENTRE[1] - y)) for x, y in ((x0, y0), (x1, y1))
        )
        total += (end - begin) % 360
    return total


def test_arcs_are_the_shares_of_a_worker() -> None:
    (one,) = arcs([Track("actor 0", WHOLE)], *LEFT)
    whole = LEFT[1] - LEFT[0]
    for state, share in WHOLE.items():
        assert angles(one, state) == pytest.approx(share * whole, abs=0.1)
    assert "<title>actor 0: worked 50 %, preempted 25 %, starved 25 %</title>" in one
    assert max(numbers(one.partition("A")[2])[:2]) <= OUTER


def test_many_tracks_lie_within_the_ring() -> None:
    found = arcs([Track(f"actor {i}", WHOLE) for i in range(12)], *LEFT)
    radii = [float(r) for one in found for r in re.findall(r"A([\d.]+) ", one)]
    assert len(found) == 12 and min(radii) >= INNER and max(radii) == OUTER


def test_a_worker_without_time_is_an_empty_track() -> None:
    (one,) = arcs([Track("actor 0", {})], *LEFT)
    assert 'class="worked"' not in one and "<title>actor 0: no time</title>" in one


def test_neighbours_share_a_row_where_there_are_many() -> None:
    names = [f"actor {i}" for i in range(10)]
    assert list(workers.folded(names, 10)) == names
    rows = workers.folded(names, 4)
    assert list(rows) == ["actor 0 to 1", "actor 2 to 4", "actor 5 to 6", "actor 7 to 9"]
    assert [name for row in rows.values() for name in row] == names


def test_workers_are_in_natural_order_by_side() -> None:
    of = {
        "actor 10": "sampling",
        "actor 9": "sampling",
        "learner": "learning",
        "shard 0": "keeping",
        "proxy": "beside",
    }
    balance = {name: {"side": side} for name, side in of.items()}
    assert workers.sides(balance) == (["actor 9", "actor 10"], ["learner", "shard 0"], ["proxy"])


# ----------------------------------------------------------------------------------- shares in time


def spent(**seconds: float) -> dict[str, object]:
    return dict.fromkeys(STATES, 0.0) | seconds | {"side": "sampling"}


def test_a_report_counts_where_its_time_lies() -> None:
    lines = [
        {"wall_s": 1.0, "balance": {"a": spent(worked=1.0)}},
        {"wall_s": 4.0, "balance": {"a": spent(blocked=2.0, worked=1.0)}},
    ]
    bins = workers.binned(lines, ["a"], 4.0, bins=4)
    assert bins[0]["worked"] == 1.0 and all(
        one["blocked"] == pytest.approx(2 / 3) for one in bins[1:]
    )
    assert workers.binned(lines, ["gone"], 4.0, bins=2) == [{}, {}], (
        "nothing is known of a worker that was not there"
    )
    halves = workers.binned(lines, ["a"], 4.0, bins=2)
    assert halves[0]["worked"] == pytest.approx((1 + 1 / 3) / 2) and halves[1][
        "blocked"
    ] == pytest.approx(2 / 3)


def test_a_strip_is_filled_by_its_shares() -> None:
    svg = stacked([WHOLE, WHOLE, {}, {"worked": 1.0}])
    rects = [
        (state, *(float(x) for x in place))
        for state, *place in re.findall(
            r'<rect class="(\w+)" x="([\d.]+)%" width="([\d.]+)%" y="([\d.]+)%" '
            r'height="([\d.]+)%"/>',
            svg,
        )
    ]
    assert rects == [
        ("worked", 0, 50, 50, 50),
        ("worked", 75, 25, 0, 100),
        ("preempted", 0, 50, 25, 25),
        ("starved", 0, 50, 0, 25),
    ], "equal neighbours are one, and a stretch of which nothing is known is empty"
    assert "rect" not in stacked([])


def test_a_verdict_holds_from_the_report_before() -> None:
    lines = [
        {"wall_s": t, "cause": word} for t, word in ((2.0, "A"), (3.0, "B"), (5.0, "B"), (6.0, "A"))
    ]
    assert workers.stretches(lines, 6.0) == {"A": [(0.0, 2.0), (5.0, 6.0)], "B": [(2.0, 5.0)]}


# -------------------------------------------------------------------------------------------- lines


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-3, 3, [-2, 0, 2]),
        (97_000, 203_000, [100_000, 150_000, 200_000]),
        (5, 5, [5]),
        (0, 3e-13, [0, 1e-13, 2e-13, 3e-13]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected, rel=1e-9, abs=1e-16)


def test_ticks_of_any_range_are_few_and_inside(seed: int) -> None:
    draw = np.random.default_rng(seed)
    for _ in range(500):
        low, span = (
            float(draw.normal() * 10 ** draw.uniform(-6, 6)),
            float(10 ** draw.uniform(-6, 8)),
        )
        found = ticks(low, low + span)
        assert (
            1 <= len(found) <= 6
            and low - span * 1e-6 <= found[0]
            and found[-1] <= low + span * (1 + 1e-6)
        ), (low, span)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (12_500, "12.5k"), (-2000, "-2k"), (0.001, "0.001"), (1e15, "1e+15")],
)
def test_labels_are_short(value: float, text: str) -> None:
    assert figures.tick_text(value) == text


def test_a_line_keeps_its_peaks() -> None:
    y = np.zeros(10_000)
    y[[1234, 8000]] = 5.0, -7.0
    x, thin = thinned(np.arange(10_000.0), y, most=100)
    assert len(x) <= 100 and thin.max() == 5.0 and thin.min() == -7.0 and np.all(np.diff(x) > 0)


def test_a_chart_leaves_out_what_is_no_number() -> None:
    x = [0.0, 1.0, 2.0, 3.0]
    svg = chart([Line(0, x, [1.0, math.nan, math.inf, 4.0])], label="return", x_label="steps")
    assert svg is not None and "nan" not in svg and "inf" not in svg
    assert svg.count("L") == 1, "two points are left"
    assert chart([Line(0, x, [math.nan] * 4)], label="return", x_label="steps") is None
    assert chart([], label="return", x_label="steps") is None


@pytest.mark.parametrize(
    "values", [[3.0], [0.0], [-1e90, 1e90], [1.0, 1.0, 1.0], [0.0, 1e-200], [1.0, 1.0 + 1e-15]]
)
def test_a_chart_of_few_or_equal_numbers_is_drawn(values: list[float]) -> None:
    svg = chart(
        [Line(1, [float(i) for i in range(len(values))], values)], label="return", x_label="steps"
    )
    assert svg is not None and "nan" not in svg
    heights = [
        y
        for _, y in re.findall(
            r"(-?[\d.]+) (-?[\d.]+)", re.findall(r'class="line s1" d="M([^"]*)"', svg)[0]
        )
    ]
    assert all(0 <= float(y) <= figures.HIGH for y in heights)


def test_an_interval_is_around_its_line() -> None:
    x, y = np.array([0.0, 1.0]), np.array([1.0, 2.0])
    svg = chart([Line(2, x, y, y - 0.5, y + 0.5)], label="return", x_label="steps")
    assert svg is not None
    (band,) = re.findall(r'class="band s2" d="M([^"]*)Z"', svg)
    (line,) = re.findall(r'class="line s2" d="M([^"]*)"', svg)
    at = [tuple(numbers(point)) for point in band.split("L")]
    middle = [tuple(numbers(point)) for point in line.split("L")]
    assert len(at) == 4 and at[0][0] == at[3][0] == middle[0][0]
    assert at[0][1] < middle[0][1] < at[3][1] and middle[0][1] - at[0][1] == pytest.approx(
        at[3][1] - middle[0][1], abs=0.02
    )


def test_every_style_of_a_line_has_a_dash_of_its_own() -> None:
    assert len(set(DASHES)) == figures.STYLES
    assert all(
        f".s{i} {{ stroke: var(--s{i})" in style() and style().count(f"--s{i}:") == 2
        for i in range(figures.STYLES)
    )

"""Figures as SVG, from numbers alone: arcs of a ring, stacked shares over time, lines with
intervals, and their axes.

No figure has text that shrinks with it: labels of axes are HTML beside a figure that stretches.
Colours and line styles are classes of the page's style, so one figure serves light and dark; each
state has a hatching of its own, each line a dash.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from equipoise.balance.shares import STATES
from equipoise.record.ring import short
from equipoise.report.markup import Html, figure_number, tag
from equipoise.types import Array

STYLES = 8  # of lines; further ones begin again
WIDE, HIGH = 1000, 260  # units of a chart, which stretches
LEAST = 1e-100
MOST_POINTS = 300  # of a drawn line
OUTER, INNER = 112.0, 66.0  # radii of the ring
CENTRE = (160.0, 146.0)
# degrees, clockwise from the top, of the two sides of the ring
LEFT, RIGHT = (202.0, 336.0), (24.0, 158.0)
SPACE = 2.5  # between two tracks
EDGE = 0.06  # of an axis, at its ends
MOST_LABELS = 6  # of the bins of a histogram


@dataclass(frozen=True, slots=True)
class Track:
    """One worker, or several as one: the share of its time in each state, 0..1."""

    name: str
    shares: Mapping[str, float]

    @property
    def said(self) -> str:
        return f"{self.name}: " + (
            ", ".join(f"{state} {100 * x:.0f} %" for state, x in self.shares.items() if x)
            or "no time"
        )


# ----------------------------------------------------------------------------------------- the ring


def sector(
    inner: float, outer: float, start: float, end: float, centre: tuple[float, float] = CENTRE
) -> str:
    """The path of a ring's part, ``start`` to ``end`` degrees clockwise from the top, below 360."""
    large = int(end - start > 180)
    a, b, c, d = (
        _at(r, angle, centre)
        for r, angle in ((outer, start), (outer, end), (inner, end), (inner, start))
    )
    r, s = figure_number(outer), figure_number(inner)
    return f"M{a}A{r} {r} 0 {large} 1 {b}L{c}A{s} {s} 0 {large} 0 {d}Z"


def _at(radius: float, angle: float, centre: tuple[float, float]) -> str:
    x, y = (
        centre[0] + radius * math.sin(math.radians(angle)),
        centre[1] - radius * math.cos(math.radians(angle)),
    )
    return f"{figure_number(x)} {figure_number(y)}"


def arcs(tracks: Sequence[Track], start: float, end: float) -> list[Html]:
    """Concentric arcs from ``start`` to ``end``, the first outermost, each cut into its shares."""
    thick = (OUTER - INNER) / max(len(tracks), 2)
    found = []
    for i, track in enumerate(tracks):
        outer, angle = OUTER - i * thick, start
        parts: list[Html | None] = [
            tag("title", track.said),
            tag("path", class_="track", d=_sector(outer, thick, start, end)),
        ]
        for state in STATES:
            upto = min(angle + track.shares.get(state, 0.0) * (end - start), end)
            if upto - angle > 0.2:
                parts.append(tag("path", class_=state, d=_sector(outer, thick, angle, upto)))
            angle = upto
        found.append(tag("g", *parts))
    return found


def _sector(outer: float, thick: float, start: float, end: float) -> str:
    return sector(outer - thick + min(SPACE, thick / 4), outer, start, end)


def ring(
    left: Sequence[Track],
    right: Sequence[Track],
    *,
    names: tuple[str, str],
    over: str,
    under: str,
    middle: Sequence[str],
) -> Html:
    """The ring: actors left, learners right; experience goes over, weights come back under.

    ``names`` of the sides; ``over``, ``under``: texts at the arrows; ``middle``: lines.
    """
    x, y = CENTRE
    said = (
        f"The ring. Left: {'; '.join(t.said for t in left) or names[0]}. Right: "
        f"{'; '.join(t.said for t in right)}."
    )
    lines = [
        tag(
            "text",
            line,
            x=x,
            y=y + 5 - 9 * (len(middle) - 1) + 19 * i,
            class_="middle strong" if not i else "middle",
        )
        for i, line in enumerate(middle)
    ]
    return tag(
        "svg",
        *arcs(left, *LEFT),
        *([] if left else [tag("path", class_="none", d=sector(INNER, OUTER, *LEFT))]),
        *arcs(right, *RIGHT),
        _arrow(339, 381),
        _arrow(161, 199),
        tag("text", names[0], x=4, y=20),
        tag("text", names[1], x=316, y=20, class_="end"),
        tag("text", over, x=x, y=14, class_="middle"),
        tag("text", under, x=x, y=288, class_="middle"),
        *lines,
        class_="ring",
        viewBox="0 0 320 294",
        role="img",
        aria_label=said,
    )


def _arrow(start: float, end: float) -> Html:
    radius = (OUTER + INNER) / 2
    r = figure_number(radius)
    tip = end - 7
    line = f"M{_at(radius, start, CENTRE)}A{r} {r} 0 0 1 {_at(radius, tip, CENTRE)}"
    head = f"M{_at(radius + 6, tip, CENTRE)}L{_at(radius, end, CENTRE)}L{_at(radius - 6, tip, CENTRE)}Z"  # noqa: E501
    return tag("g", tag("path", class_="arrow", d=line), tag("path", class_="head", d=head))


# ----------------------------------------------------------------------------------- shares in time


def stacked(bins: Sequence[Mapping[str, float]]) -> Html:
    """Shares over time as a strip: ``bins`` of equal length, their shares stacked from the bottom.

    Places are percentages, so the strip stretches and its hatching does not.
    """
    wide = 100 / max(len(bins), 1)
    rects = []
    for state, spans in _runs(bins).items():
        rects += [
            tag(
                "rect",
                class_=state,
                x=f"{figure_number(a * wide)}%",
                width=f"{figure_number((b - a) * wide)}%",
                y=f"{figure_number(100 * top)}%",
                height=f"{figure_number(100 * high)}%",
            )
            for a, b, top, high in spans
        ]
    return tag("svg", *rects, class_="strip", aria_hidden="true")


def _runs(bins: Sequence[Mapping[str, float]]) -> dict[str, list[tuple[int, int, float, float]]]:
    """(first bin, end, top, height) of each state's rectangles; equal neighbours are merged."""
    found: dict[str, list[tuple[int, int, float, float]]] = {state: [] for state in STATES}
    for i, shares in enumerate(bins):
        below = 0.0
        for state in STATES:
            high = round(min(max(shares.get(state, 0.0), 0.0), 1.0 - below), 2)
            top, before = round(1.0 - below - high, 2), found[state][-1:]
            if high > 0 and before and before[0][1:] == (i, top, high):
                found[state][-1] = (before[0][0], i + 1, top, high)
            elif high > 0:
                found[state].append((i, i + 1, top, high))
            below += high
    return found


def spans(parts: Sequence[tuple[float, float]], whole: tuple[float, float]) -> Html:
    """A strip that is filled from a to b for each (a, b) within ``whole``."""
    low, high = whole
    scale = 100 / max(high - low, 1e-9)
    rects = [
        tag(
            "rect",
            class_="span",
            x=f"{figure_number((a - low) * scale)}%",
            y="20%",
            height="60%",
            width=f"{figure_number((b - a) * scale)}%",
        )
        for a, b in parts
    ]
    return tag("svg", *rects, class_="strip", aria_hidden="true")


# -------------------------------------------------------------------------------------------- lines


def segments(shares: Sequence[float]) -> Html:
    """A bar of ``shares`` of 0..1, one after the other from the left, each in the next colour."""
    begins = itertools.accumulate(shares, initial=0.0)
    rects = [
        tag(
            "rect",
            class_=f"part{i % STYLES}",
            x=f"{figure_number(100 * a)}%",
            width=f"{figure_number(100 * share)}%",
            height="100%",
        )
        for i, (a, share) in enumerate(zip(begins, shares))
    ]
    return tag("svg", *rects, class_="strip parts", aria_hidden="true")


def part_swatch(number: int) -> Html:
    """A small field in the colour of a piece of a bar, for a legend."""
    return _mark(
        "swatch", "0 0 12 12", tag("rect", class_=f"part{number % STYLES}", width=12, height=12)
    )


def bars(shares: Sequence[tuple[str, float]], *, label: str, x_label: str) -> Html:
    """A histogram: for each bin its right end's label and its share of 0..1, not all of them 0."""
    most = max(share for _, share in shares)
    wide, up = 100 / len(shares), ticks(0.0, most, most=3)
    rects = [
        tag(
            "rect",
            tag("title", f"{name}: {100 * share:.3g} %"),
            class_="bar",
            x=f"{figure_number((i + 0.06) * wide)}%",
            width=f"{figure_number(0.88 * wide)}%",
            y=f"{figure_number(100 - 100 * share / most)}%",
            height=f"{figure_number(100 * share / most)}%",
        )
        for i, (name, share) in enumerate(shares)
        if share > 0
    ]
    svg = tag("svg", *rects, role="img", aria_label=f"{label}: shares of {x_label}")
    every = -(-len(shares) // MOST_LABELS)
    x_names = [
        tag("span", name, style=f"left:{figure_number((i + 1) * wide)}%", class_="last")
        for i, (name, _) in enumerate(shares)
        if (len(shares) - 1 - i) % every == 0
    ]
    y_names = [
        tag("span", f"{100 * y:.3g} %", style=f"top:{figure_number(100 - 100 * y / most)}%")
        for y in up
    ]
    return _framed(svg, y_names, x_names, x_label)


def _framed(svg: Html, y_names: Sequence[Html], x_names: Sequence[Html], x_label: str) -> Html:
    return tag(
        "div",
        tag("div", *y_names, class_="ys"),
        tag("div", svg, class_="plot"),
        tag("div", *x_names, class_="xs"),
        tag("div", x_label, class_="xname"),
        class_="chart",
    )


@dataclass(frozen=True, slots=True)
class Line:
    """A line on ``x`` [N], ``y`` [N], with an interval [N] if there is one; ``faint``: one seed.

    ``kind``: a class of the page's style, such as "best"; ``name``: shown at the pointer; ``dots``:
    points without a line between them.
    """

    style: int
    x: Array
    y: Array
    low: Array = None
    high: Array = None
    faint: bool = False
    kind: str = ""
    name: str = ""
    dots: bool = False

    def drawable(self) -> Line:
        """The line without points that are no number, and with at most ``MOST_POINTS``."""
        x, y = np.asarray(self.x, np.float64), np.asarray(self.y, np.float64)
        low, high = (
            y if one is None else np.asarray(one, np.float64) for one in (self.low, self.high)
        )
        kept = np.all(np.isfinite(np.stack([x, y, low, high])), axis=0)
        x, y, low, high = x[kept], y[kept], low[kept], high[kept]
        if self.low is None:
            x, y = (x, y) if self.dots else thinned(x, y)
            return replace(self, x=x, y=y)
        return replace(self, x=x, y=y, low=low, high=high)


def thinned(x: Array, y: Array, most: int = MOST_POINTS) -> tuple[Array, Array]:
    """At most ``most`` points of a line: the lowest and highest of each stretch, so peaks stay."""
    if len(x) <= most:
        return x, y
    edges = np.linspace(0, len(x), most // 2 + 1).astype(int)
    kept = sorted(
        {a + int(f(y[a:b])) for a, b in itertools.pairwise(edges) for f in (np.argmin, np.argmax)}
    )
    return x[kept], y[kept]


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """At most ``most`` + 1 round numbers, ``low`` to ``high``: 1, 2 or 5 times a power of 10."""
    span = high - low
    if span <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if span / (power * factor) <= most)
    return [
        float(f"{n * step:.12g}") + 0.0
        for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def reach(values: Sequence[Array]) -> tuple[float, float]:
    """The lowest and the highest of several arrays, with 5 % of room; equal ones in the middle."""
    low, high = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
    if alike(low, high):
        return (low - abs(low) / 20, high + abs(high) / 20) if abs(high) > LEAST else (-0.05, 1.0)
    return low - (high - low) / 20, high + (high - low) / 20


def alike(low: float, high: float) -> bool:
    """Do two numbers differ by so little that nothing can be drawn between them?"""
    return high - low <= 1e-9 * max(abs(low), abs(high), LEAST)


def tick_text(value: float) -> str:
    """The label of a tick: 12.5k, 0.001."""
    if abs(value) >= 1000:
        return (
            ("-" if value < 0 else "") + short(round(abs(value)))
            if abs(value) < 1e12
            else f"{value:.0e}"
        )
    return f"{value:.4g}"


Named = Sequence[tuple[float, str]]  # places of an axis, each with its label


def chart(
    lines: Sequence[Line],
    *,
    label: str,
    x_label: str,
    x_text: Callable[[float], str] = tick_text,
    across: Named = (),
    up: Named = (),
) -> Html | None:
    """Draw lines over an axis, with the labels of both axes; None without a point. ``across`` and
    ``up``: labels in place of the numbers.
    """
    drawn = [line for one in lines if len((line := one.drawable()).x)]
    if not drawn:
        return None
    xs = min(float(line.x.min()) for line in drawn), max(float(line.x.max()) for line in drawn)
    if alike(*xs) or any(line.dots for line in drawn):
        xs = reach([line.x for line in drawn])
    ys = reach([*(line.y for line in drawn), np.array([y for y, _ in up] or [drawn[0].y[0]])])
    across = across or [(x, x_text(x)) for x in ticks(*xs, most=6)]
    up = up or [(y, tick_text(y)) for y in ticks(*ys, most=4)]
    grid = "".join(f"M0 {figure_number(_y(y, ys))}H{WIDE}" for y, _ in up)
    shapes = [tag("path", class_="grid", d=grid)]
    for line in sorted(drawn, key=lambda one: not one.faint):
        if line.low is not None:
            shapes.append(tag("path", class_=f"band s{line.style % STYLES}", d=_band(line, xs, ys)))
        shapes.append(
            tag(
                "path",
                *([tag("title", line.name)] if line.name else ()),
                class_=_classes(line),
                d=_path(line, xs, ys),
            )
        )
    svg = tag(
        "svg",
        *shapes,
        viewBox=f"0 0 {WIDE} {HIGH}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{label} over {x_label}",
    )
    y_names = [
        tag("span", name, style=f"top:{figure_number(_y(y, ys) / HIGH * 100)}%") for y, name in up
    ]
    x_names = [x_label_at((x - xs[0]) / (xs[1] - xs[0]), name) for x, name in across]
    return _framed(svg, y_names, x_names, x_label)


def x_label_at(share: float, text: str) -> Html:
    """A label below an axis at a share of its length, 0..1; it stays within the axis."""
    edge = "first" if share < EDGE else "last" if share > 1 - EDGE else None
    return tag("span", text, style=f"left:{figure_number(100 * share)}%", class_=edge)


def _y(value: float, ys: tuple[float, float]) -> float:
    """A height of the chart; what lies far beyond it is cut, and the figure's edge hides it."""
    return min(max(HIGH * (ys[1] - value) / (ys[1] - ys[0]), -HIGH), 2 * HIGH)


def _points(x: Array, y: Array, xs: tuple[float, float], ys: tuple[float, float]) -> list[str]:
    scale = WIDE / (xs[1] - xs[0])
    return [
        f"{figure_number((a - xs[0]) * scale)} {figure_number(_y(b, ys))}"
        for a, b in zip(x.tolist(), y.tolist())
    ]


def _path(line: Line, xs: tuple[float, float], ys: tuple[float, float]) -> str:
    points = _points(line.x, line.y, xs, ys)
    # a stroke's round end is the dot
    if line.dots or len(points) == 1:
        return "".join(f"M{one}h0" for one in points)
    return "M" + "L".join(points)


def _classes(line: Line) -> str:
    kinds = (f"s{line.style % STYLES}", "faint" * line.faint, "dots" * line.dots, line.kind)
    return " ".join(["line", *filter(None, kinds)])


def _band(line: Line, xs: tuple[float, float], ys: tuple[float, float]) -> str:
    there, back = _points(line.x, line.high, xs, ys), _points(line.x, line.low, xs, ys)
    return f"M{'L'.join([*there, *reversed(back)])}Z"


def sample(style: int) -> Html:
    """A short piece of a line, for a legend."""
    return _mark("sample", "0 0 26 10", tag("path", class_=f"line s{style % STYLES}", d="M0 5H26"))


def swatch(state: str) -> Html:
    """A small field in the hatching of a state, for a legend."""
    return _mark("swatch", "0 0 12 12", tag("rect", class_=state, width=12, height=12))


def _mark(name: str, box: str, shape: Html) -> Html:
    return tag("svg", shape, class_=name, viewBox=box, aria_hidden="true")


def hatchings() -> Html:
    """The pattern of each state, which distinguishes it without colour; once in a page."""

    dot: dict[str, str | float | None] = {"class_": "starved-mark", "width": 1.6, "height": 1.6}
    stripe = tag("rect", class_="preempted-mark", width=1.6, height=4)
    dots = (tag("rect", x=1, y=1, **dot), tag("rect", x=4, y=4, **dot))
    dash = tag("rect", class_="blocked-mark", y=2, width=5, height=1.1)
    fills = (
        _fill("preempted", 4, "rotate(45)", stripe),
        _fill("starved", 6, None, *dots),
        _fill("blocked", 5, None, dash),
    )
    return tag(
        "svg", tag("defs", *fills), class_="hatchings", width=0, height=0, aria_hidden="true"
    )


def _fill(state: str, size: float, turn: str | None, *marks: Html) -> Html:
    ground = tag("rect", class_=f"{state}-ground", width=size, height=size)
    box: dict[str, str | float | None] = {
        "width": size,
        "height": size,
        "patternUnits": "userSpaceOnUse",
        "patternTransform": turn,
    }
    return tag("pattern", ground, *marks, id=f"fill-{state}", **box)


def legend(parts: Sequence[tuple[Html, str]]) -> Html:
    return tag("ul", *(tag("li", mark, name) for mark, name in parts), class_="legend")


def states_legend() -> Html:
    """The four states, with what each means."""
    means = {
        "worked": "worked",
        "preempted": "preempted: waits for a core",
        "starved": "starved: waits for input",
        "blocked": "blocked: waits for room",
    }
    return legend([(swatch(state), means[state]) for state in STATES])

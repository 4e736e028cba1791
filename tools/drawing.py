"""Small SVG pictures with a look for the light and one for the dark: lines, bars, and what a
terminal printed.

The look for the dark is a rule of the SVG's own style, so one file serves both; `build_docs.py`
makes two files of it, which follow the site's switch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from equipoise.report.figures import ticks

LIGHT = (
    "--paper:#fff;--ink:#1f2328;--soft:#57606a;--grid:#e1e5ea;--a:#0b5cad;--b:#a8490f;--c:#28702f"
)
DARK = (
    "--paper:#131416;--ink:#e3e6ea;--soft:#a3adb8;--grid:#30353b;--a:#7ab8ff;--b:#f0a15e;"
    "--c:#7fd08c"
)
STYLE = (
    f"svg{{{LIGHT}}} @media (prefers-color-scheme: dark) {{svg{{{DARK}}}}} "
    ".p{fill:var(--paper)} text{font:13px system-ui,sans-serif;fill:var(--ink)} "
    ".s{fill:var(--soft)} .g{stroke:var(--grid)} .m{font:13px ui-monospace,Menlo,Consolas,"
    "monospace;white-space:pre} .h{font-weight:600} "
    "path{fill:none;stroke-width:2;stroke-linejoin:round}"
)
COLOURS, DASHES = ("a", "b", "c"), ("", "7 4", "2 3")
# What matplotlib draws with, and the look of it in the dark.
PLOT_DARK = (
    '[style*="fill: #ffffff"]{fill:#131416!important} '
    '[style*="stroke: #ffffff"]{stroke:#131416!important} '
    '[style*="stroke: #000000"]{stroke:#a3adb8!important} '
    '[style*="stroke: #cccccc"]{stroke:#30353b!important} '
    '[id^="text_"]{fill:#e3e6ea} '
    '[style*="fill: #000000"]{fill:#e3e6ea!important} '
    '[style*="stroke: #1f77b4"]{stroke:#7ab8ff!important} '
    '[style*="stroke: #555555"]{stroke:#a3adb8!important} '
    '[style*="stroke: #2a6f97"]{stroke:#5aa3cf!important} '
    '[style*="fill: #2a6f97"]{fill:#5aa3cf!important} '
    '[style*="fill: #555555"]{fill:#a3adb8!important}'
)
WIDTH = 640


@dataclass(frozen=True)
class Bar:
    """One bar: its label, its length and the words at its end."""

    label: str
    value: float
    words: str


def short(value: float) -> str:
    """A number of an axis."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def picture(title: str, height: float, parts: Iterable[str], width: int = WIDTH) -> str:
    """An SVG with a title, on a ground of its own."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" '
            f'width="{width}" height="{height:.0f}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="p" width="{width}" height="{height:.0f}"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "") -> str:
    attributes = (f' class="{kind}"' if kind else "") + (
        f' text-anchor="{anchor}"' if anchor else ""
    )
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(words)}</text>'


def lines(
    title: str,
    curves: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    *,
    x: str = "env steps",
    goal: float | None = None,
) -> str:
    """Curves over one axis, at most three; a goal is a level line."""
    left, top, right, bottom = 60.0, 64.0, WIDTH - 28.0, 300.0
    points = [point for _, curve in curves for point in curve]
    ys = [y for _, y in points] + ([] if goal is None else [goal])
    high_x, low, high = max(px for px, _ in points), min(ys), max(ys)
    low, high = (low - 1, high + 1) if low == high else (low, high)

    def at(px: float, py: float) -> tuple[float, float]:
        across = left + (right - left) * px / high_x
        return across, bottom - (bottom - top) * (py - low) / (high - low)

    parts = [text(16, 24, title, "h")]
    for tick in ticks(low, high):
        _, y = at(0, tick)
        parts.append(f'<line class="g" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(text(left - 8, y + 4, short(tick), "s", "end"))
    parts += [
        text(at(tick, low)[0], bottom + 20, short(tick), "s", "middle") for tick in ticks(0, high_x)
    ]
    parts.append(text(right, bottom + 38, x, "s", "end"))
    if goal is not None:
        y = at(0, goal)[1]
        parts.append(
            f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--soft)" '
            'stroke-dasharray="2 4"/>'
        )
        parts.append(text(left + 6, y + 16, f"goal: {goal:g}", "s"))
    across = left
    for (name, curve), colour, dash in zip(curves, COLOURS, DASHES, strict=False):
        drawn = "L".join("{:.1f} {:.1f}".format(*at(*point)) for point in curve)
        pen = f'stroke="var(--{colour})"' + (f' stroke-dasharray="{dash}"' if dash else "")
        parts.append(f'<path d="M{drawn}" {pen}/>')
        parts.append(f'<path d="M{across:.0f} 44h26" {pen}/>')
        parts.append(text(across + 32, 48, name))
        across += 56 + 7.2 * len(name)
    return picture(title, bottom + 50, parts)


def bars(
    title: str, groups: Sequence[tuple[str, Sequence[Bar]]], *, note: str = "", full: float = 0.0
) -> str:
    """Bars below one another; each group has a scale of its own, from 0 to its longest bar or to
    ``full``.
    """
    parts, y = [text(16, 24, title, "h")], 40.0
    labels = [bar.label for _, group in groups for bar in group]
    left = 32 + 7.0 * max(map(len, labels))
    room = WIDTH - 16 - 7.2 * max(len(bar.words) for _, group in groups for bar in group) - left
    for name, group in groups:
        if name:
            parts.append(text(16, y + 14, name, "s"))
            y += 24
        longest = full or max(bar.value for bar in group)
        for bar in group:
            long = max(room * bar.value / longest, 1.0)
            parts.append(text(left - 8, y + 15, bar.label, "", "end"))
            parts.append(
                f'<rect x="{left:.1f}" y="{y + 2:.1f}" width="{long:.1f}" height="16" '
                'fill="var(--a)"/>'
            )
            parts.append(text(left + long + 8, y + 15, bar.words))
            y += 24
        y += 8
    if note:
        parts.append(text(16, y + 14, note, "s"))
        y += 24
    return picture(title, y + 6, parts)


def terminal(command: str, printed: str) -> str:
    """A command, and what it printed."""
    rows = printed.rstrip("\n").split("\n")
    width = max(WIDTH, 32 + math.ceil(7.9 * max(map(len, [f"$ {command}", *rows]))))
    parts = [text(16, 28, f"$ {command}", "m h")]
    parts += [text(16, 52 + 20 * n, row, "m") for n, row in enumerate(rows)]
    return picture(command, 56 + 20 * len(rows), parts, width)


def with_dark(drawn: str) -> str:
    """An SVG of matplotlib with a look for the dark, and coordinates of one decimal."""
    if "prefers-color-scheme" in drawn:
        return drawn
    drawn = re.sub(r"(?<![\w#.])(-?[1-9]\d+\.\d)\d+", r"\1", drawn)  # not the scale of glyphs
    drawn = re.sub(r" *<metadata>.*?</metadata>\n", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r" +\n", "\n", drawn)
    rule = f" @media (prefers-color-scheme: dark) {{{PLOT_DARK}}}</style>"
    return drawn.replace("</style>", rule, 1)

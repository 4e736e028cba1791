"""Curves as text: points in braille characters, two columns and four rows of dots in each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.text import Text

from equipoise.record.ring import short

MOST_POINTS = 4096  # of a series; beyond that every second one is dropped
LABEL = 9  # columns of the numbers at the left edge
LEAST_ROWS, MOST_ROWS = 5, 20  # of a plot, with its caption and its axis
GAP = 3  # columns between two plots
BLANK = 0x2800
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # bits by column and row


@dataclass(slots=True)
class Series:
    """Numbers of a run over its steps, as many as a plot can use."""

    at: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, step: int, value: float) -> None:
        """Append a point; a value that is not finite is left out."""
        if not math.isfinite(value):
            return
        self.at.append(step)
        self.values.append(value)
        if len(self.values) > MOST_POINTS:
            del self.at[::2], self.values[::2]


def in_ascii() -> dict[str, str]:
    """Replacements of braille characters for encodings without them."""
    upper, lower = 0x01 | 0x08 | 0x02 | 0x10, 0x04 | 0x20 | 0x40 | 0x80
    return {
        chr(BLANK + bits): " '.:"[bool(bits & upper) + 2 * bool(bits & lower)]
        for bits in range(256)
    }


def plot(name: str, series: Series, width: int, rows: int, style: str) -> list[Text]:
    """Draw a caption, the curve with its lowest and highest value, and the steps below it."""
    columns, high_rows = max(width - LABEL - 1, 1), max(rows - 2, 1)
    means = _columns(series, 2 * columns)
    found = [y for y in means if y is not None]
    low, high = min(found), max(found)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = abs(low) / 20 or 0.5
        low, high = low - margin, high + margin
    cells = _cells(means, low, high, columns, high_rows)
    lines = [Text(f"{'':{LABEL}} {name}"[:width], no_wrap=True)]
    for row, bits in enumerate(cells):
        label = _number(high) if row == 0 else _number(low) if row == high_rows - 1 else ""
        line = Text(f"{label:>{LABEL}} ", style="bright_black", no_wrap=True)
        lines.append(line.append("".join(chr(BLANK + one) for one in bits), style=style))
    first, last = short(series.at[0]), f"{short(series.at[-1])} steps"
    between = max(columns - len(first) - len(last), 1)
    lines.append(
        Text(
            f"{'':{LABEL}} {first}{' ' * between}{last}"[:width], style="bright_black", no_wrap=True
        )
    )
    return lines


def side_by_side(plots: Sequence[Sequence[Text]], width: int) -> list[Text]:
    """Join plots of the same height, each in ``width`` columns."""
    lines = []
    for parts in zip(*plots, strict=True):
        line = Text(no_wrap=True)
        for i, part in enumerate(parts):
            line.append(part)
            if i < len(parts) - 1:
                line.append(" " * (width - part.cell_len + GAP))
        lines.append(line)
    return lines


def _columns(series: Series, columns: int) -> list[float | None]:
    """Return the mean value of each column of dots, or None for a column without a point."""
    first, span = series.at[0], max(series.at[-1] - series.at[0], 1)
    sums, counts = [0.0] * columns, [0] * columns
    for step, value in zip(series.at, series.values, strict=True):
        column = min(max((step - first) * (columns - 1) // span, 0), columns - 1)
        sums[column] += value
        counts[column] += 1
    return [total / n if n else None for total, n in zip(sums, counts, strict=True)]


def _cells(
    means: Sequence[float | None], low: float, high: float, columns: int, rows: int
) -> list[list[int]]:
    """Return the bits of each character: a line through the means, from column to column."""
    cells = [[0] * columns for _ in range(rows)]
    last = 4 * rows - 1
    before: tuple[int, int] | None = None
    for x, mean in enumerate(means):
        if mean is None:
            continue
        y = last - round((mean - low) / (high - low) * last)
        x0, y0 = before or (x, y)
        steps = max(x - x0, abs(y - y0), 1)
        for i in range(steps + 1):
            px, py = x0 + (x - x0) * i // steps, y0 + round((y - y0) * i / steps)
            cells[py // 4][px // 2] |= DOTS[px % 2][py % 4]
        before = x, y
    return cells


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"

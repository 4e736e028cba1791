"""Columns: a table as lines of text, each column as wide as its longest entry."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.console.place import printable

FIRST = 12  # columns that the first entry of a line has at least


def columns(
    head: Sequence[str], body: Sequence[Sequence[str]], *, left: int, width: int | None
) -> list[str]:
    """Lines in which each column is as wide as its longest entry; the first one is cut if a line is
    wider than ``width``.
    """
    body = [[printable(entry) for entry in row] for row in body]
    widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head))]
    if width is not None and (too_wide := total(widths) - width) > 0:
        widths[0] = max(widths[0] - too_wide, min(widths[0], FIRST))
    lines = []
    for row in (head, *body):
        first = row[0] if len(row[0]) <= widths[0] else f"...{row[0][3 - widths[0] :]}"
        cells = [first, *row[1:]]
        lines.append(
            "  ".join(
                f"{x:<{w}}" if i < left else f"{x:>{w}}"
                for i, (x, w) in enumerate(zip(cells, widths))
            ).rstrip()
        )
    return lines


def total(widths: Sequence[int]) -> int:
    """The columns that a line takes."""
    return sum(widths) + 2 * (len(widths) - 1)

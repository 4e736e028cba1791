"""Completions of a text run in the terminal: a table with a column for each reward function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from equipoise.console.columns import columns, total
from equipoise.console.place import printable
from equipoise.record.completions import by_function

LEAST = 16  # columns of a text
USUAL = 120  # width of a table that goes into a file
NAME = 24  # columns of a function's name
TEXTS = ("prompt", "completion")


def lines(found: Mapping[str, object], width: int | None) -> list[str]:
    """Return the lines of a table of ``completions.json``.

    A long text is cut, with the number of its characters that are left out. Control characters are
    escaped.
    """
    given = cast(Sequence[Mapping[str, object]], found["samples"])
    samples = [by_function(one) for one in given]
    names = list(dict.fromkeys(name for one in samples for name in one if name not in TEXTS))
    head = [*TEXTS, *(_cut(name, NAME) for name in names)]
    numbers = [[_number(one.get(name)) for name in names] for one in samples]
    widths = [max(map(len, column)) for column in zip(head[2:], *numbers, strict=True)]
    left = (width or USUAL) - total([*widths, 0, 0])
    prompt = max(LEAST, left // 3)
    sizes = prompt, max(LEAST, left - prompt)
    rows = [
        [*(_cut(str(one[name]), size) for name, size in zip(TEXTS, sizes, strict=True)), *row]
        for one, row in zip(samples, numbers, strict=True)
    ]
    title = f"evaluation at step {cast(int, found['step']):,}: {len(samples)} of its answers"
    return [title, *columns(head, rows, left=2, width=None)]


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "-"


def _cut(text: str, most: int) -> str:
    """Return at most ``most`` columns of a text in one line, and how many more it has."""
    whole = printable(text).replace("\t", " ")
    if len(whole) <= most:
        return whole
    kept = max(0, most - len(f"... +{len(whole):,}"))
    return f"{whole[:kept]}... +{len(whole) - kept:,}"

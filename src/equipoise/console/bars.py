"""The time of workers as bars: worked, preempted, starved, blocked, and the parts of their work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from equipoise.balance.shares import STATES, Shares, add
from equipoise.console.picture import WIDTH, brief
from equipoise.record.ring import STEPPING, place_of

BAR = 60  # most columns of a worker's bar
NAME = 10  # columns of a worker's name at least
COLUMNS = (9, 12, 10, 10)  # columns of the shares in numbers
# distinct also without colour
MARKS = {"worked": "█", "preempted": "▒", "starved": "░", "blocked": "·"}
STYLES = {"worked": "green", "preempted": "red", "starved": "yellow", "blocked": "blue"}


def balance_lines(
    balance: Mapping[str, Shares],
    rows: int = 8,
    width: int = WIDTH,
    more: Mapping[str, str] | None = None,
) -> list[Text]:
    """The legend as a head, and a line for each worker; beyond ``rows`` workers the actors share
    one line.

    ``more``: below each worker stand the parts of its work, and these words of it.
    """
    shown = _fold(balance, rows)
    of_parts = {
        name: []
        if more is None
        else sorted((part for part in one.parts if one.parts[part]), key=one.part, reverse=True)
        for name, one in shown
    }
    name_width = (
        max(
            [
                NAME - 1,
                *map(len, of_parts),
                *(len(part) + 2 for found in of_parts.values() for part in found),
            ]
        )
        + 1
    )
    bar = max(min(width - 2 - name_width - sum(COLUMNS), BAR), 4)
    lines = [Text(" " * (name_width + bar), no_wrap=True)]
    for state, columns in zip(STATES, COLUMNS, strict=True):
        lines[0].append(f"{MARKS[state]} {state}".rjust(columns), style=STYLES[state])
    for name, shares in shown:
        line = Text(f"{name:<{name_width}}", no_wrap=True).append(bar_of(shares, bar))
        for state, columns in zip(STATES, COLUMNS, strict=True):
            line.append(
                (f"{shares.share(state) * 100:.0f} %" if shares.total > 0 else "—").rjust(columns)
            )
        lines += [line, *(_part(shares, part, name_width, bar) for part in of_parts[name])]
        lines += (
            [Text(f"  {more[name]}", no_wrap=True)] if more is not None and name in more else []
        )
    return lines


def _fold(balance: Mapping[str, Shares], rows: int) -> list[tuple[str, Shares]]:
    """Order the workers as in the ring, actors first."""
    actors = [
        (name, shares)
        for name, shares in balance.items()
        if place_of(shares.side, shares.serves) == STEPPING
    ]
    others = [
        (name, shares)
        for name, shares in balance.items()
        if place_of(shares.side, shares.serves) != STEPPING
    ]
    if len(balance) > rows and len(actors) > 1:
        actors = [(f"{len(actors)} actors", add(shares for _, shares in actors))]
    return actors + others


def _part(shares: Shares, part: str, name_width: int, bar: int) -> Text:
    """A part of a worker's work: its share of the time, and how long it takes each time."""
    share, times = shares.part(part), shares.counts.get(part, 0.0)
    line = Text(f"{f'  {part}':<{name_width}}", no_wrap=True).append(
        "━" * round(share * bar), style="green"
    )
    line.append(" " * (name_width + bar - len(line)) + f"{share * 100:.0f} %".rjust(COLUMNS[0]))
    return line.append(f"  {brief(shares.parts[part] / times)} each" if times else "")


def bar_of(shares: Shares, width: int) -> Text:
    """A worker's time as a bar of ``width`` columns, empty if no time was measured."""
    bar = Text()
    for state, cells in zip(
        STATES, cells_of([shares.share(state) for state in STATES], width), strict=True
    ):
        bar.append(MARKS[state] * cells, style=STYLES[state])
    return bar.append(" " * (width - len(bar)))


def cells_of(shares: Sequence[float], width: int) -> list[int]:
    """Whole cells for shares that sum to 1: they fill ``width``,
    each within one cell of its share.
    """
    if sum(shares) <= 0:
        return [0] * len(shares)
    exact = [share * width for share in shares]
    cells = [int(x) for x in exact]
    by_rest = sorted(range(len(shares)), key=lambda i: cells[i] - exact[i])
    for i in by_rest[: width - sum(cells)]:
        cells[i] += 1
    return cells

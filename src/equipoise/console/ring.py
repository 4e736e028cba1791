"""The ring as text: the workers and stores that rows pass, with what flows between them and which
workers wait.

An arrow is the thicker the more bytes a second it carries, and dotted if nothing flows. ``▲`` marks
back-pressure: workers that have no room to go on, which are *blocked*. Workers that wait for rows
are *starved*; they stand at the same arrow.
"""

from __future__ import annotations

from rich.text import Text

from equipoise.balance.shares import STATES
from equipoise.console.bars import BAR, MARKS, STYLES, bar_of
from equipoise.console.picture import History, site_lines, text_lines
from equipoise.console.place import joined
from equipoise.record.report import Report
from equipoise.record.ring import Arrow, Station, ring, way_back
from equipoise.types import Program

GUTTER, ARROW = 4, 6  # columns: the way back to the actors, and an arrow
RIGHT = 14  # columns of a percentage and its word


def ring_lines(report: Report, program: Program, history: History, width: int) -> list[Text]:
    """Draw the ring from top to bottom; its left edge is the way of the weights back to the workers
    that act.
    """
    stations, arrows = ring(report, program, history.rates)
    central = program.placement.inference == "central"
    name_width = max(len(_name(station)) for station in stations)
    bar = max(min(width - GUTTER - name_width - 2 - RIGHT, BAR), 4)
    lines = []
    for i, station in enumerate(stations):
        acts = i == central and program.actors > 0
        inside = "│" if program.actors and i >= central else " "
        lines.append(_station(station, "┌─▶ " if acts else f"{inside}   ", name_width, bar))
        if not i:
            sites = [
                line
                for said in site_lines(report.sites)
                for line in text_lines(said, width - GUTTER - 2)
            ]
            lines += [Text(f"{inside}     ").append(line) for line in sites]
        if i < len(arrows):
            lines += _arrow(arrows[i], inside, width)
    if (back := way_back(report, program, history.rates)) is not None:
        words = "  ".join(said for said, _ in back.said())
        lines.append(Text(f"└◀{'━' * back.level or '─'} {words}", no_wrap=True))
    legend = Text(" " * GUTTER, no_wrap=True)
    for state in STATES:
        legend.append(f"{MARKS[state]} {state}", style=STYLES[state]).append(
            "  " * (state != STATES[-1])
        )
    return [*lines, legend]


def _name(station: Station) -> str:
    full = (
        ""
        if station.shares is None or station.full is None
        else f", {station.full * 100:.0f} % full"
    )
    return station.name + full


def _station(station: Station, before: str, name_width: int, bar: int) -> Text:
    line = Text(before, no_wrap=True).append(f"{_name(station):<{name_width}}  ", style="bold")
    if station.shares is not None:
        line.append(bar_of(station.shares, bar))
        said = (
            f"{station.shares.share('worked') * 100:.0f} % worked"
            if station.shares.total > 0
            else "—"
        )
    else:
        cells = round((station.full or 0.0) * bar)
        line.append("━" * cells, style="cyan").append(
            ("─" if station.full is not None else " ") * (bar - cells), "bright_black"
        )
        said = "" if station.full is None else f"{station.full * 100:.0f} % full"
    return line.append(f"  {said}")


def _arrow(arrow: Arrow, inside: str, width: int) -> list[Text]:
    """An arrow down with the text next to it, in as many lines as the text needs."""
    head = ("┃" * arrow.level or "╎") + "▼"
    lines = []
    for i, said in enumerate(
        joined([one for one, _ in arrow.said()], width - GUTTER - ARROW, "") or [""]
    ):
        line = Text(f"{inside}   {head if not i else '':<{ARROW}}{said}", no_wrap=True)
        line.highlight_regex(r"▲ \w+ blocked \d+ %", "blue")
        line.highlight_regex(r"\w+ starved \d+ %", "yellow")
        lines.append(line)
    return lines

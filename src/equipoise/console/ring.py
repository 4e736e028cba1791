"""The ring as text: the workers and stores that rows pass, with what flows between them and which workers wait.

An arrow is the thicker the more bytes a second it carries, and dotted where nothing flows. ``▲`` marks back-pressure: workers
that have no room to go on, which are *blocked*. Workers that wait for rows are *starved*; they stand at the same arrow.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.filesize import decimal
from rich.text import Text

from equipoise.balance.shares import STATES, Shares, add
from equipoise.console.bars import BAR, MARKS, STYLES, bar_of
from equipoise.console.picture import History, count, short, site_lines, text_lines
from equipoise.console.place import joined
from equipoise.record.report import Report
from equipoise.types import Program, learning

GUTTER, ARROW = 4, 6  # columns: the way back to the actors, and an arrow
RIGHT = 14  # columns of a percentage and its word
THICKER = (1e5, 1e7, 1e9)  # bytes a second from which an arrow has one bar more
LEAST = 0.005  # share of the time that is worth a word


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """Workers of one sort, or a store of rows."""

    name: str
    noun: str = ""
    shares: Shares | None = None  # of workers
    full: float | None = None  # of a store, 0..1


def ring_lines(report: Report, program: Program, history: History, width: int) -> list[Text]:
    """Draw the ring from top to bottom; its left edge is the way of the weights back to the workers that act."""
    stations, arrows = _stations(report, program), _arrows(report, program, history)
    central = program.placement.inference == "central"
    name_width = max(len(station.name) for station in stations)
    bar = max(min(width - GUTTER - name_width - 2 - RIGHT, BAR), 4)
    lines = []
    for i, station in enumerate(stations):
        acts = i == central and program.actors > 0
        inside = "│" if program.actors and i >= central else " "
        lines.append(_station(station, "┌─▶ " if acts else f"{inside}   ", name_width, bar))
        if not i:
            sites = [line for said in site_lines(report.sites) for line in text_lines(said, width - GUTTER - 2)]
            lines += [Text(f"{inside}     ").append(line) for line in sites]
        if i < len(stations) - 1:
            said, flow = arrows[i]
            lines += _arrow([*said, *_waits(stations[i], stations[i + 1], both=central and not i)], flow, inside, width)
    if program.actors:
        bound = "none" if program.placement.max_lag is None else str(program.placement.max_lag)
        if report.governor is not None and report.governor["max_lag"] is not None:
            bound = f"{report.governor['max_lag']} of {bound}"
        flow = history.rate("moved", "weights")
        parts = [f"weights (max lag {bound})", *_bytes(flow)]
        lines.append(Text(f"└◀{'━' * _thickness(flow) or '─'} {'  '.join(parts)}", no_wrap=True))
    legend = Text(" " * GUTTER, no_wrap=True)
    for state in STATES:
        legend.append(f"{MARKS[state]} {state}", style=STYLES[state]).append("  " * (state != STATES[-1]))
    return [*lines, legend]


def _stations(report: Report, program: Program) -> list[Station]:
    """What rows pass, in their order."""
    workers, place, stores = report.balance.values(), program.placement, report.occupancy
    actors = add(one for one in workers if one.side == "sampling" and not one.serves)
    acting = "" if report.governor is None else f"{report.governor['actors']} of "
    named = f"{acting}{count(program.actors, 'actor')} × {count(place.envs_per_actor, 'env')}"
    found = [Station(name=named, noun="actors", shares=actors) if program.actors else Station(name="data set")]
    if place.inference == "central":
        servers = add(one for one in workers if one.serves)
        found.append(Station(name=count(place.inference_workers, "inference worker"), noun="inference", shares=servers))
    replays = [one.replay for one in learning(program).values() if one.replay is not None]
    shards = sum(replay.shards for replay in replays if replay.shards > 1)
    kept = [share for name, share in stores.items() if name != "queue"]
    full = sum(kept) / len(kept) if kept else None
    if shards:
        name = count(shards, "shard") + ("" if full is None else f", {full * 100:.0f} % full")
        keeping = add(one for one in workers if one.side == "keeping")
        found.append(Station(name=name, noun="shards", shares=keeping))
    elif program.actors:
        name = ("replay", "replays")[len(replays) > 1] if replays else "queue"
        found.append(Station(name=name, full=full if replays else stores.get("queue")))
    learners = add(one for one in workers if one.side == "learning")
    name = "learner" if place.learners == 1 else count(place.learners, "learner")
    return [*found, Station(name=name, noun="learners" if place.learners > 1 else "learner", shares=learners)]


def _arrows(report: Report, program: Program, history: History) -> list[tuple[list[str], float]]:
    """What flows from each station to the next: in words, and bytes a second (with an arrow's least where they are unknown)."""
    replay = any(one.replay is not None for one in learning(program).values())
    written, learned = (history.rate("moved", name) for name in ("written", "batches" if replay else "read"))
    last = ([f"{report.updates_per_s:,.1f} updates/s", *_bytes(learned)], learned)
    if not program.actors:
        return [last]
    steps = history.rate("taken")
    said = [f"{short(round(steps))} steps/s"] if steps else []
    waiting = [f"queue {report.occupancy['queue'] * 100:.0f} % full"] if replay and "queue" in report.occupancy else []
    if program.placement.inference == "central":
        return [(said, min(steps, 1.0)), ([*_bytes(written), *waiting], written), last]
    return [([*said, *_bytes(written), *waiting], written), last]


def _bytes(rate: float) -> list[str]:
    return [f"{decimal(round(rate))}/s"] if rate else []


def _waits(above: Station, below: Station, *, both: bool) -> list[str]:
    """Workers that wait at an arrow; ``both``: the upper ones wait for answers as well."""
    waits = [(above, "blocked"), *([(above, "starved")] if both else []), (below, "starved")]
    return [
        f"{'▲ ' * (state == 'blocked')}{one.noun} {state} {share * 100:.0f} %"
        for one, state in waits
        if one.shares is not None and (share := one.shares.share(state)) >= LEAST
    ]


def _station(station: Station, before: str, name_width: int, bar: int) -> Text:
    line = Text(before, no_wrap=True).append(f"{station.name:<{name_width}}  ", style="bold")
    if station.shares is not None:
        line.append(bar_of(station.shares, bar))
        said = f"{station.shares.share('worked') * 100:.0f} % worked" if station.shares.total > 0 else "—"
    else:
        cells = round((station.full or 0.0) * bar)
        line.append("━" * cells, style="cyan").append(
            ("─" if station.full is not None else " ") * (bar - cells), "bright_black"
        )
        said = "" if station.full is None else f"{station.full * 100:.0f} % full"
    return line.append(f"  {said}")


def _arrow(parts: list[str], flow: float, inside: str, width: int) -> list[Text]:
    """An arrow down with what stands beside it, in as many lines as that needs."""
    head = ("┃" * _thickness(flow) or "╎") + "▼"
    lines = []
    for i, said in enumerate(joined(parts, width - GUTTER - ARROW, "") or [""]):
        line = Text(f"{inside}   {head if not i else '':<{ARROW}}{said}", no_wrap=True)
        line.highlight_regex(r"▲ \w+ blocked \d+ %", "blue")
        line.highlight_regex(r"\w+ starved \d+ %", "yellow")
        lines.append(line)
    return lines


def _thickness(flow: float) -> int:
    return 1 + sum(flow >= least for least in THICKER) if flow else 0

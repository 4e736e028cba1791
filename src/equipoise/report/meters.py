"""Meters: the parts of each worker's work, histograms of the age of experience, and CPU and memory
over time
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from equipoise.console.picture import clock, took
from equipoise.histograms import EDGES
from equipoise.record.described import clipped
from equipoise.report.elements import captioned, folded_section, more, named, short_name
from equipoise.report.figures import (
    STYLES,
    Line,
    bars,
    chart,
    legend,
    part_swatch,
    sample,
    segments,
    tick_text,
)
from equipoise.report.markup import Html, tag
from equipoise.report.runs import Entry, Group, RunRecord
from equipoise.report.workers import MOST_TIMELINES, MOST_TRACKS, folded, sides

LEAST_PART = 0.005  # of the work, for a part to be named
MOST_GROUPS = 8  # with figures of their own
BINS = 60  # points of a line over the time of a run
LEAST_S = 2.0  # between two points of the CPU's line: a process is looked at once a second
AGES = {
    "versions": ("Versions since the first action", "windows that were learned from"),
    "seconds": ("Seconds since the version that acted came out", "windows that were learned from"),
    "loop": ("Seconds from an env step to its update", "unrolls"),
}


# ----------------------------------------------------------------------------------- parts of ticks


def parts_section(groups: Sequence[Group]) -> Html | None:
    """The work of each worker over the whole run, cut into its parts."""
    found = [(group, rows) for group in groups[:MOST_GROUPS] if (rows := _workers(group))]
    if not found:
        return None
    several = len(groups) > 1
    each = [
        more(clipped(group.name, 120), *rows, opened=i < 3) if several else tag("div", *rows)
        for i, (group, rows) in enumerate(found)
    ]
    note = (
        "Shares of the time in which a worker worked or waited for a core, over the whole run. "
        "The rest is no part's."
    )
    return folded_section("Parts of the work", *each, note=note)


def _workers(group: Group) -> list[Html]:
    balance = group.balance()
    left, right, beside = sides(balance)
    rows = {**folded(left, MOST_TRACKS), **folded(right, MOST_TRACKS), **folded(beside, 2)}
    return [
        _work(name, parts)
        for name, inside in rows.items()
        if (parts := parts_of([balance[one] for one in inside]))
    ]


def parts_of(workers: Sequence[Entry]) -> dict[str, float]:
    """The share of each part in some workers' work, 0..1; estimates may exceed the work."""
    seconds: dict[str, float] = {}
    for name, x in itertools.chain.from_iterable(one.get("parts", {}).items() for one in workers):
        seconds[name] = seconds.get(name, 0.0) + max(x, 0.0)
    busy = sum(max(one["worked"], 0.0) + max(one["preempted"], 0.0) for one in workers)
    whole = max(busy, sum(seconds.values()))
    return {name: x / whole for name, x in seconds.items() if x >= LEAST_PART * whole > 0}


def _work(name: str, parts: Mapping[str, float]) -> Html:
    """A worker's bar, and under it the pieces of the bar in their order."""
    said = [
        (part_swatch(i), f"{clipped(part, 40)} {100 * share:.0f} %")
        for i, (part, share) in enumerate(parts.items())
    ]
    bar = segments(list(parts.values()))
    return tag("div", tag("bdi", clipped(name, 40)), tag("div", bar, legend(said)), class_="work")


# -------------------------------------------------------------------------------- age of experience


def ages_section(groups: Sequence[Group]) -> Html | None:
    """Histograms of the age of what was learned from, and of the way round the ring."""
    found = [(group, charts) for group in groups[:MOST_GROUPS] if (charts := _histograms(group))]
    if not found:
        return None
    several = len(groups) > 1
    each = [
        tag(
            "div",
            tag("p", named(group.style, group.name)) if several else None,
            tag("div", *charts, class_="grid"),
        )
        for group, charts in found
    ]
    note = (
        "Each bar has what was at most so old as the label at its right end; its height is the "
        "share of all."
    )
    return folded_section("Age of experience", *each, note=note)


def _histograms(group: Group) -> list[Html]:
    ages = [one.ages for one in group.runs]
    found: dict[str, Html | None] = {}
    for name, (title, what) in AGES.items():
        text = _seconds if EDGES[name] is EDGES["seconds"] else tick_text
        shares = histogram([age.get(name, {}) for age in ages], EDGES[name], text)
        if shares:
            found[title] = bars(list(shares.items()), label=title, x_label=what)
    return captioned(found)


def histogram(
    counts: Sequence[Mapping[str, int]], edges: Sequence[float], text: Callable[[float], str]
) -> dict[str, float]:
    """The share of each bin between the non-empty ends, by the label of its upper edge."""
    keys = [*(f"{edge:g}" for edge in edges), "inf"]
    labels = [*(text(edge) for edge in edges), "more"]
    sums = [sum(one.get(key, 0) for one in counts) for key in keys]
    filled = [i for i, n in enumerate(sums) if n]
    if not filled:
        return {}
    return {labels[i]: sums[i] / sum(sums) for i in range(filled[0], filled[-1] + 1)}


def _seconds(value: float) -> str:
    return f"{value * 1e3:g} ms" if value < 1 else f"{value:g} s" if value < 100 else took(value)


# ------------------------------------------------------------------------------ processes over time


def processes_section(groups: Sequence[Group]) -> Html | None:
    """CPU and memory of the processes of each run over its time, a line for each kind of worker."""
    runs = [one for group in groups for one in group.runs]
    opened = {id(group.first) for group in groups[:3]}
    drawn = [(one, charts) for one in runs[:MOST_TIMELINES] if (charts := _processes(one))]
    if not drawn:
        return None
    found = [
        more(f"{short_name(one)} · {clock(one.last['wall_s'])}", *charts, opened=id(one) in opened)
        for one, charts in drawn
    ]
    note = (
        "All processes of a kind added up. Memory that several share counts in each that has "
        "touched it."
    )
    return folded_section("Processes over time", *found, note=note)


def _processes(one: RunRecord) -> list[Html]:
    lines = [line for line in one.lines if line.get("usage") and not line["final"]]
    kinds = list(dict.fromkeys(_kind(name) for line in lines for name in line["usage"]))[:STYLES]
    drawn = {
        "cores": [Line(i, *cores_of(lines, kind)) for i, kind in enumerate(kinds)],
        "memory in MB": [Line(i, *memory_of(lines, kind)) for i, kind in enumerate(kinds)],
    }
    shown = captioned(
        {name: chart(of, label=name, x_label="time", x_text=_time) for name, of in drawn.items()}
    )
    marks = legend([(sample(i), clipped(kind, 40)) for i, kind in enumerate(kinds)])
    return [marks, tag("div", *shown, class_="grid")] if shown else []


def _kind(process: str) -> str:
    kind, _, number = process.rpartition(" ")
    return kind if number.isdecimal() else process


def _time(seconds: float) -> str:
    return clock(seconds) if seconds >= 8 else f"{seconds:g} s"


def cores_of(lines: Sequence[Entry], kind: str) -> tuple[list[float], list[float]]:
    """(seconds of the run, cores at work between them) of the processes of a kind."""
    x, y = [], []
    apart = max(LEAST_S, lines[-1]["wall_s"] / BINS) if lines else LEAST_S
    before: Entry | None = None
    for line in lines:
        if before is None:
            before = line
        elif (length := line["wall_s"] - before["wall_s"]) >= apart:
            used = sum(
                _since(of["cpu_s"], before["usage"].get(name))
                for name, of in line["usage"].items()
                if _kind(name) == kind
            )
            x.append(line["wall_s"])
            y.append(used / length)
            before = line
    return x, y


def _since(cpu_s: float, then: Entry | None) -> float:
    """The seconds since then; all that a process used that has replaced another one."""
    return cpu_s - then["cpu_s"] if then is not None and cpu_s >= then["cpu_s"] else cpu_s


def memory_of(lines: Sequence[Entry], kind: str) -> tuple[list[float], list[float]]:
    """(seconds of the run, MB resident) of the processes of a kind."""
    sums = [
        sum(of["rss"] for name, of in line["usage"].items() if _kind(name) == kind)
        for line in lines
    ]
    return [line["wall_s"] for line in lines], [x / 1e6 for x in sums]

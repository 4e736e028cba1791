"""Workers: the ring of each group with its shares as arcs, and the shares of each worker over time
with the verdicts
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from equipoise.balance.shares import STATES
from equipoise.console.picture import clock
from equipoise.record.described import clipped
from equipoise.record.ring import BESIDE, KEEPING, LEARNING, SERVING, STEPPING, place_of, short
from equipoise.report.elements import (
    NONE,
    folded_section,
    lags_of,
    mean_text,
    more,
    note_of,
    section,
    short_name,
)
from equipoise.report.figures import Track, ring, spans, stacked, states_legend, ticks, x_label_at
from equipoise.report.markup import Html, tag
from equipoise.report.runs import Balance, Entry, Group, RunRecord

# workers of a side of the ring, and twice as many strips; beyond it several workers are one
MOST_TRACKS = 8
MOST_TIMELINES = 16
BINS = 72  # of a strip
LEAST_SHARE = 0.005  # of the time, for a verdict to have a line


def shares_of(seconds: Entry) -> dict[str, float]:
    """The share of each state, 0..1; empty where no time was measured."""
    total = sum(seconds[state] for state in STATES)
    return {state: seconds[state] / total for state in STATES} if total > 0 else {}


def sides(balance: Balance) -> tuple[list[str], list[str], list[str]]:
    """Names of the workers that sample, that learn or keep rows, and beside the ring, sorted."""
    names = sorted(balance, key=_natural)
    places = {
        name: place_of(balance[name]["side"], bool(balance[name].get("serves"))) for name in names
    }
    left = [name for name in names if places[name] in (STEPPING, SERVING)]
    right = [name for name in names if places[name] in (KEEPING, LEARNING)]
    return left, right, [name for name in names if places[name] == BESIDE]


def _natural(name: str) -> tuple[str, int, str]:
    """Actor 10 comes after actor 9."""
    kind, _, last = name.rpartition(" ")
    return (
        (kind, int(last), "")
        if last.isascii() and last.isdecimal() and len(last) < 10
        else (name, -1, name)
    )


def folded(names: Sequence[str], most: int) -> dict[str, list[str]]:
    """At most ``most`` rows of workers by name: where there are more, neighbours share one."""
    if len(names) <= most:
        return {name: [name] for name in names}
    edges = [i * len(names) // most for i in range(most + 1)]
    parts = [list(names[a:b]) for a, b in itertools.pairwise(edges)]
    return {
        part[0] if len(part) == 1 else f"{part[0]} to {part[-1].rpartition(' ')[2]}": part
        for part in parts
    }


def _added(balance: Balance, names: Sequence[str]) -> dict[str, float]:
    there = [balance[name] for name in names if name in balance]
    return {state: sum(max(one[state], 0.0) for one in there) for state in STATES}


def rings(groups: Sequence[Group]) -> Html:
    """A ring for each group."""
    found = [
        tag("figure", _ring(group), tag("figcaption", _ring_caption(group, len(groups))))
        for group in groups
    ]
    note = (
        "Each arc is a worker, the first one outermost; its time over the whole run runs clockwise."
    )
    return section("The ring", states_legend(), tag("div", *found, class_="rings"), note=note)


def _ring_caption(group: Group, count: int) -> Html:
    of = f" ({group.seeds}, added up)" if group.seeds else ""
    return tag("bdi", (group.name if count > 1 else "all workers") + of)


def _ring(group: Group) -> Html:
    balance = group.balance()
    left, right, _ = sides(balance)
    tracks = [
        [
            Track(clipped(name, 40), shares_of(_added(balance, inside)))
            for name, inside in folded(names, MOST_TRACKS).items()
        ]
        for names in (left, right)
    ]
    rate, lags = mean_text(group.values("steps_per_s"), 0)[0], lags_of(group)
    updates = sum(one.last["updates"] for one in group.runs) / len(group.runs)
    return ring(
        *tracks,
        names=(_counted(left, balance) or "data set", _counted(right, balance)),
        over="experience ▸",
        under="◂ weights"
        + (f", lag {sum(lags) / len(lags):.1f}" if lags and group.first.lag_name == "lag" else ""),
        middle=[
            clipped(group.judged.cause, 20),
            f"{rate} steps/s",
            f"{short(round(updates))} updates",
        ],
    )


def _counted(names: Sequence[str], balance: Balance) -> str:
    kinds: dict[str, int] = {}
    for name in names:
        kind = clipped(balance[name]["kind"] or "worker", 16)
        kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{n} {kind}{'s' * (n > 1)}" if n > 1 else kind for kind, n in kinds.items())


def timelines(groups: Sequence[Group]) -> Html | None:
    """The shares of each worker over the time of a run, and its verdicts; a run after the other."""
    runs = [(group, one) for group in groups for one in group.runs if len(one.lines) > 1]
    if not runs:
        return None
    opened = {id(group.first) for group in groups[:3]}
    found = [
        more(
            f"{short_name(one)} · {clock(one.last['wall_s'])}",
            _timeline(one),
            opened=id(one) in opened,
        )
        for _, one in runs[:MOST_TIMELINES]
    ]
    hidden = max(len(runs) - MOST_TIMELINES, 0)
    rest = note_of(f"{hidden} more runs have no timeline here." if hidden else None)
    note = "From the first report to the last. The numbers are shares of the whole run."
    return folded_section(
        "Workers over time",
        states_legend(),
        *found,
        rest,
        note=note,
    )


def _timeline(one: RunRecord) -> Html:
    lines = [line for line in one.lines if not line["final"]] or list(one.lines)
    end = max(lines[-1]["wall_s"], 1e-3)
    left, right, beside = sides(one.balance)
    rows = {**folded(left, 2 * MOST_TRACKS), **folded(right, MOST_TRACKS), **folded(beside, 2)}
    head = tag(
        "div",
        tag("span"),
        tag("span"),
        *(tag("span", state) for state in STATES),
        class_="row head",
    )
    strips = []
    for name, inside in rows.items():
        shares = shares_of(_added(one.balance, inside))
        numbers = [
            tag("span", f"{100 * shares[state]:.0f} %" if shares else NONE, class_="num")
            for state in STATES
        ]
        strips.append(
            tag(
                "div",
                tag("bdi", clipped(name, 40)),
                stacked(binned(lines, inside, end)),
                *numbers,
                class_="row",
            )
        )
    return tag("div", head, *strips, _clock_axis(end), *_verdicts(lines, end), class_="timeline")


def binned(
    lines: Sequence[Entry], names: Sequence[str], end: float, bins: int = BINS
) -> list[dict[str, float]]:
    """Shares of some workers in each of ``bins`` stretches of 0..``end`` seconds; empty: no data.

    A report covers the time since the one before it, and counts in each stretch by its part there.
    """
    seconds = [dict.fromkeys(STATES, 0.0) for _ in range(bins)]
    begin = 0.0
    for line in lines:
        upto = min(max(line["wall_s"], begin), end)
        added = _added(line["balance"], names)
        first, last = (min(int(t / end * bins), bins - 1) for t in (begin, upto))
        for i in range(first, last + 1):
            inside = min(upto, (i + 1) * end / bins) - max(begin, i * end / bins)
            weight = inside / (upto - begin) if upto > begin else float(i == last)
            for state in STATES:
                seconds[i][state] += added[state] * max(weight, 0.0)
        begin = upto
    return [shares_of(one) for one in seconds]


def _clock_axis(end: float) -> Html:
    names = [
        x_label_at(t / end, clock(t) if end >= 8 else f"{t:g} s") for t in ticks(0.0, end, most=4)
    ]
    return tag("div", tag("span"), tag("div", *names, class_="xs"), class_="row axis")


def stretches(lines: Sequence[Entry], end: float) -> dict[str, list[tuple[float, float]]]:
    """When each cause held: from the report before to the one that says it, neighbours joined."""
    found: dict[str, list[tuple[float, float]]] = {}
    begin = 0.0
    for line in lines:
        upto = min(max(line["wall_s"], begin), end)
        there = found.setdefault(line["cause"], [])
        if there and there[-1][1] == begin:
            there[-1] = (there[-1][0], upto)
        else:
            there.append((begin, upto))
        begin = upto
    return found


def _verdicts(lines: Sequence[Mapping[str, object]], end: float) -> list[Html]:
    found = stretches(lines, end)
    rows = [
        tag(
            "div",
            tag("span", "verdict", class_="note"),
            tag("span"),
            tag("span", "of the time", class_="wide"),
            class_="row head",
        )
    ]
    for cause, parts in sorted(found.items(), key=lambda one: -sum(b - a for a, b in one[1]))[
        :MOST_TRACKS
    ]:
        share = sum(b - a for a, b in parts) / end
        if share < LEAST_SHARE:
            continue
        rows.append(
            tag(
                "div",
                tag("bdi", clipped(cause, 24)),
                spans(parts, (0.0, end)),
                tag("span", f"{100 * share:.0f} %", class_="num"),
                class_="row",
            )
        )
    return rows

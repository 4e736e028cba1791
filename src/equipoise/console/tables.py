"""Tables of runs, envs and seeds, as lines of text."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from rich.text import Text

from equipoise.console.columns import FIRST, columns, total
from equipoise.console.picture import clock
from equipoise.console.place import number, wrapped
from equipoise.record.described import clipped, differing, said
from equipoise.record.interval import mean_and_half
from equipoise.record.listing import RunRow
from equipoise.record.ring import short

STYLES = {
    "solved": "green",
    "completed": "",
    "running": "cyan",
    "alarmed": "red",
    "interrupted": "yellow",
    "failed": "red",
    "killed": "red",
}
LEFT = 6  # columns of texts, aligned left; the rest are numbers


# entries that are left out, in this order
SPARE = ("seed", "time", "evaluation", "algorithm", "env", "steps")
MOST_SETTINGS = 4  # columns of settings
LONGEST = 48  # letters of an entry


def spared(head: Sequence[str], body: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """The entries that there are no columns for."""
    widths = {name: max(len(row[i]) for row in (head, *body)) for i, name in enumerate(head)}
    widths[head[0]] = min(widths[head[0]], FIRST)
    out: list[str] = []
    spare = [name for name in SPARE if name in head]
    while width is not None and total([*widths.values()]) > width and len(out) < len(spare):
        out.append(spare[len(out)])
        del widths[out[-1]]
    return out


def runs_table(found: Sequence[RunRow], *, width: int | None) -> list[Text]:
    """Return a head and a line for each run, or a sentence if there are none. A note is added if a
    line has no room for all columns.
    """
    if not found:
        return [Text("no runs; 'equipoise train ENV' makes one")]
    head: tuple[str, ...] = (
        "run",
        "env",
        "algorithm",
        "status",
        "verdict",
        "changed",
        "seed",
        "steps",
        "steps/s",
        "return",
        "evaluation",
        "time",
        "size",
    )
    differ = _settings(found)
    body: list[tuple[str, ...]] = [
        (
            row.name,
            *(
                clipped(one, LONGEST)
                for one in (row.env, row.algorithm, row.status, row.verdict or "—")
            ),
            _ago(row.changed),
            "" if row.seed is None else str(row.seed),
            short(row.steps),
            "—" if row.steps_per_s is None else short(round(row.steps_per_s)),
            number(row.return_mean),
            number(row.evaluation),
            clock(row.wall_s),
            f"{short(row.size)}B",
            *(
                "—" if (value := row.settings.get(key)) is None else clipped(said(value), LONGEST)
                for key in differ
            ),
        )
        for row in found
    ]
    head = (*head, *differ)
    below = _common([row.name for row in found]) if width is not None else ""
    if below and total([max(len(row[i]) for row in (head, *body)) for i in range(len(head))]) > (
        width or 0
    ):
        body = [(row[0].removeprefix(below), *row[1:]) for row in body]
    else:
        below = ""
    out = spared(head, body, width)
    kept = [i for i, name in enumerate(head) if name not in out]
    head, body = tuple(head[i] for i in kept), [tuple(row[i] for i in kept) for row in body]
    lines = columns(head, body, left=sum(i < LEFT for i in kept), width=width)
    styles = ["bold", *(STYLES.get(row.status, "") for row in found)]
    table = [
        Text(line, style=style, no_wrap=True) for line, style in zip(lines, styles, strict=True)
    ]
    if below:
        table.append(Text(f"the runs are in {below}"))
    return [*table, Text(f"left out at {width} columns: {', '.join(out)}")] if out else table


def _settings(found: Sequence[RunRow]) -> list[str]:
    """The settings that runs of one env and algorithm differ in, but for the seed: a sweep's."""
    groups: dict[tuple[str, str], list[Mapping[str, object]]] = {}
    for row in found:
        groups.setdefault((row.env, row.algorithm), []).append(row.settings)
    keys = dict.fromkeys(
        key for of in groups.values() for key in differing(of) if key != "schedule.seed"
    )
    return list(keys)[:MOST_SETTINGS]


def _common(names: Sequence[str]) -> str:
    """The folder that all of these are below, with its slash; "" for none."""
    if len(names) < 2:
        return ""
    place = os.path.commonpath([os.path.dirname(name) for name in names])
    return f"{place}{os.sep}" if place else ""


def _ago(moment: float) -> str:
    seconds = max(time.time() - moment, 0.0)
    for size, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit} ago"
    return f"{seconds:.0f}s ago"


def seeds_table(found: Sequence[RunRow], *, width: int | None) -> list[str]:
    """A line for each seed, and the means with their 95 % intervals over the seeds."""
    head = ("run", "status", "seed", "steps", "return", "evaluation", "time")
    body = [
        (
            row.name,
            row.status,
            "" if row.seed is None else str(row.seed),
            short(row.steps),
            number(row.return_mean),
            number(row.evaluation),
            clock(row.wall_s),
        )
        for row in found
    ]
    lines = columns(head, body, left=2, width=width)
    for name, key in (("evaluation", "evaluation"), ("return", "return_mean")):
        values = [value for row in found if (value := getattr(row, key)) is not None]
        if values:
            mean, half = mean_and_half(values)
            interval = "" if half is None else f" ± {half:,.1f} (95 % interval of the mean)"
            said = (
                f"{name} {number(mean)}{interval} over {len(values)} seeds, from "
                f"{min(values):,.1f} to {max(values):,.1f}"
            )
            lines += wrapped(said, width, "  ")
    return lines

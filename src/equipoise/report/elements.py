"""Parts of several sections: plain and folded sections, tables, details on demand, and numbers of a
group as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from equipoise.console.place import number
from equipoise.record.described import clipped
from equipoise.record.interval import mean_and_half
from equipoise.report.figures import sample
from equipoise.report.markup import Html, Part, joined, tag
from equipoise.report.runs import Group, RunRecord

NONE = "—"  # in place of a number that does not exist


def note_of(text: str | None) -> Html | None:
    """A paragraph in small; None without a text."""
    return tag("p", text, class_="note") if text else None


def section(title: str, *parts: Part, note: str | None = None) -> Html:
    """A section with its title, a note and parts."""
    return tag("section", tag("h2", title), note_of(note), *parts)


def folded_section(title: str, *parts: Part, note: str | None = None) -> Html:
    """A section of which only the title is shown until a reader opens it."""
    inside = tag("details", tag("summary", tag("h2", title)), note_of(note), *parts)
    return tag("section", inside, class_="folded")


def more(summary: str, *parts: Part, opened: bool = False) -> Html:
    """Parts that are shown on demand."""
    inside = joined(tag("summary", summary), *parts)
    return Html(f"<details{' open' * opened}>{inside}</details>")


def table(
    head: Sequence[str], rows: Iterable[Sequence[Part]], *, texts: int = 1, class_: str = ""
) -> Html:
    """A table: ``texts`` columns of text, then numbers; on a narrow screen each row is a card."""
    kinds = [None if i < texts else "num" for i in range(len(head))]
    body = [
        tag(
            "tr",
            *(
                tag("td", cell, class_=kind, data_label=name)
                for cell, kind, name in zip(row, kinds, head, strict=True)
            ),
        )
        for row in rows
    ]
    top = tag(
        "tr",
        *(
            tag("th", name, class_=kind, scope="col")
            for name, kind in zip(head, kinds, strict=True)
        ),
    )
    return tag("table", tag("thead", top), tag("tbody", *body), class_=class_ or None)


def tiles(found: Iterable[tuple[str, str, str, str]]) -> Html:
    """Numbers in large: (name, value, text beside the value, text below) of each."""
    return tag(
        "dl",
        *(
            tag(
                "div",
                tag("dt", name),
                tag("dd", value, tag("span", beside) if beside else None),
                tag("dd", below, class_="note"),
            )
            for name, value, beside, below in found
        ),
        class_="tiles",
    )


def captioned(charts: Mapping[str, Html | None]) -> list[Html]:
    """Small figures under their titles, of the charts that have a point."""
    return [
        tag("figure", tag("figcaption", title), drawn, class_="small")
        for title, drawn in charts.items()
        if drawn is not None
    ]


def mean_text(values: Sequence[float], decimals: int) -> tuple[str, str]:
    """The mean, and the half of its 95 % interval, as texts."""
    if not values:
        return NONE, ""
    mean, half = mean_and_half(values)
    return number(mean, decimals), "" if half is None else f" ± {number(half, decimals)}"


def lags_of(group: Group) -> list[float]:
    found = [
        (one.summary or {"lag": {"mean": one.last["lag_mean"]}})["lag"]["mean"]
        for one in group.runs
    ]
    return [float(x) for x in found if x is not None]


def short_name(one: RunRecord) -> str:
    """The directory of a run, and its seed unless the name ends with it."""
    name, seed = one.row.path.name, clipped(str(one.row.seed), 20)
    return clipped(name, 80) + (
        "" if one.row.seed is None or name.endswith(f"seed_{seed}") else f" · seed {seed}"
    )


def named(style: int, name: str) -> Html:
    """The name of a run or a group beside a piece of its line."""
    return tag("span", sample(style), tag("bdi", name), class_="name")

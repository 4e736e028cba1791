"""The page: all sections in one HTML file, which loads nothing and runs no script.

The result comes first, then curves, verdicts, alarms and rings; the other sections are folded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import equipoise
from equipoise.files import write_atomic
from equipoise.report import learning, meters, sections, workers
from equipoise.report.figures import hatchings
from equipoise.report.markup import Html, joined, tag
from equipoise.report.runs import RunRecord, grouped
from equipoise.report.style import style

BEGIN = "<!doctype html>\n<!-- written by equipoise report -->\n"
MOST_BYTES = 5_000_000
# a browser loads nothing and runs no script
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(runs: Sequence[RunRecord], now: float | None = None) -> str:
    """The whole page; ValueError if it would have more than ``MOST_BYTES``."""
    now = time.time() if now is None else now
    groups = grouped(runs)
    told = (
        sections.top(groups, now, equipoise.__version__),
        learning.curves_section(groups),
        sections.verdicts_section(groups),
        sections.alarms_section(groups),
        workers.rings(groups),
        learning.metrics_section(groups),
        workers.timelines(groups),
        meters.parts_section(groups),
        learning.speed_section(groups),
        learning.lag_section(groups),
        meters.ages_section(groups),
        sections.evaluations_section(groups),
        sections.runs_section(groups, now),
        sections.settings_section(groups),
        meters.processes_section(groups),
        sections.resources_section(groups),
        sections.notes_section(groups),
    )
    return document(sections.title_of(groups), *told)


def document(title: str, *parts: Html | None) -> str:
    """The whole file around the parts of a page; ValueError if it has more than ``MOST_BYTES``."""
    head = (
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{title} · equipoise"),
        tag("style", Html(style())),
    )
    whole = (
        BEGIN
        + joined(
            tag(
                "html", tag("head", *head), tag("body", hatchings(), tag("main", *parts)), lang="en"
            )
        )
        + "\n"
    )
    if (size := len(whole.encode())) > MOST_BYTES:
        raise ValueError(
            f"expected a page of at most {MOST_BYTES:,} bytes, got {size:,}; name fewer runs"
        )
    return whole


def check_out(out: Path) -> None:
    """ValueError if no page can be written there, or if something other than a page is there."""
    if out.is_dir():
        raise ValueError(
            f"--out {out}: expected a file, got a directory; did you mean "
            f"{str(out / 'report.html')!r}?"
        )
    if out.exists():
        with out.open("rb") as file:
            if not file.read(len(BEGIN)).startswith(BEGIN.encode()):
                raise ValueError(
                    f"--out {out}: expected a new file or an earlier report, got another file, "
                    "which stays"
                )
    if out.suffix not in (".html", ".htm"):
        near = str(out.with_suffix(".html"))
        raise ValueError(
            f"--out {out}: expected a file that ends in .html, got {out.suffix or 'no suffix'!r}; "
            f"did you mean {near!r}?"
        )


def write(out: Path, text: str) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, text.encode())

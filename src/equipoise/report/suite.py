"""The page of a benchmark suite, as HTML or as Markdown, from its kept cells alone: the same cells
make the same page.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from equipoise.console.curves import averaged
from equipoise.console.place import number, printable
from equipoise.record.described import clipped
from equipoise.record.interval import mean_and_half
from equipoise.report.elements import NONE, folded_section, note_of, section, table
from equipoise.report.figures import Line, chart, legend, sample
from equipoise.report.markup import Html, tag
from equipoise.report.page import document
from equipoise.studies import statistics
from equipoise.studies.kept import Kept
from equipoise.studies.statistics import Measure, Scores, interval, resamples
from equipoise.studies.suite import Published, Suite, cell_name

RESAMPLES = 2_000  # of each bootstrap
THRESHOLDS = 101  # of a drawn profile
AGGREGATES: Mapping[str, Measure] = {
    "IQM": statistics.iqm,
    "median": statistics.median,
    "mean": statistics.mean,
    "optimality gap": statistics.optimality_gap,
}
BOOTSTRAP = (
    f"In parentheses: 95 % intervals of a stratified bootstrap, {RESAMPLES:,} times, over runs."
)


@dataclass(frozen=True, slots=True)
class Table:
    """A table as texts; its first ``texts`` columns are no numbers."""

    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1


def suite_page(suite: Suite, kept: Mapping[str, Kept]) -> str:
    """Return the page of a suite as HTML: one file, which loads nothing and runs no script."""
    scores = _scores(suite, kept)
    parts = [
        tag("header", tag("h1", _title(suite)), note_of(_progress(suite, kept))),
        _section(_against_published(suite, kept)),
        _section(_aggregates(suite, scores)),
        _section(_profiles(scores), _profile_chart(suite, scores)),
        _section(_improvement(scores)),
        _curves(suite, kept),
        _section(_cells(suite, kept), folded=True),
    ]
    return document(_title(suite), *parts)


def suite_markdown(suite: Suite, kept: Mapping[str, Kept]) -> str:
    """Return the tables of ``suite_page`` as Markdown."""
    scores = _scores(suite, kept)
    tables = (
        _against_published(suite, kept),
        _aggregates(suite, scores),
        _profiles(scores),
        _improvement(scores),
        _cells(suite, kept),
    )
    parts = [f"# {_title(suite)}", _progress(suite, kept), *map(_as_markdown, tables)]
    return "\n\n".join(parts) + "\n"


# ------------------------------------------------------------------------------------------- tables


def _title(suite: Suite) -> str:
    return f"Suite {suite.name}"


def _progress(suite: Suite, kept: Mapping[str, Kept]) -> str:
    """Return how many cells are kept, and the names of the missing ones."""
    absent = [cell.name for cell in suite.cells if cell.name not in kept]
    said = f"{len(suite.cells) - len(absent)} of {len(suite.cells)} cells are kept."
    return said + (f" Missing: {', '.join(absent)}." if absent else "")


def _of_pair(suite: Suite, kept: Mapping[str, Kept], env: str, algorithm: str) -> list[Kept]:
    """Return the kept cells of an env and an algorithm, in the order of the suite's seeds."""
    names = [cell_name(env, algorithm, seed) for seed in suite.seeds]
    return [kept[name] for name in names if name in kept]


def _against_published(suite: Suite, kept: Mapping[str, Kept]) -> Table:
    rows = []
    for env, algorithm in itertools.product(suite.envs, suite.algorithms):
        cells = _of_pair(suite, kept, env, algorithm)
        one = suite.published.get((env, algorithm))
        texts = (env, algorithm, _result(cells, one), NONE if one is None else one.source)
        rows.append((*texts, f"{len(cells)} of {len(suite.seeds)}", _score(cells), _published(one)))
    return Table(
        "Scores and published values",
        "Score: the mean over seeds of the evaluation at the end, ± half of Student's 95 % "
        "interval. Met: not below the published mean - 1 sd (without an sd: not below the mean).",
        ("env", "algorithm", "result", "source", "seeds", "score", "published"),
        rows,
        texts=4,
    )


def _score(cells: Sequence[Kept]) -> str:
    if not cells:
        return NONE
    mean, half = mean_and_half([one.score for one in cells])
    return number(mean) + ("" if half is None else f" ± {number(half)}")


def _published(value: Published | None) -> str:
    if value is None:
        return NONE
    sd = "" if value.sd is None else f" ± {number(value.sd)}"
    return f"{number(value.mean)}{sd} (n={value.n})"


def _result(cells: Sequence[Kept], published: Published | None) -> str:
    if published is None:
        return "not published"
    if not cells:
        return "missing"
    return "met" if fmean(one.score for one in cells) >= published.bound else "below"


def _scores(suite: Suite, kept: Mapping[str, Kept]) -> dict[str, Scores]:
    """Return normalised scores [seeds, envs] by algorithm, of the seeds that are in all envs."""
    found = {}
    for algorithm in suite.algorithms:
        names = [[cell_name(env, algorithm, seed) for env in suite.scales] for seed in suite.seeds]
        whole = [row for row in names if row and all(name in kept for name in row)]
        if whole:
            random, best = np.array(list(suite.scales.values())).T
            raw = np.array([[kept[name].score for name in row] for row in whole])
            found[algorithm] = (raw - random) / (best - random)
    return found


def _aggregates(suite: Suite, scores: Mapping[str, Scores]) -> Table:
    left_out = [env for env in suite.envs if env not in suite.scales]
    return Table(
        "Aggregates",
        "Of normalised scores: 0 is a random policy, 1 the suite's best score. Each algorithm "
        f"has the seeds that are kept in every env. {BOOTSTRAP}"
        + (f" Envs without a scale, which are left out: {', '.join(left_out)}." * bool(left_out)),
        ("algorithm", "seeds", "envs", *AGGREGATES),
        [
            (
                algorithm,
                *map(str, of.shape),
                *(_estimate(measure, of) for measure in AGGREGATES.values()),
            )
            for algorithm, of in scores.items()
        ],
    )


def _profiles(scores: Mapping[str, Scores]) -> Table:
    thresholds = (0.0, 0.25, 0.5, 0.75, 1.0)
    return Table(
        "Performance profiles",
        "The share of runs whose normalised score is above a threshold.",
        ("algorithm", *(f"> {one:g}" for one in thresholds)),
        [
            (name, *(f"{share:.2f}" for share in statistics.profile(of, thresholds)))
            for name, of in scores.items()
        ],
    )


def _improvement(scores: Mapping[str, Scores]) -> Table:
    return Table(
        "Probability of improvement",
        "How likely a run of X beats a run of Y in an env of the suite; a tie counts half. "
        f"{BOOTSTRAP}",
        ("X", "Y", "P(X > Y)"),
        [
            (x, y, _estimate(statistics.probability_of_improvement, scores[x], scores[y]))
            for x, y in itertools.combinations(scores, 2)
        ],
        texts=2,
    )


def _cells(suite: Suite, kept: Mapping[str, Kept]) -> Table:
    return Table(
        "Cells",
        "Score: the mean return of the evaluation at the end; sd over its episodes. Settings: the "
        "beginning of a hash of all settings but the seed.",
        (
            *("cell", "status", "equipoise", "settings", "machine"),
            *("steps", "seconds", "score", "sd (episodes)"),
        ),
        [_row(cell.name, kept.get(cell.name)) for cell in suite.cells],
        texts=5,
    )


def _row(name: str, one: Kept | None) -> Sequence[str]:
    if one is None:
        return (name, "missing", *[NONE] * 7)
    made_by = f"{one.equipoise} {(one.commit or '')[:8]}".strip()
    texts = (name, one.status, made_by, one.settings_sha256[:8], one.machine)
    of = f"{number(one.std)} ({one.episodes:,})"
    return (*texts, f"{one.steps:,}", f"{one.seconds:,.0f}", number(one.score), of)


def _estimate(measure: Measure, *scores: Scores) -> str:
    """Return a measure with its bootstrap interval; the same scores give the same text."""
    drawn = [resamples(one, count=RESAMPLES, seed=i) for i, one in enumerate(scores)]
    low, high = interval(measure, scores, drawn)
    return f"{measure(*scores):.3f} ({low:.3f} to {high:.3f})"


# -------------------------------------------------------------------------------------------- forms


def _section(of: Table, *parts: Html | None, folded: bool = False) -> Html:
    made = folded_section if folded else section
    if not of.rows:
        return made(of.title, note_of("No cells yet."))
    rows = [[clipped(cell, 500) for cell in row] for row in of.rows]
    shown = tag("div", table(of.head, rows, texts=of.texts), class_="scroll")
    return made(of.title, *parts, shown, note=of.note)


def _as_markdown(of: Table) -> str:
    if not of.rows:
        return f"## {of.title}\n\nNo cells yet."
    marks = ["---" if i < of.texts else "---:" for i in range(len(of.head))]
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in (of.head, *of.rows)]
    return "\n".join(
        [f"## {of.title}\n\n{of.note}\n", lines[0], f"|{'|'.join(marks)}|", *lines[1:]]
    )


def _cell(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", printable(text))


# ------------------------------------------------------------------------------------------- charts


def _profile_chart(suite: Suite, scores: Mapping[str, Scores]) -> Html | None:
    if not scores:
        return None
    low = min(0.0, *(float(of.min()) for of in scores.values()))
    high = max(1.0, *(float(of.max()) for of in scores.values()))
    at = np.linspace(low, high, THRESHOLDS)

    def measure(of: Scores) -> Scores:
        return statistics.profile(of, at.tolist())

    lines = []
    for name, of in scores.items():
        ends = interval(measure, [of], [resamples(of, count=RESAMPLES, seed=0)])
        lines.append(Line(suite.algorithms.index(name), at, measure(of), *ends))
    return tag(
        "figure",
        _legend(suite),
        tag("figcaption", "with 95 % intervals of the bootstrap"),
        chart(lines, label="share of runs above", x_label="normalised score"),
    )


def _curves(suite: Suite, kept: Mapping[str, Kept]) -> Html:
    """Draw the learning curves of each env: the mean over seeds, with its 95 % interval."""
    charts: list[Html | None] = []
    for env in suite.envs:
        lines = [
            line
            for style, algorithm in enumerate(suite.algorithms)
            if (line := _curve(_of_pair(suite, kept, env, algorithm), style)) is not None
        ]
        drawn = chart(lines, label="return, last 100 episodes", x_label="env steps")
        if drawn is not None:
            charts.append(tag("figure", tag("figcaption", env), drawn))
    note = (
        "The mean return of the last 100 training episodes: the mean over seeds, with its 95 % "
        "interval (Student's), over the steps that all of them have."
    )
    return section(
        "Learning curves", _legend(suite), *(charts or [note_of("No cells yet.")]), note=note
    )


def _curve(cells: Sequence[Kept], style: int) -> Line | None:
    found = [
        (Path(one.name), np.array(one.curve[0], np.float64), np.array(one.curve[1]))
        for one in cells
        if one.curve[0]
    ]
    begin = max((x[0] for _, x, _ in found), default=0.0)
    found = [one for one in found if one[1][-1] >= begin]  # a run that ended before is no mean's
    if not found:
        return None
    curve = averaged("", found)
    return Line(style, curve.x, curve.mean, curve.low, curve.high)


def _legend(suite: Suite) -> Html:
    return legend([(sample(style), name) for style, name in enumerate(suite.algorithms)])

"""The page of a study: its best trial, its pictures, its trials and its last decisions."""

from __future__ import annotations

import time

import equipoise
from equipoise.record.described import clipped
from equipoise.report.elements import folded_section, section, table, tiles
from equipoise.report.figures import chart, spans
from equipoise.report.markup import LONGEST_SENTENCE, Html, tag
from equipoise.report.page import document
from equipoise.report.study_plots import Plot, plots
from equipoise.report.study_tables import facts, last_decisions, rest_text, trial_table
from equipoise.studies.importance import LEAST_TRIALS
from equipoise.studies.recorded import RecordedStudy


def study_page(study: RecordedStudy) -> str:
    """Return the page of a study; ValueError if it would be too large."""
    drawn = plots(study)
    large = [one for one in drawn if not one.key.startswith("schedule ")]
    small = [_chart(one, one.title) for one in drawn[len(large) :]]
    parts = (
        _top(study),
        *(section(one.title, _chart(one), note=one.note) for one in large),
        section("Settings over time", tag("div", *small, class_="grid")) if small else None,
        _importance(study),
        _trials(study),
        _decisions(study),
        _asked(study),
    )
    return document(study.title, *parts)


def _top(study: RecordedStudy) -> Html:
    moment, name = time.strftime("%Y-%m-%d %H:%M"), study.folder.absolute().name
    still = {
        "training": f"The study is still running: the page shows its state at {moment}.",
        "interrupted": "No process runs this study: 'equipoise tune resume' goes on with it.",
    }.get(study.state)
    return tag(
        "header",
        tag("h1", clipped(study.title)),
        tag(
            "p",
            f"{clipped(name)} · {moment} · equipoise {equipoise.__version__}",
            class_="note",
        ),
        tag("p", still, class_="still") if still else None,
        tiles(facts(study)),
    )


def _chart(plot: Plot, caption: str | None = None) -> Html:
    drawn = chart(
        plot.lines, label=plot.title, x_label=plot.x_label, across=plot.across, up=plot.up
    )
    if caption is None:
        return tag("figure", drawn)
    return tag("figure", tag("figcaption", caption), drawn, class_="small")


def _importance(study: RecordedStudy) -> Html | None:
    if not len(study.space):
        return None
    if (found := study.importance) is None:
        text = f"It needs at least {LEAST_TRIALS} trials with a result."
        return folded_section("Importance of settings", note=text)
    rows = [
        (tag("code", clipped(key, 80)), spans([(0.0, share)], (0.0, 1.0)), f"{100 * share:.0f} %")
        for key, share in found.items()
    ]
    note = "The share of the differences between trials that each setting explains alone."
    shown = table(("setting", "", "share"), rows, texts=2, class_="importance")
    return section("Importance of settings", shown, note=note)


def _trials(study: RecordedStudy) -> Html | None:
    head, rows = trial_table(study)
    if not rows:
        return None
    cells = [
        (_name(row[0], is_best=not i and study.best is not None), *row[1:])
        for i, row in enumerate(rows)
    ]
    note = rest_text(study, len(rows)) or None
    shown = tag("div", table(head, cells, texts=3, class_="cards"), class_="scroll")
    return section("Trials", shown, note=note)


def _name(name: str, *, is_best: bool) -> Html:
    shown = tag("bdi", clipped(name, 60))
    return tag("strong", shown) if is_best else shown


def _decisions(study: RecordedStudy) -> Html | None:
    said = last_decisions(study)
    if not said:
        return None
    items = [tag("li", tag("span"), tag("bdi", clipped(one, LONGEST_SENTENCE))) for one in said]
    note = "The last one comes first."
    return folded_section("Decisions", tag("ul", *items, class_="notes"), note=note)


def _asked(study: RecordedStudy) -> Html:
    settings = study.settings
    if settings.suite:
        return folded_section(
            "Settings of the study", tag("pre", clipped(f"suite = {settings.suite}", 8000))
        )
    lines = [
        f"env = {study.env}",
        f"algorithm = {study.algorithm}",
        f"strategy = {' '.join([settings.strategy, *settings.strategy_settings])}",
        *(str(one) for one in study.space),
        f"trials = {settings.trials:,}",
        f"jobs = {settings.jobs:,}",
        f"confirm = {settings.confirm}",
        f"seed = {settings.seed}",
    ]
    return folded_section("Settings of the study", tag("pre", clipped("\n".join(lines), 8000)))

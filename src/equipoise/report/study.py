"""The page of a study: its best trial, its pictures, its trials and its last decisions."""

from __future__ import annotations

import time
from collections import Counter

import equipoise
from equipoise.console.picture import clock
from equipoise.console.study import entry_text, score_text
from equipoise.record.described import clipped
from equipoise.record.ring import count, short
from equipoise.report.elements import NONE, folded_section, section, table, tiles
from equipoise.report.figures import chart, spans
from equipoise.report.markup import LONGEST_SENTENCE, Html, tag
from equipoise.report.page import document
from equipoise.report.study_plots import Plot, plots
from equipoise.studies.history import Result, Trial
from equipoise.studies.importance import LEAST_TRIALS
from equipoise.studies.recorded import RecordedStudy, changed, changes_text, value_text

MOST_ROWS = 100  # trials in the table, the best ones
MOST_SAID = 60  # decisions and failures, the last ones
MOST_KEYS = 12  # columns of settings


def study_page(study: RecordedStudy, now: float | None = None) -> str:
    """Return the page of a study; ValueError if it would be too large."""
    now = time.time() if now is None else now
    drawn = plots(study)
    small = [one for one in drawn if one.key.startswith("schedule")]
    charts = [section(one.title, _chart(one), note=one.note) for one in drawn if one not in small]
    parts = (
        _top(study, now),
        *charts,
        section("Settings over time", tag("div", *map(_small, small), class_="grid"))
        if small
        else None,
        _importance(study),
        _trials(study),
        _decisions(study),
        _asked(study),
    )
    return document(study.title, *parts)


def _top(study: RecordedStudy, now: float) -> Html:
    moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(now))
    still = {
        "training": f"The study goes on: the page has what was known at {moment}.",
        "interrupted": "No process is at this study: 'equipoise tune resume' goes on with it.",
    }.get(study.state)
    return tag(
        "header",
        tag("h1", clipped(study.title)),
        tag(
            "p",
            f"{clipped(study.name)} · {moment} · equipoise {equipoise.__version__}",
            class_="note",
        ),
        tag("p", still, class_="still") if still else None,
        tiles(facts(study)),
    )


def facts(study: RecordedStudy) -> list[tuple[str, str, str, str]]:
    """Return the numbers of a study that people look for first: (name, value, unit, note)."""
    best = study.best
    by = f"{clipped(best.name, 30)} at {short(best.steps)} steps" if best else "none has a score"
    states = Counter(study.state_of(one).partition(",")[0] for one in study.history)
    said = ", ".join(f"{n} {state}" for state, n in states.items())
    return [
        ("best score", score_text(best.score if best else None), "", by),
        ("trials", f"{len(study.history.trials):,}", "", said or "none has begun"),
        ("env steps", short(study.steps), "", "of all trials"),
        ("time", clock(study.seconds), "", "of all trials together"),
        ("cores", clock(study.core_seconds), "", "core-time of all trials"),
    ]


def _chart(plot: Plot, kind: str | None = None) -> Html:
    drawn = chart(
        plot.lines, label=plot.title, x_label=plot.x_label, across=plot.across, up=plot.up
    )
    return tag("figure", drawn, class_=kind)


def _small(plot: Plot) -> Html:
    return tag("figure", tag("figcaption", plot.title), _chart(plot), class_="small")


def _importance(study: RecordedStudy) -> Html | None:
    if not len(study.space):
        return None
    if (found := study.importance) is None:
        text = f"It is known from {LEAST_TRIALS} trials with a result on."
        return folded_section("Importance of settings", note=text)
    rows = [
        (tag("code", clipped(key, 80)), spans([(0.0, share)], (0.0, 1.0)), f"{100 * share:.0f} %")
        for key, share in found.items()
    ]
    note = "The share of the differences between trials that each setting explains alone."
    shown = table(("setting", "", "share"), rows, texts=2, class_="importance")
    return section("Importance of settings", shown, note=note)


def _trials(study: RecordedStudy) -> Html | None:
    if not (ranked := study.ranked):
        return None
    keys = [one.key for one in study.space][:MOST_KEYS]
    head = ("trial", "state", "from", "steps", "score", "time", "core-time", *keys)
    rows = [(*_row(study, one), *_values(one, keys)) for one in ranked[:MOST_ROWS]]
    rest = len(ranked) - len(rows)
    note = f"The best {len(rows)} of {count(len(ranked), 'trial')}." if rest > 0 else None
    shown = tag("div", table(head, rows, texts=3, class_="cards"), class_="scroll")
    return section("Trials", shown, note=note)


def _row(study: RecordedStudy, trial: Trial) -> tuple[Html | str, ...]:
    state = study.state_of(trial) + (f": {trial.error}" if trial.error else "")
    origin = NONE
    if trial.parent is not None:
        changes = changes_text(changed(trial, study.history.trials[trial.parent]))
        origin = f"{trial.parent} at {short(trial.parent_steps)}: {changes or 'unchanged'}"
    name = tag("bdi", clipped(trial.name, 60))
    return (
        tag("strong", name) if trial is study.best else name,
        clipped(state, 200),
        clipped(origin, 200),
        short(trial.steps),
        score_text(trial.score),
        clock(trial.seconds),
        clock(trial.core_seconds),
    )


def _values(trial: Trial, keys: list[str]) -> list[str]:
    return [clipped(value_text(trial.settings.get(key)), 40) for key in keys]


def _decisions(study: RecordedStudy) -> Html | None:
    said = last_decisions(study)
    if not said:
        return None
    items = [tag("li", tag("span"), tag("bdi", clipped(one, LONGEST_SENTENCE))) for one in said]
    note = "The last one comes first."
    return folded_section("Decisions", tag("ul", *items, class_="notes"), note=note)


def last_decisions(study: RecordedStudy) -> list[str]:
    """Return the last decisions with their reasons, and failures, the newest first."""
    found = [one for one in study.entries if not isinstance(one, Result) or one.state == "failed"]
    return [entry_text(one, study.history) for one in reversed(found[-MOST_SAID:])]


def _asked(study: RecordedStudy) -> Html:
    settings = study.settings
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

"""Tables of a study as texts, for the report and for the live page: its result, its trials and its
last decisions.
"""

from __future__ import annotations

from collections import Counter

from equipoise.console.picture import clock
from equipoise.console.study import entry_text, score_text
from equipoise.record.described import clipped
from equipoise.record.ring import short
from equipoise.studies.history import Result, Trial
from equipoise.studies.recorded import (
    RecordedStudy,
    changed,
    changes_text,
    env_of_cell,
    value_text,
)

MOST_ROWS = 100  # trials in the table, the best ones
MOST_SAID = 60  # decisions and failures, the last ones
MOST_KEYS = 12  # columns of settings


def facts(study: RecordedStudy) -> list[tuple[str, str, str, str]]:
    """Return the numbers of a study that people look for first: (name, value, unit, note)."""
    states = Counter(study.state_of(one).partition(",")[0] for one in study.history)
    said = ", ".join(f"{n} {state}" for state, n in states.items())
    return [
        _result(study),
        ("trials", f"{len(study.history.trials):,}", "", said or "no trial has begun"),
        ("env steps", short(study.steps), "", "of all trials"),
        ("time", clock(study.seconds), "", "of all trials together"),
        (
            "cores",
            clock(sum(one.core_seconds for one in study.history)),
            "",
            "core-time of all trials",
        ),
    ]


def _result(study: RecordedStudy) -> tuple[str, str, str, str]:
    if study.settings.suite:
        envs = {env_of_cell(one.name) for one in study.history}
        return "envs", f"{len(envs):,}", "", "'equipoise study report' compares the scores"
    best = study.best
    by = f"{clipped(best.name, 30)} at {short(best.steps)} steps" if best else "no score yet"
    return "best score", score_text(best.score if best else None), "", by


def rest_text(study: RecordedStudy, shown: int) -> str:
    """Return how many of the trials a table has; "" if it has all of them."""
    if shown >= (trials := len(study.history.trials)):
        return ""
    return f"The {'first' if study.settings.suite else 'best'} {shown} of {trials:,} trials."


def trial_table(study: RecordedStudy) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of a table of the best ``MOST_ROWS`` trials, the best first."""
    keys = [one.key for one in study.space][:MOST_KEYS]
    head = ["trial", "state", "from", "steps", "score", "time", "core-time", *keys]
    return head, [_row(study, one, keys) for one in study.ranked[:MOST_ROWS]]


def _row(study: RecordedStudy, trial: Trial, keys: list[str]) -> list[str]:
    state = study.state_of(trial) + (f": {trial.error}" if trial.error else "")
    origin = "—"
    if trial.parent is not None:
        changes = changes_text(changed(trial, study.history.trials[trial.parent]))
        origin = f"{trial.parent} at {short(trial.parent_steps)}: {changes or 'unchanged'}"
    return [
        trial.name,
        clipped(state, 200),
        clipped(origin, 200),
        short(trial.steps),
        score_text(trial.score),
        clock(trial.seconds),
        clock(trial.core_seconds),
        *(clipped(value_text(trial.settings.get(key)), 40) for key in keys),
    ]


def last_decisions(study: RecordedStudy) -> list[str]:
    """Return the last decisions with their reasons, and failures, the newest first."""
    found = [one for one in study.entries if not isinstance(one, Result) or one.state == "failed"]
    return [entry_text(one, study.history) for one in reversed(found[-MOST_SAID:])]

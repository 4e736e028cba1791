"""The best trial of a study, and the score by which a strategy compares trials."""

from __future__ import annotations

import math

from equipoise.studies.history import History, Trial


def value(score: float | None) -> float:
    """Return a score, or minus infinity if there is none or it is not finite."""
    return score if score is not None and math.isfinite(score) else -math.inf


def worth(trial: Trial, steps: int | None = None) -> float:
    """Return a trial's score at ``steps`` env steps, or its last one; minus infinity if it failed,
    was ended by an alarm, or has no score there.

    The score at ``steps`` is the first one at or after them, since a stretch may end a few env
    steps late.
    """
    if trial.state == "failed" or (trial.state == "done" and trial.alarms):
        return -math.inf
    if steps is not None and steps < trial.steps:
        return value(next((one.score for one in trial.points if one.steps >= steps), None))
    # the last result may have had no score
    return value(trial.score if trial.points and trial.points[-1].steps == trial.steps else None)


def best(history: History) -> Trial | None:
    """Return the search's trial with the highest last score among those that were trained for the
    longest or reached their goal; None if no trial has a score.

    A score at fewer env steps is not compared with one at more, since it was measured earlier.
    """
    scored = [one for one in history.of() if worth(one) > -math.inf]
    solved = [one for one in scored if one.state == "done"]
    most = max((reached(one) for one in scored), default=0)
    longest = [one for one in scored if reached(one) == most or one in solved]
    return max(longest, key=worth, default=None)


def reached(trial: Trial) -> int:
    """Return the env steps of a trial, at most its target: the last stretch may have ended a few
    steps late.
    """
    return min(trial.steps, trial.target)

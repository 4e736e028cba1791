"""The trials of a study that no other trial beats in both score and cost."""

from __future__ import annotations

import math

from equipoise.studies.best import worth
from equipoise.studies.history import History, Trial


def front(history: History) -> list[Trial]:
    """Return the search's trials that have a higher score than every trial that cost no more
    measured core-seconds, the cheapest first.
    """
    scored = [one for one in history.of() if worth(one) > -math.inf]
    found: list[Trial] = []
    for trial in sorted(scored, key=lambda one: (cost(history, one), -worth(one))):
        if not found or worth(trial) > worth(found[-1]):
            found.append(trial)
    return found


def cost(history: History, trial: Trial) -> float:
    """Return a trial's core-seconds, with its parent's up to the cut, in proportion to steps."""
    total, of_trial = 0.0, 1.0  # the share of the trial's own stretch
    while True:
        total += of_trial * trial.core_seconds
        parent = history.trials.get(trial.parent or "")
        if parent is None:
            return total
        own = parent.steps - parent.parent_steps
        cut = trial.parent_steps - parent.parent_steps
        of_trial = min(max(cut, 0) / own, 1.0) if own > 0 else 0.0
        trial = parent

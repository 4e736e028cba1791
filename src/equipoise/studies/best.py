"""The best trial of a study."""

from __future__ import annotations

from equipoise.studies.history import History, Trial


def best(history: History) -> Trial | None:
    """Return the search's trial with the highest last score among those that trained the most env
    steps; None if no trial has a score.

    A score at fewer steps is not compared with one at more, since it was measured earlier.
    """
    scored = [one for one in history.of() if one.score is not None and one.state != "failed"]
    if not scored:
        return None
    solved = [one for one in scored if one.state == "done" and not one.alarms]
    most = max(one.steps for one in scored)
    longest = [one for one in scored if one.steps == most or one in solved]
    return max(longest, key=lambda one: one.score or 0.0)

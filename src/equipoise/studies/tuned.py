"""A search for settings as its files record it, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from equipoise.studies.history import History, Trial
from equipoise.studies.journal import JOURNAL, read_journal, replayed
from equipoise.studies.settings import BEST, read_study


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A study that has ended, or that can go on.

    Attributes:
        directory: The study's directory; its runs are in ``trials/``.
        history: The trials with all their results.

    Example:
        >>> study = eq.tune("CartPole-v1", space={"algorithm.gamma": [0.9, 0.99]},
        ...     strategy="grid", trials=2, confirm=1, **small)
        >>> len(study.trials), len(study.confirmed)
        (2, 1)
    """

    directory: Path
    history: History

    @property
    def trials(self) -> list[Trial]:
        """The search's trials, in the order in which they began."""
        return self.history.of()

    @property
    def best_trial(self) -> Trial | None:
        """The best trial of the search; None before the end, or if no trial has a score."""
        end = self.history.end
        return None if end is None or end.best is None else self.history.trials[end.best]

    @property
    def best(self) -> Path | None:
        """The settings of the best trial as a file, for ``train --config`` and ``configured``."""
        file = self.directory / BEST
        return file if file.is_file() else None

    @property
    def score(self) -> float | None:
        """The best trial's score in the search, which is too high by the luck of the search."""
        return None if self.best_trial is None else self.best_trial.score

    @property
    def confirmed(self) -> list[float]:
        """Scores of the best settings on fresh seeds."""
        found = [one.score for one in self.history.of(role="confirm")]
        return [score for score in found if score is not None]


def found(folder: Path) -> Tuned:
    """Return a study as its files record it, whether or not a process runs it now."""
    settings = read_study(folder)
    history = replayed(read_journal(folder), settings.jobs, folder / JOURNAL)
    return Tuned(directory=folder, history=history)

"""The history of a study: its trials and their results so far, which is all that a strategy
sees, and the decisions that a strategy makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from equipoise.studies.space import Settings

# training: up to ``target``, whether a process is at it or not. paused: at ``steps``, may go on.
# done: the run has ended itself (its goal, an alarm). stopped: by a decision. failed: with an error.
State = Literal["training", "paused", "done", "stopped", "failed"]
Role = Literal["search", "confirm"]  # confirm: the best setting again, on a fresh seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Begin a new trial and train it to ``to`` env steps."""

    trial: str  # its name, new in this study
    settings: Settings
    to: int
    reason: str
    seed: int | None = None  # of the run; None: the study's own
    role: Role = "search"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoOn:
    """Train a paused trial on, to ``to`` env steps."""

    trial: str
    to: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Train a trial no further; one that is training ends at once and is saved."""

    trial: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Clone:
    """Begin a new trial as an exact copy of ``source`` at its last result, with settings
    changed, and train it to ``to`` env steps.
    """

    trial: str
    source: str
    settings: Settings  # all of them, changed or not
    to: int
    reason: str


Decision = Start | GoOn | Stop | Clone


@dataclass(frozen=True, slots=True)
class Point:
    """A score that was measured after so many env steps."""

    steps: int
    score: float


@dataclass(slots=True, kw_only=True)
class Trial:
    """A trial so far. A clone has its parent's points up to the cut."""

    name: str
    settings: Settings
    parent: str | None = None
    parent_steps: int = 0  # the cut that the clone was taken at
    role: Role = "search"
    seed: int | None = None
    state: State = "training"
    target: int = 0  # env steps that it was asked to train to
    steps: int = 0  # env steps at its last result
    # one for each result: the evaluation at its end, or the mean return if there is none
    points: list[Point] = field(default_factory=list)
    seconds: float = 0.0  # measured, without those of its parent
    core_seconds: float = 0.0
    alarms: list[str] = field(default_factory=list)

    @property
    def score(self) -> float | None:
        """Its last score; None before its first result."""
        return self.points[-1].score if self.points else None

    def score_at(self, steps: int) -> float | None:
        """Return the last score at or before so many env steps."""
        return next((p.score for p in reversed(self.points) if p.steps <= steps), None)


@dataclass(slots=True, kw_only=True)
class History:
    """All trials, in the order in which they began."""

    trials: dict[str, Trial] = field(default_factory=dict)
    # trials that may begin or go on now, which is how many jobs are free
    free: int = 1
    decisions: int = 0  # made so far; a strategy derives its random numbers from counts like this

    def __iter__(self) -> Iterator[Trial]:
        return iter(self.trials.values())

    def of(self, *states: State, role: Role = "search") -> list[Trial]:
        return [one for one in self if one.role == role and (not states or one.state in states)]

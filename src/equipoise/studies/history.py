"""The history of a study: its trials and their results so far, which is all that a strategy
sees, and the decisions that a strategy makes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal

from equipoise.hints import shortened
from equipoise.studies.space import Settings

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

LONGEST_TEXT = 20_000  # letters of a reason
WORDS: Mapping[type, str] = {str: "a text", Integral: "a whole number", Mapping: "a mapping"}

# training: up to ``target``, whether or not a process runs it. paused: at ``steps``, may go on.
# done: the run ended itself (its goal, an alarm). stopped: by a decision. failed: with an error.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The end of one stretch of training."""

    trial: str
    steps: int  # env steps of the trial so far
    state: Literal["paused", "done", "failed"]
    score: float | None = None
    alarms: tuple[str, ...] = ()
    error: str = ""  # the reason of a failure, in one sentence
    seconds: float = 0.0  # measured: another run of the same study has others
    core_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of the study: its best trial, or None if no trial has a score."""

    best: str | None
    reason: str


Entry = Decision | Result | End


def check_decisions(found: object, where: str) -> None:
    """ValueError if ``found``, which a strategy returned, is no list of decisions."""
    if not isinstance(found, list | tuple):
        raise ValueError(f"{where}: must return a list of decisions, got {shortened(repr(found))}")
    for one in found:
        if not isinstance(one, Decision):
            raise ValueError(
                f"{where}: must return Start, GoOn, Stop and Clone, got {shortened(repr(one))}"
            )
        given: list[tuple[str, object, type]] = [
            ("trial", one.trial, str),
            ("reason", one.reason, str),
        ]
        if not isinstance(one, Stop):
            given.append(("to", one.to, Integral))
        if isinstance(one, Start | Clone):
            given.append(("settings", one.settings, Mapping))
        if isinstance(one, Clone):
            given.append(("source", one.source, str))
        if isinstance(one, Start) and one.seed is not None:
            given.append(("seed", one.seed, Integral))
        for name, value, kind in given:
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ValueError(
                    f"{where}: {type(one).__name__}.{name} must be {WORDS[kind]}, got "
                    f"{shortened(repr(value))}"
                )
        if len(one.reason) > LONGEST_TEXT:
            raise ValueError(
                f"{where}: {type(one).__name__}.reason must be at most {LONGEST_TEXT:,} letters, "
                f"got {len(one.reason):,}"
            )
        if isinstance(one, Start) and one.seed is not None and not 0 <= one.seed < 1 << 63:
            raise ValueError(f"{where}: Start.seed must be from 0 to 2**63 - 1, got {one.seed}")


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
    parent_steps: int = 0  # env steps at which the clone was taken
    role: Role = "search"
    seed: int | None = None
    state: State = "training"
    target: int = 0  # env steps that it was asked to train to
    steps: int = 0  # env steps at its last result
    begun: int = 0  # virtual time at which its present stretch began, in env steps of one job
    begun_steps: int = 0  # env steps of the trial at that time
    # one for each result: the evaluation at its end, or the mean return if there is none
    points: list[Point] = field(default_factory=list)
    seconds: float = 0.0  # measured, without those of its parent
    core_seconds: float = 0.0
    alarms: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def score(self) -> float | None:
        """The last score; None before the first result."""
        return self.points[-1].score if self.points else None


@dataclass(slots=True, kw_only=True)
class History:
    """All trials, in the order in which they began."""

    trials: dict[str, Trial] = field(default_factory=dict)
    jobs: int = 1
    whole: int = 0  # env steps of a whole trial; 0: unknown
    now: int = 0  # virtual time: env steps of one job, so that decisions do not depend on seconds
    end: End | None = None

    def __iter__(self) -> Iterator[Trial]:
        return iter(self.trials.values())

    @property
    def free(self) -> int:
        """Trials that may begin or go on now."""
        return max(self.jobs - len(self.training), 0)

    @property
    def training(self) -> list[Trial]:
        return [one for one in self if one.state == "training"]

    def is_whole(self, trial: Trial) -> bool:
        """Has a trial come to its end, so that it cannot go on?"""
        return trial.state == "paused" and 0 < self.whole <= trial.steps

    def of(self, *states: State, role: Role = "search") -> list[Trial]:
        return [one for one in self if one.role == role and (not states or one.state in states)]

    def add(self, entry: Entry) -> None:
        """Apply one entry of the journal; ValueError for one that cannot follow the others."""
        if self.end is not None:
            raise ValueError("must be followed by nothing, since the study has ended")
        if isinstance(entry, End):
            if entry.best is not None:
                self._known(entry.best)
            self.end = entry
            return
        if isinstance(entry, Result):
            self._result(entry)
            return
        if isinstance(entry, Start):
            trial = self._new(entry.trial)
            trial.role, trial.seed, trial.settings = entry.role, entry.seed, entry.settings
            self._train(entry.trial, entry.to)
        elif isinstance(entry, Clone):
            source = self._known(entry.source)
            if not source.points:
                raise ValueError(
                    f"{entry.trial}: must be cloned from a trial with a result, got {entry.source}"
                )
            clone = self._new(entry.trial)
            clone.parent, clone.parent_steps, clone.steps = source.name, source.steps, source.steps
            clone.settings, clone.points, clone.seed = entry.settings, [*source.points], source.seed
            self._train(entry.trial, entry.to)
        elif isinstance(entry, GoOn):
            if (state := self._known(entry.trial).state) != "paused":
                raise ValueError(f"{entry.trial}: must be paused to go on, got {state}")
            self._train(entry.trial, entry.to)
        else:
            self._known(entry.trial).state = "stopped"

    def _new(self, name: str) -> Trial:
        if name in self.trials:
            raise ValueError(f"{name}: must be a new name, got one of another trial")
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r}: must be the name of a folder, such as trial_0001")
        self.trials[name] = Trial(name=name, settings={})
        return self.trials[name]

    def _known(self, name: str) -> Trial:
        if name not in self.trials:
            raise ValueError(f"{name}: must be a trial that has begun, got an unknown one")
        return self.trials[name]

    def _train(self, name: str, to: int) -> None:
        trial = self.trials[name]
        if to <= trial.steps:
            raise ValueError(f"{name}: must train beyond step {trial.steps:,}, got {to:,}")
        trial.state, trial.target = "training", to
        trial.begun, trial.begun_steps = self.now, trial.steps

    def _result(self, result: Result) -> None:
        trial = self._known(result.trial)
        if trial.state != "training":
            raise ValueError(f"{trial.name}: must be training to have a result, got {trial.state}")
        trial.state, trial.error = result.state, result.error
        trial.steps = max(trial.steps, result.steps)  # one that fails as it goes on reports 0
        if result.score is not None:
            trial.points.append(Point(result.steps, result.score))
        trial.alarms += result.alarms
        trial.seconds += result.seconds
        trial.core_seconds += result.core_seconds
        self.now = max(self.now, trial.begun + trial.steps - trial.begun_steps)

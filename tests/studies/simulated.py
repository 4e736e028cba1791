"""Studies in virtual time: a loop that runs a strategy on simulated learners, and checks that it is
pure and asks for nothing forbidden.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from equipoise.studies.history import (
    Clone,
    Decision,
    GoOn,
    History,
    Result,
    Start,
    Stop,
    Trial,
)
from equipoise.studies.space import Settings
from equipoise.studies.strategies.confirmed import Confirmed
from equipoise.studies.strategy import Strategy

MOST_ASKS = 20_000


class Failure(Exception):
    """The end of a simulated trial with an error."""


class Learner(Protocol):
    """A simulated trial; a clone is a deep copy with other settings."""

    settings: Settings

    # train to so many env steps -> the score then; raises Failure
    def train(self, steps: int) -> float | None: ...


@dataclass
class Curve:
    """A learner without memory: its score is a function of settings and steps."""

    settings: Settings
    score: Callable[[Settings, int], float | None]

    def train(self, steps: int) -> float | None:
        return self.score(self.settings, steps)


@dataclass
class Simulated:
    """A study that has ended."""

    history: History
    decisions: list[Decision] = field(default_factory=list)
    steps: int = 0  # env steps of all trials
    seconds: float = 0.0

    @property
    def core_seconds(self) -> float:
        return sum(one.core_seconds for one in self.history)


def simulate(
    strategy: Strategy,
    learner: Callable[[Settings, str], Learner],
    *,
    jobs: int = 1,
    speed: Callable[[Settings], float] = lambda settings: 1.0,  # env steps in a second
    late: int = 0,  # env steps by which each stretch ends late
    alarm: Callable[[str], bool] = lambda trial: False,  # ends these trials half-way
    pure: bool = True,  # ask twice, the second time a new object
) -> Simulated:
    """Run a study to its end. A stretch ends at its virtual beginning + steps / speed; of two that
    end at once the one that began first.
    """
    study = Simulated(History(jobs=jobs))
    history, learners = study.history, dict[str, Learner]()
    ends: list[tuple[float, int, str]] = []
    number = itertools.count()
    for _ in range(MOST_ASKS):
        decisions = asked(strategy, history, pure=pure)
        check(strategy, history, decisions)
        study.decisions += decisions
        # as the study does: stops before what begins
        for one in sorted(decisions, key=lambda one: not isinstance(one, Stop)):
            if isinstance(one, Stop) and history.trials[one.trial].state in ("done", "failed"):
                continue
            if isinstance(one, Stop):
                ends = [end for end in ends if end[2] != one.trial]
            if isinstance(one, Start):
                learners[one.trial] = learner(one.settings, one.trial)
            if isinstance(one, Clone):
                learners[one.trial] = copy.deepcopy(learners[one.source])
                learners[one.trial].settings = one.settings
            history.add(one)
            if not isinstance(one, Stop):
                trial = history.trials[one.trial]
                time = (one.to + late - trial.steps) / speed(trial.settings)
                ends.append((study.seconds + time, next(number), one.trial))
        if any(isinstance(one, Stop) for one in decisions) and not ends:
            continue
        if not ends:
            return study
        end = min(ends)
        ends.remove(end)
        trial = history.trials[end[2]]
        study.seconds = end[0]
        result = stretch(trial, learners[trial.name], trial.target + late, speed)
        if alarm(trial.name):
            half = (trial.steps + trial.target) // 2
            result = dataclasses.replace(result, state="done", steps=half, alarms=("it diverges",))
        history.add(result)
        study.steps += trial.steps - trial.begun_steps
    raise AssertionError(f"the study has not ended after {MOST_ASKS:,} asks")


def stretch(trial: Trial, learner: Learner, to: int, speed: Callable[[Settings], float]) -> Result:
    """Return the result of one stretch of training."""
    seconds = (to - trial.steps) / speed(trial.settings)
    try:
        score = learner.train(to)
    except Failure as error:
        return Result(trial=trial.name, steps=trial.steps, state="failed", error=str(error))
    return Result(
        trial=trial.name,
        steps=to,
        state="paused",
        score=score,
        seconds=seconds,
        core_seconds=seconds,
    )


def asked(strategy: Strategy, history: History, *, pure: bool = True) -> list[Decision]:
    """Return the decisions of a strategy; AssertionError if they do not follow from the history."""
    if not pure:
        return strategy.ask(history)
    before = copy.deepcopy(history)
    decisions = strategy.ask(history)
    assert history == before, "the history was changed"
    assert renewed(strategy).ask(before) == decisions, "a new object decided otherwise"
    return decisions


def renewed(strategy: Any) -> Strategy:
    """Return an equal strategy that has seen nothing."""
    if isinstance(strategy, Confirmed):
        return dataclasses.replace(strategy, inner=renewed(strategy.inner))
    new: Strategy = dataclasses.replace(strategy)
    return new


def check(strategy: Strategy, history: History, decisions: list[Decision]) -> None:
    """Raise AssertionError for a decision that a study would refuse."""
    space, whole = strategy.plan.space, strategy.plan.steps
    begun = [one for one in decisions if not isinstance(one, Stop)]
    assert len(begun) <= history.free, "more than are free"
    names = [one.trial for one in decisions]
    assert len(set(names)) == len(names), "two decisions on one trial"
    for one in decisions:
        assert one.reason and "{" not in one.reason
        known = history.trials.get(one.trial)
        if isinstance(one, Stop):
            assert known is not None and known.state in ("training", "paused")
            continue
        assert one.to <= whole, "beyond the plan"
        if isinstance(one, GoOn):
            assert known is not None and known.state == "paused", "no paused trial goes on"
            assert one.to > known.steps
            continue
        assert known is None, "a name that is taken"
        assert one.trial.replace("_", "").isalnum()
        assert one.to > 0 and space.holds(one.settings), one.settings
        if isinstance(one, Clone):
            source = history.trials[one.source]
            assert source.points and source.state != "failed" and one.to > source.steps

"""Asynchronous successive halving: many trials begin, and the best of each rung go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from equipoise import facts
from equipoise.facts import Help, NonNegativeInt
from equipoise.studies.best import worth
from equipoise.studies.history import Decision, GoOn, History, Start, Trial
from equipoise.studies.space import Settings
from equipoise.studies.strategies.base import Base, trial_name
from equipoise.studies.strategy import Plan

Rungs = tuple[int, ...]  # env steps of each, up to a whole trial
SMALLEST = 27  # the first rung is at least this part of a whole trial


@dataclass(frozen=True, kw_only=True)
class ASHA(Base):
    """Asynchronous successive halving (arXiv:1810.05934) over env steps: a trial pauses at each
    rung, and goes on while it is among the best 1/``reduction`` of the trials there.
    """

    needs_results: ClassVar[bool] = True

    reduction: Annotated[int, facts.Range(2, 1000), Help("One in how many trials goes on")] = 3
    first_rung: Annotated[
        NonNegativeInt,
        Help("Env steps of the first rung; 0 chooses it", "At least 1/27 of a whole trial."),
    ] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first_rung > self.plan.steps:
            raise ValueError(
                f"ASHA.first_rung: must be at most the steps of a trial ({self.plan.steps:,}), "
                f"got {self.first_rung:,}; try 0"
            )

    def ask(self, history: History) -> list[Decision]:
        rungs = rungs_of(self.plan.steps, self.reduction, self.first_rung)
        return halved(history, self.plan, self.reduction, lambda number: rungs, self.draw)


def rungs_of(steps: int, reduction: int, first: int = 0) -> Rungs:
    """Return the env steps of each rung, from the first to a whole trial."""
    if not first:
        first = max(steps // reduction ** int(math.log(SMALLEST, reduction) + 1e-9), 1)
    rungs = []
    # a rung just below a whole trial would decide nothing
    while first * math.sqrt(reduction) < steps:
        rungs.append(first)
        first *= reduction
    return (*rungs, steps)


def halved(
    history: History,
    plan: Plan,
    reduction: int,
    rungs: Callable[[int], Rungs],
    choose: Callable[[int], Settings],
) -> list[Decision]:
    """Return the next decisions of successive halving: promotions first, then new settings.

    ``rungs``: those of the trial that began as number N. Trials with the same ones are a bracket,
    within which they are compared.
    """
    trials = history.of()
    brackets: dict[Rungs, list[Trial]] = {}
    for number, one in enumerate(trials):
        brackets.setdefault(rungs(number), []).append(one)
    decisions: list[Decision] = []
    for bracket, members in brackets.items():
        decisions += _promotions(members, bracket, reduction)
    del decisions[history.free :]
    for number in range(len(trials), min(plan.trials, len(trials) + history.free - len(decisions))):
        reason = f"settings {number + 1} of {plan.trials}, to the first rung"
        settings, to = choose(number), rungs(number)[0]
        decisions.append(Start(trial=trial_name(number), settings=settings, to=to, reason=reason))
    if not decisions and not history.training:
        return _last(brackets)[: history.free]
    return decisions


def _promotions(trials: Sequence[Trial], rungs: Rungs, reduction: int) -> list[Decision]:
    """Return the promotions that the scores allow, from the highest rung down."""
    found: list[Decision] = []
    for rung in reversed(rungs[:-1]):
        there = [
            one
            for one in trials
            if one.target > rung or (one.target == rung and one.state != "training")
        ]
        ranked = sorted(there, key=lambda one: -worth(one, rung))
        for place, one in enumerate(ranked[: len(there) // reduction], start=1):
            if one.target == rung and _promotable(one, rungs):
                reason = (
                    f"its score {worth(one):.6g} at {one.steps:,} steps is number {place} of "
                    f"{len(there)} trials, and one in {reduction} goes on"
                )
                found.append(_promotion(one, rungs, reason))
    return found


def _last(brackets: Mapping[Rungs, Sequence[Trial]]) -> list[Decision]:
    """Return the promotion of the best trial of the highest rung, unless a trial is whole."""
    scored = [
        (one, rungs) for rungs, some in brackets.items() for one in some if worth(one) > -math.inf
    ]
    if any(one.target == rungs[-1] or one.state == "done" for one, rungs in scored):
        return []
    waiting = [(one, rungs) for one, rungs in scored if _promotable(one, rungs)]
    if not waiting:
        return []
    best, rungs = max(waiting, key=lambda pair: (pair[0].target, worth(pair[0])))
    reason = (
        f"its score {worth(best):.6g} at {best.steps:,} steps is the best of the highest rung, and "
        "no other trial is left to train"
    )
    return [_promotion(best, rungs, reason)]


def _promotable(trial: Trial, rungs: Rungs) -> bool:
    return trial.state == "paused" and trial.steps < rungs[-1] and worth(trial) > -math.inf


def _promotion(trial: Trial, rungs: Rungs, reason: str) -> GoOn:
    # a stretch that ended late may have passed a rung
    to = next(one for one in rungs if one > max(trial.steps, trial.target))
    return GoOn(trial=trial.name, to=to, reason=reason)

"""Optuna's samplers: each chooses the next settings from the results so far."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from equipoise import facts
from equipoise.facts import Help
from equipoise.studies.best import worth
from equipoise.studies.history import Decision, History, Trial
from equipoise.studies.space import Choice, Parameter, Settings, Space
from equipoise.studies.strategies.asha import Rungs, halved, rungs_of
from equipoise.studies.strategies.base import Base, next_trials
from equipoise.studies.strategy import Plan

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, kw_only=True)
class ByOptuna(Base):
    """Settings by a sampler of Optuna (arXiv:1907.10902), which gets the history again for each
    choice, so that the journal of the study is the only one.
    """

    needs_results: ClassVar[bool] = True

    sampler: Annotated[
        Literal["tpe", "gp", "cmaes", "random"],
        Help("Sampler of Optuna", "A generation of cmaes ends before the next one begins."),
    ] = "tpe"
    pruning: Annotated[
        Literal["none", "hyperband"],
        Help("Early stopping", "hyperband: the brackets of arXiv:1603.06560, asynchronously."),
    ] = "none"
    reduction: Annotated[
        int,
        facts.Range(2, 1000),
        Help("One in how many trials goes on"),
        facts.Read("pruning", "hyperband"),
    ] = 3
    # kept for speed alone: without it cmaes makes all generations again
    _made: list[Generations] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.sampler == "cmaes" and self.pruning != "none":
            raise ValueError(
                f"ByOptuna.pruning: must be none with sampler=cmaes, got {self.pruning}; try "
                "sampler=tpe"
            )
        super().__post_init__()

    def _packages(self) -> Sequence[str]:
        extra = {"cmaes": ("cmaes",), "gp": ("scipy",)}
        return ("optuna", *extra.get(self.sampler, ()))

    def ask(self, history: History) -> list[Decision]:
        with quiet():
            return self._by_generations(history) if self.sampler == "cmaes" else self._any(history)

    def _any(self, history: History) -> list[Decision]:
        rungs = rungs_of(self.plan.steps, self.reduction)
        if self.pruning == "none":
            rungs = rungs[-1:]
        # Hyperband gives each bracket the same budget, so one with a later first rung has fewer
        weights = np.array([self.reduction**-i / (len(rungs) - i) for i in range(len(rungs))])
        ends = np.cumsum(weights / weights.sum())[:-1]
        study: list[optuna.Study] = []  # made for the first choice

        def bracket(number: int) -> Rungs:
            return rungs[int(np.searchsorted(ends, number * GOLDEN % 1)) :]

        def choose(number: int) -> Settings:
            if not study:
                study.append(new_study())
                study[0].add_trials(frozen_trials(self.plan, history.of()))
            study[0].sampler = self._sampler(self.plan.rng("trial", number))
            return asked_trial(study[0], self.plan.space)[1]

        return halved(history, self.plan, self.reduction, bracket, choose)

    def _sampler(self, rng: np.random.Generator) -> optuna.samplers.BaseSampler:
        from optuna import samplers

        seed = int(rng.integers(2**32))
        if self.sampler == "gp":
            return samplers.GPSampler(seed=seed)
        if self.sampler == "random":
            return samplers.RandomSampler(seed=seed)
        # other trials that are training keep away from each other's settings
        return samplers.TPESampler(seed=seed, constant_liar=True)

    def _by_generations(self, history: History) -> list[Decision]:
        trials = history.of()
        size = 4 + int(3 * math.log(len(self.plan.space)))
        ended = next((i for i, one in enumerate(trials) if one.state == "training"), len(trials))
        scores: list[float] = []
        for first in range(0, ended // size * size, size):
            generation = [worth(one) for one in trials[first : first + size]]
            finite = [one for one in scores + generation if one > -math.inf]
            scores += [max(one, min(finite, default=0.0)) for one in generation]
        made = self._made[0] if self._made else None
        if made is None or made.scores != scores[: len(made.scores)]:
            made = Generations(self.plan, size)
        self._made[:] = [made]
        settings = made.after(scores)
        return next_trials(
            history,
            min(self.plan.trials, len(scores) + size),
            self.plan.steps,
            lambda number: settings[number - len(scores)],
            "settings {}",
        )


class Generations:
    """The generations of CMA-ES so far: the settings of each follow from the scores before it."""

    def __init__(self, plan: Plan, size: int) -> None:
        from optuna.samplers import CmaEsSampler

        self._space, self._size = plan.space, size
        self.scores: list[float] = []
        self._study = new_study()
        self._study.sampler = CmaEsSampler(
            seed=int(plan.rng("cmaes").integers(2**32)),
            popsize=size,
            warn_independent_sampling=False,
        )
        self._asked = self._ask()

    def after(self, scores: Sequence[float]) -> list[Settings]:
        """Return the settings of the generation after those with these scores."""
        while len(self.scores) < len(scores):
            given = scores[len(self.scores) : len(self.scores) + self._size]
            for (trial, _), score in zip(self._asked, given):
                self._study.tell(trial, score)
            self.scores += given
            self._asked = self._ask()
        return [settings for _, settings in self._asked]

    def _ask(self) -> list[tuple[optuna.Trial, Settings]]:
        return [asked_trial(self._study, self._space) for _ in range(self._size)]


def new_study() -> optuna.Study:
    """Return an empty study in memory."""
    import optuna

    return optuna.create_study(direction="maximize")


def asked_trial(study: optuna.Study, space: Space) -> tuple[optuna.Trial, Settings]:
    """Return a new trial of Optuna's and its settings."""
    trial = study.ask({one.key: distribution(one) for one in space})
    return trial, {
        one.key: one.values[trial.params[one.key]]
        if isinstance(one, Choice)
        else one.clipped(trial.params[one.key])
        for one in space
    }


def frozen_trials(plan: Plan, trials: Sequence[Trial]) -> list[optuna.trial.FrozenTrial]:
    """Return trials as Optuna takes them: a failed one has the worst score of all, and one that is
    not whole counts as pruned.
    """
    from optuna.trial import TrialState, create_trial

    distributions = {one.key: distribution(one) for one in plan.space}
    worst = min((worth(one) for one in trials if worth(one) > -math.inf), default=None)
    found = []
    for one in trials:
        score = worth(one) if worth(one) > -math.inf else worst
        if one.state == "training":
            state = TrialState.RUNNING
        elif score is None:
            state = TrialState.FAIL
        elif one.state in ("done", "failed") or one.target == plan.steps:
            state = TrialState.COMPLETE
        else:
            state = TrialState.PRUNED
        found.append(
            create_trial(
                state=state,
                value=score if state == TrialState.COMPLETE else None,
                intermediate_values={p.steps: p.score for p in one.points},
                params={
                    parameter.key: parameter.index(one.settings[parameter.key])
                    if isinstance(parameter, Choice)
                    else one.settings[parameter.key]
                    for parameter in plan.space
                },
                distributions=distributions,
            )
        )
    return found


def distribution(parameter: Parameter) -> BaseDistribution:
    """Return a parameter as Optuna takes it, a choice by the places of its values."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if isinstance(parameter, Choice):
        return CategoricalDistribution(range(len(parameter.values)))
    log = parameter.scale == "log"
    if parameter.whole:
        return IntDistribution(round(parameter.low), round(parameter.high), log=log)
    return FloatDistribution(parameter.low, parameter.high, log=log)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna from printing what it creates and which of its parts are experimental."""
    from optuna import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)

"""A strategy of a study: from the history so far to the next decisions, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from equipoise.seeds import derive_seed
from equipoise.studies.history import Decision, History
from equipoise.studies.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What every strategy is given: the space, the budget and the seed of a study."""

    space: Space
    trials: int  # settings to try; members of a population
    steps: int  # env steps of a whole trial
    seed: int = 0

    def rng(self, *purpose: str | int) -> np.random.Generator:
        """Return the generator for one purpose, such as ``rng("trial", 3)``: the same after every
        restart.
        """
        return np.random.default_rng(
            derive_seed(self.seed, "/".join(map(str, ("study", *purpose))))
        )


class Strategy(Protocol):
    """One file in ``strategies/``: a frozen dataclass of the plan and its own settings.

    ``ask`` is pure: the same history gives the same decisions. It is called at the beginning and
    after every result. It returns at most ``history.free`` decisions that begin or go on with a
    trial. If it returns no such decision while nothing is training, the search is over.
    """

    @property
    def plan(self) -> Plan: ...

    @property
    def needs_results(self) -> bool:
        """Return whether it decides by results before the end of a trial."""

    @property
    def changes_settings(self) -> bool:
        """Return whether it changes settings of trials that go on."""

    def ask(self, history: History) -> list[Decision]: ...

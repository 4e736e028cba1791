"""The scorer (``language/scoring/server.py``): it grades the samples of generators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise.types import Array, Tree
from equipoise.workers.kind import (
    BeginsAnew,
    Job,
    Kind,
    Placed,
    Site,
    Waits,
)

if TYPE_CHECKING:
    from equipoise.language.scoring.remote import Scorers
    from equipoise.language.scoring.server import ScorerWorker
    from equipoise.plans.blueprint import Blueprint
    from equipoise.workers.shared import Shared


LOOK_S = 0.25  # between two looks at the deadline of a group


class ScorerKind(Kind, Placed, BeginsAnew, Waits["ScorerWorker"]):
    """Calls reward functions, on whatever machine. Generators send again what a scorer that died
    had.
    """

    name = "scorer"

    def count(self, blue: Blueprint) -> int:
        return 0 if blue.scoring is None else blue.scoring.workers

    def memory(self, blue: Blueprint) -> Tree:
        from equipoise.language.scoring.server import specs  # it loads ZeroMQ

        return specs(self.count(blue))

    def heard(self, words: Tree, index: int) -> tuple[Array, ...]:
        mine = slice(index, index + 1)
        return words["address"][mine], words["life"][mine]

    def counted(self, words: Tree, index: int) -> tuple[Array, ...]:
        return (words["scored"][index : index + 1],)

    def build(self, job: Job, site: Site) -> ScorerWorker:
        from equipoise.language.scoring.server import ScorerWorker, words_of

        blue, words = job.blueprint, job.shared.own[self.name].views
        assert blue.scoring is not None
        return ScorerWorker(blue.scoring, words_of(words, job.index), host=blue.address)

    def progress(self, blue: Blueprint, shared: Shared, index: int) -> float:
        """Pairs of groups: a function that ends the worker with its first group ends the run."""
        return float(shared.own[self.name].views["scored"][index]) / 2

    def listens(self, worker: ScorerWorker) -> tuple[int, ...]:
        return worker.fds()

    def patience(self, worker: ScorerWorker) -> float | None:
        return LOOK_S if worker.waiting else None


def scorers_of(job: Job) -> Scorers | None:
    """The scorers of a run, for one of its generators; None if each generator scores itself."""
    if (scoring := job.blueprint.scoring) is None:
        return None
    from equipoise.language.scoring.remote import Scorers
    from equipoise.language.scoring.server import addresses

    words = job.shared.own[ScorerKind.name].views
    return Scorers(
        addresses=lambda: addresses(words),
        public=scoring.scorers.public,
        keys=scoring.generators,
        first=job.index % scoring.workers,
    )

"""Workers of an elastic run whose samples grow longer and shorter again, on simulated devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from equipoise.actors.engine.engine import Continuing
from equipoise.actors.engine.sim_engine import Latency, SimEngine
from equipoise.learners.learner import Learner
from equipoise.learners.worker import LearnerWorker
from equipoise.sources.prompts import Text
from equipoise.workers.elastic import ElasticKind
from equipoise.workers.generator import GeneratorKind
from equipoise.workers.kind import Job, Site
from equipoise.workers.kinds import KINDS
from equipoise.workers.lending import lending

SHORT, LONG = 1.0, 40.0  # tokens, about
GROWS, SHRINKS = 10, 28  # versions
LEARN_S = 0.06  # of an update
FILE = "lent.txt"  # a line for each update: is the device lent?
SAMPLE_S = 0.001  # that a sample adds to a step


class Growing(SimEngine):
    """Draws samples whose length depends on the version of the weights."""

    def take(
        self, version: int, params: Mapping[str, object], whole: Callable[[], bool]
    ) -> Iterator[None]:
        yield from super().take(version, params, whole)
        median = LONG if GROWS <= self.version < SHRINKS else SHORT
        if median != self._model.median:
            self._model = replace(self._model, median=median)
            self._chances = []


def growing(text: Text, rows: int) -> Growing:
    model = Latency(median=SHORT, sigma=0.3, step_s=0.0, sample_s=SAMPLE_S)
    size = int(text.spec.model["vocab_size"])
    return Growing(model, rows=rows, vocabulary=size, eos=text.spec.eos[0], seed=1)


class GrowingGenerator(GeneratorKind):
    """A generator on a simulated device."""

    def engine(self, job: Job, site: Site, text: Text) -> Continuing:
        return growing(text, 64)


class GrowingLearner(ElasticKind):
    """A learner on a simulated device, which learns in a given time."""

    def drawing(self, job: Job, text: Text, learner: Learner) -> Continuing:
        return growing(text, 64)

    def learner(self, job: Job, site: Site) -> LearnerWorker:
        worker = super().learner(job, site)
        (line,) = worker.lines.values()
        learner: Any = line.learner
        step, words = learner.step, lending(job.shared)
        assert words is not None
        file = Path(job.blueprint.directory).parent / FILE

        def slept(batch: Any) -> Any:
            with file.open("a") as out:
                out.write(f"{int(words.lent)}\n")
            time.sleep(LEARN_S)  # as a device that works
            return step(batch)

        learner.step = slept
        return worker


WITH = (
    *(one for one in KINDS if not isinstance(one, GeneratorKind | ElasticKind)),
    GrowingGenerator(),
    GrowingLearner(),
)

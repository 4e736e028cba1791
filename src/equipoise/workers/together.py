"""The learner that also generates: one worker draws the samples of an update with its own weights,
scores them, and learns from them.

The law. Samples and updates never overlap (``max_lag`` is 0): while samples are drawn the weights
stay as they are, and while the worker learns no sample is open, so that the engine gives the memory
of its keys and values back. The same generator and the same learner as in workers of their own, so
the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from equipoise.actors.engine.engine import Continuing
from equipoise.actors.engine.torch_engine import TorchEngine
from equipoise.actors.generator import PARTS, Generator
from equipoise.balance.shares import Side
from equipoise.clock import Clock
from equipoise.learners.learner import Learner
from equipoise.learners.worker import PARTS as LEARNING
from equipoise.learners.worker import LearnerWorker
from equipoise.nets import lora
from equipoise.sources.prompts import Text
from equipoise.sources.text import texts_of
from equipoise.types import LateSave, Look, StateReader, StateWriter, Tick
from equipoise.workers.generator import LOOK_S, GeneratorKind, made_generator
from equipoise.workers.kind import Job, Queue, Site, SteppingKind, Waits, WritingKind
from equipoise.workers.kv_memory import kv_tokens, note_chosen
from equipoise.workers.learner import LearnerKind

if TYPE_CHECKING:
    from equipoise.plans.blueprint import Blueprint
    from equipoise.workers.shared import Shared


class OwnWeights:
    """``WeightStore`` that reads the weights of a learner in this process, without a copy.

    Nothing is drawn during an update, so the tensors stay as they are while a token is drawn. They
    change between two parts that are read, if samples stay open during an update.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    @property
    def version(self) -> int:
        return self._learner.version

    def publish(self, version: int, params: Mapping[str, Tensor]) -> None:
        raise TypeError("weights: the learner has them already, so they cannot be published here")

    def fetch(self, newer_than: int = -1) -> tuple[int, Mapping[str, Tensor]] | None:
        version = self.version
        return None if version <= newer_than else (version, self._learner.params())

    def look(self, newer_than: int = -1) -> Look | None:
        found = self.fetch(newer_than)
        return None if found is None else (*found, lambda: self.version == found[0])


class Together:
    """A tick is an update if the samples are there, else a token of each running sample."""

    ready = Tick.BLOCKED  # the learner withholds a batch

    def __init__(
        self,
        learner: LearnerWorker,
        generator: Generator,
        *,
        give_back: Callable[[], object],
        rank: int,
        clock: Clock,
    ) -> None:
        """``give_back``: frees the memory of the engine's keys and values. ``rank``: the learner's
        number. ``clock``: of the learner and the generator.
        """
        self._learner, self._generator, self._give_back = learner, generator, give_back
        self._rank, self._clock = rank, clock
        self._file = f"{GeneratorKind.name}_{rank}"  # the generator's, in a checkpoint
        self._draws = False  # are there keys and values?

    @property
    def grading(self) -> bool:
        """Does it wait for rewards, or for answers of partners?"""
        return self._generator.grading

    def tick(self) -> Tick:
        state = self._learner.tick()
        if state is Tick.WORKED:
            return state
        drawn = self._generator.tick()
        if self._generator.busy:
            self._draws = True
        elif self._draws:
            self._draws = False
            began = perf_counter()
            self._give_back()
            self._clock.add("switch", perf_counter() - began)
        return state if drawn is Tick.BLOCKED else drawn

    def fds(self) -> tuple[int, ...]:
        """Descriptors that wake it."""
        return self._generator.fds()

    def save(self, to: StateWriter) -> LateSave | None:
        to.put(self._generator.state(), self._file)
        return self._learner.save(to)

    def load(self, source: StateReader) -> None:
        """Go on with the generator; the learner was loaded when it was made. The generator of a
        learner that the saved run did not have starts from nothing.
        """
        if self._rank >= self._learner.saved:
            return
        self._generator.restore(source.state(self._file))

    def close(self) -> None:
        self._generator.close()
        self._learner.close()


class TogetherKind(LearnerKind, SteppingKind, WritingKind, Waits[Together]):
    """A learner that generates the samples that it learns from: to the queue it is a generator, and
    its death is a learner's.
    """

    side: ClassVar[Side] = "learning"
    parts: ClassVar[tuple[str, ...]] = (*LEARNING, *PARTS, "switch")
    alike = False  # a tick is a token or an update

    def count(self, blue: Blueprint) -> int:
        return blue.learners if blue.program.placement.text == "together" else 0

    def build(self, job: Job, site: Site) -> Together:
        learner = self.learner(job, site)
        (line,) = learner.lines.values()
        engines: list[TorchEngine] = []

        def engine(text: Text) -> Continuing:
            engines.append(self.drawing(job, text, line.learner))
            return self.watched(job, engines[0])

        generator = made_generator(job, job.index, site, OwnWeights(line.learner), engine)
        (made,) = engines
        note_chosen(job.blueprint, made, site.note)
        worker = Together(
            learner,
            generator,
            give_back=made.give_back,
            rank=job.index,
            clock=site.clock,
        )
        if not job.life:
            site.load(worker)
        return worker

    def drawing(self, job: Job, text: Text, learner: Learner) -> TorchEngine:
        """The engine that draws with a learner's weights, on its device. A frozen base is shared
        with the learner, so it is once in memory.
        """
        blue, net, device = job.blueprint, lora.copied(learner.net), str(learner.device)
        return texts_of(blue.program).engine(
            text,
            learner.algorithm,
            net,
            device=device,
            kv_tokens=kv_tokens(blue, net, device),
        )

    def watched(self, job: Job, engine: TorchEngine) -> Continuing:
        """The engine as the generator sees it."""
        return engine

    def lost(self, blue: Blueprint, shared: Shared, queues: Sequence[Queue], index: int) -> str:
        WritingKind.lost(self, blue, shared, queues, index)
        return LearnerKind.lost(self, blue, shared, queues, index)

    def listens(self, worker: Together) -> tuple[int, ...]:
        return worker.fds()

    def patience(self, worker: Together) -> float | None:
        return LOOK_S if worker.grading else None

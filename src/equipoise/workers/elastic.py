"""The learner whose device is lent to generation while that pays: one worker learns when there is a
batch, and draws samples meanwhile.

The law.

- The devices are lent or they are not (``Lending.lent``, which the first learner writes). They are
  lent all at once, since each learner waits for samples of a queue of its own.
- A learner learns whenever it has a batch. Lent, it otherwise draws a token of each running sample
  with its own weights. The samples stay open during updates, within ``max_lag``.
- A lent learner that has nothing to draw asks its generators (``Lending.wants``): each gives it a
  part of its groups, the newest, once for each question. A generator asks the learner in the same
  way. So each draws as much as it has time for.
- Taken back, it begins no sample. The samples that it has begun are handed to the generators
  (``Queue.hand_over``), which go on with them; conversations, whose partners are in this process,
  are finished here. Then the engine gives the memory of its keys and values back.
- While a cut withholds its batch, a learner hands nothing over, but finishes what it has: the
  generators may be saved already.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from equipoise import schema
from equipoise.actors.engine.engine import Continuing
from equipoise.actors.engine.torch_engine import TorchEngine
from equipoise.actors.generator import PARTS, Generator
from equipoise.actors.lending import Lending
from equipoise.balance.placement import idle_time
from equipoise.balance.placement.lending import Lender
from equipoise.balance.shares import Side
from equipoise.clock import Clock
from equipoise.learners.learner import Learner
from equipoise.learners.worker import PARTS as LEARNING
from equipoise.learners.worker import LearnerWorker
from equipoise.nets import lora
from equipoise.plans.memory_needed import queue_plan
from equipoise.sources.prompts import Text
from equipoise.sources.text import texts_of
from equipoise.types import Array, LateSave, StateReader, StateWriter, Tick, Tree
from equipoise.workers.generator import LOOK_S, GeneratorKind, made_generator
from equipoise.workers.kind import Job, Queue, Site, SteppingKind, Waits, WritingKind
from equipoise.workers.kv_memory import kv_tokens, note_chosen
from equipoise.workers.learner import LearnerKind
from equipoise.workers.lending import KEY, lending
from equipoise.workers.together import OwnWeights

if TYPE_CHECKING:
    from equipoise.plans.blueprint import Blueprint
    from equipoise.workers.shared import Shared

KEEPS = 0.8  # share of the sums over earlier steps that is kept after an update
FULL = 0.9  # share of its limit above which a generator counts as full
SAVED = {
    "lent": schema.Number(0, 1, whole=True),
    "switches": schema.count(),
    "switch_s": schema.Number(0),
    "seen": schema.Array((None, 3), "float64", finite=True),
    "*": schema.Anything(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Writers:
    """The workers that write for one learner, and its places."""

    generators: Sequence[int]  # their groups of samples
    streams: Sequence[Array]  # of these groups
    own: int  # the learner's group of samples
    rank: int  # the learner's number
    places: int  # samples that may be under way
    at_once: int  # samples that a generator may draw


class Decider:
    """Measures updates, and lends the learners' devices or takes them back: the first learner's."""

    def __init__(self, lender: Lender, words: Lending, writers: Writers) -> None:
        self.lender, self._words, self._writers = lender, words, writers
        lender.lent = int(words.lent)
        self._sums = words.sums.copy()
        self._line = np.zeros(5)  # sums over the last steps
        self._at = perf_counter()

    def updated(self, learn_s: float) -> None:
        """An update is over, of which the learner learned for ``learn_s`` seconds."""
        now, sums, began = perf_counter(), self._words.sums.copy(), self._at
        since, self._sums, self._at = sums - self._sums, sums, now
        update = self._measured(since, now - began, learn_s)
        move = 0 if update is None else self.lender.look(idle_time.gains(update))
        if move:
            self._words.switch(move > 0)

    def _measured(self, since: Array, seconds: float, learn_s: float) -> idle_time.Update | None:
        """The update that is over; None if nothing was drawn."""
        writers = self._writers
        mine = since[[*writers.generators, writers.own]]
        steps, samples, drawing_s, _, _ = mine[:, :5].sum(0).tolist()
        if not steps:
            return None
        # one update has too few steps to fit the two parts of a step's time
        self._line = KEEPS * self._line + mine[:, :5].sum(0)
        step_s, sample_s = idle_time.step_line(*self._line.tolist())
        # of each device, mean over its tokens
        at_once = mine[:, 4] / np.maximum(mine[:, 1], 1.0)
        full = writers.at_once * len(writers.generators) < writers.places
        return idle_time.Update(
            seconds=seconds,
            learn_s=min(learn_s, seconds),
            tokens=samples,
            samples=float(at_once.sum()),
            step_s=step_s,
            sample_s=sample_s,
            generators=len(writers.generators),
            lent=self.lender.lent > 0,
            full=full and bool(at_once[:-1].mean() >= FULL * writers.at_once),
            change_s=drawing_s / steps / 2 + float(mine[:, 5].max()),
        )


class Elastic:
    """A tick is an update if there is a batch, else a token of each running sample."""

    ready = Tick.BLOCKED  # the learner withholds a batch, and no sample is open

    def __init__(
        self,
        learner: LearnerWorker,
        generator: Generator,
        *,
        words: Lending,
        writers: Writers,
        decider: Decider | None,
        give_back: Callable[[], object],
        clock: Clock,
    ) -> None:
        """``writers``: for this learner, of which the ``generator`` is its own. ``decider``: the
        first learner's. ``give_back``: frees the memory of the engine's keys and values.
        """
        self._learner, self._generator, self._words = learner, generator, words
        self._decider, self._give_back, self._clock = decider, give_back, clock
        self._own, self._rank = writers.own, writers.rank
        # in a checkpoint
        self._file = f"{GeneratorKind.name}_{writers.own}"
        # the generator that takes the next samples over
        self._to = partial(next, itertools.cycle(writers.streams))
        self._draws = False  # are there keys and values?
        self._learn_s = 0.0  # of the update under way
        self._moved_s = 0.0  # of the last hand-over

    @property
    def grading(self) -> bool:
        """Does it wait for rewards, or for answers of partners?"""
        return self._generator.grading

    def tick(self) -> Tick:
        began, version = perf_counter(), self._learner.version
        state = self._learner.tick()
        if state is Tick.WORKED:
            self._learn_s += perf_counter() - began
            if self._learner.version != version:
                self._updated()
            return state
        if self._learner.broken:
            return Tick.WORKED
        generator = self._generator
        generator.reserves, generator.gives = self._words.lent, state is Tick.STARVED
        if not generator.reserves and state is Tick.STARVED:
            self._hand_over()
        drawn = generator.tick()
        if generator.busy:
            self._draws = True
        elif self._draws and not generator.reserves:
            self._taken_back()
        return state if drawn is Tick.BLOCKED else drawn

    def _updated(self) -> None:
        learn_s, self._learn_s = self._learn_s, 0.0
        if self._decider is not None:
            self._decider.updated(learn_s)

    def _hand_over(self) -> None:
        """Let the generators go on with what is open here."""
        generator = self._generator
        if generator.drawing and generator.hands_over:
            began = perf_counter()
            generator.hand_over(self._to)
            self._moved_s = perf_counter() - began
            self._clock.add("switch", self._moved_s)

    def _taken_back(self) -> None:
        """Free the memory of keys and values: no sample is open."""
        self._draws, began = False, perf_counter()
        self._give_back()
        seconds, moved_s = perf_counter() - began, self._moved_s
        self._clock.add("switch", seconds)
        if self._decider is not None:
            self._decider.lender.switch_s = seconds + moved_s
        self._moved_s = 0.0

    def fds(self) -> tuple[int, ...]:
        """Descriptors that wake it."""
        return self._generator.fds()

    def save(self, to: StateWriter) -> LateSave | None:
        to.put(self._generator.state() | self._lending(), self._file)
        return self._learner.save(to)

    def _lending(self) -> Tree:
        """The first learner's: are the devices lent, and what decides about it?"""
        words, decider = self._words, self._decider
        if decider is None:
            return {}
        return {
            "lent": int(words.lent),
            "switches": words.switches,
            "switch_s": decider.lender.switch_s,
            "seen": np.array(decider.lender.state(), np.float64).reshape(-1, 3),
        }

    def load(self, source: StateReader) -> None:
        """Go on with the generator; the learner was loaded when it was made. The generator of a
        learner that the saved run did not have starts from nothing.
        """
        if self._rank >= self._learner.saved:
            return
        state = source.state(self._file)
        self._generator.restore(state)
        if (decider := self._decider) is not None:
            schema.check(state, SAVED, "")
            self._words.load(bool(state["lent"]), state["switches"])
            decider.lender.load(state["lent"], state["seen"].tolist())
            decider.lender.switch_s = state["switch_s"]

    def close(self) -> None:
        self._generator.close()
        self._learner.close()


class ElasticKind(LearnerKind, SteppingKind, WritingKind, Waits[Elastic]):
    """A learner whose device is lent to generation while that pays. The queue counts it as one more
    generator; if it dies, both its samples and its batch are recovered.
    """

    side: ClassVar[Side] = "learning"
    parts: ClassVar[tuple[str, ...]] = (*LEARNING, *PARTS, "switch")
    alike = False  # a tick is a token or an update
    in_blocks = False  # it learns in any case, and writes at times

    def count(self, blue: Blueprint) -> int:
        return blue.learners if blue.program.placement.text == "elastic" else 0

    def groups(self, blue: Blueprint, index: int) -> range:
        """One group, behind the groups of the generators."""
        return blue.groups(blue.program.placement.actors + index)

    def memory(self, blue: Blueprint) -> Tree:
        return {**super().memory(blue), KEY: Lending.specs(blue.program.groups)}

    def lender(self) -> Lender:
        """The rule that lends the learners' devices."""
        return Lender(most=1)

    def build(self, job: Job, site: Site) -> Elastic:
        blue, words = job.blueprint, lending(job.shared)
        assert words is not None, "the memory of this kind"
        learner = self.learner(job, site)
        (line,) = learner.lines.values()
        (own,) = self.groups(blue, job.index)
        gives: list[Callable[[], object]] = []

        def engine(text: Text) -> Continuing:
            made = self.drawing(job, text, line.learner)
            gives.append(made.give_back if isinstance(made, TorchEngine) else _nothing)
            note_chosen(blue, made, site.note)
            return made

        generator = made_generator(job, own, site, OwnWeights(line.learner), engine)
        writers = writers_of(blue, job.index, own)
        worker = Elastic(
            learner,
            generator,
            words=words,
            writers=writers,
            decider=Decider(self.lender(), words, writers) if job.index == 0 else None,
            give_back=gives[0],
            clock=site.clock,
        )
        if not job.life:
            site.load(worker)
        return worker

    def drawing(self, job: Job, text: Text, learner: Learner) -> Continuing:
        """The engine that draws with a learner's weights, on its device."""
        blue, net, device = job.blueprint, lora.copied(learner.net), str(learner.device)
        return texts_of(blue.program).writing_engine(
            text,
            learner.algorithm,
            net,
            device=device,
            kv_tokens=kv_tokens(blue, net, device),
        )

    def lost(self, blue: Blueprint, shared: Shared, queues: Sequence[Queue], index: int) -> str:
        WritingKind.lost(self, blue, shared, queues, index)
        return LearnerKind.lost(self, blue, shared, queues, index)

    def listens(self, worker: Elastic) -> tuple[int, ...]:
        return worker.fds()

    def patience(self, worker: Elastic) -> float | None:
        return LOOK_S if worker.grading else None


def writers_of(blue: Blueprint, rank: int, own: int) -> Writers:
    """The workers that write for learner ``rank``, whose own group of samples is ``own``."""
    plan, generators = queue_plan(blue), [one for one in blue.groups_of(rank) if one != own]
    return Writers(
        generators=generators,
        streams=[blue.streams(group) for group in generators],
        own=own,
        rank=rank,
        places=plan.blocks * plan.block,
        at_once=texts_of(blue.program).at_once(),
    )


def _nothing() -> None: ...

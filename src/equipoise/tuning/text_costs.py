"""The costs of a run on text, measured in short runs of its own workers.

An engine that is watched adds up the seconds of its steps, by the number of samples that it draws,
in memory that the driver reads. The seconds of everything else come from the clocks that every
worker has. So the costs include all that the real run does.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
from torch import Tensor

from equipoise.actors.engine.engine import Continuation, Continuing, Sampled
from equipoise.actors.engine.torch_engine import TorchEngine
from equipoise.balance.placement.costs import Costs
from equipoise.balance.placement.recursion import step_seconds
from equipoise.balance.shares import Shares, less, of_side
from equipoise.plans.blueprint import Blueprint
from equipoise.runtime.process.process import ProcessRuntime
from equipoise.runtime.session import Interrupt
from equipoise.sources.prompts import Text
from equipoise.sources.text import texts_of
from equipoise.tree import ArraySpec
from equipoise.types import Array, Tree, learning
from equipoise.workers.generator import GeneratorKind
from equipoise.workers.kind import Job, Kind, OwnsMemory, Site
from equipoise.workers.kinds import KINDS
from equipoise.workers.learner import LearnerKind
from equipoise.workers.together import TogetherKind

BINS = 16  # of the number of samples that are drawn, by powers of two
STEPS, LIVE, SECONDS = range(3)  # sums of the steps of a bin that begin no sample
# sums of the steps that begin samples
BEGAN, BEGAN_LIVE, BEGAN_SECONDS, PROMPTS, PROMPT_TOKENS, SAMPLES = range(6)
LENGTHS = 4096  # of samples that are remembered
WARM, LEAST = 2, 3  # updates before the measurement, and in it
SPAN_S, LONG_S = 4.0, 20.0  # a measurement lasts this long; with one update if updates are long
SLICE_S = 0.02


class WatchedEngine:
    """``Continuing`` that adds up what another engine takes."""

    def __init__(self, engine: Continuing, sums: Mapping[str, Array]) -> None:
        """``sums``: the row of this worker in the memory of ``specs``."""
        self._engine, self._sums = engine, sums
        self._prompts = deque[tuple[int, int]]()  # tokens and samples of each group that waits

    @staticmethod
    def specs(workers: int) -> Tree:
        """The memory of this number of workers."""
        return {
            "steps": ArraySpec((workers, BINS, 3), "float64"),
            "began": ArraySpec((workers, 6), "float64"),
            "lengths": ArraySpec((workers, LENGTHS), "int64"),
            "ended": ArraySpec((workers,), "int64"),
        }

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def live(self) -> int:
        return self._engine.live

    @property
    def waiting(self) -> int:
        return self._engine.waiting

    @property
    def away(self) -> int:
        return self._engine.away

    def submit(self, group: int, prompt: Sequence[int], samples: int, *, limit: int) -> None:
        self._prompts.append((len(prompt), samples))
        self._engine.submit(group, prompt, samples, limit=limit)

    def go_on(self, rest: Continuation) -> None:
        self._prompts.appendleft((len(rest.text), 1))
        self._engine.go_on(rest)

    def take(
        self, version: int, params: Mapping[str, Tensor], whole: Callable[[], bool]
    ) -> Iterator[None]:
        return self._engine.take(version, params, whole)

    def close(self) -> None:
        self._engine.close()

    def step(self) -> list[Sampled]:
        waiting, began = self._engine.waiting, perf_counter()
        done = self._engine.step()
        seconds, live = perf_counter() - began, self._engine.live + len(done)
        begun = [self._prompts.popleft() for _ in range(waiting - self._engine.waiting)]
        if begun:
            tokens, samples = (sum(one[part] for one in begun) for part in (0, 1))
            self._sums["began"][:] += (1, live, seconds, len(begun), tokens, samples)
        elif live:
            self._sums["steps"][min(live.bit_length() - 1, BINS - 1)] += (1, live, seconds)
        for one in done:
            ended = int(self._sums["ended"])
            self._sums["lengths"][ended % LENGTHS] = max(one.drawn, 1)
            self._sums["ended"][...] = ended + 1
        return done


def _row(job: Job, kind: str) -> Mapping[str, Array]:
    """The row of a worker in the memory of its kind."""
    views = job.shared.own[kind].views["watched"]
    return {name: one[job.index, ...] for name, one in views.items()}


class WatchedGenerator(GeneratorKind, OwnsMemory):
    """A generator whose engine is watched."""

    def memory(self, blue: Blueprint) -> Tree:
        return {"watched": WatchedEngine.specs(self.count(blue))}

    def engine(self, job: Job, site: Site, text: Text) -> Continuing:
        return WatchedEngine(super().engine(job, site, text), _row(job, self.name))


class WatchedTogether(TogetherKind):
    """A learner that generates, whose engine is watched."""

    def memory(self, blue: Blueprint) -> Tree:
        return {**super().memory(blue), "watched": WatchedEngine.specs(self.count(blue))}

    def watched(self, job: Job, engine: TorchEngine) -> Continuing:
        return WatchedEngine(engine, _row(job, self.name))


def _kinds() -> tuple[Kind, ...]:
    watched: dict[type[Kind], Kind] = {
        GeneratorKind: WatchedGenerator(),
        TogetherKind: WatchedTogether(),
    }
    return tuple(watched.get(type(kind), kind) for kind in KINDS)


@dataclass(frozen=True, slots=True)
class _Moment:
    """What a run has done until a moment."""

    version: int
    shares: Mapping[str, Shares]
    sums: Mapping[str, Array]


def measured(blue: Blueprint, interrupt: Interrupt, *, until: float) -> Costs | None:
    """Run a blueprint for some updates; its costs, or None if there was no time for them.

    ``until``: ``time.monotonic`` at the end. WorkerFailed if a worker fails.
    """
    kind = LearnerKind.name if blue.program.placement.text == "together" else GeneratorKind.name
    runtime = ProcessRuntime(blue, _kinds())

    def moment() -> _Moment:
        now, views = runtime.stats(), runtime.memory_of(kind)["watched"]
        return _Moment(
            now.version, now.workers, {name: np.array(one) for name, one in views.items()}
        )

    try:
        first, began, now = None, 0.0, moment()
        while time.monotonic() < until:
            interrupt.check()
            runtime.poll(SLICE_S)
            version, now = now.version, moment()
            if now.version == version:
                continue  # an update is under way
            if first is None and now.version >= WARM:
                first, began = now, time.monotonic()
            elif first is not None:
                span = time.monotonic() - began
                if span >= (SPAN_S if now.version >= first.version + LEAST else LONG_S):
                    break
        if first is None or now.version < first.version + 1:
            return None
        return _costs(blue, first, now)
    finally:
        runtime.stop()


def _costs(blue: Blueprint, then: _Moment, now: _Moment) -> Costs:
    """The costs of the updates between two moments."""
    updates = now.version - then.version
    workers = {title: less(one, then.shares[title]) for title, one in now.shares.items()}
    learner = of_side(workers.values(), "learning")
    together = blue.program.placement.text == "together"
    generator = learner if together else of_side(workers.values(), "sampling")
    generators = blue.program.actors
    sums = {name: now.sums[name] - then.sums[name] for name in ("steps", "began")}
    steps, began = sums["steps"].sum(0), sums["began"].sum(0)
    lengths = np.concatenate(
        [
            row[: min(int(ended), LENGTHS)]
            for row, ended in zip(now.sums["lengths"], now.sums["ended"], strict=True)
        ]
    )
    text, (policy, *_) = texts_of(blue.program), learning(blue.program).values()
    # all that a generator does for a token is in the seconds of its step
    drawing = sum(generator.parts.get(name, 0.0) for name in ("decode", "write", "score"))
    factor = max(drawing / max(generator.parts.get("decode", 0.0), 1e-9), 1.0)
    decode = {
        max(round(live / count), 1): live / (seconds * factor)
        for count, live, seconds in steps.tolist()
        if count and seconds > 0
    }
    learned = learner.worked + learner.preempted - learner.parts.get("publish", 0.0)
    if together:
        learned -= drawing + learner.parts.get("fetch", 0.0) + learner.parts.get("switch", 0.0)
    prompt = began[PROMPT_TOKENS] / max(began[PROMPTS], 1.0)
    whole = policy.batch * updates * (float(lengths.mean()) + prompt)
    group = blue.program.placement.group_envs
    costs = Costs(
        samples=policy.batch,
        group=group,
        prompt=prompt,
        lengths=lengths.tolist(),
        decode=decode or {1: began[BEGAN_LIVE] / max(began[BEGAN_SECONDS], 1e-9)},
        # of a learner: each learns from its share, all at the same time
        train=whole / max(learned, 1e-9),
        at_once=max(text.at_once(), group),
        publish_s=learner.parts.get("publish", 0.0) / updates / blue.learners,
        take_s=generator.parts.get("fetch", 0.0) / updates / generators,
        switch_s=learner.parts.get("switch", 0.0) / updates / blue.learners / 2,
        # a learner that generates waits for nothing but rewards
        reward_s=learner.starved / updates / blue.learners if together else 0.0,
    )
    return _with_prefill(costs, began * (1, 1, factor, 1, 1, 1))


def _with_prefill(costs: Costs, began: Array) -> Costs:
    """The costs with the speed of prompts: what steps that begin samples take above others."""
    if not began[BEGAN]:
        return costs
    plain = step_seconds(costs)(began[BEGAN_LIVE] / began[BEGAN]) * began[BEGAN]
    more = began[BEGAN_SECONDS] - plain
    return replace(costs, prefill=began[PROMPT_TOKENS] / more if more > 0 else math.inf)

"""The generator (``actors/generator.py``): it writes completions of prompts to be graded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from equipoise.actors.engine.engine import Continuing, Engine
from equipoise.actors.generator import PARTS, Generator, Writing
from equipoise.actors.lending import Taker
from equipoise.errors import Final
from equipoise.plans.memory_needed import queue_plan
from equipoise.sources.prompts import Text
from equipoise.sources.source import source_of
from equipoise.sources.text import texts_of
from equipoise.types import Array, Placement, WeightStore, stream_ids
from equipoise.workers.kind import Job, Site, SteppingKind, Waits, WritingKind
from equipoise.workers.kv_memory import kv_tokens, note_chosen
from equipoise.workers.lending import lending
from equipoise.workers.scorer import scorers_of

if TYPE_CHECKING:
    from equipoise.plans.blueprint import Blueprint
    from equipoise.workers.shared import Shared


class DifferentPrompts(Final, ValueError):
    """The files of a task, or of its tokenizer, are others on this machine, or have changed since
    the run began.
    """


LOOK_S = 0.25  # between two looks at rewards that are late, whose deadline has to be kept


class GeneratorKind(SteppingKind, WritingKind, Waits[Generator]):
    """Writes groups of samples. A replacement rewrites the unfinished groups and produces identical
    samples.
    """

    name = "generator"
    parts = PARTS

    def count(self, blue: Blueprint) -> int:
        place = blue.program.placement
        writes = source_of(blue.program).sampler == self.name and blue.program.actors
        return place.actors if writes and place.text != "together" else 0

    def build(self, job: Job, site: Site) -> Generator:
        (name, *_) = job.blueprint.learns
        weights = job.shared.policies[name].actor_weights.handle()
        worker = made_generator(job, job.index, site, weights, partial(self.engine, job, site))
        if not job.life:
            site.load(worker)
        return worker

    def engine(self, job: Job, site: Site, text: Text) -> Continuing:
        """The engine that draws, if the algorithm reads rewards."""
        blue = job.blueprint
        (name, *_), device = blue.learns, device_of(blue.program.placement, job.index)
        net = blue.network(name)
        engine = texts_of(blue.program).writing_engine(
            text,
            blue.roles[name].algorithm,
            net,
            device=device,
            index=job.index,
            note=site.note,
            kv_tokens=kv_tokens(blue, net, device),
        )
        note_chosen(blue, engine, site.note)
        return engine

    def progress(self, blue: Blueprint, shared: Shared, index: int) -> float:
        """The groups that it has handed in: begun groups may all be lost again."""
        return shared.actors[index].ticks

    def listens(self, worker: Generator) -> tuple[int, ...]:
        return worker.fds()

    def patience(self, worker: Generator) -> float | None:
        return LOOK_S if worker.grading else None

    def held(self, blue: Blueprint) -> int:
        """All blocks of the queue, dealt to the generators that write there."""
        plan = queue_plan(blue)
        return -(-plan.blocks // plan.actors)

    def asks(self, blue: Blueprint) -> int:
        """The groups whose samples it draws side by side. In lockstep it asks for its whole share
        of a batch at once, so that the bits do not depend on when messages come.
        """
        if blue.program.placement.max_lag == 0:
            return self.held(blue)
        most = texts_of(blue.program).at_once() // blue.program.placement.group_envs
        return min(max(most, 1), self.held(blue))


def device_of(place: Placement, index: int) -> str:
    """The device of a generator: with ``cuda`` one that has no learner, if there are any."""
    if place.device != "cuda":
        return place.device
    learners, count = place.learners, torch.cuda.device_count()
    free = range(learners, count) if count > learners else range(max(count, 1))
    return f"cuda:{free[index % len(free)]}"


def takers(blue: Blueprint, group: int) -> list[Taker]:
    """The generators that the generator of this group may give samples to in an elastic run: its
    learner's, or the learner's own gives to all others of the same learner.
    """
    actors, rank = blue.program.placement.actors, blue.learner_of(group)
    others = [one for one in blue.groups_of(rank) if (one < actors) != (group < actors)]
    among = 2 if group >= actors else actors // blue.learners + 1
    return [Taker(one, blue.streams(one), among) for one in others]


def _issued(
    issued: Callable[[int], Array],
    learners: int,
    plain: Callable[[int, int], int],
    block: int,
    refills: int,
) -> int:
    """The prompt that the learner issued for an open block, or the plain order's if it issued
    none. ``issued``: of its queue; ``refills``: groups that were dropped in the block.
    """
    number = int(issued(block // learners)[refills])
    return plain(block, refills) if number < 0 else number


def made_generator(
    job: Job,
    group: int,
    site: Site,
    weights: WeightStore,
    engine: Callable[[Text], Continuing],
) -> Generator:
    """Make the generator of a group of samples. ``weights``: that it draws with.

    DifferentPrompts if the task is another than the run began with.
    """
    blue, words = job.blueprint, lending(job.shared)
    name, *_ = blue.learns
    rank, program = blue.learner_of(group), blue.program
    blocks = site.queues[rank]
    source = texts_of(program)
    text = source.text()
    if text.spec.sha256 != blue.spec.env.sha256:
        raise DifferentPrompts(
            f"source.task={program.name}: expected the prompts that the run began with, got "
            "others; the files of a task and of its tokenizer must be the same on every machine"
        )
    algorithm, grader = blue.roles[name].algorithm, None
    drawing: Engine | None = None
    refills = getattr(algorithm, "refills", 0)
    order: Callable[[int, int], int] = text.order(program.schedule.seed)
    if source.settings.curriculum != "none":
        order = partial(_issued, site.queues[rank].issued, blue.learners, order)
    if algorithm.reads_rewards:
        drawing, grader = source.graded_engine(
            engine(text),
            text,
            text.train,
            row=lambda group: order(*divmod(group, 1 + refills)),
            capsules=blue.capsules,
            scorers=scorers_of(job),
        )
    return Generator(
        drawing or source.reciter(text),
        Writing(
            prompts=text.train,
            grader=grader or source.ungraded(text),
            policy=name,
            at_once=source.at_once(),
            limit=text.spec.completion,
            number=lambda block: block * blue.learners + rank,
            order=order,
            refills=refills,
            imitates=not algorithm.reads_rewards,
            seat=None if words is None else words.seat(group, blocks, takers(blue, group)),
        ),
        blocks=blocks,
        weights=weights,
        episodes=job.shared.actors[group],
        streams=stream_ids(group, program.placement.group_envs),
        clock=site.clock,
        note=site.note,
    )

"""The generator (``actors/generator.py``): it writes completions of prompts to be graded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise.actors.engine.engine import Engine
from equipoise.actors.generator import PARTS, Generator, Writing
from equipoise.errors import Final
from equipoise.plans.memory_needed import queue_plan
from equipoise.sources.source import source_of
from equipoise.sources.text import texts_of
from equipoise.types import stream_ids
from equipoise.workers.kind import Job, Site, SteppingKind, Waits, WritingKind

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
        return blue.program.actors if source_of(blue.program).sampler == self.name else 0

    def build(self, job: Job, site: Site) -> Generator:
        blue, shared, index = job.blueprint, job.shared, job.index
        name, *_ = blue.learns
        rank, program = blue.learner_of(index), blue.program
        source = texts_of(program)
        text = source.text()
        if text.spec.sha256 != blue.spec.env.sha256:
            raise DifferentPrompts(
                f"source.task={program.name}: expected the prompts that the run began with, got "
                "others; the files of a task and of its tokenizer must be the same on every machine"
            )
        algorithm, grader = blue.roles[name].algorithm, None
        engine: Engine | None = None
        if algorithm.reads_rewards:
            order, places = text.order(program.schedule.seed), 1 + getattr(algorithm, "refills", 0)
            engine, grader = source.graded_engine(
                source.writing_engine(
                    text, algorithm, blue.network(name), index=index, note=site.note
                ),
                text,
                text.train,
                row=lambda group: order(*divmod(group, places)),
                capsules=blue.capsules,
            )
        worker = Generator(
            engine or source.reciter(text),
            Writing(
                prompts=text.train,
                grader=grader or source.ungraded(text),
                policy=name,
                at_once=source.at_once(),
                limit=text.spec.completion,
                number=lambda block: block * blue.learners + rank,
                order=text.order(program.schedule.seed),
                refills=getattr(algorithm, "refills", 0),
                imitates=not algorithm.reads_rewards,
            ),
            blocks=site.queues[rank],
            weights=shared.policies[name].actor_weights.handle(),
            episodes=shared.actors[index],
            streams=stream_ids(index, program.placement.group_envs),
            clock=site.clock,
            note=site.note,
        )
        if not job.life:
            site.load(worker)
        return worker

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

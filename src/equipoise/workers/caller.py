"""The caller's worker (``actors/calls/worker.py``): it answers the calls of agents, which the run
learns from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from equipoise.actors.calls.ledger import Ledger
from equipoise.actors.calls.records import Limits
from equipoise.actors.calls.splicing import Splicer
from equipoise.actors.calls.worker import CallParts, CallWorker
from equipoise.actors.generator import PARTS, Writing
from equipoise.plans.memory_needed import queue_plan
from equipoise.sources.calls import Calls
from equipoise.sources.graders import Ungraded
from equipoise.sources.source import source_of
from equipoise.types import Tree, stream_ids
from equipoise.workers.kind import Job, OwnsMemory, Site, SteppingKind, Waits, WritingKind

if TYPE_CHECKING:
    from equipoise.nets.decoder import Decoder
    from equipoise.plans.blueprint import Blueprint
    from equipoise.workers.shared import Shared


class CallerKind(SteppingKind, WritingKind, OwnsMemory, Waits[CallWorker]):
    """Answers calls. A replacement has no open conversation: their callers get an error."""

    name = "caller"
    parts = PARTS

    def count(self, blue: Blueprint) -> int:
        return blue.program.actors if source_of(blue.program).sampler == self.name else 0

    def memory(self, blue: Blueprint) -> Tree:
        return Ledger.specs

    def build(self, job: Job, site: Site) -> CallWorker:
        blue, shared, index = job.blueprint, job.shared, job.index
        name, *_ = blue.learns
        source, program, plan = source_of(blue.program), blue.program, queue_plan(blue)
        if not isinstance(source, Calls):
            raise TypeError(f"source: must be one of calls, got {type(source).__name__}")
        text, settings = source.text(), source.settings
        algorithm = blue.roles[name].algorithm
        net = cast("Decoder", blue.network(name))  # text algorithms learn no other
        ledger, size = Ledger(shared.own[self.name].views), program.placement.group_envs
        worker = CallWorker(
            source.call_engine(text, algorithm, net),
            CallParts(
                writing=Writing(
                    prompts=text.train,
                    grader=Ungraded(),
                    policy=name,
                    at_once=settings.samples_at_once,
                    limit=text.spec.completion,
                    number=lambda block: block,
                    order=lambda block, refills: 0,
                    refills=0,
                ),
                ledger=ledger,
                limits=Limits(
                    group=size,
                    most=settings.conversations,
                    calls=text.spec.turns,
                    reward_s=settings.reward_wait_s,
                    group_s=settings.group_wait_s,
                    graded=bool(settings.reward),
                ),
                grader=source.call_grader(text, blue.capsules),
                filler=text.spec.eos[0],
                max_lag=program.placement.max_lag,
                per_batch=plan.per_batch,
                most_ready=plan.blocks,
                alone=site.at_once is None,
                splicer=Splicer(
                    text.tokenizer.decode, text.spec.eos, text.spec.prompt + text.spec.completion
                ),
                cut=site.cut,
            ),
            blocks=site.queues[0],
            weights=shared.policies[name].actor_weights.handle(),
            episodes=shared.actors[index],
            streams=stream_ids(index, program.placement.group_envs),
            clock=site.clock,
            note=site.note,
        )
        if not job.life:
            site.load(worker)
        ledger.lost("died")
        source.start_server(worker, text, net, site.note)
        return worker

    def progress(self, blue: Blueprint, shared: Shared, index: int) -> float:
        """The blocks that it has handed in."""
        return shared.actors[index].ticks

    def listens(self, worker: CallWorker) -> tuple[int, ...]:
        return worker.fds()

    def patience(self, worker: CallWorker) -> float | None:
        return worker.patience

    def held(self, blue: Blueprint) -> int:
        """All blocks of the queue, one after the other."""
        plan = queue_plan(blue)
        return plan.blocks

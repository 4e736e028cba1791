"""The body of a worker process that learns, acts, or keeps rows; that of an env worker is ``stepping.py``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from equipoise.actors.central import InferenceWorker
from equipoise.actors.worker import ActorWorker
from equipoise.experience.dataset import Faulty
from equipoise.experience.shard import Shard
from equipoise.learners.learner import NonFiniteUpdate
from equipoise.learners.worker import LearnerWorker
from equipoise.nets.compiled import while_compiling
from equipoise.runtime import build, stepping
from equipoise.runtime.blueprint import Blueprint
from equipoise.runtime.build import Shared
from equipoise.runtime.cut import restored, save_worker, saved
from equipoise.runtime.handles import SharedQueue
from equipoise.runtime.loop import Duty, Spin, live, loop, write
from equipoise.types import Tick

Kind = Literal["learner", "actor", "env", "inference", "shard"]
# A successor would come to the same: the run ends.
FINAL = (*stepping.FINAL, NonFiniteUpdate, Faulty)
COMPILE_S = 600.0  # that torch.compile may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment(Duty):
    """Everything a worker is given."""

    kind: Kind
    index: int  # of the actor, the inference worker or the shard
    incarnation: int  # how many processes the worker had before
    blueprint: Blueprint
    shared: Shared
    queue: SharedQueue


def main(job: Assignment) -> None:
    """Run one worker until the stop word, the end of its work, or the end of the driver."""
    live(job, partial(_work, job), final=FINAL)


def _work(job: Assignment) -> None:
    worker = _build(job)
    for note in build.compile_torsos(job.blueprint, worker):
        job.outbox.send({"note": note})
    if job.resume and not job.incarnation and (said := restored(job.name, worker)):
        job.outbox.send({"note": said})
    meter = job.board.meter(job.name)
    if isinstance(worker, LearnerWorker):  # whose tick may last for minutes: it is at work, and does not hang
        for line in worker.lines.values():
            line.learner.pulse = partial(meter.add, Tick.WORKED)
    if job.blueprint.program.compile:  # in any tick: the first with other rows than those that were compiled for, say
        meter.expect(COMPILE_S)  # of the compiler's imports, which take seconds
        while_compiling(partial(meter.expect, COMPILE_S), partial(meter.expect, 0.0))

    def save(cut: int) -> bool:
        more = write(job, cut, lambda: save_worker(stepping.aside(job), worker, job.index, job.queue))
        if isinstance(worker, InferenceWorker):
            worker.hold(cut)
        return more

    loop(
        job, worker, meter, learner=job.kind == "learner", still=Tick.STARVED if job.kind == "shard" else Tick.BLOCKED,
        spin=Spin(job.blueprint.acting_workers) if job.kind == "inference" else None, save=save, saved=lambda: saved(worker),
        patience=lambda: worker.patience_s if isinstance(worker, InferenceWorker) else None,
    )  # fmt: skip
    build.close(worker)


def _build(job: Assignment) -> ActorWorker | InferenceWorker | LearnerWorker | Shard:
    if job.kind == "learner":
        torch.set_num_threads(job.blueprint.program.threads)
        return build.learner(
            job.blueprint, job.shared, job.queue, job.outbox.send, pulse=partial(job.board.pulse, job.name),
            ask=job.queue.ask,
        )  # fmt: skip
    torch.set_num_threads(1)
    if job.kind == "shard":
        return build.shard(job.blueprint, job.index, job.shared, job.queue.block, job.incarnation, answer=job.queue.answer)
    if job.kind == "inference":
        return build.inference(job.blueprint, job.index, job.shared, job.queue, job.incarnation, ring=job.queue.acted)
    return build.actor(job.blueprint, job.index, job.shared, job.queue, job.incarnation)

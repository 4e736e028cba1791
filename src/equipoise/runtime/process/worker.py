"""The body of a worker's process. Nothing here loads torch: a kind of worker that needs it does."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise import phases
from equipoise.record.checkpoint import Source
from equipoise.runtime.ipc import Ringer
from equipoise.runtime.messages import Message, Record, to_json
from equipoise.runtime.process.loop import Duty, Spin, live, loop
from equipoise.runtime.site import LocalSite
from equipoise.runtime.workerfiles import Reader, Saver
from equipoise.workers.kind import Job, Member, Torchless, Waits

if TYPE_CHECKING:
    from equipoise.runtime.process.handles import SharedQueue, SiteSlots

COMPILE_S = 600.0  # that torch.compile may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment(Duty):
    """Everything a worker's process is given."""

    member: Member
    job: object  # of ``Member.job``
    queues: Sequence[SharedQueue | SiteSlots] | None  # None if the process has no torch
    bells: Mapping[Hashable, Ringer]  # of the workers that this one wakes itself (``Wakes``)
    resume: Source | None  # the checkpoint that this process goes on from
    directory: str  # where checkpoints are written
    # the last cut before the process: its predecessor's, whether that saved anything or not
    saved: int
    threads: int  # of torch
    spins: int  # workers that look again before they sleep, this one among them; 0: it does not
    compiles: bool  # may torch.compile be at work in any tick?


def main(job: Assignment) -> None:
    """Run one worker until the stop word, the end of its work, or the end of the driver."""
    live(job, partial(_work, job))


def _work(job: Assignment) -> None:
    def send(message: Message) -> None:
        job.outbox.send(to_json(message))

    kind = job.member.kind
    has_torch = not isinstance(kind, Torchless)
    waits = kind if isinstance(kind, Waits) else Waits()
    if has_torch:
        import torch

        torch.set_num_threads(job.threads)
    site = LocalSite(
        job.member,
        job.board,
        send,
        queues=job.queues,
        join=_Join(job),
        bells=job.bells,
        source=None if job.resume is None else Reader(job.resume, job.member),
    )
    phases.listen(partial(job.board.say, job.name))
    worker = kind.build(job.job, site)
    phases.say("")
    site.meter = meter = job.board.meter(job.name)
    # in any tick, such as the first with rows other than the compiled ones
    if has_torch and job.compiles:
        from equipoise.private.torch import when_compiling

        meter.expect(COMPILE_S)  # of the compiler's imports, which take seconds

        def compiling(ahead_s: float, text: str) -> None:
            phases.say(text)
            meter.expect(ahead_s)

        when_compiling(partial(compiling, COMPILE_S, "compiling"), partial(compiling, 0.0, ""))
    saver = Saver(worker, job.member, Path(job.directory), job.board.cut, send, saved=job.saved)
    spin = Spin(job.spins) if job.spins else None
    loop(
        job,
        worker,
        meter,
        saver,
        spin=spin,
        patience=partial(waits.patience, worker),
        listens=partial(waits.listens, worker),
    )
    worker.close()


class _Join:
    """The part that makes a record whole (``stats.py``), made at the first record: other workers do
    not need it.
    """

    def __init__(self, job: Assignment) -> None:
        self._job = job
        self._made: Callable[[Mapping[str, Any]], Record] | None = None

    def __call__(self, record: Mapping[str, Any]) -> Record:
        if self._made is None:
            from equipoise.runtime.stats import joiner

            job = self._job.job
            assert isinstance(job, Job), f"{self._job.name} learns nothing"
            self._made = joiner(job.blueprint, job.shared)
        return self._made(record)

"""Every worker in its own process on one machine, over shared memory; an actor that fails is
replaced.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from equipoise.experience.queue.queue import Queue
from equipoise.plans.blueprint import Blueprint
from equipoise.runtime import build, flow
from equipoise.runtime.cut import CutCoordinator
from equipoise.runtime.gpus import Gpus
from equipoise.runtime.ipc import Bell, PipeChannel, Segment
from equipoise.runtime.messages import Cut, CutBegun, Message, Note, Saved, Written
from equipoise.runtime.process.crew import Crew, Died, ring
from equipoise.runtime.process.handles import SharedQueue
from equipoise.runtime.stats import RunStats, stats
from equipoise.types import WeightStore
from equipoise.weights.device import CudaIpc, Share
from equipoise.workers.kind import Kind, LearningKind, Member, StandsIn, crew, written
from equipoise.workers.kinds import KINDS

WAIT_S = 30.0  # that a cut waits at most for workers that are not there


def shared_device(blue: Blueprint) -> Share | None:
    """The way to share the learner's GPU memory with acting processes; None where it is not used or
    cannot be shared.
    """
    on_wsl = "microsoft" in platform.release().lower()  # WSL has no CUDA IPC
    return CudaIpc() if blue.acting_device != "cpu" and not on_wsl else None


def queue_of(
    blue: Blueprint,
    members: Sequence[Member],
    bells: Mapping[str, Bell],
    queue: Queue,
    learner: int,
) -> SharedQueue:
    """A learner's queue, which rings those that may go on: the learner, or the workers that write
    for it.

    ``bells``: of the workers on this machine, by title.
    """
    groups, here = set(blue.groups_of(learner)), [one for one in members if one.title in bells]
    readers = [one for one in here if isinstance(one.kind, LearningKind) and one.index == learner]
    writers = [
        one for one in here if isinstance(one.kind, StandsIn) or groups & written(blue, [one])
    ]
    rung = [[bells[one.title] for one in some] for some in (writers, readers)]
    return SharedQueue(queue, actors=rung[0], learners=rung[1])


class ProcessRuntime:
    """Starts the workers, hands out what they say, replaces those that fail, and ends with all of
    them or none.

    A failure that no successor mends raises ``WorkerFailed`` (``crew.py``).
    """

    def __init__(
        self, blue: Blueprint, kinds: Sequence[Kind] = KINDS, away: Collection[str] = ()
    ) -> None:
        """``away``: the titles of workers that are not for this machine."""
        self._blue, self._members = blue, crew(blue, kinds)
        self._out: list[Message] = []
        self._gpus = Gpus(blue.program.placement.device)
        self._channels: list[PipeChannel] = []
        self._shared, self._board, segment = build.lay_out(
            blue, kinds, Segment, self._channel, shared_device(blue), self._note
        )
        # True once learned to the end and saved; at the start, if the run was killed before its
        # last message.
        self.done = self._shared.version >= blue.updates
        here = [member for member in self._members if member.title not in away]
        self._crew = Crew(
            blue, here, self._shared, self._board, [segment, *self._channels], run=self._members
        )
        self._queues = [
            queue_of(blue, self._members, self._crew.bells, queue, learner)
            for learner, queue in self._shared.queues.items()
        ]
        # no reference to this object: a cycle would keep a failed run's memory
        bells = self._crew.bells
        self._cuts = CutCoordinator(
            self._board.cut,
            self._members,
            directory=Path(blue.directory),
            steps=blue.pace.steps,
            wake=lambda titles: ring(bells, [title for title in titles if title in bells]),
        )
        self._reconciling = False  # the queue may not yet be certain of what a dead actor held
        self._begun: tuple[CutBegun, float] | None = None  # a cut that waits, and since when
        self._last = False  # does no cut follow the one that was asked for?
        self._crew.start(self._queues)

    def _note(self, text: str) -> None:
        self._out.append(Note(text=text))

    def _channel(self) -> PipeChannel:
        self._channels.append(PipeChannel())
        return self._channels[-1]

    # ----------------------------------------------------------------------------------- as it runs

    def hold(self, *, last: bool = False) -> None:
        """Ask for a cut after the next version. ``last``: no other follows, so it waits for workers
        that are not there.
        """
        self._last = last
        self._cuts.hold()

    def examined(self, version: int) -> None:
        """The driver has the weights of this version, at which the learner holds still: the run
        goes on.
        """
        self._cuts.examined(version)

    def release(self, cut: Cut) -> None:
        """The driver is done with a cut: the run goes on."""
        if not cut.more:
            self.done = cut.version >= self._blue.updates
        self._cuts.release(cut)

    def stats(self) -> RunStats:
        """The run at this moment, also after its end."""
        now = stats(self._blue, self._members, self._board, self._shared, alone=True)
        return replace(
            now, printed=self._crew.printed(), usage=self._crew.usage(), gpus=self._gpus()
        )

    @property
    def version(self) -> int:
        """The newest one."""
        return self._shared.version

    def limit(self, actors: int, max_lag: int | None) -> None:
        """Let so many actors act from now on, and rows grow no older than ``max_lag``."""
        flow.limit(self._blue, self._shared, actors, max_lag)

    def weights(self, policy: str) -> WeightStore:
        """A handle that reads a policy's versions."""
        return self._shared.policies[policy].weights.handle()

    def poll(self, timeout_s: float) -> list[Message]:
        """Wait at most ``timeout_s`` for what workers say -> records, cuts and notes. May raise
        ``WorkerFailed``.
        """
        for title, said in self._crew.poll(timeout_s):
            self._take(title, said)
        if self._reconciling:
            certain = [queue.reconcile() for queue in self._queues]  # each of them looks on
            self._reconciling = not all(certain)
        if self._begun is not None and not self._waits(*self._begun):
            begun, self._begun = self._begun[0], None
            self._cuts.begun(begun.version, obstacle=self._obstacle())
        self._out += self._cuts.ready()
        out, self._out = self._out, []
        return out

    def _take(self, title: str, message: Message | Died) -> None:
        """Take in what a worker said, or that it died."""
        if isinstance(message, Died):
            self._cuts.lost(title, message.how)
            self._reconciling = True
        elif isinstance(message, Saved):
            self._cuts.saved(title, message)
        elif isinstance(message, Written):
            self._cuts.written(title, message)
        elif isinstance(message, CutBegun):
            self._begun = message, time.monotonic()
        else:
            self._out.append(message)

    def _waits(self, begun: CutBegun, since: float) -> bool:
        """Does a cut wait, while the learners hold still? The last one does until every worker is
        there: no other follows.
        """
        last = self._last or begun.version >= self._blue.updates
        return last and self._obstacle() is not None and time.monotonic() - since < WAIT_S

    def _obstacle(self) -> str | None:
        """The reason why there can be no cut now: the run would not hold still."""
        absent = self._crew.absent
        # A queue that is reconciled empties the channel of free slots for a moment.
        return (
            f"{absent[0] if absent else 'an actor'} is being replaced"
            if absent or self._reconciling
            else None
        )

    def stop(self) -> None:
        """End every worker; nothing is left when this returns."""
        self._crew.stop()

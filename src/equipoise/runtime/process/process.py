"""Every worker in its own process, over shared memory, on this machine or also on others; an actor
that fails is replaced.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from equipoise.plans.blueprint import Blueprint
from equipoise.runtime import build, flow
from equipoise.runtime.board import Board
from equipoise.runtime.cut import CutCoordinator
from equipoise.runtime.gpus import Gpus
from equipoise.runtime.ipc import PipeChannel, Segment
from equipoise.runtime.messages import Cut, CutBegun, Message, Note, Saved, Written
from equipoise.runtime.process.crew import Crew, Died, ring
from equipoise.runtime.process.handles import Queues
from equipoise.runtime.stats import RunStats, stats
from equipoise.types import WeightStore
from equipoise.weights.device import CudaIpc, Share
from equipoise.workers.kind import Kind, crew
from equipoise.workers.kinds import KINDS
from equipoise.workers.shared import Shared

WAIT_S = 30.0  # that a cut waits at most for workers that are not there


def shared_device(blue: Blueprint) -> Share | None:
    """The way to share the learner's GPU memory with acting processes; None where it is not used or
    cannot be shared.
    """
    on_wsl = "microsoft" in platform.release().lower()  # WSL has no CUDA IPC
    return CudaIpc() if blue.acting_device != "cpu" and not on_wsl else None


class Workers(Protocol):
    """The workers of a run, as the runtime sees them: a ``Crew``, or a ``RemoteCrew`` that also has
    those of other machines.
    """

    # wait at most ``timeout_s`` -> what workers said or that they died, by title
    def poll(self, timeout_s: float) -> Iterable[tuple[str, Message | Died]]: ...
    def obstacle(self) -> str | None: ...  # why the run would not hold still for a cut now
    @property
    def moving(self) -> bool: ...  # do workers move, for which a cut waits?
    def measured(self, now: RunStats) -> RunStats: ...  # with what is measured of them
    def stop(self) -> None: ...  # end all of them


class RemoteWorkers(Workers, Protocol):
    """The workers of a run over several machines, those of this one among them."""

    @property
    def away(self) -> Collection[str]: ...  # the titles of those on other machines
    # ``local``: the workers of this machine, which have begun
    def start(
        self, local: Crew, shared: Shared, board: Board, queues: Queues, cuts: CutCoordinator
    ) -> None: ...


class ProcessRuntime:
    """Starts the workers, hands out what they say, replaces those that fail, and ends with all of
    them or none.

    A failure that no successor mends raises ``WorkerFailed`` (``crew.py``).
    """

    def __init__(
        self, blue: Blueprint, kinds: Sequence[Kind] = KINDS, remote: RemoteWorkers | None = None
    ) -> None:
        """``remote``: the workers on other machines; None: all work here."""
        members = crew(blue, kinds)
        self._blue, self._members = blue, members
        self._out: list[Message] = []
        self._gpus = Gpus(blue.program.placement.device)
        self._channels: list[PipeChannel] = []
        self._shared, self._board, segment = build.lay_out(
            blue, kinds, Segment, self._channel, shared_device(blue), self._note
        )
        # True once learned to the end and saved; at the start, if the run was killed before its
        # last message.
        self.done = self._shared.version >= blue.updates
        away = () if remote is None else remote.away
        here = [member for member in members if member.title not in away]
        local = Crew(blue, here, self._shared, self._board, [segment, *self._channels], run=members)
        self._queues = Queues(blue, members, local.bells, self._shared.queues)
        # no reference to this object: a cycle would keep a failed run's memory
        bells = local.bells
        self._cuts = CutCoordinator(
            self._board.cut,
            members,
            directory=Path(blue.directory),
            steps=blue.pace.steps,
            wake=lambda titles: ring(bells, [title for title in titles if title in bells]),
        )
        self._begun: tuple[CutBegun, float] | None = None  # a cut that waits, and since when
        self._last = False  # does no cut follow the one that was asked for?
        local.start(list(self._queues.by_learner.values()))
        self._workers: Workers = local
        if remote is not None:
            self._workers = remote
            try:
                remote.start(local, self._shared, self._board, self._queues, self._cuts)
            except BaseException:
                self.stop()
                raise

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
        return replace(self._workers.measured(now), gpus=self._gpus())

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
        for title, said in self._workers.poll(timeout_s):
            self._take(title, said)
        self._queues.reconcile()
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
            self._queues.certain = False
        elif isinstance(message, Saved):
            self._cuts.saved(title, message)
        elif isinstance(message, Written):
            self._cuts.written(title, message)
        elif isinstance(message, CutBegun):
            self._begun = message, time.monotonic()
        else:
            self._out.append(message)

    def _waits(self, begun: CutBegun, since: float) -> bool:
        """Does a cut wait, while the learners hold still? Each does for workers that move; the last
        one does until every worker is there: no other follows.
        """
        last = self._last or begun.version >= self._blue.updates
        may = self._workers.moving or (last and self._obstacle() is not None)
        return may and time.monotonic() - since < WAIT_S

    def _obstacle(self) -> str | None:
        """The reason why there can be no cut now: the run would not hold still."""
        # A queue that is reconciled empties the channel of free slots for a moment.
        return self._workers.obstacle() or (
            None if self._queues.certain else "an actor is being replaced"
        )

    def stop(self) -> None:
        """End every worker; nothing is left when this returns."""
        self._workers.stop()

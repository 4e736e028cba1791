"""Every worker in its own process, over shared memory, on this machine or also on others; an actor
that fails is replaced.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from equipoise.plans.blueprint import Blueprint
from equipoise.runtime.board import Board
from equipoise.runtime.cut import CutCoordinator
from equipoise.runtime.gpus import Gpus
from equipoise.runtime.ipc import Channels, Segment
from equipoise.runtime.local import LocalRuntime
from equipoise.runtime.messages import CutBegun, Message
from equipoise.runtime.process.crew import Crew, Died, ring
from equipoise.runtime.process.handles import Queues
from equipoise.runtime.session import Closes
from equipoise.runtime.stats import RunStats, stats
from equipoise.weights.device import CudaIpc, Share
from equipoise.workers.kind import Kind
from equipoise.workers.kinds import KINDS
from equipoise.workers.shared import Shared

WAIT_S = 30.0  # that a cut waits at most for workers that are not there


def shared_device(blue: Blueprint) -> Share | None:
    """The way to share the learner's GPU memory with acting processes; None if it is not used or
    cannot be shared.
    """
    on_wsl = "microsoft" in platform.release().lower()  # WSL has no CUDA IPC
    return CudaIpc() if blue.acting_device != "cpu" and not on_wsl else None


class Workers(Protocol):
    """The workers of a run, as the runtime sees them: a ``Crew``, or a ``RemoteCrew`` that also has
    the workers of other machines.
    """

    # wait at most ``timeout_s`` -> the messages or deaths of workers, by title
    def poll(self, timeout_s: float) -> Iterable[tuple[str, Message | Died]]: ...
    def obstacle(self) -> str | None: ...  # why the run would not hold still for a cut now
    @property
    def moving(self) -> bool: ...  # do workers move, for which a cut waits?
    def measured(self, now: RunStats) -> RunStats: ...  # with what is measured of them
    def stop(self) -> None: ...  # end all of them


class RemoteWorkers(Workers, Protocol):
    """The workers of a run over several machines, including this one."""

    @property
    def away(self) -> Collection[str]: ...  # the titles of the workers on other machines
    # ``local``: the workers of this machine, which have begun
    def start(
        self, local: Crew, shared: Shared, board: Board, queues: Queues, cuts: CutCoordinator
    ) -> None: ...


class ProcessRuntime(LocalRuntime):
    """Starts the workers, passes on their messages, replaces failed workers, and ends all of them
    or no worker.

    A failure that no successor mends raises ``WorkerFailed`` (``crew.py``).
    """

    def __init__(
        self, blue: Blueprint, kinds: Sequence[Kind] = KINDS, remote: RemoteWorkers | None = None
    ) -> None:
        """``remote``: the workers on other machines; None: all work here."""
        channels = Channels()
        super().__init__(blue, kinds, Segment, channels, shared_device(blue))
        self._gpus = Gpus(blue.program.placement.device)
        members, away = self._members, () if remote is None else remote.away
        here = [member for member in members if member.title not in away]
        resources: list[Closes] = [self._memory, *channels.made]
        local = Crew(blue, here, self._shared, self._board, resources, run=members)
        self._queues = Queues(blue, members, local.bells, self._shared.queues)
        # no reference to this object: a cycle would keep a failed run's memory
        bells = local.bells
        self._cuts.wake = lambda titles: ring(bells, [one for one in titles if one in bells])
        self._begun: tuple[CutBegun, float] | None = None  # a cut that waits, and since when
        self._last = False  # does no cut follow the requested one?
        local.start(list(self._queues.by_learner.values()))
        self._workers: Workers = local
        if remote is not None:
            self._workers = remote
            try:
                remote.start(local, self._shared, self._board, self._queues, self._cuts)
            except BaseException:
                self.stop()
                raise

    # ----------------------------------------------------------------------------------- as it runs

    def hold(self, *, last: bool = False) -> None:
        """Ask for a cut after the next version. ``last``: no other follows, so it waits for workers
        that are not there.
        """
        self._last = last
        self._cuts.hold()

    def stats(self) -> RunStats:
        """The run at this moment, also after its end."""
        now = stats(self._blue, self._members, self._board, self._shared, alone=True)
        return replace(self._workers.measured(now), gpus=self._gpus())

    def poll(self, timeout_s: float) -> list[Message]:
        """Wait at most ``timeout_s`` for messages of workers -> records, cuts and notes. May raise
        ``WorkerFailed``.
        """
        for title, said in self._workers.poll(timeout_s):
            if isinstance(said, Died):
                self._cuts.lost(title, said.how)
                self._queues.certain = False
            elif isinstance(said, CutBegun):
                self._begun = said, time.monotonic()
            else:
                self._take(title, said)
        self._queues.reconcile()
        if self._begun is not None and not self._waits(*self._begun):
            begun, self._begun = self._begun[0], None
            self._cuts.begun(begun.version, obstacle=self._obstacle())
        self._out += self._cuts.ready()
        return self._taken()

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

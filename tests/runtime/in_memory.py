"""A runtime in one file: all workers in one thread, and whose turn it is is drawn."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from equipoise.experience.queue.tokens import LocalChannel
from equipoise.plans.blueprint import Blueprint
from equipoise.runtime.ipc import Heap
from equipoise.runtime.local import LocalRuntime
from equipoise.runtime.messages import Message, Offered
from equipoise.runtime.site import LocalSite
from equipoise.runtime.stats import RunStats, joiner, stats
from equipoise.runtime.workerfiles import Reader, Saver
from equipoise.types import Tick, Worker
from equipoise.workers.kind import Kind, Member
from equipoise.workers.kinds import KINDS

TURNS = 200  # of a poll


class InMemory(LocalRuntime):
    """``Runtime``: nothing is shared with another process, and nothing has a fixed order."""

    def __init__(self, blue: Blueprint, kinds: Sequence[Kind] = KINDS, seed: int = 0) -> None:
        super().__init__(blue, kinds, Heap, LocalChannel)
        self._random, self._join = random.Random(seed), joiner(blue, self._shared)
        self._parts = [
            (worker, self._saver(worker, member))
            for member in self._members
            for worker in [self._built(member)]
        ]

    def _built(self, member: Member) -> Worker:
        source = None if self._blue.resume is None else Reader(self._blue.resume, member)
        site = LocalSite(
            member,
            self._board,
            partial(self._take, member.title),
            queues=self._shared.queues,
            source=source,
            join=self._join,
        )
        return member.kind.build(member.job(self._blue, self._shared), site)

    def _saver(self, worker: Worker, member: Member) -> Saver:
        send = partial(self._take, member.title)
        return Saver(worker, member, Path(self._blue.directory), self._board.cut, send)

    def poll(self, timeout_s: float) -> list[Message]:
        for _ in range(0 if self.done else TURNS):
            if cuts := self._cuts.ready():
                self._out += cuts
                break
            if self._out and isinstance(self._out[-1], Offered):
                break
            worker, saver = self._random.choice(self._parts)
            last: Tick = worker.tick()
            saver.poll()
            if last is worker.ready and (wanted := int(saver.wanted[0])) > saver.last:
                saver.save(wanted)
        return self._taken()

    def stats(self) -> RunStats:
        return stats(self._blue, self._members, self._board, self._shared, alone=False)

    def stop(self) -> None:
        for worker, _ in self._parts:
            worker.close()

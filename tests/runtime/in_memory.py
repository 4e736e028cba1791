"""A runtime in one file: all workers in one thread, and whose turn it is is drawn."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from equipoise.experience.queue.tokens import LocalChannel
from equipoise.plans.blueprint import Blueprint
from equipoise.runtime import build, flow
from equipoise.runtime.cut import CutCoordinator
from equipoise.runtime.ipc import Heap
from equipoise.runtime.messages import Cut, CutBegun, Message, Note, Offered, Saved, Written
from equipoise.runtime.site import LocalSite
from equipoise.runtime.stats import RunStats, joiner, stats
from equipoise.runtime.workerfiles import Reader, Saver
from equipoise.types import Tick, WeightStore, Worker
from equipoise.workers.kind import Kind, Member, crew
from equipoise.workers.kinds import KINDS

TURNS = 200  # of a poll


class InMemory:
    """``Runtime``: nothing is shared with another process, and nothing has a fixed order."""

    def __init__(self, blue: Blueprint, kinds: Sequence[Kind] = KINDS, seed: int = 0) -> None:
        self._blue, self._members, self._out = blue, crew(blue, kinds), list[Message]()
        self._shared, self._board, _ = build.lay_out(
            blue, kinds, Heap, LocalChannel, note=self._note
        )
        self._cuts = CutCoordinator(
            self._board.cut, self._members, directory=Path(blue.directory), steps=blue.pace.steps
        )
        self._random, self._join = random.Random(seed), joiner(blue, self._shared)
        self.done = self._shared.version >= blue.updates
        self._parts = [
            (worker, self._saver(worker, member))
            for member in self._members
            for worker in [self._built(member)]
        ]

    def _note(self, text: str) -> None:
        self._out.append(Note(text=text))

    def _built(self, member: Member) -> Worker:
        source = None if self._blue.resume is None else Reader(self._blue.resume, member)
        site = LocalSite(
            member,
            self._board,
            partial(self._take, member.title),
            queues=self._shared.queues,
            source=source,
            join=self._join,
            beats=False,
        )
        return member.kind.build(member.job(self._blue, self._shared), site)

    def _saver(self, worker: Worker, member: Member) -> Saver:
        send = partial(self._take, member.title)
        return Saver(worker, member, Path(self._blue.directory), self._board.cut, send)

    def _take(self, title: str, message: Message) -> None:
        """A worker says something."""
        if isinstance(message, CutBegun):
            self._cuts.begun(message.version)
        elif isinstance(message, Saved):
            self._cuts.saved(title, message)
        elif isinstance(message, Written):
            self._cuts.written(title, message)
        else:
            self._out.append(message)

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
        out, self._out = self._out, []
        return out

    def hold(self, *, last: bool = False) -> None:
        self._cuts.hold()

    def examined(self, version: int) -> None:
        self._cuts.examined(version)

    def release(self, cut: Cut) -> None:
        self._cuts.release(cut)
        if not cut.more:
            self.done = cut.version >= self._blue.updates

    def stats(self) -> RunStats:
        return stats(self._blue, self._members, self._board, self._shared, alone=False)

    @property
    def version(self) -> int:
        return self._shared.version

    def limit(self, actors: int, max_lag: int | None) -> None:
        flow.limit(self._blue, self._shared, actors, max_lag)

    def weights(self, policy: str) -> WeightStore:
        return self._shared.policies[policy].weights.handle()

    def stop(self) -> None:
        for worker, _ in self._parts:
            worker.close()

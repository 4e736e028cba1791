"""Every worker in one thread, in turn: deterministic, and a debugger stops where it happens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from equipoise import phases
from equipoise.experience.queue.tokens import LocalChannel
from equipoise.memory import keep_freed
from equipoise.plans.blueprint import Blueprint
from equipoise.runtime.board import Meter
from equipoise.runtime.gpus import Gpus
from equipoise.runtime.ipc import Heap
from equipoise.runtime.local import LocalRuntime
from equipoise.runtime.messages import Message, Offered
from equipoise.runtime.site import LocalSite
from equipoise.runtime.stats import RunStats, joiner, stats
from equipoise.runtime.usage import DRIVER, Usages
from equipoise.runtime.workerfiles import Reader, Saver
from equipoise.types import Tick, Worker
from equipoise.workers.kind import Kind, Member
from equipoise.workers.kinds import KINDS

IDLE_S = 0.001  # a look at what is being written, while no worker has work


class Threads:
    """Runs the works of several learners at once, since each waits for what the others find: a
    thread for each.
    """

    def __init__(self, threads: int) -> None:
        """``threads``: of torch, in each."""
        self._works: dict[int, Callable[[], object]] = {}
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, number: int, of: int, work: Callable[[], object]) -> bool:
        """Keep a work until all ``of`` are there -> True: this was the last, and all of them are
        done.
        """
        self._works[number] = work
        if len(self._works) < of:
            return False
        works, self._works = self._works, {}
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                of, "learner", partial(torch.set_num_threads, self._threads)
            )
        for done in [self._pool.submit(one) for one in works.values()]:
            done.result()
        return True

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


@dataclass(slots=True)
class _Part:
    """A worker that takes its turns."""

    worker: Worker
    meter: Meter
    saver: Saver
    threads: int  # of torch, as in a process of its own
    last: Tick = Tick.WORKED


class SerialRuntime(LocalRuntime):
    """Ticks all workers round-robin."""

    def __init__(self, blue: Blueprint, kinds: Sequence[Kind] = KINDS) -> None:
        device = blue.rows_device
        rows = None if device == "cpu" else partial(torch.zeros, dtype=torch.uint8, device=device)
        super().__init__(blue, kinds, Heap, LocalChannel, rows=rows)
        self._usages, self._gpus = Usages(), Gpus(blue.program.placement.device)
        self._join = joiner(blue, self._shared)
        self._at_once = Threads(blue.program.placement.threads)
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        keep_freed()
        self._workers: list[Worker] = []
        try:
            for member in self._members:
                self._workers.append(self._build(member))
        except BaseException:
            self.stop()
            raise
        self._parts = [
            _Part(
                worker,
                self._board.meter(member.title, alone=False),
                Saver(
                    worker,
                    member,
                    Path(blue.directory),
                    self._board.cut,
                    partial(self._take, member.title),
                ),
                member.threads(blue),
            )
            for worker, member in zip(self._workers, self._members, strict=True)
        ]

    def _build(self, member: Member) -> Worker:
        blue = self._blue
        site = LocalSite(
            member,
            self._board,
            partial(self._take, member.title),
            queues=self._shared.queues,
            join=self._join,
            source=None if blue.resume is None else Reader(blue.resume, member),
            at_once=self._at_once,
        )
        return member.kind.build(member.job(blue, self._shared), site)

    def poll(self, timeout_s: float) -> list[Message]:
        """Tick for about ``timeout_s``, or until there is a cut -> the messages of workers."""
        until = time.perf_counter() + timeout_s
        while not self.done and time.perf_counter() < until:
            if cuts := self._cuts.ready():
                self._out += cuts
                break
            if self._out and isinstance(self._out[-1], Offered):
                break
            if all(part.last is not Tick.WORKED for part in self._parts):
                for part in self._parts:
                    if part.saver.late is not None:
                        part.saver.late.wait(IDLE_S)
            for part in self._parts:
                self._turn(part)
        return self._taken()

    def _turn(self, part: _Part) -> None:
        """One tick."""
        meter, saver = part.meter, part.saver
        if part.threads != torch.get_num_threads():
            torch.set_num_threads(part.threads)
        if part.last is Tick.WORKED:
            meter.preempted()  # it could have gone on; the thread was another's
        else:
            meter.add(part.last)
        wanted = int(saver.wanted[0])
        part.last = part.worker.tick()
        meter.add(part.last)
        if saver.late is not None:
            saver.poll()
        if part.last is part.worker.ready and wanted > saver.last:
            saver.save(wanted)

    def stats(self) -> RunStats:
        """The run at this moment, also after its end."""
        now = stats(self._blue, self._members, self._board, self._shared, alone=False)
        return replace(now, usage=self._usages({DRIVER: os.getpid()}), gpus=self._gpus())

    def stop(self) -> None:
        for worker in self._workers:
            worker.close()
        self._at_once.close()
        phases.ending("")
        torch.set_num_threads(self._threads_before)

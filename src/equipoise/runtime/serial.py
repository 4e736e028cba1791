"""Every worker in one thread, in turn: deterministic, and a debugger stops where it happens."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch

from equipoise.experience.tokens import LocalChannel
from equipoise.runtime import build
from equipoise.runtime.build import Blueprint
from equipoise.runtime.ipc import Heap
from equipoise.types import Tick, Worker


class SerialRuntime:
    """Ticks the actors and the learner round-robin."""

    def __init__(self, blue: Blueprint) -> None:
        self.shared, _ = build.lay_out(blue, Heap, LocalChannel)
        self._threads_before = torch.get_num_threads()
        self._threads = [blue.program.threads, *([1] * blue.program.actors)]
        torch.set_num_threads(1)
        self._records: deque[dict[str, Any]] = deque()
        self._learner = build.learner(blue, self.shared, self.shared.queue, self._records.append)
        actors = [build.actor(blue, i, self.shared, self.shared.queue) for i in range(blue.program.actors)]
        self._workers: list[Worker] = [self._learner, *actors]
        self._envs = [a.env for a in actors]
        self._meters = [self.shared.board.meter(name, alone=False) for name in blue.workers]
        self._last = [Tick.WORKED] * len(self._workers)

    @property
    def done(self) -> bool:
        return self._learner.done

    def advance(self, timeout_s: float) -> list[dict[str, Any]]:
        """Tick for about ``timeout_s``, or until the learner is done -> its records."""
        until = time.perf_counter() + timeout_s
        while not self.done and time.perf_counter() < until:
            for i, (worker, meter) in enumerate(zip(self._workers, self._meters, strict=True)):
                if self._threads[i] != torch.get_num_threads():
                    torch.set_num_threads(self._threads[i])  # as in a process of its own
                if self._last[i] is Tick.WORKED:
                    meter.preempted()  # it could have gone on; the thread was another's
                else:
                    meter.add(self._last[i])
                self._last[i] = worker.tick()
                meter.add(self._last[i])
        records = list(self._records)
        self._records.clear()
        return records

    def stop(self) -> None:
        for env in self._envs:
            env.close()
        torch.set_num_threads(self._threads_before)

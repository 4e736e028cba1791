"""Every worker in one thread, in turn: deterministic, and a debugger stops where it happens."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import torch

from equipoise.experience.tokens import LocalChannel
from equipoise.runtime import build, checkpoint
from equipoise.runtime.blueprint import Blueprint
from equipoise.runtime.checkpoint import Entry
from equipoise.runtime.cut import Cut, journal_of, restored, save_worker, saved
from equipoise.runtime.ipc import Heap
from equipoise.types import Tick, Worker

IDLE_S = 0.001  # a look at what is being written, while nobody has work


class SerialRuntime:
    """Ticks the actors and the learner round-robin."""

    def __init__(self, blue: Blueprint) -> None:
        self._blue = blue
        self.shared, _ = build.lay_out(blue, Heap, LocalChannel)
        self._threads_before = torch.get_num_threads()
        self._threads = [blue.program.threads, *([1] * blue.program.actors)]
        torch.set_num_threads(1)
        self._records: deque[dict[str, Any] | Cut] = deque()
        self._cutting: int | None = None  # the version whose cut is under way
        self._writing: Cut | None = None  # whose rest is being written
        self._learner = build.learner(blue, self.shared, self.shared.queue, self._note)
        actors = [build.actor(blue, i, self.shared, self.shared.queue) for i in range(blue.program.actors)]
        said = [*build.compile_torsos(blue, self._learner), *(note for a in actors for note in build.compile_torsos(blue, a))]
        self._records.extend({"note": note} for note in said)
        if blue.resume:
            notes = [restored(name, a) for name, a in zip(blue.workers[1:], actors, strict=True)]
            self._records.extend({"note": note} for note in notes if note)
        self._workers: list[Worker] = [self._learner, *actors]
        self._close = [partial(build.close, self._learner), *(partial(build.close, actor) for actor in actors)]
        self._meters = [self.shared.board.meter(name, alone=False) for name in blue.workers]
        self._last = [Tick.WORKED] * len(self._workers)

    @property
    def done(self) -> bool:
        return self._learner.done and self._writing is None

    def _note(self, message: dict[str, Any]) -> None:
        if "cut" in message:
            self._cutting = message["cut"]
        else:
            self._records.append(message)

    def ask(self) -> None:
        """For a cut after the next version."""
        words = self.shared.board.cut
        words["asked"][0] = words["begun"][0] + 1

    def release(self, cut: Cut) -> None:
        """It is complete, given up, or to be completed by a later one: go on."""
        words = self.shared.board.cut
        words["released"][0] = words["begun"][0]
        if not cut.more:
            words["closed"][0] = words["begun"][0]

    def advance(self, timeout_s: float) -> list[dict[str, Any] | Cut]:
        """Tick for about ``timeout_s``, or until the learner is done or a cut is written -> its records, and the cut."""
        until = time.perf_counter() + timeout_s
        while not self.done and time.perf_counter() < until:
            if self._writing is not None:
                if self._learner.done or Tick.WORKED not in self._last:
                    journal_of(self._learner).wait(IDLE_S)
                if (rest := saved(self._learner)) is not None:
                    self._records.append(Cut(step=self._writing.step, version=self._writing.version, late=True, **rest))
                    self._writing = None
                    break
                if self._learner.done:
                    continue
            if self._cutting is not None and all(tick is Tick.BLOCKED for tick in self._last[1:]):
                self._records.append(self._save(self._cutting))
                self._cutting = None
                break
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

    def _save(self, version: int) -> Cut:
        directory, step = Path(self._blue.directory), self._blue.pace.steps(version)
        files: dict[str, Entry] = {}
        try:
            place = checkpoint.begin(directory, step)
            for i, worker in enumerate([*self._workers[1:], self._learner]):
                if (mine := save_worker(place, worker, i, self.shared.queue)) is None:
                    self._writing = Cut(step=step, version=version, files=files, more=True)
                    return self._writing
                files |= mine
        except (OSError, TypeError, ValueError) as error:  # a full disk, or a state that cannot be written
            return Cut(step=step, version=version, error=f"{type(error).__name__}: {error}")
        return Cut(step=step, version=version, files=files)

    def stop(self) -> None:
        for close in self._close:
            close()
        torch.set_num_threads(self._threads_before)

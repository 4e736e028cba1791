"""Every worker in one thread, in turn: deterministic, and a debugger stops where it happens."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import torch

from equipoise.actors.central import InferenceWorker
from equipoise.actors.stepper import EnvWorker
from equipoise.actors.worker import ActorWorker
from equipoise.experience.shard import Shard
from equipoise.experience.tokens import LocalChannel
from equipoise.learners.worker import LearnerWorker
from equipoise.runtime import build, checkpoint
from equipoise.runtime.blueprint import Blueprint
from equipoise.runtime.checkpoint import Entry
from equipoise.runtime.cut import Cut, journals_of, restored, save_worker, saved, together
from equipoise.runtime.ipc import Heap
from equipoise.types import Tick, Worker

IDLE_S = 0.001  # a look at what is being written, while nobody has work


class SerialRuntime:
    """Ticks the actors and the learner round-robin."""

    def __init__(self, blue: Blueprint) -> None:
        self._blue = blue
        self.shared, _ = build.lay_out(blue, Heap, LocalChannel)
        self._threads_before = torch.get_num_threads()
        self._threads = [blue.program.threads, *([1] * (len(blue.workers) - 1))]
        torch.set_num_threads(1)
        self._records: deque[dict[str, Any] | Cut] = deque()
        self._cutting: int | None = None  # the version whose cut is under way
        self._writing: Cut | None = None  # whose rest is being written
        self._late: dict[Worker, dict[str, Any] | None] = {}  # by whom, and what they say of it when they are done
        self._learner = build.learner(blue, self.shared, self.shared.queue, self._note)
        actors: list[ActorWorker | EnvWorker]
        if blue.inferences:
            actors = [build.stepping(blue, i, self.shared).build() for i in range(blue.program.actors)]
        else:
            actors = [build.actor(blue, i, self.shared, self.shared.queue) for i in range(blue.program.actors)]
        inferences = [build.inference(blue, i, self.shared, self.shared.queue) for i in range(blue.inferences)]
        shards = [build.shard(blue, k, self.shared, self.shared.queue.block) for k in range(len(blue.shards))]
        said = [*build.compile_torsos(blue, self._learner), *(note for a in actors for note in build.compile_torsos(blue, a))]
        self._records.extend({"note": note} for note in said)
        if blue.resume:
            notes = [restored(name, a) for name, a in zip(blue.workers[1:], actors)]
            self._records.extend({"note": note} for note in notes if note)
        parts: list[ActorWorker | EnvWorker | InferenceWorker | LearnerWorker | Shard]
        parts = [self._learner, *actors, *inferences, *shards]
        self._workers: list[Worker] = list(parts)
        self._indices = [-1, *range(len(actors)), *range(len(inferences)), *range(len(shards))]
        self._close = [partial(build.close, part) for part in parts]
        # What all but the learner say to be saved.
        self._still = [Tick.STARVED if isinstance(part, EnvWorker | Shard) else Tick.BLOCKED for part in parts[1:]]
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
                    self._wait()
                if (rest := self._rest(self._writing)) is not None:
                    self._records.append(rest)
                    self._writing = None
                    break
                if self._learner.done:
                    continue
            if self._cutting is not None and self._last[1:] == self._still:
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
        self._late = {}
        try:
            place = checkpoint.begin(directory, step)
            workers = list(zip(self._workers, self._indices, strict=True))
            for worker, index in [*workers[1:], workers[0]]:
                if (mine := save_worker(place, worker, index, self.shared.queue)) is None:
                    self._late[worker] = None
                else:
                    files |= mine
        except (OSError, TypeError, ValueError) as error:  # a full disk, or a state that cannot be written
            return Cut(step=step, version=version, error=f"{type(error).__name__}: {error}")
        cut = Cut(step=step, version=version, files=files, more=bool(self._late))
        self._writing = cut if cut.more else None
        return cut

    def _wait(self) -> None:
        """For those who write."""
        for worker, said in self._late.items():
            for journal in journals_of(worker) if said is None else ():
                journal.wait(IDLE_S)

    def _rest(self, cut: Cut) -> Cut | None:
        """What was written of it while the run went on, once that is all."""
        self._late = {worker: said or saved(worker) for worker, said in self._late.items()}
        written = [said for said in self._late.values() if said is not None]
        if len(written) < len(self._late):
            return None
        return together(cut, written)

    def stop(self) -> None:
        for close in self._close:
            close()
        torch.set_num_threads(self._threads_before)

"""A kind of worker that no other file knows: it notes the newest version now and then, in a log of
its own.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from equipoise.tree import ArraySpec
from equipoise.types import StateReader, StateWriter, Tick
from equipoise.workers.kind import Job, Kind, Movable, OwnsMemory, Site

EVERY_S = 0.002


class LedgerWorker:
    """STARVED: there is nothing new to note. Its log may be saved then."""

    ready = Tick.STARVED

    def __init__(self, job: Job) -> None:
        self._shared, self._noted = job.shared, job.shared.own["ledger"].views["noted"]
        self.log: list[int] = []
        self._next = 0.0

    def tick(self) -> Tick:
        version, now = self._shared.version, time.perf_counter()
        if now < self._next or (self.log and self.log[-1] >= version):
            return Tick.STARVED
        self._next = now + EVERY_S
        self.log.append(version)
        self._noted[0] = len(self.log)
        return Tick.WORKED

    def save(self, to: StateWriter) -> None:
        to.put({"log": np.array(self.log, np.int64)})

    def load(self, source: StateReader) -> None:
        self.log = source.state()["log"].tolist()
        self._noted[0] = len(self.log)

    def close(self) -> None: ...


class Ledger(Kind, OwnsMemory, Movable):
    """Notes versions. A successor begins a new log."""

    name = "ledger"

    def count(self, blue: Any) -> int:
        return 2

    def memory(self, blue: Any) -> Any:
        return {"noted": ArraySpec((1,), "int64")}

    def build(self, job: Job, site: Site) -> LedgerWorker:
        worker = LedgerWorker(job)
        if site.load(worker):
            site.note(
                f"{site.title}: goes on after {len(worker.log)} entries, the last at version "
                f"{worker.log[-1]}"
            )
        return worker

    def progress(self, blue: Any, shared: Any, index: int) -> int:
        return int(shared.own["ledger"].views["noted"][0])

    def lost(self, blue: Any, shared: Any, queue: Any, index: int) -> str:
        return "its log is lost"

"""The board: shared numbers that each worker writes about itself and the driver reads. One writer a
field.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from equipoise import tree
from equipoise.balance.shares import Shares
from equipoise.clock import ADDED, CLOSE_S, EVERY, Clock
from equipoise.cores import run_delay_s
from equipoise.histograms import EDGES
from equipoise.memory import Memory
from equipoise.tracing import NvtxClock, TracedClock, ring_of
from equipoise.tree import ArraySpec
from equipoise.types import Array, Tick, Tree
from equipoise.workers.kind import Measured

LAGS = ("versions", "seconds")
PHASE = 64  # bytes of a phase
_WORKER = {
    "sleeping": ArraySpec((1,), "int64"),  # the flag of the worker's doorbell
    "worked_s": ArraySpec((1,), "float64"),
    "starved_s": ArraySpec((1,), "float64"),
    "blocked_s": ArraySpec((1,), "float64"),
    "delay_s": ArraySpec((1,), "float64"),  # runnable, but waiting for a core
    # part of worked_s: neither on a core nor waiting for one
    "asleep_s": ArraySpec((1,), "float64"),
    # time.perf_counter() of the last entry; one clock for all processes
    "touched_s": ArraySpec((1,), "float64"),
    "waits": ArraySpec((1,), "int64"),  # 1 while it waits at its doorbell
    # the present phase of its start, in UTF-8; zeros once it works
    "phase": ArraySpec((PHASE,), "uint8"),
}
# Counters of the cuts of a run (runtime/cut.py), each with one writer: the learner's is "begun",
# the other counters are the driver's. "save": the newest cut that the other workers are to save
# for; "save_last": the same for the learner. "examined": the newest version to be evaluated whose
# weights the driver has.
_CUT = dict.fromkeys(
    ("asked", "begun", "save", "save_last", "step", "released", "closed", "examined"),
    ArraySpec((1,), "int64"),
)


def _worker(row: Measured) -> dict[str, ArraySpec]:
    """The specs of a worker's row."""
    # seconds, and how often
    own = {name: ArraySpec((len(row.parts),), "float64") for name in ("part_s", "part_n")}
    return (
        _WORKER
        | own
        | {name: ArraySpec((len(EDGES[name]) + 1,), "float64") for name in LAGS if row.lags}
    )


class Board:
    """Shared numbers of a run: the stop word, and the seconds of every worker by state."""

    def __init__(
        self, rows: Mapping[str, Measured], memory: Memory, traces: str = "", trace_s: float = 0.0
    ) -> None:
        """``rows``: the measured quantities of each worker, by its title. ``traces``: the folder
        for the last ``trace_s`` seconds of each; "": they are not kept.
        """
        self.rows, self.memory, self._traces = dict(rows), memory, (traces, trace_s)
        views = tree.views(self.specs(rows), memory.buffer)
        self.stop, self.cut, self._workers = views["stop"], views["cut"], views["workers"]

    def __getstate__(self) -> tuple[object, ...]:
        return self.rows, self.memory, *self._traces

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    @staticmethod
    def specs(rows: Mapping[str, Measured]) -> dict[str, Tree]:
        return {
            "stop": ArraySpec((1,), "int64"),
            "cut": _CUT,
            "workers": {name: _worker(row) for name, row in rows.items()},
        }

    def row(self, name: str) -> dict[str, Array]:
        """The words that a worker writes about itself, as views."""
        found: dict[str, Array] = self._workers[name]
        return found

    def flag_offset(self, name: str) -> int:
        """The offset of a worker's doorbell flag in the memory."""
        earlier = list(self.rows).index(name)
        return tree.nbytes(self.specs(dict(list(self.rows.items())[:earlier])))

    def touch(self, name: str, ahead_s: float = 0.0) -> None:
        """Note for the driver that the worker lives, until it ticks itself; ``ahead_s``: the time
        that its start may take.

        Time given earlier stays.
        """
        touched = self._workers[name]["touched_s"]
        touched[0] = max(touched[0], time.perf_counter() + ahead_s)

    def pulse(self, name: str) -> None:
        """Note, before the first tick, that the worker is at work on something long; time given
        ahead stays.
        """
        touched = self._workers[name]["touched_s"]
        touched[0] = max(float(touched[0]), time.perf_counter())

    def clock(self, name: str) -> Clock:
        """The clock of the parts of a worker's work."""
        row, parts, (folder, for_s) = self._workers[name], self.rows[name].parts, self._traces
        if self.rows[name].nvtx:
            from torch.cuda import nvtx  # a process without torch has no such clock

            return NvtxClock(parts, row["part_s"], row["part_n"], nvtx=nvtx, title=name)
        if not (folder and parts):
            return Clock(parts, row["part_s"], row["part_n"], samples=self.rows[name].steps)
        file = ring_of(Path(folder), name)
        return TracedClock(
            parts,
            row["part_s"],
            row["part_n"],
            file=file,
            title=name,
            kind=self.rows[name].kind,
            for_s=for_s,
        )

    def lags(self, name: str) -> Mapping[str, Array]:
        """The histograms of a worker that uses experience, as views (``learners/lags.py``); {} for
        others.
        """
        return {kind: self._workers[name][kind] for kind in LAGS} if self.rows[name].lags else {}

    def say(self, name: str, text: str) -> None:
        """Note what the worker's start is at; "" once it works."""
        data = text.encode()[:PHASE]
        self._workers[name]["phase"][:] = np.frombuffer(data.ljust(PHASE, b"\0"), np.uint8)

    def phases(self) -> dict[str, str]:
        """The present phase of the start of each worker that does not work yet."""
        said = {
            name: bytes(self._workers[name]["phase"]).rstrip(b"\0").decode(errors="replace")
            for name in self.rows
        }
        return {name: text for name, text in said.items() if text}

    def touched(self, name: str) -> float:
        return float(self._workers[name]["touched_s"][0])

    def meter(self, name: str, *, alone: bool = True) -> Meter:
        """The worker's meter. ``alone``: it has a process of its own, so the kernel counts its
        waiting for a core.
        """
        return Meter(self._workers[name], alone=alone)

    def shares(self, *, alone: bool = False) -> dict[str, Shares]:
        """Seconds by worker since the run began.

        ``alone``: each worker has a process of its own. Then the time since its last entry is a
        tick that has not ended, unless it waits, and counts as work: a worker with nothing to do
        reports it at once.
        """
        out, now = {}, time.perf_counter()
        for name, measured in self.rows.items():
            row, parts = self._workers[name], measured.parts
            w = {k: float(row[k][0]) for k in _WORKER}
            if alone and not w["waits"]:
                w["worked_s"] += max(now - w["touched_s"], 0.0)
            preempted, seconds = min(w["delay_s"], w["worked_s"]), row["part_s"].copy()
            if measured.steps:  # of a sample of the ticks (``clock.py``): no more than there was
                sampled = np.array([part not in ADDED for part in parts])
                left = max(w["worked_s"] - seconds[~sampled].sum(), 0.0)
                if (found := seconds[sampled].sum()) > left:
                    seconds[sampled] *= left / found
            out[name] = Shares(
                worked=w["worked_s"] - preempted,
                preempted=preempted,
                starved=w["starved_s"],
                blocked=w["blocked_s"],
                asleep=min(w["asleep_s"], w["worked_s"] - preempted),
                parts=dict(zip(parts, seconds.tolist(), strict=True)),
                counts=dict(zip(parts, row["part_n"].tolist(), strict=True)),
            )
        return out


class Meter:
    """Adds up a worker's seconds by state. A state lasts from one entry to the next: the end of a
    tick, or of a part of it.
    """

    LOOK_EVERY_S = 0.25  # the kernel's statistics cost system calls

    def __init__(self, fields: dict[str, Array], *, alone: bool) -> None:
        self._fields, self._alone = fields, alone
        # Of what every tick writes, as memoryviews: a numpy array takes several times as long (and
        # so does a tick's hash).
        self._worked: memoryview[float] = memoryview(fields["worked_s"])
        self._starved: memoryview[float] = memoryview(fields["starved_s"])
        self._blocked: memoryview[float] = memoryview(fields["blocked_s"])
        self._touched: memoryview[float] = memoryview(fields["touched_s"])
        # a deadline counts from here on
        self._at = self._looked = self._fields["touched_s"][0] = time.perf_counter()
        before = float(self._fields["delay_s"][0])  # of a predecessor, whose seconds stay
        self._delay = run_delay_s() if alone else 0.0
        self._delay_from = self._delay - before
        self._late_s = 0.0
        self._skip = 0  # ticks that are still to be counted with the one after them, this one first
        self._known = self._elsewhere(before) if alone else 0.0
        self._fields["waits"][0] = False  # a predecessor may have been killed while waiting

    def add(self, tick: Tick) -> float:
        """Count the time since the last call as this state -> now.

        If a process works in ticks that follow each other closely, one call in ``EVERY`` counts all
        of them. So does the call after which there is nothing to do any more: a tick finds that out
        at once.
        """
        if self._skip > 1 and tick is Tick.WORKED:
            self._skip -= 1
            return float(self._at)
        now = time.perf_counter()
        seconds = now - self._at
        if 0 < self._skip < EVERY:
            tick = Tick.WORKED
        close = seconds < CLOSE_S * max(self._skip, 1)
        self._skip = EVERY if self._alone and tick is Tick.WORKED and close else 0
        if self._late_s:  # it could have worked
            late_s, self._late_s = min(self._late_s, seconds), 0.0
            self._worked[0] += late_s
            seconds -= late_s
        if tick is Tick.WORKED:
            self._worked[0] += seconds
        elif tick is Tick.STARVED:
            self._starved[0] += seconds
        else:
            self._blocked[0] += seconds
        self._touched[0] = self._at = now
        if self._alone and now - self._looked > self.LOOK_EVERY_S:
            self._looked = now
            self._fields["delay_s"][0] = delay = run_delay_s() - self._delay_from
            before, self._known = self._known, self._elsewhere(delay)
            self._fields["asleep_s"][0] += max(self._known - before, 0.0)
        return now

    def _elsewhere(self, delay_s: float) -> float:
        """The seconds worked so far that were not on a core and not waiting for one."""
        return float(self._fields["worked_s"][0]) - time.thread_time() - delay_s

    def expect(self, ahead_s: float) -> None:
        """Allow ``ahead_s`` seconds for the coming work, before the deadline of a tick begins; the
        next entry ends it.
        """
        self._skip = 0
        self._fields["touched_s"][0] = self.add(Tick.WORKED) + ahead_s

    def waits(self, waiting: bool) -> None:
        """Note that the worker goes to its doorbell or comes back; the kernel reports how long it
        was runnable without a core.
        """
        self._skip = 0
        self._fields["waits"][0] = waiting
        if self._alone:
            before, self._delay = self._delay, run_delay_s()
            self._late_s = 0.0 if waiting else self._delay - before

    def preempted(self) -> None:
        """Count the time since the last call as another worker's, on the same thread (serial
        runtime).
        """
        now = time.perf_counter()
        self._fields["worked_s"][0] += now - self._at
        self._fields["delay_s"][0] += now - self._at
        self._at = now

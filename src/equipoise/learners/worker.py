"""The learning half of the ring: experience in, versions out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from equipoise import schema, tree
from equipoise.files import numbered
from equipoise.learners.learner import Learner
from equipoise.learners.meeting import Meeting, Solo
from equipoise.learners.opponents import OpponentPool
from equipoise.types import Array, Batch, Experience, LateSave, SaveEnd, StateReader, StateWriter, Tick, Tree, WeightStore

Sums = tuple[float, float]  # a sum, and how many numbers are in it

LEADER = "learner"  # the file with what all learners have alike, and the leader's share

PARTIAL_S = 2.0  # a learner whose records are further apart tells how far it is in between


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLearner:
    """One policy's way through the learner."""

    learner: Learner
    experience: Experience
    batch: int  # items of a step
    weights: WeightStore
    publish_every: int  # versions
    host: WeightStore | None = None  # for those that do not act, where ``weights`` lie on a device


_KINDS = ("float32", "float64", "int64")
_NUMBER = schema.Either(tuple(schema.Array((), kind, tensor=True) for kind in _KINDS))
SHARE: dict[str, schema.Schema] = {  # of a saved state: what each learner has of its own
    "lag": {"sum": schema.Number(0, schema.MOST), "max": schema.count(), "updates": schema.count()},
    "sums": schema.Each({"total": _NUMBER, "count": _NUMBER}),
}


class Stateful(Protocol):
    """A queue, as far as it is saved."""

    def state(self) -> Tree: ...


def never(version: int) -> bool:
    """A gate that is always open."""
    return False


class LearnerWorker:
    """One step of every policy's learner a tick, until ``updates`` are done: their versions rise together.

    ``record`` is called with what has come together every ``record_every`` updates and at the last one, before the batch is
    released: in lockstep every actor waits at that moment, so that what it reads of them is the same in every runtime. Where
    records are far apart in time, ``record`` is called in between with the same sums so far, marked ``partial``.

    ``gate`` is asked after each version whether the batch is to be withheld still: while it is, no slot becomes free, so
    every actor ends up BLOCKED between two unrolls, and the run holds still to be saved.

    Where several learners share the batches (``meeting.py``), each has such a worker with experience of its own. They learn
    together; the first of them, the leader, publishes and records what all of them found.
    """

    ready = Tick.BLOCKED

    def __init__(
        self,
        lines: Mapping[str, PolicyLearner],
        *,
        queue: Stateful,
        past: Mapping[str, OpponentPool] | None = None,
        updates: int,
        record_every: int,
        record: Callable[[dict[str, Any]], None],
        gate: Callable[[int], bool] = never,
        meeting: Meeting | None = None,
    ) -> None:
        """``lines`` by policy; ``past``: the policies that do not learn; ``queue``: what actors write into, which is saved with
        the learner; ``meeting``: with the other learners, None where there are none.
        """
        self.lines, self._queue = dict(lines), queue
        self._meeting: Meeting = Solo() if meeting is None else meeting
        self._leads = self._meeting.pool.rank == 0
        self._one, *_ = self.lines.values()  # any of them: their versions rise together
        self.past = dict(past or {})
        self._updates, self._record_every, self._record, self._gate = updates, record_every, record, gate
        self._batches: dict[str, Batch] = {}  # those of the next step that there are
        self._unfinished: dict[str, Array] = {}  # keys of the batches learned last
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}
        self._lag_sum, self._lag_max, self._since = 0.0, 0, 0
        self._on_host = -1  # the version
        self._shares = self._meeting.pool.size  # of the learners that were saved, once loaded
        self._told_at = time.monotonic()

    @property
    def version(self) -> int:
        return self._one.learner.version

    @property
    def done(self) -> bool:
        return self.version >= self._updates and not self._unfinished

    def params(self) -> dict[str, Tensor]:
        """Return the parameters of every policy, by policy name where there are several."""
        learned = {name: line.learner.params() for name, line in self.lines.items()}
        return tree.joined(learned | {name: past.params() for name, past in self.past.items()})

    def begin(self) -> None:
        """Before the first tick: publish what it begins or goes on with, where the host's versions are not for actors.

        Until there is one on the device they take those, and would get every version that is written there in between.
        """
        for line in self.lines.values():
            if line.host is not None and self._leads:
                line.weights.publish(self.version, line.learner.params())

    def tick(self) -> Tick:
        if self._unfinished:
            return self._finish(Tick.BLOCKED)
        if self.done:
            return Tick.STARVED
        for name, line in self.lines.items():
            if name not in self._batches and (batch := line.experience.sample(line.batch)) is not None:
                self._batches[name] = batch
        if len(self._batches) < len(self.lines):
            return Tick.STARVED
        if not self._meeting.step(self.version + 1, self._learn):
            return Tick.STARVED
        return self._finish(Tick.WORKED)

    def _learn(self) -> None:
        """Make the next version of the batches that there are."""
        batches, self._batches = self._batches, {}
        metrics, priority = {}, {}
        for name, line in self.lines.items():
            self._note_lag(line.learner, batches[name])
            out = line.learner.step(batches[name])
            metrics[name], priority[name] = out.metrics, out.priority
        version, last = self.version, self.version >= self._updates
        for line in self.lines.values() if self._leads else ():
            if version % line.publish_every == 0 or last:
                line.weights.publish(version, line.learner.params())
        for past in self.past.values():
            past.tick(version, self.lines[past.frozen.of].learner.params())
        for name, (total, count) in tree.joined(metrics).items():
            self._add(name, total, count)
        if version % self._record_every == 0 or last:
            self._publish_to_host()
            self._tell(partial=False)
        elif self._leads and time.monotonic() - self._told_at >= PARTIAL_S:
            self._tell(partial=True)
        for name, line in self.lines.items():
            line.experience.learned(batches[name].keys, priority[name])
        self._unfinished = {name: batch.keys for name, batch in batches.items()}

    def _finish(self, withheld: Tick) -> Tick:
        """Release the batches, after publish: no unroll is born stale."""
        if self._meeting.held(self.version, self._gate):
            self._publish_to_host()
            return withheld
        for name, line in self.lines.items():
            line.experience.finish(self._unfinished[name])
        self._unfinished = {}
        return Tick.WORKED

    def _publish_to_host(self) -> None:
        if self._on_host == self.version or not self._leads:
            return
        self._on_host = self.version
        for line in self.lines.values():
            if line.host is not None:
                line.host.publish(self.version, line.learner.params())

    def _note_lag(self, learner: Learner, batch: Batch) -> None:
        lag = learner.version - batch.data.version[0]
        if lag.max() > learner.version:  # rows that no policy of this run chose the actions of
            lag = lag[lag <= learner.version]
            if not len(lag):
                lag = lag.new_zeros(1)
        self._lag_sum += float(lag.float().mean())
        self._lag_max = max(self._lag_max, int(lag.max()))
        self._since += 1

    def _tell(self, *, partial: bool) -> None:
        """Record the sums since the last record as plain numbers; unless ``partial``, the next sums begin at zero.

        A partial record is of the leader's share alone, since it comes when the leader's time is up.
        """
        sums = {name: (float(total), float(count)) for name, (total, count) in self._sums.items()}
        lag, lag_max = (self._lag_sum, float(self._since)), self._lag_max
        if not partial:
            sums, lag, lag_max = self._of_all(sums, lag, lag_max)
            self._sums, self._lag_sum, self._lag_max, self._since = {}, 0.0, 0, 0
        if self._leads:
            metrics = {name: total / max(count, 1.0) for name, (total, count) in sums.items()}
            metrics |= {f"{name}/version": float(past.version) for name, past in self.past.items()}
            record = {"version": self.version, "lag_mean": lag[0] / lag[1], "lag_max": lag_max, "partial": partial}
            self._record(record | {"metrics": metrics})
        self._told_at = time.monotonic()

    def _of_all(self, sums: dict[str, Sums], lag: Sums, lag_max: int) -> tuple[dict[str, Sums], Sums, int]:
        """The sums of all learners, and the largest lag."""
        pool = self._meeting.pool
        if pool.size == 1:
            return sums, lag, lag_max
        *totals, lag = pool.sum(torch.tensor([*sums.values(), lag], dtype=torch.float64)).tolist()
        return dict(zip(sums, totals, strict=True)), lag, int(pool.max(torch.tensor(lag_max)))

    def save(self, to: StateWriter) -> LateSave | None:
        """Put everything that the learner's process keeps, while the gate withholds the batches.

        The learners are the same to the bit, so the leader alone puts them, and each what is its own.
        """
        to.put(self._share() | (self._replicated() if self._leads else {}))
        to.put(self._queue.state(), numbered("experience", self._meeting.pool.rank))
        if self._leads:
            to.put_weights(self.params())
        late = [one for line in self.lines.values() if (one := line.experience.save(to)) is not None]
        return _Together(late) if late else None

    def load(self, source: StateReader) -> None:
        """Go on where the learner was saved. The queue is loaded already, where its memory was laid out."""
        self._load(source)
        for line in self.lines.values():
            line.experience.restore(source, self._shares)

    def close(self) -> None:
        for line in self.lines.values():
            line.experience.close()

    def _replicated(self) -> dict[str, Tree]:
        """The state that all learners have alike, while the gate withholds a batch."""
        return {
            "learners": {name: line.learner.state() for name, line in self.lines.items()},
            "past": {name: past.state() for name, past in self.past.items()},
            "shares": self._meeting.pool.size,
        }

    def _share(self) -> dict[str, Tree]:
        """What came together since the last record, of this learner's batches."""
        return {
            "lag": {"sum": self._lag_sum, "max": self._lag_max, "updates": self._since},
            "sums": {name: {"total": total, "count": count} for name, (total, count) in self._sums.items()},
        }

    def _load(self, source: StateReader) -> None:
        state, pool = source.state(LEADER), self._meeting.pool
        past = {name: schema.Anything() for name in self.past} if self._leads else schema.Anything()
        wanted = {"learners": {name: schema.Anything() for name in self.lines}, "past": past, "shares": schema.count(1)}
        schema.check(state, wanted | SHARE, "")
        for name, line in self.lines.items():
            line.learner.load(state["learners"][name])
        for name, opponents in self.past.items():
            opponents.load(state["past"][name])
        self._shares = state["shares"]
        for rank in range(pool.rank, self._shares, pool.size):  # where there were more learners, some have several shares
            self._absorb(source.state(numbered(LEADER, rank)) if rank else state)

    def _absorb(self, state: Tree) -> None:
        """Add what a learner had since the last record."""
        schema.check({name: state[name] for name in SHARE}, SHARE, "")
        lag, device = state["lag"], self._one.learner.device
        self._lag_sum, self._since = self._lag_sum + lag["sum"], self._since + lag["updates"]
        self._lag_max = max(self._lag_max, lag["max"])
        for name, one in state["sums"].items():
            self._add(name, one["total"].to(device), one["count"].to(device))

    def _add(self, name: str, total: Tensor, count: Tensor) -> None:
        old = self._sums.get(name)
        self._sums[name] = (total, count) if old is None else (old[0] + total, old[1] + count)


class _Together:
    """Several late saves as one."""

    def __init__(self, saves: Sequence[LateSave]) -> None:
        self._open, self._ended = list(saves), list[SaveEnd]()

    def poll(self) -> SaveEnd | None:
        for save in list(self._open):
            if (end := save.poll()) is not None:
                self._open.remove(save)
                self._ended.append(end)
        if self._open:
            return None
        return SaveEnd(
            result={name: entry for end in self._ended for name, entry in (end.result or {}).items()},
            segments={name: entry for end in self._ended for name, entry in end.segments.items()},
            error=next((end.error for end in self._ended if end.error is not None), None),
        )

    def wait(self, timeout_s: float) -> None:
        if self._open:
            self._open[0].wait(timeout_s)

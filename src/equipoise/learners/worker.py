"""The other half of the ring: experience in, versions out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from equipoise.learners.learner import Learner
from equipoise.types import Array, Batch, Experience, Tick, Tree, WeightStore


def never(version: int) -> bool:
    """A gate that is always open."""
    return False


class LearnerWorker:
    """One learner step a tick, until ``updates`` are done.

    ``record`` is called with what has come together every ``record_every`` updates and at the last one, before the batch is
    released: in lockstep every actor waits at that moment, so that what it reads of them is the same in every runtime.

    ``gate`` is asked after each version whether the batch is to be withheld still: while it is, no slot becomes free, so
    every actor ends up BLOCKED between two unrolls, and the run holds still to be saved.
    """

    def __init__(
        self,
        learner: Learner,
        experience: Experience,
        weights: WeightStore,
        *,
        batch: int,
        updates: int,
        publish_every: int,
        record_every: int,
        record: Callable[[dict[str, Any]], None],
        gate: Callable[[int], bool] = never,
    ) -> None:
        self.learner, self.experience, self.weights = learner, experience, weights
        self._batch, self._updates, self._publish_every = batch, updates, publish_every
        self._record_every, self._record, self._gate = record_every, record, gate
        self._unfinished: tuple[Array, Array | None] | None = None  # keys and priorities of the batch learned last
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}
        self._lag_sum, self._lag_max, self._since = 0.0, 0, 0

    @property
    def done(self) -> bool:
        return self.learner.version >= self._updates and self._unfinished is None

    def tick(self) -> Tick:
        if self._unfinished is not None:
            return self._finish(Tick.BLOCKED)
        if self.done:
            return Tick.STARVED
        batch = self.experience.sample(self._batch)
        if batch is None:
            return Tick.STARVED
        self._note_lag(batch)
        out = self.learner.step(batch)
        version = self.learner.version
        last = version >= self._updates
        if version % self._publish_every == 0 or last:
            self.weights.publish(version, self.learner.params())
        for name, (total, count) in out.metrics.items():
            old = self._sums.get(name)
            self._sums[name] = (total, count) if old is None else (old[0] + total, old[1] + count)
        if version % self._record_every == 0 or last:
            self._record(self._take())
        self._unfinished = (batch.keys, out.priority)
        return self._finish(Tick.WORKED)

    def _finish(self, withheld: Tick) -> Tick:
        """Release the batch, after publish: no unroll is born stale."""
        assert self._unfinished is not None
        if self._gate(self.learner.version):
            return withheld
        self.experience.finish(*self._unfinished)
        self._unfinished = None
        return Tick.WORKED

    def _note_lag(self, batch: Batch) -> None:
        lag = self.learner.version - batch.data.version[0]
        self._lag_sum += float(lag.float().mean())
        self._lag_max = max(self._lag_max, int(lag.max()))
        self._since += 1

    def _take(self) -> dict[str, Any]:
        """What came together since the last record, as plain numbers."""
        record = {
            "version": self.learner.version,
            "lag_mean": self._lag_sum / self._since,
            "lag_max": self._lag_max,
            "metrics": {k: float(total) / max(float(count), 1.0) for k, (total, count) in self._sums.items()},
        }
        self._sums, self._lag_sum, self._lag_max, self._since = {}, 0.0, 0, 0
        return record

    def state(self) -> Tree:
        """While the gate withholds a batch: the learner, and what came together since the last record."""
        return {
            "learner": self.learner.state(),
            "lag": {"sum": self._lag_sum, "max": self._lag_max, "updates": self._since},
            "sums": {name: {"total": total, "count": count} for name, (total, count) in self._sums.items()},
        }

    def load(self, state: Tree) -> None:
        self.learner.load(state["learner"])
        lag, device = state["lag"], self.learner.device
        self._lag_sum, self._lag_max, self._since = lag["sum"], lag["max"], lag["updates"]
        self._sums = {name: (s["total"].to(device), s["count"].to(device)) for name, s in state["sums"].items()}

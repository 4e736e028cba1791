"""Sums of a learner's metrics and lags since its last record."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

import torch
from torch import Tensor

from equipoise import schema
from equipoise.learners.lags import distinct
from equipoise.learners.pool import Learners
from equipoise.types import Array, Tree

_NUMBER = schema.Either(
    tuple(schema.Array((), kind, tensor=True) for kind in ("float32", "float64", "int64"))
)
SCHEMA: dict[str, schema.Schema] = {
    "lag": {"sum": schema.Number(0, schema.MOST), "max": schema.count(), "updates": schema.count()},
    "sums": schema.Each({"total": _NUMBER, "count": _NUMBER}),
}


class Record(TypedDict):
    """The means of a learner since its last record."""

    metrics: dict[str, float]
    lag_mean: float
    lag_max: int


@dataclass(slots=True)
class Sums:
    """Sums and counts on the learner's device, by metric, and the lag in versions."""

    metrics: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    lag_sum: float = 0.0
    lag_max: int = 0
    updates: int = 0

    def copy(self) -> Sums:
        return replace(self, metrics=dict(self.metrics))

    def add(self, metrics: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        for name, (total, count) in metrics.items():
            old = self.metrics.get(name)
            self.metrics[name] = (total, count) if old is None else (old[0] + total, old[1] + count)

    def note_lag(self, version: int, acted: Tensor) -> tuple[Array, Array]:
        """``acted``: the versions that chose the first action of each window that ``version``
        learns from.

        Returns the distinct lags of windows that a policy of this run acted in, and how often each
        came.
        """
        lag, times = distinct(version - acted.cpu().numpy())
        if lag[-1] > version:  # rows that no policy of this run chose the actions of
            lag, times = lag[lag <= version], times[lag <= version]
        if len(lag):
            self.lag_sum += float(lag @ times) / float(times.sum())
            self.lag_max = max(self.lag_max, int(lag[-1]))
        self.updates += 1
        return lag, times

    def record(self, pool: Learners | None) -> Record:
        """Return means as plain numbers: of all learners, called together, or without ``pool``."""
        sums = {name: (float(total), float(count)) for name, (total, count) in self.metrics.items()}
        lag, lag_max = (self.lag_sum, float(self.updates)), self.lag_max
        if pool is not None:
            names = zlib.crc32("\n".join(sums).encode())
            lag_max, most, least = map(int, pool.max(torch.tensor([lag_max, names, -names])))
            if most != -least:  # a learner that began later has not met all of them
                sums = {name: sums.get(name, (0.0, 0.0)) for name in _of_all(list(sums), pool)}
            *totals, lag = pool.sum(
                torch.tensor([*sums.values(), lag], dtype=torch.float64)
            ).tolist()
            sums = dict(zip(sums, totals, strict=True))
        # 0: there is no mean
        metrics = {name: total / max(count, 1.0) for name, (total, count) in sums.items() if count}
        return {"metrics": metrics, "lag_mean": lag[0] / lag[1], "lag_max": lag_max}

    def state(self) -> dict[str, Tree]:
        return {
            "lag": {"sum": self.lag_sum, "max": self.lag_max, "updates": self.updates},
            "sums": {
                name: {"total": total, "count": count}
                for name, (total, count) in self.metrics.items()
            },
        }

    def absorb(self, state: Tree, device: torch.device) -> None:
        """Add what a learner had when it was saved."""
        schema.check({name: state[name] for name in SCHEMA}, SCHEMA, "")
        lag = state["lag"]
        self.lag_sum, self.updates = self.lag_sum + lag["sum"], self.updates + lag["updates"]
        self.lag_max = max(self.lag_max, lag["max"])
        self.add(
            {
                name: (one["total"].to(device), one["count"].to(device))
                for name, one in state["sums"].items()
            }
        )


def _of_all(names: Sequence[str], pool: Learners) -> list[str]:
    """The names that any learner has, in one order everywhere."""
    mine = "\n".join(names).encode()
    texts = torch.zeros(pool.size, int(pool.max(torch.tensor(len(mine)))), dtype=torch.uint8)
    texts[pool.rank, : len(mine)] = torch.tensor(list(mine), dtype=torch.uint8)
    said = [bytes(text.tolist()).rstrip(b"\0").decode() for text in pool.max(texts)]
    return sorted({name for text in said for name in text.split("\n") if name})

"""Several learners as threads of this process, which gloo joins, and the single learner whose
batches are all of theirs.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from equipoise import tree
from equipoise.learners import learner as learners
from equipoise.learners.learner import Learner
from equipoise.learners.meeting import Seat, SharedMeeting
from equipoise.learners.minibatch import minibatches
from equipoise.learners.parameters.flat import Flat
from equipoise.record import statefile
from equipoise.seeds import share_seed
from equipoise.types import TRAJECTORY_STREAMS, Batch, Trajectory

SEED = 7


def _nothing() -> None: ...


def together(size: int, work: Callable[[int, Any], Any]) -> list[Any]:
    """``work(rank, pool)`` by a thread for each learner -> what each returned; raises what the
    first of them raised.
    """
    words: Any = tree.zeros(SharedMeeting.specs(size))
    results, errors = [None] * size, list[tuple[int, Exception]]()

    def go_on() -> None:
        """Nobody waits for a learner whose work failed."""
        if errors:
            raise RuntimeError(f"learner {errors[0][0]} failed")

    def run(rank: int) -> None:
        try:
            made = SharedMeeting(
                words,
                Seat(rank=rank, size=size),
                ring=_nothing,
                pulse=go_on,
                dump=statefile.dump,
                parse=statefile.parse,
            )
            results[rank] = work(rank, made.pool)
        except Exception as error:
            errors.append((rank, error))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0][1]
    return results


def share(batch: Batch, rank: int, size: int) -> Batch:
    """The streams of one learner of several, as a batch."""
    streams = batch.data.shape[1]
    mine = slice(streams * rank // size, streams * (rank + 1) // size)
    return replace(
        batch, data=streams_of(batch.data, mine), keys=batch.keys[mine], weight=batch.weight[mine]
    )


def streams_of(data: Trajectory, streams: slice) -> Trajectory:
    def cut(name: str) -> Any:
        return tree.map(
            lambda x: x[streams] if name in TRAJECTORY_STREAMS else x[:, streams],
            getattr(data, name),
        )

    return Trajectory(**{name: cut(name) for name in Trajectory.__slots__})


def _joined(parts: list[Batch]) -> Batch:
    def together(name: str) -> Any:
        axis = 0 if name in TRAJECTORY_STREAMS else 1
        return tree.map(
            lambda *xs: torch.cat(xs, axis), *[getattr(part.data, name) for part in parts]
        )

    return Batch(
        data=Trajectory(**{name: together(name) for name in Trajectory.__slots__}),
        keys=np.concatenate([part.keys for part in parts]),
        weight=torch.cat([part.weight for part in parts]),
        targets=tree.map(lambda *xs: torch.cat(xs, 1), *[part.targets for part in parts]),
    )


class Strata:
    """Minibatches of the single learner as several make them: each takes its part of every
    learner's streams.
    """

    def __init__(self, size: int, update: int) -> None:
        self._generators = [
            torch.Generator().manual_seed(share_seed(SEED, update, rank)) for rank in range(size)
        ]

    def __call__(
        self, batch: Batch, count: int, *, by_rows: bool, rng: torch.Generator
    ) -> Iterator[Batch]:
        if count == 1:
            yield batch
            return
        size = len(self._generators)
        streams = batch.data.shape[1]
        targets = [
            slice(streams * rank // size, streams * (rank + 1) // size) for rank in range(size)
        ]
        shares = [
            replace(
                share(batch, rank, size),
                targets=tree.map(lambda x, mine=mine: x[:, mine], batch.targets),
            )
            for rank, mine in enumerate(targets)
        ]
        cut = [
            minibatches(one, count, by_rows=by_rows, rng=g)
            for one, g in zip(shares, self._generators, strict=True)
        ]
        for parts in zip(*cut, strict=True):
            yield _joined(list(parts))


def learned(
    algorithm: Any,
    net: Any,
    batches: Callable[[int], Batch],
    updates: int,
    pool: Any = None,
    **settings: Any,
) -> Learner:
    """A learner after its updates; with a ``pool`` it learns from its share of each batch."""
    if pool is not None:
        settings["parameters"] = Flat(pool)
    made = Learner(
        algorithm, copy.deepcopy(net), schedule_updates=100, seed=SEED, batch=1_000, **settings
    )
    for update in range(updates):
        batch = batches(update)
        made.step(batch if pool is None else share(batch, pool.rank, pool.size))
    return made


def alone(
    algorithm: Any,
    net: Any,
    batches: Callable[[int], Batch],
    updates: int,
    size: int,
    **settings: Any,
) -> Learner:
    """The single learner with the strata of ``size`` learners."""
    made = Learner(
        algorithm, copy.deepcopy(net), schedule_updates=100, seed=SEED, batch=1_000, **settings
    )
    before = learners.minibatches  # type: ignore[attr-defined]
    try:
        for update in range(updates):
            learners.minibatches = Strata(size, update)  # type: ignore[attr-defined]
            made.step(batches(update))
    finally:
        learners.minibatches = before  # type: ignore[attr-defined]
    return made

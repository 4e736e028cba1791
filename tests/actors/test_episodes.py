"""Episode statistics against a list of episodes kept by hand."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise import tree
from equipoise.actors.episodes import RECENT, Episodes, recent
from equipoise.types import TimeStep


class Heap:
    def __init__(self) -> None:
        self.buffer = np.zeros(tree.nbytes(Episodes.specs), np.uint8)


def step(rng: np.random.Generator, streams: int, ending: float) -> TimeStep:
    done = rng.random(streams) < ending
    valid = rng.random(streams) < 0.9
    return TimeStep(
        obs={}, reward=np.where(valid, rng.normal(size=streams), 0).astype(np.float32), terminated=done & valid,
        truncated=done & valid & (rng.random(streams) < 0.5), first=~valid, valid=valid, stream=np.arange(streams),
    )  # fmt: skip


@pytest.mark.parametrize(("streams", "ending"), [(1, 0.1), (7, 0.05), (300, 0.6)])
def test_against_a_naive_twin(streams: int, ending: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    actors = [Episodes(streams, Heap()) for _ in range(2)]
    ended: list[tuple[int, float, int]] = []
    running = [[(0.0, 0)] * streams for _ in actors]
    assert recent(actors) == (0, None, None)
    for tick in range(200):
        finished: list[tuple[int, float, int]] = []
        for a, rows in zip(actors, running, strict=True):
            ts = step(rng, streams, ending)
            a.observe(ts)
            for i in range(streams):
                if not ts.valid[i]:  # and first: a seam, or an episode that was aborted
                    rows[i] = (0.0, 0)
                    continue
                rows[i] = (rows[i][0] + float(ts.reward[i]), rows[i][1] + int(ts.valid[i]))
                if ts.terminated[i] or ts.truncated[i]:
                    finished.append((tick, *rows[i]))
                    rows[i] = (0.0, 0)
        ended += finished
    count, mean, length = recent(actors)
    assert count == len(ended)
    if streams < 300:
        last = sorted(ended, key=lambda e: e[0])[-RECENT:]
        assert mean == pytest.approx(np.mean([e[1] for e in last]), rel=1e-5)
        assert length == pytest.approx(np.mean([e[2] for e in last]))
    else:  # more than RECENT end in one tick: which of them count is not said, only that they ended last
        assert length is not None and length < 10


def test_memory_does_not_grow() -> None:
    assert tree.nbytes(Episodes.specs) < 4096

"""An item enters a prioritized replay with a priority of its own rows, at the commit of its last
one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from equipoise import tree
from equipoise.experience.replay.rows import without_observations
from equipoise.types import ReplaySettings as Settings
from equipoise.types import Stack, Trajectory
from tests.experience.history import History
from tests.experience.test_replay import ACTORS, BLOCK, ROUND, UNROLL, Writers, replay

ALPHA, EPSILON = 0.5, 0.25


def told(data: Trajectory) -> torch.Tensor:
    """A number that no two windows share, of every row."""
    rows = torch.arange(1, len(data.reward) + 1)[:, None]
    return (
        (data.reward.abs() + data.behaviour["logp"].abs() + data.mask + 2 * data.bootstrap) * rows
    ).sum(0)


@pytest.mark.parametrize(
    ("window", "recurrent"), [(1, False), (3, False), (UNROLL + 2, False), (2 * UNROLL, True)]
)
def test_every_item_has_the_priority_of_its_rows(window: int, recurrent: bool) -> None:
    history = History(
        streams=BLOCK * ACTORS, rows=400, stack=Stack(frames=4, padding="zero"), recurrent=recurrent
    )
    settings = Settings(
        capacity=ROUND * 6,
        starts_at=ROUND * 2,
        selector="prioritized",
        alpha=ALPHA,
        epsilon=EPSILON,
    )
    made: Any = replay(history, settings, window=window, priority=told)
    writers = Writers(history, made)
    entered: set[tuple[int, int]] = set()
    for turn in range(20):
        if turn == 11:
            writers.skip(1)  # a gap, which no window crosses
        for actor in range(ACTORS):
            assert writers.write(actor)
        while (batch := made.sample(5)) is not None:
            made.finish(batch.keys)
        places = np.flatnonzero(made.selector._in.reshape(-1))
        keys = {
            (int(place), int(row)) for place, row in zip(places, made.ring.row(places), strict=True)
        }
        entered |= keys
        if not keys:
            continue
        whole, light = made.ring.gather(places), without_observations(made.ring, places)
        for name in ("reward", "mask", "bootstrap", "version", "action", "behaviour"):
            for a, b in zip(
                tree.leaves(getattr(whole, name)), tree.leaves(getattr(light, name)), strict=True
            ):
                assert torch.equal(a, b), name
        assert torch.equal(whole.first[:-1], light.first) and torch.equal(
            whole.context["start"], light.context["start"]
        )
        np.testing.assert_allclose(
            made.selector._tree.mass[places],
            (told(whole).double().numpy() + EPSILON) ** ALPHA,
            rtol=1e-6,
        )
        assert (
            made.ring.row(places) + window
            <= made.ring._expected[:, 0].reshape(-1)[places % made.ring.streams]
        ).all(), "complete"
    assert len(entered) > 50


def test_without_one_it_is_the_highest_so_far() -> None:
    history = History(streams=BLOCK * ACTORS, rows=400)
    made: Any = replay(
        history,
        Settings(
            capacity=ROUND * 6, starts_at=ROUND, selector="prioritized", alpha=1.0, epsilon=0.0
        ),
    )
    writers = Writers(history, made)
    for _ in range(3):
        for actor in range(ACTORS):
            writers.write(actor)
        batch = made.sample(5)
        made.learned(batch.keys, np.full(5, 7.0))
        made.finish(batch.keys)
    assert set(made.selector._tree.mass[made.selector._in.reshape(-1)]) == {1.0, 7.0}

"""Noise depends on (seed, stream, row) and on nothing else, and is uniform."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.actors.forward.noise import Noise, uniform


def test_it_does_not_depend_on_who_draws_it() -> None:
    stream, start = np.arange(8), np.full(8, 100)
    whole = uniform(3, stream, start, 20, 2)
    assert np.array_equal(whole[:, 5:], uniform(3, stream[5:], start[5:], 20, 2))
    assert np.array_equal(whole[7:], uniform(3, stream, start + 7, 13, 2))
    assert np.array_equal(whole[..., :1], uniform(3, stream, start, 20, 1))


@pytest.mark.parametrize("other", ["seed", "stream", "row", "column"])
def test_every_coordinate_matters(other: str) -> None:
    stream, start = np.arange(50), np.zeros(50, np.int64)
    a = uniform(3, stream, start, 50, 2)
    b = {
        "seed": lambda: uniform(4, stream, start, 50, 2),
        "stream": lambda: uniform(3, stream + 50, start, 50, 2),
        "row": lambda: uniform(3, stream, start + 50, 50, 2),
        "column": lambda: a[..., ::-1],
    }[other]()
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.05


def test_it_is_uniform_and_never_reaches_the_ends() -> None:
    x = uniform(0, np.arange(1000), np.zeros(1000, np.int64), 1000, 1).ravel()
    counts, _ = np.histogram(x, 100, (0, 1))
    chi2 = float(((counts - 1e4) ** 2 / 1e4).sum())
    assert 50 < chi2 < 160, chi2  # 99 degrees of freedom: p between 1e-4 and 1 - 1e-4
    assert x.dtype == np.float32 and x.min() > 0 and x.max() < 1
    for lag in (1, 2, 1000):
        assert abs(np.corrcoef(x[:-lag], x[lag:])[0, 1]) < 5e-3


def test_held_noise_is_of_the_period_and_fresh_noise_of_the_row() -> None:
    noise, stream, start = Noise(2, held=3, every=4), np.arange(6), np.array([0, 1, 2, 3, 4, 100])
    drawn = noise.draw(3, stream, start, 30)
    assert drawn.shape == (30, 6, noise.columns) and drawn.dtype == np.float32
    assert np.array_equal(drawn[..., :2], uniform(3, stream, start, 30, 2))
    for i in range(6):
        periods = (start[i] + np.arange(30)) // 4
        for t in range(1, 30):
            same = drawn[t, i, 2:] == drawn[t - 1, i, 2:]
            assert same.all() if periods[t] == periods[t - 1] else not same.any()
    assert np.array_equal(drawn[5:, 2:], noise.draw(3, stream[2:], start[2:] + 5, 25)), (
        "whoever draws, and from where"
    )
    assert not np.intersect1d(drawn[..., 2:], drawn[..., :2]).size, "nor is it what a row has drawn"

"""Statistics of benchmark scores: aggregates, bootstrap intervals, performance profiles and the
probability of improvement, as in "Deep RL at the Edge of the Statistical Precipice" (Agarwal et al.
2021, arXiv:2108.13264).

Scores are arrays [..., runs, tasks]; a measure takes one or two of them and reduces the last two
axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Indices = NDArray[np.int64]
Measure = Callable[..., Scores]
BLOCK = 1 << 22  # numbers that are compared at once, which bounds the memory


def mean(scores: Scores) -> Scores:
    """Return the mean of all scores."""
    return np.asarray(np.mean(scores, axis=(-2, -1)))


def median(scores: Scores) -> Scores:
    """Return the median over tasks of the mean over runs."""
    return np.asarray(np.median(np.mean(scores, axis=-2), axis=-1))


def iqm(scores: Scores) -> Scores:
    """Return the interquartile mean: the mean of the middle half of all scores."""
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = flat.shape[-1] // 4
    return np.asarray(np.mean(flat[..., cut : flat.shape[-1] - cut], axis=-1))


def optimality_gap(scores: Scores) -> Scores:
    """Return how far scores fall short of 1 on average; a score above 1 counts as 1."""
    return np.asarray(1.0 - np.mean(np.minimum(scores, 1.0), axis=(-2, -1)))


def profile(scores: Scores, thresholds: Sequence[float]) -> Scores:
    """Return the performance profile [..., thresholds]: the share of scores above each one."""
    return np.stack([np.mean(scores > one, axis=(-2, -1)) for one in thresholds], axis=-1)


def probability_of_improvement(x: Scores, y: Scores) -> Scores:
    """Return the probability that a run of ``x`` beats a run of ``y`` on a random task.

    It is the Mann-Whitney statistic over the number of pairs; a tie counts half. The number of runs
    may differ.
    """
    of_x, of_y = x[..., :, None, :], y[..., None, :, :]
    return np.asarray(np.mean((of_x > of_y) + 0.5 * (of_x == of_y), axis=(-3, -2, -1)))


def resamples(scores: Scores, *, count: int, seed: int) -> Indices:
    """Draw the runs of a stratified bootstrap [count, runs, tasks]: for each task on its own."""
    return np.random.default_rng(seed).integers(len(scores), size=(count, *scores.shape))


def interval(
    measure: Measure, scores: Sequence[Scores], indices: Sequence[Indices]
) -> tuple[Scores, Scores]:
    """Return the ends of a measure's 95 % percentile bootstrap interval.

    Args:
        measure: Function of as many arrays as there are ``scores``.
        scores: Arrays [runs, tasks].
        indices: For each of them the drawn runs [count, runs, tasks], as of ``resamples``.
    """
    at_once = max(1, BLOCK // max(one.size * len(other) for one in scores for other in scores))
    parts = [
        measure(
            *(
                np.take_along_axis(one[None], drawn[i : i + at_once], axis=1)
                for one, drawn in zip(scores, indices, strict=True)
            )
        )
        for i in range(0, len(indices[0]), at_once)
    ]
    low, high = np.percentile(np.concatenate(parts), [2.5, 97.5], axis=0)
    return np.asarray(low), np.asarray(high)

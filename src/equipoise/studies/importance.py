"""The importance of settings: the share of the variance of scores that each explains alone."""

from __future__ import annotations

import math

import numpy as np

from equipoise.studies.best import reached, worth
from equipoise.studies.history import History
from equipoise.studies.space import Choice, Parameter, Space
from equipoise.types import Array

LEAST_TRIALS = 8
MOST_BINS = 10


def importance(history: History, space: Space) -> dict[str, float] | None:
    """Return the share of the variance of trials' ranks that each setting explains alone, 0 to 1,
    the most important first; None for fewer than ``LEAST_TRIALS`` trials with a result.

    The share is the adjusted eta squared of a one-way analysis of variance, with a group for each
    choice and for each bin of a range: the first order of functional ANOVA (Hutter, Hoos and
    Leyton-Brown, 2014), from bins and not from a forest. Ranks make it robust to a few extreme
    scores. A trial with more env steps ranks above one that was stopped before, since that one
    lost a comparison.

    Limits: effects of two settings together are not seen. With few trials a small share may be
    chance. A search that narrows a setting makes it look less important. Clones are left out,
    since several settings made their score.
    """
    trials = [
        one
        for one in history.of("paused", "done", "stopped")
        if one.parent is None and worth(one) > -math.inf and space.holds(one.settings)
    ]
    if len(trials) < LEAST_TRIALS or not len(space):
        return None
    most = max(reached(one) for one in trials)
    order = [(most if one.state == "done" else reached(one), worth(one)) for one in trials]
    ranks = _ranks(order)
    shares = np.array([space.shares(one.settings) for one in trials])
    found = {one.key: explained(_groups(one, shares[:, i]), ranks) for i, one in enumerate(space)}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def explained(groups: Array, values: Array) -> float:
    """Return the adjusted share of the variance of ``values`` [N] between ``groups`` [N] of whole
    numbers: 0 if the groups are as different as by chance.
    """
    n, whole = len(values), float(np.sum((values - values.mean()) ** 2))
    kinds = np.unique(groups)
    if whole <= 0 or not 1 < len(kinds) < n:
        return 0.0
    parts = [values[groups == one] for one in kinds]
    within = sum(float(np.sum((part - part.mean()) ** 2)) for part in parts)
    return max(1.0 - within / (n - len(kinds)) * (n - 1) / whole, 0.0)


def _ranks(order: list[tuple[int, float]]) -> Array:
    """The ranks of the entries; equal ones share the mean of theirs."""
    kinds = sorted(set(order))
    counts = np.array([0] * len(kinds))
    place = {one: i for i, one in enumerate(kinds)}
    for one in order:
        counts[place[one]] += 1
    middles = np.cumsum(counts) - (counts + 1) / 2
    return np.array([middles[place[one]] for one in order])


def _groups(parameter: Parameter, shares: Array) -> Array:
    """The group of each trial: its choice, or the bin of its value, with equal counts."""
    if isinstance(parameter, Choice) or len(np.unique(shares)) <= MOST_BINS // 2:
        return np.unique(shares, return_inverse=True)[1]
    bins = min(max(round(len(shares) ** 0.5), 2), MOST_BINS)
    edges = np.quantile(shares, np.arange(1, bins) / bins)
    return np.searchsorted(edges, shares, side="right")

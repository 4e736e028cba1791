"""Drafts: the samples of a group that is handed from one generator to another, in the rows of its
block.

A sample that has ended stands there as in a complete block. An unfinished sample has the stop
``OPEN`` and its tokens so far.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from equipoise.actors.engine.engine import Partial, Sampled
from equipoise.types import Stop, Trajectory


def clear(data: Trajectory) -> None:
    """Write a group of which nothing is drawn."""
    behaviour = data.behaviour
    behaviour["length"][0], behaviour["stop"][0] = 0, int(Stop.OPEN)


def write(data: Trajectory, samples: Iterable[Partial]) -> None:
    """Write the unfinished samples of a group; its ended samples are written already."""
    behaviour = data.behaviour
    for sample in samples:
        i, length = sample.index, len(sample.token)
        data.action["token"][0, i, :length] = sample.token
        behaviour["logp"][0, i, :length] = sample.logp
        behaviour["version"][0, i, :length] = sample.version
        behaviour["length"][0, i], behaviour["stop"][0, i] = length, int(Stop.OPEN)


def count(data: Trajectory) -> int:
    """The number of samples of a group that have not ended."""
    return int((data.behaviour["stop"][0] == Stop.OPEN).sum())


def ended(data: Trajectory, group: int) -> list[Sampled]:
    """Read the samples of a group that have ended."""
    stops = data.behaviour["stop"][0]
    return [
        Sampled(group, i, *_tokens(data, i), Stop(int(stops[i])))
        for i in np.flatnonzero(stops != Stop.OPEN).tolist()
    ]


def partial(data: Trajectory, group: int) -> list[Partial]:
    """Read the samples of a group that have not ended."""
    stops = data.behaviour["stop"][0]
    return [
        Partial(group, i, *_tokens(data, i)) for i in np.flatnonzero(stops == Stop.OPEN).tolist()
    ]


def _tokens(data: Trajectory, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tokens of a sample so far, their log-probabilities and their versions: copies."""
    behaviour, length = data.behaviour, int(data.behaviour["length"][0, i])
    rows = (data.action["token"], behaviour["logp"], behaviour["version"])
    token, logp, version = (of[0, i, :length].copy() for of in rows)
    return token, logp, version

"""Choose pairs of segments to ask about."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

FEW = 100_000  # pairs: so many are listed and shuffled, more are drawn
ROUNDS = 64  # of drawing, before the rest counts as asked


def random_pairs(
    count: int,
    side: np.ndarray,
    *,
    seed: int,
    asked: np.ndarray | None = None,
    left: np.ndarray | None = None,
    right: np.ndarray | None = None,
) -> np.ndarray:
    """Return at most ``count`` different pairs of segments at random, int64 [<=count, 2].

    ``side`` [S]: both segments of a pair have one value of it; give ``held_out`` of the segments'
    episodes, so that a split keeps every pair. ``asked`` [K, 2]: pairs to leave out, in either
    order. ``left`` and ``right``, bool [S]: one segment of each pair is of the first group and the
    other one of the second; None is every segment. Which of the two is shown on the left is random.
    """
    rng = np.random.default_rng(seed)
    total = len(side)
    groups = [
        np.arange(total) if group is None else np.flatnonzero(group) for group in (left, right)
    ]
    known = np.empty(0, np.int64) if asked is None else _keys(np.asarray(asked), total)
    found = np.empty(0, np.int64)
    listed = len(groups[0]) * len(groups[1]) <= FEW
    for _ in range(1 if listed else ROUNDS):
        if listed:
            pairs = np.stack(np.meshgrid(*groups, indexing="ij"), -1).reshape(-1, 2)
            pairs = rng.permutation(pairs)
        else:
            pairs = np.stack([rng.choice(one, 2 * count + 64) for one in groups], 1)
        fits = (pairs[:, 0] != pairs[:, 1]) & (side[pairs[:, 0]] == side[pairs[:, 1]])
        keys = np.concatenate([found, _keys(pairs[fits], total)])
        first = np.sort(np.unique(keys, return_index=True)[1])
        found = keys[first]
        found = found[~np.isin(found, known)][:count]
        if len(found) == count:
            break
    pairs = np.stack(np.divmod(found, total), 1) if total else np.empty((0, 2), np.int64)
    turned = rng.random(len(pairs)) < 0.5
    pairs[turned] = pairs[turned, ::-1]
    return pairs


def disagreement(chance: Tensor) -> Tensor:
    """Return how much the members disagree about queries, by their chances [M, Q]: the deviation
    [Q] of the members' chances (Christiano et al. 2017, arXiv:1706.03741, section 2.2.4).
    """
    return chance.std(0, correction=0)


def information(chance: Tensor) -> Tensor:
    """Return how many nats an answer is expected to tell about which member is right, by their
    chances [M, Q]: the entropy of the mean minus the mean entropy (Houlsby et al. 2011,
    arXiv:1112.5745).

    Unlike ``disagreement``, queries that a teacher answers by a coin do not count as open.
    """

    def entropy(p: Tensor) -> Tensor:
        return torch.special.entr(p) + torch.special.entr(1 - p)

    return entropy(chance.mean(0)) - entropy(chance).mean(0)


def highest(pairs: np.ndarray, score: Tensor | np.ndarray, count: int) -> np.ndarray:
    """Return the ``count`` pairs [<=count, 2] of the highest score [Q]; the first of equal ones."""
    value = np.asarray(score.cpu() if isinstance(score, Tensor) else score)
    return pairs[np.argsort(-value, kind="stable")[:count]]


def newest(version: np.ndarray, *, versions: int = 1) -> np.ndarray:
    """Return bool [S]: the segments of the newest ``versions`` versions of the policy."""
    known = np.unique(version)
    return np.isin(version, known[-versions:])


def _keys(pairs: np.ndarray, total: int) -> np.ndarray:
    """Return one number for each pair, the same in either order."""
    ordered = np.sort(pairs.reshape(-1, 2).astype(np.int64), 1)
    return ordered[:, 0] * total + ordered[:, 1]  # type: ignore[no-any-return]

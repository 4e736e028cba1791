"""Choose pairs of segments to ask about."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

FEW = 100_000  # pairs: up to this number all are listed and shuffled
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

    ``side`` [S] bool: both segments of a pair are on one side, and each side has pairs in
    proportion to its segments. Give ``held_out`` of the segments' episodes, so that a split keeps
    every pair. ``asked`` [K, 2]: pairs to leave out, in either order. ``left`` and ``right``, bool
    [S]: one segment of each pair is of the first group and the other one of the second; None is
    every segment. Which of the two is shown on the left is random.
    """
    rng, total = np.random.default_rng(seed), len(side)
    known = np.empty(0, np.int64) if asked is None else _keys(np.asarray(asked), total)
    held = round(count * float(np.mean(side))) if total else 0
    found = []
    for value, quota in ((False, count - held), (True, held)):
        mine = np.asarray(side, np.bool_) == value
        groups = [
            np.flatnonzero(mine if group is None else mine & group) for group in (left, right)
        ]
        found.append(_drawn(quota, groups, known, total, rng))
    pairs = np.stack(np.divmod(np.concatenate(found), max(total, 1)), 1)
    turned = rng.random(len(pairs)) < 0.5
    pairs[turned] = pairs[turned, ::-1]
    return rng.permutation(pairs)


def chosen_pairs(
    count: int,
    side: np.ndarray,
    score: Callable[[np.ndarray], Tensor],
    *,
    seed: int,
    candidates: int = 10,
    asked: np.ndarray | None = None,
    left: np.ndarray | None = None,
    right: np.ndarray | None = None,
) -> np.ndarray:
    """Return at most ``count`` pairs with the highest ``score`` [Q] (``disagreement``,
    ``information``), from ``candidates`` times as many ``random_pairs``.

    Only pairs to learn from are chosen. Held-out pairs stay at random, since chosen pairs are
    harder, and would calibrate and stop the model by the wrong mix.
    """
    pairs = random_pairs(count * candidates, side, seed=seed, asked=asked, left=left, right=right)
    held = np.asarray(side, np.bool_)[pairs[:, 0]]
    few = round(count * float(np.mean(side))) if len(side) else 0
    train = pairs[~held]
    best = np.argsort(-score(train).cpu().numpy(), kind="stable")[: count - few]
    return np.concatenate([train[best], pairs[held][:few]])


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

    mean = chance.mean(0)
    both, members = torch.stack([mean, 1 - mean]), torch.stack([chance, 1 - chance])
    information: Tensor = torch.special.entr(both).sum(0)
    information -= torch.special.entr(members).sum(0).mean(0)
    return information


def newest(version: np.ndarray, *, versions: int = 1) -> np.ndarray:
    """Return bool [S]: the segments of the newest ``versions`` versions of the policy."""
    known = np.unique(version)
    return np.isin(version, known[-versions:])


def _drawn(
    count: int,
    groups: Sequence[np.ndarray],
    known: np.ndarray,
    total: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the keys of at most ``count`` pairs of two groups, without the known ones."""
    found = np.empty(0, np.int64)
    size = len(groups[0]) * len(groups[1])
    if size == 0 or count == 0:
        return found
    listed = size <= FEW
    for _ in range(1 if listed else ROUNDS):
        if listed:
            pairs = np.stack(np.meshgrid(*groups, indexing="ij"), -1).reshape(-1, 2)
            pairs = rng.permutation(pairs)
        else:
            pairs = np.stack([rng.choice(one, 2 * count) for one in groups], 1)
        keys = _keys(pairs[pairs[:, 0] != pairs[:, 1]], total)
        found = np.concatenate([found, keys[~np.isin(keys, known)]])
        # the first of equal ones, in the order of drawing
        found = found[np.sort(np.unique(found, return_index=True)[1])][:count]
        if len(found) == count:
            break
    return found


def _keys(pairs: np.ndarray, total: int) -> np.ndarray:
    """Return one number for each pair, the same in either order."""
    ordered = np.sort(pairs.reshape(-1, 2).astype(np.int64), 1)
    return ordered[:, 0] * total + ordered[:, 1]

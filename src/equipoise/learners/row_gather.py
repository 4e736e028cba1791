"""New rows of all learners, gathered at each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from equipoise import tree
from equipoise.learners.pool import Learners
from equipoise.types import TRAJECTORY_STREAMS, Trajectory, Tree


def kept_rows(data: Trajectory) -> Trajectory:
    """Return a copy of rows as numpy arrays; the queue reuses its own memory."""
    return Trajectory(**tree.map(np.array, tree.on_host(data.fields())))


def gathered(own: Sequence[Trajectory], pool: Learners) -> Trajectory | None:
    """Return the windows [T, B] of all learners, on each of them, in the order of their streams;
    None if no learner has any.

    ``own``: the windows of this learner. Either all learners have some, or none has.
    """
    counts = torch.zeros(pool.size, dtype=torch.int64)
    counts[pool.rank] = sum(one.shape[1] for one in own)
    counts = pool.sum(counts)
    if not counts.any():
        return None
    mine = tree.map(lambda *x: np.concatenate(x), *(_turned(one.fields()) for one in own))
    leaves = tree.leaves(mine)
    sizes = [math.prod(leaf.shape[1:]) * leaf.itemsize for leaf in leaves]
    whole = torch.zeros(int(counts.sum()), sum(sizes), dtype=torch.uint8)
    place = whole[int(counts[: pool.rank].sum()) :][: len(mine["mask"])]
    for leaf, to in zip(leaves, torch.split(place, sizes, 1), strict=True):
        flat = np.ascontiguousarray(leaf).reshape(len(leaf), math.prod(leaf.shape[1:]))
        to.copy_(torch.from_numpy(flat.view(np.uint8)))
    # each row has the bytes of one learner, and zeros of all others
    parts = iter(torch.split(pool.sum(whole), sizes, 1))

    def filled(leaf: np.ndarray) -> np.ndarray:
        data: np.ndarray = next(parts).contiguous().numpy().view(leaf.dtype)
        return data.reshape(-1, *leaf.shape[1:])

    found = tree.map(filled, mine)
    order = np.lexsort((found["context"]["stream"], found["context"]["start"]))
    return Trajectory(**_turned(tree.index(found, order)))


def _turned(fields: Tree) -> Tree:
    """Return the fields of rows with windows along the first axis, or the inverse."""
    return {
        name: field if name in TRAJECTORY_STREAMS else tree.map(lambda x: x.swapaxes(0, 1), field)
        for name, field in fields.items()
    }

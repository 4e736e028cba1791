"""State that a term keeps for each stream, from one batch to the next."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from equipoise.rewards.term import Refused
from equipoise.types import Learns, Pool, Trajectory

MOST = 256 << 20  # bytes of a term's state of all streams, which each checkpoint holds


def in_order(algorithm: Learns, name: str) -> None:
    """Refused if batches do not hold the rows of each stream in their order."""
    if algorithm.needs_replay:
        raise Refused(
            f"reward: {name}: must have an algorithm that learns from each episode's rows in their "
            f"order, got {type(algorithm).__name__}, whose replay draws windows at random; try ppo"
        )


def turns(data: Trajectory) -> Iterator[Tensor]:
    """Yield [b] the numbers of windows that can be taken at once: at most one of each stream, in
    the order of their rows.
    """
    stream, start = data.context["stream"], data.context["start"]
    # [B] windows of its stream before it
    turn = ((stream[:, None] == stream) & (start[:, None] > start)).sum(1)
    for i in range(int(turn.max()) + 1):
        yield (turn == i).nonzero().squeeze(1)


def check_size(streams: int, new: Tensor, key: str) -> None:
    """Refused if the state of all streams, each as large as ``new``, takes more than ``MOST``
    bytes. ``key``: the setting of its size.
    """
    if streams * new.nbytes > MOST:
        raise Refused(
            f"{key}: must take at most {MOST >> 20} MiB for all envs, got {streams} envs of "
            f"{new.nbytes / (1 << 20):.3g} MiB; try a smaller {key.rpartition('.')[2]}"
        )


def with_room(kept: Tensor, streams: int, new: Tensor) -> Tensor:
    """Return a copy of ``kept`` [n, ...] with at least ``streams`` rows; further ones are
    ``new``.
    """
    more = max(streams - len(kept), 0)
    return torch.cat([kept, new.expand(more, *kept.shape[1:])])


def of_all(kept: Tensor, stream: Tensor, new: Tensor, pool: Pool) -> Tensor:
    """Return the state [streams, ...] of all learners; at most one has a stream in its batch.

    ``new``: the state of a stream without rows so far.
    """
    count = int(pool.max(torch.tensor(len(kept), device=kept.device)))
    kept = with_room(kept, count, new)
    mine, there = torch.zeros_like(kept), kept.new_zeros(count)
    mine[stream], there[stream] = kept[stream], 1
    seen = (pool.sum(there) > 0).view(-1, *[1] * (kept.dim() - 1))
    return torch.where(seen, pool.sum(mine), kept)

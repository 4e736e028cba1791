"""Cutting a batch into minibatches: by rows for feed-forward networks, by streams where a state
runs along time.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from equipoise import tree
from equipoise.nets.packing import shuffled, under_budget
from equipoise.types import TRAJECTORY_STREAMS, Batch, Packed, Trajectory, Tree


def minibatches(
    batch: Batch, count: int, *, by_rows: bool, rng: torch.Generator
) -> Iterator[Batch]:
    """``count`` random, disjoint parts of a batch; the batch itself, untouched, where ``count`` is
    1.

    A part of text has whole groups. By rows, a part has T = 1 and no bootstrap observation (obs [1,
    N, ...]): what needs the next row is for ``Algorithm.targets``, which saw the whole batch. On a
    GPU a part has no keys: to know them is to wait.
    """
    if count == 1:
        yield batch
        return
    if isinstance(batch.data, Packed):
        yield from shuffled(batch, count, rng)
        return
    rows, streams = batch.data.shape
    for target in tree.leaves(batch.targets):
        shape = target.shape
        if len(shape) < 2 or shape[1] != streams or (by_rows and shape[0] < rows):
            raise ValueError(
                f"expected targets() to return tensors [T, B, ...], here [{rows}, {streams}, ...], "
                f"which minibatches are cut from, got {list(target.shape)}"
            )
    total = rows * streams if by_rows else streams
    order = torch.randperm(total, generator=rng, device=rng.device)
    for part in order.tensor_split(count):
        yield _rows(batch, part) if by_rows else _streams(batch, part)


def micro_batches(batch: Batch, tokens: int) -> list[Batch]:
    """What a minibatch is gone over in, one after the other: text in parts of ``tokens`` at most, 0
    for all at once.
    """
    return under_budget(batch, tokens) if isinstance(batch.data, Packed) else [batch]


# torch cannot index these; the bytes are the same.
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _picked(x: torch.Tensor, axis: int, part: torch.Tensor) -> torch.Tensor:
    """``index_select`` for every dtype of an observation."""
    kind = SIGNED.get(x.dtype)
    return (
        x.index_select(axis, part)
        if kind is None
        else x.view(kind).index_select(axis, part).view(x.dtype)
    )


def _rows(batch: Batch, part: torch.Tensor) -> Batch:
    rows, streams = batch.data.shape

    def take(x: torch.Tensor) -> torch.Tensor:
        return _picked(x[:rows].flatten(0, 1), 0, part)[None]

    def take_stream(x: torch.Tensor) -> torch.Tensor:
        return _picked(x, 0, part % streams)

    return _cut(batch, take, take_stream, part % streams)


def _streams(batch: Batch, part: torch.Tensor) -> Batch:
    return _cut(batch, lambda x: _picked(x, 1, part), lambda x: _picked(x, 0, part), part)


def _cut(batch: Batch, take: object, take_stream: object, streams: torch.Tensor) -> Batch:
    data = batch.data

    def field(name: str) -> Tree:
        return tree.map(take_stream if name in TRAJECTORY_STREAMS else take, getattr(data, name))  # type: ignore[arg-type]

    return Batch(
        data=Trajectory(**{name: field(name) for name in Trajectory.__slots__}),
        keys=batch.keys[:0] if streams.is_cuda else batch.keys[streams.numpy()],
        weight=tree.map(take_stream, batch.weight),  # type: ignore[arg-type]
        targets=tree.map(take, batch.targets),  # type: ignore[arg-type]
    )

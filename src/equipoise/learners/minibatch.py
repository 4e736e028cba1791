"""Minibatches of a batch: by rows, or by whole windows if a state runs along time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from equipoise import tree
from equipoise.nets.packing import shuffled, under_budget
from equipoise.types import TRAJECTORY_STREAMS, Batch, Packed, Trajectory, by_field


def minibatches(
    batch: Batch, count: int, *, by_rows: bool, rng: torch.Generator
) -> Iterator[Batch]:
    """``count`` random, disjoint parts of a batch; the batch itself, untouched, if ``count`` is 1.

    A part of text has whole groups. By rows, a part has T = 1 and no bootstrap observation (obs [1,
    N, ...]): a computation that needs the next row is for ``Algorithm.targets``, which saw the
    whole batch. On a GPU a part has no keys: to know them is to wait.
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


def micro_batches(batch: Batch, tokens: int, *, whole: bool = False) -> list[Batch]:
    """Return the parts of a minibatch: text in parts of at most ``tokens`` (0: one part);
    ``whole``: no group is cut.
    """
    return under_budget(batch, tokens, whole=whole) if isinstance(batch.data, Packed) else [batch]


Take = Callable[[Tensor], Tensor]
# torch cannot index these; the bytes are the same.
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _picked(x: Tensor, axis: int, part: Tensor) -> Tensor:
    """``index_select`` for every dtype of an observation."""
    kind = SIGNED.get(x.dtype)
    return (
        x.index_select(axis, part)
        if kind is None
        else x.view(kind).index_select(axis, part).view(x.dtype)
    )


def _rows(batch: Batch, part: Tensor) -> Batch:
    rows, streams = batch.data.shape
    stream = part % streams
    return _cut(
        batch,
        lambda x: _picked(x[:rows].flatten(0, 1), 0, part)[None],
        lambda x: _picked(x, 0, stream),
        stream,
    )


def _streams(batch: Batch, part: Tensor) -> Batch:
    return _cut(batch, lambda x: _picked(x, 1, part), lambda x: _picked(x, 0, part), part)


def _cut(batch: Batch, take: Take, take_stream: Take, streams: Tensor) -> Batch:
    data = {
        name: tree.map(take_stream if name in TRAJECTORY_STREAMS else take, field)
        for name, field in by_field(batch.data).items()
    }
    return Batch(
        data=Trajectory(**data),
        keys=batch.keys[:0] if streams.is_cuda else batch.keys[streams.numpy()],
        weight=take_stream(batch.weight),
        targets=tree.map(take, batch.targets),
    )

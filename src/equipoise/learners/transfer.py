"""The copy of a batch from the host to the learner's device.

On a GPU there are two sets of buffers. While the learner computes with one set, the next batch is
copied through pinned memory into the other, on another stream. ``Streams`` has the calls of CUDA
that this needs, so that tests can record them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from equipoise import tree
from equipoise.types import Array, Batch, Tree, by_field


class Transfer(Protocol):
    # begin to copy the next batch, if it is there
    def ahead(self, coming: Callable[[], Batch | None]) -> None: ...
    # the batch on the device; the last one's tensors may be written over
    def __call__(self, batch: Batch) -> Batch: ...
    def read(self) -> None: ...  # the work on the last batch is queued


class NoTransfer:
    """The learner computes where the rows are."""

    def ahead(self, coming: Callable[[], Batch | None]) -> None: ...

    def __call__(self, batch: Batch) -> Batch:
        return batch

    def read(self) -> None: ...


class Event(Protocol):
    def synchronize(self) -> object: ...  # the host waits


class Streams(Protocol):
    """The stream of computing, which is current, and one of copying."""

    # memory of the host that the device reads by itself
    def pinned(self, like: Tensor) -> Tensor: ...
    def on_device(self, like: Tensor) -> Tensor: ...
    # a context whose work is queued on the stream of copying
    def copying(self) -> AbstractContextManager[object]: ...
    def mark(self) -> Event: ...  # a point of the current stream
    # the current stream waits for it; the host does not
    def wait(self, event: Event) -> None: ...


class Cuda:
    """The streams of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._copies = device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def pinned(self, like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def on_device(self, like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=like.dtype, device=self._device)

    def copying(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._copies)

    def mark(self) -> Event:
        event: Event = torch.cuda.current_stream(self._device).record_event()
        return event

    def wait(self, event: Any) -> None:
        torch.cuda.current_stream(self._device).wait_event(event)


class Buffers:
    """Room for one batch in pinned memory and on the device."""

    def __init__(self, rows: Tree, streams: Streams) -> None:
        self.spec = tree.spec(rows)
        self.pinned, self.device = tree.map(streams.pinned, rows), tree.map(streams.on_device, rows)
        self.copied: Event | None = None  # until then no pinned write, no read on device
        # until then no write on the device: queued work may still use this memory
        self.read = streams.mark()


class DoubleBuffer:
    """Two sets of buffers in turn. Rows that are on the device already stay there."""

    def __init__(self, device: torch.device, streams: Streams) -> None:
        self._device, self._streams = device, streams
        self._sets: list[Buffers | None] = [None, None]
        self._turn = 0
        # keys and buffers of the batch that was copied ahead
        self._coming: tuple[Array, Buffers] | None = None
        self._last: Buffers | None = None

    def ahead(self, coming: Callable[[], Batch | None]) -> None:
        if (batch := coming()) is not None and not self._is_there(batch):
            self._coming = np.array(batch.keys), self._copied(batch)

    def __call__(self, batch: Batch) -> Batch:
        self._last = None
        if self._is_there(batch):
            return batch
        coming, self._coming = self._coming, None
        if coming is not None and np.array_equal(coming[0], batch.keys):
            buffers = coming[1]
        else:
            buffers = self._copied(batch)
        assert buffers.copied is not None
        self._streams.wait(buffers.copied)
        self._last = buffers
        rows = buffers.device
        return replace(batch, data=type(batch.data)(**rows["data"]), weight=rows["weight"])

    def read(self) -> None:
        if self._last is not None:
            self._last.read = self._streams.mark()

    def _is_there(self, batch: Batch) -> bool:
        return bool(batch.weight.device == self._device)

    def _copied(self, batch: Batch) -> Buffers:
        """Queue the copies of a batch into the buffers whose turn it is."""
        rows = {"data": tree.torch_views(by_field(batch.data)), "weight": batch.weight}
        buffers = self._sets[self._turn]
        if buffers is not None and buffers.copied is not None:
            buffers.copied.synchronize()  # no wait: that was two batches ago
        if buffers is None or buffers.spec != tree.spec(rows):
            buffers = self._sets[self._turn] = Buffers(rows, self._streams)
        self._turn = 1 - self._turn
        sources = tree.map(
            lambda row, room: row if row.is_pinned() else room.copy_(row), rows, buffers.pinned
        )
        with self._streams.copying():
            self._streams.wait(buffers.read)
            tree.map(
                lambda room, source: room.copy_(source, non_blocking=True), buffers.device, sources
            )
            buffers.copied = self._streams.mark()
        return buffers


def transfer(device: torch.device) -> Transfer:
    """Choose the way to ``device``."""
    return NoTransfer() if device.type == "cpu" else DoubleBuffer(device, Cuda(device))

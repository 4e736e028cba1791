"""How the whole of an update is done: operation by operation, or as a CUDA graph that is replayed.

A graph is recorded for each place that a batch lies in and each set of groups that are due. What differs from one update to
the next (the share of the schedule done, and the learning rates) lies in tensors that are written before a replay. What comes
out is copied at once, since the next replay writes over it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from equipoise import tree
from equipoise.nets.capture import Graphs, Note, Record
from equipoise.types import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What an update depends on besides tensors: numbers, or tensors [] on the device in place of them."""

    progress: Any  # the share of the schedule done, 0..1
    rates: Mapping[str, Any]  # learning rates by group


class Whole(Protocol):
    def numbers(self, now: Numbers) -> Numbers: ...  # in the form that an update takes them
    def update(self, batch: Batch, due: Sequence[str], work: Callable[[], Any]) -> Any: ...


class Plainly:
    """Operation by operation."""

    def numbers(self, now: Numbers) -> Numbers:
        return now

    def update(self, batch: Batch, due: Sequence[str], work: Callable[[], Any]) -> Any:
        return work()


class Tensors(Plainly):
    """Operation by operation. What a loss is given is a tensor: it would be compiled anew for every other number."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._progress = device, torch.zeros((), device=device)

    def numbers(self, now: Numbers) -> Numbers:
        return replace(now, progress=self._progress.fill_(now.progress))


class Graphed(Tensors):
    """One graph an update."""

    def __init__(self, device: torch.device, note: Note, record: Record) -> None:
        """``note``, ``record``: as of ``Graphs``."""
        super().__init__(device)
        self._graphs = Graphs(note, record, "updates")
        self._rates: dict[str, Tensor] = {}

    def numbers(self, now: Numbers) -> Numbers:
        for group, rate in now.rates.items():
            self._rates.setdefault(group, torch.zeros((), device=self._device)).fill_(rate)
        return replace(super().numbers(now), rates=self._rates)

    def update(self, batch: Batch, due: Sequence[str], work: Callable[[], Any]) -> Any:
        fields = {name: getattr(batch.data, name) for name in type(batch.data).__slots__}
        leaves = [*tree.leaves(fields), batch.weight]
        key = (*due, *((x.data_ptr(), tuple(x.shape)) for x in leaves))
        return _Packed.unpacked(self._graphs(key, lambda: _Packed(work())))


class _Packed:
    """What an update found, its metrics and doubtful numbers in one tensor."""

    def __init__(self, going: Any) -> None:
        self._going = going
        pairs = [x.double() for pair in going.metrics.values() for x in pair]
        unseen = [x for seen in going.unseen for x in seen.double()]
        self._numbers = torch.stack([*pairs, *unseen]) if pairs or unseen else torch.empty(0)

    def unpacked(self) -> Any:
        """The same in memory of its own."""
        going, numbers = self._going, self._numbers.clone().unbind()
        names, metrics = list(going.metrics), 2 * len(going.metrics)
        return replace(
            going,
            metrics={name: (numbers[2 * i], numbers[2 * i + 1]) for i, name in enumerate(names)},
            unseen=[torch.stack(numbers[i : i + 2]) for i in range(metrics, len(numbers), 2)],
            priority=None if going.priority is None else going.priority.clone(),
        )

"""Sums over all learners that share the batches of a policy: of one learner alone, or of a group of processes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor

from equipoise.types import Pool


class Learners(Pool, Protocol):
    """A pool as a learner itself needs it: it knows its place, and its gradients are added up while it goes on."""

    @property
    def rank(self) -> int: ...  # this learner's number, from 0
    @property
    def size(self) -> int: ...  # how many learners there are
    def add_up(self, x: Tensor) -> Callable[[], object]: ...  # begin to put the sum in the place of x; the result waits for it


class Alone:
    """The pool of one learner: a sum over all learners is its own number, to the bit."""

    rank, size = 0, 1

    def sum(self, x: Tensor) -> Tensor:
        return x

    def max(self, x: Tensor) -> Tensor:
        return x

    def add_up(self, x: Tensor) -> Callable[[], object]:
        return _nothing


def _nothing() -> None: ...


ALONE = Alone()


class Group:
    """The pool of several learners, which torch's collectives join: gloo on the CPU, NCCL between GPUs.

    Every rank gets the same bits, since each element is added up in one place and then sent to all.
    """

    def __init__(self, group: Any) -> None:
        """``group``: a ``torch.distributed.ProcessGroup`` that all learners have joined."""
        self._group = group
        self.rank, self.size = group.rank(), group.size()

    @classmethod
    def joined(cls, store: Any, rank: int, size: int, *, timeout_s: float) -> Group:
        """Join ``size`` learners by gloo through a ``torch.distributed.Store``; waits until all of them are there."""
        from torch.distributed import ProcessGroupGloo  # not in every build of torch, and a learner alone needs none

        return cls(ProcessGroupGloo(store, rank, size, timedelta(seconds=timeout_s)))

    def sum(self, x: Tensor) -> Tensor:
        return self._reduced(x, "SUM")

    def max(self, x: Tensor) -> Tensor:
        return self._reduced(x, "MAX")

    def add_up(self, x: Tensor) -> Callable[[], object]:
        """Begin to replace ``x`` by its sum over all learners; the result waits until that is done."""
        wait: Callable[[], object] = self._started(x, "SUM").wait
        return wait

    def _reduced(self, x: Tensor, how: str) -> Tensor:
        mine = x.detach().clone(memory_format=torch.contiguous_format)
        self._started(mine, how).wait()
        return mine

    def _started(self, x: Tensor, how: str) -> Any:
        from torch.distributed import AllreduceOptions, ReduceOp

        options = AllreduceOptions()
        options.reduceOp = getattr(ReduceOp, how)
        return self._group.allreduce([x], options)

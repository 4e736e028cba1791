"""Sums over all learners that share the batches of a policy: of one learner alone, or of a group of processes or threads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor

from equipoise.types import Pool

LONGEST_S = 24 * 3600.0  # a sum may wait so long for another learner: the driver ends one that hangs, and that ends the wait
PULSE_S = 0.5  # a learner that waits for another tells the driver so often that it does


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


class LearnerLost(RuntimeError):
    """Another learner is gone, so a sum cannot be had."""


class Group:
    """The pool of several learners, which gloo joins when the first of its sums is asked for.

    Every rank gets the same bits, since each element is added up in one place and then sent to all.
    """

    def __init__(self, store: Any, rank: int, size: int, *, pulse: Callable[[], object] = _nothing) -> None:
        """``store``: a ``torch.distributed.Store`` by which the learners find each other. ``pulse`` is called now and then
        while this learner waits for others.
        """
        self._store, self.rank, self.size, self._pulse = store, rank, size, pulse
        self._group: Any = None

    def join(self) -> None:
        """Meet the other learners, if that has not been done; waits until all of them are there."""
        if self._group is not None:
            return
        from torch.distributed import ProcessGroupGloo  # not in every build of torch, and a learner alone needs none

        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timedelta(seconds=LONGEST_S)
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        self._group = ProcessGroupGloo(self._store, self.rank, self.size, options)

    def leave(self) -> None:
        """Part from the others; the next sum meets them again."""
        self._group = None

    def sum(self, x: Tensor) -> Tensor:
        return self._reduced(x, "SUM")

    def max(self, x: Tensor) -> Tensor:
        return self._reduced(x, "MAX")

    def add_up(self, x: Tensor) -> Callable[[], object]:
        """Begin to replace ``x`` by its sum over all learners; the result waits until that is done."""
        work = self._started(x, "SUM")
        return lambda: self._wait(work)

    def _reduced(self, x: Tensor, how: str) -> Tensor:
        mine = x.detach().clone(memory_format=torch.contiguous_format)
        self._wait(self._started(mine, how))
        return mine

    def _started(self, x: Tensor, how: str) -> Any:
        from torch.distributed import AllreduceOptions, ReduceOp

        self.join()
        options = AllreduceOptions()
        options.reduceOp = getattr(ReduceOp, how)
        try:
            return self._group.allreduce([x], options)
        except RuntimeError as error:
            raise LearnerLost(str(error)) from error

    def _wait(self, work: Any) -> None:
        while True:
            try:
                work.wait(timedelta(seconds=PULSE_S))
                return
            except RuntimeError as error:
                if work.is_completed():
                    raise LearnerLost(str(error)) from error
                self._pulse()  # the sum is still to come

"""Sums over the learners that share a policy's batches: one alone, or a group of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor

from equipoise.private.torch import gloo
from equipoise.types import Pool

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

    from equipoise.private.torch import Store

# a sum may wait so long for another learner: the driver ends one that hangs, and that ends the wait
LONGEST_S = 24 * 3600.0
SPIN_S = (
    # a learner first yields its core again and again: a sleeping learner takes long to wake, above
    # all on virtual machines
    0.01
)
LOOK_S = 0.05  # how often a learner that waits for others looks whether they are there


class Learners(Pool, Protocol):
    """A pool with the learner's place in it, and with sums that run in the background."""

    @property
    def rank(self) -> int: ...  # this learner's number, from 0
    @property
    def size(self) -> int: ...  # how many learners there are
    # begin to put the sum in the place of x; the result waits for it
    def add_up(self, x: Tensor) -> Callable[[], object]: ...
    def leave(self) -> None: ...  # part from the others; the next sum meets them again


class Alone:
    """The pool of one learner: a sum over all learners is its own number, to the bit."""

    rank, size = 0, 1

    def sum(self, x: Tensor) -> Tensor:
        return x

    def max(self, x: Tensor) -> Tensor:
        return x

    def add_up(self, x: Tensor) -> Callable[[], object]:
        return _nothing

    def leave(self) -> None: ...


def _nothing() -> None: ...


ALONE = Alone()


class LearnerLost(RuntimeError):
    """Another learner is gone, so a sum cannot be had."""


class Group:
    """The pool of several learners, which gloo joins when the first of its sums is asked for.

    Every rank gets the same bits, since each element is added up in one place and then sent to all.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        look: Callable[[], object] = _nothing,
        summed: Callable[[float], object] = lambda seconds: None,
        address: str = "127.0.0.1",
    ) -> None:
        """``store``: a ``torch.distributed.Store`` by which the learners find each other. ``look``
        is called now and then while this learner waits for other learners; it raises
        ``LearnerLost`` if a learner will not come. ``summed`` is called with the seconds of each
        wait. ``address``: of this machine, for the other learners.
        """
        self._store, self.rank, self.size, self._look = store, rank, size, look
        self._summed, self.address = summed, address
        self._group: ProcessGroup | None = None
        self._works: dict[int, Work] = {}  # sums on their way
        self._begun = 0

    @property
    def gloo(self) -> ProcessGroup:
        """The group of gloo; waits until all learners are in it."""
        if self._group is None:
            timeout = timedelta(seconds=LONGEST_S)
            try:
                self._group = gloo(
                    self._store, self.rank, self.size, address=self.address, timeout=timeout
                )
            except RuntimeError as error:
                raise LearnerLost(str(error)) from error
        return self._group

    def leave(self) -> None:
        held: list[object] = [self._group, self._works]
        self._group, self._works = None, {}
        # gloo lets go of a sum on its way only once that has ended, which may be never: no thread
        # waits for that here.
        threading.Thread(target=held.clear, daemon=True).start()

    def sum(self, x: Tensor) -> Tensor:
        return self._reduced(x, "SUM")

    def max(self, x: Tensor) -> Tensor:
        return self._reduced(x, "MAX")

    def add_up(self, x: Tensor) -> Callable[[], object]:
        """Begin to replace ``x`` by its sum over all learners; the result waits for the end."""
        number = self._start(x, "SUM")
        return lambda: self._wait(number)

    def _reduced(self, x: Tensor, how: Literal["SUM", "MAX"]) -> Tensor:
        mine = x.detach().clone(memory_format=torch.contiguous_format)
        self._wait(self._start(mine, how))
        return mine

    def _start(self, x: Tensor, how: Literal["SUM", "MAX"]) -> int:
        from torch.distributed import AllreduceOptions, ReduceOp

        gloo, options = self.gloo, AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.SUM if how == "SUM" else ReduceOp.MAX)
        self._begun += 1
        try:
            self._works[self._begun] = gloo.allreduce([x], options)
        except RuntimeError as error:
            raise LearnerLost(str(error)) from error
        return self._begun

    def _wait(self, number: int) -> None:
        work, began = self._works[number], time.perf_counter()
        while not work.is_completed() and time.perf_counter() - began < SPIN_S:
            os.sched_yield()
        while True:
            # the short wait is over, or the sum failed: the code below finds out
            with suppress(RuntimeError):
                work.wait(timedelta(seconds=LOOK_S))
            if work.is_completed():
                break
            self._look()
        del self._works[number]
        try:
            work.wait()
        except RuntimeError as error:
            raise LearnerLost(str(error)) from error
        self._summed(time.perf_counter() - began)

"""Ways to run an unroll: operation by operation, as a CUDA graph, or with a compiled row. If a
graph or a compiled row fails, a note gives the reason and the operations run one by one.

A rollout's unroll is a fixed row of operations over tensors that stay in place, so a graph of all
of it can be replayed: a launch an unroll instead of some fifty a row. On the CPU one row (policy
and env) may be compiled instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from weakref import WeakKeyDictionary

import torch

from equipoise.nets.capture import CudaGraphs, Graphs, Note, Record, compiled
from equipoise.types import Tree


class Capture(Protocol):
    """How a rollout does its work."""

    # one row: a pure function of tensors
    def step(self, pure: Callable[..., Tree]) -> Callable[..., Tree]: ...
    # all rows, written into the tensors of ``out``
    def unroll(self, work: Callable[[Tree], None], out: Tree) -> None: ...


class Plainly:
    """Operation by operation."""

    def step(self, pure: Callable[..., Tree]) -> Callable[..., Tree]:
        return pure

    def unroll(self, work: Callable[[Tree], None], out: Tree) -> None:
        work(out)


class Graphed(Plainly):
    """A graph for each slot, which lasts as long as the slot."""

    def __init__(self, note: Note, record: Record) -> None:
        """``note`` is called once with the reason if the graph fails. ``record``: makes a graph of
        work, without doing it.
        """
        self._graphs = Graphs(note, record, "unrolls", WeakKeyDictionary())

    def unroll(self, work: Callable[[Tree], None], out: Tree) -> None:
        self._graphs(out, lambda: work(out))


class Compiled(Plainly):
    """One row compiled by torch, for the number of streams that it is first called with."""

    def __init__(self, note: Note) -> None:
        self._note = note

    def step(self, pure: Callable[..., Tree]) -> Callable[..., Tree]:
        return compiled(pure, self._note, "rows")


def capture(device: torch.device, *, compile_rows: bool, pure: bool, note: Note) -> Capture:
    """Choose how unrolls are done on ``device``. ``pure``: is a step of the env a pure function, of
    torch's operations?
    """
    if not pure:
        if compile_rows:
            note(
                "warning: compile: rows are done operation by operation, since the env's step is "
                "not an operation of torch"
            )
        return Plainly()  # a simulator's step is code of its own, which a graph would not see
    if device.type == "cuda":
        return Graphed(note, CudaGraphs())
    return Compiled(note) if compile_rows else Plainly()

"""How an unroll is done: operation by operation, as a CUDA graph, or with a compiled row; and why not where that fails.

A rollout's unroll is a fixed row of operations over tensors that stay in place, so a graph of all of it can be replayed: a
launch an unroll instead of some fifty a row. On the CPU one row (policy and env) may be compiled instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch

Note = Callable[[str], object]
Replay = Callable[[], object]
FAILURES = (RuntimeError, OSError, ImportError)  # of CUDA, dynamo, inductor, the compiler or its cache


class Capture(Protocol):
    """How a rollout does its work."""

    def step(self, pure: Callable[..., Any]) -> Callable[..., Any]: ...  # one row: a pure function of tensors
    def unroll(self, work: Callable[[Any], None], out: Any) -> None: ...  # all rows, written into the tensors of ``out``


class Plainly:
    """Operation by operation."""

    def step(self, pure: Callable[..., Any]) -> Callable[..., Any]:
        return pure

    def unroll(self, work: Callable[[Any], None], out: Any) -> None:
        work(out)


class CudaGraphs:
    """Records work on the current device as a graph. All graphs share one pool of memory: one is replayed at a time."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, work: Callable[[], None]) -> Replay:
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        return graph.replay


class Graphed(Plainly):
    """A graph for each slot. The first unroll is done plainly: in it rows are checked, and libraries allocate."""

    def __init__(self, note: Note, record: Callable[[Callable[[], None]], Replay]) -> None:
        """``note`` is told, once, why work is done plainly after all. ``record``: makes a graph of work, without doing it."""
        self._note, self._record = note, record
        self._graphs: WeakKeyDictionary[Any, Replay] = WeakKeyDictionary()
        self._warm, self._failed = False, False

    def unroll(self, work: Callable[[Any], None], out: Any) -> None:
        if self._failed or not self._warm:
            self._warm = True
            work(out)
            return
        if out not in self._graphs:
            try:
                self._graphs[out] = self._record(lambda: work(out))
            except FAILURES as error:
                self._failed = True
                self._graphs.clear()
                self._note(f"warning: graphs: unrolls are done operation by operation, since a capture failed: {_said(error)}")
                work(out)
                return
        self._graphs[out]()


class Compiled(Plainly):
    """One row compiled by torch, for the number of streams that it is first called with."""

    def __init__(self, note: Note) -> None:
        self._note = note

    def step(self, pure: Callable[..., Any]) -> Callable[..., Any]:
        fast: Callable[..., Any] | None = None
        plain = False

        def row(*args: Any) -> Any:
            nonlocal fast, plain
            if plain:
                return pure(*args)
            if fast is None:
                pure(*args)  # checks what a device env returns, which is no part of what is compiled
                fast = _compiled(pure)
            try:
                return fast(*args)
            except FAILURES as error:
                plain = True
                self._note(
                    f"warning: compile: rows are done operation by operation, since torch.compile failed: {_said(error)}"
                )
                return pure(*args)

        return row


def _compiled(pure: Callable[..., Any]) -> Callable[..., Any]:
    import torch._inductor.config as inductor

    inductor.compile_threads = 1  # the pool of processes that torch would start outlives a killed worker
    return torch.compile(pure, dynamic=False)


def _said(error: Exception) -> str:
    """The kind of an error and its first line."""
    lines = [line for line in str(error).splitlines() if line.strip()] or ["no message"]
    return f"{type(error).__name__}: {lines[0]}"


def capture(device: torch.device, *, compile_rows: bool, pure: bool, note: Note) -> Capture:
    """Choose how unrolls are done on ``device``. ``pure``: is a step of the env a pure function, of torch's operations?"""
    if not pure:
        if compile_rows:
            note("warning: compile: rows are done operation by operation, since the env's step is none of torch's operations")
        return Plainly()  # a simulator's step is code of its own, which a graph would not see
    if device.type == "cuda":
        return Graphed(note, CudaGraphs())
    return Compiled(note) if compile_rows else Plainly()

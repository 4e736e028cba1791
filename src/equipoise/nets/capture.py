"""Work on a device as CUDA graphs, functions compiled by torch, and the reason, reported once, if
either fails.

A row of operations over tensors that stay in place can be recorded once and replayed: one launch in
place of hundreds. Replays run no Python, so whatever differs from one to the next has to lie in a
tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping, Sequence
from typing import Any, TypeVar

import torch

from equipoise.types import Tree

Note = Callable[[str], object]
Replay = Callable[[], object]
Record = Callable[[Callable[[], None]], Replay]
# of CUDA, dynamo, inductor, the compiler or its cache
FAILURES = (RuntimeError, OSError, ImportError)
OPTIONS: dict[str, str | int | bool | Callable[..., object]] = {
    "compile_threads": 1
}  # the pool of processes that torch would start outlives a killed worker
T = TypeVar("T")


class CudaGraphs:
    """Records work on the current device as a graph. Graphs share one pool of memory."""

    def __init__(self, generators: Sequence[torch.Generator] = ()) -> None:
        """``generators``: the work's sources of random numbers, besides the device's own."""
        self._generators = generators
        self._pool: Any = None  # of memory, once there is a graph

    def __call__(self, work: Callable[[], None]) -> Replay:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        return graph.replay


class Graphs:
    """Graphs of pieces of work. The first piece is not recorded, so that inputs are checked."""

    def __init__(
        self,
        note: Note,
        record: Record,
        what: str,
        known: MutableMapping[Hashable, tuple[Replay, list[Tree]]] | None = None,
    ) -> None:
        """``note`` hears once why ``what`` is done plainly after all. ``record``: makes a graph of
        work, without doing it. ``known``: where graphs are kept, by key.
        """
        self._note, self._record, self._what = note, record, what
        self._known: MutableMapping[Hashable, tuple[Replay, list[Tree]]] = (
            {} if known is None else known
        )
        self._warm, self._failed = False, False

    def __call__(self, key: Hashable, work: Callable[[], T]) -> T:
        """Do the work of ``key`` -> its result, which the next replay overwrites."""
        if self._failed or not self._warm:
            self._warm = True
            return work()
        if key not in self._known:
            made: list[Tree] = []
            try:
                replay = self._record(lambda: made.append(work()))
            except FAILURES as error:
                self._failed = True
                self._known.clear()
                self._note(
                    f"warning: graphs: {self._what} are done operation by operation, since a "
                    f"capture failed: {said(error)}"
                )
                return work()
            self._known[key] = replay, made
        replay, made = self._known[key]
        replay()
        result: T = made[-1]
        return result


def compiled(pure: Callable[..., Tree], note: Note, what: str) -> Callable[..., Tree]:
    """``pure`` compiled by torch, for the sizes that it is called with; plain again, with one note,
    if that fails.

    The first call is done plainly: it checks its inputs, which is no part of what is compiled.
    """
    fast: Callable[..., Tree] | None = None
    plain = False

    def either(*args: object, **named: object) -> Tree:
        nonlocal fast, plain
        if plain:
            return pure(*args, **named)
        if fast is None:
            pure(*args, **named)
            fast = torch.compile(pure, dynamic=False, options=OPTIONS)
        try:
            return fast(*args, **named)
        except FAILURES as error:
            plain = True
            note(
                f"warning: compile: {what} are done operation by operation, since torch.compile "
                f"failed: {said(error)}"
            )
            return pure(*args, **named)

    return either


def said(error: Exception) -> str:
    """The kind of an error and its first line."""
    lines = [line for line in str(error).splitlines() if line.strip()] or ["no message"]
    return f"{type(error).__name__}: {lines[0]}"

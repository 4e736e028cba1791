"""The part of a runtime that is the same wherever its workers run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from equipoise.experience.queue.tokens import Channel
from equipoise.plans.blueprint import Blueprint
from equipoise.runtime import build, flow
from equipoise.runtime.cut import CutCoordinator
from equipoise.runtime.ipc import Heap, Segment
from equipoise.runtime.messages import Cut, CutBegun, Message, Note, Saved, Written
from equipoise.types import Tree, WeightStore
from equipoise.weights.device import Share
from equipoise.workers.kind import Kind, crew


class LocalRuntime:
    """A run over memory of this process: its cuts, and the messages for the driver."""

    def __init__(
        self,
        blue: Blueprint,
        kinds: Sequence[Kind],
        memory: Callable[[str, int], Heap | Segment],
        channel: Callable[[], Channel],
        share: Share | None = None,
        rows: Callable[[int], Tensor] | None = None,
    ) -> None:
        """``memory``, ``channel``, ``share``, ``rows``: as ``build.lay_out`` takes them."""
        self._blue, self._members = blue, crew(blue, kinds)
        self._out: list[Message] = []
        self._shared, self._board, self._memory = build.lay_out(
            blue, kinds, memory, channel, share=share, note=self._note, rows=rows
        )
        # True once learned to the end and saved; at the start, if the run was killed before its
        # last message.
        self.done = self._shared.version >= blue.updates
        self._cuts = CutCoordinator(
            self._board.cut, self._members, directory=Path(blue.directory), steps=blue.pace.steps
        )

    def _note(self, text: str) -> None:
        self._out.append(Note(text=text))

    def _take(self, title: str, message: Message) -> None:
        """Take in a worker's message."""
        if isinstance(message, CutBegun):
            self._cuts.begun(message.version)
        elif isinstance(message, Saved):
            self._cuts.saved(title, message)
        elif isinstance(message, Written):
            self._cuts.written(title, message)
        else:
            self._out.append(message)

    def _taken(self) -> list[Message]:
        """The messages for the driver since the last call."""
        out, self._out = self._out, []
        return out

    def hold(self, *, last: bool = False) -> None:
        """Ask for a cut after the next version. ``last``: no other follows."""
        self._cuts.hold()

    def examined(self, version: int) -> None:
        """The driver has the weights of this version, at which the learner holds still: the run
        goes on.
        """
        self._cuts.examined(version)

    def release(self, cut: Cut) -> None:
        """The driver is done with a cut: the run goes on."""
        if not cut.more:
            self.done = cut.version >= self._blue.updates
        self._cuts.release(cut)

    def memory_of(self, kind: str) -> Tree:
        """The memory that the workers of this kind share (``OwnsMemory``)."""
        return self._shared.own[kind].views

    @property
    def version(self) -> int:
        """The newest published version of the weights."""
        return self._shared.version

    def limit(self, actors: int, max_lag: int | None) -> None:
        """From now on ``actors`` actors act, and rows are at most ``max_lag`` versions old."""
        flow.limit(self._blue, self._shared, actors, max_lag)

    def weights(self, policy: str) -> WeightStore:
        """A handle that reads a policy's versions."""
        return self._shared.policies[policy].weights.handle()

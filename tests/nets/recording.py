"""A recorder of graphs, for tests without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class Recording:
    """Nothing is done when a graph is made; a replay is the work itself, on the same tensors."""

    def __init__(
        self,
        *,
        fails: bool = False,
        within: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """``within``: the context of a replay."""
        self.fails, self.made, self.replayed, self._within = fails, 0, 0, within

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        if self.fails:
            raise RuntimeError(
                "CUDA error: operation not permitted when stream is capturing\nand more"
            )
        self.made += 1

        def replay() -> None:
            self.replayed += 1
            with self._within():
                work()

        return replay

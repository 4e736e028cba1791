"""The experience of a policy that does not learn: its rows are discarded."""

from __future__ import annotations

import numpy as np

from equipoise import tree
from equipoise.experience.layout import RowSpec, trajectory_specs
from equipoise.types import Array, Slot, Trajectory


class Discard:
    """``Places`` of one actor's streams; each unroll overwrites the one before."""

    def __init__(self, row: RowSpec, unroll: int, streams: int) -> None:
        fields = tree.zeros(trajectory_specs(row, unroll, streams))
        self._slot = Slot(keys=np.zeros((streams, 2), np.int64), data=Trajectory(**fields))

    def reserve(self, streams: Array) -> Slot:
        return self._slot

    def commit(self, slot: Slot) -> None: ...

    def restart(self, slot: Slot) -> None: ...

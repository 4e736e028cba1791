"""Memory on a device for a rollout whose slots lie on the host: each unroll is copied once, when it
is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from equipoise import tree
from equipoise.experience.layout import RowSpec, trajectory_specs
from equipoise.types import Array, Places, Slot, Trajectory


class Staged:
    """``Places`` of one rollout, which writes one unroll at a time. Slots that lie on the device
    are passed through.
    """

    def __init__(
        self,
        places: Places,
        row: RowSpec,
        unroll: int,
        streams: int,
        device: torch.device,
        copies: Callable[[], object],
    ) -> None:
        """``copies`` is called once, if rows have to be copied."""
        self._places = places
        self._specs = trajectory_specs(row, unroll, streams)
        self._device = device
        self._copies = copies
        self._data: Trajectory | None = None  # on the device
        self._host: Slot | None = None  # of the unroll that is under way

    def reserve(self, streams: Array) -> Slot | None:
        slot = self._places.reserve(streams)
        if slot is None or isinstance(slot.data.reward, torch.Tensor):
            return slot
        if self._data is None:
            self._copies()
            memory = torch.zeros(tree.nbytes(self._specs), dtype=torch.uint8, device=self._device)
            self._data = Trajectory(**tree.tensor_views(self._specs, memory))
        self._host = slot
        return replace(slot, data=self._data)

    def commit(self, slot: Slot) -> None:
        host, self._host = self._host, None
        if host is None:
            self._places.commit(slot)
            return
        tree.put(host.data.fields(), slot.data.fields())
        self._places.commit(host)

    def restart(self, slot: Slot) -> None:
        self._places.restart(self._host or slot)

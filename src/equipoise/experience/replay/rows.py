"""Windows of a ring without their large leaves: an item's first priority is computed from them."""

from __future__ import annotations

import numpy as np
import torch

from equipoise import tree
from equipoise.experience.replay.row_buffer import RowBuffer
from equipoise.types import Array, Trajectory, Tree


def without_observations(ring: RowBuffer, places: Array) -> Trajectory:
    """Copy the windows that begin at ``places`` [N]: rows [window, N] without observations and
    recurrent state.
    """
    rows = (places + np.arange(ring.window)[:, None] * ring.streams) % ring.places

    def leaf(path: str) -> torch.Tensor:
        return torch.from_numpy(ring.leaf(path, rows))

    def part(name: str) -> Tree:
        paths = [
            path
            for path in (*ring.layout.small, *ring.layout.large)
            if path == name or path.startswith(f"{name}/")
        ]
        return tree.within(name, {path: leaf(path) for path in paths})

    stream = torch.from_numpy(ring.stream(places))
    return Trajectory(
        obs={},
        state={},
        context={"stream": stream, "start": leaf("row")[0]},
        action=part("action"),
        behaviour=part("behaviour"),
        **{name: leaf(name) for name in ("first", "reward", "mask", "bootstrap", "version")},
    )

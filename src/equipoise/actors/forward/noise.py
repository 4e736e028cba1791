"""Action noise by counter: a pure function of (seed, stream, row), so it does not depend on which
process acts or in which batch.

The mixer is SplitMix64's finaliser (Steele, Lea & Flood, "Fast splittable pseudorandom number
generators", 2014; constants of Stafford's variant 13), applied to a sum of odd multiples of the
coordinates and once more after the column is added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from equipoise.seeds import mix

if TYPE_CHECKING:
    from torch import Tensor

F32 = NDArray[np.float32]
_ODD = [np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0xABC98388FB8FAC03)]


@dataclass(frozen=True, slots=True)
class Noise:
    """The uniform numbers of a row: ``fresh`` ones of its own, and behind them ``held`` ones.

    The held ones are the same in the rows 0 to ``every`` - 1 of a stream, in the next ``every``
    rows, and so on: they are a pure function of (seed, stream, row // every).
    """

    fresh: int
    held: int = 0
    every: int = 1

    @property
    def columns(self) -> int:
        return self.fresh + self.held

    def draw(self, seed: int, stream: np.ndarray, start: np.ndarray, rows: int) -> F32:
        """Draw [rows, B, columns]; the arguments are as in ``uniform``."""
        fresh = uniform(seed, stream, start, rows, self.fresh)
        if not self.held:
            return fresh
        begin = start // self.every
        period = (np.arange(rows)[:, None] + start) // self.every - begin  # [rows, B]
        held = uniform(seed, stream, begin, int(period.max()) + 1, self.held, skip=self.fresh)
        return np.concatenate([fresh, held[period, np.arange(len(stream))]], axis=2)

    def draw_on(self, key: int, stream: Tensor, start: Tensor, rows: int) -> Tensor:
        """Draw the same bits on the device of ``stream``; ``key``: that of the seed
        (``device_envs.counter.key_of``).
        """
        import torch

        from equipoise.device_envs.counter import uniform as drawn

        row = start + torch.arange(rows, device=start.device)[:, None]  # [rows, B]
        fresh = drawn(key, stream, row, self.fresh)
        if not self.held:
            return fresh
        return torch.cat(
            [fresh, drawn(key, stream, row // self.every, self.held, skip=self.fresh)], 2
        )


def uniform(
    seed: int, stream: np.ndarray, start: np.ndarray, rows: int, columns: int, *, skip: int = 0
) -> F32:
    """Draw [rows, B, columns] float32 strictly inside (0, 1); ``stream``, ``start`` [B] int64, row
    t is ``start + t``.

    ``skip``: columns that other calls have drawn from these rows.
    """
    with np.errstate(over="ignore"):
        key = mix(np.array([seed], np.int64).view(np.uint64) + _ODD[0])
        row = np.arange(rows, dtype=np.uint64)[:, None] + start.astype(np.uint64)[None]
        x = mix(row * _ODD[0] + stream.astype(np.uint64)[None] * _ODD[1] + key)
        x = mix(x[:, :, None] + np.arange(skip + 1, skip + columns + 1, dtype=np.uint64) * _ODD[2])
    # 23 bits: with the half below both ends stay outside in float32
    top = (x >> np.uint64(41)).astype(np.float32)
    top += np.float32(0.5)
    top *= np.float32(2.0**-23)
    return top

"""The bound on the lag where streams are partial: rows that are older than ``max_lag`` do not
count.

A slot is reserved when its unroll starts, so its rows are no older than the queue's law says. With
partial streams (``actors/partial.py``) a window may begin with an action that was under way for
longer than that.
"""

from __future__ import annotations

import torch

from equipoise.types import Trajectory


def mask_stale(data: Trajectory, version: int, max_lag: int) -> torch.Tensor:
    """Mask the rows older than ``max_lag`` at this ``version`` -> [B] int64, the oldest version of
    a row of each window that counts; ``version`` where none does.
    """
    data.mask.logical_and_(data.version >= version - max_lag)
    return torch.where(data.mask, data.version, version).amin(0)

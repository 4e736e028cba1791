"""The bound on the lag with partial streams: rows older than ``max_lag`` do not count.

A slot is reserved when its unroll starts, so the queue bounds the age of its rows. With partial
streams (``actors/partial.py``) a window may begin with an action that took longer than that.
"""

from __future__ import annotations

import torch

from equipoise.types import Trajectory


def mask_stale(data: Trajectory, version: int, max_lag: int) -> torch.Tensor:
    """Mask rows older than ``max_lag`` -> [B] int64, each window's oldest version that counts, or
    ``version`` if no row does.
    """
    data.mask.logical_and_(data.version >= version - max_lag)
    return torch.where(data.mask, data.version, version).amin(0)

"""IMPALA with a planted cost: its loss sleeps 50 ms for each 256 rows of a learner's share of a
batch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from equipoise.algorithms.impala import IMPALA
from equipoise.types import LossOutput

SECONDS, ROWS = 0.05, 256


@dataclass(frozen=True, kw_only=True)
class Sleepy(IMPALA):
    def loss(self, *args: Any, **kwargs: Any) -> LossOutput | None:
        batch = args[2]
        time.sleep(SECONDS * batch.data.mask.numel() / ROWS)
        return super().loss(*args, **kwargs)

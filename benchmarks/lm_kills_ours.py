"""Equipoise under ``lm_kills.py``: GRPO that writes down which prompts went into which update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lm_kills_task

from equipoise.algorithms.grpo import GRPO
from equipoise.types import Batch, LossOutput, Pool

# the version of the weights that the update of this process begins with
_BEGUN = {"version": -1}


@dataclass(frozen=True, kw_only=True)
class Logged(GRPO):
    """GRPO with a line in the log for each update."""

    def loss(self, net: Any, target_net: Any, batch: Batch, **given: Any) -> LossOutput | None:
        _BEGUN["version"] = max(_BEGUN["version"], batch.version)  # -1 after a batch's first step
        return super().loss(net, target_net, batch, **given)

    def absorb(self, net: Any, data: Any, *, pool: Pool) -> None:
        """Log the numbers of the prompts after the update. A group that is lost is masked."""
        super().absorb(net, data, pool=pool)
        numbers = data.context["task"][data.mask[0]]
        lm_kills_task.log("trained", update=_BEGUN["version"], numbers=numbers.tolist())

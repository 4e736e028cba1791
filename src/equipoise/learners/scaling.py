"""The scale of a float16 loss, so that small gradients do not vanish (Micikevicius et al. 2018,
arXiv:1710.03740, section 3.2).

The scale is halved if a gradient overflows, whose step is skipped, and doubled after 2,000 steps
without one, as in ``torch.amp.GradScaler``. It lies in tensors on the device: nothing waits to know
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from equipoise.types import Precision

# the scale at the start and at least, and the good steps until it is doubled
FIRST, LEAST, EVERY = 65536.0, 1.0, 2000


class Scaling(Protocol):
    """The treatment of a loss before backward, and of the gradient after it."""

    slots: Mapping[str, Tensor]  # its state, a part of the learner's

    def up(self, loss: Tensor) -> Tensor: ...
    # scale back, in place -> [] bool: skip the step?
    def down(self, gradient: Sequence[Tensor]) -> Tensor | None: ...
    # name -> (sum, count)
    def metrics(self, skipped: Tensor | None) -> dict[str, tuple[Tensor, Tensor]]: ...


class Unscaled:
    """Every other precision has float32's range."""

    slots: Mapping[str, Tensor] = {}

    def up(self, loss: Tensor) -> Tensor:
        return loss

    def down(self, gradient: Sequence[Tensor]) -> Tensor | None:
        return None

    def metrics(self, skipped: Tensor | None) -> dict[str, tuple[Tensor, Tensor]]:
        return {}


class Scaled:
    """One scale for all groups. Learners share the sum of gradients, so their scales agree."""

    def __init__(self, device: torch.device) -> None:
        self.slots: Mapping[str, Tensor] = {
            "scale": torch.tensor(FIRST, device=device),
            # steps since the scale changed
            "good": torch.zeros((), dtype=torch.int64, device=device),
            "skipped": torch.zeros((), dtype=torch.int64, device=device),  # steps, of all
        }

    def up(self, loss: Tensor) -> Tensor:
        return loss * self.slots["scale"]

    @torch.no_grad()
    def down(self, gradient: Sequence[Tensor]) -> Tensor | None:
        """At the least scale, a value that is not finite is an error, and is not skipped as an
        overflow.
        """
        scale, good = self.slots["scale"], self.slots["good"]
        norms = [torch.linalg.vector_norm(part.div_(scale)) for part in gradient]
        over: Tensor = ~torch.stack(norms).isfinite().all() & (scale > LEAST)
        good.add_(1).masked_fill_(over, 0)
        grown = good >= EVERY
        good.masked_fill_(grown, 0)
        scale.mul_(torch.where(over, 0.5, torch.where(grown, 2.0, 1.0))).clamp_(min=LEAST)
        self.slots["skipped"].add_(over)
        return over

    def metrics(self, skipped: Tensor | None) -> dict[str, tuple[Tensor, Tensor]]:
        if skipped is None:
            return {}
        one = torch.ones_like(self.slots["scale"])
        return {
            "fp16/skipped": (skipped.float(), one),
            "fp16/scale": (self.slots["scale"].clone(), one),
        }


def scaling(precision: Precision, device: torch.device) -> Scaling:
    return Scaled(device) if precision == "fp16" else Unscaled()

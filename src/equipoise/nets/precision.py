"""In which numbers a network computes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from equipoise.types import Precision


def autocast(precision: Precision, device: str | torch.device = "cpu") -> AbstractContextManager[Any]:
    """A context, entered as often as one likes, in which convolutions and products of matrices compute as told.

    Weights, gradients and the optimiser's memory stay float32 whatever it is.
    """
    return nullcontext() if precision == "fp32" else torch.autocast(torch.device(device).type, torch.bfloat16)


def exact(device: torch.device) -> AbstractContextManager[Any]:
    """Without autocast, where there is any."""
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else PLAIN


PLAIN = nullcontext()

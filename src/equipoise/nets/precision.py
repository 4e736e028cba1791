"""The numbers in which a network computes.

========  ==========================================================================================================
fp32      float32
medium    tensors are float32; a processor that can may round what a product of matrices multiplies, and sums in float32
          (``torch.set_float32_matmul_precision``: bfloat16 on CPUs with AMX, TF32 on NVIDIA GPUs, else nothing changes)
bf16      convolutions, products of matrices and what lies between them are bfloat16 (``torch.autocast``)
========  ==========================================================================================================

Weights, gradients and the optimiser's memory are always float32.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from equipoise.types import Precision


class Products:
    """A context that sets how exact products of float32 matrices are: "highest" or "medium". It may be nested."""

    def __init__(self, exactness: str) -> None:
        self._exactness = exactness
        self._before: list[str] = []

    def __enter__(self) -> None:
        self._before.append(torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision(self._exactness)

    def __exit__(self, *_: object) -> None:
        torch.set_float32_matmul_precision(self._before.pop())


PLAIN = nullcontext()


def autocast(precision: Precision, device: str | torch.device = "cpu") -> AbstractContextManager[Any]:
    """A reusable context in which a network computes in this precision."""
    if precision == "bf16":
        return torch.autocast(torch.device(device).type, torch.bfloat16)
    return PLAIN if precision == "fp32" else Products("medium")


def backward(precision: Precision) -> AbstractContextManager[Any]:
    """The context for the backward pass of such a computation; autocast itself needs none."""
    return Products("medium") if precision == "medium" else PLAIN


def exact(device: torch.device) -> AbstractContextManager[Any]:
    """Leave such a context for a while: compute as if it were not there."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return PLAIN if torch.get_float32_matmul_precision() == "highest" else Products("highest")

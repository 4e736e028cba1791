"""Operators that ONNX has no word for, said in those it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Giles 2010, "Approximating the erfinv function", single precision: polynomials in w = -log(1 - x^2), highest power first.
CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164, 0.246640727,
    1.50140941,
)  # fmt: skip
TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406,
    2.83297682,
)  # fmt: skip


def erfinv(x: Tensor) -> Tensor:
    """The inverse of the error function, float32: within 4e-7 of it, relatively."""
    w = -((1.0 - x) * (1.0 + x)).log()
    near, far = _polynomial(CENTRE, w - 2.5), _polynomial(TAIL, w.clamp(min=5.0).sqrt() - 3.0)
    return torch.where(w < 5.0, near, far) * x


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    total = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


TABLE: dict[Any, Callable[..., Tensor]] = {torch.ops.aten.erfinv.default: erfinv}

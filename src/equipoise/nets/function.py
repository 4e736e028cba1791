"""``Context``: the object that torch passes to the forward and the backward of an autograd
function.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor


class Context(Protocol):
    """Tensors kept from the forward for the backward, and attributes of the function's own."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...
    def mark_dirty(self, *tensors: Tensor) -> None: ...
    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: object) -> None: ...

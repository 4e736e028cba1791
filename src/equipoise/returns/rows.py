"""The parts that all returns share: results, checks, precision and the meaning of the mask."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Returns:
    """A regression target and an advantage for every row; no gradient flows out of either.

    On a row that is not real (``mask`` False) the target is the given estimate and the advantage is
    0.
    """

    target: Float[Tensor, "*rows"]  # [T, B]; [N] of tokens
    advantage: Float[Tensor, "*rows"]


def check(*, mask: Tensor | None, value: Tensor | None = None, **rows: Tensor) -> None:
    """ValueError unless all ``rows`` and the bool ``mask`` are one [T, B] with T >= 1, and
    ``value`` is [T+1, B].

    By hand, since a shape that is merely broadcastable gives wrong returns in silence, and shapes
    as annotations are executed in the test run only.
    """
    first, reference = next(iter(rows.items()))
    if reference.ndim != 2 or reference.shape[0] < 1:
        raise ValueError(f"{first}: expected [T, B] with T >= 1, got {list(reference.shape)}")
    T, B = reference.shape
    for name, row in rows.items():
        if row.shape != reference.shape:
            raise ValueError(
                f"{name}: expected [T, B] = {[T, B]} like {first}, got {list(row.shape)}"
            )
    if value is not None and value.shape != (T + 1, B):
        raise ValueError(f"value: expected [T+1, B] = {[T + 1, B]}, got {list(value.shape)}")
    if mask is not None and (mask.shape != reference.shape or mask.dtype != torch.bool):
        raise ValueError(
            f"mask: expected bool [T, B] = {[T, B]}, got {mask.dtype} {list(mask.shape)}"
        )


def floats(*tensors: Tensor) -> list[Tensor]:
    """The tensors in their common dtype, which is at least float32.

    Sums over an unroll lose what half precision cannot hold; float64 stays, so that a test can ask
    for all digits.
    """
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return [tensor.to(dtype) for tensor in tensors]


def real(rows: Tensor, mask: Tensor | None) -> Tensor:
    """``rows``, and 0 where ``mask`` is False. A product would let inf and NaN through."""
    return rows if mask is None else torch.where(mask, rows, 0.0)

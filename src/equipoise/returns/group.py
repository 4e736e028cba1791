"""Groups of samples: the rank of a value within its group. Everything is [M]; groups need not be of
one size.

A value of nan belongs to a sample without a reward. It is left out of its group's statistics, and
gets the other samples' statistics.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


@torch.no_grad()
def group_mean(*, value: Float[Tensor, " M"], group: Int[Tensor, " M"]) -> Float[Tensor, " M"]:
    """The mean of each one's group. ``group`` 0..G-1. Raises ValueError on a wrong shape."""
    check(value, group)
    wide, n = known(value, group)
    return (total(wide, group) / n.clamp(min=1)).to(value.dtype)


@torch.no_grad()
def group_std(*, value: Float[Tensor, " M"], group: Int[Tensor, " M"]) -> Float[Tensor, " M"]:
    """The deviation of each one's group; 0 in a group of one. Raises ValueError on a wrong shape.

        sqrt(sum_i (value_i - mean)^2 / (n - 1))

    In two passes and float64: equal values have a deviation of at most 1e-9, and ``group_range``
    shows when they are equal.
    """
    check(value, group)
    wide, n = known(value, group)
    centred = torch.where(value.isnan(), 0.0, wide - total(wide, group) / n.clamp(min=1))
    return (total(centred.square(), group) / (n - 1).clamp(min=1)).sqrt().to(value.dtype)


@torch.no_grad()
def leave_one_out(*, value: Float[Tensor, " M"], group: Int[Tensor, " M"]) -> Float[Tensor, " M"]:
    """The mean of the others of each one's group (Kool et al. 2019, Buy 4 REINFORCE samples); 0 in
    a group of one.

    Raises ValueError on a wrong shape.
    """
    check(value, group)
    wide, n = known(value, group)
    return ((total(wide, group) - wide * (n > 1)) / (n - 1).clamp(min=1) * (n > 1)).to(value.dtype)


@torch.no_grad()
def group_range(*, value: Float[Tensor, " M"], group: Int[Tensor, " M"]) -> Float[Tensor, " M"]:
    """The range of each group, 0 if all are equal. Raises ValueError on a wrong shape."""
    check(value, group)
    empty, none = torch.zeros_like(value), torch.inf
    most = empty.scatter_reduce(0, group, value.nan_to_num(nan=-none), "amax", include_self=False)
    least = empty.scatter_reduce(0, group, value.nan_to_num(nan=none), "amin", include_self=False)
    return (most - least).clamp(min=0.0)[group]  # of a group without a value: 0


def total(value: Tensor, group: Tensor) -> Tensor:
    """[M], the sum of each one's group; there are at most M groups."""
    return torch.zeros_like(value).index_add(0, group, value)[group]


def known(value: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """[M] float64 each: values with 0 for nan, and the number of others in the group."""
    wide = value.double()
    return wide.nan_to_num(), total((~value.isnan()).double(), group)


def check(value: Tensor, group: Tensor) -> None:
    if value.ndim != 1 or value.shape != group.shape:
        raise ValueError(
            f"expected value and group of one shape [M], got {list(value.shape)} and "
            f"{list(group.shape)}"
        )

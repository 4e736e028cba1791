"""Groups of samples, against loops over each group."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from equipoise.returns import group_mean, group_range, group_std, leave_one_out

SIZES = (3, 1, 8, 2, 5)
GROUP = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))

SLOW: dict[str, tuple[Callable[..., Tensor], Callable[[list[float], int], float]]] = {
    "mean": (group_mean, lambda values, i: statistics.mean(values)),
    "std": (group_std, lambda values, i: statistics.stdev(values) if len(values) > 1 else 0.0),
    "range": (group_range, lambda values, i: max(values) - min(values)),
    "others": (
        leave_one_out,
        lambda values, i: statistics.mean(values[:i] + values[i + 1 :]) if len(values) > 1 else 0.0,
    ),
}


def values(seed: int) -> Tensor:
    return torch.randn(len(GROUP), generator=torch.Generator().manual_seed(seed)) * 3 + 1


def slow(one: Callable[[list[float], int], float], value: Tensor, group: Tensor) -> Tensor:
    out = list[float]()
    for i, mine in enumerate(group.tolist()):
        among = [j for j, other in enumerate(group.tolist()) if other == mine]
        out.append(one([float(value[j].double()) for j in among], among.index(i)))
    return torch.tensor(out)


@pytest.mark.parametrize("name", SLOW)
def test_it_is_what_a_loop_says(name: str) -> None:
    fast, one = SLOW[name]
    value = values(1)
    torch.testing.assert_close(fast(value=value, group=GROUP), slow(one, value, GROUP))
    order = torch.randperm(len(GROUP), generator=torch.Generator().manual_seed(2))
    mixed = fast(value=value.double()[order], group=GROUP[order])
    torch.testing.assert_close(
        mixed, fast(value=value.double(), group=GROUP)[order], rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("name", SLOW)
def test_what_comes_in_stays_and_what_goes_out_has_its_type(name: str) -> None:
    fast, _ = SLOW[name]
    for dtype in (torch.float32, torch.float64):
        value = values(3).to(dtype).requires_grad_()
        before = value.detach().clone()
        out = fast(value=value, group=GROUP)
        assert out.dtype == dtype and not out.requires_grad and torch.equal(value, before)


def test_equal_values_have_no_range_at_all() -> None:
    value = torch.tensor([0.1] * 7 + [0.1, 0.2])
    group = torch.tensor([0] * 7 + [1] * 2)
    spread = group_range(value=value, group=group)
    assert spread[:7].tolist() == [0.0] * 7 and (spread[7:] > 0.09).all()
    assert (group_std(value=value, group=group)[:7] < 1e-8).all()


def test_large_values_lose_no_deviation() -> None:
    value = torch.tensor([1e6, 1e6 + 1, 1e6 + 2])
    torch.testing.assert_close(
        group_std(value=value, group=torch.zeros(3, dtype=torch.int64)), torch.ones(3)
    )


@pytest.mark.parametrize("name", SLOW)
def test_a_wrong_shape_is_said(name: str) -> None:
    fast = SLOW[name][0]
    while hasattr(fast, "__wrapped__"):  # below the test run's own shape checks
        fast = fast.__wrapped__
    with pytest.raises(ValueError, match=r"one shape \[M\], got \[19\] and \[18\]"):
        fast(value=values(1), group=GROUP[:-1])

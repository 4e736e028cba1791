"""The discounted return so far, against a loop over each stream's rows."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise.returns import running_returns
from tests.returns.cases import case


def naive(reward: Any, first: Any, mask: Any, gamma: float) -> Any:
    """As VecNormalize does it: a number a stream, emptied where an episode begins."""
    out = np.zeros(reward.shape)
    for b in range(reward.shape[1]):
        so_far = 0.0
        for t in range(reward.shape[0]):
            if first[t, b]:
                so_far = 0.0
            if mask[t, b]:
                so_far = so_far * gamma + reward[t, b]
            out[t, b] = so_far
    return out


def window(seed: int) -> tuple[Tensor, Tensor, Tensor, float]:
    """reward, first [T+1, B], mask: the row after a seam begins an episode, and so do some others
    (SAME_STEP).

    After some rows that are not real it goes on (a hold).
    """
    made = case(seed)
    rng = np.random.default_rng(seed)
    begins = torch.from_numpy(rng.random((len(made.mask) + 1, made.mask.shape[1])) < 0.1)
    begins[1:] |= ~made.mask & torch.from_numpy(rng.random(made.mask.shape) < 0.7)
    return made.reward, begins, made.mask, made.gamma


@pytest.mark.parametrize("seed", range(100))
def test_it_is_the_loop_in_one_window_and_in_several(seed: int) -> None:
    reward, first, mask, gamma = window(seed)
    want = torch.from_numpy(naive(reward.numpy(), first.numpy(), mask.numpy(), gamma))
    rubbish = torch.where(mask, reward, float("nan"))
    got = running_returns(reward=rubbish, first=first[:-1], gamma=gamma, mask=mask)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    before = None
    parts = []
    for rows in torch.arange(len(mask)).tensor_split(3):
        if len(rows):
            part = running_returns(
                reward=rubbish[rows], first=first[rows], gamma=gamma, before=before, mask=mask[rows]
            )
            before = part[-1]
            parts.append(part)
    torch.testing.assert_close(torch.cat(parts), want, rtol=1e-12, atol=1e-12)


def test_inputs_stay_and_precision_is_at_least_single() -> None:
    reward = torch.rand(9, 3).half()
    first, kept = torch.zeros(9, 3, dtype=torch.bool), reward.clone()
    assert running_returns(reward=reward, first=first, gamma=0.9).dtype == torch.float32
    assert torch.equal(reward, kept)


def test_wrong_shapes_say_what_was_expected() -> None:
    call: Any = running_returns
    while hasattr(call, "__wrapped__"):  # below the test run's own checks
        call = call.__wrapped__
    reward, first = torch.zeros(4, 3), torch.zeros(5, 3, dtype=torch.bool)
    with pytest.raises(
        ValueError, match=r"first: expected \[T, B\] = \[4, 3\] like reward, got \[5, 3\]"
    ):
        call(reward=reward, first=first, gamma=0.9)
    with pytest.raises(ValueError, match=r"before: expected \[B\] = \[3\], got \[1\]"):
        call(reward=reward, first=first[:-1], gamma=0.9, before=torch.zeros(1))

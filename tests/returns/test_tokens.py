"""Returns of chosen tokens: each sample alone, without a tool's tokens, must give the same."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from equipoise.returns import at_last, ends, gae, token_gae
from tests.algorithms.text import packed


@dataclass
class Case:
    reward: Tensor
    value: Tensor
    sample: Tensor
    chosen: Tensor


def case(seed: int, *, tools: bool = True) -> Case:
    data = packed([3, 1, 4], seed=seed, tools=tools)
    rng = torch.Generator().manual_seed(seed)
    n = len(data.token)
    reward, value = (torch.randn(n, generator=rng, dtype=torch.float64) for _ in range(2))
    return Case(reward, value, data.sample, data.chosen)


def samples(c: Case) -> list[list[int]]:
    """The places of each sample's chosen tokens."""
    return [
        ((c.sample == m) & c.chosen).nonzero().squeeze(1).tolist()
        for m in range(int(c.sample.max()) + 1)
    ]


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_each_sample_is_an_episode_of_its_chosen_tokens(seed: int, tools: bool) -> None:
    c = case(seed, tools=tools)
    got = token_gae(
        reward=c.reward, value=c.value, gamma=0.9, lambda_=0.7, sample=c.sample, chosen=c.chosen
    )
    target, advantage = torch.zeros_like(c.value), torch.zeros_like(c.value)
    for places in samples(c):
        discount = torch.full((len(places), 1), 0.9, dtype=torch.float64)
        discount[-1] = 0.0
        seen = torch.cat([c.value[places], c.value.new_zeros(1)])[:, None]
        alone = gae(reward=c.reward[places][:, None], discount=discount, value=seen, lambda_=0.7)
        target[places], advantage[places] = alone.target[:, 0], alone.advantage[:, 0]
    torch.testing.assert_close(got.target, target, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got.advantage, advantage, rtol=1e-12, atol=1e-12)


def test_a_mask_for_seams_would_end_a_sample_at_a_tool() -> None:
    """Why tokens are compacted: the row before a tool's words must see the reward behind them."""
    reward = torch.tensor([0.0, 0.0, 0.0, 1.0])
    chosen, sample = torch.tensor([True, False, False, True]), torch.zeros(4, dtype=torch.int64)
    zeros = torch.zeros(5)
    seam = gae(
        reward=reward[:, None],
        discount=torch.ones(4, 1),
        value=zeros[:, None],
        lambda_=1.0,
        mask=chosen[:, None],
    )
    assert seam.advantage[0] == 0
    got = token_gae(
        reward=reward, value=zeros[:4], gamma=1.0, lambda_=1.0, sample=sample, chosen=chosen
    )
    assert got.advantage.tolist() == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("seed", range(3))
def test_ends_are_of_chosen_tokens(seed: int) -> None:
    c = case(seed)
    first, last = ends(sample=c.sample, chosen=c.chosen)
    assert first.nonzero().squeeze(1).tolist() == [places[0] for places in samples(c)]
    assert last.nonzero().squeeze(1).tolist() == [places[-1] for places in samples(c)]
    value = torch.arange(1.0, 9.0)
    paid = at_last(value=value, sample=c.sample, chosen=c.chosen)
    assert paid[last].tolist() == value.tolist() and not paid[~last].any()


def test_without_a_chosen_token_there_is_nothing() -> None:
    c = case(0)
    none = torch.zeros_like(c.chosen)
    first, last = ends(sample=c.sample, chosen=none)
    got = token_gae(
        reward=c.reward, value=c.value, gamma=1.0, lambda_=1.0, sample=c.sample, chosen=none
    )
    assert not (first.any() or last.any() or got.target.any() or got.advantage.any())


def test_no_gradient_flows_out() -> None:
    c = case(1)
    got = token_gae(
        reward=c.reward,
        value=c.value.requires_grad_(),
        gamma=1.0,
        lambda_=1.0,
        sample=c.sample,
        chosen=c.chosen,
    )
    assert not (got.target.requires_grad or got.advantage.requires_grad)


def test_a_wrong_shape_is_said() -> None:
    c, plain = case(0), token_gae
    while hasattr(plain, "__wrapped__"):  # below the test run's own shape checks
        plain = plain.__wrapped__
    with pytest.raises(ValueError, match=r"value: expected \[N\]"):
        plain(
            reward=c.reward,
            value=c.value[1:],
            gamma=1.0,
            lambda_=1.0,
            sample=c.sample,
            chosen=c.chosen,
        )
    with pytest.raises(ValueError, match=r"chosen: expected bool, got torch.int64"):
        plain(
            reward=c.reward,
            value=c.value,
            gamma=1.0,
            lambda_=1.0,
            sample=c.sample,
            chosen=c.chosen.long(),
        )

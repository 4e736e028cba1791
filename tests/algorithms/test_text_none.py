"""Samples that no reward graded, and completions that the limit cut, against TRL's formulas in
numpy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.algorithms.grpo import GRPO
from equipoise.algorithms.reinforce_pp import ReinforcePP
from equipoise.algorithms.rloo import RLOO
from equipoise.algorithms.sft import SFT
from equipoise.algorithms.token_ppo import TokenPPO
from equipoise.returns import group_mean, group_range, group_std, leave_one_out
from equipoise.types import Stop
from tests.algorithms import text

# samples without a reward: one of the first group, all of the second, one of the third
NONE = (1, 4, 5, 6, 7, 10)
GROUPS = (4, 4, 4)


def data_of(seed: int, none: tuple[int, ...] = NONE) -> Any:
    data = text.packed(GROUPS, seed=seed, longest=5)
    reward = data.reward.clone()
    for m in none:
        reward[(data.sample == m).nonzero()[-1]] = torch.nan
    return replace(data, reward=reward)


def rewards(data: Any) -> Any:
    return np.array([data.reward[data.sample == m].sum().item() for m in range(len(data.prompt))])


def of_samples(data: Any, x: torch.Tensor) -> Any:
    """The one value of each sample's tokens."""
    found = []
    for m in range(len(data.prompt)):
        values = x[(data.sample == m) & data.chosen]
        assert (values == values[0]).all()
        found.append(values[0].item())
    return np.array(found)


def trl(reward: Any, scale: str, *, leave_out: bool = False) -> Any:
    """Advantages as TRL has them: means and deviations of what is not nan, 0 for what is."""
    out = np.zeros_like(reward)
    of_all = np.nanstd(reward, ddof=1)
    for g in range(len(GROUPS)):
        part = reward[4 * g : 4 * g + 4]
        there = part[~np.isnan(part)]
        for i, r in enumerate(part):
            if np.isnan(r):
                continue
            if leave_out:
                baseline = (there.sum() - r) / (len(there) - 1) if len(there) > 1 else 0.0
                out[4 * g + i] = r - baseline
                continue
            std = there.std(ddof=1) if len(there) > 1 else 0.0
            by = {"group": std + 1e-4, "batch": of_all + 1e-4, "none": 1.0}[scale]
            out[4 * g + i] = (r - there.mean()) / by
    return out


@pytest.mark.parametrize("seed", [1, 2])
def test_a_sample_that_no_reward_graded_is_in_no_baseline(seed: int) -> None:
    data, net = data_of(seed), text.Table(seed=3)
    reward = rewards(data)
    assert np.isnan(reward).sum() == len(NONE)
    for scale in ("group", "batch", "none"):
        made = text.targets(GRPO(scale_rewards=scale), net, None, data)
        np.testing.assert_allclose(
            of_samples(data, made["advantage"]), trl(reward, scale), rtol=1e-6, atol=1e-9
        )
    made = text.targets(RLOO(), net, None, data)
    np.testing.assert_allclose(
        of_samples(data, made["advantage"]), trl(reward, "", leave_out=True), rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize(
    "algorithm",
    [
        GRPO(),
        GRPO(equal_groups="skip", loss_type="grpo"),
        RLOO(),
        ReinforcePP(),
        ReinforcePP(baseline="none"),
        TokenPPO(),
    ],
)
def test_nothing_is_nan_and_others_are_learned_from(algorithm: Any) -> None:
    data = data_of(3)
    net = text.for_(algorithm, text.Table(seed=3))
    made = text.targets(algorithm, net, None, data)
    out = text.loss(algorithm, net, data, made)
    out.loss.backward()
    assert all(torch.isfinite(x).all() for x in made.values() if x.is_floating_point()), made
    assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)
    graded = [m for m in range(12) if m not in NONE]
    assert out.metrics["reward"][0] / out.metrics["reward"][1] == pytest.approx(
        rewards(data)[graded].mean()
    )
    assert out.metrics["frac_reward_none"][0] == len(NONE)
    none = torch.isin(data.sample, torch.tensor(NONE))
    assert (made["advantage"][none] == 0).all() and (
        made["advantage"][data.chosen & ~none] != 0
    ).any()
    if isinstance(algorithm, TokenPPO):
        # the critic learns nothing from it
        assert torch.equal(made["target"][none], made["value"][none])


def test_a_step_of_none_alone_moves_nothing() -> None:
    data = data_of(4, tuple(range(12)))
    for algorithm in (GRPO(), RLOO(), ReinforcePP(), SFT()):
        net = text.Table(seed=3)
        made = {} if isinstance(algorithm, SFT) else text.targets(algorithm, net, None, data)
        out = text.loss(algorithm, net, data, made)
        out.loss.backward()
        assert torch.isfinite(out.loss) and (
            isinstance(algorithm, SFT) or not torch.as_tensor(net.head.grad).any()
        )


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo"])
def test_a_masked_completion_counts_in_the_mean_and_is_not_learned_from(loss_type: Any) -> None:
    data, net = text.packed(GROUPS, seed=5, longest=4), text.Table(seed=3)
    cut = (data.stop == Stop.LENGTH).tolist()
    assert any(cut) and not all(cut)
    whole, masked = (
        GRPO(loss_type=loss_type, max_completion=9, mask_truncated_completions=mask, epsilon=0.0)
        for mask in (False, True)
    )
    made = text.targets(masked, net, None, data)
    np.testing.assert_allclose(made["advantage"], text.targets(whole, net, None, data)["advantage"])
    out = text.loss(masked, net, data, made)
    # In numpy, on padded arrays: the mask of a cut sample is 0, the divisor is of all tokens or
    # samples.
    logp = torch.log_softmax(net.head.T, -1).detach().numpy()  # [seen, next]
    terms, before = np.zeros(12), [int(t) for t in data.token]
    lengths = [int(((data.sample == m) & data.chosen).sum()) for m in range(12)]
    advantage = of_samples(data, made["advantage"])
    starts = dict(text.prompts(data))
    for m in range(12):
        places = (data.sample == m).nonzero().squeeze(1).tolist()
        seen = [before[starts[int(data.group[m])][-1]], *(before[n] for n in places[:-1])]
        ratio = [
            np.exp(logp[a, before[n]] - data.logp[n].item())
            for a, n in zip(seen, places, strict=True)
        ]
        terms[m] = (
            0.0
            if cut[m]
            else -sum(ratio) * advantage[m] / (lengths[m] if loss_type == "grpo" else 1)
        )
    divisor = {"dapo": sum(lengths), "grpo": 12, "dr_grpo": 12 * 9}[loss_type]
    assert (out.loss / out.count).item() == pytest.approx(terms.sum() / divisor, rel=1e-6)


def test_groups_leave_nan_out() -> None:
    nan, group = torch.nan, torch.tensor([0, 0, 0, 1, 1, 2])
    value = torch.tensor([1.0, nan, 3.0, nan, nan, 5.0])
    assert group_mean(value=value, group=group).tolist() == [2.0, 2.0, 2.0, 0.0, 0.0, 5.0]
    assert group_std(value=value, group=group).tolist() == pytest.approx([2**0.5] * 3 + [0.0] * 3)
    assert group_range(value=value, group=group).tolist() == [2.0, 2.0, 2.0, 0.0, 0.0, 0.0]
    assert leave_one_out(value=value, group=group).tolist()[::2] == [3.0, 1.0, 0.0]

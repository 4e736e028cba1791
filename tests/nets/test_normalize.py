"""Running statistics against numpy over all that was absorbed; what they leave alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise.learners.pool import ALONE
from equipoise.nets import ActorCritic, RunningNorm
from equipoise.nets.torso import encode, measured
from equipoise.types import EnvSpec

F = 4
MEAN, STD = torch.tensor([0.0, 1e5, -3.0, 1e-3]), torch.tensor([1.0, 2.0, 1e4, 1e-4])


def batches(seed: int, n: int = 12) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of every size and share of real rows, some without any; drifting; what is not real is no
    number.
    """
    draw = torch.Generator().manual_seed(seed)
    made = []
    for i in range(n):
        shape = [(1, 1), (7, 3), (64, 16)][i % 3]
        rows = torch.randn(*shape, F, generator=draw) * STD + MEAN * (1 + i / n)
        mask = torch.rand(*shape, generator=draw) < (0.0, 1.0, 0.6, 0.9)[i % 4]
        made.append(
            (torch.where(mask[..., None], rows, (float("nan"), float("inf"), 1e30)[i % 3]), mask)
        )
    return made


@pytest.mark.parametrize("seed", range(5))
def test_merged_batches_are_the_statistics_of_all_rows(seed: int) -> None:
    norm, seen = RunningNorm(F, clip=5.0), np.empty((0, F))
    for rows, mask in batches(seed):
        norm.absorb(rows, mask, ALONE)
        seen = np.concatenate([seen, rows[mask].double().numpy()])
        assert norm.count.item() == len(seen)
        if not len(seen):
            continue
        np.testing.assert_allclose(norm.mean.numpy(), seen.mean(0), rtol=1e-12)
        np.testing.assert_allclose(norm.m2.numpy() / len(seen), seen.var(0), rtol=1e-9, atol=1e-20)
        want = np.clip((seen - seen.mean(0)) / np.sqrt(seen.var(0) + 1e-8), -5, 5)
        got = norm(torch.from_numpy(seen).float())
        assert got.dtype == torch.float32
        # 1e5 +- 2 in float32 is good to 4e-3
        np.testing.assert_allclose(got.numpy(), want, atol=1e-2, rtol=1e-3)
        scaled = np.clip(seen / np.sqrt(seen.var(0) + 1e-8), -5, 5)
        np.testing.assert_allclose(
            norm.scale(torch.from_numpy(seen).float()).numpy(), scaled, rtol=1e-5
        )


def test_before_the_first_row_and_after_nothing_real_it_only_clips() -> None:
    norm, x = RunningNorm(F), torch.tensor([0.5, -3.0, 50.0, -1e9])
    want = torch.tensor([0.5, -3.0, 10.0, -10.0])
    assert torch.equal(norm(x), want) and torch.equal(norm.scale(x), want)
    norm.absorb(torch.full((3, 2, F), float("nan")), torch.zeros(3, 2, dtype=torch.bool), ALONE)
    # float64 beyond float32, say
    norm.absorb(torch.full((3, 2, F), float("inf")), torch.ones(3, 2, dtype=torch.bool), ALONE)
    assert norm.count == 0 and torch.equal(norm(x), want)


def test_a_feature_that_never_changes_becomes_zero() -> None:
    norm, x = RunningNorm(2), torch.tensor([0.1, 7.0]).expand(1000, 2)
    norm.absorb(x, torch.ones(1000, dtype=torch.bool), ALONE)
    assert norm(x).abs().max() < 1e-3


def test_using_it_changes_nothing() -> None:
    norm, x = RunningNorm(F), torch.randn(5, F)
    norm.absorb(x, torch.ones(5, dtype=torch.bool), ALONE)
    before = {name: b.clone() for name, b in norm.named_buffers()}
    kept = x.clone()
    norm(x), norm.scale(x)
    assert all(torch.equal(before[name], b) for name, b in norm.named_buffers()) and torch.equal(
        x, kept
    )
    assert not list(norm.parameters())


def test_one_hots_stay_as_they_are() -> None:
    space = spaces.Dict(
        {
            "b": spaces.Box(-9, 9, (2,)),
            "a": spaces.Discrete(3),
            "c": spaces.Box(0, 255, (1, 1), np.uint8),
        }
    )
    assert measured(space) == [False] * 3 + [True] * 3
    assert (
        measured(spaces.Tuple([space["b"], space["a"], space]))
        == [True] * 2 + [False] * 6 + [True] * 3
    )
    net = ActorCritic(EnvSpec(observation=space, action=spaces.Discrete(2)), clip_obs=10.0)
    obs = {
        "a": torch.arange(300) % 3,
        "b": torch.randn(300, 2) * 7 + 2,
        "c": torch.randint(0, 256, (300, 1, 1)),
    }
    net.absorb(obs, torch.ones(300, dtype=torch.bool), ALONE)
    encoded, seen = encode(space, obs), net._rows(obs, torch.zeros(300, dtype=torch.bool))
    assert torch.equal(seen[:, :3], encoded[:, :3])
    torch.testing.assert_close(seen[:, 3:].mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen[:, 3:].std(0, correction=0), torch.ones(3), atol=1e-4, rtol=0)


def test_the_network_sees_the_world_through_it() -> None:
    """Whatever shift and scale the observations have: after both absorbed theirs, two networks
    agree.
    """
    box = spaces.Box(-np.inf, np.inf, (3,))
    values = []
    x, first = torch.randn(20, 4, 3), torch.zeros(20, 4, dtype=torch.bool)
    for shift, scale in ((0.0, 1.0), (5.0, 8.0)):
        torch.manual_seed(0)
        net = ActorCritic(EnvSpec(observation=box, action=spaces.Discrete(2)), clip_obs=10.0)
        obs = x * scale + shift
        net.absorb(obs, ~first, ALONE)
        values.append(net.unroll(obs, first, {})[0].value)
        step: Any = net.step(obs[0], first[0], {})[0]
        alone: Any = net.policy(obs[0], first[0], {})[0]
        torch.testing.assert_close(step.value, values[-1][0])
        torch.testing.assert_close(alone.logits, step.policy.logits)
    torch.testing.assert_close(values[0], values[1], atol=1e-4, rtol=1e-3)


def test_wrong_settings_say_what_was_expected() -> None:
    with pytest.raises(ValueError, match="clip: expected more than 0 standard deviations, got 0"):
        RunningNorm(3, clip=0.0)
    with pytest.raises(ValueError, match="columns: expected 3 of them, one a feature, got 2"):
        RunningNorm(3, columns=[True, False])

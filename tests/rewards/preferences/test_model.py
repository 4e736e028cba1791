"""The ensemble of reward networks."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from equipoise.nets.twin import TwinMLP
from equipoise.rewards.preferences.fit import fit
from equipoise.rewards.preferences.model import (
    ImageNets,
    RewardModel,
    RewardNets,
    principal_components,
)
from equipoise.rewards.preferences.segments import Answers, Segments
from tests.rewards.preferences.data import behaviour, model

BYTES = spaces.Box(0, 255, (12, 12, 3), np.uint8)
SCREEN = spaces.Box(0, 255, (4, 40, 40), np.uint8)
MEMBERS = 3


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_padding_counts_for_nothing(reduce: Literal["sum", "mean"]) -> None:
    segments, _ = behaviour(10)
    one = model(reduce=reduce)
    found = one.returns(segments)
    for i in range(len(segments)):
        rows = segments.mask[i]
        alone = one(segments.obs[i][rows], segments.action[i][rows])
        total = alone.sum(1) if reduce == "sum" else alone.mean(1)
        torch.testing.assert_close(found[:, i], total)
    torch.testing.assert_close(one.all_returns(segments), found.detach())
    assert one.all_returns(segments.take(slice(0, 0))).shape == (3, 0)


@pytest.mark.parametrize(
    ("observation", "action"),
    [
        (spaces.Box(-1, 1, (5,), np.float32), spaces.Discrete(4, start=2)),
        (spaces.Dict({"a": BYTES, "b": spaces.Discrete(3)}), spaces.Box(-1, 1, (2,), np.float32)),
        (BYTES, spaces.Discrete(4)),
        (SCREEN, spaces.Box(-1, 1, (2,), np.float32)),
        (spaces.Box(0, 255, (12, 12), np.uint8), spaces.MultiDiscrete([2, 3])),
    ],
)
@pytest.mark.parametrize("output", ["linear", "tanh"])
@pytest.mark.parametrize("pictures", ["cnn", "components"])
def test_rows_of_any_space_have_rewards(
    observation: spaces.Space,
    action: spaces.Space,
    output: Literal["linear", "tanh"],
    pictures: Literal["cnn", "components"],
) -> None:
    torch.manual_seed(0)
    nets = RewardNets(output=output, hidden=(8,), pictures=pictures)
    one = RewardModel(observation, action, nets)
    observation.seed(0), action.seed(0)

    def drawn(space: spaces.Space) -> object:
        if isinstance(space, spaces.Dict):
            return {key: drawn(inner) for key, inner in space.items()}
        return torch.from_numpy(np.stack([space.sample() for _ in range(6)])).unflatten(0, (2, 3))

    obs, act = drawn(observation), drawn(action)
    mean, deviation = one.rewards(obs, act)
    assert mean.shape == deviation.shape == (2, 3) and mean.isfinite().all()
    assert deviation.min() > 0  # the members begin with weights of their own


@pytest.mark.parametrize("space", [BYTES, SCREEN])
def test_members_of_an_image_are_separate_networks(space: spaces.Box) -> None:
    torch.manual_seed(0)
    one = RewardModel(space, spaces.Discrete(3), RewardNets(hidden=(8,)))
    images = torch.randint(0, 256, (5, *space.shape), dtype=torch.uint8)
    actions = torch.tensor([0, 1, 2, 0, 1])
    one(images, actions)[1].sum().backward()
    assert isinstance(one.net, ImageNets)
    for layer in one.net.convs:
        assert isinstance(layer, nn.Conv2d) and layer.weight.grad is not None
        parts = [part.abs().sum() > 0 for part in layer.weight.grad.chunk(MEMBERS)]
        assert parts == [False, True, False]
    for weight in one.net.head.weights:
        assert [bool(part.abs().sum() > 0) for part in weight.grad] == [False, True, False]


def test_an_action_is_one_of_the_inputs_of_an_image() -> None:
    torch.manual_seed(0)
    one = RewardModel(BYTES, spaces.Discrete(3), RewardNets(hidden=(8,)))
    images = torch.zeros(2, 12, 12, 3, dtype=torch.uint8)
    mean, _ = one.rewards(images, torch.tensor([0, 2]))
    assert float((mean[0] - mean[1]).abs()) > 0


def squares(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures [count, 1, 24, 24] with a square in one of 36 places, and its column."""
    place = torch.randint(36, (count,), generator=torch.Generator().manual_seed(seed))
    cells = torch.eye(36)[place].view(count, 1, 6, 6)
    images = cells.repeat_interleave(4, 2).repeat_interleave(4, 3).mul(255).to(torch.uint8)
    return images, place % 6


def test_components_keep_the_distances_of_pictures_with_few_objects() -> None:
    x = squares(200)[0].flatten(1) / 255
    found = principal_components(x)
    assert found.shape == (576, 64) and int((found.abs().sum(0) > 0).sum()) == 35
    torch.testing.assert_close(
        torch.cdist(x @ found, x @ found), torch.cdist(x, x), atol=1e-2, rtol=0
    )
    assert not principal_components(torch.ones(5, 20)).any()


def test_a_reward_of_pictures_is_found_by_their_components() -> None:
    images, column = squares(400)
    rows = torch.ones(200, 2, dtype=torch.bool)
    segments = Segments(
        images.view(200, 2, 1, 24, 24), torch.zeros(200, 2).long(), rows, torch.arange(200)
    )
    returns = column.view(200, 2).sum(1)
    left, right = torch.randint(200, (2, 300), generator=torch.Generator().manual_seed(1))
    share = (returns[left] - returns[right]).sign() / 2 + 0.5
    torch.manual_seed(0)
    nets = RewardNets(hidden=(16,), pictures="components")
    one = RewardModel(spaces.Box(0, 255, (1, 24, 24), np.uint8), spaces.Discrete(2), nets)
    fit(one, segments, Answers(left, right, share), seed=0)
    fresh, true = squares(300, seed=2)
    found = one.rewards(fresh, torch.zeros(300).long())[0]
    assert np.corrcoef(found.numpy(), true.numpy())[0, 1] > 0.9


def test_scaled_rewards_have_mean_0_and_deviation_1() -> None:
    segments, _ = behaviour(50)
    one = model()
    obs, action = segments.obs[segments.mask], segments.action[segments.mask]
    with torch.no_grad():
        assert isinstance(one.net, TwinMLP)
        one.net.biases[-1].add_(torch.tensor([3.0, -1.0, 5.0]).view(3, 1, 1))
        one.net.weights[-1].mul_(torch.tensor([1.0, 30.0, 5.0]).view(3, 1, 1))
    one.standardise(one.all_rewards(obs, action))
    mean, deviation = one.rewards(obs, action)
    assert float(mean.mean()) == pytest.approx(0, abs=1e-5)
    assert float(mean.std(correction=0)) == pytest.approx(1, abs=1e-4)
    assert deviation.mean() > 0
    single, none = one.rewards(obs[0], action[0])
    assert single.shape == none.shape == ()
    torch.testing.assert_close(single, mean[0])


def test_a_chance_knows_temperature_and_noise() -> None:
    one = model(noise=0.2)
    one.temperature.fill_(2.0)
    wanted = 0.8 * torch.sigmoid(torch.tensor([1.0, -50.0])) + 0.1
    torch.testing.assert_close(one.chance(torch.tensor([2.0, -100.0])), wanted)


def test_rewards_do_not_depend_on_the_rows_beside_them() -> None:
    one = model()
    obs, action = torch.randn(3000, 2), torch.randn(3000, 1)
    mean, _ = one.rewards(obs, action)
    torch.testing.assert_close(mean[2000:2100], one.rewards(obs[2000:2100], action[2000:2100])[0])
    assert one.rewards(obs[:0], action[:0])[0].shape == (0,)


def test_one_member_never_disagrees() -> None:
    segments, _ = behaviour(4)
    _, deviation = model(members=1).rewards(segments.obs, segments.action)
    assert float(deviation.max()) == 0

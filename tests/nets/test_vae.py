"""The autoencoder: shapes, the loss by hand, and what no policy's loss moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise.algorithms.dqn import DQN
from equipoise.algorithms.sac import SAC
from equipoise.nets.vae import LATENTS, Autoencoder, Encoder
from equipoise.nets.vision import encoders
from equipoise.types import EnvSpec


def image(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


def spec(observation: spaces.Space[Any], action: spaces.Space[Any] | None = None) -> EnvSpec:
    return EnvSpec(observation=observation, action=action or spaces.Discrete(3))


@pytest.mark.parametrize("shape", [(16, 16, 3), (45, 38), (4, 84, 84), (2, 31, 17, 3)])
def test_any_image_has_latents_and_comes_back_in_its_size(shape: tuple[int, ...]) -> None:
    whole = Autoencoder(Encoder(shape))
    images = torch.randint(0, 256, (5, *shape), dtype=torch.uint8)
    latents = whole.encoder(images)
    assert latents.shape == (5, LATENTS) and torch.equal(
        whole.encoder(latents.half()), latents.half().float()
    )
    loss, error = whole(images, torch.randn(5, LATENTS))
    assert loss.shape == error.shape == () and loss.isfinite()


def test_the_loss_is_that_of_the_paper() -> None:
    torch.manual_seed(0)
    whole, images = (
        Autoencoder(Encoder((16, 16, 3))),
        torch.randint(0, 256, (4, 16, 16, 3), dtype=torch.uint8),
    )
    noise = torch.randn(4, LATENTS)
    loss, error = whole(images, noise)
    mean, log_variance = whole.encoder(images), whole.decoder.spread(whole.encoder.seen(images))
    posterior = torch.distributions.Normal(mean, (log_variance / 2).exp())
    made = whole.decoder(posterior.mean + noise * posterior.stddev)
    wanted = images.permute(0, 3, 1, 2) / 255
    sigma = (made - wanted).square().mean().sqrt()
    likelihood = torch.distributions.Normal(made, sigma).log_prob(wanted).sum((1, 2, 3)).mean()
    divergence = (
        torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0))
        .sum(1)
        .mean()
    )
    numbers = wanted[0].numel()
    constant = numbers / 2 * (1 + np.log(2 * np.pi))
    torch.testing.assert_close(error, sigma.square())
    torch.testing.assert_close(loss, -likelihood + divergence - constant)


def test_no_loss_of_a_policy_moves_the_encoder() -> None:
    algorithm = DQN(torso="vae", hidden=(32,))
    net = algorithm.network(spec(image(16, 16, 3)))
    images = torch.randint(0, 256, (6, 16, 16, 3), dtype=torch.uint8)
    net(images).sum().backward()
    moved = {id(one) for one in algorithm.groups(net)["all"]}
    (encoder,) = encoders(net).values()
    assert all(id(one) not in moved and one.grad is None for one in encoder.parameters())
    assert all(one.grad is not None for one in algorithm.groups(net)["all"])
    torch.testing.assert_close(net(images), net(encoder(images)))


def test_encoders_are_found_by_the_paths_of_their_images() -> None:
    one = image(16, 16, 3)
    net = DQN(torso="vae").network(
        spec(
            spaces.Dict({"eye": spaces.Dict({"left": one, "right": one}), "at": spaces.Discrete(3)})
        )
    )
    assert list(encoders(net)) == ["eye/left", "eye/right"]
    assert encoders(DQN(torso="resnet").network(spec(one))) == {}


def test_what_has_no_encoder_is_told() -> None:
    with pytest.raises(
        ValueError,
        match=r"torso: expected a network with one torso for vae, such as DQN's or R2D2's, got .* "
        r"with",
    ):
        encoders(SAC(torso="vae").network(spec(image(32, 32, 3), spaces.Box(-1, 1, (2,)))))
    with pytest.raises(ValueError, match="torso 'vae' needs sides of 16 and more, got 15x40"):
        DQN(torso="vae").network(spec(image(15, 40, 3)))

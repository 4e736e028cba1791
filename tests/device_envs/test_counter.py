"""Random numbers on tensors have the bits that NumPy draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from equipoise.actors.forward import noise
from equipoise.actors.forward.noise import Noise
from equipoise.device_envs import counter

STREAM, START = np.array([0, 1, 5, 4095, 2**40]), np.array([0, 7, 2**33, 3, 1])


@pytest.mark.parametrize("seed", [0, 1, 2**62 + 3, -5])
def test_they_are_the_same_bits(seed: int) -> None:
    expected = noise.uniform(seed, STREAM, START, 9, 3, skip=2)
    row = torch.from_numpy(START) + torch.arange(9)[:, None]
    got = counter.uniform(counter.key_of(seed), torch.from_numpy(STREAM), row, 3, skip=2)
    assert got.dtype == torch.float32
    assert np.array_equal(got.numpy().view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("made", [Noise(2), Noise(1, held=2, every=4), Noise(0, held=1, every=3)])
def test_an_actions_noise_is_that_of_an_actor(made: Noise) -> None:
    expected = made.draw(11, STREAM, START, 10)
    got = made.draw_on(counter.key_of(11), torch.from_numpy(STREAM), torch.from_numpy(START), 10)
    assert np.array_equal(got.numpy(), expected)

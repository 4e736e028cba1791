"""Rows as they are kept: none while the encoder learns, latents afterwards, and the same bits after a load."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from equipoise.learners.encoding import Encoding
from equipoise.nets.vae import LATENTS, Encoder
from equipoise.types import Trajectory

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


def rows(rng: np.random.Generator, unroll: int = 4, streams: int = 8) -> Trajectory:
    """A white square on black, at one of four places."""
    image = np.zeros((unroll + 1, streams, 16, 16, 3), np.uint8)
    for place in np.ndindex(unroll + 1, streams):
        x, y = 8 * rng.integers(0, 2, 2)
        image[(*place, slice(x, x + 4), slice(y, y + 4))] = 255
    number = np.zeros((unroll, streams))
    return Trajectory(
        obs={"eye": image, "at": np.ones((unroll + 1, streams, 2), np.float32)}, first=np.zeros((unroll + 1, streams), bool),
        action=number, behaviour={}, reward=number, mask=np.ones((unroll, streams), bool), bootstrap=number > 0, version=number,
        state={}, context={},
    )  # fmt: skip


def made(count: int, seed: int = 0) -> tuple[Encoder, Encoding]:
    torch.manual_seed(3)
    encoder = Encoder((16, 16, 3))
    return encoder, Encoding({"eye": encoder}, rows=count, seed=seed, device=CPU)


def error(encoding: Encoding) -> float:
    total, count = encoding.metrics()["encoder_error/eye"]
    return float(total / count)


def weights(encoder: Encoder) -> Any:
    return torch.cat([one.flatten() for one in encoder.parameters()])


def test_no_row_is_kept_until_the_encoder_has_learned() -> None:
    rng, (encoder, encoding) = np.random.default_rng(0), made(1280)
    errors = []
    for _ in range(40):
        before = weights(encoder).clone()
        kept = encoding(data := rows(rng))
        assert not kept.mask.any() and data.mask.all() and not torch.equal(weights(encoder), before)
        assert kept.obs["eye"].dtype == np.float16 and kept.obs["at"] is data.obs["at"]
        errors.append(error(encoding))
    assert errors[-1] < errors[0] / 10, "it learns"
    settled = weights(encoder).clone()
    kept = encoding(data := rows(rng))
    assert kept.mask.all() and torch.equal(weights(encoder), settled)
    wanted = encoder(torch.from_numpy(data.obs["eye"]).flatten(0, 1)).view(5, 8, LATENTS)
    np.testing.assert_allclose(kept.obs["eye"], wanted.half().numpy())


def test_an_encoder_that_is_not_to_learn_stays_as_it_is() -> None:
    encoder, encoding = made(0)
    before = weights(encoder).clone()
    assert encoding(rows(np.random.default_rng(0))).mask.all() and torch.equal(weights(encoder), before)
    assert encoding.metrics() == {}


def test_a_loaded_one_goes_on_to_the_same_bits() -> None:
    rng, (encoder, encoding) = np.random.default_rng(0), made(640)
    for _ in range(10):
        encoding(rows(rng))
    other, loaded = made(640, seed=9)
    loaded.load(encoding.state())
    for _ in range(12):
        data = rows(rng)
        np.testing.assert_array_equal(encoding(data).obs["eye"], loaded(data).obs["eye"])
    assert torch.equal(weights(encoder), weights(other)) and error(encoding) == error(loaded)

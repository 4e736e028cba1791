"""Rows as they are kept: none while the encoder learns, latents afterwards, and the same bits after
a load.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from equipoise.learners.encoding import Encoding
from equipoise.learners.steps import NonFiniteUpdate
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
        obs={"eye": image, "at": np.ones((unroll + 1, streams, 2), np.float32)},
        first=np.zeros((unroll + 1, streams), bool),
        action=number,
        behaviour={},
        reward=number,
        mask=np.ones((unroll, streams), bool),
        bootstrap=number > 0,
        version=number,
        state={},
        context={},
    )


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
    assert encoding(rows(np.random.default_rng(0))).mask.all() and torch.equal(
        weights(encoder), before
    )
    assert encoding.metrics() == {}


def test_a_loaded_one_makes_the_same_latents_and_learns_no_more() -> None:
    rng, (encoder, encoding) = np.random.default_rng(0), made(640)
    while encoding.left > 0:
        encoding(rows(rng))
    other, loaded = made(640, seed=9)
    loaded.load(encoding.state())
    for _ in range(3):
        kept, again = encoding(data := rows(rng)), loaded(data)
        np.testing.assert_array_equal(kept.obs["eye"], again.obs["eye"])
        assert kept.mask.all() and again.mask.all()
    assert torch.equal(weights(encoder), weights(other)) and error(encoding) == error(loaded)


@pytest.mark.thorough
def test_the_same_rows_make_the_same_encoder_in_blocks_larger_than_the_pool() -> None:
    found = []
    for _ in range(2):
        rng, (encoder, encoding) = np.random.default_rng(0), made(1600)
        encoding(rows(rng, 200))
        found.append(weights(encoder))
        kept = encoding(data := rows(rng, 40))
        wanted = encoder(torch.from_numpy(data.obs["eye"]).flatten(0, 1)).view(41, 8, LATENTS)
        np.testing.assert_allclose(kept.obs["eye"], wanted.half().numpy(), atol=1e-3)
    assert torch.equal(*found)


def test_an_encoder_that_diverges_is_named() -> None:
    rng, (_, encoding) = np.random.default_rng(0), made(64)
    data = rows(rng, 8)
    data.obs["eye"] = np.full((9, 8, 16, 16, 3), np.nan, np.float32)
    with pytest.raises(
        NonFiniteUpdate,
        match="torso=vae: expected an encoder of obs/eye of finite weights, got nan or inf",
    ):
        encoding(data)

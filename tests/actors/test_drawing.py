"""Uniform numbers by counter are uniform and independent; tokens are drawn by their chances,
whatever the vocabulary's size.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from equipoise.actors.engine.drawing import draw, sample_keys, uniform


def _numbers(seed: int, group: int, samples: int = 100, tokens: int = 200) -> np.ndarray:
    keys = sample_keys(seed, np.full(samples, group), np.arange(samples))
    return uniform(np.repeat(keys, tokens), np.tile(np.arange(1, tokens + 1), samples)).reshape(
        samples, tokens
    )


def test_a_number_depends_on_the_sample_and_the_place_alone() -> None:
    whole = _numbers(3, 7)
    keys = sample_keys(3, np.array([7, 7]), np.array([60, 2]))
    assert uniform(keys, np.array([10, 151])).tolist() == [whole[60, 9], whole[2, 150]]


def test_numbers_are_uniform() -> None:
    counts = np.bincount((_numbers(0, 0) * 100).astype(int).ravel(), minlength=100)
    # chi-square of 99 degrees: 99.9 %
    assert len(counts) == 100 and ((counts - 200) ** 2 / 200).sum() < 148.2
    assert (np.array([_numbers(seed, 1, 1, 1) for seed in range(1000)]) < 1).all()


@pytest.mark.few(4)
@pytest.mark.parametrize("other", ["seed", "group", "index", "place"])
def test_every_coordinate_matters(other: str) -> None:
    a = _numbers(3, 7)
    b = {
        "seed": _numbers(4, 7),
        "group": _numbers(3, 8),
        "index": np.roll(a, 1, 0),
        "place": np.roll(a, 1, 1),
    }[other]
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.03  # 4 deviations of 20,000 pairs
    pairs = np.histogram2d(a.ravel(), b.ravel(), bins=10, range=[[0, 1], [0, 1]])[0]
    assert ((pairs - 200) ** 2 / 200).sum() < 148.2


@pytest.mark.parametrize("vocabulary", [5, 512, 513, 3000])
def test_tokens_come_as_often_as_softmax_says(vocabulary: int) -> None:
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * 3
    logits[::2] = -torch.inf
    number = torch.linspace(0, 1, 50_001, dtype=torch.float64)[:-1]
    counts = torch.zeros(vocabulary, dtype=torch.float64)
    # numbers that are evenly spread: each count is exact but for the two ends
    for some in number.split(10_000):
        token, logp = draw(logits.expand(len(some), -1), 0.7, some)
        counts += torch.bincount(token, minlength=vocabulary)
        torch.testing.assert_close(logp, (logits / 0.7).log_softmax(-1)[token])
    chance = (logits.double() / 0.7).softmax(-1)
    assert (counts - chance * 50_000).abs().max() <= 2
    assert counts[chance == 0].sum() == 0


def test_the_ends_of_the_range_draw_tokens_with_mass() -> None:
    for vocabulary in (6, 700):
        logits = torch.full((2, vocabulary), -torch.inf)
        logits[:, 2:4] = 0.0
        token, _ = draw(logits, 1.0, torch.tensor([0.0, 1 - 2.0**-52], dtype=torch.float64))
        assert token.tolist() == [2, 3]


def test_greedy_takes_the_likeliest_and_says_its_chance_at_the_temperature() -> None:
    token, logp = draw(torch.tensor([[0.0, 2.0, 1.0]]), 0.5, None)
    assert token.tolist() == [1]
    torch.testing.assert_close(logp, torch.tensor([0.0, 4.0, 2.0]).log_softmax(-1)[1:2])

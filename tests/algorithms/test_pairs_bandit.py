"""A bandit with two arms a pair: where DPO and IPO must end is known (arXiv:2305.18290, Eq. 4;
arXiv:2310.12036, Eq. 6).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from equipoise.algorithms.dpo import DPO
from equipoise.types import Packed
from tests.algorithms import bandit, text

PAIRS, ARMS, BETA = 200_000, 5, 0.5
REWARD = torch.tensor([0.0, 0.4, 1.1, -0.6, 0.8], dtype=torch.float64)


def drawn(reference: Tensor) -> list[tuple[Packed, int]]:
    """Pairs of different arms, ordered by Bradley and Terry's model: each that there is as one
    group, with how often it was drawn.
    """
    rng = torch.Generator().manual_seed(0)
    one = torch.randint(ARMS, (PAIRS,), generator=rng)
    other = (one + torch.randint(1, ARMS, (PAIRS,), generator=rng)) % ARMS
    better = torch.rand(PAIRS, generator=rng) < torch.sigmoid(REWARD[one] - REWARD[other])
    arms = torch.where(better[:, None], torch.stack([one, other], 1), torch.stack([other, one], 1))
    found = []
    for pair, count in zip(*torch.unique(arms, dim=0, return_counts=True), strict=True):
        data = bandit.pulls(pair[None], torch.zeros(ARMS), reference.log())
        found.append((replace(data, reward=(data.sample == 0).double()), int(count)))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("loss_type", ["sigmoid", "ipo"])
def test_a_policy_ends_at_the_closed_form_of_its_loss(loss_type: str) -> None:
    algorithm = DPO(loss_type=loss_type, beta=BETA)  # type: ignore[arg-type]
    net, _, _ = bandit.tables(ARMS, seed=3)
    reference = bandit.policy(net).exp()
    pairs = drawn(reference)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=40, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        loss = sum(text.loss(algorithm, net, data, {}).loss * n / PAIRS for data, n in pairs)
        assert isinstance(loss, Tensor)
        loss.backward()
        return loss.item()

    optimizer.step(closure)
    wins = torch.sigmoid(REWARD[:, None] - REWARD[None]).mean(1)
    tilt = REWARD if loss_type == "sigmoid" else wins
    best = (reference.log() + tilt / BETA).softmax(0)
    distance = 0.5 * (bandit.policy(net).exp() - best).abs().sum().item()
    print(loss_type, distance)
    assert distance <= 0.02
    assert 0.5 * (reference - best).abs().sum() > 0.05  # it had far to go

"""A2C is Stable-Baselines3's: its update of a batch, written out, is the learner's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from equipoise import api
from equipoise.algorithms.a2c import A2C
from equipoise.learners.learner import Learner
from equipoise.types import Optimizer, Policy, Trajectory
from tests.algorithms.items import batch
from tests.algorithms.windows import B, T, network, window


def returns(data: Trajectory, value: Tensor) -> Tensor:
    """R_t = r_t + gamma R_{t+1}, from the value where the window, or an episode that a clock cut,
    ends: a stream at a time.
    """
    made = torch.zeros(T, B)
    for b in range(B):
        ahead = value[T, b]
        for t in reversed(range(T)):
            if not data.mask[t, b]:
                ahead = value[t, b]  # a seam: the final observation of the episode before
            else:
                ahead = data.reward[t, b] + 0.99 * float(data.bootstrap[t, b]) * ahead
            made[t, b] = ahead
    return made


@pytest.mark.parametrize("seed", range(5))
def test_an_update_is_that_of_stable_baselines3(seed: int) -> None:
    algorithm = A2C()
    mine, other = network(algorithm, seed), network(algorithm, seed)
    learner = Learner(algorithm, mine, schedule_updates=3, seed=0, batch=B)
    optimizer = torch.optim.RMSprop(other.parameters(), lr=7e-4, alpha=0.99, eps=1e-5)
    for update in range(3):  # with a rate that stays
        data = window(algorithm, other, 10 * seed + update)
        out = other.unroll(data.obs, data.first, {})[0]
        policy, value, real = out.policy[:T], out.value, data.mask
        target = returns(data, value.detach())
        advantage = target - value[:T].detach()
        loss = (
            -(advantage * policy.logp(data.action))[real].mean()
            + 0.5 * (target - value[:T])[real].square().mean()
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        optimizer.step()
        learner.step(batch(data))
        for p, q in zip(mine.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_a_run_of_it_is_in_lockstep_with_short_unrolls() -> None:
    made = api.program("Acrobot-v1", "a2c")
    policy = made.policies["main"]
    assert isinstance(policy, Policy)
    assert (
        made.placement.max_lag,
        policy.unroll,
        policy.algorithm.epochs,
        policy.algorithm.minibatches,
    ) == (0, 5, 1, 1)
    assert policy.optimizer == Optimizer(name="rmsprop", learning_rate=7e-4, schedule="constant")

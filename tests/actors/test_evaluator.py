"""An evaluation counts every stream's episodes alike, and a fixed policy's returns are what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from equipoise.actors.evaluator import Evaluator
from equipoise.envs import make
from equipoise.types import EnvFactory


class Still:
    """Always pushes left."""

    def initial_state(self, n: int) -> dict[str, Any]:
        return {}


class Left:
    def best(self, net: Any, obs: Any, first: Any, state: Any) -> Any:
        return torch.zeros(len(first), dtype=torch.int64), state

    def explore(self, *_: Any) -> Any:
        return {}

    def act(self, net: Any, obs: Any, first: Any, state: Any, *, explore: Any, noise: torch.Tensor) -> Any:
        return (noise[:, 0] * 2).long(), {}, state


def evaluate(episodes: int, streams: int, *, deterministic: bool = True, seed: int = 0) -> list[float]:
    env = make(EnvFactory(target="CartPole-v1"), streams=np.arange(streams), seed=seed)
    made: Any = Left()
    exam = Evaluator(
        made, Still(), env, streams=streams, episodes=episodes, noise_columns=2, seed=seed, deterministic=deterministic
    )
    while not exam.done:
        exam.tick()
    exam.close()
    return exam.returns


def test_as_many_episodes_as_asked_for() -> None:
    assert len(evaluate(20, 20)) == 20
    assert len(evaluate(7, 3)) == 7


def test_a_policy_that_always_pushes_left_falls_within_a_dozen_steps() -> None:
    returns = evaluate(50, 10)
    assert min(returns) >= 8 and max(returns) <= 11


def test_the_stochastic_policy_draws_and_the_seed_decides() -> None:
    a, b, c = (evaluate(30, 10, deterministic=False, seed=s) for s in (1, 1, 2))
    assert a == b != c
    assert np.mean(a) > 15

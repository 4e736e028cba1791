"""What becomes of an action that a world did not take: a replay keeps the other one, an on-policy
loss leaves the row out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from equipoise.actors.forward.forward import Forward
from equipoise.actors.forward.noise import Noise
from equipoise.actors.playing import FixedPolicy
from equipoise.algorithms.dqn import DQN
from equipoise.algorithms.ppo import PPO
from equipoise.types import EnvSpec, TimeStep
from tests.actors.test_playing import STREAMS, agent_of

SPEC = EnvSpec(observation=spaces.Box(-1, 1, (3,), np.float32), action=spaces.Discrete(5))


def step(*, first: bool, differs: Any, taken: Any) -> TimeStep:
    no = np.zeros(STREAMS, np.bool_)
    return TimeStep(
        obs=np.zeros((STREAMS, 3), np.float32),
        reward=np.ones(STREAMS, np.float32),
        terminated=no,
        truncated=no,
        first=no | first,
        valid=no | (not first),
        stream=np.arange(STREAMS),
        differs=differs,
        taken=taken,
    )


@pytest.mark.parametrize(("algorithm", "kept"), [(PPO(), False), (DQN(), True)])
def test_the_row_of_another_action(algorithm: Any, kept: bool) -> None:
    policy = FixedPolicy(algorithm=algorithm, net=algorithm.network(SPEC), noise=Noise(2))
    agent = agent_of(policy, SPEC, Forward)
    nothing = np.zeros(STREAMS, np.bool_)
    differs = np.arange(STREAMS) % 2 == 0
    agent.observe(step(first=True, differs=nothing, taken=np.zeros(STREAMS, np.int64)))
    chosen = np.array(agent.action())
    assert agent._slot is not None
    data = agent._slot.data
    agent.observe(step(first=False, differs=differs, taken=(chosen + 1) % 5))
    np.testing.assert_array_equal(data.mask[0], ~differs if not kept else ~nothing)
    np.testing.assert_array_equal(
        data.action[0], np.where(differs, (chosen + 1) % 5, chosen) if kept else chosen
    )
    assert agent._episodes.ticks == 2

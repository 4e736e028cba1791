"""An env whose steps cost nothing, and a policy that computes nothing: what is left is the way
between them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import nn

from equipoise.types import Algorithm, Batch, LossOutput


class Idle(VectorEnv[Any, Any, Any]):
    """B streams of four numbers, or of an image, that never change and never end; a step may sleep,
    which takes no core.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int, sleep_s: float = 0.0, image: bool = False) -> None:
        self.num_envs, self._sleep_s = num_envs, sleep_s
        numbers, pixels = (
            spaces.Box(-1, 1, (4,), np.float32),
            spaces.Box(0, 255, (4, 84, 84), np.uint8),
        )
        self.single_observation_space = pixels if image else numbers
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = gymnasium.vector.utils.batch_space(
            self.single_observation_space, num_envs
        )
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        shape, dtype = self.single_observation_space.shape, np.uint8 if image else np.float32
        self._obs, self._reward = np.zeros((num_envs, *shape), dtype), np.zeros(num_envs)
        self._over = np.zeros(num_envs, np.bool_)

    def reset(self, **_: Any) -> Any:
        return self._obs, {}

    def step(self, actions: Any) -> Any:
        if self._sleep_s:
            time.sleep(self._sleep_s)
        return self._obs, self._reward, self._over, self._over, {}


class Nothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.zeros(1))

    def initial_state(self, batch: int) -> dict[str, torch.Tensor]:
        return {}


@dataclass(frozen=True, kw_only=True)
class Empty(Algorithm):
    def network(self, spec: Any) -> nn.Module:
        return Nothing()

    def act(
        self, net: Any, obs: Any, first: Any, state: Any, *, explore: Any, noise: torch.Tensor
    ) -> Any:
        return torch.zeros(len(first), dtype=torch.int64), {}, state

    def best(self, net: Any, obs: Any, first: Any, state: Any) -> Any:
        return torch.zeros(len(first), dtype=torch.int64), state

    def loss(
        self, net: Any, target_net: Any, batch: Batch, *, group: str, step: float, rng: Any
    ) -> LossOutput:
        count = torch.tensor(float(batch.data.mask.numel()))
        return LossOutput(loss=net.one.sum() * count, count=count)

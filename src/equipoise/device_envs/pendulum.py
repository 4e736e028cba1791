"""Pendulum, equal to Gymnasium's ``Pendulum-v1`` step by step."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from equipoise.device_envs.episodic import Episodic
from equipoise.types import Tree

# m/s2, kg, m, s, rad/s, Nm
GRAVITY, MASS, LENGTH, DT, FASTEST, TORQUE = 10.0, 1.0, 1.0, 0.05, 8.0, 2.0


class Pendulum(Episodic):
    """Swing a pendulum up and keep it there; the reward is minus a cost of angle, speed and torque.

    The state is [B, 2]: the angle from upright in rad, and its speed.
    """

    draws: ClassVar[int] = 2

    def __init__(self, max_episode_steps: int = 200, dtype: torch.dtype = torch.float32) -> None:
        """``dtype``: of the state; Gymnasium's is float64."""
        high = np.array([1.0, 1.0, FASTEST], np.float32)
        self.observation = spaces.Box(-high, high, dtype=np.float32)
        self.action = spaces.Box(-TORQUE, TORQUE, (1,), np.float32)
        self.max_episode_steps, self._dtype = max_episode_steps, dtype

    def begin(self, u: Tensor) -> Tree:
        angle, speed = (u.to(self._dtype) * 2 - 1).unbind(-1)
        return torch.stack([angle * math.pi, speed], -1)

    def advance(self, state: Tree, action: Tree) -> tuple[Tree, Tensor, Tensor]:
        angle, speed = state.unbind(-1)
        torque = action.to(state.dtype).squeeze(-1).clamp(-TORQUE, TORQUE)
        tilt = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = tilt.square() + 0.1 * speed.square() + 0.001 * torque.square()
        pull = 3 * GRAVITY / (2 * LENGTH) * angle.sin() + 3.0 / (MASS * LENGTH**2) * torque
        speed = (speed + pull * DT).clamp(-FASTEST, FASTEST)
        after = torch.stack([angle + speed * DT, speed], -1)
        return after, -cost.float(), torch.zeros_like(cost, dtype=torch.bool)

    def observe(self, state: Tree) -> Tree:
        angle, speed = state.unbind(-1)
        return torch.stack([angle.cos(), angle.sin(), speed], -1).float()

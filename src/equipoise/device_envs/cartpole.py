"""CartPole (Barto, Sutton & Anderson 1983), equal to Gymnasium's ``CartPole-v1`` step by step."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from equipoise.device_envs.episodic import Episodic
from equipoise.types import Tree

# m/s2, kg, kg, m (half of the pole), N, s
GRAVITY, CART, POLE, HALF, FORCE, TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
FAR, STEEP = 2.4, 12 * 2 * math.pi / 360  # m, rad: where an episode ends
BEGIN = 0.05  # every number of the first state lies within this


class CartPole(Episodic):
    """Push the cart left (0) or right (1) to keep the pole upright; reward 1 a step.

    The state is [B, 4]: x, its speed, the pole's angle, its speed.
    """

    draws: ClassVar[int] = 4

    def __init__(self, max_episode_steps: int = 500, dtype: torch.dtype = torch.float32) -> None:
        """``dtype``: of the state; Gymnasium's is float64."""
        high = np.array([FAR * 2, np.inf, STEEP * 2, np.inf], np.float32)
        self.observation, self.action = (
            spaces.Box(-high, high, dtype=np.float32),
            spaces.Discrete(2),
        )
        self.max_episode_steps, self._dtype = max_episode_steps, dtype

    def begin(self, u: Tensor) -> Tree:
        return (u.to(self._dtype) * 2 - 1) * BEGIN

    def advance(self, state: Tree, action: Tree) -> tuple[Tree, Tensor, Tensor]:
        x, speed, angle, turn = state.unbind(-1)
        force = (action.to(state.dtype) * 2 - 1) * FORCE
        cos, sin = angle.cos(), angle.sin()
        whole, moment = CART + POLE, POLE * HALF
        push = (force + moment * turn.square() * sin) / whole
        turning = (GRAVITY * sin - cos * push) / (HALF * (4.0 / 3.0 - POLE * cos.square() / whole))
        moving = push - moment * turning * cos / whole
        x, angle = x + TAU * speed, angle + TAU * turn
        after = torch.stack([x, speed + TAU * moving, angle, turn + TAU * turning], -1)
        terminated = (x.abs() > FAR) | (angle.abs() > STEEP)
        return after, torch.ones_like(x, dtype=torch.float32), terminated

    def observe(self, state: Tree) -> Tree:
        return state.float()

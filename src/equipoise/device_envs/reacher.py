"""Reacher: an arm of many bodies in a plane, whose joints' torques bring its tip to a target.

Mass k sits at the end of link k; all masses and lengths are one. With absolute angles a_i the
equations of motion (Lagrange's, of a chain of point masses without gravity) are

    sum_j w_ij cos(a_i - a_j) a''_j + sum_j w_ij sin(a_i - a_j) a'_j^2 = t_i - t_(i+1) - friction,   w_ij = n - max(i, j)

for i, j = 0 .. n - 1, where t_i is the torque of joint i and t_n = 0.
"""  # noqa: E501

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from equipoise.device_envs.episodic import Episodic
from equipoise.types import Tree

DT, SUBSTEPS = 0.05, 5  # s a step; parts of it that are integrated one by one
FASTEST = 20.0  # rad/s


class Reacher(Episodic):
    """The reward is minus the distance of the tip from the target, as a share of the arm's length,
    less a cost of torque.

    The state is {"angle" [B, n] rad, "speed" [B, n] rad/s, "target" [B, 2]}. An observation is the
    joints' cosines, sines and speeds (divided by 10), the target and the way from the tip to it
    (divided by n).
    """

    def __init__(
        self,
        bodies: int = 4,
        torque: float = 2.0,
        friction: float = 1.0,
        max_episode_steps: int = 100,
    ) -> None:
        """``bodies``: n. ``torque``: that of an action of 1. ``friction``: of a joint, Nm s/rad."""
        if bodies < 1:
            raise ValueError(f"bodies: expected at least 1, got {bodies}")
        self._bodies, self._torque, self._friction, self.max_episode_steps = (
            bodies,
            torque,
            friction,
            max_episode_steps,
        )
        self.draws = bodies + 2  # type: ignore[misc]  # one a joint, two for the target
        self.observation = spaces.Box(-np.inf, np.inf, (3 * bodies + 4,), np.float32)
        self.action = spaces.Box(-1.0, 1.0, (bodies,), np.float32)
        number = torch.arange(bodies)
        self._weights = bodies - torch.maximum(number[:, None], number).float()  # [n, n] w

    def begin(self, u: Tensor) -> Tree:
        bend, (far, turn) = u[:, : self._bodies], u[:, self._bodies :].unbind(-1)
        reach, where = self._bodies * (0.2 + 0.7 * far.sqrt()), 2 * math.pi * turn
        joints = (bend * 2 - 1) * 0.5
        joints[:, 0] *= 2 * math.pi
        return {
            "angle": joints.cumsum(-1),
            "speed": torch.zeros_like(joints),
            "target": reach[:, None] * torch.stack([where.cos(), where.sin()], -1),
        }

    def advance(self, state: Tree, action: Tree) -> tuple[Tree, Tensor, Tensor]:
        angle, speed = state["angle"], state["speed"]
        for _ in range(SUBSTEPS):
            speed = (
                speed + DT / SUBSTEPS * self.accelerations(angle, speed, action * self._torque)
            ).clamp(-FASTEST, FASTEST)
            angle = angle + DT / SUBSTEPS * speed
        after = {"angle": angle, "speed": speed, "target": state["target"]}
        away = torch.linalg.vector_norm(self._way(after), dim=-1) / self._bodies
        return (
            after,
            -away - 0.01 * action.square().mean(-1),
            torch.zeros_like(away, dtype=torch.bool),
        )

    def accelerations(self, angle: Tensor, speed: Tensor, torque: Tensor) -> Tensor:
        """[B, n] rad/s2, from the equations above."""
        self._weights = self._weights.to(angle.device)
        apart = angle.unsqueeze(-1) - angle.unsqueeze(-2)
        joint = torque - self._friction * (speed - torch.nn.functional.pad(speed, (1, 0))[:, :-1])
        pulls = joint - torch.nn.functional.pad(joint, (0, 1))[:, 1:]
        pulls = pulls - ((self._weights * apart.sin()) @ speed.square().unsqueeze(-1)).squeeze(-1)
        # does not wait for the device
        solved: Tensor = torch.linalg.solve_ex(self._weights * apart.cos(), pulls)[0]
        return solved

    def observe(self, state: Tree) -> Tree:
        angle = state["angle"]
        joints = angle - torch.nn.functional.pad(angle, (1, 0))[:, :-1]
        return torch.cat(
            [
                joints.cos(),
                joints.sin(),
                state["speed"] / 10,
                state["target"] / self._bodies,
                self._way(state) / self._bodies,
            ],
            -1,
        )

    def _way(self, state: Tree) -> Tensor:
        """The way [B, 2] from the tip to the target."""
        angle: Tensor = state["angle"]
        tip = torch.stack([angle.cos().sum(-1), angle.sin().sum(-1)], -1)
        away: Tensor = state["target"] - tip
        return away

"""Bricks: a ball, a paddle and a wall in pixels, by the rules of MinAtar's Breakout (Young & Tian
2019, arXiv:1903.03176).

Here the paddle always moves as the action demands (MinAtar's last action is repeated in a tenth of
all steps), and the four planes of MinAtar are grey levels of one picture.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from equipoise.device_envs.episodic import Episodic
from equipoise.types import Tree

SIDE, WALL = 10, slice(1, 4)  # cells; rows of the wall
BRICK, TRAIL, PADDLE, BALL = 100, 60, 160, 255  # grey levels


class Bricks(Episodic):
    """Move the paddle (0 stay, 1 left, 2 right); reward 1 for a brick, until the ball is missed.

    The state is {"ball" [B, 4] (row, column, their steps), "last" [B, 2] (where it was), "paddle"
    [B], "hit" [B] (a brick, just now), "wall" [B, 10, 10] (cells that are bricks)}.
    """

    draws: ClassVar[int] = 1

    def __init__(self, scale: int = 4, max_episode_steps: int = 1_000) -> None:
        """``scale``: pixels of a cell's side."""
        if scale < 1:
            raise ValueError(f"scale: expected at least 1, got {scale}")
        self.observation = spaces.Box(0, 255, (1, SIDE * scale, SIDE * scale), np.uint8)
        self.action, self.max_episode_steps, self._scale = (
            spaces.Discrete(3),
            max_episode_steps,
            scale,
        )

    def begin(self, u: Tensor) -> Tree:
        right = (u[:, 0] < 0.5).long()  # the side from which the ball falls
        row = torch.full_like(right, 3)
        ball = torch.stack([row, right * (SIDE - 1), torch.ones_like(row), 1 - 2 * right], -1)
        wall = torch.zeros(len(u), SIDE, SIDE, dtype=torch.bool, device=u.device)
        wall[:, WALL] = True
        return {
            "ball": ball,
            "last": ball[:, :2].clone(),
            "paddle": torch.full_like(row, 4),
            "hit": torch.zeros_like(right, dtype=torch.bool),
            "wall": wall,
        }

    def advance(self, state: Tree, action: Tree) -> tuple[Tree, Tensor, Tensor]:
        row, column, down, right = state["ball"].unbind(-1)
        paddle = (state["paddle"] + (action == 2).long() - (action == 1).long()).clamp(0, SIDE - 1)
        y, x = row + down, column + right
        side = (x < 0) | (x >= SIDE)
        x, right = x.clamp(0, SIDE - 1), torch.where(side, -right, right)
        top = y < 0
        y = y.clamp(0, SIDE - 1)  # also of a ball that was missed, whose row is a seam
        every = torch.arange(len(row), device=row.device)
        brick = state["wall"][every, y, x] & ~top
        bottom = (y == SIDE - 1) & ~top & ~brick
        straight, corner = bottom & (column == paddle), bottom & (column != paddle) & (x == paddle)
        struck = brick & ~state["hit"]
        wall = state["wall"].clone()
        wall[every, y, x] &= ~struck
        cleared = bottom & ~wall.flatten(1).any(1)
        wall[:, WALL] |= cleared[:, None, None]
        back = top | struck | straight | corner
        down = torch.where(back, -down, down)
        right = torch.where(corner, -right, right)
        y = torch.where(struck | straight | corner, row, y)
        after = {
            "ball": torch.stack([y, x, down, right], -1),
            "last": state["ball"][:, :2],
            "paddle": paddle,
            "hit": brick,
            "wall": wall,
        }
        return after, struck.float(), bottom & ~straight & ~corner

    def observe(self, state: Tree) -> Tree:
        screen = state["wall"].to(torch.uint8) * BRICK
        every = torch.arange(len(screen), device=screen.device)
        screen[every, state["last"][:, 0], state["last"][:, 1]] = TRAIL
        screen[every, SIDE - 1, state["paddle"]] = PADDLE
        screen[every, state["ball"][:, 0], state["ball"][:, 1]] = BALL
        larger = screen.repeat_interleave(self._scale, 1).repeat_interleave(self._scale, 2)
        return larger.unsqueeze(1)

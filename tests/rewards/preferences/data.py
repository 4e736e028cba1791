"""Small segments with a known reward."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from gymnasium import spaces

from equipoise.rewards.preferences.model import RewardModel, RewardNets
from equipoise.rewards.preferences.queries import random_pairs
from equipoise.rewards.preferences.segments import Answers, Segments, held_out
from equipoise.rewards.preferences.teacher import Teacher

OBS = spaces.Box(-3.0, 3.0, (2,), np.float32)
ACTION = spaces.Box(-1.0, 1.0, (1,), np.float32)


def behaviour(count: int, *, rows: int = 8, seed: int = 0) -> tuple[Segments, np.ndarray]:
    """Segments of 4 to ``rows`` rows, two of each episode, and their true rewards [S, T]."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.randn(count, 1, 2, generator=generator)
    obs = place + 0.5 * torch.randn(count, rows, 2, generator=generator)
    action = torch.rand(count, rows, 1, generator=generator) * 2 - 1
    size = torch.randint(4, rows + 1, (count,), generator=generator)
    mask = torch.arange(rows) < size[:, None]
    reward = obs[..., 0] - 0.5 * obs[..., 1].square() + 0.5 * action[..., 0]
    return Segments(obs, action, mask, torch.arange(count) // 2), reward.double().numpy()


def asked(
    segments: Segments, rewards: np.ndarray, count: int, *, seed: int = 0, share: float = 0.15
) -> tuple[Answers, np.ndarray]:
    """Answers within the sides of a split, and the teacher's chances."""
    teacher = Teacher(rationality=1.0)
    returns = teacher.returns(rewards, segments.mask.numpy())
    side = held_out(segments.episode.numpy(), share=share, seed=seed)
    pairs = random_pairs(count, side, seed=seed)
    left, right = returns[pairs].T
    answers = teacher.answer(left, right, seed=seed)
    index = torch.from_numpy(pairs)
    return (
        Answers(index[:, 0].clone(), index[:, 1].clone(), torch.from_numpy(answers.share)),
        teacher.chance(left, right),
    )


def model(
    seed: int = 0,
    *,
    members: int = 3,
    noise: float = 0.0,
    reduce: Literal["sum", "mean"] = "sum",
) -> RewardModel:
    torch.manual_seed(seed)
    nets = RewardNets(hidden=(16, 16), members=members, noise=noise, reduce=reduce)
    return RewardModel(OBS, ACTION, nets)

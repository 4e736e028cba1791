"""Reward models from preferences: how well they foretell answers, how few answers they need, and
their speed.

    .venv/bin/python benchmarks/feedback.py accuracy     # 5,000 pairs of a known reward
    .venv/bin/python benchmarks/feedback.py faults       # the same with ties, skips and errors
    .venv/bin/python benchmarks/feedback.py labels       # answers needed: disagreement and random
    .venv/bin/python benchmarks/feedback.py speed        # ns of a row, beside a row of SAC's learner
    .venv/bin/python benchmarks/feedback.py imitation --python VENV/bin/python

The rows are Pendulum's (three numbers and a torque), in segments of 25 to 50 steps. A synthetic
teacher answers by the true rewards. Bayes accuracy is that of a judge who knows the teacher's own
chances; a model's accuracy is the expected one on 10,000 fresh pairs, so that neither has the luck
of the draw. Seconds are of CPU, of one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.device_envs.pendulum import Pendulum
from equipoise.rewards.preferences.fit import Fitting, fit, measure
from equipoise.rewards.preferences.model import RewardModel, RewardNets
from equipoise.rewards.preferences.queries import disagreement, highest, information, random_pairs
from equipoise.rewards.preferences.segments import Answers, Segments, held_out
from equipoise.rewards.preferences.teacher import (
    Teacher,
    bayes_accuracy,
    expected_accuracy,
)

STEPS, LONGEST, SHORTEST = 200, 50, 25
FRESH = 10_000  # pairs that a model is judged by
FRESH_FROM = 10**6  # numbers of their episodes


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Segments with their true rewards [S, T]."""

    segments: Segments
    rewards: np.ndarray

    def returns(self, teacher: Teacher) -> np.ndarray:
        return teacher.returns(self.rewards, self.segments.mask.numpy())


def behaviour(episodes: int, *, seed: int, first: int = 0) -> Behaviour:
    """Play Pendulum by a policy for each episode, from torques at random to one that pumps energy;
    cut four segments from each.
    """
    generator = torch.Generator().manual_seed(seed)
    env = Pendulum()
    draw = torch.rand(episodes, 6, generator=generator)
    state = env.begin(draw[:, :2])
    pump, hold, wild, bias = (draw[:, i, None] for i in (2, 3, 4, 5))
    seen: list[tuple[Tensor, ...]] = []
    for _ in range(STEPS):
        obs = env.observe(state)
        cos, sin, speed = obs.split(1, -1)
        upright = (cos > 0.8).float()
        wanted = (1 - upright) * pump * 2 * speed.sign() - upright * hold * (12 * sin + 3 * speed)
        noise = torch.randn(episodes, 1, generator=generator)
        action = (wanted + 3 * wild.square() * noise + (bias - 0.5)).clamp(-2, 2)
        state, reward, _ = env.advance(state, action)
        seen.append((obs, action, reward))
    obs, action, reward = (torch.stack(x, 1) for x in zip(*seen, strict=True))
    parts = STEPS // LONGEST
    size = torch.randint(SHORTEST, LONGEST + 1, (episodes * parts,), generator=generator)
    mask = torch.arange(LONGEST) < size[:, None]
    episode = first + torch.arange(episodes).repeat_interleave(parts)
    return Behaviour(
        Segments(obs.reshape(-1, LONGEST, 3), action.reshape(-1, LONGEST, 1), mask, episode),
        reward.reshape(-1, LONGEST).double().numpy(),
    )


def make_model(seed: int, settings: RewardNets) -> RewardModel:
    torch.manual_seed(seed)
    env = Pendulum()
    return RewardModel(env.observation, env.action, settings)


@dataclass(frozen=True, slots=True)
class Test:
    """Fresh pairs with the teacher's chances, to judge models by."""

    data: Behaviour
    pairs: np.ndarray
    teacher: Teacher
    answers: Answers
    chance: np.ndarray  # of the pairs that a side is preferred in
    decided: np.ndarray


def make_test(teacher: Teacher, *, seed: int) -> Test:
    data = behaviour(600, seed=seed + 1000, first=FRESH_FROM)
    pairs = random_pairs(FRESH, np.zeros(len(data.segments)), seed=seed)
    answers, given, tie = ask(teacher, data, pairs, seed=seed)
    left, right = data.returns(teacher)[pairs[given]].T
    chance = teacher.chance(left, right)
    return Test(data, pairs[given], teacher, answers, chance[~tie], ~tie)


def ask(
    teacher: Teacher, data: Behaviour, pairs: np.ndarray, *, seed: int
) -> tuple[Answers, np.ndarray, np.ndarray]:
    """The answers that were given, which were (of all), and which are ties (of the given)."""
    returns = data.returns(teacher)
    share, given = teacher.answer(returns[pairs[:, 0]], returns[pairs[:, 1]], seed=seed)
    left, right = torch.from_numpy(pairs[given]).unbind(1)
    answers = Answers(left.contiguous(), right.contiguous(), torch.from_numpy(share[given]))
    return answers, given, share[given] == 0.5


def judged(model: RewardModel, test: Test) -> dict[str, float]:
    """Accuracy, Bayes accuracy, calibration error and correlation on fresh pairs and rows."""
    segments = test.data.segments
    returns = model.all_returns(segments).mean(0)
    left, right = torch.from_numpy(test.pairs).unbind(1)
    chance = model.chance(returns[left] - returns[right])
    found = measure(chance, test.answers.share)
    mean, _ = model.rewards(segments.obs, segments.action)
    rows = segments.mask.numpy()
    true = test.data.rewards[rows]
    return {
        "bayes": bayes_accuracy(test.chance),
        "accuracy": expected_accuracy(test.chance, chance.numpy()[test.decided]),
        "ece": found.ece,
        "correlation": float(np.corrcoef(mean.numpy()[rows], true)[0, 1]),
        "temperature": float(model.temperature),
    }


def spread(data: Behaviour) -> float:
    return float(data.returns(Teacher()).std())


def accuracy(
    seed: int, *, pairs: int = 5_000, nets: RewardNets, fitting: Fitting, faults: bool = False
) -> dict[str, float]:
    data = behaviour(1000, seed=seed)
    side = held_out(data.segments.episode.numpy(), share=fitting.held_out, seed=seed)
    teacher = Teacher(rationality=5.0, scale=spread(data))
    chosen = random_pairs(pairs, side, seed=seed)
    if faults:
        a, b = data.returns(teacher)[chosen].T
        skip = float(np.quantile(np.maximum(a, b), 0.1))
        equal = float(np.quantile(np.abs(a - b)[np.maximum(a, b) >= skip], 0.3))
        teacher = Teacher(rationality=5.0, scale=teacher.scale, error=0.2, skip=skip, equal=equal)
    test = make_test(teacher, seed=seed)
    answers, _, tie = ask(teacher, data, chosen, seed=seed + 1)
    model = make_model(seed, nets)
    began = time.process_time()
    held = fit(model, data.segments, answers, fitting, seed=seed)
    cpu_s = time.process_time() - began
    return {
        "answers": len(answers),
        "ties": float(tie.mean()),
        **judged(model, test),
        "held_out_accuracy": held.accuracy,
        "held_out_ece": held.ece,
        "cpu_s": cpu_s,
    }

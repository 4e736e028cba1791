"""Stores of clips and of texts with answers, and reward models of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

import equipoise as eq
from equipoise.feedback import Ask, Choice, Store
from equipoise.rewards.preferences.asking import HELD_OUT, SPLIT
from equipoise.rewards.preferences.clips import Clips
from equipoise.rewards.preferences.queries import random_pairs
from equipoise.rewards.preferences.segments import held_out

ENV = "tests.rewards.preferences.worlds:pendulum"
HIGH = np.array([1, 1, 8], np.float32)
OBSERVATION = spaces.Box(-HIGH, HIGH)
ACTION = spaces.Box(-2.0, 2.0, (1,), np.float32)
ROWS = 4
SMALL = {"algorithm.hidden": "8", "algorithm.epochs": 20}


def clips(
    folder: Path, count: int = 400, choice: Choice | None = None, answered: bool = True
) -> Path:
    """A store of ``count`` queries about clips of Pendulum; better is what is nearer to the top."""
    rng = np.random.default_rng(0)
    segments = max(count // 2, 60)
    obs = rng.uniform(-1, 1, (segments, ROWS, 3)).astype(np.float32)
    action = rng.uniform(-2, 2, (segments, ROWS, 1)).astype(np.float32)
    made, side = (
        Clips(OBSERVATION, ACTION),
        held_out(np.arange(segments), share=HELD_OUT, seed=SPLIT),
    )
    pairs = random_pairs(count, side, seed=0)
    with Store.create(folder) as store:
        hashes = [
            store.add_segment(made.arrays(obs[i], action[i], i, ROWS)) for i in range(segments)
        ]
        value = obs[:, :, 0].sum(1)
        asks = [
            Ask(
                left=hashes[left],
                right=hashes[right],
                purpose="random",
                choice=(choice or ("left" if value[left] > value[right] else "right"))
                if answered
                else None,
            )
            for left, right in pairs
        ]
        store.ask("made", 0, asks, version=0, step=0)
    return folder


def small(reward: str, steps: int = 128, **options: Any) -> Any:
    given: dict[str, Any] = {
        "recipe": False,
        "actors": 1,
        "envs_per_actor": 4,
        "unroll": 16,
        "max_lag": 0,
        "evaluate_episodes": 0,
        "settings": ["schedule.schedule_steps=512", "algorithm.hidden=8"],
    }
    return eq.program(ENV, "ppo", reward=reward, steps=steps, **given | options)


def finished(run: Any) -> str:
    for _ in run:
        pass
    assert run.summary is not None
    return str(run.summary["params_sha256"])

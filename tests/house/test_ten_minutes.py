"""The first ten minutes of a new user, in an empty folder: train from Python and from the shell,
an env and a network of one's own, load, evaluate, video, resume, report, plot.

Each step is what the pages of docs/start show, with fewer steps of training.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENVS = '''
import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Walk(gym.Env):
    """Walk right along a line of five places."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def _observation(self):
        return np.array([self.place / 4], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self._observation(), {}

    def step(self, action):
        self.place = max(self.place + (1 if action == 1 else -1), 0)
        done = self.place == 4
        return self._observation(), float(done), done, False, {}

    def render(self):
        frame = np.zeros((32, 160, 3), np.uint8)
        frame[:, 32 * self.place : 32 * self.place + 32] = 255
        return frame
'''
NETS = '''
from torch import nn


class Small(nn.Module):
    """A torso for CartPole's four numbers."""

    size_out = 32

    def __init__(self, observation):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(observation.shape[0], 32), nn.Tanh())

    def forward(self, obs):
        return self.layers(obs)
'''
SCRIPT = """
import equipoise as eq
from equipoise.algorithms import PPO

if __name__ == "__main__":
    run = eq.train("CartPole-v1", "ppo", steps=4_000, seed=1, out="runs/first")
    print(run)
    assert run.steps >= 4_000 and run.status == "completed", run
    assert run.load().act([0.0, 0.1, 0.0, 0.2]) in (0, 1)
    assert run.metrics is not None and run.report().is_file()
    assert 0 < run.evaluate(episodes=2).mean <= 500
    assert run.resume(steps=8_000).steps >= 8_000
    eq.train("CartPole-v1", PPO(gamma=0.98), steps=2_000, out="runs/gamma")
    settings = {"algorithm.torso": "my_nets:Small"}
    eq.train("CartPole-v1", steps=2_000, settings=settings, out="runs/net")
    from my_envs import Walk

    eq.train(Walk, steps=2_000, out="runs/walk")
"""
SHELL = """
equipoise train CartPole-v1 --steps 4k --seed 1 --out runs/second
equipoise evaluate runs/second --episodes 2
equipoise resume runs/second --steps 6k
equipoise check my_envs:Walk
equipoise train my_envs:Walk --steps 2k --out runs/own
equipoise evaluate runs/own --episodes 1 --video
equipoise runs
equipoise report runs/second runs/own
equipoise plot runs/second runs/own
"""


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_first_ten_minutes(tmp_path: Path) -> None:
    (tmp_path / "my_envs.py").write_text(ENVS)
    (tmp_path / "my_nets.py").write_text(NETS)
    (tmp_path / "first.py").write_text(SCRIPT)
    bin = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": bin}
    for line in [f"{sys.executable} first.py", *SHELL.strip().splitlines()]:
        done = subprocess.run(
            line,
            shell=True,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        assert "Traceback" not in done.stderr, line
    assert list((tmp_path / "runs/own/videos").glob("*.mp4"))

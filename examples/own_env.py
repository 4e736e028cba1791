"""Train on an env of your own: a corridor whose end pays.

Run it: ``python examples/own_env.py``, or from a shell in this folder
``equipoise train own_env:Corridor --steps 60k``.
"""

import argparse
from typing import Any

import gymnasium as gym
import numpy as np

import equipoise as eq


class Corridor(gym.Env):
    """Walk right ``length`` cells within three times as many steps."""

    def __init__(self, length: int = 8) -> None:
        self.length = length
        self.observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)  # left, right

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.place = self.steps = 0
        return self.seen(), {}

    def step(self, action: int):
        self.steps += 1
        self.place = max(0, self.place + (1 if action == 1 else -1))
        there = self.place == self.length
        reward = 1.0 if there else -0.01
        return self.seen(), reward, there, self.steps == 3 * self.length, {"success": there}

    def seen(self) -> np.ndarray:
        return np.array([self.place / self.length], np.float32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60_000)
    steps = parser.parse_args().steps
    # actors import the class by its name, so it must not be in __main__
    from own_env import Corridor as Importable

    run = eq.train(Importable, steps=steps, seed=1, metrics=("success",))
    print(run)
    print(f"success: {run.summary['info']['success/last']}")


if __name__ == "__main__":
    main()

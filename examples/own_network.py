"""Train with a network of your own: a torso that normalises its layers.

Run it: ``python examples/own_network.py``
"""

import argparse

import gymnasium as gym
from torch import Tensor, nn

import equipoise as eq


class Normalised(nn.Module):
    """Map rows of observations [N, D] to features [N, size_out]."""

    size_out = 64

    def __init__(self, space: gym.spaces.Box) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(space.shape[0], 64), nn.LayerNorm(64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU()
        )

    def forward(self, obs: Tensor) -> Tensor:
        return self.layers(obs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    steps = parser.parse_args().steps
    run = eq.train(
        "CartPole-v1", steps=steps, seed=1, settings={"algorithm.torso": "own_network:Normalised"}
    )
    print(run)


if __name__ == "__main__":
    main()

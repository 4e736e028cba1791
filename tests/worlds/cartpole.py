"""CartPole in a process of its own: ``python cartpole.py ADDRESS WORLDS``. The dynamics are
Gymnasium's, the client is ours.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import gymnasium

sys.path.insert(0, str(Path(__file__).parents[2] / "clients"))
from world import EpisodeLost, RunOver, World, box, discrete  # type: ignore[import-not-found]


def play(address: str) -> None:
    env = gymnasium.make("CartPole-v1")
    try:
        world = World(address, observation=box([4]), action=discrete(2))
        obs, _ = env.reset(seed=world.seed)
        while True:
            try:
                action, over = world.reset(obs), False
                while not over:
                    obs, reward, terminated, truncated, _ = env.step(action)
                    over = terminated or truncated
                    if over:
                        world.end(obs, reward, terminated=terminated, truncated=truncated)
                    else:
                        action = world.step(obs, reward)
            except EpisodeLost:
                pass
            obs, _ = env.reset()
    except RunOver:
        pass


if __name__ == "__main__":
    threads = [threading.Thread(target=play, args=(sys.argv[1],)) for _ in range(int(sys.argv[2]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

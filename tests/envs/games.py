"""Small games of several agents, with PettingZoo's parallel interface and without the class."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
from gymnasium import spaces

LENGTH = 8  # steps of an episode


class Game:
    metadata: dict[str, Any] = {"name": "game"}
    possible_agents: list[str] = []
    observations: dict[str, Any] = {}
    actions: dict[str, Any] = {}

    def observation_space(self, agent: str) -> Any:
        return self.observations[agent]

    def action_space(self, agent: str) -> Any:
        return self.actions[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.np_random = np.random.default_rng(seed)
        self.agents, self.t = list(self.possible_agents), 0
        self.begin()
        return self.seen(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> tuple[Any, ...]:
        acted, self.t = list(self.agents), self.t + 1
        reward = self.play(actions)
        over = self.t == LENGTH
        if over:
            self.agents = []
        flags = dict.fromkeys(acted, over)
        return (
            self.seen(),
            reward,
            dict.fromkeys(acted, False),
            flags,
            {agent: {} for agent in acted},
        )

    def begin(self) -> None: ...

    def play(self, actions: Any) -> dict[str, float]:
        raise NotImplementedError

    def seen(self) -> dict[str, Any]:
        raise NotImplementedError

    def close(self) -> None: ...


class Signal(Game):
    """The speaker sees where the listener is to go next, and says one of three words; the listener
    hears the word.
    """

    possible_agents = ["speaker", "listener"]
    observations = {"speaker": spaces.Discrete(3), "listener": spaces.Box(0, 1, (4,), np.float32)}
    actions = {"speaker": spaces.Discrete(3), "listener": spaces.Discrete(3)}

    def begin(self) -> None:
        self.goal = self.heard = int(self.np_random.integers(3))
        self.word = -1

    def play(self, actions: Any) -> dict[str, float]:
        right = float(self.word >= 0 and actions["listener"] == self.heard)  # what the word was of
        self.heard, self.word = self.goal, int(actions["speaker"])
        self.goal = int(self.np_random.integers(3))
        return dict.fromkeys(self.possible_agents, right)

    def seen(self) -> dict[str, Any]:
        return {"speaker": self.goal, "listener": np.eye(4, dtype=np.float32)[self.word]}


class Duel(Game):
    """Rock, paper, scissors with a scale: who wins by paper gets two.
    Both see what both did last.
    """

    possible_agents = ["left", "right"]
    observations = dict.fromkeys(possible_agents, spaces.Box(0, 2, (2,), np.float32))
    actions = dict.fromkeys(possible_agents, spaces.Discrete(3))

    def begin(self) -> None:
        self.both = (0, 0)

    def play(self, actions: Any) -> dict[str, float]:
        left, right = self.both = int(actions["left"]), int(actions["right"])
        won = (left - right) % 3
        worth = 2.0 if (left if won == 1 else right) == 1 else 1.0
        gain = (0.0, worth, -worth)[won]
        return {"left": gain, "right": -gain}

    def seen(self) -> dict[str, Any]:
        return {
            "left": np.array(self.both, np.float32),
            "right": np.array(self.both[::-1], np.float32),
        }


class Deadly(Signal):
    """Env 0 takes its process along, after 150 steps in it."""

    def __init__(self, stream: int) -> None:
        self.left = 150 if stream == 0 else -1

    def play(self, actions: Any) -> dict[str, float]:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().play(actions)

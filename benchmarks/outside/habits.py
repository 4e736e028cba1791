"""Small envs, each with one habit of envs in the wild that training has to bear.

The task is the same in all: walk along a corridor of nine cells to its end, left or right, that the
observation names. A run learns it within seconds where the habit lets it. Each end of an episode
appends a byte to the file ``$ENDED``, if it is set, so that a benchmark can count the ended
episodes of a run without asking the run.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CELLS, LIMIT = 9, 50
# what the child of ``Parent`` runs
ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


def ended() -> None:
    if file := os.environ.get("ENDED"):
        with open(file, "ab", buffering=0) as out:
            out.write(b".")


class Corridor(gymnasium.Env[Any, Any]):
    """The task without a habit."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.at, self.goal, self.steps = 0, 1, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.steps = 0, 0
        self.goal = 1 if self.np_random.random() < 0.5 else -1
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1 if action else -1
        self.steps += 1
        there, over = abs(self.at) == CELLS // 2, self.steps >= LIMIT
        if there or over:
            ended()
        reward = float(there and self.at * self.goal > 0) - 0.01
        return self.seen(), reward, there, over and not there, {}

    def seen(self) -> Any:
        return np.array([self.at / CELLS, self.goal], np.float32)


class Chatty(Corridor):
    """Prints 100 lines a step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        for line in range(100):
            print(f"step {self.steps}, line {line}: the walker is at {self.at}")
        return super().step(action)


class Locked(Corridor):
    """Has a lock and a socket as members, which can be neither copied nor pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.socket = threading.Lock(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        with self.lock:
            return super().step(action)

    def close(self) -> None:
        self.socket.close()


class SlowReset(Corridor):
    """Waits two seconds in each reset, as for a simulator that starts."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        time.sleep(2.0)
        return super().reset(seed=seed, options=options)


class SlowStep(Corridor):
    """Waits 100 ms in each step, as for a robot."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.1)
        return super().step(action)


class Parent(Corridor):
    """Asks a child process of its own in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.child = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", ECHO],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.child.stdin is not None and self.child.stdout is not None
        print(int(action), file=self.child.stdin, flush=True)
        return super().step(int(self.child.stdout.readline()))

    def close(self) -> None:
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                pipe.close()
        self.child.wait()


class Leaving(Corridor):
    """Ends its process now and then, as a library in C++ does that calls ``exit``: ``os._exit(3)``
    at its 500th step.
    """

    taken = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken += 1
        if self.taken == 500:
            os._exit(3)
        return super().step(action)


class Watchers:
    """A PettingZoo parallel env: 12 agents, each with an image of 84 x 84 x 3 in which it names the
    bright quarter.
    """

    metadata = {"name": "watchers_v0"}
    possible_agents = [f"watcher_{i}" for i in range(12)]
    render_mode = None

    def __init__(self) -> None:
        self._see, self._say = spaces.Box(0, 255, (84, 84, 3), np.uint8), spaces.Discrete(4)
        self.agents: list[str] = []
        self.steps = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._see

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._say

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None or not hasattr(self, "rng"):
            self.rng = np.random.default_rng(seed)
        self.agents, self.steps = list(self.possible_agents), 0
        return self.seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        agents, self.steps = self.agents, self.steps + 1
        reward = {agent: float(actions[agent] == self.bright[agent]) for agent in agents}
        over = self.steps >= 25
        if over:
            self.agents = []
            for _ in agents:
                ended()
        obs = self.seen(agents)
        return (
            obs,
            reward,
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, over),
            {agent: {} for agent in agents},
        )

    def seen(self, agents: list[str] | None = None) -> dict[str, Any]:
        rows = {}
        self.bright = {}
        for agent in agents or self.agents:
            image = np.zeros((84, 84, 3), np.uint8)
            quarter = int(self.rng.integers(4))
            y, x = 42 * (quarter // 2), 42 * (quarter % 2)
            image[y : y + 42, x : x + 42] = 255
            rows[agent], self.bright[agent] = image, quarter
        return rows

    def render(self) -> None:
        return None

    def close(self) -> None:
        return None

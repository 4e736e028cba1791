"""PettingZoo envs with one fault each, and two whose agents act in turns. They are for the tests of
``check``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils import AgentSelector

from tests.envs.games import LENGTH, Duel, Signal


class Sound(Signal):
    """``Signal``, seeded: two envs with two seeds differ."""


class SharedDice(Signal):
    """The generator is not seeded."""

    observations = Signal.observations | {"speaker": spaces.Box(0, 1, (1,), np.float32)}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(None, options)

    def seen(self) -> dict[str, Any]:
        return super().seen() | {"speaker": self.np_random.random(1, np.float32)}


class LeavesItsSpace(Signal):
    def seen(self) -> dict[str, Any]:
        return super().seen() | {"speaker": self.goal + (5 if self.t == 3 else 0)}


class Raises(Duel):
    def play(self, actions: Any) -> dict[str, float]:
        if self.t == 4:
            raise KeyError("left")
        return super().play(actions)


class ForgetsAnObservation(Duel):
    def seen(self) -> dict[str, Any]:
        return {name: obs for name, obs in super().seen().items() if self.t != 3 or name == "left"}


class KeepsItsAgents(Duel):
    """Agents that have ended stay in ``agents``, which PettingZoo's test forbids."""

    def step(self, actions: Any) -> Any:
        result = super().step(actions)
        self.agents = list(self.possible_agents)
        return result


class NewSpaces(Duel):
    """A new space object at every call: harmless in training."""

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)


class TakesNoOptions(Duel):
    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed)


class RaisesInTheTest(Duel):
    """It raises after a reset with options, as only PettingZoo's test makes one."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.tested = getattr(self, "tested", False) or options is not None
        return super().reset(seed, options)

    def play(self, actions: Any) -> dict[str, float]:
        if self.tested and self.t == 5:
            raise RuntimeError("third episode")
        return super().play(actions)


class Masked(Duel):
    """Raises where a forbidden action is taken."""

    observations = dict.fromkeys(
        Duel.possible_agents,
        spaces.Dict(
            {
                "observation": spaces.Box(0, 2, (2,), np.float32),
                "action_mask": spaces.MultiBinary(3),
            }
        ),
    )

    def play(self, actions: Any) -> dict[str, float]:
        if forbidden := [
            agent for agent, action in actions.items() if int(action) == (self.t - 1) % 3
        ]:
            raise ValueError(f"{forbidden} took what is forbidden")
        return super().play(actions)

    def seen(self) -> dict[str, Any]:
        mask = np.ones(3, np.int8)
        mask[self.t % 3] = 0
        return {
            name: {"observation": obs, "action_mask": mask.copy()}
            for name, obs in super().seen().items()
        }


class Turns(AECEnv[str, Any, Any]):  # type: ignore[misc]
    """Two agents guess a bit in turns, and see it once both have guessed."""

    metadata: dict[str, Any] = {"name": "turns", "is_parallelizable": True}

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["one", "two"]
        self.render_mode = None

    def observation_space(self, agent: str) -> Any:
        return SPACE

    def action_space(self, agent: str) -> Any:
        return CHOICE

    def observe(self, agent: str) -> Any:
        return self.bit

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.agents, self.t, self.bit = list(self.possible_agents), 0, 0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = (
            dict.fromkeys(self.agents, False),
            dict.fromkeys(self.agents, False),
        )
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self._selector = AgentSelector(self.agents)
        self.agent_selection = self._selector.reset()
        self.guesses: dict[str, int] = {}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self.guesses[agent] = int(action)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        if self._selector.is_last():
            self.bit, self.t = int(self.rng.integers(2)), self.t + 1
            self.rewards = {name: float(self.guesses[name] == self.bit) for name in self.agents}
            self.truncations = dict.fromkeys(self.agents, self.t == LENGTH)
        self.agent_selection = self._selector.next()
        self._accumulate_rewards()


class TurnsOnly(Turns):
    metadata: dict[str, Any] = {"name": "turns"}


SPACE, CHOICE = spaces.Discrete(2), spaces.Discrete(2)

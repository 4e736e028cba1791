"""The ruler of several agents: a parallel env whose agents die and come back at moments that follow
from their numbers.

The law is a function of (stream, row): which life of the agent it is, how old that is, whether the
agent is there at all. Every env row is a row of each agent, so a row number says where all of them
are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from equipoise.envs.toys.ruler import reward
from equipoise.types import Trajectory

LONGEST = 12  # steps of an env's episode
AGENTS = ("a0", "a1", "b0")
# of an observation: (stream, life, t), and of the b a number more
WIDTH = {"a0": 3, "a1": 3, "b0": 4}
ACTIONS = {"a0": 8, "a1": 8, "b0": 5}


def number(*words: int) -> int:
    return int(np.random.SeedSequence(words).generate_state(1)[0])


class Law:
    """One agent of one env, row by row, as far as it was asked for."""

    def __init__(self, env: int, place: int) -> None:
        self.env, self.place = env, place
        self.stream = env * len(AGENTS) + place
        self.here: list[bool] = []  # may it act on what row r shows
        self.shown: list[tuple[int, int]] = []  # (life, t); (-1, -1): blank
        self.first: list[bool] = []
        self.begun: list[int] = []  # the last row that was first
        self.ended: list[tuple[bool, bool]] = []  # (terminated, truncated) by the action of row r
        self._episode, self._life = 0, -1

    def upto(self, rows: int) -> Law:
        while len(self.ended) <= rows:
            self._add()
        return self

    def _add(self) -> None:
        """The rows of one more episode of the env."""
        episode, length = self._episode, 1 + number(self.env, self._episode, 1) % LONGEST
        here, t = False, 0
        for k in range(length + 1):
            draw = number(self.stream, episode, k, 2)
            stays = self.place == episode % len(AGENTS)  # somebody has to
            before = here
            here = k < length and (stays or (draw % 4 > 0 if before else draw % 3 == 0))
            came = here and not before
            self._life, t = (self._life + 1, 0) if came else (self._life, t + 1)
            if k:
                kind = draw // 64 % 5 if before and not here else -1
                self.ended.append((kind in (0, 1, 4), kind in (2, 3, 4)))
            self.shown.append((self._life, t) if here or before else (-1, -1))
            self.first.append(came or k == 0)
            self.begun.append(len(self.first) - 1 if self.first[-1] else self.begun[-1])
            self.here.append(here)
        self.ended.append((False, False))  # the seam
        self._episode += 1


LAWS: dict[int, Law] = {}


def law(stream: int, rows: int) -> Law:
    if stream not in LAWS:
        LAWS[stream] = Law(*divmod(stream, len(AGENTS)))
    return LAWS[stream].upto(rows)


class Herd:
    """A ``ParallelEnv`` without the class: env number ``stream``. ``raises``: rows of the env at
    which a step raises.
    """

    metadata: dict[str, Any] = {"name": "herd"}

    def __init__(self, stream: int = 0, raises: tuple[int, ...] = ()) -> None:
        self.env, self.raises = stream, raises
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        self.row = -1

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(0, 2**24, (WIDTH[agent],), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(ACTIONS[agent])

    def _law(self, agent: str) -> Law:
        return law(self.env * len(AGENTS) + AGENTS.index(agent), self.row + 1)

    def _obs(self, agent: str) -> Any:
        seen = (self._law(agent).stream, *self._law(agent).shown[self.row], 7)
        return np.array(seen[: WIDTH[agent]], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.row += 1
        self.agents = [agent for agent in AGENTS if self._law(agent).here[self.row]]
        return {agent: self._obs(agent) for agent in self.agents}, {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        if set(actions) != set(self.agents):
            raise AssertionError(f"expected actions of {self.agents}, got {list(actions)}")
        if self.row in self.raises:
            raise ArithmeticError(f"at row {self.row}")
        acted, got, ended = list(self.agents), {}, {}
        for agent in acted:
            of = self._law(agent)
            got[agent] = float(reward(*of.shown[self.row], actions[agent]))
            ended[agent] = of.ended[self.row]
        self.row += 1
        self.agents = [agent for agent in AGENTS if self._law(agent).here[self.row]]
        obs = {
            agent: self._obs(agent) for agent in AGENTS if agent in acted or agent in self.agents
        }
        return (
            obs,
            got,
            {a: e[0] for a, e in ended.items()},
            {a: e[1] for a, e in ended.items()},
            {a: {} for a in obs},
        )

    def close(self) -> None: ...


class ExactHerd(Herd):
    """It can say where it is."""

    def get_state(self) -> Any:
        return {"row": np.array(self.row)}

    def set_state(self, state: Any) -> None:
        self.row = int(state["row"])
        self.agents = [agent for agent in AGENTS if self._law(agent).here[self.row]]


def verify(data: Trajectory, at: dict[int, tuple[int, int]] | None = None) -> list[str]:
    """Every violation of the law in a trajectory, as sentences; ``at``: stream -> the row it goes
    on with, its version.
    """
    steps, count = np.shape(data.reward)
    wrong: list[str] = []
    obs, first, mask, bootstrap = (
        np.asarray(x) for x in (data.obs, data.first, data.mask, data.bootstrap)
    )
    got, action, version = (
        np.asarray(data.reward),
        np.asarray(data.action),
        np.asarray(data.version),
    )
    for b in range(count):
        stream, start = int(data.context["stream"][b]), int(data.context["start"][b])
        of = law(stream, start + steps)
        if at is not None:
            due, newest = at.get(stream, (0, -1))
            if start != due:
                wrong.append(f"context start of stream {stream}: expected {due}, got {start}")
            if version[0, b] < newest:
                wrong.append(
                    f"version of stream {stream}: went back from {newest} to {version[0, b]}"
                )
            at[stream] = start + steps, int(version[-1, b])
        for t in range(steps + 1):
            row = start + t
            life, age = of.shown[row]
            expected: Any = np.array(
                (stream, life, age, 7)[: obs.shape[-1]] if life >= 0 else (0,) * obs.shape[-1]
            )
            told = [
                ("obs", obs[t, b].tolist(), expected.tolist()),
                ("first", first[t, b], of.first[row]),
            ]
            if t < steps:
                real = of.here[row]
                told += [
                    ("mask", mask[t, b], real),
                    ("reward", got[t, b], float(reward(life, age, action[t, b])) if real else 0.0),
                    ("bootstrap", bootstrap[t, b], not of.ended[row][0]),
                ]
            wrong += [
                f"{what}[{t}] of stream {stream}: expected {e}, got {g}"
                for what, g, e in told
                if g != e
            ]
    return wrong

"""A PettingZoo parallel env as one Gymnasium env.

Nothing here imports PettingZoo: an env is recognised by its attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import reduce
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from equipoise import foreign, tree
from equipoise.envs import hints as wrong
from equipoise.envs.failures.row_checks import ZERO_OR_ONE, invalid, odd
from equipoise.envs.families.turns import is_turns
from equipoise.envs.masks import counted, place_of
from equipoise.envs.restore import resume
from equipoise.envs.spaces import action_spec, member, observation_spec
from equipoise.envs.values import FLAGS, described, flag, number, plain
from equipoise.tree import ArraySpec
from equipoise.types import Tree

ABSENT = object()  # an attribute that an env does not have
ACTED, TERMINATED, TRUNCATED, CAME = range(4)  # rows of the flags
STEP = ("observations", "rewards", "terminations", "truncations", "infos")
ALLOWED = (
    "at least one action allowed (an agent that cannot act leaves env.agents, or may take an "
    "action that does nothing)"
)


GIVES = (
    "a parallel env, as PettingZoo's, has possible_agents (names), agents, "
    "observation_space(agent) and action_space(agent); "
    "reset(seed, options) returns (observations, infos) and step(actions) returns (observations, "
    "rewards, terminations, "
    "truncations, infos), each a dict by agent"
)


class NotParallel(ValueError):
    """An env of several agents whose interface is not PettingZoo's."""


def has_agents(env: object) -> bool:
    """Does an env have several agents, by its attributes? Unreadable if reading an attribute
    raises.
    """
    space, _ = (foreign.attribute(env, name) for name in ("observation_space", "action_space"))
    names = ("possible_agents", "agents", "num_agents", "observation_spaces", "action_spaces")
    several = [foreign.attribute(env, name, ABSENT) is not ABSENT for name in names]
    return any(several) or isinstance(space, dict) or callable(space)


def is_parallel(env: object) -> bool:
    """Is it a ``pettingzoo.ParallelEnv``, or something with the same methods?"""
    return (
        foreign.has(env, "possible_agents")
        and not is_turns(env)
        and foreign.calls(env, "reset", "step", "observation_space", "action_space")
    )


class Joint(gymnasium.Env):
    """One parallel env: an observation has all agents' rows, an action [D] float64 all their
    actions.

    Each episode is reset with a seed from ``np_random``, so it can be played again. An env with
    ``get_state`` (a tree of arrays) and ``set_state`` is restored exactly.

    ``action_mask``: each agent's mask, as in ``masks.CHOICES``. A mask that allows nothing is a
    failure, unless its agent is absent or has ended.
    """

    metadata: dict[str, object] = {"render_modes": []}

    def __init__(self, make: Callable[[], Any], action_mask: str = "auto") -> None:
        self.env = make()
        if not is_parallel(self.env):
            raise ValueError(f"expected a PettingZoo ParallelEnv, got {type(self.env).__name__}")
        try:
            self.ids = list(self.env.possible_agents)
        except TypeError:
            got = described(self.env.possible_agents)
            raise NotParallel(
                f"{self.env}: possible_agents: expected names, got {got}; {GIVES}"
            ) from None
        self.names = tuple(map(str, self.ids))
        count = len(self.ids)
        if not count or len(set(self.names)) != count:
            raise ValueError(
                f"{self.env}: expected possible_agents with names of their own, got {self.ids}"
            )
        self.observations = {
            name: self._space("observation_space", i)
            for name, i in zip(self.names, self.ids, strict=True)
        }
        self.actions = {
            name: self._space("action_space", i)
            for name, i in zip(self.names, self.ids, strict=True)
        }
        for name, space in self.observations.items():
            # refuses a space that no policy can use
            observation_spec(space, f"obs/agents/{name}")
        self.action_mask = action_mask
        self._masks = [
            masks_of(action_mask, self.observations[name], self.actions[name])
            for name in self.names
        ]
        self._keys = [f"agent {agent!r}, reward" for agent in self.ids]
        self._index = {agent: i for i, agent in enumerate(self.ids)}
        self._blank = [blank(space) for space in self.observations.values()]
        self.parts, at = [], 0  # the joint action by agent: its numbers, their shape and dtype
        for space in self.actions.values():
            size = size_of(space)
            self.parts.append(
                (slice(at, at + size), tuple(space.shape or ()), np.dtype(space.dtype))
            )
            at += size
        self.numbers = at
        self.observation_space = spaces.Dict(
            {
                "agents": spaces.Dict(self.observations),
                "reward": spaces.Box(-np.inf, np.inf, (count,), np.float32),
                "flags": spaces.Box(0, 1, (4, count), np.uint8),
            }
        )
        self.action_space = spaces.Box(-np.inf, np.inf, (at,), np.float64)
        self._live = [False] * count  # agents with a next action that counts
        self._flags, self._reward = np.zeros((4, count), np.uint8), np.zeros(count, np.float32)
        if resume.offers_state(self.env):
            self.get_state, self.set_state = self._get_state, self._set_state

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Tree, dict[str, object]]:
        super().reset(seed=seed)
        obs, _ = answered(
            "reset",
            self.env.reset(seed=int(self.np_random.integers(2**31 - 1))),
            ("observations", "infos"),
        )
        self._flags.fill(0)
        self._reward.fill(0.0)
        here = self._here()
        self._live = here
        row = self._row(obs, here)
        self._look_at_masks(row["agents"])
        return row, {}

    def step(self, action: Tree) -> tuple[Tree, float, bool, bool, dict[str, object]]:
        acts = {self.ids[i]: self._action(action, i) for i, here in enumerate(self._here()) if here}
        obs, reward, terminated, truncated, _ = answered("step", self.env.step(acts), STEP)
        flags, live = self._flags, self._live
        flags.fill(0)
        self._reward.fill(0.0)
        here = self._here()
        for i, agent in enumerate(self.ids):
            ended = ends(terminated, agent, "terminated"), ends(truncated, agent, "truncated")
            if live[i]:
                if agent not in reward or agent not in terminated or agent not in truncated:
                    parts = zip(STEP[1:4], (reward, terminated, truncated), strict=True)
                    got = f"none in {', '.join(name for name, part in parts if agent not in part)}"
                    raise invalid(
                        0, f"agent {agent!r} acted", "its reward, terminated and truncated", got
                    )
                if not here[i] and not any(ended):
                    where = f"agent {agent!r} left env.agents"
                    raise invalid(0, where, "terminated or truncated with it", "neither")
                flags[ACTED, i] = 1
                flags[TERMINATED, i], flags[TRUNCATED, i] = ended
                self._reward[i] = number(reward[agent], 0, self._keys[i])
            here[i] = here[i] and not any(ended)
            flags[CAME, i] = here[i] and not live[i]
        if not any(live) and not any(here):
            raise invalid(0, "env.agents", "an agent after reset() or after the first step", "none")
        row = self._row(obs, [a or b for a, b in zip(here, live, strict=True)])
        self._live = here
        self._look_at_masks(row["agents"])
        return row, 0.0, not any(here), False, {}

    def _look_at_masks(self, rows: Mapping[str, Tree]) -> None:
        for i, name in enumerate(self.names):
            for path, begins in self._masks[i] if self._live[i] else ():
                try:
                    mask = np.ravel(plain(reduce(member, path, rows[name])))
                    allowed = np.logical_or.reduceat(mask != 0, begins)
                except (LookupError, TypeError, ValueError):
                    # no mask: the check of the observation finds it
                    continue
                key = f"agent {self.ids[i]!r}, obs/{'/'.join(path)}"
                if mask.dtype.kind in "biuf" and (bad := odd(mask)).any():
                    raise invalid(0, key, ZERO_OR_ONE, f"{mask[bad][0]} at [{int(bad.argmax())}]")
                if not allowed.all():
                    which = (
                        f" for choice {int(allowed.argmin())} of {len(begins)}"
                        if len(begins) > 1
                        else ""
                    )
                    raise invalid(0, key, ALLOWED, f"none{which}")

    def _space(self, kind: str, agent: Hashable) -> Tree:
        space = foreign.attribute(self.env, kind)(agent)
        if not isinstance(space, spaces.Space):
            got = described(space)
            raise NotParallel(
                f"{self.env}: {kind}({agent!r}): expected a space of Gymnasium, got {got}; {GIVES}"
            )
        return space

    def _here(self) -> list[bool]:
        here = [False] * len(self.ids)
        agents = foreign.attribute(self.env, "agents")
        if not isinstance(agents, Collection):
            raise invalid(
                0,
                "agents",
                "the names of the agents that act next",
                f"{described(agents)}; {GIVES}",
            )
        for agent in agents:
            if agent not in self._index:
                raise invalid(
                    0, "agents", f"names in possible_agents, {self.ids}", described(agent)
                )
            here[self._index[agent]] = True
        return here

    def _action(self, action: Tree, i: int) -> Tree:
        part, shape, dtype = self.parts[i]
        return action[part].reshape(shape).astype(dtype)[()]

    def _row(self, obs: Mapping[Hashable, Tree], shown: Sequence[bool]) -> dict[str, Tree]:
        rows = {}
        for i, (agent, name) in enumerate(zip(self.ids, self.names, strict=True)):
            if shown[i] and agent not in obs:
                got = described(list(obs))
                raise invalid(
                    0, f"agent {agent!r}", "an observation of it, its last one included", got
                )
            rows[name] = obs[agent] if shown[i] else self._blank[i]
        return {"agents": rows, "reward": self._reward, "flags": self._flags}

    def _get_state(self) -> Tree:
        return {"env": self.env.get_state(), "live": np.array(self._live)}

    def _set_state(self, state: Tree) -> None:
        self.env.set_state(state["env"])
        self._live = state["live"].tolist()

    def close(self) -> None:
        self.env.close()

    def __str__(self) -> str:
        return str(self.env)


def answered(method: str, given: Tree, parts: Sequence[str]) -> Tree:
    """The answer of a parallel env; WrongValue unless each of ``parts`` is a dict by agent."""
    if not isinstance(given, tuple | list) or len(given) != len(parts):
        got = f"a tuple of {len(given)}" if isinstance(given, tuple) else described(given)
        raise invalid(0, f"{method}()", f"({', '.join(parts)})", f"{got}; {GIVES}")
    for name, part in zip(parts[:-1], given, strict=False):  # infos are not read
        if not isinstance(part, Mapping):
            raise invalid(
                0, f"{method}(): {name}", "a dict by agent", f"{described(part)}; {GIVES}"
            )
    return given


def ends(flags: Mapping[Hashable, Tree], agent: Hashable, name: str) -> bool:
    value = flags.get(agent, False)
    return bool(value) if type(value) in FLAGS else flag(value, 0, f"agent {agent!r}, {name}")


def blank(space: spaces.Space[object]) -> Tree:
    """The observation in the row of an agent that is absent."""
    if isinstance(space, spaces.Dict):
        return {
            key: np.ones(inner.shape or (), inner.dtype) if key == "action_mask" else blank(inner)
            for key, inner in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        return tuple(blank(inner) for inner in space.spaces)
    nothing = np.zeros(space.shape or (), space.dtype)
    if isinstance(space, spaces.Box):
        return np.clip(nothing, space.low, space.high)
    return nothing + np.asarray(foreign.optional(space, "start", 0), space.dtype)


def masks_of(
    choice: str, observation: spaces.Space[object], action: spaces.Space[object]
) -> list[tuple[tuple[str, ...], Any]]:
    """(keys in the observation, where each choice begins) of each array of an agent's mask."""
    if not (keys := place_of(choice, observation, action)):
        return []
    rows = tree.zeros(tree.prepend(reduce(member, keys, observation_spec(observation)), 1))
    return [
        (tree.keys_of(place), begins)
        for place, _, begins in counted(tree.path_of(*keys), rows, action)
    ]


def size_of(action: spaces.Space[object]) -> int:
    """Count the numbers of an agent's action."""
    spec = action_spec(action)
    if not isinstance(spec, ArraySpec):
        raise wrong.UnsupportedSpace(
            f"action space {action} of an agent is not supported: expected one array, not several"
        )
    return int(np.prod(spec.shape, dtype=np.int64))

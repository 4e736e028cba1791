"""PettingZoo AEC envs, whose agents act in turns, as parallel envs; and seats that are dealt again
in each episode.

``at_once`` picks the way. If the metadata has ``is_parallelizable`` the agents of a round act
together, through ``pettingzoo.utils.aec_to_parallel``. Any other game is played by ``Turns``, one
move a step. An agent that waits also has a row: its observation, its reward from the move, and a
mask that allows the first choice alone, which does nothing. So a policy learns nothing from the
actions it takes while it waits, and ``gamma`` is per move.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from gymnasium import spaces

from equipoise import foreign
from equipoise.envs.masks import KEY, mask_space, sizes
from equipoise.types import Tree

Seating = Literal["fixed", "swap"]
ByAgent = dict[Hashable, Tree]


def is_turns(env: object) -> bool:
    """Is it a ``pettingzoo.AECEnv``, with agents that act in turns?"""
    return foreign.has(env, "possible_agents", "agent_iter") and foreign.calls(
        env, "last", "observation_space", "action_space"
    )


def at_once(make: Callable[[], object]) -> object:
    """Return the AEC env that ``make`` makes as a parallel one."""
    env = make()
    about = foreign.attribute(env, "metadata")
    if not isinstance(about, Mapping) or not about.get("is_parallelizable", False):
        return Turns(env)
    from pettingzoo.utils import aec_to_parallel

    return aec_to_parallel(env)


def turns_of(env: object) -> str:
    """How a parallel env plays a game in turns; "" if its agents act together."""
    inner = env.env if isinstance(env, Seats) else env
    if isinstance(inner, Turns):
        return "one step is one move, and an agent that waits has one action, which does nothing"
    if type(inner).__name__.startswith("aec_to_parallel"):
        return "stepped through pettingzoo.utils.aec_to_parallel"
    return ""


class AgentsWrapper:
    """A parallel env around another env, with its agents, spaces and pictures."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.metadata = foreign.optional(env, "metadata", {})
        self.render_mode = foreign.optional(env, "render_mode")
        self.unwrapped = foreign.optional(env, "unwrapped", env)
        self.possible_agents: list[Any] = list(env.possible_agents)

    def observation_space(self, agent: Hashable) -> Any:
        return self.env.observation_space(agent)

    def action_space(self, agent: Hashable) -> Any:
        return self.env.action_space(agent)

    def render(self) -> Tree:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def __str__(self) -> str:
        return str(self.env)


class Turns(AgentsWrapper):
    """A parallel env of an AEC env: each step is one move, and waiting agents see it happen.

    An observation with an ``action_mask`` keeps its space; any other becomes {"obs", "action_mask"}
    if the action can be masked. A ``Box`` action is ignored while its agent waits.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.agents: list[Any] = []
        self._spaces: dict[Hashable, spaces.Space[object]] = {
            agent: _masked(env.observation_space(agent), env.action_space(agent))
            for agent in self.possible_agents
        }
        self._has_mask = {
            agent: _has_mask(env.observation_space(agent)) for agent in self.possible_agents
        }
        self._waits = {
            agent: _first_alone(env.action_space(agent)) for agent in self.possible_agents
        }

    def observation_space(self, agent: Hashable) -> spaces.Space[object]:
        return self._spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[ByAgent, ByAgent]:
        self.env.reset(seed=seed, options=options)
        self._pass_over_the_ended()
        self.agents = self._listed()
        if not self.agents:
            raise ValueError(
                "env.agents: expected the agents of a game that begins, got none after reset"
            )
        return {agent: self._seen(agent) for agent in self.agents}, {
            agent: {} for agent in self.agents
        }

    def step(self, actions: ByAgent) -> tuple[ByAgent, ...]:
        env, before = self.env, self.agents
        env.step(actions[env.agent_selection])
        rewards, terminated, truncated = (
            self._by_agent(name) for name in ("rewards", "terminations", "truncations")
        )
        ended = {
            agent for agent in before if terminated.get(agent, False) or truncated.get(agent, False)
        }
        # An ended agent is observed before it leaves, other agents once the next mover is known.
        seen = {agent: self._seen(agent) for agent in before if agent in ended}
        self._pass_over_the_ended()
        self.agents = [agent for agent in self._listed() if agent not in ended]
        seen |= {agent: self._seen(agent) for agent in self.agents}
        return seen, rewards, terminated, truncated, {agent: {} for agent in seen}

    def _by_agent(self, name: str) -> dict[object, object]:
        if not isinstance(given := foreign.attribute(self.env, name), Mapping):
            raise ValueError(
                f"env.{name}: expected a dict with one for each agent, got {type(given).__name__}"
            )
        return dict(given)

    def _listed(self) -> list[Any]:
        """The agents now; ValueError if an agent was not announced, or no agent moves."""
        listed, mover = list(self.env.agents), self.env.agent_selection
        if strange := [agent for agent in listed if agent not in self._spaces]:
            raise ValueError(
                f"env.agents: expected agents of possible_agents {self.possible_agents}, got "
                f"{strange[0]!r}"
            )
        if listed and mover not in listed:
            raise ValueError(
                f"env.agent_selection: expected one of env.agents {listed}, got {mover!r}"
            )
        return listed

    def _pass_over_the_ended(self) -> None:
        """Take agents whose episode has ended out of the env, by steps without an action."""
        env = self.env
        for _ in range(len(self.possible_agents) + 1):
            agent = env.agent_selection
            if not env.agents or not (
                env.terminations.get(agent, False) or env.truncations.get(agent, False)
            ):
                return
            env.step(None)
        agent, left = env.agent_selection, list(env.agents)
        raise ValueError(
            f"agent {agent!r} has ended: expected step(None) to take it out of env.agents, got "
            f"{left}"
        )

    def _seen(self, agent: Hashable) -> Tree:
        seen, wait = self.env.observe(agent), self._waits[agent]
        if wait is None:
            return seen
        moves = agent == self.env.agent_selection
        if isinstance(seen, Mapping) and KEY in seen:
            return seen if moves else {**seen, KEY: _like(seen[KEY], wait)}
        if self._has_mask[agent]:
            return seen  # without the mask that its space has: the check of the rows names it
        allowed = (
            ((self.env.infos or {}).get(agent) or {}).get(KEY, np.ones_like(wait))
            if moves
            else wait
        )
        return {"obs": seen, KEY: allowed}


def _has_mask(observation: spaces.Space[object]) -> bool:
    return isinstance(observation, spaces.Dict) and KEY in observation.spaces


def _masked(observation: spaces.Space[object], action: spaces.Space[object]) -> Tree:
    if _has_mask(observation):
        return observation
    mask = mask_space(action) if sizes(action) else None
    return observation if mask is None else spaces.Dict({"obs": observation, KEY: mask})


def _first_alone(action: spaces.Space[object]) -> Tree:
    """The flat mask that allows the first of each choice; None if nothing can be masked."""
    if not (counts := sizes(action)):
        return None
    mask = np.zeros(sum(counts), np.int8)
    mask[np.cumsum([0, *counts[:-1]])] = 1
    return mask


def _like(mask: Tree, flat: Tree) -> Tree:
    """``flat`` in the form of the env's own ``mask``: an array, or a tuple of arrays."""
    if not isinstance(mask, tuple):
        return flat.reshape(np.shape(mask)).astype(foreign.optional(mask, "dtype", flat.dtype))
    parts = np.split(flat, np.cumsum([len(part) for part in mask])[:-1])
    return tuple(_like(part, of) for part, of in zip(mask, parts, strict=True))


class Seats(AgentsWrapper):
    """A parallel env whose agents change seats by each episode's seed.

    ``possible_agents`` are players with the names of the seats: a policy learns from every seat.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        for what, space_of in (
            ("observation_space", env.observation_space),
            ("action_space", env.action_space),
        ):
            given = {str(agent): space_of(agent) for agent in self.possible_agents}
            first = next(iter(given.values()))
            if odd := [name for name, space in given.items() if space != first]:
                raise ValueError(
                    f"seats=swap: expected agents with the same {what}, got {first} of "
                    f"{next(iter(given))!r} and "
                    f"{given[odd[0]]} of {odd[0]!r}; take seats=fixed"
                )
        self._player = dict(zip(self.possible_agents, self.possible_agents, strict=True))  # by seat
        self._seat = dict(self._player)  # by player

    @property
    def agents(self) -> list[Any]:
        return [self._player[seat] for seat in self.env.agents]

    def reset(
        self, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[ByAgent, ByAgent]:
        order = np.random.default_rng(seed).permutation(len(self.possible_agents))
        self._player = {
            seat: self.possible_agents[i]
            for seat, i in zip(self.possible_agents, order, strict=True)
        }
        self._seat = {player: seat for seat, player in self._player.items()}
        seen, infos = self.env.reset(seed=seed, options=options)
        return self._dealt(seen), self._dealt(infos)

    def step(self, actions: ByAgent) -> Sequence[ByAgent]:
        # The caller refuses an answer without five parts.
        given = self.env.step({self._seat[player]: action for player, action in actions.items()})
        return tuple(self._dealt(part) if isinstance(part, Mapping) else part for part in given)

    def _dealt(self, by_seat: Mapping[object, object]) -> ByAgent:
        return {self._player.get(seat, seat): value for seat, value in by_seat.items()}


def seated(make: Callable[[], Any], seats: object) -> Callable[[], Any]:
    """Return ``make`` with its seats dealt by ``seats``; ValueError for an unknown word."""
    if seats not in get_args(Seating):
        raise ValueError(f"seats: expected one of {', '.join(get_args(Seating))}, got {seats!r}")
    return (lambda: Seats(make())) if seats == "swap" else make

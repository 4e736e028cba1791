"""A JAX env with gymnax's interface, whose state has one array of each kind, and variants of it
that are wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Params:
    max_steps_in_episode: int = 9
    chance: float = 0.15

    def replace(self, **changes: Any) -> Params:
        return replace(self, **changes)


@dataclass
class Space:
    shape: tuple[int, ...] = ()
    low: float = -10.0
    high: float = 10.0


@dataclass
class Choice:
    n: int = 3
    shape: tuple[int, ...] = ()


class Kinds:
    """The observation is (the episode's number, t, the last action); an episode ends by chance, or
    is cut by the clock.
    """

    default_params = Params()

    def observation_space(self, params: Params) -> Any:
        return Space((3,))

    def action_space(self, params: Params) -> Any:
        return Choice()

    def reset_env(self, key: Any, params: Params) -> tuple[Any, Any]:
        number = jax.random.uniform(key)
        state = {
            "number": number,
            "t": 0,
            "key": jax.random.fold_in(key, 7),
            "raw": jax.random.bits(key, (2,)),
            "flag": False,
            "large": jnp.full((100,), number),
            "bytes": jnp.zeros((3,), jnp.uint8),
            "empty": jnp.zeros((0, 4)),
            "half": jnp.zeros((), jnp.bfloat16),
            "last": jnp.int32(0),
            "weak": jnp.full((100,), 1.0),
        }
        return self.observe(state), state

    def step_env(self, key: Any, state: Any, action: Any, params: Params) -> tuple[Any, ...]:
        own, now = jax.random.split(state["key"])
        state = {
            **state,
            "t": state["t"] + 1,
            "key": own,
            "raw": state["raw"] + 1,
            "flag": ~state["flag"],
            "large": state["large"] + 1,
            "bytes": state["bytes"] + 1,
            "half": state["half"] + 1,
            "last": action,
        }
        ends = jax.random.uniform(now) < params.chance
        reward = (
            state["large"].sum() * 0.01 + state["raw"][0] % 7 + state["bytes"][1] + state["half"]
        )
        return self.observe(state), state, reward, ends, {}

    def is_truncated(self, state: Any, params: Params) -> Any:
        return state["t"] >= params.max_steps_in_episode

    def observe(self, state: Any) -> Any:
        return jnp.stack([state["number"], jnp.float32(state["t"]), jnp.float32(state["last"])])


class Grows(Kinds):
    def step_env(self, key: Any, state: Any, action: Any, params: Params) -> tuple[Any, ...]:
        obs, *rest = super().step_env(key, state, action, params)
        return jnp.concatenate([obs, obs]), *rest


class ByValue(Kinds):
    def step_env(self, key: Any, state: Any, action: Any, params: Params) -> tuple[Any, ...]:
        obs, *rest = super().step_env(key, state, action, params)
        return obs[obs > 0], *rest


class Branches(Kinds):
    def reset_env(self, key: Any, params: Params) -> tuple[Any, Any]:
        obs, state = super().reset_env(key, params)
        return (obs if state["number"] > 0.5 else -obs), state


class OtherSpace(Kinds):
    def observation_space(self, params: Params) -> Any:
        return Space((4,))


class OtherState(Kinds):
    def step_env(self, key: Any, state: Any, action: Any, params: Params) -> tuple[Any, ...]:
        obs, state, *rest = super().step_env(key, state, action, params)
        return obs, {**state, "large": state["large"][:50]}, *rest


class Short(Kinds):
    def step_env(self, key: Any, state: Any, action: Any, params: Params) -> tuple[Any, ...]:
        return super().step_env(key, state, action, params)[:4]


class Wide(Kinds):
    def step_env(self, key: Any, state: Any, action: Any, params: Params) -> tuple[Any, ...]:
        obs, state, reward, *rest = super().step_env(key, state, action, params)
        return obs, state, reward[None], *rest


class Listed(Kinds):
    def observe(self, state: Any) -> Any:
        return [state["number"]]


def one_step() -> Kinds:
    """Episodes of one step, all cut."""
    made = Kinds()
    made.default_params = Params(max_steps_in_episode=1, chance=0.0)
    return made

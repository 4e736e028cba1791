"""JAX's libraries of envs by id: ``jax:gymnax/CartPole-v1``, ``jax:craftax/...``, ``jax:brax/...``,
``jax:playground/...``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from equipoise import foreign
from equipoise.device_envs.jax_env import JaxEnv, Pytree, Stepped, World
from equipoise.hints import hint, meant
from equipoise.naming import called
from equipoise.private.brax import envs

NEVER = 2**30  # steps, if the library's own clock is not to end an episode


class Gymnax:
    """An env with gymnax 1.0's interface (https://github.com/RobertTLange/gymnax)."""

    def __init__(self, env: Any, params: Pytree) -> None:
        self._env, self._params = env, params
        space = env.action_space(params)
        self.action: gymnasium.Space[object]
        if foreign.has(space, "n"):
            self.action = spaces.Discrete(int(space.n))
        else:
            low, high = (
                np.broadcast_to(np.asarray(x, np.float32), space.shape)
                for x in (space.low, space.high)
            )
            self.action = spaces.Box(low, high, space.shape, np.float32)
        self.bounds = env.observation_space(params)

    def begin(self, key: jax.Array) -> tuple[Pytree, Pytree]:
        obs, state = self._env.reset_env(key, self._params)
        return state, obs

    def advance(self, key: jax.Array, state: Pytree, action: jax.Array) -> Stepped:
        obs, state, reward, terminated, _ = self._env.step_env(key, state, action, self._params)
        return state, obs, reward, terminated, self._env.is_truncated(state, self._params)


class Craftax(Gymnax):
    """An env of Craftax (Matthews et al. 2024, arXiv:2402.16801).

    It reports a cut by its clock as a terminal state, so that clock is set too far off to end an
    episode, and the steps are compared here.
    """

    def __init__(self, env: Any, params: Pytree) -> None:
        super().__init__(env, params.replace(max_timesteps=NEVER))
        self._limit = params.max_timesteps

    def advance(self, key: jax.Array, state: Pytree, action: jax.Array) -> Stepped:
        obs, state, reward, terminated, _ = self._env.step_env(key, state, action, self._params)
        return state, obs, reward, terminated, state.timestep >= self._limit


class Brax:
    """An env of Brax or MuJoCo Playground without wrappers; its steps are counted here.

    ``group``: the part that the policy sees, if observations are a dict.
    """

    bounds = None

    def __init__(self, env: Any, limit: int, repeat: int, group: str) -> None:
        """``limit``: steps until an episode is cut. ``repeat``: calls per step, same action."""
        self._env, self._limit, self._repeat, self._group = env, limit, repeat, group
        self.action: gymnasium.Space[object] = spaces.Box(-1.0, 1.0, (env.action_size,), np.float32)

    def begin(self, key: jax.Array) -> tuple[Pytree, Pytree]:
        state = self._env.reset(key)
        return (state, jnp.int32(0)), self._seen(state.obs)

    def advance(self, key: jax.Array, state: Pytree, action: jax.Array) -> Stepped:
        inner, steps = state
        reward = 0.0
        for _ in range(self._repeat):
            inner = self._env.step(inner, action)
            reward += inner.reward
        steps += self._repeat
        return (inner, steps), self._seen(inner.obs), reward, inner.done > 0, steps >= self._limit

    def _seen(self, obs: Pytree) -> Pytree:
        if not isinstance(obs, dict):
            return obs
        if self._group not in obs:
            raise ValueError(
                "group: expected a group of observations, got "
                f"{self._group!r}{hint(self._group, list(obs))}"
            )
        return obs[self._group]


# ------------------------------------------------------------------------------------------ by name


def gymnax(name: str, device: str, **kwargs: object) -> Gymnax:
    import gymnax as library

    _known("gymnax", name, library.registered_envs)
    env, default = library.make(name)
    changes = _changes(
        f"jax:gymnax/{name}",
        kwargs,
        default,
        "max_steps_in_episode",
        signature(type(env)).parameters,
    )
    env, params = library.make(name, **kwargs)
    return Gymnax(env, params.replace(**changes))


def craftax(name: str, device: str, **kwargs: object) -> Craftax:
    from craftax.craftax_env import make_craftax_env_from_name as made

    _known("craftax", name, CRAFTAX)
    env = made(name, auto_reset=False)
    changes = _changes(f"jax:craftax/{name}", kwargs, env.default_params, "max_timesteps")
    return Craftax(env, env.default_params.replace(**changes))


def brax(name: str, device: str, *, max_episode_steps: int = 1000, **kwargs: object) -> Brax:
    known = envs()
    _known("brax", name, known)
    # n_frames: of the base class
    own = (*signature(known[name]).parameters, "n_frames", "max_episode_steps")
    _taken(f"jax:brax/{name}", kwargs, [key for key in own if key != "kwargs"])
    return Brax(
        import_module("brax.envs").get_environment(name, **kwargs), max_episode_steps, 1, "state"
    )


def playground(name: str, device: str, *, group: str = "state", **kwargs: object) -> Brax:
    from mujoco_playground import registry

    _known("playground", name, registry.ALL_ENVS)
    config = registry.get_default_config(name)
    if "max_episode_steps" in kwargs:
        kwargs["episode_length"] = kwargs.pop("max_episode_steps")
    _taken(f"jax:playground/{name}", kwargs, (*config, "max_episode_steps", "group"))
    if "impl" in config and device == "cpu":
        config.impl = "jax"  # its default needs a GPU
    env = registry.load(name, config=config, config_overrides=kwargs)
    return Brax(env, config.episode_length, config.action_repeat, group)


def _known(library: str, name: str, names: Collection[str]) -> None:
    if name not in names:
        raise ValueError(f"unknown env {name!r} of {library}{hint(name, names)}")


def _changes(
    target: str, kwargs: dict[str, object], params: Pytree, limit: str, also: Collection[str] = ()
) -> dict[str, object]:
    """Take the library's parameters out of ``kwargs``; ``limit``: its name of the time limit."""
    if "max_episode_steps" in kwargs:
        kwargs[limit] = kwargs.pop("max_episode_steps")
    fields = [field.name for field in dataclasses.fields(params)]
    _taken(target, kwargs, ("max_episode_steps", *fields, *also))
    return {key: kwargs.pop(key) for key in fields if key in kwargs}


def _taken(target: str, kwargs: Mapping[str, object], names: Collection[str]) -> None:
    for key in kwargs:
        if key not in names:
            raise ValueError(
                f"{target} takes no argument {key!r}{meant(key, names)}; it takes: "
                f"{', '.join(names)}"
            )


CRAFTAX = (
    "Craftax-Symbolic-v1",
    "Craftax-Pixels-v1",
    "Craftax-Classic-Symbolic-v1",
    "Craftax-Classic-Pixels-v1",
)
LIBRARIES: Mapping[str, Callable[..., World]] = {
    "gymnax": gymnax,
    "craftax": craftax,
    "brax": brax,
    "playground": playground,
}


def make(name: str, device: str = "cpu", **kwargs: object) -> JaxEnv:
    """Make ``name`` (without ``jax:``): LIBRARY/NAME, or module:callable of gymnax's interface.

    ``kwargs``: ``max_episode_steps``, and the library's: parameters (gymnax, Craftax), arguments of
    the class (gymnax, Brax), settings of the config (Playground).
    """
    with jax.default_device(device_of(device)):
        library, _, env = name.partition("/")
        if library in LIBRARIES:
            return JaxEnv(f"jax:{name}", LIBRARIES[library](env, device, **kwargs))
        if ":" not in name:
            raise ValueError(
                f"unknown library of JAX envs {library!r}{hint(library, LIBRARIES).rstrip('.')}; "
                "jax:module:callable is one of yours"
            )
        made = called(name, "JAX env")(**kwargs)
        return JaxEnv(f"jax:{name}", Gymnax(made, made.default_params))


def device_of(device: str) -> jax.Device:
    """JAX's device for one of torch's; ValueError if this JAX has no such device."""
    kind, _, number = device.partition(":")
    try:
        return jax.devices(kind)[int(number or 0)]
    except (RuntimeError, IndexError) as error:
        have = ", ".join(str(one) for one in jax.devices())
        raise ValueError(
            f"device: expected a JAX with {device}, got one with {have}; on a GPU: pip install "
            "'jax[cuda13]'"
        ) from error


def known() -> list[str]:
    """Ids of the libraries that are installed."""
    found = []
    if find_spec("gymnax"):
        found += [f"gymnax/{name}" for name in import_module("gymnax").registered_envs]
    if find_spec("craftax"):
        found += [f"craftax/{name}" for name in CRAFTAX]
    if find_spec("brax"):
        found += [f"brax/{name}" for name in envs()]
    if find_spec("mujoco_playground"):
        found += [
            f"playground/{name}" for name in import_module("mujoco_playground").registry.ALL_ENVS
        ]
    return [f"jax:{name}" for name in found]

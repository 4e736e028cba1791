"""Exact states of vector envs: arrays and the generator, as a tree of numpy arrays (no pickle).

Supported: Gymnasium's native CartPole, and every vector env class that names its arrays in
``snapshot_attributes`` (ours do, a user's may): together with ``np_random`` they must be all that
its next rows depend on.
"""

from __future__ import annotations

import json
from operator import attrgetter

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from equipoise import foreign
from equipoise.types import Tree


def attributes(env: object) -> tuple[str, ...] | None:
    if type(env) is CartPoleVectorEnv:
        return ("state", "steps", "prev_done")
    return declared(env)


def declared(env: object) -> tuple[str, ...] | None:
    """The names in ``snapshot_attributes`` of the class of an env or wrapper; None: no list."""
    names = foreign.attribute(type(env), "snapshot_attributes")
    return None if names is None else tuple(names)


def possible(env: VectorEnv) -> bool:
    """Can the env be captured exactly? A wrapper could keep a state of its own."""
    return env.unwrapped is env and attributes(env) is not None


def capture(env: VectorEnv) -> Tree:
    """Capture the state: {"np_random": uint8 JSON, attribute: array ...}."""
    names = attributes(env)
    assert names is not None
    return {"np_random": generator_state(env.np_random)} | {
        name: np.array(attrgetter(name)(env)) for name in names
    }


def restore(env: VectorEnv, state: Tree) -> None:
    names = attributes(env)
    assert names is not None
    for name in names:
        old, new = np.asarray(attrgetter(name)(env)), np.array(state[name])
        if old.shape != new.shape:
            raise ValueError(
                f"state of {type(env).__name__}.{name}: expected shape {old.shape}, got {new.shape}"
            )
        setattr(env, name, new.astype(old.dtype, copy=False))
    env.np_random = generator(state["np_random"])


def generator_state(rng: np.random.Generator) -> NDArray[np.uint8]:
    """The bit generator's state as JSON in [n] uint8 (128-bit integers fit no array)."""
    return state_array(rng.bit_generator.state)


def state_array(state: Tree) -> NDArray[np.uint8]:
    """The same array from a bit generator's ``state``."""
    return np.frombuffer(json.dumps(known(state)).encode(), np.uint8).copy()


def generator(state: Tree) -> np.random.Generator:
    """Restore a generator that goes on at the other's place."""
    bits = np.random.PCG64(0)
    bits.state = known(json.loads(np.asarray(state, np.uint8).tobytes().decode()))
    return np.random.Generator(bits)


def generator_dict(env: object) -> dict[str, object] | None:
    """The state of a Gymnasium env's generator as plain numbers; None if not known."""
    # asking for np_random would make a generator
    rng = foreign.optional(foreign.optional(env, "unwrapped", env), "_np_random")
    state = rng.bit_generator.state if isinstance(rng, np.random.Generator) else None
    return state if isinstance(state, dict) and state["bit_generator"] == "PCG64" else None


def generator_of(state: dict[str, object]) -> np.random.Generator:
    """Restore a generator from plain numbers; ValueError if they are no such state."""
    bits = np.random.PCG64(0)
    try:
        bits.state = known(state)
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"expected the state of a PCG64 generator, got {state}") from error
    return np.random.Generator(bits)


def known(state: Tree) -> Tree:
    if state["bit_generator"] != "PCG64":  # used by Gymnasium and numpy's default_rng
        raise ValueError(f"expected the state of a PCG64 generator, got {state['bit_generator']}")
    return state

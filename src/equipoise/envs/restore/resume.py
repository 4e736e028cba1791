"""One Python env as arrays, so that another from the same ``make`` goes on bit for bit. Never
pickle.

An env is *exact* if everything about it is known, from the outermost wrapper to the bare env:

- its wrappers are among ``WRAPPERS``, or name what they keep in ``snapshot_attributes`` (``()`` for
  nothing);
- the bare env is Gymnasium's classic control or MuJoCo, ``ale_py``'s ``AtariEnv``, or a class of
  the user's that either names its arrays and numbers in ``snapshot_attributes``, or has
  ``get_state()``, a tree of arrays (nested dicts with strings for keys), and ``set_state(tree)``,
  the inverse.

With ``np_random``, which is kept for it, that must be all that its next rows depend on. Every other
env is replayed (``record.py``).
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers
from gymnasium.envs.classic_control import (
    AcrobotEnv,
    CartPoleEnv,
    Continuous_MountainCarEnv,
    MountainCarEnv,
    PendulumEnv,
)
from numpy.typing import NDArray

from equipoise import foreign, tree
from equipoise.envs.restore import snapshot
from equipoise.types import Array, Resume, Tree

CLASSIC: dict[type, tuple[str, ...]] = dict.fromkeys(
    (AcrobotEnv, CartPoleEnv, Continuous_MountainCarEnv, MountainCarEnv, PendulumEnv), ("state",)
)
WRAPPERS: dict[type, tuple[str, ...]] = {
    wrappers.OrderEnforcing: (),  # its flag is set by the reset that comes before any load
    wrappers.PassiveEnvChecker: (),  # checks, and changes nothing
    wrappers.TimeLimit: ("_elapsed_steps",),
    wrappers.ClipAction: (),
    wrappers.RescaleAction: (),
    wrappers.ClipReward: (),
    wrappers.FlattenObservation: (),
    wrappers.GrayscaleObservation: (),
    wrappers.ResizeObservation: (),
    wrappers.ReshapeObservation: (),
    wrappers.NormalizeObservation: ("obs_rms.mean", "obs_rms.var", "obs_rms.count"),
    wrappers.NormalizeReward: (
        "return_rms.mean",
        "return_rms.var",
        "return_rms.count",
        "discounted_reward",
    ),
    wrappers.FrameStackObservation: ("obs_queue",),
    wrappers.AtariPreprocessing: ("lives", "game_over", "obs_buffer"),
}
PLAIN = "biuf"  # kinds of dtype that a checkpoint can hold


def layers(env: gymnasium.Env) -> list[gymnasium.Wrapper]:
    """Return the wrappers, outermost first."""
    found = []
    while isinstance(env, gymnasium.Wrapper):
        found.append(env)
        env = env.env
    return found


def kept_by(wrapper: gymnasium.Wrapper) -> tuple[str, ...] | None:
    """Return the attributes on which a wrapper's next rows depend; None: not known."""
    stacks = isinstance(wrapper, wrappers.FrameStackObservation)
    if stacks and not isinstance(wrapper.env.observation_space, gymnasium.spaces.Box):
        return None  # its queue holds no arrays
    return WRAPPERS.get(type(wrapper), snapshot.declared(wrapper))


def attributes(env: object) -> tuple[str, ...] | None:
    return CLASSIC.get(type(env), snapshot.declared(env))


def is_atari(env: object) -> bool:
    return type(env).__module__ == "ale_py.env"


def is_mujoco(env: object) -> bool:
    """Is it Gymnasium's own MuJoCo env? A user's subclass could keep more state."""
    return type(env).__module__.startswith("gymnasium.envs.mujoco.") and foreign.has(env, "data")


def offers_state(env: object) -> bool:
    """Does it have ``get_state`` and ``set_state(tree)``, not MuJoCo's (qpos, qvel)?"""
    get, put = foreign.optional(env, "get_state"), foreign.optional(env, "set_state")
    return callable(get) and callable(put) and len(inspect.signature(put).parameters) == 1


def promise(env: gymnasium.Env) -> Resume:
    """Return "exact" or "replay", as a resume can promise for this env."""
    bare, around = env.unwrapped, layers(env)
    if any(kept_by(wrapper) is None for wrapper in around):
        return "replay"
    # ALE's state has no sound, and the log has the actions before any wrapper changed them
    if is_atari(bare):
        changed = any(isinstance(wrapper, gymnasium.ActionWrapper) for wrapper in around)
        return "replay" if bare.sound_obs or (changed and held_window(env)) else "exact"  # type: ignore[attr-defined]
    return (
        "exact"
        if offers_state(bare) or attributes(bare) is not None or is_mujoco(bare)
        else "replay"
    )


def capture(env: gymnasium.Env) -> dict[str, Tree]:
    """Copy the state: {"np_random", "env": {...}, "wrappers": {...}}; TypeError for no array."""
    bare = env.unwrapped
    kept: dict[str, Tree] = {"np_random": snapshot.generator_state(bare.np_random)}
    if offers_state(bare):
        kept["env"] = tree.map(
            lambda leaf: plain(leaf, f"{type(bare).__name__}.get_state()"),
            bare.get_state(),  # type: ignore[attr-defined]
        )
    elif (names := attributes(bare)) is not None:
        kept["env"] = {name: read(bare, name) for name in names}
    elif is_mujoco(bare):
        kept["env"] = physics(bare)
    else:
        kept["env"] = {"ale": emulator(bare)}
    around: dict[str, Tree] = {}
    for n, wrapper in enumerate(layers(env)):
        around[place(n, wrapper)] = {name: read(wrapper, name) for name in kept_by(wrapper) or ()}
    kept["wrappers"] = around
    return {key: pruned for key, value in kept.items() if (pruned := prune(value)) is not None}


def restore(env: gymnasium.Env, state: Tree) -> None:
    """Restore a state into an env that was reset before. ValueError names what does not fit."""
    bare, own = env.unwrapped, state.get("env", {})
    for n, wrapper in enumerate(layers(env)):
        for name in kept_by(wrapper) or ():
            write(wrapper, name, part(part(part(state, "wrappers"), place(n, wrapper)), name))
    if offers_state(bare):
        bare.set_state(tree.map(np.array, own))  # type: ignore[attr-defined]
    elif (names := attributes(bare)) is not None:
        for name in names:
            write(bare, name, part(own, name))
    elif is_mujoco(bare):
        put_physics(bare, own)
    else:
        put_emulator(bare, part(own, "ale"))
    bare.np_random = snapshot.generator(part(state, "np_random"))


def place(n: int, wrapper: object) -> str:
    return f"{n}.{type(wrapper).__name__}"


def part(state: Tree, name: str) -> Tree:
    if name not in state:
        raise ValueError(
            f"state without {name!r}, of another env or another version of this one; it has "
            f"{sorted(state)}"
        )
    return state[name]


def prune(value: Tree) -> Tree | None:
    """Remove empty branches, which tensor files cannot hold; None if nothing is left."""
    if not isinstance(value, dict):
        return value
    return {key: inner for key, item in value.items() if (inner := prune(item)) is not None} or None


def plain(value: object, what: str) -> np.ndarray:
    array = np.array(value)
    if array.dtype.kind not in PLAIN:
        raise TypeError(
            f"{what} is {type(value).__name__}, expected an array or a number: nothing else can be "
            "kept exactly"
        )
    return array


def owner(thing: object, name: str) -> tuple[object, str]:
    path, _, last = name.rpartition(".")
    return (attrgetter(path)(thing) if path else thing), last


def read(thing: object, name: str) -> np.ndarray:
    return plain(attrgetter(name)(thing), f"{type(thing).__name__}.{name}")


def write(thing: object, name: str, value: object) -> None:
    """Set an attribute in the form that it has now: array, deque, list, tuple or number."""
    at, last = owner(thing, name)
    old, new = attrgetter(name)(thing), np.array(value)
    if np.shape(old) != new.shape:
        raise ValueError(
            f"state of {type(thing).__name__}.{name}: expected shape {np.shape(old)}, got "
            f"{new.shape}"
        )
    form: Array = new
    if isinstance(old, deque):
        form = deque(new, maxlen=old.maxlen)
    elif isinstance(old, list | tuple):
        form = type(old)(new)
    elif isinstance(old, np.generic):
        form = new[()]
    elif not isinstance(old, np.ndarray):
        form = new.item()
    setattr(at, last, form)


# ------------------------------------------------------------------------------------------- MuJoCo


def fields(model: object) -> list[str]:
    """The names of mjData's arrays of a fixed size; its arena is recomputed by each step."""
    import mujoco

    fresh = mujoco.MjData(model)
    names = [name for name in dir(fresh) if not name.startswith("_")]
    return [
        name
        for name, x in members(fresh, names).items()
        if isinstance(x, np.ndarray) and x.size and x.flags.writeable
    ]


def members(data: object, names: Sequence[str]) -> dict[str, Array]:
    return {name: attrgetter(name)(data) for name in names}


def physics(env: Any) -> dict[str, Tree]:
    """Return the integration state, and the last step's remains.

    Positions of bodies lag one sub-step behind ``qpos``; an env that reads them before its next
    step (Ant's velocity) needs these, not a forward pass.
    """
    import mujoco

    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    integration = np.empty(mujoco.mj_stateSize(env.model, kind))
    mujoco.mj_getState(env.model, env.data, integration, kind)
    return {"integration": integration} | {
        name: np.array(array) for name, array in members(env.data, fields(env.model)).items()
    }


def put_physics(env: Any, state: Tree) -> None:
    import mujoco

    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    arrays = members(env.data, fields(env.model))
    expected = {name: array.shape for name, array in arrays.items()}
    expected["integration"] = (mujoco.mj_stateSize(env.model, kind),)
    for name, shape in expected.items():
        if np.shape(part(state, name)) != shape:
            raise ValueError(
                f"state of {type(env).__name__}.data.{name}: expected shape {shape}, got "
                f"{np.shape(state[name])}"
            )
    mujoco.mj_setState(env.model, env.data, np.array(state["integration"], np.float64), kind)
    # contacts and constraints, in case they are read before the next step
    mujoco.mj_forward(env.model, env.data)
    for name, array in arrays.items():
        np.copyto(array, state[name])


# ---------------------------------------------------------------------------------------------- ALE


def emulator(env: Any) -> NDArray[np.uint8]:
    """Return [n] uint8, ALE's own serialisation of console, game and generator."""
    return serialized(env.ale.cloneState(include_rng=True))


def serialized(state: Any) -> NDArray[np.uint8]:
    return np.frombuffer(state.serialize(), np.uint8).copy()


def put_emulator(env: Any, state: object) -> None:
    import ale_py

    given = np.asarray(state, np.uint8)
    try:
        env.ale.restoreState(ale_py.ALEState(given.tobytes()))
    except SystemError as error:  # ale_py turns C++ exceptions into this
        raise ValueError(
            f"state of {type(env).__name__}.ale: ALE cannot read it (shape {given.shape})"
        ) from error
    if not np.array_equal(emulator(env), given):
        raise ValueError(
            f"state of {type(env).__name__}.ale: ALE made another of it (shape {given.shape}); "
            "another game?"
        )


def held_window(env: gymnasium.Env) -> int:
    """The steps after which ALE's held action no longer depends on earlier ones; 0: no action is
    held.

    With sticky actions the emulator repeats the last effective action, which is no part of ALE's
    state, with probability p a frame. Taking the last steps again with their generator restores it,
    unless every draw repeated (here less likely than 1e-12).
    """
    bare: Any = env.unwrapped
    if not is_atari(bare) or (p := bare.ale.getFloat("repeat_action_probability")) <= 0.0:
        return 0
    return max(16, int(np.ceil(np.log(1e-12) / np.log(min(p, 0.99)))))


def hold(env: gymnasium.Env, start: Tree, actions: Array) -> None:
    """Take ``actions`` [n, ...] again from ``start``, for the action that ALE holds."""
    bare: Any = env.unwrapped
    repeats = int(
        np.prod([foreign.optional(wrapper, "frame_skip", 1) for wrapper in layers(env)], dtype=int)
    )
    bare.ale.reset_game()  # no action is held, as after the reset that ``start`` may be
    put_emulator(bare, part(start, "ale"))
    bare.np_random = snapshot.generator(part(start, "np_random"))
    legal = bare.ale.getLegalActionSet()  # in the order of action numbers
    for action in start.get("opening", ()):
        bare.ale.act(legal[action])
    for action in actions:
        for _ in range(repeats):
            bare.step(action)

"""A zoo: an env for every seed, with nested spaces that are drawn from it, and a step that insists
on what it is given.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from equipoise.envs.masks import mask_space

FLOATS = ("float16", "float32", "float64")
WHOLES = ("uint8", "int8", "uint16", "int16", "int32", "int64")
MASKS = ("none", "none", "info", "obs")
DEEPEST = 2


def zoo_spaces(case: int) -> tuple[Any, Any, str]:
    """(observation, action, where the mask is: "none", "info" or "obs") of a seed."""
    rng = np.random.default_rng(case)
    observation, action = observed(rng, 0), acted(rng, 0)
    choice, mask = str(rng.choice(MASKS)), mask_space(action)
    if mask is None:
        return observation, action, "none"
    if choice == "obs":
        observation = spaces.Dict({"observation": observation, "action_mask": mask})
    return observation, action, choice


def program_mask(case: int) -> str:
    return "info" if zoo_spaces(case)[2] == "info" else "auto"


def shape(rng: np.random.Generator, least: int = 0) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(1, 4, size=rng.integers(least, 3)))


def counted(rng: np.random.Generator) -> Any:
    size = shape(rng, 1)
    dtype = str(rng.choice(("int64", "int32", "uint8")))
    start = rng.integers(0 if dtype == "uint8" else -3, 4, size) if rng.random() < 0.5 else None
    return spaces.MultiDiscrete(rng.integers(1, 5, size), dtype=dtype, start=start)


def common(rng: np.random.Generator) -> Any:
    """What both an observation and an action may be."""
    kind = rng.integers(3)
    if kind == 0:
        return spaces.Discrete(int(rng.integers(1, 6)), start=int(rng.integers(-3, 4)))
    if kind == 1:
        return counted(rng)
    return spaces.MultiBinary(shape(rng, 1) if rng.random() < 0.5 else int(rng.integers(1, 5)))


def nested(rng: np.random.Generator, depth: int, leaf: Any, again: Any) -> Any:
    """Half of the time a Dict or a Tuple of one to three."""
    if depth >= DEEPEST or rng.random() < (0.25 if depth == 0 else 0.5):
        return leaf(rng)
    inner = [again(rng, depth + 1) for _ in range(rng.integers(1, 4))]
    if rng.random() < 0.5:
        return spaces.Tuple(inner)
    return spaces.Dict(dict(zip(("b", "a/x", "0"), inner)))


def observed(rng: np.random.Generator, depth: int) -> Any:
    def leaf(rng: np.random.Generator) -> Any:
        kind = rng.integers(4)
        if kind == 0:
            dtype = str(rng.choice(FLOATS))
            unbounded = rng.random() < 0.3
            return spaces.Box(
                -np.inf if unbounded else -2.0,
                np.inf if unbounded else 3.0,
                shape(rng),
                np.dtype(dtype).type,
            )
        if kind == 1:
            dtype = str(rng.choice(WHOLES))
            return spaces.Box(0 if dtype[0] == "u" else -5, 100, shape(rng), np.dtype(dtype).type)
        return (
            spaces.Box(0, 1, shape(rng), np.bool_)
            if kind == 2 and rng.random() < 0.3
            else common(rng)
        )

    return nested(rng, depth, leaf, observed)


def acted(rng: np.random.Generator, depth: int) -> Any:
    def leaf(rng: np.random.Generator) -> Any:
        if rng.random() < 0.6:
            return common(rng)
        low, dtype = np.asarray(rng.normal(size=shape(rng))), np.dtype(str(rng.choice(FLOATS)))
        high = np.asarray(low + rng.uniform(0.1, 3.0, low.shape))
        return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)

    return nested(rng, depth, leaf, acted)


class Zoo(gymnasium.Env[Any, Any]):
    """Observations and episodes are a function of ``np_random``; an action that space or mask do
    not have is refused.
    """

    def __init__(self, case: int) -> None:
        self.case = case
        self.observation_space, self.action_space, self.choice = zoo_spaces(case)
        self.shown: Any = None  # the last observation

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 9))
        return self._show()

    def step(self, action: Any) -> Any:
        if not self.action_space.contains(action):
            raise AssertionError(f"case {self.case}: {action!r} is not in {self.action_space}")
        exact(self.action_space, action)
        if self.choice != "none":
            insist(self.action_space, action, self.mask)
        self.left -= 1
        over, cut = self.left == 0, bool(self.np_random.random() < 0.5)
        obs, info = self._show()
        return obs, float(self.np_random.normal()), over and not cut, over and cut, info

    def _show(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        obs = self.observation_space.sample()
        info: dict[str, Any] = {}
        if self.choice != "none":
            self.mask = drawn(self.action_space, self.np_random)
            if self.choice == "info":
                info["action_mask"] = self.mask
            else:
                obs["action_mask"] = flat(self.action_space, self.mask)
        self.shown = obs
        return obs, info


def exact(space: Any, action: Any) -> None:
    """``contains`` is generous: dtypes are the space's own, and nothing is a view that a caller
    still writes to.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, inner in parts:
            exact(inner, action[key])
    else:
        assert action.dtype == space.dtype, f"{action.dtype} for {space}"


def drawn(space: Any, rng: np.random.Generator) -> Any:
    """A mask in the form of Gymnasium's ``space.sample(mask)``; None where there is none."""

    def one(n: int) -> Any:
        mask = (rng.random(n) < 0.5).astype(np.int8)
        mask[rng.integers(n)] = 1
        return mask

    if isinstance(space, spaces.Discrete):
        return one(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(one(int(n)) for n in space.nvec.reshape(-1))
    if isinstance(space, spaces.Dict):
        return {key: drawn(inner, rng) for key, inner in space.spaces.items()}
    return (
        tuple(drawn(inner, rng) for inner in space.spaces)
        if isinstance(space, spaces.Tuple)
        else None
    )


def flat(space: Any, mask: Any) -> Any:
    """The same in the form of ``masks.mask_space``."""
    if isinstance(space, spaces.MultiDiscrete):
        return np.concatenate(mask)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        given = {str(key): flat(inner, mask[key]) for key, inner in parts}
        return {key: one for key, one in given.items() if one is not None} or None
    return mask


def insist(space: Any, action: Any, mask: Any) -> None:
    if isinstance(space, spaces.Discrete):
        assert mask[action - space.start], f"{action} of {space} is forbidden by {mask}"
    elif isinstance(space, spaces.MultiDiscrete):
        for value, one in zip((action - space.start).reshape(-1), mask, strict=True):
            assert one[value], f"{action} of {space} is forbidden by {mask}"
    elif isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, inner in parts:
            insist(inner, action[key], mask[key])

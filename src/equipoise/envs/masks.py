"""Action masks: which actions an env allows now, as a part of the observation, so that they are
stored and learned with it.

A mask stands where the env's space has it (a key of its Dict), or comes in ``info["action_mask"]``;
then ``InfoMask`` makes the observation ``{"obs": ..., "action_mask": ...}``. 1 means allowed, 0
forbidden, and any other value is refused. The form is that of Gymnasium's ``space.sample(mask)``:

    Discrete(n)             [n]
    MultiDiscrete(nvec)     [sum(nvec)], or a tuple of [n] for each n
    Dict, Tuple             a dict or tuple with those of the parts that have one; Box and MultiBinary have none
"""  # noqa: E501

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from equipoise import foreign, tree
from equipoise.envs import final
from equipoise.envs.failures.row_checks import ZERO_OR_ONE, invalid, odd
from equipoise.envs.hints import UnsupportedSpace
from equipoise.envs.spaces import member, part_spec
from equipoise.envs.values import NoArray, described, flag, flags, plain
from equipoise.types import Array, Tree

KEY = "action_mask"
CHOICES = (
    "'auto' (the observation's key 'action_mask', if it has one), 'info', 'obs/KEY', or 'none'"
)


def sizes(action: object) -> list[int]:
    """The number of values of each choice of an action space; [] if nothing can be masked."""
    if isinstance(action, spaces.Discrete):
        return [int(action.n)]
    return (
        [int(n) for n in action.nvec.reshape(-1)]
        if isinstance(action, spaces.MultiDiscrete)
        else []
    )


def mask_space(action: object) -> spaces.Space[object] | None:
    """The space of a flat mask, in Dicts as the action is; None if nothing can be masked."""
    if (inner := tree.branches(action)) is None:
        return spaces.MultiBinary(sum(counts)) if (counts := sizes(action)) else None
    parts = {key: part for key, one in inner.items() if (part := mask_space(one)) is not None}
    return spaces.Dict(OrderedDict(parts)) if parts else None


# --------------------------------------------------------------------------- as a part of the space


def place_of(
    choice: str, observation: spaces.Space[object], action: spaces.Space[object]
) -> tuple[str, ...]:
    """The keys of the mask in an observation, () for none; ``choice`` as in ``CHOICES``."""
    if choice == "none":
        return ()
    if choice == "auto":
        if not isinstance(observation, spaces.Dict) or KEY not in observation.spaces:
            return ()
        choice = f"obs/{KEY}"
    root, _, path = choice.partition("/")
    if root != "obs" or not path:
        raise ValueError(f"action_mask: expected {CHOICES}, got {choice!r}")
    try:
        keys = tree.keys_of(path)
    except ValueError as error:
        raise ValueError(f"action_mask: {error}") from None
    found: Any = observation
    for key in keys:
        inner = tree.branches(found) or {}
        if key not in inner:
            raise ValueError(
                f"action_mask: expected a key of the observation space, one of {sorted(inner)}, "
                f"got {choice!r}"
            )
        found = inner[key]
    fits(found, action, choice)
    return keys


def fits(mask: Tree, action: spaces.Space[object], place: str) -> None:
    """Raise UnsupportedSpace if ``mask`` is not the space of a mask of ``action``."""
    inner, masks = tree.branches(action), tree.branches(mask)
    counts = sizes(action)
    if inner is not None and masks is not None and masks.keys() <= inner.keys() and masks:
        for key, one in masks.items():
            fits(one, inner[key], f"{place}/{key}")
    elif counts and masks is not None and len(masks) == len(counts):
        for (key, one), n in zip(masks.items(), counts, strict=True):
            fits(one, spaces.Discrete(n), f"{place}/{key}")
    elif (
        not counts
        or not isinstance(mask, spaces.Box | spaces.MultiBinary)
        or int(np.prod(mask.shape)) != sum(counts)
    ):
        expected = (
            f"a mask of {sum(counts)} values (MultiBinary, or Box from 0 to 1)"
            if counts
            else "no mask"
        )
        raise UnsupportedSpace(
            f"observation space {mask} at {place}: expected {expected} for the action space "
            f"{action}; action_mask=none leaves "
            "it an observation like any other"
        )


def counted(place: str, mask: Tree, action: object) -> Iterator[tuple[str, Array, Array]]:
    """(place, view [B, n], where each choice begins [k]) of every array of a mask."""
    inner, counts = tree.branches(action), sizes(action)
    if isinstance(mask, dict):
        for j, (key, one) in enumerate(mask.items()):
            yield from counted(
                f"{place}/{tree.path_of(key)}",
                one,
                spaces.Discrete(counts[j]) if inner is None else inner[key],
            )
    else:
        yield place, mask.reshape(len(mask), -1), np.cumsum([0, *counts[:-1]])


def legal(action: object, actions: Tree, mask: Tree) -> None:
    """Replace, in place, forbidden actions [B, ...] by allowed ones, if there are any."""
    inner, counts = tree.branches(action), sizes(action)
    if inner is not None:
        for key in [key for key in inner if isinstance(mask, tuple | list) or key in mask]:
            legal(inner[key], actions[key], member(mask, key))
    elif isinstance(action, spaces.Discrete | spaces.MultiDiscrete):
        rows = actions.reshape(len(actions), -1)
        starts = np.ravel(action.start)
        if isinstance(mask, Mapping | tuple):
            choices = [member(mask, str(j)) for j in range(len(counts))]
        else:
            choices = np.split(
                _numbers(mask, len(rows), sum(counts)), np.cumsum(counts)[:-1], axis=1
            )
        for j, allowed in enumerate(choices):
            for row, fine in zip(rows, _numbers(allowed, len(rows), counts[j]) != 0, strict=True):
                if fine.any() and not fine[row[j] - starts[j]]:
                    row[j] = starts[j] + np.flatnonzero(fine)[row[j] % fine.sum()]


def _numbers(mask: Tree, rows: int, count: int) -> Array:
    """[rows, count]"""
    numbers = plain(mask)
    if numbers.size != rows * count:
        raise ValueError(f"expected {count} numbers, got {numbers.size / max(rows, 1):g}")
    return numbers.reshape(rows, count)


# -------------------------------------------------------------------------------------- out of info


class InfoMask(gymnasium.Wrapper):
    """A wrapper for one env with its mask in ``info``; a row that ends an episode needs no mask."""

    snapshot_attributes = ()

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._masks = needed(foreign.attribute(env, "action_space"), env)
        self.observation_space = with_mask(foreign.attribute(env, "observation_space"), self._masks)

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> Any:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._with(obs, info, False), info

    def step(self, action: Tree) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        ended = flag(terminated, 0, "terminated") or flag(truncated, 0, "truncated")
        return self._with(obs, info, ended), reward, terminated, truncated, info

    def _with(self, obs: Tree, info: Tree, ended: bool) -> dict[str, Tree]:
        mask = given(info, isinstance(info, Mapping) and info.get(KEY) is not None, ended)
        return {"obs": obs, KEY: flat(mask, self._masks, self.env.action_space)}


class VectorInfoMask(VectorWrapper):
    """A vector env with masks in ``info``: arrays [B, n], or gathered by Gymnasium."""

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self._masks = needed(foreign.attribute(env, "single_action_space"), env)
        self.single_observation_space = with_mask(
            foreign.attribute(env, "single_observation_space"), self._masks
        )
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, object] | None = None) -> Any:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._with(obs, info, np.zeros(self.num_envs, np.bool_)), info

    def step(self, actions: Tree) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        ended = [
            flags(value, self.num_envs, key)
            for key, value in (("terminated", terminated), ("truncated", truncated))
        ]
        masked = self._with(obs, info, np.logical_or(*ended))
        return masked, reward, terminated, truncated, self._finals(info)

    def _finals(self, info: Tree) -> Tree:
        """Give final observations (SAME_STEP) the form of all others; a missing mask is ones."""
        if (key := final.named(info)) is None:
            return info
        last, found = info.get("final_info"), info[key]
        last = last if isinstance(last, Mapping) else {}
        there = self._there(last)
        masks = [
            flat(
                one_of(last[KEY], i) if there[i] else None,
                self._masks,
                self.env.single_action_space,
                i,
            )
            for i in range(self.num_envs)
        ]
        if final.by_env(found) and len(found) == self.num_envs:
            finals: Array = np.full(self.num_envs, None, object)
            for i, mask in enumerate(masks):
                finals[i] = None if found[i] is None else {"obs": found[i], KEY: mask}
        else:
            finals = {"obs": found, KEY: tree.stack(masks)}
        return {**info, key: finals}

    def _with(self, obs: Tree, info: Tree, ended: Array) -> dict[str, Tree]:
        there = self._there(info if isinstance(info, Mapping) else {})
        rows = []
        for i in range(self.num_envs):
            masks = given(info, bool(there[i]), bool(ended[i]), i)
            mask = None if masks is None else one_of(masks, i)
            if mask is None and not ended[i]:
                raise invalid(i, f"info/{KEY}", "a mask, since action_mask=info", "None")
            rows.append(flat(mask, self._masks, self.env.single_action_space, i))
        return {"obs": obs, KEY: tree.stack(rows)}

    def _there(self, info: Mapping[str, object]) -> Array:
        """[B] bool: the envs that give a mask."""
        if info.get(KEY) is None:
            return np.zeros(self.num_envs, np.bool_)
        said = info.get(f"_{KEY}")
        return (
            np.ones(self.num_envs, np.bool_)
            if said is None
            else flags(said, self.num_envs, f"info/_{KEY}")
        )


def needed(action: object, env: object) -> spaces.Space[object]:
    if (space := mask_space(action)) is None:
        raise ValueError(
            f"{env}: action_mask=info: expected a Discrete or MultiDiscrete among its actions, got "
            f"{action}"
        )
    return space


def with_mask(observation: object, mask: spaces.Space[object]) -> spaces.Dict:
    part_spec(observation)  # refuses a space that is missing, with words
    assert isinstance(observation, spaces.Space)
    return spaces.Dict(OrderedDict({"obs": observation, KEY: mask}))


def one_of(value: object, i: int) -> object:
    """Pick one env's mask among the masks of B envs; WrongValue if it has no mask."""
    if isinstance(value, Mapping):
        return {key: one_of(inner, i) for key, inner in value.items()}
    if isinstance(value, tuple):  # of parts; a list has one for each env
        return tuple(one_of(inner, i) for inner in value)
    try:
        return value[i] if isinstance(value, list | np.ndarray) else plain(value)[i]
    except (LookupError, NoArray):
        raise invalid(i, f"info/{KEY}", "a mask of each env", described(value)) from None


def given(info: Tree, there: bool, ended: bool, index: int = 0) -> Tree:
    """Read the mask from ``info``; None, which allows everything, at an episode's end only."""
    if there or ended:
        return info.get(KEY) if there else None
    keys = (
        f"info with the keys {sorted(map(str, info))}"
        if isinstance(info, Mapping)
        else f"info {described(info)}"
    )
    raise invalid(index, f"info/{KEY}", "a mask, since action_mask=info", keys)


def flat(mask: Tree, space: Any, action: Any, index: int = 0, place: str = f"info/{KEY}") -> Tree:
    """Turn an env's mask into arrays [n] int8; all ones for a part that is missing."""
    if isinstance(space, spaces.Dict):
        if isinstance(mask, tuple | list):
            mask = {str(i): one for i, one in enumerate(mask)}
        if not isinstance(mask, Mapping | None):
            raise invalid(index, place, f"a dict with the keys {sorted(space)}", described(mask))
        inner, has = tree.branches(action) or {}, mask or {}
        return {
            key: flat(has.get(key), one, inner[key], index, f"{place}/{key}")
            for key, one in space.spaces.items()
        }
    count, choices = int(space.n), sizes(action)
    if mask is None:
        return np.ones(count, np.int8)
    try:
        arrays = [np.ravel(plain(one)) for one in parts(mask)]
    except NoArray as error:
        raise invalid(index, place, f"{count} numbers", f"{described(mask)}{error}") from None
    got = [len(one) for one in arrays]
    if got not in ([count], choices) or any(one.dtype.kind not in "biuf" for one in arrays):
        expected = f"{count} numbers" + (f", or a tuple of {choices}" if len(choices) > 1 else "")
        raise invalid(
            index, place, expected, f"a tuple of {got}" if len(got) > 1 else described(mask)
        )
    values = np.concatenate(arrays)
    if (bad := odd(values)).any():
        raise invalid(index, place, ZERO_OR_ONE, f"{values[bad][0]} at [{int(bad.argmax())}]")
    return values.astype(np.int8)


def parts(mask: Tree) -> Iterator[Tree]:
    """Return the arrays in a (nested) tuple; anything else is returned itself."""
    if isinstance(mask, tuple | list) and mask and not np.isscalar(mask[0]):
        for one in mask:
            yield from parts(one)
    else:
        yield mask

"""``DeviceEnv``: the Protocol of an env on a device, the checks of what one returns, and SAME_STEP
turned into NEXT_STEP.

Row by row of a SAME_STEP env behind ``NextStep`` (d: the row ended an episode; t: a clock cut it)::

    terminated  obs  o0  o1  p0  p1         the next episode begins in the same row, which is valid: nobody asks for the value
                d            x              of a final observation after which nothing comes
                first x      x
    truncated   obs  o0  o1  o2(final)  p1  p2     the row shows the final observation, which bootstraps. The env is stepped
                t            x                     all the same: the next row shows the new episode after its first step, as
                first x                 x          a seam. So an episode that follows a truncation lacks its first step

``envs/adapter.py`` loses no step, since it can hold all streams for a row; of many thousand streams
some are cut in nearly every row, so holding all of them would cost half of the rows. If the env
gives no final observation, a truncation counts as a termination, and a note says so.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, Protocol

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from equipoise import foreign, tree
from equipoise.hints import raised
from equipoise.types import Array, TimeStep, Tree

Autoreset = Literal["next_step", "same_step"]
MODES: tuple[Autoreset, ...] = ("next_step", "same_step")
TRUNCATION = "truncation treated as termination"  # the same word as in ``envs/final.py``


class DeviceEnv(Protocol):
    """An env of B streams as functions on tensors; the state is a tree of tensors that the caller
    keeps.

    ========  ====================================================================================================
    device    that of ``streams``; every tensor that is returned lies there
    obs       a tree of tensors [B, ...] as ``observation`` has them, floats as float32
    state     [B, ...] or []; with ``exact``, all that the next rows depend on: ``step`` is a pure function then
    autoreset next_step: the row after an episode's end is a seam with the reset's observation
    (valid False, first
              True, reward 0, the action ignored); same_step: the row that ends an episode shows the
              next one's first observation, and ``TimeStep.final`` shows the last one of the old
    traceable may be absent; False where ``step`` is not made of torch's operations: no graph or
    compiler sees it
    ========  ====================================================================================================
    """  # noqa: E501

    @property
    def observation(self) -> gymnasium.Space[object]: ...  # of one stream
    @property
    def action(self) -> gymnasium.Space[object]: ...  # of one stream
    @property
    def autoreset(self) -> Autoreset: ...
    @property
    def exact(self) -> bool: ...

    def reset(self, seed: int, streams: Tensor) -> tuple[Tree, TimeStep]:
        """Begin all streams [B] int64 again: the same (seed, stream) gives the same episodes,
        whatever other streams are in the batch.
        """

    def step(self, state: Tree, action: Tree) -> tuple[Tree, TimeStep]:
        """Do ``action`` [B, ...], within the bounds of its space -> the next state and its rows."""


class NextStep:
    """A SAME_STEP env as a NEXT_STEP one."""

    autoreset: ClassVar[Autoreset] = "next_step"

    def __init__(self, env: DeviceEnv) -> None:
        self.env = env
        self.observation, self.action, self.exact = env.observation, env.action, env.exact
        self.notes: tuple[str, ...] = ()  # known after the first step

    def reset(self, seed: int, streams: Tensor) -> tuple[Tree, TimeStep]:
        state, ts = self.env.reset(seed, streams)
        return {"env": state, "cut": torch.zeros_like(ts.first)}, ts

    def step(self, state: Tree, action: Tree) -> tuple[Tree, TimeStep]:
        inner, ts = self.env.step(state["env"], action)
        seam = state["cut"]
        done, valid = ts.terminated | ts.truncated, ~seam
        cut, obs = torch.zeros_like(seam), ts.obs
        if ts.final is not None:
            cut = ts.truncated & ~ts.terminated & valid
            obs = tree.map(
                lambda final, new: torch.where(_wide(cut, new), final, new), ts.final, ts.obs
            )
        elif not self.notes:
            self.notes = (TRUNCATION,)
        rows = TimeStep(
            obs=obs,
            reward=ts.reward * valid,
            terminated=done & ~cut & valid,
            truncated=cut,
            first=seam | (done & ~cut),
            valid=valid,
            stream=ts.stream,
        )
        return {"env": inner, "cut": cut}, rows


def _wide(flag: Tensor, like: Tensor) -> Tensor:
    """[B] as [B, 1, ...], with as many axes as ``like``."""
    return flag.view(-1, *(1,) * (like.ndim - 1))


def where(flag: Tensor, one: Tree, other: Tree) -> Tree:
    """Choose row by row: ``one`` where ``flag`` [B] is True."""
    return tree.map(lambda a, b: torch.where(_wide(flag, a), a, b), one, other)


def as_next_step(env: DeviceEnv, name: str) -> DeviceEnv:
    """The env as a NEXT_STEP one; ValueError if its way to reset is not given."""
    said = foreign.attribute(env, "autoreset")
    if said not in MODES:
        raise ValueError(
            f"device env {name}: expected autoreset = {' or '.join(map(repr, MODES))}, whichever "
            "is true of an episode's end, "
            f"got {said!r}"
        )
    return NextStep(env) if said == "same_step" else env


class Bounds:
    """A policy's actions [B, ...] as a device env takes them: a Box within its bounds."""

    def __init__(self, space: gymnasium.Space[object], device: torch.device) -> None:
        self._inner = {
            key: Bounds(one, device) for key, one in (tree.branches(space) or {}).items()
        }
        self._ends: tuple[Tensor, ...] = ()
        if isinstance(space, spaces.Box):
            self._ends = tuple(
                torch.from_numpy(np.asarray(x, np.float32)).to(device)
                for x in (space.low, space.high)
            )

    def __call__(self, action: Tree) -> Tree:
        if self._inner:
            return {key: bounds(action[key]) for key, bounds in self._inner.items()}
        return action.clamp(*self._ends) if self._ends else action


def check(name: str, ts: TimeStep, observation: Tree, streams: Tensor) -> None:
    """Check rows [B, ...] of ``observation`` specs; ValueError names the tensor that differs."""
    count = len(streams)
    flag = tree.ArraySpec((), "bool")
    specs = {
        "obs": observation,
        "reward": tree.ArraySpec((), "float32"),
        "terminated": flag,
        "truncated": flag,
        "first": flag,
        "valid": flag,
    }
    rows = ts.rows()
    if ts.final is not None:
        specs["final"], rows["final"] = observation, ts.final
    wanted, got = dict(tree.items(tree.prepend(specs, count))), dict(tree.items(rows))
    if missing := sorted(wanted.keys() ^ got.keys()):
        raise ValueError(
            f"device env {name}: expected rows of {sorted(wanted)}, got {sorted(got)}: "
            f"{missing[0]} differs"
        )
    for place, spec in wanted.items():
        x = got[place]
        expected = f"{spec.dtype} {list(spec.shape)} on {streams.device}"
        if not isinstance(x, Tensor):
            raise ValueError(
                f"device env {name}, {place}: expected a tensor {expected}, got {type(x).__name__}"
            )
        if _described(x) != expected:
            raise ValueError(
                f"device env {name}, {place}: expected {expected}, got {_described(x)}"
            )


def _described(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)} on {x.device}"


def check_state(name: str, before: Tree, after: Tree) -> None:
    """ValueError if a step changes the structure of an exact env's state."""
    try:
        differ = [
            (path, a, b)
            for (path, a), b in zip(
                tree.items(before),
                tree.leaves(tree.map(lambda a, b: b, before, after)),
                strict=True,
            )
            if _described(a) != _described(b)
        ]
    except ValueError as error:
        raise ValueError(f"device env {name}, state: {error}") from error
    for path, a, b in differ:
        raise ValueError(
            f"device env {name}, state {path}: expected {_described(a)} after a step, got "
            f"{_described(b)}"
        )


def probe(name: str, env: DeviceEnv, observation: Tree, streams: Tensor, action: Tree) -> None:
    """Check one reset and one step of an exact env; ValueError as of ``check`` or of the env's
    code.

    ``observation``: the specs of one stream.
    """
    with torch.inference_mode():
        state, ts = _called(f"{name}, reset", env.reset, 0, streams)
        check(name, ts, observation, streams)
        after, ts = _called(
            f"{name}, step", env.step, state, Bounds(env.action, streams.device)(action)
        )
        check(name, ts, observation, streams)
    check_state(name, state, after)


def _called(
    where: str, function: Callable[..., tuple[Tree, TimeStep]], *args: object
) -> tuple[Tree, TimeStep]:
    try:
        return function(*args)
    except Exception as error:  # of a user's code, whatever it is
        raise ValueError(f"device env {where}: expected rows, got {raised(error)}") from error


def streams_on(streams: Sequence[int] | Array, device: torch.device | str) -> Tensor:
    """[B] int64 stream numbers on a device."""
    return torch.as_tensor(np.asarray(streams, np.int64)).to(device)

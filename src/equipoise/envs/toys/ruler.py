"""The ruler: an env whose every row proves where it belongs.

The observation is (stream, episode, t). The length and ending of an episode follow from stream and
episode alone, so a reader of a trajectory can recompute what must stand in it: ``verify`` does. The
reward holds the action, the time and the episode, so an action or a reward that moved by one row,
one stream or one episode is found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from equipoise.types import Array, Trajectory

LONGEST = 20  # steps of the longest episode; the shortest has one
ACTIONS = 8
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]


def episode(stream: Array, number: Array, longest: int = LONGEST) -> tuple[Ints, Bools, Bools]:
    """(length, terminated, truncated) of episodes, elementwise.

    One in eight has one step, the rest 1 to ``longest``; 40 % terminate, 40 % are truncated, 20 %
    are both at once. SplitMix64 (Steele, Lea, Flood 2014) of (stream, number): neighbours have
    nothing in common.
    """
    with np.errstate(over="ignore"):
        x = np.asarray(stream).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.asarray(
            number
        ).astype(np.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x + np.uint64(0x9E3779B97F4A7C15) ^ (x >> np.uint64(shift))) * np.uint64(factor)
        x = x ^ (x >> np.uint64(31))
        length = np.where(
            (x >> np.uint64(50)) % np.uint64(8) == 0,
            1,
            1 + (x % np.uint64(longest)).astype(np.int64),
        )
        ending = (x >> np.uint64(40)) % np.uint64(5)
    return length, np.isin(ending, (0, 1, 4)), np.isin(ending, (2, 3, 4))


def reward(number: Array, t: Array, action: Array) -> Floats:
    """The reward of the step from t to t + 1: 1024 (number mod 4) + 1 + t + action / 8, exact in
    float32, never 0.
    """
    value = 1024 * (np.asarray(number) % 4) + 1 + np.asarray(t) + np.asarray(action) / ACTIONS
    return np.asarray(value, np.float32)


def row_number(stream: int, number: int, t: int, longest: int = LONGEST) -> int:
    """The number of rows (steps and seams) that the stream had before this observation."""
    length, _, _ = episode(stream, np.arange(number), longest)
    return int(length.sum()) + number + t


def ruler_spaces(dtype: str) -> tuple[spaces.Box, spaces.Discrete]:
    # float32 counts exactly up to here
    top = 2**24 if dtype == "float32" else np.iinfo(np.int64).max
    return spaces.Box(0, top, (3,), np.dtype(dtype).type), spaces.Discrete(ACTIONS)


class Ruler(gymnasium.Env):
    """One stream. ``stragglers``: the streams whose every step sleeps ``sleep_s`` seconds."""

    metadata: dict[str, object] = {"render_modes": []}
    snapshot_attributes: tuple[str, ...] = ("number", "t", "length", "ending")

    def __init__(
        self,
        stream: int = 0,
        longest: int = LONGEST,
        dtype: str = "float32",
        stragglers: Sequence[int] = (),
        sleep_s: float = 0.0,
    ) -> None:
        self.stream, self.longest, self.dtype = stream, longest, dtype
        self.sleep_s = sleep_s if stream in stragglers else 0.0
        self.observation_space, self.action_space = ruler_spaces(dtype)
        self.number, self.t, self.length = -1, 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Array, dict[str, object]]:
        super().reset(seed=seed)
        self.number, self.t = self.number + 1 if seed is None else 0, 0
        length, terminated, truncated = episode(self.stream, self.number, self.longest)
        self.length, self.ending = int(length), (bool(terminated), bool(truncated))
        return self._obs(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, object]]:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        # reward(), in plain numbers
        got = 1024.0 * (self.number % 4) + 1 + self.t + int(action) / ACTIONS
        self.t += 1
        terminated, truncated = self.ending if self.t == self.length else (False, False)
        return self._obs(), got, terminated, truncated, {}

    def _obs(self) -> Array:
        return np.array((self.stream, self.number, self.t), self.dtype)


class RulerVector(VectorEnv):
    """The ruler for many streams at once, in NEXT_STEP; a straggler among them holds up all."""

    metadata: dict[str, object] = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}
    snapshot_attributes = ("number", "t", "length", "terminates", "truncates")

    def __init__(
        self,
        num_envs: int = 1,
        streams: Array = None,
        longest: int = LONGEST,
        dtype: str = "float32",
        stragglers: Sequence[int] = (),
        sleep_s: float = 0.0,
    ) -> None:
        self.num_envs, self.longest, self.dtype = num_envs, longest, dtype
        self.streams: Ints = np.array(np.arange(num_envs) if streams is None else streams, np.int64)
        self.sleep_s = sleep_s if np.isin(self.streams, stragglers).any() else 0.0
        self.single_observation_space, self.single_action_space = ruler_spaces(dtype)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._place(np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64))

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Array, dict[str, object]]:
        super().reset(seed=seed)
        self._place(
            self.number + 1 if seed is None else np.zeros_like(self.number), np.zeros_like(self.t)
        )
        return self._obs(), {}

    def step(self, actions: Array) -> tuple[Array, Floats, Bools, Bools, dict[str, object]]:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        seam = self.t == self.length
        got = np.where(seam, np.float32(0), reward(self.number, self.t, actions))
        self._place(self.number + seam, np.where(seam, 0, self.t + 1))
        ended = self.t == self.length
        return self._obs(), got, ended & self.terminates, ended & self.truncates, {}

    def _place(self, number: Ints, t: Ints) -> None:
        self.number, self.t = number, t
        self.length, self.terminates, self.truncates = episode(self.streams, number, self.longest)

    def _obs(self) -> Array:
        return np.stack((self.streams, self.number, self.t), axis=1).astype(self.dtype)


class Ledger:
    """The place of each stream when it was last verified; ``rows``: rows verified."""

    def __init__(self) -> None:
        self.rows = 0
        # stream -> next start, obs there, newest version
        self.at: dict[int, tuple[int, tuple[int, ...], int]] = {}


def verify(
    trajectory: Trajectory,
    ledger: Ledger | None = None,
    *,
    longest: int = LONGEST,
    gaps: bool = False,
    fails: Callable[[Ints, Ints, Ints], Bools] | None = None,
    same_step: int = 0,
    oldest: int | None = None,
) -> list[str]:
    """Every violation in a trajectory (numpy or CPU tensors) of ruler rows, as sentences; [] if it
    proves itself.

    Recomputes from (stream, episode, t) of each row: the next observation, ``first``, ``reward``,
    ``mask`` (False exactly on the seam row, whose observation is an episode's last), ``bootstrap``
    (not terminated; a seam's is True), ``context``. With a ``ledger``: each stream goes on where it
    was, and its versions never go back. ``gaps``: rows may be missing between two trajectories of a
    stream (dropped), never come twice. ``fails`` (stream, episode, t) -> bool: the rows whose step
    or reset raises; such a row looks like a seam, and its stream begins again with episode 0.
    ``same_step``: this number of streams is a vector env in SAME_STEP that gives its final
    observations: a seam is after a truncation only, and all other streams of that env show their
    observation again, not ``mask``. ``oldest``: streams are partial, so a window may end early and
    show its last observation again, not ``mask``, up to its end; and rows of a version before this
    one do not count.
    """
    obs = np.asarray(trajectory.obs).astype(np.int64)
    stream, number, t = obs[..., 0], obs[..., 1], obs[..., 2]
    length, terminates, _ = episode(stream, number, longest)
    seam = t[:-1] == length[:-1]
    failed = (
        np.zeros(seam.shape, np.bool_) if fails is None else fails(stream[:-1], number[:-1], t[:-1])
    )
    context = {
        key: np.asarray(trajectory.context[key]).astype(np.int64) for key in ("stream", "start")
    }
    again = beside_seams(seam, context, same_step) if same_step else np.zeros_like(seam)
    if oldest is not None:
        again = (number[1:] == number[:-1]) & (t[1:] == t[:-1])
        seam, failed = seam & ~again, failed & ~again  # such a row takes no step
    masked = seam | failed | again
    ends = ~masked & (t[:-1] + 1 == length[:-1])  # the last step of an episode
    over = ends & terminates[:-1] & bool(same_step)  # the next one begins at once
    action, version = np.asarray(trajectory.action), np.asarray(trajectory.version)
    wrong: list[str] = []

    def compare(what: str, got: Array, expected: Array) -> None:
        got, expected = np.asarray(got), np.broadcast_to(expected, np.shape(got))
        for at in np.argwhere(got != expected).tolist():
            said = f"expected {expected[tuple(at)]}, got {got[tuple(at)]}"
            wrong.append(f"{what}{at} of stream {context['stream'][at[-1]]}: {said}")

    compare("obs stream", stream, context["stream"])
    compare("obs episode", number[1:], np.where(failed, 0, number[:-1] + (seam | over)))
    compare("obs t", t[1:], np.where(again, t[:-1], np.where(masked | over, 0, t[:-1] + 1)))
    compare("obs beyond its episode", t > length, False)
    compare("first", trajectory.first, t == 0)
    compare("mask", trajectory.mask, ~masked if oldest is None else ~masked & (version >= oldest))
    compare(
        "reward",
        trajectory.reward,
        np.where(masked, np.float32(0), reward(number[:-1], t[:-1], action)),
    )
    compare("bootstrap", trajectory.bootstrap, ~(ends & terminates[:-1]))
    compare("version", version[1:] < version[:-1], False)
    # other gaps: rows are not predictable, but the ledger goes on
    if fails is None and not same_step and oldest is None:
        rows = [row_number(s, n, at, longest) for s, n, at in obs[0].tolist()]
        compare("context start", context["start"], rows)
    if ledger is not None:
        wrong += follow(ledger, context, obs, version, gaps=gaps)
    return wrong


def beside_seams(seam: Bools, context: dict[str, Array], streams: int) -> Bools:
    """[T, B]: the rows in which another of the ``streams`` of the same env is at a seam."""
    env, start = context["stream"] // streams, context["start"]
    together = (env[:, None] == env) & (start[:, None] == start)
    beside: Bools = (seam.astype(np.int64) @ together > 0) & ~seam
    return beside


def follow(
    ledger: Ledger, context: dict[str, Array], obs: Ints, version: Array, *, gaps: bool
) -> list[str]:
    """Check that each stream goes on where the ledger has it, and move the ledger on."""
    wrong: list[str] = []
    steps, count = version.shape
    for b, (stream, start) in enumerate(
        zip(context["stream"].tolist(), context["start"].tolist(), strict=True)
    ):
        due, place, newest = ledger.at.get(stream, (0, (stream, 0, 0), -1))
        here = tuple(obs[0, b].tolist())
        if start < due or (start > due and not gaps):
            wrong.append(f"context start of stream {stream}: expected {due}, got {start}")
        elif start == due and here != place:
            wrong.append(
                f"obs[0] of stream {stream}: expected {place}, where its last trajectory ended, "
                f"got {here}"
            )
        if version[0, b] < newest:
            wrong.append(f"version of stream {stream}: went back from {newest} to {version[0, b]}")
        ledger.at[stream] = (start + steps, tuple(obs[-1, b].tolist()), int(version[-1, b]))
    ledger.rows += steps * count
    return wrong


gymnasium.register(
    "equipoise/Ruler-v0", f"{__name__}:Ruler", vector_entry_point=f"{__name__}:RulerVector"
)

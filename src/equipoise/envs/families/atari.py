"""Atari games of ALE: every choice that moves a score is a field of ``AtariSpec``, the same on
every backend, and printed.

``ALE/Pong-v5`` is ALE's own vector env, ``python:ALE/Pong-v5`` one Python env a stream that a
resume brings back exactly, and ``envpool:Pong-v5`` is EnvPool's. All take the fields of
``AtariSpec`` as arguments. The first two agree bit for bit in observation, reward and ends for the
same seed and actions, sticky ones included; only the number of no-ops is drawn from another
generator (``noop_max=1`` draws none). Gymnasium's bare env, with its own arguments, is
``ale_py:ALE/Pong-v5``.

Rewards are raw, so that returns are the game's: to learn from clipped ones, set ``rewards.clip``.

The order of things is ALE's: a reset of the console, FIRE for one frame if the game has it, no-ops,
one screen. A step: the action for ``frameskip`` frames, their rewards added, the maximum of the
last two grey screens, shrunk by area to ``img_height`` x ``img_width``, below the ``stack_num - 1``
before it. An episode that ends within a step shows the screens kept so far.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from equipoise.envs import hints as wrong
from equipoise.envs.adapter import GymnasiumEnv
from equipoise.envs.base import SyncEnv
from equipoise.envs.loop import LoopEnv
from equipoise.hints import nearest
from equipoise.seeds import stream_seeds
from equipoise.types import Array, EnvSpec, Stack

Padding = Literal["zero", "first"]
Bytes = NDArray[np.uint8]
CLIP = (
    "rewards are never clipped by the env, so that returns are the game's: set rewards.clip=1 "
    "instead"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtariSpec:
    """The choices of an Atari env. Defaults: Machado et al. 2018 (arXiv:1709.06009), no-ops."""

    # sticky actions: the chance that a frame repeats the previous action
    repeat_action_probability: float = 0.25
    noop_max: int = 30  # no-ops after a reset: 0 to noop_max - 1, the FIRE counted
    use_fire_reset: bool = True  # press FIRE after a reset, in games that have it
    episodic_life: bool = False  # a lost life ends the episode, and the next one is a new game
    frameskip: int = 4  # frames a step
    maxpool: bool = True  # the maximum of a step's last two frames, since games flicker
    max_num_frames_per_episode: int = 108_000  # then it is truncated: half an hour of play
    full_action_space: bool = False  # all 18 actions, not only the game's own
    grayscale: bool = True
    img_height: int = 84
    img_width: int = 84
    stack_num: int = 4  # frames an observation, oldest first
    # before an episode's first frame: black, or that frame repeated
    stack_padding: Padding = "zero"

    def __post_init__(self) -> None:
        given = asdict(self)
        for field in fields(self):
            wrong.typed(field.name, given[field.name], type(field.default))
        for name, least in (
            ("noop_max", 0),
            ("frameskip", 1),
            ("max_num_frames_per_episode", 1),
            ("stack_num", 1),
        ):
            if given[name] < least:
                raise ValueError(f"{name}: expected at least {least}, got {given[name]}")
        if not 0.0 <= self.repeat_action_probability < 1.0:
            raise ValueError(
                "repeat_action_probability: expected 0 to below 1, got "
                f"{self.repeat_action_probability}"
            )
        if not (1 <= self.img_height <= 210 and 1 <= self.img_width <= 160):
            raise ValueError(
                f"img_height, img_width: expected 1 to 210 and 160, got {self.img_height}, "
                f"{self.img_width}"
            )
        if self.stack_padding not in (known := get_args(Padding)):
            hint = (
                f"; did you mean {near!r}?" if (near := nearest(self.stack_padding, known)) else ""
            )
            raise ValueError(
                f"stack_padding: expected one of {', '.join(known)}, got "
                f"{self.stack_padding!r}{hint}"
            )

    @property
    def observation(self) -> spaces.Box:
        """The observation space: [stack, H, W] uint8, or [stack, H, W, 3]."""
        colours = () if self.grayscale else (3,)
        return spaces.Box(
            0, 255, (self.stack_num, self.img_height, self.img_width, *colours), np.uint8
        )

    def __str__(self) -> str:
        """One line, for people."""
        said = [
            f"sticky {self.repeat_action_probability:g}",
            f"no-ops below {self.noop_max}" if self.noop_max > 1 else "no no-ops",
            "FIRE after a reset" if self.use_fire_reset else "no FIRE",
            f"{self.frameskip} frames a step"
            + (", the last two pooled" if self.maxpool and self.frameskip > 1 else ""),
            f"at most {self.max_num_frames_per_episode:,} frames",
            "a lost life ends the episode" if self.episodic_life else "lives are not episodes",
            f"{self.img_height}x{self.img_width} {'grey' if self.grayscale else 'RGB'}",
            f"stack of {self.stack_num} padded with "
            f"{'black' if self.stack_padding == 'zero' else 'its first frame'}",
            "all 18 actions" if self.full_action_space else "the game's actions",
            "rewards raw",
        ]
        return "Atari: " + ", ".join(said)


FIELDS = tuple(field.name for field in fields(AtariSpec))


def parse(target: str, kwargs: Mapping[str, Any], also: tuple[str, ...] = ()) -> AtariSpec:
    """The fields among ``kwargs``; ValueError names the nearest for any that is unknown."""
    if "reward_clipping" in kwargs or "reward_clip" in kwargs:
        raise ValueError(f"{target}: {CLIP}")
    wrong.arguments(target, kwargs, dict.fromkeys((*FIELDS, *also)))
    try:
        wrong.typed("num_threads", kwargs.get("num_threads", 1), int)
        return AtariSpec(**{name: value for name, value in kwargs.items() if name in FIELDS})
    except ValueError as error:
        raise ValueError(f"{target}: {error}") from error


@dataclass(frozen=True, slots=True)
class Game:
    """A registered ALE id; called, it makes one Python env."""

    id: str

    def __call__(self, *, render_mode: str | None = None, **kwargs: object) -> AtariGame:
        return AtariGame(
            self._rom, parse(self.id, kwargs, ("num_threads",)), render_mode=render_mode
        )

    def make(self, kwargs: dict[str, Any], *, streams: Array, seed: int, python: bool) -> SyncEnv:
        """Make the env. ``num_threads``: threads of this worker's vector env (default 1)."""
        target = f"python:{self.id}" if python else self.id
        made: SyncEnv
        spec = parse(target, kwargs, ("render_mode", "num_threads") if python else ("num_threads",))
        if python:
            one = functools.partial(
                AtariGame, self._rom, spec, render_mode=kwargs.get("render_mode")
            )
            made = LoopEnv([one] * len(streams), streams=streams, seed=seed)
        else:
            made = AtariVector(
                self._rom,
                spec,
                streams=streams,
                seed=seed,
                num_threads=kwargs.get("num_threads", 1),
            )
        made.spec = told(made.spec, spec)
        return made

    @property
    def _rom(self) -> str:
        return str(gymnasium.registry[self.id].kwargs["game"])


def told(env: EnvSpec, spec: AtariSpec, *, padded: bool = True) -> EnvSpec:
    """``padded``: every episode begins with a padded stack."""
    whole = padded and spec.stack_num > 1
    stacks = {"": Stack(frames=spec.stack_num, padding=spec.stack_padding)} if whole else {}
    return replace(env, frame_skip=spec.frameskip, settings=str(spec), stacks=stacks)


# --------------------------------------------------------------------------------- ALE's vector env


class AtariVector(GymnasiumEnv):
    """ALE's own vector env, each stream seeded from (``seed``, stream)."""

    def __init__(
        self, rom: str, spec: AtariSpec, *, streams: Array, seed: int, num_threads: int
    ) -> None:
        from ale_py.vector_env import AtariVectorEnv

        given = {name: value for name, value in asdict(spec).items() if name != "stack_padding"}
        native: VectorEnv = AtariVectorEnv(
            rom, len(streams), num_threads=num_threads, reward_clipping=False, **given
        )
        super().__init__(native, streams=streams, seed=seed)
        self._seed = np.array(stream_seeds(seed, streams))
        self.mend = padding(spec, "zero", len(streams))


def padding(spec: AtariSpec, native: Padding, count: int) -> Callable[..., None] | None:
    """A function from a vector env's ``native`` stack padding to the spec's; None if equal.

    It gets obs [B, stack, ...], first [B] and the streams that answered, and writes over the frames
    before each episode's first.
    """
    if spec.stack_padding == native or spec.stack_num == 1:
        return None
    age = np.zeros(count, np.int64)

    def mend(obs: Array, first: Array, answered: Array | slice = slice(None)) -> None:
        age[answered] += 1
        age[first] = 0
        for i in np.flatnonzero(age < spec.stack_num - 1):
            before = spec.stack_num - 1 - age[i]
            obs[i, :before] = obs[i, before] if spec.stack_padding == "first" else 0

    return mend


# ------------------------------------------------------------------------------------------ EnvPool


def of_pool(
    task: str, kwargs: Mapping[str, object], accepted: Mapping[str, object]
) -> tuple[AtariSpec, dict[str, object], list[str]]:
    """The spec, EnvPool's own arguments for it, and the points in which EnvPool cannot keep it."""
    target = f"envpool:{task}"
    spec = parse(
        target,
        kwargs,
        tuple(name for name in accepted if name in ("num_threads", "thread_affinity_offset")),
    )
    if not spec.maxpool:
        raise ValueError(
            f"{target}: EnvPool always pools the last two frames; take maxpool=True, or ALE/{task}"
        )
    if not spec.grayscale:
        raise ValueError(
            f"{target}: EnvPool lays colours out otherwise; take grayscale=True, or ALE/{task}"
        )
    notes = []
    if spec.noop_max == 0:
        raise ValueError(
            f"{target}: EnvPool needs a noop_max of at least 1, got 0; noop_max=1 is one no-op or "
            "the FIRE"
        )
    notes.append(
        "EnvPool does 1 to noop_max no-ops, the FIRE counted and last; elsewhere it is 0 to "
        "noop_max - 1, FIRE first"
    )
    if spec.episodic_life:
        notes.append(
            "after a lost life EnvPool goes on with the game and its stack, elsewhere a new game "
            "begins"
        )
    said = {
        "repeat_action_probability": spec.repeat_action_probability,
        "noop_max": spec.noop_max,
        "use_fire_reset": spec.use_fire_reset,
        "episodic_life": spec.episodic_life,
        "frame_skip": spec.frameskip,
        "max_episode_steps": max(math.ceil(spec.max_num_frames_per_episode / spec.frameskip), 1),
        "full_action_space": spec.full_action_space,
        "gray_scale": True,
        "img_height": spec.img_height,
        "img_width": spec.img_width,
        "stack_num": spec.stack_num,
        "reward_clip": False,
        "use_inter_area_resize": True,
    }
    return spec, {name: value for name, value in kwargs.items() if name not in FIELDS} | said, notes


# ----------------------------------------------------------------------------------- one Python env


class AtariGame(gymnasium.Wrapper):
    """One game with ALE's Python interface; its rows equal the rows of ALE's vector env."""

    snapshot_attributes = ("frames", "screens", "lives", "elapsed")

    def __init__(self, rom: str, spec: AtariSpec, *, render_mode: str | None = None) -> None:
        import ale_py
        from ale_py.env import AtariEnv

        bare: Any = AtariEnv(
            rom,
            frameskip=1,
            obs_type="grayscale" if spec.grayscale else "rgb",
            max_num_frames_per_episode=0,
            repeat_action_probability=spec.repeat_action_probability,
            full_action_space=spec.full_action_space,
            render_mode=render_mode,  # type: ignore[arg-type]  # ALE says which it knows
        )
        super().__init__(bare)
        self.made, self.frame_skip = spec, spec.frameskip  # the second is for ``resume.hold``
        self.observation_space, self.ale = spec.observation, bare.ale
        action_set = (
            self.ale.getLegalActionSet()
            if spec.full_action_space
            else self.ale.getMinimalActionSet()
        )
        self._actions, self._noop, self._fire = action_set, ale_py.Action.NOOP, ale_py.Action.FIRE
        self._has_fire = spec.use_fire_reset and self._fire in self._actions
        self._see = self.ale.getScreenGrayscale if spec.grayscale else self.ale.getScreenRGB
        # the last, pooled; the one before
        self.screens: Bytes = np.zeros((2, *bare.observation_space.shape), np.uint8)
        self.frames: Bytes = np.zeros(self.observation_space.shape, np.uint8)
        self.lives = self.elapsed = 0  # elapsed: frames since the reset's no-ops
        # if sticky, ALE's state after its reset and what was pressed since
        self.opening: tuple[Any, list[int]] | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Bytes, dict[str, object]]:
        bare: Any = self.env
        if seed is not None:
            bare.np_random = np.random.default_rng(seed)
            self.ale.setInt("random_seed", seed)
            bare.load_game()
        self._begin()
        noops = int(bare.np_random.integers(max(self.made.noop_max, 1))) - self._has_fire
        if self._has_fire:
            self._press(self._fire)
        for _ in range(noops):
            self._press(self._noop)
            if self.ale.game_over():
                self._begin()
        self._see(self.screens[0])
        self.screens[1] = 0
        self.lives, self.elapsed = self.ale.lives(), 0
        seen = self._shrunk()
        self.frames = np.broadcast_to(seen, self.frames.shape).copy()
        if self.made.stack_padding == "zero":
            self.frames[:-1] = 0
        return self.frames, {"lives": self.lives}

    def _begin(self) -> None:
        self.ale.reset_game()
        self.opening = (
            (self.ale.cloneState(include_rng=True), [])
            if self.made.repeat_action_probability
            else None
        )

    def _press(self, action: Any) -> None:
        self.ale.act(action)
        if self.opening is not None:
            self.opening[1].append(action.value)

    def step(self, action: int) -> tuple[Bytes, float, bool, bool, dict[str, object]]:
        spec, ale, self.opening = self.made, self.ale, None
        effect, reward, lives, terminated = self._actions[action], 0.0, self.lives, False
        for left in range(spec.frameskip, 0, -1):
            reward += ale.act(effect)
            self.elapsed += 1
            over, lives = bool(ale.game_over()), ale.lives()
            terminated = over or (spec.episodic_life and 0 < lives < self.lives)
            if terminated or self.elapsed >= spec.max_num_frames_per_episode:
                break
            if left <= 2:
                self._see(self.screens[left - 1])
        self.lives = lives
        self.frames = np.concatenate([self.frames[1:], self._shrunk()[None]])
        truncated = self.elapsed >= spec.max_num_frames_per_episode and not terminated
        return self.frames, reward, terminated, truncated, {"lives": lives}

    def _shrunk(self) -> Bytes:
        if self.made.maxpool:
            np.maximum(self.screens[0], self.screens[1], out=self.screens[0])
        return shrink(self.screens[0], self.made.img_height, self.made.img_width)


def shrink(image: Bytes, height: int, width: int) -> Bytes:
    """[H, W] or [H, W, C] uint8 -> [height, width, ...] by area, as OpenCV's INTER_AREA on x86-64.

    float32 sums in its order, columns before rows, ties to even.
    """
    if image.shape[:2] == (height, width):
        return image.copy()
    # columns first: both sums add whole rows of memory
    narrow = _weighed(image.swapaxes(0, 1), width).swapaxes(0, 1)
    shrunk: Bytes = np.rint(_weighed(narrow, height)).astype(np.uint8)
    return shrunk


def _weighed(x: Array, size: int) -> Array:
    """[n, ...] -> [size, ...] float32: equal stretches of the first axis, averaged."""
    x = np.ascontiguousarray(x, np.float32)
    lead = (-1, *[1] * (x.ndim - 1))
    total: Array = None
    for index, share in _cells(x.shape[0], size):
        part = x[index] * share.reshape(lead)
        total = part if total is None else np.add(total, part, out=total)
    return total


@functools.cache
def _cells(n: int, size: int) -> list[tuple[Array, Array]]:
    """For each of ``size`` cells: the index and share of each source row, 0 beyond."""
    scale = 1.0 / (size / n)
    cells = []
    for cell in range(size):
        low, high = cell * scale, cell * scale + scale
        whole = min(scale, n - low)
        last = min(math.floor(high), n - 1)
        begin = min(math.ceil(low), last)
        parts = [(begin - 1, (begin - low) / whole)] if begin - low > 1e-3 else []
        parts += [(i, 1.0 / whole) for i in range(begin, last)]
        if high - last > 1e-3:
            parts.append((last, min(high - last, 1.0, whole) / whole))
        cells.append(parts)
    most = max(len(parts) for parts in cells)
    padded = [parts + [(0, 0.0)] * (most - len(parts)) for parts in cells]
    return [
        (np.array([p[k][0] for p in padded]), np.array([p[k][1] for p in padded], np.float32))
        for k in range(most)
    ]

"""Episodes of a policy as a video file, through Gymnasium's ``rgb_array`` and PyAV (the extra
``video``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise import tree
from equipoise.envs.base import SyncEnv
from equipoise.foreign import has, optional
from equipoise.hints import install
from equipoise.types import REMOTE, EnvFactory, Tree

FPS = 30  # default if the env names none
MOST_FPS = 1_000
LONGEST = 10_000  # steps of an episode; an env without a time limit must not fill the disk


class NoFrames(ValueError):
    """An env does not render to arrays."""


def record(
    env: EnvFactory | str | Callable[..., object],
    act: Callable[[object], object],
    path: str | Path,
    *,
    episodes: int = 1,
    seed: int = 0,
    begin: Callable[[], object] | None = None,
) -> list[float]:
    """Play ``episodes`` and write them to ``path`` (.mp4); return their returns.

    ``env`` is an env as data, a target such as "CartPole-v1", or a function that takes
    ``render_mode``. It is made as for evaluation, as one Python env if possible; ``act`` gets one
    observation. ``begin`` is called before each episode, for a policy with memory. The file appears
    only when it is complete.
    """
    av = _av()
    if episodes < 1:
        raise ValueError(f"episodes: expected at least 1, got {episodes}")
    path = Path(path)
    if path.suffix != ".mp4":
        raise ValueError(f"{path}: expected a name that ends in .mp4")
    path.parent.mkdir(parents=True, exist_ok=True)
    made = make_drawn(env, seed)
    aside = path.with_name(f".{path.stem}.unfinished.mp4")
    try:
        with av.open(str(aside), "w") as container:
            returns = _play(made, act, _Writer(container, fps_of(made)), episodes, begin)
        aside.replace(path)
    finally:
        made.close()
        aside.unlink(missing_ok=True)
    return returns


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise ImportError(f"a video needs PyAV: {install('video')} ({error})") from error
    return av


def make_drawn(env: EnvFactory | str | Callable[..., object], seed: int) -> SyncEnv:
    """Make one stream, as for evaluation, that renders to arrays; NoFrames if it cannot."""
    if not os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}:
        # else pygame looks for a screen, and complains
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    from gymnasium.envs.registration import EnvSpec as Registered

    from equipoise.envs import making
    from equipoise.envs.families.atari import Game

    factory = (
        env
        if isinstance(env, EnvFactory)
        else EnvFactory(target=env if isinstance(env, str) else str(env))
    )
    target, kwargs = (
        factory.target.removeprefix("python:"),
        {**factory.kwargs, "render_mode": "rgb_array"},
    )
    if target.startswith("envpool:"):
        raise NoFrames(
            f"{target}: EnvPool's envs do not render; record the Gymnasium env of the same name"
        )
    found: Any = env if callable(env) else making.resolve(target)
    accepted = None if isinstance(found, Registered) else making.parameters(found)
    if accepted is not None and not accepted.keys() & {"render_mode", "**"}:
        raise NoFrames(
            f"{target}: expected an env that takes render_mode='rgb_array', got one with "
            f"{', '.join(accepted)}"
        )
    streams = np.arange(1)
    try:
        if callable(env):
            offer = {"num_envs": 1, "streams": streams, "seed": seed}
            made = making.make_called(
                target, env, kwargs, offer, python=False, mask=factory.action_mask
            )
        else:
            # Native vector envs draw less often, ALE's not at all.
            python = isinstance(found, Game) or (
                isinstance(found, Registered) and found.entry_point is not None
            )
            named = replace(factory, target=f"python:{target}" if python else target, kwargs=kwargs)
            made = making.make(named, streams=streams, seed=seed)
    except TypeError as error:  # the env behind an id lacks that parameter
        raise NoFrames(
            f"{target}: expected an env that takes render_mode='rgb_array', got {error}"
        ) from error
    modes = _metadata(_drawn(made)).get("render_modes") or []
    if "rgb_array" not in modes:
        made.close()
        raise NoFrames(
            f"{target}: expected the render mode 'rgb_array' for a video, got an env with "
            f"{list(modes)}"
        )
    return made


def draws(env: EnvFactory) -> bool:
    """Will ``record`` find the render mode 'rgb_array'? The target is imported and not called."""
    from gymnasium.envs.registration import EnvSpec as Registered
    from gymnasium.envs.registration import load_env_creator

    from equipoise.envs import making
    from equipoise.envs.families.atari import Game

    target = env.target.removeprefix("python:")
    if env.on_device or target.startswith((REMOTE, "envpool:", making.PETTINGZOO)):
        return False
    try:
        found: object = making.resolve(target)
        if isinstance(found, Game):
            return True
        entry = found.entry_point if isinstance(found, Registered) else found
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
    # it is of a script or a notebook, or was removed since
    except (ImportError, ValueError, AttributeError):
        return False
    modes = _metadata(creator, {"render_modes": ["rgb_array"]}).get("render_modes") or ()
    accepted = making.parameters(creator) if callable(creator) else {}
    return "rgb_array" in modes and (
        accepted is None or bool(accepted.keys() & {"render_mode", "**"})
    )


def _drawn(made: Any) -> Any:
    """Return the object that renders: the Python env of the stream, or the vector env."""
    return made.envs[0] if has(made, "envs") else made.env


def _metadata(of: Any, absent: Mapping[str, Any] = MappingProxyType({})) -> Mapping[str, Any]:
    """Return the metadata of a user's env, or an empty mapping if they are not a mapping."""
    found = optional(of, "metadata", absent)
    return found if isinstance(found, Mapping) else {}


def frame_of(made: SyncEnv) -> NDArray[np.uint8]:
    """Return the present frame [H, W, 3]; ValueError if the env renders something else."""
    frame = _drawn(made).render()
    # a vector env of one
    frame = frame[0] if isinstance(frame, tuple | list) and len(frame) == 1 else frame
    array = np.asarray(frame)
    if array.ndim != 3 or array.shape[-1] != 3 or array.dtype != np.uint8:
        raise ValueError(
            f"render(): expected a frame [H, W, 3] of uint8, got {array.dtype} {array.shape} "
            f"({type(frame).__name__})"
        )
    return array


def fps_of(made: SyncEnv) -> int:
    """Return the frames per second that the env names, or a default."""
    fps = _metadata(_drawn(made)).get("render_fps")
    return (
        max(round(float(fps)), 1)
        if isinstance(fps, int | float | np.number) and 0 < fps <= MOST_FPS
        else FPS
    )


def _batch(action: object) -> Tree:
    """Turn an env's own action into a tree of one row."""
    if isinstance(action, tuple):
        return {str(i): _batch(part) for i, part in enumerate(action)}
    if isinstance(action, dict):
        return {key: _batch(part) for key, part in action.items()}
    return np.asarray(action)[None]


def _play(
    made: SyncEnv,
    act: Callable[[object], object],
    writer: _Writer,
    episodes: int,
    begin: Callable[[], object] | None,
) -> list[float]:
    returns: list[float] = []
    ts = made.recv()
    while len(returns) < episodes:
        if begin is not None:
            begin()
        writer.add(frame_of(made))
        total = 0.0
        for _ in range(LONGEST):
            action = _batch(act(tree.index(ts.obs, 0)))
            made.send(action, ts.stream)
            ts = made.recv()
            total += float(ts.reward[0])
            writer.add(frame_of(made))
            if ts.terminated[0] or ts.truncated[0]:
                break
        else:
            returns.append(total)
            break  # it will not end
        returns.append(total)
        # in SAME_STEP the next episode has begun already
        if not ts.first[0] and len(returns) < episodes:
            made.send(action, ts.stream)  # ignored: the answer is the reset
            ts = made.recv()
    writer.close()
    return returns


class _Writer:
    """A writer of frames [H, W, 3] uint8 into one H.264 stream; the size is the first frame's, made
    even for the format.
    """

    def __init__(self, container: Any, fps: int) -> None:
        self._container, self._fps = container, fps
        self._stream: Any = None

    def add(self, array: NDArray[np.uint8]) -> None:
        import av

        array = np.pad(
            array, ((0, array.shape[0] % 2), (0, array.shape[1] % 2), (0, 0)), mode="edge"
        )
        if self._stream is None:
            self._stream = self._container.add_stream("libx264", rate=Fraction(self._fps))
            self._stream.height, self._stream.width = array.shape[:2]
            self._stream.pix_fmt = "yuv420p"  # a format that every browser plays
        if array.shape[:2] != (self._stream.height, self._stream.width):
            size = (self._stream.height, self._stream.width)
            raise ValueError(
                f"render(): expected every frame as large as the first, {size}, got "
                f"{array.shape[:2]}"
            )
        for packet in self._stream.encode(
            av.VideoFrame.from_ndarray(np.ascontiguousarray(array), format="rgb24")
        ):
            self._container.mux(packet)

    def close(self) -> None:
        for packet in self._stream.encode():
            self._container.mux(packet)

"""Episodes of a policy as a video file, through Gymnasium's ``rgb_array`` and PyAV (the extra ``video``)."""

from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.types import EnvFactory

if TYPE_CHECKING:
    import gymnasium

FPS = 30  # where the env does not say
LONGEST = 10_000  # steps of an episode; an env without a time limit must not fill the disk


def record(
    env: EnvFactory | str | Callable[..., gymnasium.Env[Any, Any]],
    act: Callable[[Any], Any],
    path: str | Path,
    *,
    episodes: int = 1,
    seed: int = 0,
    begin: Callable[[], object] | None = None,
) -> list[float]:
    """Play ``episodes`` and write them to ``path`` (.mp4); returns their returns.

    ``env`` is an env as data, a target such as "CartPole-v1", or a function that takes ``render_mode``; ``begin`` is called
    before each episode, for a policy that remembers. The file is there when it is complete, and not before.
    """
    av = _av()
    if episodes < 1:
        raise ValueError(f"episodes: expected at least 1, got {episodes}")
    path = Path(path)
    if path.suffix != ".mp4":
        raise ValueError(f"{path}: expected a name that ends in .mp4")
    path.parent.mkdir(parents=True, exist_ok=True)
    made = _make(env)
    aside = path.with_name(f".{path.stem}.unfinished.mp4")
    try:
        with av.open(str(aside), "w") as container:
            returns = _play(made, act, _Writer(container, _fps(made)), episodes, seed, begin)
        aside.replace(path)
    finally:
        made.close()
        aside.unlink(missing_ok=True)
    return returns


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise ImportError(f'a video needs PyAV: pip install "equipoise[video]" ({error})') from error
    return av


def _make(env: EnvFactory | str | Callable[..., gymnasium.Env[Any, Any]]) -> gymnasium.Env[Any, Any]:
    """One env that renders to arrays."""
    if not os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # else pygame looks for a screen, and complains
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    from equipoise.envs.making import resolve

    kwargs: dict[str, Any] = {"render_mode": "rgb_array"}
    found: Any = env
    if isinstance(env, EnvFactory):
        kwargs = {**env.kwargs, **kwargs}
        found = env.target
    if isinstance(found, str):
        target = found.removeprefix("python:")
        if target.startswith("envpool:"):
            raise ValueError(f"{target}: EnvPool's envs do not render; record the Gymnasium env of the same name")
        found = resolve(target)
    try:
        made = gymnasium.make(found.id, **kwargs) if isinstance(found, EnvSpec) else found(**kwargs)
    except TypeError as error:  # of a function without that parameter
        raise ValueError(f"{env}: expected an env that takes render_mode='rgb_array', got {error}") from error
    modes = made.metadata.get("render_modes", [])
    if "rgb_array" not in modes:
        made.close()
        raise ValueError(f"{env}: expected the render mode 'rgb_array' for a video, got an env with {list(modes)}")
    if isinstance(env, EnvFactory) and env.action_mask == "info":
        from equipoise.envs.masks import InfoMask

        return InfoMask(made)
    return made


def _fps(env: gymnasium.Env[Any, Any]) -> int:
    return max(round(env.metadata.get("render_fps") or FPS), 1)


def _play(
    env: gymnasium.Env[Any, Any],
    act: Callable[[Any], Any],
    writer: _Writer,
    episodes: int,
    seed: int,
    begin: Callable[[], object] | None,
) -> list[float]:
    returns = []
    for episode in range(episodes):
        if begin is not None:
            begin()
        obs, _ = env.reset(seed=seed if episode == 0 else None)
        writer.add(env.render())
        total = 0.0
        for _ in range(LONGEST):
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total += float(reward)
            writer.add(env.render())
            if terminated or truncated:
                break
        returns.append(total)
    writer.close()
    return returns


class _Writer:
    """Frames [H, W, 3] uint8 into one H.264 stream; the size is the first frame's, made even as the format wants."""

    def __init__(self, container: Any, fps: int) -> None:
        self._container, self._fps = container, fps
        self._stream: Any = None

    def add(self, frame: Any) -> None:
        import av

        array = np.asarray(frame)
        if array.ndim != 3 or array.shape[-1] != 3 or array.dtype != np.uint8:
            raise ValueError(
                f"render(): expected a frame [H, W, 3] of uint8, got {array.dtype} {array.shape} ({type(frame).__name__})"
            )
        array = np.pad(array, ((0, array.shape[0] % 2), (0, array.shape[1] % 2), (0, 0)), mode="edge")
        if self._stream is None:
            self._stream = self._container.add_stream("libx264", rate=Fraction(self._fps))
            self._stream.height, self._stream.width = array.shape[:2]
            self._stream.pix_fmt = "yuv420p"  # what every browser plays
        if array.shape[:2] != (self._stream.height, self._stream.width):
            size = (self._stream.height, self._stream.width)
            raise ValueError(f"render(): expected every frame as large as the first, {size}, got {array.shape[:2]}")
        for packet in self._stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(array), format="rgb24")):
            self._container.mux(packet)

    def close(self) -> None:
        for packet in self._stream.encode():
            self._container.mux(packet)

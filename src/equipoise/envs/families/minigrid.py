"""MiniGrid (and BabyAI) ids: the agent's view as one-hot bytes, its direction, and no mission.

``image`` [7, 7, 21] uint8: each cell's object (11), colour (6) and state (4), which MiniGrid gives
as three numbers that measure nothing. ``codes="raw"`` keeps those, [7, 7, 3]; ``codes="pixels"``
draws the view, [56, 56, 3], and ``codes="map"`` the whole grid, with cells of ``tile`` pixels. The
mission is a text, which no network here reads, so it is left out. BabyAI's missions differ from
episode to episode, so its tasks cannot be distinguished without them. One Python env a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
from gymnasium import spaces

from equipoise.envs.base import SyncEnv
from equipoise.envs.loop import LoopEnv
from equipoise.types import Array

PREFIXES = ("MiniGrid-", "BabyAI-")
Codes = Literal["one-hot", "raw", "pixels", "map"]
TILE = 8  # pixels of a cell's side (minigrid.wrappers.RGBImgPartialObsWrapper and RGBImgObsWrapper)
# objects, colours, states (an open, closed or locked door; where another agent looks)
KINDS = (11, 6, 4)


@dataclass(frozen=True, slots=True)
class Grid:
    """A registered id; called, it makes one env with ``kwargs`` of the env or of Gymnasium.

    ``codes``: how a cell is seen; ``tile``: pixels of its side, if it is drawn.
    """

    id: str

    def __call__(
        self,
        *,
        render_mode: str | None = None,
        codes: Codes = "one-hot",
        tile: object = TILE,
        **kwargs: Any,
    ) -> Seen:
        if codes not in get_args(Codes):
            raise ValueError(
                f"{self.id}: codes: expected one of {', '.join(get_args(Codes))}, got {codes!r}"
            )
        if type(tile) is not int or tile < 1:
            raise ValueError(
                f"{self.id}: tile: expected a whole number of pixels from 1 on, got {tile!r}"
            )
        return Seen(
            gymnasium.make(self.id, disable_env_checker=True, render_mode=render_mode, **kwargs),
            codes,
            tile,
        )

    def make(self, kwargs: dict[str, Any], *, streams: Array, seed: int, python: bool) -> SyncEnv:
        made = LoopEnv([partial(self, **kwargs)] * len(streams), streams=streams, seed=seed)
        codes = kwargs.get("codes", "one-hot")
        made.spec = replace(
            made.spec,
            settings=f"MiniGrid: image in {codes} codes, direction; its mission, a text, is "
            "dropped",
        )
        return made


class Seen(gymnasium.Wrapper):
    """A wrapper that keeps {"direction", "image"} of MiniGrid's observation."""

    snapshot_attributes = ()

    def __init__(self, env: gymnasium.Env, codes: Codes, tile: int) -> None:
        super().__init__(env)
        given: Any = env.observation_space
        if not (isinstance(given, spaces.Dict) and {"image", "direction"} <= given.keys()):
            raise ValueError(
                f"{env}: expected the observations image and direction, got {given}; take "
                "module:callable instead"
            )
        self._tables = [np.eye(n, dtype=np.uint8) for n in KINDS] if codes == "one-hot" else None
        grid: Any = env.unwrapped
        image: Any = given["image"]
        cells: Any = {"pixels": image.shape, "map": (grid.height, grid.width)}.get(codes)
        self._draw: Callable[[], Array] | None = None
        if cells is not None:
            image = spaces.Box(0, 255, (cells[0] * tile, cells[1] * tile, 3), np.uint8)
            own = codes == "pixels"
            self._draw = partial(
                grid.get_frame, highlight=not own and grid.highlight, tile_size=tile, agent_pov=own
            )
        if self._tables is not None:
            size = (*image.shape[:2], sum(KINDS))
            image = spaces.Box(np.zeros(size, np.uint8), np.ones(size, np.uint8), dtype=np.uint8)
        self.observation_space = spaces.Dict({"direction": given["direction"], "image": image})

    def reset(self, **kwargs: Any) -> tuple[object, dict[str, object]]:
        obs, info = self.env.reset(**kwargs)
        return self._seen(obs), info

    def step(self, action: object) -> tuple[Any, Any, bool, bool, dict[str, object]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._seen(obs), reward, terminated, truncated, info

    def _seen(self, obs: Mapping[str, Array]) -> dict[str, object]:
        image = obs["image"] if self._draw is None else self._draw()
        if self._tables is not None:
            image = np.concatenate(
                [table[image[..., n]] for n, table in enumerate(self._tables)], -1
            )
        return {"direction": obs["direction"], "image": image}

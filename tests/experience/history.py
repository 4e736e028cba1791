"""Streams whose every row is known: what an experience hands out is compared with what was written,
row for row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.experience.layout import RowSpec
from equipoise.tree import ArraySpec
from equipoise.types import Batch, Stack, Trajectory

STREAM = {"stream": ArraySpec((), "int64"), "start": ArraySpec((), "int64")}
FRAMES, SIDE = 4, 16  # 16 x 16 x 4 bytes are an image
MAP = 300


class History:
    """``rows`` rows of ``streams`` streams: episodes of 1 to ``longest`` steps, then a seam
    (NEXT_STEP), and so on.

    A vector observation is (stream, row); an image is a stack of frames each of which has one
    shade; a map, which ``maps`` asks for, is large and no stack.
    """

    def __init__(
        self,
        *,
        streams: int,
        rows: int,
        longest: int = 9,
        stack: Stack | None = None,
        maps: bool = False,
        recurrent: bool = False,
        seed: int = 0,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.streams, self.rows, self.stack, self.maps = streams, rows, stack, maps
        shape = (rows + 1, streams)
        self.first, self.mask = np.zeros(shape, bool), np.ones(shape, bool)
        self.bootstrap, self.reward = (
            np.ones(shape, bool),
            rng.normal(size=shape).astype(np.float32),
        )
        self.age = np.zeros(shape, np.int64)
        for stream in range(streams):
            row = 0
            while row <= rows:
                self.first[row, stream] = True
                length = int(rng.integers(1, longest + 1))
                for age in range(length + 1):  # the last is the final observation, and a seam
                    if row + age <= rows:
                        self.age[row + age, stream] = age
                row += length
                if row <= rows:
                    self.bootstrap[row - 1, stream] = rng.random() < 0.5  # else the episode was cut
                    self.mask[row, stream], self.reward[row, stream] = False, 0.0
                row += 1
        self.action = rng.integers(0, 5, shape)
        self.version = np.arange(rows + 1)[:, None] // 3 + np.zeros(shape, np.int64)
        obs: dict[str, Any] = {"vector": ArraySpec((2,), "float32")}
        if stack is not None:
            obs["image"] = ArraySpec((stack.frames, SIDE, SIDE), "uint8")
        if maps:
            obs["map"] = ArraySpec((MAP,), "float32")
        self.row = RowSpec(
            obs=obs,
            action=ArraySpec((), "int64"),
            behaviour={"logp": ArraySpec((), "float32")},
            state={"h": ArraySpec((2,), "float32")} if recurrent else {},
            context=STREAM,
        )

    def obs(self, stream: int, row: int) -> dict[str, Any]:
        found: dict[str, Any] = {"vector": np.array([stream, row], np.float32)}
        if (stack := self.stack) is not None:
            age, frames = int(self.age[row, stream]), []
            for back in range(stack.frames - 1, -1, -1):
                if back > age:
                    frames.append(0 if stack.padding == "zero" else self._shade(stream, row - age))
                else:
                    frames.append(self._shade(stream, row - back))
            found["image"] = np.array(frames, np.uint8)[:, None, None] + np.zeros(
                (1, SIDE, SIDE), np.uint8
            )
        if self.maps:
            found["map"] = np.arange(MAP, dtype=np.float32) % 7 + stream * self.rows + row
        return found

    def _shade(self, stream: int, row: int) -> int:
        return (stream * 41 + row * 7 + 1) % 251 + 1

    def write(self, data: Trajectory, streams: Any, start: int) -> None:
        """Rows ``start`` and on of ``streams`` into a slot."""
        unroll = data.reward.shape[0]
        for b, stream in enumerate(streams.tolist()):
            for t in range(unroll + 1):
                for name, value in self.obs(stream, start + t).items():
                    data.obs[name][t, b] = value
                data.first[t, b] = self.first[start + t, stream]
        now, where = slice(start, start + unroll), (slice(start, start + unroll), streams)
        for name in ("reward", "mask", "bootstrap", "action", "version"):
            getattr(data, name)[:] = getattr(self, name)[where]
        if data.behaviour:
            data.behaviour["logp"][:] = -self.reward[now][:, streams]
        data.context["stream"][:], data.context["start"][:] = streams, start
        if data.state:
            data.state["h"][:] = np.stack([streams, np.full(len(streams), start)], 1)

    def prove(self, batch: Batch) -> None:
        """Every row of every window is the stream's own, and follows the one before it; none begins
        with a seam.
        """
        data = batch.data
        unroll, items = data.reward.shape
        for b in range(items):
            stream, start = int(data.context["stream"][b]), int(data.context["start"][b])
            where = f"stream {stream}, row {start}"
            for t in range(unroll + 1):
                for name, value in self.obs(stream, start + t).items():
                    np.testing.assert_array_equal(
                        data.obs[name][t, b].numpy(), value, err_msg=f"{where} + {t}: {name}"
                    )
                assert bool(data.first[t, b]) == self.first[start + t, stream], where
            for t in range(unroll):
                for name in ("reward", "mask", "bootstrap", "action", "version"):
                    got = getattr(data, name)[t, b].item()
                    assert got == getattr(self, name)[start + t, stream], f"{where} + {t}: {name}"
                assert data.behaviour["logp"][t, b].item() == -self.reward[start + t, stream], where
            if data.state:
                assert data.state["h"][b].tolist() == [stream, start], where

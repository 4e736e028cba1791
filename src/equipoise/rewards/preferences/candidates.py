"""Candidates for queries: the newest segments of the rows that a run collects."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise import schema, tree
from equipoise.seeds import derive_seed
from equipoise.types import Trajectory, Tree

MOST_BYTES = 64 << 20  # of all candidates, which are in every checkpoint


@dataclass(slots=True)
class Rows:
    """N places for pieces of at most T rows."""

    obs: Tree  # [N, T, *obs]
    action: Tree  # [N, T, *action]
    reward: np.ndarray  # [N, T] float32: the env's own, for a synthetic teacher alone
    size: np.ndarray  # [N] int64: rows that are there
    episode: np.ndarray  # [N] int64
    version: np.ndarray  # [N] int64: the policy of the last row
    round: np.ndarray  # [N] int64: the round that the segment came before

    @classmethod
    def empty(cls, count: int, rows: int, specs: Tree) -> Rows:
        def zeros(specs: Tree) -> Tree:
            return tree.zeros(tree.prepend(specs, count, rows))

        numbers = [np.zeros(count, np.int64) for _ in range(4)]
        reward = np.zeros((count, rows), np.float32)
        return cls(zeros(specs["obs"]), zeros(specs["action"]), reward, *numbers)

    def fields(self) -> dict[str, Tree]:
        return {name: getattr(self, name) for name in self.__slots__}

    def grown(self, count: int) -> Rows:
        """The same with more places."""

        def more(x: np.ndarray) -> np.ndarray:
            return np.concatenate([x, np.zeros((count - len(x), *x.shape[1:]), x.dtype)])

        return Rows(**tree.map(more, self.fields()))


class Candidates:
    """Cuts the rows of each stream, as they arrive, into segments that cross no end of an episode.

    The last piece of an episode is kept if it is a whole episode or has half of the rows. The
    oldest segments go first.
    """

    def __init__(self, specs: Tree, *, rows: int, most: int, seed: int) -> None:
        """``specs``: of one row, {"obs", "action"}. ``rows``: of a segment. ``seed``: of the
        numbers of episodes.
        """
        one = tree.nbytes(tree.prepend(specs, rows)) + 4 * rows
        self.most = min(most, MOST_BYTES // one)
        if self.most < 2:
            raise ValueError(
                f"segment: must have at most {MOST_BYTES // 2 * rows // one:,} rows of these "
                f"observations, got {rows:,}"
            )
        self._specs, self._rows, self._seed = specs, rows, seed
        self._kept = Rows.empty(self.most, rows, specs)
        self._open = Rows.empty(0, rows, specs)  # by stream: its present piece
        self._next = np.zeros(0, np.int64)  # by stream: the number of its next row
        self._whole = np.zeros(0, np.bool_)  # by stream: did its present piece begin an episode?
        self.count = 0  # segments so far, those that are gone included

    def __len__(self) -> int:
        return min(self.count, self.most)

    def collect(self, data: Trajectory, round_: int) -> None:
        """Add rows [T, B], each once and in the order of its stream; ``data.obs`` without a mask of
        actions.
        """
        stream, start = data.context["stream"], data.context["start"]
        if len(stream) and int(stream.max()) >= len(self._next):
            self._grow(int(stream.max()) + 1)
        # a batch may hold several windows of a stream
        turn = ((stream[:, None] == stream) & (start[:, None] > start)).sum(1)
        for now in range(int(turn.max(initial=0)) + 1):
            self._windows(data, (turn == now).nonzero()[0], round_)

    def _windows(self, data: Trajectory, at: np.ndarray, round_: int) -> None:
        """Add windows of different streams, the columns ``at`` of ``data``."""
        stream, start, piece = data.context["stream"][at], data.context["start"][at], self._open
        lost = stream[self._next[stream] != start]  # rows before these
        piece.size[lost], self._whole[lost] = 0, False
        self._next[stream] = start + len(data.mask)
        for t in range(len(data.mask)):
            real = data.mask[t, at]
            for i in (data.first[t, at] | ~real).nonzero()[0]:
                self._end(int(stream[i]), int(start[i]) + t)
            now, mine = at[real], stream[real]
            place = piece.size[mine]
            _put(piece.obs, (mine, place), tree.index(data.obs, (t, now)))
            _put(piece.action, (mine, place), tree.index(data.action, (t, now)))
            piece.reward[mine, place] = data.reward[t, now]
            piece.version[mine], piece.round[mine] = data.version[t, now], round_
            piece.size[mine] += 1
            for one in mine[piece.size[mine] == self._rows]:
                self._keep(int(one))

    def _end(self, stream: int, row: int) -> None:
        """The episode of a stream ends, and another one begins at or after its ``row``."""
        size = self._open.size[stream]
        if size and (self._whole[stream] or 2 * size >= self._rows):
            self._keep(stream)
        self._open.size[stream], self._whole[stream] = 0, True
        self._open.episode[stream] = derive_seed(self._seed, f"episode {stream} {row}")

    def _keep(self, stream: int) -> None:
        place = self.count % self.most
        _put(self._kept.fields(), place, tree.index(self._open.fields(), stream))
        self._open.size[stream], self._whole[stream] = 0, False
        self.count += 1

    def _grow(self, streams: int) -> None:
        before = len(self._next)
        self._open = self._open.grown(streams)
        more = np.zeros(streams - before, np.int64)
        self._next = np.concatenate([self._next, more])
        self._whole = np.concatenate([self._whole, more.astype(np.bool_)])
        for stream in range(before, streams):
            self._open.episode[stream] = derive_seed(self._seed, f"episode {stream} 0")

    def segments(self) -> Rows:
        """Return all candidates, the oldest first."""
        order = np.arange(self.count - len(self), self.count) % self.most
        return Rows(**tree.index(self._kept.fields(), order))

    def state(self) -> Tree:
        return {
            "kept": self._kept.fields(),
            "open": self._open.fields(),
            "next": self._next,
            "whole": self._whole,
            "count": self.count,
        }

    def schema_of(self, count: int | None) -> schema.Schema:
        """Return the schema of the fields of this many segments; None: any number."""
        found = schema.like(self._kept.fields(), finite=True)
        return tree.map(
            lambda x: schema.Array((count, *x.shape[1:]), x.dtype, finite=x.finite), found
        ) | {"size": schema.Array((count,), "int64", 0, self._rows)}

    def schema(self) -> schema.Schema:
        """The schema of a saved state; the number of streams is unknown before the first rows."""

        streams = {
            "next": schema.Array((None,), "int64", 0),
            "whole": schema.Array((None,), "bool"),
        }
        kept, pieces = self.schema_of(self.most), self.schema_of(None)
        return {"kept": kept, "open": pieces, "count": schema.count(), **streams}

    def load(self, state: Tree) -> None:
        """Go on from a state that fits ``schema``."""
        sizes = {len(x) for x in tree.leaves(state["open"])} | {len(state["whole"])}
        if sizes != {len(state["next"])}:
            raise ValueError(f"open: must have one number of streams, got {sorted(sizes)}")
        self._kept, self._open = (
            Rows(**tree.map(np.copy, state[name])) for name in ("kept", "open")
        )
        self._next, self._whole = state["next"].copy(), state["whole"].copy()
        self.count = state["count"]


def _put(to: Tree, place: int | tuple[np.ndarray, np.ndarray], rows: Tree) -> None:
    def write(to: np.ndarray, rows: np.ndarray) -> None:
        to[place] = rows

    tree.map(write, to, rows)

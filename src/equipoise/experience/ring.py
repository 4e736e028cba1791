"""The rows of all streams, each kept once, and windows cut out of them.

Place ``slot * streams + column`` holds one row of one stream; slot ``s`` of a stream is followed by ``s + 1``, and the last by
the first. All that is small lies side by side in a record, so that a row costs one copy to read. An image has memory of its
own, and of a stack of frames only the newest is kept: a window gathers the frames of all its rows once, and its observations
are overlapping views of them.

A block is ``unroll`` rows of one actor's streams. Its ``obs[T]`` is written where the next block will begin, so the oldest
block is given up before that: of ``slots`` rows a stream, ``slots - unroll`` are held.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from equipoise import tree
from equipoise.experience.layout import RowSpec
from equipoise.tree import ArraySpec
from equipoise.types import Stack, Trajectory, Tree

IMAGE = 1024  # bytes from which on a leaf has memory of its own
NOWHERE = -1  # the row number of a place that no row is at
OLDEST = 255  # of ages: more is not told apart

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the leaves of a row lie, by path: ``small`` in the record at their offsets, ``large`` by themselves."""

    small: Mapping[str, tuple[int, ArraySpec]]
    large: Mapping[str, ArraySpec]  # of a stack: of one frame
    stacks: Mapping[str, Stack]
    record: int  # bytes
    state: Tree  # of the recurrent state, at the first row of every block

    @staticmethod
    def of(row: RowSpec, stacks: Mapping[str, Stack]) -> Layout:
        """``stacks`` by the path within an observation."""
        by_path = {f"obs/{path}" if path else "obs": stack for path, stack in stacks.items()}
        fields = {
            "row": ArraySpec((), "int64"), "version": ArraySpec((), "int64"), "reward": ArraySpec((), "float32"),
            "mask": ArraySpec((), "bool"), "bootstrap": ArraySpec((), "bool"), "first": ArraySpec((), "bool"),
        } | dict(tree.items({"obs": row.obs, "action": row.action, "behaviour": row.behaviour}))  # fmt: skip
        if by_path:
            fields["age"] = ArraySpec((), "uint8")  # rows since the first of its episode
        large = {path: ArraySpec(fields[path].shape[1:], fields[path].dtype) for path in by_path}
        large |= {path: spec for path, spec in fields.items() if spec.nbytes >= IMAGE and path not in large}
        small, at = {}, 0
        for path, spec in sorted(fields.items(), key=lambda item: -np.dtype(item[1].dtype).itemsize):  # so that each is aligned
            if path not in large:
                small[path] = at, spec
                at += spec.nbytes
        return Layout(small=small, large=large, stacks=by_path, record=-(-at // 8) * 8, state=row.state)

    @property
    def history(self) -> int:
        """Rows before its own that a row's observation is made of."""
        return max((stack.frames - 1 for stack in self.stacks.values()), default=0)

    def nbytes(self, *, slots: int, streams: int, unroll: int) -> int:
        """Of a ring."""
        row = self.record + sum(spec.nbytes for spec in self.large.values())
        state: int = sum(spec.nbytes for spec in tree.leaves(self.state))
        return slots * streams * row + slots // unroll * streams * state


class Ring:
    """Rows in, windows of ``window`` rows out; nothing here chooses."""

    def __init__(
        self,
        layout: Layout,
        *,
        slots: int,
        block: int,
        actors: int,
        unroll: int,
        window: int,
        folder: str = "",
        pinned: bool = False,
    ) -> None:
        """``slots`` a multiple of ``unroll``; ``block``: streams of an actor; ``folder``: where a file of the rows may lie;
        ``pinned``: windows are gathered into memory that a GPU reads by itself.
        """
        least = smallest(layout, unroll=unroll, window=window)
        if slots % unroll or slots < least:
            raise ValueError(f"slots: expected a multiple of unroll={unroll} and at least {least}, got {slots}")
        self.layout, self.slots, self.block, self.unroll, self.window = layout, slots, block, unroll, window
        self.streams = streams = actors * block
        self.places = slots * streams
        self._records = _memory((slots, streams, layout.record), "uint8", folder)
        self._small = {path: _field(self._records, at, spec) for path, (at, spec) in layout.small.items()}
        # One frame more than there are places: it stays black, for what stands before an episode's first frame.
        self._large = {path: _memory((self.places + 1, *s.shape), s.dtype, folder) for path, s in layout.large.items()}
        self._recurrent = tree.zeros(tree.prepend(layout.state, slots // unroll, streams))
        self._keeps_state, self._stacked = bool(tree.leaves(layout.state)), bool(layout.stacks)
        self._small["row"][:] = NOWHERE
        self.blocks = np.zeros(actors, np.int64)  # of each actor, so far; block ``n`` lies at slot ``n * unroll`` and after
        self._next_row = np.full(streams, NOWHERE, np.int64)
        self._run = np.zeros(streams, np.int64)  # rows before the head without a gap
        self._age = np.zeros(streams, np.int64)  # of the row that the next block begins with
        self._flat = self._records.reshape(self.places, layout.record)
        self._offsets = np.arange(window + 1)[:, None] * streams
        self._pinned = pinned
        self._windows: dict[tuple[int, int], _Window] = {}

    # --------------------------------------------------------------------------------------------------------------- in

    def insert(self, data: Trajectory, column: int) -> tuple[Ints, Ints]:
        """A block, [T, block] numpy arrays, of the streams in ``column`` and after -> the places where a window may begin
        from now on, and those where none may any more. Take the second out before the first are put in. ValueError where
        frames are stacked and a row shows its stack again.
        """
        actor, unroll, window = column // self.block, self.unroll, self.window
        columns = slice(column, column + self.block)
        head, start = self._head(actor), np.asarray(data.context["start"])
        after = (head + unroll) % self.slots
        gap = self._next_row[columns] != start
        # The block that is written next, and what sees its rows in a stack: they are in no checkpoint (``held``).
        gone = [self._starts(after, after + unroll + self.layout.history, columns)]
        if gap.any():  # what stood at the head is another observation now
            gone.append(self._starts(head - window, head - window + 1, columns)[gap])
            self._age[columns][gap] = OLDEST  # unless an episode begins here, nobody knows how old it is
        self._write(data, head, after, columns)
        self._run[columns][gap] = 0
        fresh = self._fresh(head, columns)
        self.blocks[actor] += 1
        self._next_row[columns] = start + unroll
        self._run[columns] += unroll
        return fresh, np.concatenate(gone)

    def _head(self, actor: int) -> int:
        """The slot where its next block begins."""
        return int(self.blocks[actor]) * self.unroll % self.slots

    def _starts(self, begin: int, end: int, columns: slice) -> Ints:
        """The places of these slots, slot by slot."""
        slots = np.arange(begin, end) % self.slots
        return (slots[:, None] * self.streams + np.arange(columns.start, columns.stop)).reshape(-1)

    def _fresh(self, head: int, columns: slice) -> Ints:
        """Windows that this block completes and that begin with a real row; none across a gap, nor their stacks of frames."""
        begin, end = head - self.window + 1, head + self.unroll - self.window + 1
        slots = np.arange(begin, end)
        may = self._small["mask"][slots % self.slots, columns].copy()
        since = self._run[columns] - (head - slots)[:, None]  # rows from the gap to this one
        may &= since >= 0
        if self._stacked:
            may &= since >= np.minimum(self._small["age"][slots % self.slots, columns], self.layout.history)
        if self._keeps_state:
            may &= (slots % self.unroll == 0)[:, None]
        fresh: Ints = self._starts(begin, end, columns)[may.reshape(-1)]
        return fresh

    def _write(self, data: Trajectory, head: int, after: int, columns: slice) -> None:
        small, unroll, now = self._small, self.unroll, slice(head, head + self.unroll)
        small["row"][now, columns] = data.context["start"] + np.arange(unroll)[:, None]
        small["row"][after, columns] = NOWHERE
        small["mask"][after, columns] = False
        for path in ("version", "reward", "mask", "bootstrap"):
            small[path][now, columns] = getattr(data, path)
        for path, leaf in tree.items({"action": data.action, "behaviour": data.behaviour}):
            self._put(path, leaf, now, columns)
        for path, leaf in tree.items({"first": data.first, "obs": data.obs}):
            self._put(path, leaf[:unroll], now, columns)
            self._put(path, leaf[unroll], after, columns)
        if self._keeps_state:
            tree.map(lambda to, x: np.copyto(to[head // unroll, columns], x), self._recurrent, data.state)
        if self.layout.stacks:
            if (~np.asarray(data.mask) & ~np.asarray(data.first[1:])).any():
                raise ValueError(
                    "expected stacks of frames that shift by one a row, got rows that show an observation again (a SAME_STEP "
                    "env, where an episode was truncated): make the env in NEXT_STEP"
                )
            age = self._age[columns]
            for t in range(unroll + 1):
                if t:
                    age += 1
                age[np.asarray(data.first[t])] = 0
                small["age"][(head + t) % self.slots, columns] = np.minimum(age, OLDEST)

    def _put(self, path: str, leaf: Any, slots: Any, columns: slice) -> None:
        if path in self._small:
            self._small[path][slots, columns] = leaf
            return
        if path in self.layout.stacks:
            lead = leaf.ndim - 1 - len(self.layout.large[path].shape)
            leaf = leaf[(*[slice(None)] * lead, -1)]
        self._by_slot(self._large[path])[slots, columns] = leaf

    # -------------------------------------------------------------------------------------------------------------- out

    def row(self, places: Ints) -> Ints:
        """The stream's row number at each place: it tells whether what a key was of is still there."""
        return self.leaf("row", places)  # type: ignore[no-any-return]

    def leaf(self, path: str, places: Ints) -> Any:
        """[*places.shape, ...], a copy of one leaf of the rows there: "reward", "obs/KEY"; of a stack its newest frame."""
        if path in self._large:
            return self._large[path][places]
        slots, columns = np.divmod(places, self.streams)
        return self._small[path][slots, columns]

    def head(self, columns: Ints) -> Ints:
        """Of each of these streams the slot where its next block begins, at which its newest observation stands."""
        return self.blocks[columns // self.block] * self.unroll % self.slots

    def gather(self, places: Ints, buffer: int = 0) -> Trajectory:
        """Windows that begin at ``places`` [N], as tensors over memory that the next call of N and ``buffer`` overwrites."""
        key = len(places), buffer
        if (window := self._windows.get(key)) is None:
            window = self._windows[key] = _Window(self, len(places))
        return window.fill(places)

    # ------------------------------------------------------------------------------------------------------------- state

    @property
    def held(self) -> int:
        """Of each actor's blocks the last so many are whole: the one before them gave its first row to the next block's."""
        return self.slots // self.unroll - 1

    @property
    def block_nbytes(self) -> int:
        return sum(view.nbytes for view in self.block_views(0, 0, 1))

    def block_views(self, actor: int, first: int, count: int) -> list[Any]:
        """Blocks ``first`` and on of an actor, which end at the last slot or before, as views in a fixed order.

        Until block number ``first + held`` is inserted nothing changes in them: another thread may read.
        """
        columns, at = slice(actor * self.block, (actor + 1) * self.block), first % (self.held + 1)
        slots = slice(at * self.unroll, (at + count) * self.unroll)
        assert slots.stop <= self.slots, "blocks that lie in two parts"
        rows = [array[slots, columns] for array in (self._records, *map(self._by_slot, self._large.values()))]
        return rows + [leaf[at : at + count, columns] for leaf in tree.leaves(self._recurrent)]

    def _by_slot(self, large: Any) -> Any:
        """[slots, streams, ...], without the black frame."""
        return large[:-1].reshape(self.slots, self.streams, *large.shape[1:])

    def state(self) -> Tree:
        """A copy of all but the blocks."""
        where = self._edge()
        return {
            "slots": self.slots, "unroll": self.unroll, "block": self.block, "window": self.window,
            "blocks": self.blocks.copy(), "next_row": self._next_row.copy(), "run": self._run.copy(), "age": self._age.copy(),
            "records": self._records[where], "large": {path: self._by_slot(x)[where] for path, x in self._large.items()},
        }  # fmt: skip

    def _edge(self) -> tuple[Any, Any]:
        """Where the row after every stream's last block is: its observation is that block's, too."""
        heads = self.blocks * self.unroll % self.slots
        return np.repeat(heads, self.block), np.arange(self.streams)

    def load(self, state: Tree) -> None:
        """The inverse, after which the blocks are to be written; ValueError where a size differs."""
        saved: dict[str, Any] = dict(tree.items(state))
        for path, mine in tree.items(self.state()):
            wanted, got = ((x.shape if isinstance(x, np.ndarray) else x) for x in (mine, saved.get(path)))
            if got != wanted:
                raise ValueError(f"replay, {path}: expected {wanted} as in this program, got {got}")
        for path, array in (("blocks", self.blocks), ("next_row", self._next_row), ("run", self._run), ("age", self._age)):
            array[:] = saved[path]
        where = self._edge()
        self._records[where] = saved["records"]
        for path, large in self._large.items():
            self._by_slot(large)[where] = saved[f"large/{path}"]


class _Window:
    """The memory of a batch of N windows, and what a trajectory of it looks like."""

    def __init__(self, ring: Ring, n: int) -> None:
        self._ring, self._n, layout, rows = ring, n, ring.layout, ring.window + 1
        self._places = np.empty((rows, n), np.int64)
        records = self._empty((rows, n, layout.record), "uint8")
        self._records = records.reshape(rows * n, layout.record)
        small = {path: _field(records, at, spec) for path, (at, spec) in layout.small.items()}
        self._first, self._age, self._row = small["first"], small.get("age"), small["row"]
        self._large: dict[str, Any] = {}
        self._frames: dict[str, Any] = {}  # of stacks: [N, history + rows, ...]
        for path, spec in layout.large.items():
            if (stack := layout.stacks.get(path)) is None:
                self._large[path] = self._empty((rows, n, *spec.shape), spec.dtype)
            else:
                self._frames[path] = self._empty((n, stack.frames - 1 + rows, *spec.shape), spec.dtype)
        self._stream, self._state = np.empty(n, np.int64), tree.zeros(tree.prepend(layout.state, n))
        self._leaves = {path: torch.from_numpy(array) for path, array in (*small.items(), *self._large.items())}
        self._leaves |= {path: self._overlapping(path) for path in self._frames}
        self._plain = self._trajectory(self._leaves)

    def _empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        return torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=self._ring._pinned).numpy()

    def fill(self, places: Ints) -> Trajectory:
        ring, rows = self._ring, self._places
        np.add(ring._offsets, places, out=rows)
        np.remainder(rows, ring.places, out=rows)
        flat = rows.reshape(-1)
        np.take(ring._flat, flat, axis=0, out=self._records, mode="clip")  # clip: numpy would buffer the result otherwise
        for path, array in self._large.items():
            np.take(ring._large[path], flat, axis=0, out=array.reshape(len(flat), *array.shape[2:]), mode="clip")
        np.remainder(places, ring.streams, out=self._stream)
        if ring._keeps_state:
            blocks, columns = np.divmod(places, ring.streams)
            tree.map(lambda to, x: np.copyto(to, x[blocks // ring.unroll, columns]), self._state, ring._recurrent)
        if not self._frames:
            return self._plain
        if self._first[1:].any():  # two rows of a window see different frames where an episode begins between them
            return self._trajectory(self._leaves | {path: torch.from_numpy(self._apart(path)) for path in self._frames})
        for path in self._frames:
            self._together(path, places)
        return self._plain

    def _trajectory(self, leaves: Mapping[str, torch.Tensor]) -> Trajectory:
        last = self._ring.window

        def part(name: str, rows: int) -> Tree:
            mine = {path: leaf[:rows] for path, leaf in leaves.items() if path == name or path.startswith(f"{name}/")}
            return mine[name] if name in mine else tree.nest({p.removeprefix(f"{name}/"): leaf for p, leaf in mine.items()})

        fields = {name: part(name, last) for name in ("action", "behaviour", "reward", "mask", "bootstrap", "version")}
        context = {"stream": torch.from_numpy(self._stream), "start": leaves["row"][0]}
        return Trajectory(
            obs=part("obs", last + 1), first=leaves["first"], state=tree.torch_views(self._state), context=context, **fields
        )

    def _overlapping(self, path: str) -> torch.Tensor:
        """[rows, N, frames, ...]: row t of a window sees the frames t to t + history of those gathered for it."""
        gathered = torch.from_numpy(self._frames[path])
        frames = self._ring.layout.stacks[path].frames
        over, each, *inner = gathered.stride()
        shape = (self._ring.window + 1, self._n, frames, *gathered.shape[2:])
        return gathered.as_strided(shape, (each, over, each, *inner))

    def _together(self, path: str, places: Ints) -> None:
        """The frames of windows within one episode each."""
        ring, into, stack = self._ring, self._frames[path], self._ring.layout.stacks[path]
        steps = np.arange(1 - stack.frames, ring.window + 1)
        assert self._age is not None
        index = _padded(places[:, None], steps, self._age[0][:, None].astype(np.int64), ring, stack)
        np.take(ring._large[path], index.reshape(-1), axis=0, out=into.reshape(-1, *into.shape[2:]), mode="clip")

    def _apart(self, path: str) -> Any:
        """[rows, N, frames, ...], every row's stack by itself."""
        ring, stack = self._ring, self._ring.layout.stacks[path]
        assert self._age is not None
        places, age = self._places[..., None], self._age[..., None].astype(np.int64)
        return ring._large[path][_padded(places, np.arange(1 - stack.frames, 1), age, ring, stack)]


def _padded(places: Ints, steps: Ints, age: Ints, ring: Ring, stack: Stack) -> Ints:
    """The places of the frames ``steps`` rows from ``places``, of episodes that are ``age`` rows old there."""
    if stack.padding == "first":
        return (places + np.maximum(steps, -age) * ring.streams) % ring.places  # type: ignore[no-any-return]
    return np.where(steps < -age, ring.places, (places + steps * ring.streams) % ring.places)


def smallest(layout: Layout, *, unroll: int, window: int) -> int:
    """Slots without which no window is whole: the block being written, the one given up for it, and a window's rows."""
    return (2 + -(-(window + layout.history) // unroll)) * unroll


def _field(records: Any, at: int, spec: ArraySpec) -> Any:
    """One leaf of all records [..., bytes], as a view."""
    inner = np.empty(spec.shape, spec.dtype).strides
    return np.ndarray((*records.shape[:-1], *spec.shape), spec.dtype, records, at, (*records.strides[:-1], *inner))


def _memory(shape: tuple[int, ...], dtype: str, folder: str) -> Any:
    """Zeros; where there is a folder, in a file of it that has no name and ends with the process."""
    if not folder:
        return np.zeros(shape, dtype)
    size = max(math.prod(shape) * np.dtype(dtype).itemsize, 1)
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)  # now, or a write into the map would die of a full disk
        except OSError as error:
            raise OSError(error.errno, f"{folder}: no room for {size:,} bytes of replay: {error.strerror}") from None
        return np.frombuffer(mmap.mmap(file.fileno(), size), dtype).reshape(shape)

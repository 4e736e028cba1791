"""A buffer of rows, filled round and round: the rows of all streams, each kept once, and windows
cut out of them.

Place ``slot * streams + column`` holds one row of one stream; slot ``s`` of a stream is followed by
``s + 1``, and the last by the first. All that is small lies side by side in a record, so that a row
costs one copy to read. An image has memory of its own, and of a stack of frames only the newest is
kept: a window gathers the frames of all its rows once, and its observations are overlapping views
of them.

A block is ``unroll`` rows of one actor's streams. The block's ``obs[T]`` is written where the next
block will begin, so the oldest block is given up before that: of ``slots`` rows a stream, ``slots -
unroll`` are held. A block's records are put together outside the ring, in the cache, and moved
there in one piece: the ring is in no cache, and each leaf would wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise import schema, tree
from equipoise.experience.replay.leaves import Cursor, Leaf, Packed, Plain, fill, memory
from equipoise.experience.replay.row_layout import Layout, _field, smallest
from equipoise.experience.replay.selectors import Where
from equipoise.types import TRAJECTORY_EDGES, Array, Stack, Trajectory, Tree

NOWHERE = -1  # the row number of an empty place
OLDEST = 255  # the greatest age with a class of its own

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]  # [slots, streams]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The number of rows in a buffer, and their streams."""

    slots: int  # rows of a stream: a multiple of ``unroll``
    block: int  # streams of an actor
    actors: int
    unroll: int  # rows of a block
    window: int
    numbers: Ints | None = None  # of the stream in each column; None: that of the column


class RowBuffer:
    """A ring buffer: rows in, windows of ``window`` rows out; the choice of windows is the
    selector's.
    """

    def __init__(
        self,
        layout: Layout,
        extent: Extent,
        *,
        folder: str = "",
        codecs: Mapping[str, str] = MappingProxyType({}),
        threads: int = 1,
        pinned: bool = False,
    ) -> None:
        """``folder``: directory for a file of the rows; ``codecs``: codecs of large leaves by path,
        decoded by ``threads`` threads; ``pinned``: windows are gathered into memory that a GPU
        reads by itself.
        """
        slots, block, actors = extent.slots, extent.block, extent.actors
        unroll, window = extent.unroll, extent.window
        least = smallest(layout, unroll=unroll, window=window)
        if slots % unroll or slots < least:
            raise ValueError(
                f"slots: expected a multiple of unroll={unroll} and at least {least}, got {slots}"
            )
        self.layout, self.slots, self.block = layout, slots, block
        self.unroll, self.window = unroll, window
        self.streams = streams = actors * block
        self._numbers = extent.numbers
        self.places = slots * streams
        self._records = memory((slots, streams, layout.record), "uint8", folder)
        self._small = {
            path: _field(self._records, at, spec) for path, (at, spec) in layout.small.items()
        }
        self._pool = ThreadPoolExecutor(threads - 1, "decode") if codecs and threads > 1 else None
        self._large: dict[str, Leaf] = {}
        for path, spec in layout.large.items():
            if path in codecs:
                self._large[path] = Packed(
                    spec,
                    codecs[path],
                    slots=slots,
                    streams=streams,
                    unroll=unroll,
                    threads=threads,
                    pool=self._pool,
                )
            else:
                self._large[path] = Plain(
                    spec, slots=slots, streams=streams, unroll=unroll, folder=folder
                )
        self._recurrent = tree.zeros(tree.prepend(layout.state, slots // unroll, streams))
        self._keeps_state, self._history = bool(tree.leaves(layout.state)), layout.history
        self._small["row"][:] = NOWHERE
        self.blocks = np.zeros(
            actors, np.int64
        )  # blocks of each actor so far; block ``n`` lies at slot ``n * unroll`` and after
        # The row numbers of each actor's next block, if nothing is lost in between.
        self._expected = np.full((actors, unroll, block), NOWHERE, np.int64)
        self._one_block = np.array(unroll)  # an array: to add a plain number takes twice as long
        self._since = np.zeros(streams, np.int64)  # rows before the last gap
        self._age = np.zeros(streams, np.int64)  # age of the row that the next block begins with
        self._flat = self._records.reshape(self.places, layout.record)
        self._rows = self._small["row"].reshape(self.places)
        # A block as it is put together. The unwritten fields of the last row, which holds
        # ``obs[T]``, mean: no row.
        self._block = np.zeros((unroll + 1, block, layout.record), np.uint8)
        parts = {path: _field(self._block, at, spec) for path, (at, spec) in layout.small.items()}
        parts["row"][unroll] = NOWHERE
        longer = ("age", *TRAJECTORY_EDGES)
        self._parts = {
            path: part if path.split("/")[0] in longer else part[:unroll]
            for path, part in parts.items()
        }
        fields = dict.fromkeys(
            path.split("/")[0]
            for path in (*layout.small, *layout.large)
            if path not in ("row", "age")
        )
        self._plain = [(name, self._parts[name]) for name in fields if name in self._parts]
        # trees, or leaves with memory of their own
        self._others = [name for name in fields if name not in self._parts]
        self._steps = np.arange(unroll + 1)[:, None]
        # The windows that may begin, from the first that a block completes to the last that sees
        # the next block or its frames.
        self._may = np.zeros((window - 1 + 2 * unroll + self._history, block), bool)
        self._completed = self._may[:unroll]
        # rows from the head back to where the windows that a block completes begin
        self._lead = window - 1 - self._steps[:-1]
        self._offsets = np.arange(window + 1)[:, None] * streams
        self._pinned = pinned
        self._windows: dict[tuple[int, int], _Window] = {}

    # ------------------------------------------------------------------------------------------- in

    def insert(self, data: Trajectory, column: int) -> list[tuple[Where, Flags]]:
        """A block, [T, block] numpy arrays, of the streams in ``column`` and after -> the places
        (slots and streams, as slices) at which windows may begin from now on, or not any more, for
        ``Selector.put``; the next call overwrites these flags. ValueError if frames are stacked and
        a row shows its stack again.
        """
        actor = column // self.block
        unroll = self.unroll
        columns = slice(column, column + self.block)
        number = int(self.blocks[actor])
        start = np.asarray(data.context["start"])
        expected = self._expected[actor]
        head = number * unroll % self.slots
        changes: list[tuple[Where, Flags]] = []
        if gap := expected[0].tobytes() != start.tobytes():  # also before the first block
            # The observation at the head is another one now.
            for lost in np.flatnonzero(expected[0] != start) + column:
                changes += self._parted(
                    head - self.window, slice(lost, lost + 1), np.zeros((1, 1), bool)
                )
                self._since[lost] = number * unroll
                self._age[lost] = OLDEST  # the age is unknown unless an episode begins here
            np.add(start, self._steps[:-1], out=expected)
        self._write(data, expected, head, columns, anew=gap)
        self._fresh(number, head, columns)
        np.add(expected, self._one_block, out=expected)
        self.blocks[actor] = number + 1
        return changes + self._parted(head - self.window + 1, columns, self._may)

    def _parted(self, begin: int, columns: slice, flags: Flags) -> list[tuple[Where, Flags]]:
        """Yield ``flags`` of the slots from ``begin`` on, which may lie in two parts."""
        begin %= self.slots
        if (end := begin + len(flags)) <= self.slots:
            return [((slice(begin, end), columns), flags)]
        first = self.slots - begin
        return [
            ((slice(begin, self.slots), columns), flags[:first]),
            ((slice(0, end - self.slots), columns), flags[first:]),
        ]

    def _fresh(self, number: int, head: int, columns: slice) -> None:
        """Mark the windows that this block completes and that begin with a real row; none, nor its
        frames, crosses a gap.
        """
        may = self._completed
        if self.window == 1:
            may[...] = self._parts["mask"]
        else:
            for where, part in self._parted(head - self.window + 1, columns, may):
                part[...] = self._small["mask"][where]
        if self.window > 1 or self._history:
            # rows from the last gap to each
            since = number * self.unroll - self._since[columns] - self._lead
            if (since < self._history).any():
                slots = (head - self._lead[:, 0]) % self.slots
                may &= since >= (
                    np.minimum(self._small["age"][slots, columns], self._history)
                    if self._history
                    else 0
                )
        if self._keeps_state:
            may &= self._lead % self.unroll == 0

    def _write(
        self, data: Trajectory, rows: Ints, head: int, columns: slice, *, anew: bool
    ) -> None:
        """Write a block. ``rows`` [T, block]: row numbers; ``anew``: ``obs[0]`` is not there yet as
        the last block's ``obs[T]``.
        """
        unroll, parts = self.unroll, self._parts
        fields = data.fields()
        for name, part in self._plain:
            part[...] = fields[name]
        for name in self._others:
            for path, leaf in tree.items(fields[name], name):
                if path in parts:
                    parts[path][...] = leaf
                else:
                    frames = leaf[:, :, -1] if path in self.layout.stacks else leaf
                    self._large[path].put(frames, head, columns, anew=anew)
        parts["row"][...] = rows
        if "age" in parts:
            if (~parts["mask"] & ~parts["first"][1:]).any():
                raise ValueError(
                    "expected stacks of frames that shift by one a row, got rows that show an "
                    "observation again (a SAME_STEP env, in which an episode was truncated): "
                    "make the env in NEXT_STEP"
                )
            age, steps = self._age[columns], self._steps
            # the step at which its episode began
            begun = np.maximum.accumulate(np.where(parts["first"], steps, -age), 0)
            np.minimum(steps - begun, OLDEST, out=parts["age"], casting="unsafe")
            age[...] = unroll - begun[-1]
        if head + unroll < self.slots:
            self._records[head : head + unroll + 1, columns] = self._block
        else:
            self._records[head:, columns] = self._block[:-1]
            self._records[0, columns] = self._block[-1]
        if self._keeps_state:
            tree.map(
                lambda to, x: np.copyto(to[head // unroll, columns], x), self._recurrent, data.state
            )

    # ------------------------------------------------------------------------------------------ out

    def stream(self, places: Ints) -> Ints:
        """[n], the number of the stream at each place."""
        columns = places % self.streams
        return columns if self._numbers is None else self._numbers[columns]

    def row(self, places: Ints) -> Ints:
        """Return the row number at each place; a key's row is still there if the numbers agree."""
        return self._rows[places]  # type: ignore[no-any-return]

    def leaf(self, path: str, places: Ints) -> Array:
        """Copy one leaf of the rows at ``places``, [*places.shape, ...]: "reward", "obs/KEY"; for a
        stack the newest frame.
        """
        if path in self._large:
            spec = self.layout.large[path]
            found = np.empty((*places.shape, *spec.shape), spec.dtype)
            self._large[path].take(places.reshape(-1), found.reshape(-1, *spec.shape))
            return found
        slots, columns = np.divmod(places, self.streams)
        return self._small[path][slots, columns]

    def head(self, columns: Ints) -> Ints:
        """Return, for each of these streams, the slot where the next block begins, which holds the
        newest observation.
        """
        return self.blocks[columns // self.block] * self.unroll % self.slots

    def gather(self, places: Ints, buffer: int = 0) -> Trajectory:
        """Gather windows that begin at ``places`` [N], as tensors over memory that the next call of
        N and ``buffer`` overwrites.
        """
        key = len(places), buffer
        if (window := self._windows.get(key)) is None:
            window = self._windows[key] = _Window(self, len(places))
        return window.fill(places)

    # ---------------------------------------------------------------------------------------- state

    @property
    def held(self) -> int:
        """The number of whole blocks of each actor, its last ones: the block before them gave up a
        row to the next block.
        """
        return self.slots // self.unroll - 1

    @property
    def block_nbytes(self) -> int:
        """Bytes of a block's rows before encoding."""
        return self.layout.nbytes(slots=self.unroll, streams=self.block, unroll=self.unroll)

    def block_arrays(self, actor: int, first: int, count: int) -> list[Array]:
        """Return blocks of an actor from ``first`` on, ending at the last slot or before, as
        ``load_blocks`` reads them.

        Until block number ``first + held`` is inserted nothing changes in them: another thread may
        read.
        """
        at, columns = self._block_at(actor, first, count)
        records, states = self._small_of(at, count, columns)
        return [
            records,
            *(array for leaf in self._large.values() for array in leaf.blocks(at, count, columns)),
            *states,
        ]

    def load_blocks(self, actor: int, first: int, count: int, lost: int, data: Cursor) -> None:
        """Load the bytes of those arrays, one after the other; the first ``lost`` blocks stay as
        they are. ValueError if there are too few.
        """
        at, columns = self._block_at(actor, first, count)
        records, states = self._small_of(at, count, columns)
        fill(records, lost * self.unroll, data)
        for leaf in self._large.values():
            leaf.load(at, count, columns, lost, data)
        for state in states:
            fill(state, lost, data)

    def _block_at(self, actor: int, first: int, count: int) -> tuple[int, slice]:
        at = first % (self.held + 1)
        assert at + count <= self.held + 1, "blocks that lie in two parts"
        return at, slice(actor * self.block, (actor + 1) * self.block)

    def _small_of(self, at: int, count: int, columns: slice) -> tuple[Array, list[Array]]:
        records = self._records[at * self.unroll : (at + count) * self.unroll, columns]
        return records, [leaf[at : at + count, columns] for leaf in tree.leaves(self._recurrent)]

    def state(self) -> Tree:
        """Copy the state without the blocks."""
        where = self._edge()
        return {
            "slots": self.slots,
            "unroll": self.unroll,
            "block": self.block,
            "window": self.window,
            "blocks": self.blocks.copy(),
            "expected": self._expected.copy(),
            "since": self._since.copy(),
            "age": self._age.copy(),
            "records": self._records[where],
            "large": {path: self.leaf(path, self._edge_places) for path in self._large},
        }

    def _edge(self) -> tuple[Array, Array]:
        """The place after every stream's last block: the observation there also belongs to that
        block.
        """
        heads = self.blocks * self.unroll % self.slots
        return np.repeat(heads, self.block), np.arange(self.streams)

    @property
    def _edge_places(self) -> Ints:
        slots, columns = self._edge()
        return slots * self.streams + columns  # type: ignore[no-any-return]

    def load(self, state: Tree) -> None:
        """Load a state, after which the blocks are to be loaded; ValueError if a size differs."""
        mine = self.state()
        blocks = schema.Array(self.blocks.shape, str(self.blocks.dtype), 0, schema.MOST)
        schema.check(state, schema.like(mine) | {"blocks": blocks}, "replay")
        for path in ("slots", "unroll", "block", "window"):
            if state[path] != mine[path]:
                raise ValueError(
                    f"replay, {path}: expected {mine[path]} as in this program, got {state[path]}"
                )
        for path, array in (
            ("blocks", self.blocks),
            ("expected", self._expected),
            ("since", self._since),
            ("age", self._age),
        ):
            array[:] = state[path]
        self._records[self._edge()] = state["records"]
        for path, large in self._large.items():
            large.set(self._edge_places, state["large"][path])

    def close(self) -> None:
        """Close the ring: nothing is gathered any more."""
        if self._pool is not None:
            self._pool.shutdown()


class _Window:
    """The memory of a batch of N windows, and the trajectory over it."""

    def __init__(self, ring: RowBuffer, n: int) -> None:
        self._ring, self._n, layout, rows = ring, n, ring.layout, ring.window + 1
        self._places = np.empty((rows, n), np.int64)
        records = self._empty((rows, n, layout.record), "uint8")
        self._records = records.reshape(rows * n, layout.record)
        small = {path: _field(records, at, spec) for path, (at, spec) in layout.small.items()}
        self._first, self._age, self._row = small["first"], small.get("age"), small["row"]
        self._large: dict[str, Array] = {}  # [rows, N, ...]
        self._frames: dict[str, Array] = {}  # frames of stacks: [N, history + rows, ...]
        for path, spec in layout.large.items():
            if (stack := layout.stacks.get(path)) is None:
                self._large[path] = self._empty((rows, n, *spec.shape), spec.dtype)
            else:
                self._frames[path] = self._empty(
                    (n, stack.frames - 1 + rows, *spec.shape), spec.dtype
                )
        self._stream, self._state = np.empty(n, np.int64), tree.zeros(tree.prepend(layout.state, n))
        self._leaves = {
            path: torch.from_numpy(array) for path, array in (small | self._large).items()
        }
        self._leaves |= {path: self._overlapping(path) for path in self._frames}
        self._plain = self._trajectory(self._leaves)

    def _empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        kind = tree.torch_dtype(dtype)
        return torch.empty(shape, dtype=kind, pin_memory=self._ring._pinned).numpy()

    def fill(self, places: Ints) -> Trajectory:
        ring, rows = self._ring, self._places
        np.add(ring._offsets, places, out=rows)
        flat = rows.reshape(-1)
        np.take(ring._flat, flat, axis=0, out=self._records, mode="wrap")
        if self._large:
            np.remainder(rows, ring.places, out=rows)  # there is one more observation than rows
        for path, array in self._large.items():
            ring._large[path].take(flat, array.reshape(len(flat), *array.shape[2:]))
        np.remainder(places, ring.streams, out=self._stream)
        if ring._numbers is not None:
            self._stream[:] = ring._numbers[self._stream]
        if ring._keeps_state:
            blocks, columns = np.divmod(places, ring.streams)
            tree.map(
                lambda to, x: np.copyto(to, x[blocks // ring.unroll, columns]),
                self._state,
                ring._recurrent,
            )
        if not self._frames:
            return self._plain
        # two rows of a window see different frames if an episode begins between them
        if self._first[1:].any():
            return self._trajectory(
                self._leaves | {path: torch.from_numpy(self._apart(path)) for path in self._frames}
            )
        for path in self._frames:
            self._together(path, places)
        return self._plain

    def _trajectory(self, leaves: Mapping[str, torch.Tensor]) -> Trajectory:
        last = self._ring.window

        def part(name: str, rows: int) -> Tree:
            return tree.map(lambda leaf: leaf[:rows], tree.within(name, leaves))

        fields = {
            name: part(name, last)
            for name in ("action", "behaviour", "reward", "mask", "bootstrap", "version")
        }
        context = {"stream": torch.from_numpy(self._stream), "start": leaves["row"][0]}
        return Trajectory(
            obs=part("obs", last + 1),
            first=leaves["first"],
            state=tree.torch_views(self._state),
            context=context,
            **fields,
        )

    def _overlapping(self, path: str) -> torch.Tensor:
        """Views [rows, N, frames, ...]: row t of a window sees its gathered frames t to t +
        history.
        """
        gathered = torch.from_numpy(self._frames[path])
        frames = self._ring.layout.stacks[path].frames
        over, each, *inner = gathered.stride()
        shape = (self._ring.window + 1, self._n, frames, *gathered.shape[2:])
        return gathered.as_strided(shape, (each, over, each, *inner))

    def _together(self, path: str, places: Ints) -> None:
        """Gather the frames of windows that lie within one episode each."""
        ring, into, stack = self._ring, self._frames[path], self._ring.layout.stacks[path]
        steps = np.arange(1 - stack.frames, ring.window + 1)
        assert self._age is not None
        index = _padded(places[:, None], steps, self._age[0][:, None].astype(np.int64), ring, stack)
        ring._large[path].take(index.reshape(-1), into.reshape(-1, *into.shape[2:]))

    def _apart(self, path: str) -> Array:
        """Gather [rows, N, frames, ...], every row's stack by itself."""
        ring, stack = self._ring, self._ring.layout.stacks[path]
        assert self._age is not None
        places, age = self._places.T[..., None], self._age.T[..., None].astype(np.int64)
        index = _padded(places, np.arange(1 - stack.frames, 1), age, ring, stack)
        return ring.leaf(path, index).swapaxes(0, 1)


def _padded(places: Ints, steps: Ints, age: Ints, ring: RowBuffer, stack: Stack) -> Ints:
    """The places of the frames ``steps`` rows from ``places``, black before the first frame of an
    episode ``age`` rows old.
    """
    if stack.padding == "first":
        return (places + np.maximum(steps, -age) * ring.streams) % ring.places  # type: ignore[no-any-return]
    return np.where(steps < -age, ring.places, (places + steps * ring.streams) % ring.places)

"""The large leaves of a ring's rows, each in memory of its own: as arrays, or encoded row by row.

Rows are numbered by place, as in ``row_buffer.py``; place ``slots * streams``, one after the last,
is black and stands for the frames before an episode's first. A block is ``unroll`` rows; the
observation after it is put at the next slot, as the first row of the next block, and is put again
with that block.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from equipoise.experience.replay.codec import CODECS, SHORTEST, TAIL, Bytes, Codec
from equipoise.tree import ArraySpec
from equipoise.types import Array

# most rows of an unroll that share one key: the further apart two rows are, the more has changed
NEAR = 8
SCRATCH = 1 << 19  # bytes of rows that a thread decodes by one call: they fit a processor's cache
PER_ROW = 64 + TAIL  # bytes besides the encoded ones: a reference, an object's head, an allocation

Ints = NDArray[np.int64]


class Cursor:
    """A cursor over bytes that are read from first to last."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def read(self, dtype: DTypeLike, count: int) -> Array:
        """Read the next bytes; ValueError if there are fewer."""
        size = np.dtype(dtype).itemsize * count
        if size > (left := len(self.data) - self.at):
            raise ValueError(
                f"expected {size:,} bytes of blocks more at byte {self.at:,}, got {left:,}"
            )
        found = np.frombuffer(self.data, dtype, count, self.at)
        self.at += size
        return found


class Leaf(Protocol):
    def put(self, rows: Array, head: int, columns: slice, *, anew: bool) -> None:
        """Put a block [T or T+1, block, ...] at the slot ``head``; ``anew``: the first row is not
        there yet.
        """

    def take(self, places: Array, out: Array) -> None:
        """Copy the rows at ``places`` [n] into ``out`` [n, ...], contiguous."""

    def set(self, places: Array, rows: Array) -> None:
        """Set ``rows`` [n, ...], each the first of a block."""

    def blocks(self, first: int, count: int, columns: slice) -> list[Array]:
        """Return the arrays that ``load`` reads, for the blocks from slot ``first * unroll`` on."""

    def load(self, first: int, count: int, columns: slice, lost: int, data: Cursor) -> None:
        """Load what ``blocks`` returned; the first ``lost`` blocks stay as they are."""


class Plain:
    def __init__(
        self, spec: ArraySpec, *, slots: int, streams: int, unroll: int, folder: str
    ) -> None:
        """``folder``: the directory for a file of the rows; "": memory."""
        self._unroll = unroll
        self._rows = memory((slots * streams + 1, *spec.shape), spec.dtype, folder)
        self._grid = self._rows[:-1].reshape(slots, streams, *spec.shape)

    @property
    def nbytes(self) -> int:
        return int(self._rows.nbytes)

    def put(self, rows: Array, head: int, columns: slice, *, anew: bool) -> None:
        grid, unroll = self._grid, self._unroll
        if len(rows) == unroll:
            grid[head : head + unroll, columns] = rows
            return
        begin = 0 if anew else 1
        grid[head + begin : head + unroll, columns] = rows[begin:-1]
        grid[(head + unroll) % len(grid), columns] = rows[-1]

    def take(self, places: Array, out: Array) -> None:
        np.take(self._rows, places, axis=0, out=out, mode="clip")  # unbuffered

    def set(self, places: Array, rows: Array) -> None:
        self._rows[places] = rows

    def blocks(self, first: int, count: int, columns: slice) -> list[Array]:
        return [self._grid[first * self._unroll : (first + count) * self._unroll, columns]]

    def load(self, first: int, count: int, columns: slice, lost: int, data: Cursor) -> None:
        fill(self.blocks(first, count, columns)[0], lost * self._unroll, data)


class Packed:
    """Rows that are encoded one by one, with the last ``TAIL`` bytes apart.

    With a ``keyed`` codec the first of every few rows of a stream and block is the key, encoded as
    it is; other rows are encoded as the exclusive or with it.
    """

    def __init__(
        self,
        spec: ArraySpec,
        codec: str,
        *,
        slots: int,
        streams: int,
        unroll: int,
        threads: int,
        pool: ThreadPoolExecutor | None,
    ) -> None:
        """``pool``: threads that decode next to the caller's, ``threads`` in all."""
        self._spec, self._streams, self._unroll, self._pool = spec, streams, unroll, pool
        self._keyed = CODECS[codec].keyed
        self._black = slots * streams
        self._workers = [CODECS[codec]() for _ in range(threads)]
        self._rows = np.empty(self._black + 1, object)
        self._rows[:] = self._workers[0].encode(np.zeros((1, spec.nbytes), np.uint8)) * len(
            self._rows
        )
        self._tails = np.zeros((len(self._rows), min(TAIL, spec.nbytes)), np.uint8)
        self._row_grid = self._rows[:-1].reshape(slots, streams)
        self._tail_grid = self._tails[:-1].reshape(slots, streams, -1)
        self._group = max(SCRATCH // spec.nbytes, 1) if spec.nbytes >= SHORTEST else 1
        self._scratch = [
            np.empty((self._group if self._keyed else 0, spec.nbytes), np.uint8)
            for _ in self._workers
        ]

    @property
    def nbytes(self) -> int:
        """Count the bytes of all encoded rows."""
        distinct = {id(row): len(row) for row in self._rows}
        return sum(distinct.values()) + PER_ROW * len(self._rows)

    def put(self, rows: Array, head: int, columns: slice, *, anew: bool) -> None:
        unroll = self._unroll
        rows = np.ascontiguousarray(rows, self._spec.dtype)
        data = rows.reshape(-1).view(np.uint8).reshape(*rows.shape[:2], self._spec.nbytes)
        own = data
        if self._keyed:
            own = data.copy()
            for row in range(unroll):
                if after := row % NEAR:
                    own[row] ^= data[row - after]
        begin = 1 if len(data) > unroll and not anew else 0
        slots = np.arange(head + begin, head + len(data)) % len(self._row_grid)
        encoded = self._workers[0].encode(own[begin:].reshape(-1, own.shape[-1]))
        self._row_grid[slots, columns] = np.array(encoded, object).reshape(len(slots), -1)
        self._tail_grid[slots, columns] = data[begin:, :, -TAIL:]

    def take(self, places: Array, out: Array) -> None:
        out = out.reshape(-1).view(np.uint8).reshape(len(places), self._spec.nbytes)
        keys = places - places // self._streams % self._unroll % NEAR * self._streams
        # a key differs from itself in nothing
        own = np.where(places == keys, self._black, places) if self._keyed else places
        groups = iter(range(0, len(places), self._group))  # a thread that is ready takes the next
        helping = []
        if self._pool is not None and len(places) > self._group:
            others = zip(self._workers[1:], self._scratch[1:], strict=True)
            helping = [
                self._pool.submit(self._decode, *other, groups, places, own, keys, out)
                for other in others
            ]
        self._decode(self._workers[0], self._scratch[0], groups, places, own, keys, out)
        for future in helping:
            future.result()

    def _decode(
        self,
        codec: Codec,
        scratch: Bytes,
        groups: Iterator[int],
        places: Ints,
        own: Ints,
        keys: Ints,
        out: Bytes,
    ) -> None:
        """Decode the rows at ``places``, group by group,
        from the bytes at ``own`` and at ``keys``.
        """
        for begin in groups:
            group = slice(begin, begin + self._group)
            into = out[group]
            if self._keyed:
                differs = scratch[: len(into)]
                codec.decode(self._rows[own[group]].tolist(), differs)
                # a key again for each row: to copy it takes longer
                codec.decode(self._rows[keys[group]].tolist(), into)
                np.bitwise_xor(into, differs, out=into)
            else:
                codec.decode(self._rows[own[group]].tolist(), into)
            into[:, -TAIL:] = self._tails[places[group]]

    def set(self, places: Array, rows: Array) -> None:
        rows = np.ascontiguousarray(rows, self._spec.dtype)
        data = rows.reshape(-1).view(np.uint8).reshape(len(rows), self._spec.nbytes)
        self._rows[places] = self._workers[0].encode(data)
        self._tails[places] = data[:, -TAIL:]

    def _of(self, first: int, count: int, columns: slice) -> tuple[Array, Array]:
        slots = slice(first * self._unroll, (first + count) * self._unroll)
        return self._row_grid[slots, columns], self._tail_grid[slots, columns]

    def blocks(self, first: int, count: int, columns: slice) -> list[Array]:
        """Return the tails, the size of each row, and the encoded rows one after the other."""
        grid, tails = self._of(first, count, columns)
        rows = grid.reshape(-1).tolist()
        return [
            tails,
            np.array([len(row) for row in rows], np.uint32),
            np.frombuffer(b"".join(rows), np.uint8),
        ]

    def load(self, first: int, count: int, columns: slice, lost: int, data: Cursor) -> None:
        grid, tails = self._of(first, count, columns)
        skipped = lost * self._unroll
        fill(tails, skipped, data)
        sizes = data.read(np.uint32, grid.size)
        ends = np.cumsum(sizes, dtype=np.int64)
        whole = data.read(np.uint8, int(sizes.sum(dtype=np.int64))).tobytes()
        rows = np.empty(grid.size, object)
        rows[:] = [
            whole[end - size : end] for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)
        ]
        grid[skipped:] = rows.reshape(grid.shape)[skipped:]


def fill(view: Array, skipped: int, data: Cursor) -> None:
    """Fill ``view`` [n, ...] from the next bytes, except for the first rows."""
    view[skipped:] = data.read(view.dtype, view.size).reshape(view.shape)[skipped:]


def memory(shape: tuple[int, ...], dtype: str, folder: str) -> Array:
    """Return zeros; with a folder, in an unnamed file there that ends with the process."""
    if not folder:
        return np.zeros(shape, dtype)
    size = max(math.prod(shape) * np.dtype(dtype).itemsize, 1)
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            # reserve now: later a write into the map would die of a full disk
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise OSError(
                error.errno, f"{folder}: no room for {size:,} bytes of replay: {error.strerror}"
            ) from None
        return np.frombuffer(mmap.mmap(file.fileno(), size), dtype).reshape(shape)

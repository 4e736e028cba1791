"""The large leaves of a ring's rows, each in memory of its own: as arrays, or encoded.

Rows are numbered by place, as in ``ring.py``; place ``slots * streams``, one after the last, is black: it stands before an
episode's first frame. A block is ``unroll`` rows; what is put at the slot after it, its last observation, is the first row of
the next block, and put again with that.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from equipoise.experience.codec import CODECS, Bytes, Codec
from equipoise.tree import ArraySpec

PIECE = 4  # rows that are encoded together, at most: an item of few rows needs few others decoded
SCRATCH = 1 << 19  # bytes of rows that a thread decodes before it copies them, which a processor's cache holds
PER_PIECE = 64  # bytes besides what is encoded: a reference, an object's head, an allocation's

Ints = np.ndarray[Any, np.dtype[np.int64]]


class Cursor:
    """Bytes that are read from the first to the last."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def read(self, dtype: Any, count: int) -> Any:
        """ValueError where there are fewer."""
        size = np.dtype(dtype).itemsize * count
        if size > (left := len(self.data) - self.at):
            raise ValueError(f"expected {size:,} bytes of blocks more at byte {self.at:,}, got {left:,}")
        found = np.frombuffer(self.data, dtype, count, self.at)
        self.at += size
        return found


class Leaf(Protocol):
    by_item: bool  # is ``take`` cheaper where the rows of an item come one after the other

    def put(self, rows: Any, head: int, columns: slice, *, anew: bool) -> None:
        """A block [T or T+1, block, ...] at the slot ``head``; ``anew``: its first row is not yet there."""

    def take(self, places: Any, out: Any) -> None:
        """The rows at ``places`` [n] into ``out`` [n, ...], contiguous."""

    def set(self, places: Any, rows: Any) -> None:
        """``rows`` [n, ...], each the first of a block."""

    def blocks(self, first: int, count: int, columns: slice) -> list[Any]:
        """What ``load`` reads, as arrays: of the blocks from that at slot ``first * unroll`` on."""

    def load(self, first: int, count: int, columns: slice, lost: int, data: Cursor) -> None:
        """What ``blocks`` gave; the first ``lost`` blocks stay what they are."""


class Plain:
    by_item = False

    def __init__(self, spec: ArraySpec, *, slots: int, streams: int, unroll: int, folder: str) -> None:
        """``folder``: where a file of the rows may lie, "": memory."""
        self._unroll = unroll
        self._rows = memory((slots * streams + 1, *spec.shape), spec.dtype, folder)
        self._grid = self._rows[:-1].reshape(slots, streams, *spec.shape)

    @property
    def nbytes(self) -> int:
        return int(self._rows.nbytes)

    def put(self, rows: Any, head: int, columns: slice, *, anew: bool) -> None:
        grid, unroll = self._grid, self._unroll
        if len(rows) == unroll:
            grid[head : head + unroll, columns] = rows
            return
        begin = 0 if anew else 1
        grid[head + begin : head + unroll, columns] = rows[begin:-1]
        grid[(head + unroll) % len(grid), columns] = rows[-1]

    def take(self, places: Any, out: Any) -> None:
        np.take(self._rows, places, axis=0, out=out, mode="clip")  # unbuffered

    def set(self, places: Any, rows: Any) -> None:
        self._rows[places] = rows

    def blocks(self, first: int, count: int, columns: slice) -> list[Any]:
        return [self._grid[first * self._unroll : (first + count) * self._unroll, columns]]

    def load(self, first: int, count: int, columns: slice, lost: int, data: Cursor) -> None:
        fill(self.blocks(first, count, columns)[0], lost * self._unroll, data)


class Packed:
    """Encoded pieces. A block's are of consecutive rows of one stream each; what is missing of the last is zeros."""

    by_item = True

    def __init__(
        self, spec: ArraySpec, codec: str, *, slots: int, streams: int, unroll: int, threads: int,
        pool: ThreadPoolExecutor | None,
    ) -> None:  # fmt: skip
        """``pool``: what besides the caller's thread decodes, ``threads`` in all."""
        self._spec, self._streams, self._unroll, self._pool = spec, streams, unroll, pool
        self._pieces_a_block = pieces = pieces_of(unroll)
        self._rows = -(-unroll // pieces)  # of a piece
        self._codec = CODECS[codec]()
        self._pieces = np.empty(slots // unroll * pieces * streams + 1, object)
        self._pieces[:] = self._encoded(np.zeros((1, *spec.shape), spec.dtype)) * len(self._pieces)  # the last stays black
        self._grid = self._pieces[:-1].reshape(-1, streams)
        self._group = max(SCRATCH // spec.nbytes, 1)
        self._workers = [CODECS[codec]() for _ in range(threads)]
        self._scratch = [np.empty((self._group, self._rows, spec.nbytes), np.uint8) for _ in self._workers]

    @property
    def nbytes(self) -> int:
        """What is encoded."""
        distinct = {id(piece): len(piece) for piece in self._pieces}
        return sum(distinct.values()) + PER_PIECE * len(self._pieces)

    def _encoded(self, rows: Any) -> list[bytes]:
        """Pieces of consecutive rows [T, ...]."""
        pieces = -(-len(rows) // self._rows)
        padded = np.zeros((pieces * self._rows, *self._spec.shape), self._spec.dtype)
        padded[: len(rows)] = rows
        return self._codec.encode(padded.reshape(-1).view(np.uint8).reshape(pieces, self._rows, -1))

    def put(self, rows: Any, head: int, columns: slice, *, anew: bool) -> None:
        unroll, pieces = self._unroll, self._pieces_a_block
        at = head // unroll * pieces
        follows = (at + pieces) % len(self._grid)
        for b, column in enumerate(range(columns.start, columns.stop)):
            self._grid[at : at + pieces, column] = self._encoded(rows[:unroll, b])
            if len(rows) > unroll:
                self._grid[follows, column] = self._encoded(rows[unroll:, b])[0]

    def take(self, places: Any, out: Any) -> None:
        slots, columns = np.divmod(places, self._streams)
        blocks, rows = np.divmod(slots, self._unroll)
        pieces, rows = np.divmod(rows, self._rows)
        pieces = (pieces + blocks * self._pieces_a_block) * self._streams + columns
        out = out.reshape(-1).view(np.uint8).reshape(len(places), self._spec.nbytes)
        groups = iter(range(0, len(places), self._group))  # who is ready takes the next
        helping = []
        if self._pool is not None and len(places) > self._group:
            others = zip(self._workers[1:], self._scratch[1:], strict=True)
            helping = [self._pool.submit(self._decode, *other, groups, pieces, rows, out) for other in others]
        self._decode(self._workers[0], self._scratch[0], groups, pieces, rows, out)
        for future in helping:
            future.result()

    def _decode(self, codec: Codec, scratch: Bytes, groups: Iterator[int], pieces: Ints, rows: Ints, out: Bytes) -> None:
        """``rows`` of ``pieces``, group by group."""
        flat = scratch.reshape(-1, scratch.shape[-1])
        for begin in groups:
            group = slice(begin, begin + self._group)
            distinct, which = np.unique(pieces[group], return_inverse=True)
            codec.decode(self._pieces[distinct].tolist(), scratch[: len(distinct)])
            np.take(flat, which * self._rows + rows[group], axis=0, out=out[group], mode="clip")

    def set(self, places: Any, rows: Any) -> None:
        slots, columns = np.divmod(places, self._streams)
        for slot, column, row in zip(slots.tolist(), columns.tolist(), rows, strict=True):
            self._grid[slot // self._unroll * self._pieces_a_block, column] = self._encoded(row[None])[0]

    def _of(self, first: int, count: int, columns: slice) -> Any:
        return self._grid[first * self._pieces_a_block : (first + count) * self._pieces_a_block, columns]

    def blocks(self, first: int, count: int, columns: slice) -> list[Any]:
        """As they are: the size of each and, one after the other, what is encoded."""
        pieces = self._of(first, count, columns).reshape(-1).tolist()
        return [np.array([len(piece) for piece in pieces], np.uint32), np.frombuffer(b"".join(pieces), np.uint8)]

    def load(self, first: int, count: int, columns: slice, lost: int, data: Cursor) -> None:
        into = self._of(first, count, columns)
        sizes = data.read(np.uint32, into.size)
        ends, whole = np.cumsum(sizes, dtype=np.int64), data.read(np.uint8, int(sizes.sum(dtype=np.int64))).tobytes()
        pieces = np.empty(into.size, object)
        pieces[:] = [whole[end - size : end] for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]
        skipped = lost * self._pieces_a_block
        into[skipped:] = pieces.reshape(into.shape)[skipped:]


def pieces_of(unroll: int) -> int:
    """How many a stream's rows of a block become."""
    return -(-unroll // PIECE)


def fill(view: Any, skipped: int, data: Cursor) -> None:
    """``view`` [n, ...] from the next bytes, but for its first rows."""
    view[skipped:] = data.read(view.dtype, view.size).reshape(view.shape)[skipped:]


def memory(shape: tuple[int, ...], dtype: str, folder: str) -> Any:
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

"""Rows on their way to another machine. Only the newest frame of a stack is sent if the older
frames follow from the row before.

The sender compares bytes, row by row, to find out whether they follow. So the receiver has exactly
the bytes that the actor wrote. The first row of an episode, a gap, and an env that shuffles its
frames cost whole stacks.

The bytes of a block as they travel, each part at a multiple of 64 if it comes before the tails:

=======  ==================  ================================================================================
plain    as in the slot      the leaves that are no stacks, in the order of the plan
follows  [T+1, B] uint8      by stack; 1: row t is row t - 1 moved by one frame, and row 0 is row T of the last block
newest   [T, B, frame]       by stack: the newest frame of the rows 1 to T
begun    [n, k, frame]       by stack: the rows 0 that do not follow, whole
broken   [m, k - 1, frame]   by stack: the older frames of later rows that do not follow, by row and stream
=======  ==================  ================================================================================

A block without stacks travels as it lies in the slot.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from equipoise import tree
from equipoise.experience.queue.queue import Plan
from equipoise.types import Array, Slot, Stack, Tree


@dataclass(frozen=True, slots=True)
class _Stacked:
    """A leaf that is a stack. Frames are compared and copied as words, the widest that a frame is
    made of.
    """

    policy: str
    path: str  # in a trajectory
    at: int  # first byte in a slot
    rows: int  # T + 1
    streams: int
    frames: int
    frame: int  # words of a frame
    word: str  # dtype
    follows: int  # first byte in a body
    newest: int  # the same

    @property
    def words(self) -> int:
        return self.frames * self.frame

    @property
    def frame_nbytes(self) -> int:
        return self.frame * np.dtype(self.word).itemsize

    @property
    def most(self) -> int:
        """Bytes of the tails, if no row follows."""
        return (
            self.streams * self.frame_nbytes * (self.frames + (self.rows - 1) * (self.frames - 1))
        )


@dataclass(slots=True)
class LastRows:
    """The last row of each frame stack in the last block that was sent [B, words]. Both ends have
    one object for each group of envs.
    """

    stacks: list[Array]
    known: bool = False  # False: no block has travelled in this session


class BlockPacker:
    """Turns the blocks of a plan into the bytes that travel, and back. ``pack`` and ``unpack``
    depend only on their arguments; they write to ``LastRows`` and to buffers of their own.
    """

    def __init__(self, plan: Plan, stacks: Mapping[str, Mapping[str, Stack]]) -> None:
        """``stacks``: of each policy, as in ``EnvSpec``: by the path within an observation."""
        self._paths = {name: stack_paths(stacks.get(name, {})) for name in plan.rows}
        fields = plan.fields(plan.block)
        self._plain = {name: _without(fields[name], paths) for name, paths in self._paths.items()}
        self._ranges: list[tuple[int, int]] = []  # bytes of a slot that are plain
        self._stacked: list[_Stacked] = []
        at, begin, fixed = 0, 0, tree.nbytes(self._plain)
        for name in fields:
            for path, spec in tree.items(fields[name]):
                if (stack := self._paths[name].get(path)) is not None:
                    rows, streams, frames, *inner = spec.shape
                    if frames != stack.frames:
                        raise ValueError(
                            f"{name}, {path}: expected a stack of {stack.frames} frames, got shape "
                            f"{spec.shape}"
                        )
                    nbytes = int(np.prod(inner, dtype=np.int64)) * np.dtype(spec.dtype).itemsize
                    size = next(n for n in (8, 4, 2, 1) if nbytes % n == 0)
                    newest = fixed + _aligned(rows * streams)
                    self._stacked.append(
                        _Stacked(
                            name,
                            path,
                            at,
                            rows,
                            streams,
                            frames,
                            nbytes // size,
                            f"uint{8 * size}",
                            fixed,
                            newest,
                        )
                    )
                    fixed = newest + _aligned((rows - 1) * streams * nbytes)
                    self._ranges.append((begin, at))
                    begin = at + _aligned(spec.nbytes)
                at += _aligned(spec.nbytes)
        self._ranges.append((begin, at))
        self.least, self.most = fixed, fixed + sum(one.most for one in self._stacked)
        self._body = np.zeros(self.most if self._stacked else 0, np.uint8)
        self._equal = [np.empty((one.streams, one.words), bool) for one in self._stacked]

    def last(self) -> LastRows:
        return LastRows([np.zeros((one.streams, one.words), one.word) for one in self._stacked])

    # --------------------------------------------------------------------------------- the sender's

    def pack(self, slot: Array, last: LastRows) -> Array:
        """The bytes of a slot as they travel; the next call overwrites them."""
        if not self._stacked:
            return slot
        body, at = self._body, 0
        for begin, end in self._ranges:
            body[at : at + end - begin] = slot[begin:end]
            at += end - begin
        tail = self.least
        for n, one in enumerate(self._stacked):
            rows = _rows(slot, one)
            follows, newest = _fixed(body, one)
            self._compare(n, rows, last, follows)
            newest[...] = rows[1:, :, -one.frame :]
            tail = _put(body, tail, rows[0, np.flatnonzero(follows[0] == 0)])
            for t in np.flatnonzero((follows[1:] == 0).any(1)) + 1:
                tail = _put(body, tail, rows[t, np.flatnonzero(follows[t] == 0), : -one.frame])
            last.stacks[n][...] = rows[-1]
        last.known = True
        return body[:tail]

    def _compare(self, n: int, rows: Array, last: LastRows, follows: Array) -> None:
        """Write which rows follow. By row, so that what is compared stays in the cache."""
        one, equal, flags = self._stacked[n], self._equal[n], follows.view(bool)
        if last.known:
            np.equal(rows[0], last.stacks[n], out=equal)
            np.logical_and.reduce(equal, axis=1, out=flags[0])
        else:
            flags[0] = False
        shifted = equal[:, : -one.frame]
        for t in range(1, one.rows):
            np.equal(rows[t, :, : -one.frame], rows[t - 1, :, one.frame :], out=shifted)
            np.logical_and.reduce(shifted, axis=1, out=flags[t])

    # ------------------------------------------------------------------------------- the receiver's

    def unpack(self, body: Array, to: Mapping[str, Slot], last: LastRows) -> None:
        """Write the block that has come into the slots of a queue; ValueError, and nothing is
        written, if it is no block.
        """
        data = np.frombuffer(body, np.uint8)
        counts = self._look(data, last)
        for name, fields in tree.views(self._plain, data).items():
            tree.copy(_without(to[name].data.fields(), self._paths[name]), fields)
        tail = self.least
        for n, (one, (begun, broken)) in enumerate(zip(self._stacked, counts, strict=True)):
            follows, newest = _fixed(data, one)
            tail, whole = _get(data, tail, begun, one.words, one.word)
            tail, older = _get(data, tail, broken, one.words - one.frame, one.word)
            self._write(one, _slot(to, one), follows, newest, whole, older, last.stacks[n])
        last.known = True

    def _look(self, data: Array, last: LastRows) -> list[tuple[int, int]]:
        """How many rows of each stack are begun and broken."""
        if not self.least <= len(data) <= self.most:
            raise ValueError(f"expected {self.least:,} to {self.most:,} bytes, got {len(data):,}")
        counts, size = [], self.least
        for one in self._stacked:
            follows, _ = _fixed(data, one)
            if follows.max() > 1:
                raise ValueError(f"{one.path}: expected 0 or 1 for each row, got {follows.max()}")
            if follows[0].any() and not last.known:
                raise ValueError(
                    f"{one.path}: expected whole stacks in the first block of a session, got rows "
                    "that follow"
                )
            begun, broken = (
                part.size - int(np.count_nonzero(part)) for part in (follows[0], follows[1:])
            )
            counts.append((begun, broken))
            size += one.frame_nbytes * (begun * one.frames + broken * (one.frames - 1))
        if size != len(data):
            raise ValueError(f"expected {size:,} bytes by the rows that follow, got {len(data):,}")
        return counts

    @staticmethod
    def _write(
        one: _Stacked,
        rows: Array,
        follows: Array,
        newest: Array,
        whole: Array,
        older: Array,
        last: Array,
    ) -> None:
        np.copyto(rows[0], last)
        rows[0, np.flatnonzero(follows[0] == 0)] = whole
        rows[1:, :, -one.frame :] = newest
        at, broken = 0, (follows == 0).any(1)
        for t in range(1, one.rows):
            np.copyto(rows[t, :, : -one.frame], rows[t - 1, :, one.frame :])
            if broken[t]:
                streams = np.flatnonzero(follows[t] == 0)
                rows[t, streams, : -one.frame] = older[at : at + len(streams)]
                at += len(streams)
        np.copyto(last, rows[-1])


def _aligned(nbytes: int) -> int:
    return -(-nbytes // tree.ALIGN) * tree.ALIGN


def stack_paths(stacks: Mapping[str, Stack]) -> dict[str, Stack]:
    """The stacks of observations by their paths in a row; a single frame is no stack."""
    return {
        f"obs/{path}" if path else "obs": stack
        for path, stack in stacks.items()
        if stack.frames > 1
    }


def _without(fields: Tree, paths: Collection[str], prefix: str = "") -> Tree:
    """A tree without the leaves at these paths."""

    def left() -> Iterator[tuple[str, Tree]]:
        for key, value in fields.items():
            if (path := f"{prefix}{tree.path_of(key)}") not in paths:
                yield key, _without(value, paths, f"{path}/") if isinstance(value, dict) else value

    return dict(left())


def _rows(slot: Array, one: _Stacked) -> Array:
    """A stack in the bytes of a slot, [T+1, B, words]."""
    return np.ndarray((one.rows, one.streams, one.words), one.word, slot, one.at)


def _slot(to: Mapping[str, Slot], one: _Stacked) -> Array:
    """The same in a slot of a queue, whose rows do not lie together."""
    name, *keys = one.path.split("/", 1)
    leaf = to[one.policy].data.fields()[name]
    if keys:
        leaf = dict(tree.items(leaf))[keys[0]]
    words = leaf.reshape(one.rows, one.streams, -1).view(one.word)
    assert np.may_share_memory(words, leaf), "a copy of the slot"
    return words


def _fixed(body: Array, one: _Stacked) -> tuple[Array, Array]:
    follows = np.ndarray((one.rows, one.streams), np.uint8, body, one.follows)
    return follows, np.ndarray((one.rows - 1, one.streams, one.frame), one.word, body, one.newest)


def _put(body: Array, at: int, part: Array) -> int:
    """Append to the tails -> the start of the next part."""
    end: int = at + part.nbytes
    np.ndarray(part.shape, part.dtype, body, at)[...] = part
    return end


def _get(body: Array, at: int, count: int, words: int, word: str) -> tuple[int, Array]:
    part = np.ndarray((count, words), word, body, at)
    return at + part.nbytes, part

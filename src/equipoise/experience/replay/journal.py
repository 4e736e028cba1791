"""A journal: the rows of a replay on disk, each written once. Checkpoints name them and hold no
copy.

A row does not change from its insertion until it is overwritten. So a save copies no row while the
run holds still: a thread reads from the ring itself the rows that no save has written yet, the
oldest first, and appends them to files, the *segments*. A checkpoint names the segments that hold
anything of its ring, each with its length and hash of that moment. A named part never changes: a
segment only grows, up to ``SEGMENT`` bytes; after a save that failed, and after a resume, there is
a new one.

Back-pressure: a round that would overwrite what the thread has yet to write stays in the inbox
until it has. So a disk that is slower than insertion holds the run back to its own speed while a
save is under way, and no more than that; the learner is starved then, but no call waits. Besides
the ring it takes ``CHUNK`` bytes of memory, or a block's if that is more.
"""

from __future__ import annotations

import _thread
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.experience.replay.leaves import Cursor
from equipoise.types import Array, Entry, LateSave, StateReader, StateWriter, Tree
from equipoise.types import SaveEnd as Saved

if TYPE_CHECKING:
    from equipoise.experience.replay.row_buffer import (
        RowBuffer,  # it imports torch, which an env worker that reads checkpoints must not
    )

SEGMENT = 64 << 20  # bytes after which a segment is full
CHUNK = 1 << 20  # bytes between two looks of the thread at what may be overwritten
NAME = re.compile(r"segment_(\d{1,18})\.rows")
FREE = 2**62  # any number of blocks

# (actor, first block, how many), one after the other, by segment
Chunks = dict[str, list[tuple[int, int, int]]]


@dataclass(slots=True)
class _Segment:
    """A file that grows."""

    path: Path
    handle: int
    digest: Any = field(default_factory=hashlib.sha256)
    size: int = 0


class Journal:
    """The journal of one ring. All calls come from the thread that inserts."""

    def __init__(self, ring: RowBuffer, folder: Path) -> None:
        self._ring, self._folder, self._block = ring, folder, ring.block_nbytes
        # The last successful save: the segments that it named, their content, and for each actor
        # the first block not in them.
        self._segments: dict[str, Entry] = {}
        self._chunks: Chunks = {}
        self._written = np.zeros(len(ring.blocks), np.int64)
        self._open: _Segment | None = None
        # The save under way: the ring's ``blocks`` at its start, and how many an actor may insert
        # since. The thread writes only ``_room`` and, before its end, ``_saved``.
        self._ended: threading.Event | None = None
        self._at, self._room, self._stop = ring.blocks.copy(), FREE, False
        self._saved = Saved()

    def begin(self, finish: Callable[[Tree], Mapping[str, Entry]]) -> None:
        """Save the ring as it is now: a thread writes rows, then calls ``finish`` with what
        ``load`` needs; see ``poll``.
        """
        if self._ended is not None:
            raise ValueError("the rows of the checkpoint before this one are still being written")
        self._at, self._room, self._ended = self._ring.blocks.copy(), 0, threading.Event()
        # threading's start() waits until the thread has a core
        _thread.start_new_thread(self._save, (finish, self._ended))

    def save(self, to: StateWriter, state: Tree, name: str = "", room: str = "") -> LateSave:
        """Save the ring as it is now and ``state``, the rest of its store, with all that was put
        before.

        ``room``: the folder of the ring's segments, within the worker's folder.
        """

        def finish(chunks: Tree) -> dict[str, Entry]:
            to.put({"replay": state, "chunks": chunks}, name)
            return to.write()

        self.begin(finish)
        return _JournalSave(self, room)

    def restore(
        self, source: StateReader, load: Callable[[Tree], None], name: str = "", room: str = ""
    ) -> None:
        """Load what ``save`` saved; ``load`` loads the state."""
        state, folder = source.state(name), f"{room}/" if room else ""
        load(state["replay"])
        every = {
            name.removeprefix(folder): entry
            for name, entry in source.segments().items()
            if name.startswith(folder)
        }
        mine = {name: entry for name, entry in every.items() if "/" not in name}
        self.load(state["chunks"], mine, lambda name: source.segment(folder + name))

    def may_insert(self, blocks: int) -> bool:
        """Would so many more blocks, all of one actor at worst, overwrite nothing that is still to
        be written?
        """
        return (
            self._ended is None or int((self._ring.blocks - self._at).max()) + blocks <= self._room
        )

    def poll(self) -> Saved | None:
        """Return, once, how the save ended; None while it is under way, and where there is none."""
        if self._ended is None or not self._ended.is_set():
            return None
        self._ended = None
        if self._saved.error is not None and not isinstance(
            self._saved.error, OSError | TypeError | ValueError
        ):
            raise self._saved.error
        return self._saved

    @property
    def writes(self) -> bool:
        """Is a save under way that has not ended?"""
        return self._ended is not None and not self._ended.is_set()

    def wait(self, timeout_s: float) -> None:
        """Wait until the save under way ends."""
        if self._ended is not None:
            self._ended.wait(timeout_s)

    def stop(self) -> None:
        """Give up the save that is under way, and let go of the files."""
        self._stop = True
        if self._ended is not None:
            self._ended.wait()
        self._close()

    # ----------------------------------------------------------------------------------- the thread

    def _save(self, finish: Callable[[Tree], Mapping[str, Entry]], ended: threading.Event) -> None:
        try:
            chunks, segments = self._write()
            files = finish({name: np.array(of, np.int64) for name, of in chunks.items()})
        except Exception as error:
            self._close()  # the end of the file is unknown after a failure
            self._room, self._saved = FREE, Saved(error=error)
        else:
            self._chunks, self._segments, self._written = chunks, segments, self._at
            self._saved = Saved(files=files, segments=segments)
        ended.set()

    def _write(self) -> tuple[Chunks, dict[str, Entry]]:
        """Write every held row that no earlier save has written -> the content of all segments in
        use, and their entries.
        """
        oldest = np.maximum(self._at - self._ring.held, 0)
        chunks = {
            name: list(of)
            for name, of in self._chunks.items()
            if any(f + n > oldest[a] for a, f, n in of)
        }
        segments = {name: self._segments[name] for name in chunks}
        if self._open is not None and self._open.path.name not in chunks:
            self._close()
        for actor, first, count in self._pieces(np.maximum(oldest, self._written)):
            grown = self._append(self._ring.block_arrays(actor, first, count))
            chunks.setdefault(grown.path.name, []).append((actor, first, count))
            if grown.size >= SEGMENT:
                segments[grown.path.name] = _synced(grown)
                self._close()
        self._room = FREE
        if self._open is not None:
            segments[self._open.path.name] = _synced(self._open)
        return chunks, segments

    def _pieces(self, begin: Array) -> Iterator[tuple[int, int, int]]:
        """(actor, first block, how many), from ``begin`` [actors] on, in the order in which
        insertion comes to them: the n-th oldest of what an actor holds is lost with the n-th block
        that it inserts from now on.
        """
        held, begins, ends = self._ring.held, begin.tolist(), self._at.tolist()
        step = max(CHUNK // (len(ends) * self._block), 1)
        for nth in range(
            min(first + held - end for first, end in zip(begins, ends, strict=True)), held, step
        ):
            self._room = nth
            for actor, (begun, end) in enumerate(zip(begins, ends, strict=True)):
                first, stop = max(end - held + nth, begun), min(end - held + nth + step, end)
                while first < stop:
                    count = min(stop - first, held + 1 - first % (held + 1))  # to the last slot
                    yield actor, first, count
                    first += count

    def _append(self, arrays: list[Array]) -> _Segment:
        """Append these, one after the other, to the newest segment -> the segment."""
        if self._stop:
            raise InterruptedError("the run ends")
        segment = self._open = self._open or self._new()
        for array in arrays:
            data = np.ascontiguousarray(array).data.cast("B")
            segment.digest.update(data)
            segment.size += len(data)
            while data:
                data = data[os.write(segment.handle, data) :]
        return segment

    def _new(self) -> _Segment:
        self._folder.mkdir(parents=True, exist_ok=True)
        there = [
            int(match[1]) for path in self._folder.iterdir() if (match := NAME.fullmatch(path.name))
        ]
        path = self._folder / f"segment_{max(there, default=0) + 1}.rows"
        segment = _Segment(path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        # so that its name lasts through a power cut
        for folder in (self._folder, self._folder.parent):
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        return segment

    def _close(self) -> None:
        if self._open is not None:
            os.close(self._open.handle)
            self._open = None

    # -------------------------------------------------------------------------------------- loading

    def load(
        self, chunks: Tree, segments: Mapping[str, Entry], read: Callable[[str], bytes]
    ) -> None:
        """Load the blocks of a ring, after its ``state``, from the segments that the checkpoint
        names. ``read`` returns the bytes of a segment. ValueError if they are not what the ring
        held.
        """
        if chunks.keys() != segments.keys():
            raise ValueError(
                f"replay: expected the segments {sorted(chunks)}, got {sorted(segments)}"
            )
        ring = self._ring
        listed = {name: [(int(a), int(f), int(n)) for a, f, n in of] for name, of in chunks.items()}
        oldest = ring.blocks - ring.held
        # [actors, held]: blocks that never existed, or are loaded
        whole = np.arange(ring.held) < -oldest[:, None]
        for name, of in listed.items():
            data = Cursor(read(name))
            for actor, first, count in of:
                fits = 0 <= actor < len(oldest) and 0 <= first < first + count <= ring.blocks[actor]
                if not fits or first % (ring.held + 1) + count > ring.held + 1:
                    raise ValueError(
                        f"{name}: expected blocks of this replay, got {count} from {first} of "
                        f"actor {actor}"
                    )
                # other blocks lie there by now
                lost = min(max(int(oldest[actor]) - first, 0), count)
                try:
                    ring.load_blocks(actor, first, count, lost, data)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
                whole[actor, first + lost - oldest[actor] : first + count - oldest[actor]] = True
            if data.at != len(data.data):
                raise ValueError(
                    f"{name}: expected {data.at:,} bytes of blocks, got {len(data.data):,}"
                )
        if not whole.all():
            raise ValueError(
                "replay: expected all blocks of the ring in its segments, got none of "
                f"{int((~whole).sum())}"
            )
        self._chunks, self._segments, self._written = listed, dict(segments), ring.blocks.copy()


class _JournalSave:
    """``LateSave`` of a journal whose segments lie in a folder."""

    def __init__(self, journal: Journal, room: str) -> None:
        self._journal, self._folder = journal, f"{room}/" if room else ""

    def poll(self) -> Saved | None:
        if (end := self._journal.poll()) is None:
            return None
        return replace(
            end, segments={self._folder + name: entry for name, entry in end.segments.items()}
        )

    def wait(self, timeout_s: float) -> None:
        self._journal.wait(timeout_s)


def _synced(segment: _Segment) -> Entry:
    """Return the segment's entry, once all of it is on the disk."""
    os.fsync(segment.handle)
    return {"sha256": segment.digest.hexdigest(), "size": segment.size}

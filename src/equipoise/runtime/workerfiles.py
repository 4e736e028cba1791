"""One worker's part of a checkpoint: where it writes its state in a cut, and where it reads it when
a run goes on.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.errors import CannotResume, Damaged
from equipoise.record import checkpoint, statefile
from equipoise.record.checkpoint import Entry, Source
from equipoise.runtime.messages import Message, Saved, Written
from equipoise.types import Array, LateSave, Tree, Worker
from equipoise.workers.kind import LearningKind, Member

if TYPE_CHECKING:
    from torch import Tensor


class Writer:
    """``StateWriter`` into the checkpoint that is aside."""

    def __init__(self, place: Path, file: str, cut: int) -> None:
        """``file``: the name of the worker's own file, but for the ending."""
        self._place, self._file, self.cut = place, file, cut
        self._files: deque[tuple[str, bytes]] = deque()  # several threads put and write

    def put(self, state: Tree, name: str = "") -> None:
        self._files.append((_file(name or self._file), statefile.dump(state)))

    def put_weights(self, params: Mapping[str, Tensor]) -> None:
        self._files.append((checkpoint.WEIGHTS, checkpoint.weights_bytes(params)))

    def write(self) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        with contextlib.suppress(IndexError):  # another thread took the last
            while self._files:
                entries |= checkpoint.add(self._place, *self._files.popleft())
        return entries


class Reader:
    """``StateReader`` of a whole checkpoint."""

    def __init__(self, source: Source, member: Member) -> None:
        self._source, self._file, self._folder = source, member.file, member.folder
        self._last = source.path  # the file that was read last

    def state(self, name: str = "") -> Tree:
        file = _file(name or self._file)
        self._last = self._source.path / file
        return statefile.parse(self._source.read(file), self._last)

    def segments(self) -> dict[str, Entry]:
        every = self._source.segments
        return {
            name.removeprefix(self._folder): entry
            for name, entry in every.items()
            if name.startswith(self._folder)
        }

    def segment(self, name: str) -> bytes:
        return self._source.read_segment(self._folder + name)

    def load(self, worker: Worker) -> None:
        """Load the worker; ``Damaged`` or ``CannotResume``, which name the file, if it cannot."""
        try:
            worker.load(self)
        except Damaged:
            raise
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise CannotResume.of(self._last, error) from error


def _file(name: str) -> str:
    return f"{name}.safetensors"


class Saver:
    """A worker's part in the cuts of a run (``cut.py``)."""

    def __init__(
        self,
        worker: Worker,
        member: Member,
        directory: Path,
        words: Mapping[str, Array],
        send: Callable[[Message], object],
        *,
        saved: int = 0,
    ) -> None:
        """``words``: the board's counters of cuts; ``saved``: the last cut before this worker's
        process.
        """
        self._worker, self._member, self._directory, self._send = worker, member, directory, send
        # [1] int64, the newest cut that this worker is to save for
        self._words, self.wanted = words, words[word(member)]
        self.last = saved
        self.late: LateSave | None = None  # the files that are written while the worker goes on

    def save(self, cut: int) -> None:
        """Write the files for a cut; the driver reports obstacles."""
        self.last = cut
        place = checkpoint.aside(self._directory, int(self._words["step"][0]))
        writer = Writer(place, self._member.file, cut)
        try:
            late = self._worker.save(writer)
            files = writer.write() if late is None else {}
        # a full disk, or a state that cannot be written
        except (OSError, TypeError, ValueError) as error:
            self._send(Saved(cut=cut, error=f"{type(error).__name__}: {error}"))
            return
        self.late = self.late if late is None else late
        self._send(Saved(cut=cut, files=files, more=late is not None))

    def poll(self) -> None:
        """Report the end of ``late``, once."""
        if self.late is None or (end := self.late.poll()) is None:
            return
        self.late = None
        if end.error is not None:
            self._send(Written(cut=self.last, error=f"{type(end.error).__name__}: {end.error}"))
            return
        segments = {self._member.folder + name: entry for name, entry in end.segments.items()}
        self._send(Written(cut=self.last, files=dict(end.files), segments=segments))


def word(member: Member) -> str:
    """The board's counter that makes the worker save: workers that hold other workers still save
    last.
    """
    return "save_last" if isinstance(member.kind, LearningKind) else "save"

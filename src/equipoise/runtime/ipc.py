"""Shared things of processes on one machine: memory, channels, doorbells. A process that dies
cannot hold any of them.

Every object pickles as a handle (a file descriptor that multiprocessing duplicates into the child),
so a worker gets the same object that the driver made. Segments are anonymous files in memory: they
have no name in a file system that could be left behind, and the kernel frees them with the last
process that maps them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import select
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from equipoise.memory import Memory

if sys.platform == "win32":
    raise ImportError(
        "Equipoise trains on Linux and macOS; on Windows use WSL2 (see docs/about/platforms.md)"
    )
from multiprocessing.reduction import DupFd


class Handle(Protocol):
    """A descriptor on its way into another process, made by ``DupFd``."""

    def detach(self) -> int: ...


class Segment:
    """Zeroed memory shared with children; all of it is allocated now, so that no later write can
    die of a full device.
    """

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, max(size, mmap.PAGESIZE)
        if hasattr(os, "memfd_create"):
            self.fd = os.memfd_create(f"equipoise-{name}", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile(prefix="equipoise-") as file:  # already unlinked
                self.fd = os.dup(file.fileno())
        try:
            os.ftruncate(self.fd, self.size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.fd, 0, self.size)
            self.buffer = mmap.mmap(self.fd, self.size)
        except OSError as error:
            os.close(self.fd)
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                said = (
                    f"the shared memory {name!r} takes {self.size / 2**20:,.1f} MiB: "
                    f"{error.strerror}"
                )
                raise OSError(error.errno, said) from error
            raise

    def __reduce__(self) -> tuple[object, ...]:
        return _attach, (self.name, self.size, DupFd(self.fd))

    def close(self) -> None:
        """Close the descriptor; the memory lives as long as something maps it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _attach(name: str, size: int, handle: Handle) -> Segment:
    segment = Segment.__new__(Segment)
    segment.name, segment.size, segment.fd = name, size, handle.detach()
    segment.buffer = mmap.mmap(segment.fd, size)
    return segment


class Heap:
    """Memory with the same interface within one process."""

    def __init__(self, name: str, size: int) -> None:
        self.buffer = np.zeros(size, np.uint8).data

    def close(self) -> None: ...


class Part:
    """A stretch of a segment, with the same interface."""

    def __init__(self, memory: Memory, offset: int, size: int) -> None:
        self._where = memory, offset, size
        self.buffer = memoryview(memory.buffer)[offset : offset + size]

    def __reduce__(self) -> tuple[object, ...]:
        return Part, self._where


class Pipe:
    """A pipe of whole messages, one way. Neither end blocks; every process that has the object may
    use both.
    """

    def __init__(self) -> None:
        self.read_fd, self.write_fd = (
            os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else _pipe()
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _attach_pipe, (type(self), DupFd(self.read_fd), DupFd(self.write_fd))

    def close(self) -> None:
        for fd in (self.read_fd, self.write_fd):
            if fd >= 0:
                os.close(fd)
        self.read_fd = self.write_fd = -1


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for fd in ends:
        os.set_blocking(fd, False)
    return ends


def _attach_pipe(kind: type[Pipe], read: Handle, write: Handle) -> Pipe:
    pipe = kind.__new__(kind)
    pipe.read_fd, pipe.write_fd = read.detach(), write.detach()
    return pipe


class PipeChannel(Pipe):
    """A channel of int64s: 8-byte messages, which the kernel reads and writes whole, also when a
    process dies.
    """

    def put(self, values: Sequence[int]) -> None:
        for i in range(0, len(values), 512):  # 4096 bytes: atomic
            part = values[i : i + 512]
            os.write(self.write_fd, struct.pack(f"{len(part)}q", *part))

    def get(self) -> int | None:
        try:
            data = os.read(self.read_fd, 8)
        except BlockingIOError:
            return None
        return int(struct.unpack("q", data)[0])

    def drain(self) -> list[int]:
        """Take all numbers in it now, with one read; it takes whole messages, since all sizes are
        multiples of 8 bytes.
        """
        try:
            data = os.read(self.read_fd, 65536)  # as much as a pipe holds
        except BlockingIOError:
            return []
        return list(struct.unpack(f"{len(data) // 8}q", data))


class Channels:
    """Makes channels, and keeps them to be closed."""

    def __init__(self) -> None:
        self.made: list[PipeChannel] = []

    def __call__(self) -> PipeChannel:
        self.made.append(PipeChannel())
        return self.made[-1]


class Event:
    """``Ringer``. It stays set until it is cleared: an eventfd if there is one, else a pipe, which
    takes two descriptors.
    """

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.fd = self._write_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.fd, self._write_fd = _pipe()

    def __reduce__(self) -> tuple[object, ...]:
        return _attach_event, (
            DupFd(self.fd),
            None if self.fd == self._write_fd else DupFd(self._write_fd),
        )

    def set(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe already wakes it
            os.write(self._write_fd, _ONE)

    def ring(self, *, always: bool = False) -> None:
        self.set()

    def clear(self) -> None:
        os.read(self.fd, 4096)

    def close(self) -> None:
        for fd in {self.fd, self._write_fd}:
            if fd >= 0:
                os.close(fd)
        self.fd = self._write_fd = -1


_ONE = struct.pack("q", 1)


def _attach_event(read: Handle, write: Handle | None) -> Event:
    event = Event.__new__(Event)
    event.fd = read.detach()
    event._write_fd = event.fd if write is None else write.detach()
    return event


class Ringer(Protocol):
    """The interface that wakes a worker."""

    # ``always``: even if it is marked awake
    def ring(self, *, always: bool = False) -> None: ...


class Bell:
    """A worker's doorbell: any process rings, the owner waits. Ringing costs a system call only
    while the owner sleeps.

    The owner marks itself as about to sleep (``arm``), looks once more for work, and then waits. A
    ring that falls between the two is kept by the descriptor; a ring lost to the processors' store
    buffers is made good by the timeout.
    """

    def __init__(self, memory: Memory, offset: int) -> None:
        """``offset``: place in shared memory of the int64 that marks whether the owner sleeps."""
        self._memory, self._offset, self._event = memory, offset, Event()
        self._waits_for: tuple[int, ...] | None = None  # the descriptors that ``_poll`` has
        self._poll = select.poll()
        self._flag = np.frombuffer(memory.buffer, np.int64, 1, offset)

    def __getstate__(self) -> tuple[Memory, int, Event]:
        return self._memory, self._offset, self._event

    def __setstate__(self, state: tuple[Memory, int, Event]) -> None:
        self._memory, self._offset, self._event = state
        self._waits_for, self._poll = None, select.poll()
        self._flag = np.frombuffer(self._memory.buffer, np.int64, 1, self._offset)

    def arm(self) -> None:
        self._flag[0] = 1

    def ring(self, *, always: bool = False) -> None:
        if always or self._flag[0]:
            self._event.set()

    def wait(self, timeout_s: float, *others: int) -> list[int]:
        """Sleep until rung, until one of the descriptors ``others`` is ready (they are returned),
        or until the timeout.
        """
        if self._waits_for != others:
            self._waits_for, self._poll = others, select.poll()
            for fd in (self._event.fd, *others):
                self._poll.register(fd, select.POLLIN)
        ready = [fd for fd, _ in self._poll.poll(timeout_s * 1000.0)]
        self.disarm()
        if self._event.fd in ready:
            self._event.clear()
            ready.remove(self._event.fd)
        return ready

    def disarm(self) -> None:
        self._flag[0] = 0

    def close(self) -> None:
        self._event.close()


class Outbox(Pipe):
    """JSON messages from a worker to the driver, one a line."""

    _kept = b""  # kept by the reader: the beginning of a message whose end is on its way

    def send(self, message: Mapping[str, object]) -> None:
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            try:
                data = data[os.write(self.write_fd, data) :]
            except BlockingIOError:  # the driver is behind: unread messages must not be lost
                select.select([], [self.write_fd], [], 1.0)

    def receive(self) -> list[dict[str, object]]:
        """Return all whole messages that have arrived."""
        kept = self._kept
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.read_fd, 65536):
                kept += chunk
        *lines, self._kept = kept.split(b"\n")
        return [json.loads(line) for line in lines]


class Lifeline:
    """A pipe between the driver and its children, which closes whenever the driver ends."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def __reduce__(self) -> tuple[object, ...]:
        return _attach_lifeline, (DupFd(self._read),)

    @property
    def fd(self) -> int:
        """A descriptor that becomes readable once the driver is gone."""
        return self._read

    def cut(self) -> bool:
        return bool(select.select([self._read], [], [], 0)[0])

    def close(self) -> None:
        for fd in (self._read, self._write):
            if fd >= 0:
                os.close(fd)
        self._read = self._write = -1


def _attach_lifeline(read: Handle) -> Lifeline:
    line = Lifeline.__new__(Lifeline)
    line._read, line._write = read.detach(), -1
    return line

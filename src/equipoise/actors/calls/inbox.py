"""An inbox: other threads leave work for the thread of a worker, and wake it."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue


class Inbox:
    """Work of other threads, in the order in which it came."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._read, self._write = socket.socketpair()
        for one in (self._read, self._write):
            one.setblocking(False)

    def put(self, act: Callable[[], None]) -> None:
        """Leave work; any thread may."""
        self._work.put(act)
        with suppress(OSError):  # full: it is awake; closed: the run is over
            self._write.send(b".")

    def do(self) -> bool:
        """Do all work that there is; return whether there was any."""
        with suppress(BlockingIOError):
            self._read.recv(1 << 16)
        done = False
        while True:
            try:
                act = self._work.get_nowait()
            except Empty:
                return done
            act()
            done = True

    def wait(self, seconds: float) -> None:
        """Wait until there is work, or until the time is over."""
        waiting = select.poll()  # ``select`` takes no descriptor above 1023
        waiting.register(self._read, select.POLLIN)
        waiting.poll(seconds * 1000)

    def fds(self) -> tuple[int, ...]:
        """Descriptors that are readable while there is work."""
        return (self._read.fileno(),)

    def close(self) -> None:
        """Close the sockets; later work is lost."""
        self._read.close()
        self._write.close()

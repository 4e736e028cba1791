"""Steps of partners in threads, while tokens are drawn: a step that hangs or raises ends only its
own conversation.

A thread whose step is late is left behind, and another thread takes its place. Async steps share an
event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import queue
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from equipoise.errors import Final
from equipoise.hints import raised
from equipoise.language.turns.partner import Settle, WrongAnswer, awaited

THREADS = 64
MOST_LEFT = 64  # threads left behind by steps that hang
AWAKE_S = 0.5  # seconds for a loop to answer before another loop takes its place
Call = Callable[[Settle], object]


class PartnersFailed(Final, RuntimeError):
    """The error of a run whose partners fail too often."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A step without an answer, and why."""

    error: str


@dataclass(slots=True)
class _Step:
    key: int
    call: Call
    began: float | None = None  # None: it waits for a thread
    late: bool = False
    waits_for: Future[object] | None = None  # of an async step


class Steps:
    """Runs steps; ``poll`` returns the results in the order in which they come."""

    def __init__(self, deadline_s: float, threads: int = THREADS) -> None:
        """``deadline_s``: seconds of one step, from its start in a thread."""
        self._deadline_s, self._most = deadline_s, threads
        self._steps: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[_Step, object]] = queue.SimpleQueue()
        self._running: dict[int, _Step] = {}  # by key
        self._threads = self._left = self._released = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()  # of the loop
        # a byte for each result wakes the generator
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)

    @property
    def waiting(self) -> int:
        return len(self._running)

    def fds(self) -> tuple[int, ...]:
        return (self._read.fileno(),)

    def submit(self, key: int, call: Call) -> None:
        """Run ``call`` in a thread; its argument is a function that waits for an awaitable."""
        step = self._running[key] = _Step(key, call)
        if self._threads < min(self._most, len(self._running)):
            self._start()
        self._steps.put(step)

    def release(self, call: Call) -> None:
        """Run a last step, whose result nobody reads, under the same deadline."""
        self._released -= 1
        self.submit(self._released, call)

    def poll(self) -> list[tuple[int, object]]:
        """Return the new results by key: the value that a step returned, or its ``Failure``."""
        with contextlib.suppress(BlockingIOError):
            while self._read.recv(4096):
                pass
        found: list[tuple[int, object]] = []
        with contextlib.suppress(queue.Empty):
            while True:
                step, value = self._done.get_nowait()
                if step.late:
                    self._left -= step.waits_for is None
                else:
                    del self._running[step.key]
                    found.append((step.key, value))
        now = time.monotonic()
        for step in list(self._running.values()):
            if step.began is not None and now - step.began > self._deadline_s:
                self._leave(step)
                found.append((step.key, Failure(f"took more than {self._deadline_s:g} s")))
        return [(key, value) for key, value in found if key >= 0]

    def _leave(self, step: _Step) -> None:
        """Leave a late step and its thread behind."""
        step.late = True
        del self._running[step.key]
        if step.waits_for is not None:
            step.waits_for.cancel()
            self._wake_loop()
            return  # the thread that waited is free for other steps
        self._left += 1
        if self._left > MOST_LEFT:
            raise PartnersFailed(
                f"source.task: must have a partner whose steps end, got {self._left} that still "
                f"run after {self._deadline_s:g} s each; try a timeout in each step"
            )
        self._threads -= 1
        self._start()

    def _start(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name="equipoise turn", daemon=True).start()

    def _work(self) -> None:
        """Run steps until the pool closes, or until a step of this thread is left behind."""
        while (step := self._steps.get()) is not None:
            step.began = time.monotonic()
            value: object
            try:
                value = step.call(lambda one, step=step: self._settled(one, step))  # type: ignore[misc]
            except WrongAnswer as error:
                value = Failure(str(error))
            except BaseException as error:  # a user's code may raise anything
                value = Failure(raised(error))
            hung = step.late and step.waits_for is None
            self._done.put((step, value))
            # the reader has gone, or has unread bytes that wake it anyway
            with contextlib.suppress(OSError):
                self._write.send(b"\0")
            if hung:
                return
        self._steps.put(None)  # the next thread ends too

    def _settled(self, value: object, step: _Step) -> object:
        if not inspect.isawaitable(value):
            return value
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_serve, args=[self._loop], name="equipoise turns", daemon=True
                ).start()
            step.waits_for = asyncio.run_coroutine_threadsafe(awaited(value), self._loop)
        return step.waits_for.result()

    def _wake_loop(self) -> None:
        """Replace a loop that a step blocks."""
        with self._lock:
            loop, awake = self._loop, threading.Event()
            if loop is not None:
                loop.call_soon_threadsafe(awake.set)
                if not awake.wait(AWAKE_S):
                    self._loop = None

    def close(self) -> None:
        """Let the threads end; steps that hang end with the process."""
        for step in self._running.values():
            step.late = True
        self._steps.put(None)
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None  # another ``close`` does nothing
        self._read.close()
        self._write.close()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, and then cancel what it still has."""
    while True:
        try:
            loop.run_forever()
            break
        except (SystemExit, KeyboardInterrupt):  # of a step, which has it as its result
            pass
    for task in (left := asyncio.all_tasks(loop)):
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left))
    loop.close()

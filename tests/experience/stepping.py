"""Runs a call one bytecode instruction at a time, so that a test can stop it or kill it at any of
them.

Only those instructions count that can touch what is shared: calls, operators and subscripts. What
lies between two of them moves values about in the frame, and to stop there is to stop before the
next that counts.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any, Self

from equipoise.experience.queue import queue, tokens
from equipoise.runtime import ipc

# the instructions of these are counted
FILES = {module.__file__ for module in (queue, tokens, ipc)}
TOUCHING = ("CALL", "BINARY_", "STORE_SUBSCR", "COMPARE_OP", "CONTAINS_OP", "FOR_ITER", "RETURN_")


@cache
def touching(code: CodeType) -> frozenset[int]:
    """The offsets of the instructions that count."""
    return frozenset(i.offset for i in dis.get_instructions(code) if i.opname.startswith(TOUCHING))


class Killed(BaseException):
    """Ends a call where it stands; nothing in the queue catches or cleans up, so it leaves what
    SIGKILL would.
    """


class Stepper:
    """A call in a thread of its own, which runs only while ``advance`` waits for it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.done, self.result = False, None
        self._call = call
        self._error: BaseException | None = None
        self._budget, self._killed = 0, False
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def advance(self, instructions: int = sys.maxsize) -> bool:
        """At most so many -> whether the call has returned; what it raised is raised here."""
        if not self.done:
            self._budget = instructions
            self._resume()
        return self.done

    def kill(self) -> None:
        if not self.done:
            self._killed = True
            self._resume()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _resume(self) -> None:
        self._go.release()
        self._stopped.acquire()
        if self.done:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        self._go.acquire()
        sys.settrace(self._trace)
        try:
            self.result = self._call()
        except Killed:
            pass
        except BaseException as error:  # the test's thread raises it
            self._error = error
        finally:
            sys.settrace(None)
            self.done = True
            self._stopped.release()

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and frame.f_lasti in touching(frame.f_code):
            if self._killed:
                raise Killed
            if self._budget == 0:
                self._stopped.release()
                self._go.acquire()
                if self._killed:
                    raise Killed
            self._budget -= 1
        return self._trace

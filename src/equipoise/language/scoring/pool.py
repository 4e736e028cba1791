"""Scoring in processes: a function that hangs, or ends its process, costs its group and not the
run.

A process has one group at a time. The clock of the deadline starts again with each function. A
process that is late is killed, with all that it started, and another takes its place. A process
that the system or a person killed costs nothing: its group is scored again, once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equipoise import cores
from equipoise.errors import RewardsFailed
from equipoise.files import plain
from equipoise.language.scoring.functions import RewardFunction, Samples
from equipoise.language.scoring.scorer import Outcomes, Scored

START_S = 300.0  # that the imports of reward functions may take
MOST_KILLED = 3  # processes in a row that were killed from outside, without a group between
ENDS_S = 1.0  # for a process whose socket has ended
# A function does not raise these. SIGKILL is what the system sends if memory is short.
OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
START = (
    "import sys; sys.path[:] = sys.argv[2:]; from equipoise.language.scoring.process import "
    "main; main(int(sys.argv[1]))"
)


class ProcessScorer:
    """A ``Scorer`` with ``processes`` of its own, which end with the thread that made it."""

    def __init__(
        self,
        functions: Sequence[RewardFunction],
        *,
        processes: int = 1,
        deadline_s: float = 60.0,
        capsules: Path | None = None,
        caution: float = 0.0,
        outcomes: Outcomes | None = None,
    ) -> None:
        """``deadline_s``: seconds of one function for one group. ``capsules``: their directory.
        ``caution``: as in ``functions.total``. ``outcomes``: in the place of these two.
        """
        if processes < 1:
            raise ValueError(f"reward_processes: expected at least 1, got {processes}")
        if not deadline_s > 0:
            raise ValueError(f"reward_deadline_s: expected more than 0 seconds, got {deadline_s}")
        self._names, self._deadline_s = [one.name for one in functions], deadline_s
        self._outcomes = outcomes or Outcomes(functions, capsules, deadline_s, caution)
        self._queue: deque[tuple[int, Samples, bytes]] = deque()
        self._killed: list[_Process] = []
        self._again = set[int]()  # keys of groups that are scored again
        self._outside = 0  # processes that were killed from outside since a group was scored
        self._processes: list[_Process] = []
        try:
            for _ in range(processes):
                self._processes.append(_Process(self._names))
        except BaseException:
            self.close()
            raise

    @property
    def waiting(self) -> int:
        return len(self._queue) + sum(one.group is not None for one in self._processes)

    def fds(self) -> tuple[int, ...]:
        return tuple(one.fd for one in self._processes)

    def submit(self, key: int, samples: Samples) -> None:
        self._queue.append((key, samples, line_of(samples)))
        self._deal()

    def poll(self) -> list[Scored]:
        ready: list[Scored] = []
        self._killed = [one for one in self._killed if one.alive()]
        for i, process in enumerate(self._processes):
            process.flush()
            messages, ended = process.receive()
            for message in messages:
                ready += self._heard(process, message)
            if wrong := self._wrong(process, ended):
                group, process.group = process.group, None
                process.kill()
                self._killed.append(process)
                outside = ended and self._spared(process, group)
                if group is None and not outside:
                    raise RewardsFailed(
                        f"rewards {', '.join(self._names)}: a process of reward functions {wrong}"
                    )
                self._processes[i] = _Process(self._names)
                if group is not None and outside:
                    self._queue.appendleft((*group, process.line))
                elif group is not None:
                    self._again.discard(group[0])
                    ready.append(self._outcomes.failed(*group, process.at, wrong))
        self._deal()
        return ready

    def _heard(self, process: _Process, message: dict[str, Any]) -> list[Scored]:
        process.begins()
        if "unloaded" in message:
            raise RewardsFailed(message["unloaded"])
        if "ready" in message:
            process.ready = True
        elif "at" in message:
            process.at = message["at"]
        elif process.group is not None:
            (key, samples), process.group = process.group, None
            self._again.discard(key)
            self._outside = 0
            if "parts" in message:
                return [self._outcomes.scored(key, samples, message["parts"])]
            return [self._outcomes.failed(key, samples, message["failed"], message["error"])]
        return []

    def _spared(self, process: _Process, group: tuple[int, Samples] | None) -> bool:
        """Was an ended process killed from outside, so that another does its work? A group that
        two processes died with is not given to a third.
        """
        if process.wait(ENDS_S) not in OUTSIDE:
            return False
        self._outside += 1
        if self._outside > MOST_KILLED or (group is not None and group[0] in self._again):
            return False
        if group is not None:
            self._again.add(group[0])
        warnings.warn(
            "a process of reward functions was killed"
            + ("" if group is None else "; its group is scored again"),
            RuntimeWarning,
            stacklevel=2,
        )
        return True

    def _wrong(self, process: _Process, ended: bool) -> str:
        """Why the process is to be replaced; "" if it is well."""
        if ended:
            return "ended, by itself or by the system"
        took = process.took_s()
        if process.group is not None and took > self._deadline_s:
            return f"took more than {self._deadline_s:g} s for one group"
        return (
            f"took more than {START_S:g} s to start" if not process.ready and took > START_S else ""
        )

    def _deal(self) -> None:
        for process in self._processes:
            if self._queue and process.ready and process.group is None:
                key, samples, line = self._queue.popleft()
                process.group, process.at, process.line = (key, samples), self._names[0], line
                process.begins()
                process.send(line)

    def close(self) -> None:
        """End the processes, whatever they are at."""
        for process in (*self._processes, *self._killed):
            process.kill()
        for process in (*self._processes, *self._killed):
            process.wait()
        self._processes, self._killed = [], []
        self._queue.clear()


class _Process:
    """The parent's side of one process."""

    def __init__(self, names: list[str]) -> None:
        self.group: tuple[int, Samples] | None = None  # the group to score
        self.line = b""  # the group as it was sent
        self.at, self.ready = "", False
        # when it last got work or answered, and its seconds of waiting for a core by then
        self._since, self._waited_s = time.monotonic(), 0.0
        self._unsent, self._unread = b"", b""
        self._socket, theirs = socket.socketpair()
        with theirs:
            os.set_blocking(self._socket.fileno(), False)
            command = [sys.executable, "-c", START, str(theirs.fileno()), *sys.path]
            self._popen = subprocess.Popen(
                command, stdin=subprocess.PIPE, pass_fds=[theirs.fileno()], start_new_session=True
            )  # a session of its own: Ctrl-C is the driver's to answer
        self.send(json.dumps({"functions": names, "parent": os.getpid()}).encode() + b"\n")

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def begins(self) -> None:
        """A deadline starts again."""
        self._since, self._waited_s = time.monotonic(), cores.waited_s(self._popen.pid)

    def took_s(self) -> float:
        """The seconds since it began, without the seconds of waiting for a core."""
        return (
            time.monotonic()
            - self._since
            - max(cores.waited_s(self._popen.pid) - self._waited_s, 0.0)
        )

    def send(self, line: bytes) -> None:
        self._unsent += line
        self.flush()

    def flush(self) -> None:
        """Write what the socket takes now."""
        with contextlib.suppress(BlockingIOError, ConnectionError):  # that it has ended is read
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]

    def receive(self) -> tuple[list[dict[str, object]], bool]:
        """The whole messages that have arrived, and whether no more will."""
        ended = False
        with contextlib.suppress(BlockingIOError):
            while not ended:
                try:
                    data = self._socket.recv(65536)
                except ConnectionError:
                    data = b""
                self._unread, ended = self._unread + data, not data
        *lines, self._unread = self._unread.split(b"\n")
        return [json.loads(line) for line in lines], ended

    def alive(self) -> bool:
        return self._popen.poll() is None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.alive():
                os.killpg(self._popen.pid, signal.SIGKILL)
        self._socket.close()
        if self._popen.stdin is not None:
            self._popen.stdin.close()

    def wait(self, seconds: float | None = None) -> int | None:
        """Return the exit code, negative if a signal ended it; None if it lives after so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(seconds)
        return None


def line_of(samples: Samples) -> bytes:
    """The samples as one line of JSON; ValueError names the column that JSON cannot hold."""
    fields = samples.to_json()
    try:
        return json.dumps(fields, default=plain).encode() + b"\n"
    except (TypeError, ValueError):
        for name, value in {**fields, **samples.columns}.items():
            try:
                json.dumps(value, default=plain)
            except (TypeError, ValueError) as error:
                if name != "columns":
                    raise ValueError(f"column {name!r} of the task: {error}") from None
        raise

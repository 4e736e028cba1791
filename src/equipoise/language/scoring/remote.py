"""Scoring by scorers, which are workers of their own, on any machine (``server.py``).

A generator has a connection to each scorer. It sends a group to the scorer with the fewest groups
of its own, at most ``AHEAD``; other groups wait here. The groups of a scorer that is lost go to the
next one, so a function may be called twice for a group, and its first answer counts.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils.monitor import parse_monitor_message

from equipoise import curve
from equipoise.curve import Keys
from equipoise.language.scoring.functions import Part, RewardFunction, Samples
from equipoise.language.scoring.pool import line_of
from equipoise.language.scoring.scorer import Outcomes, Scored

AHEAD = 4  # groups of one generator that a scorer has at the same time
MOST_BYTES = 64 << 20  # of a group; ZeroMQ closes the connection of a larger one
BEAT_MS, SILENT_MS = 500, 4_000  # between two signs of a connection; a silent one is closed
UP, DOWN = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED


@dataclass(frozen=True, slots=True)
class Address:
    """Where a scorer listens. ``life`` counts its processes; 0: there was none yet."""

    life: int
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorers:
    """The scorers of a run, as a generator sees them."""

    addresses: Callable[[], Sequence[Address]]  # of every scorer, now
    public: bytes  # the key of every scorer
    keys: Keys  # of every generator
    first: int = 0  # the scorer that is asked first, so that generators begin with different ones


def limited(socket: zmq.Socket[bytes]) -> None:
    """Set the limits that both ends of a connection have."""
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
    socket.setsockopt(zmq.HEARTBEAT_IVL, BEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, SILENT_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, SILENT_MS)


@dataclass(slots=True)
class _Group:
    key: int
    samples: Samples
    line: bytes


@dataclass(slots=True)
class _Connection:
    """The connection to one process of a scorer."""

    life: int
    socket: zmq.Socket[bytes]
    events: zmq.Socket[bytes]
    up: bool = False
    groups: dict[int, _Group] = field(default_factory=dict)  # that it has, by their numbers here

    def look(self) -> bool:
        """Read the events of the connection -> has it ended since the last call?"""
        ended = False
        while self.events.poll(0):
            event = parse_monitor_message(self.events.recv_multipart(zmq.NOBLOCK))["event"]
            self.up = event == UP
            ended |= event == DOWN
        return ended

    def close(self) -> None:
        self.socket.disable_monitor()
        self.events.close(0)
        self.socket.close(0)


class RemoteScorer:
    """A ``Scorer`` whose functions are called by the scorers of the run."""

    def __init__(
        self,
        functions: Sequence[RewardFunction],
        scorers: Scorers,
        *,
        deadline_s: float = 60.0,
        capsules: Path | None = None,
        caution: float = 0.0,
    ) -> None:
        """As ``ProcessScorer``. ``deadline_s`` is written into capsules; scorers enforce it."""
        self._names, self._scorers = [one.name for one in functions], scorers
        self._outcomes = Outcomes(functions, capsules, deadline_s, caution)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._connections: dict[int, _Connection] = {}  # by scorer
        self._queue: deque[_Group] = deque()  # no scorer has them
        self._lost: list[Scored] = []  # groups that cannot be sent
        self._number = 0  # of the next group that is sent

    @property
    def waiting(self) -> int:
        connections = self._connections.values()
        return len(self._lost) + len(self._queue) + sum(len(one.groups) for one in connections)

    def fds(self) -> tuple[int, ...]:
        return tuple(int(one.socket.getsockopt(zmq.FD)) for one in self._connections.values())

    def submit(self, key: int, samples: Samples) -> None:
        line = line_of(samples)
        if len(line) > MOST_BYTES:
            error = f"expected a group of at most {MOST_BYTES:,} bytes, got {len(line):,}"
            self._lost.append(self._outcomes.failed(key, samples, self._names[0], error))
            return
        self._queue.append(_Group(key, samples, line))
        self._deal()

    def poll(self) -> list[Scored]:
        ready, self._lost = self._lost, []
        for number, address in enumerate(self._scorers.addresses()):
            connection = self._connections.get(number)
            if address.life > (0 if connection is None else connection.life):
                self._connect(number, address)
        while True:
            for connection in self._connections.values():
                ready += self._answers(connection)
                if connection.look():
                    self._take_back(connection)
            if not self._deal():
                return ready

    def _connect(self, number: int, address: Address) -> None:
        """Connect to a scorer, or to its successor."""
        if (before := self._connections.pop(number, None)) is not None:
            self._take_back(before)
            before.close()
        socket = self._context.socket(zmq.DEALER)
        limited(socket)
        socket.setsockopt(zmq.SNDHWM, 2 * AHEAD)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing is kept for a connection to come
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        curve.join(socket, self._scorers.public, self._scorers.keys)
        events = socket.get_monitor_socket(UP | DOWN)
        socket.connect(address.at)
        self._connections[number] = _Connection(address.life, socket, events)

    def _take_back(self, connection: _Connection) -> None:
        """The groups of a scorer that is lost are the next to be sent."""
        self._queue.extendleft(reversed(connection.groups.values()))
        connection.groups.clear()

    def _answers(self, connection: _Connection) -> list[Scored]:
        found = list[Scored]()
        while True:
            try:
                number, body = connection.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return found
            # else it was sent before the connection ended, and another scorer has the group
            if (group := connection.groups.pop(int.from_bytes(number, "big"), None)) is not None:
                found.append(self._scored(group, json.loads(body)))

    def _scored(self, group: _Group, said: dict[str, object]) -> Scored:
        match said:
            case {"parts": dict(parts)}:
                given: dict[str, Part] = parts
                return self._outcomes.scored(group.key, group.samples, given)
            case {"failed": str(name), "error": str(error)}:
                return self._outcomes.failed(group.key, group.samples, name, error)
        raise ValueError(f"scorer: expected parts, or failed and error, got {sorted(said)}")

    def _deal(self) -> bool:
        """Send groups that wait to scorers with room -> was one sent?"""
        sent = False
        while self._queue and (connection := self._least()) is not None:
            group = self._queue[0]
            try:
                connection.socket.send_multipart(
                    [self._number.to_bytes(8, "big"), group.line], zmq.NOBLOCK
                )
            except zmq.Again:  # its connection ended just now
                connection.up = False
                self._take_back(connection)
                continue
            connection.groups[self._number] = self._queue.popleft()
            self._number += 1
            sent = True
        return sent

    def _least(self) -> _Connection | None:
        """The scorer with the fewest groups, if it has room."""
        first = self._scorers.first
        order = sorted(self._connections, key=lambda number: (number < first, number))
        found = [self._connections[number] for number in order if self._connections[number].up]
        best = min(found, key=lambda connection: len(connection.groups), default=None)
        return None if best is None or len(best.groups) >= AHEAD else best

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._queue.clear()
        self._context.term()

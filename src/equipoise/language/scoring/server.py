"""The scorer: a worker that calls reward functions for the generators of a run, on any machine
(``remote.py`` is the generators' end).

It has no state to save. A connection without the keys of the run is refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import zmq

from equipoise import curve
from equipoise.curve import Keys
from equipoise.language.scoring.functions import Part, RewardFunction, Samples
from equipoise.language.scoring.pool import ProcessScorer
from equipoise.language.scoring.remote import Address, limited
from equipoise.language.scoring.scorer import Outcomes, Scored
from equipoise.publishing import publish
from equipoise.tree import ArraySpec
from equipoise.types import StateReader, StateWriter, Tick, Tree

AT_ONCE = 64  # messages read in one tick
LONGEST_ADDRESS = 128  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """What all scorers of a run have, and the keys of the generators."""

    functions: tuple[RewardFunction, ...]
    deadline_s: float  # of one function for one group
    workers: int
    scorers: Keys = field(default_factory=Keys.made)
    generators: Keys = field(default_factory=Keys.made)


def specs(workers: int) -> Tree:
    """The words that scorers share with generators: addresses, how many processes each scorer has
    had, and the groups that it has scored.
    """
    return {
        "address": ArraySpec((workers, LONGEST_ADDRESS), "uint8"),
        "life": ArraySpec((workers,), "int64"),
        "scored": ArraySpec((workers,), "int64"),
    }


def words_of(words: Tree, number: int) -> Tree:
    """The words of one scorer."""
    return {name: array[number : number + 1] for name, array in words.items()}


def addresses(words: Tree) -> list[Address]:
    """Where the scorers listen now. A scorer whose words change at this moment counts as having no
    address yet.
    """
    found = []
    for life, address in zip(words["life"], words["address"], strict=True):
        first, lived, again = address.tobytes(), int(life), address.tobytes()
        at, _, number = first.rstrip(b"\0").decode("ascii", "replace").rpartition("#")
        whole = first == again and number == str(lived)
        found.append(Address(lived, at) if whole else Address(0, ""))
    return found


class _Unjudged(Outcomes):
    """Outcomes as they are: generators add rewards up, write capsules and count failures."""

    def scored(self, key: int, samples: Samples, parts: dict[str, Part]) -> Scored:
        return Scored(key=key, reward=None, parts=parts)

    def failed(self, key: int, samples: Samples, name: str, error: str) -> Scored:
        return Scored(key=key, reward=None, error=name, cause=error)


class ScorerWorker:
    """Reads groups, has them scored by a process of its own, and answers."""

    ready = Tick.STARVED  # nothing is lost with what it has: generators keep their groups

    def __init__(self, scoring: Scoring, words: Tree, *, host: str) -> None:
        """``words``: of ``specs``, this scorer's, which it alone writes. ``host``: the address of
        this machine for generators.
        """
        self._words = words
        self._asked: dict[int, tuple[bytes, bytes]] = {}  # (connection, its number), by ours
        self._number = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._guard = curve.guard(self._context, scoring.generators.public)
        self._socket = self._context.socket(zmq.ROUTER)
        limited(self._socket)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # an answer waits for a slow reader, and is small
        curve.serve(self._socket, scoring.scorers)
        if ":" in host:
            self._socket.setsockopt(zmq.IPV6, 1)
            host = f"[{host}]"
        self._socket.bind(f"tcp://{host}:*")
        self._pool = ProcessScorer(
            scoring.functions,
            deadline_s=scoring.deadline_s,
            outcomes=_Unjudged(scoring.functions),
        )
        self._announce(self._socket.getsockopt_string(zmq.LAST_ENDPOINT))

    def _announce(self, at: str) -> None:
        life = int(self._words["life"][0]) + 1
        address = f"{at}#{life}".encode()  # a reader sees by the number whether all is written
        if len(address) > LONGEST_ADDRESS:
            raise ValueError(f"expected an address of {LONGEST_ADDRESS} bytes, got {at}")
        self._words["address"][0] = bytearray(address.ljust(LONGEST_ADDRESS, b"\0"))
        publish(self._words["life"], 0, life)

    def fds(self) -> tuple[int, ...]:
        return (int(self._socket.getsockopt(zmq.FD)), *self._pool.fds())

    @property
    def waiting(self) -> int:
        """Groups without an answer."""
        return self._pool.waiting

    def tick(self) -> Tick:
        read = self._read()
        scored = self._pool.poll()
        for one in scored:
            self._answer(one)
        return Tick.WORKED if read or scored else Tick.STARVED

    def _read(self) -> int:
        for count in range(AT_ONCE):
            try:
                connection, number, line = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return count
            self._asked[self._number] = connection, number
            self._pool.submit(self._number, Samples(**json.loads(line)))
            self._number += 1
        return AT_ONCE

    def _answer(self, one: Scored) -> None:
        """Answer the generator, if it is still there."""
        connection, number = self._asked.pop(one.key)
        failed = {"failed": one.error, "error": one.cause}
        said = json.dumps(failed if one.error else {"parts": one.parts}).encode()
        self._socket.send_multipart([connection, number, said])
        self._words["scored"] += 1

    def save(self, to: StateWriter) -> None:
        """Nothing that a successor needs, since generators send again what has no answer."""
        to.put({"scored": self._words["scored"]})

    def load(self, source: StateReader) -> None: ...

    def close(self) -> None:
        self._pool.close()
        self._socket.close(0)
        self._guard.stop()
        self._context.term()

"""How a message between a site and home is read, and why one is refused. ``frames.py`` has the
messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from equipoise.runtime.cluster.frames import HEAD, LAYOUT, MAGIC, Body, Kind, Message, made
from equipoise.tree import ArraySpec
from equipoise.types import Array

T = TypeVar("T")

WORDS = 1 << 20  # bytes of a body of words
# bytes that are sent at once: a larger body comes in pieces, each of which shows that the sender
# lives
PIECE = 1 << 18


# also come between the pieces of another message
AT_ONCE = frozenset({Kind.BEAT, Kind.TAKEN, Kind.STOP})
# the most bytes of a body, at both ends
BOTH = {Kind.BEAT: 0, Kind.PROBE: 0, Kind.PIECE: PIECE, Kind.TAKEN: 0}
OUTSIDE = frozenset(
    {Kind.HELLO, Kind.WELCOME, Kind.EXPELLED, Kind.REFUSED, Kind.PROBE}
)  # belong to no session: its number is 0


# Why connections and messages are refused. Fixed, so that no sender can make home remember more.
REASONS = (
    "another key",  # connections: keys of another run
    "no key",  # connections: another mechanism than CURVE, or a handshake that was broken off
    "no ZeroMQ",  # connections that ended before a handshake began
    "no site of this run",
    "no message",  # head of another size, or of another protocol
    "unknown kind",
    "too large",  # for its kind
    "another session",
    "out of order",
    "no JSON",
    "wrong numbers",  # a group, a block, a policy or a size that the sender has not
)


class Refused(ValueError):
    """A message that is not of the protocol, or larger than its kind allows. ``reason``: one of
    ``REASONS``.
    """

    def __init__(self, text: str, reason: str = "wrong numbers") -> None:
        super().__init__(text)
        self.reason = reason


class Tally:
    """How many connections and messages were refused, by reason, in memory that other processes may
    read. One process writes.
    """

    SPEC = ArraySpec((len(REASONS),), "int64")

    def __init__(self, counts: Array | None = None) -> None:
        self._counts = np.zeros(len(REASONS), np.int64) if counts is None else counts

    def add(self, reason: str) -> None:
        self._counts[REASONS.index(reason)] += 1

    def __getitem__(self, reason: str) -> int:
        return int(self._counts[REASONS.index(reason)])

    @property
    def total(self) -> int:
        return int(self._counts.sum())

    def by_reason(self) -> dict[str, int]:
        """The counts that are not 0."""
        return {
            reason: count
            for reason, count in zip(REASONS, self._counts.tolist(), strict=True)
            if count
        }


@dataclass(frozen=True, slots=True)
class Frame:
    """A message that has come."""

    session: int
    number: int
    message: Message

    @property
    def kind(self) -> Kind:
        return self.message.kind


def read(message: Message) -> dict[str, object]:
    """The body as JSON; ``Refused`` if it is no JSON."""
    body = bytes(message.body)
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:  # the second: of a thousand brackets and more
        raise Refused(
            f"{message.kind.name}: expected JSON, got {body[:40]!r}", "no JSON"
        ) from error
    if not isinstance(found, dict):
        raise Refused(
            f"{message.kind.name}: expected a JSON object, got {type(found).__name__}", "no JSON"
        )
    return found


def words(**said: object) -> bytes:
    return json.dumps(said).encode()


def lookup(message: Message, noun: str, number: int, among: Mapping[int, T]) -> T:
    """The thing of this number that a message is for; ``Refused`` if there is none."""
    if number not in among:
        raise Refused(f"{message.kind.name}: expected a {noun} of {sorted(among)}, got {number}")
    return among[number]


def parse(head: Body, body: Body, most: Mapping[Kind, int]) -> Frame:
    """Read a message; ``Refused`` if it is no message. ``most``: the accepted kinds, and the most
    bytes of a body of each.

    Nothing of the body is read or copied.
    """
    if len(head) != HEAD:
        raise Refused(f"expected a head of {HEAD} bytes, got {len(head)}", "no message")
    magic, kind, session, number, *numbers = LAYOUT.unpack(head)
    if magic != MAGIC:
        raise Refused(f"expected a message of protocol {MAGIC:#x}, got {magic:#x}", "no message")
    if kind not in most:
        raise Refused(
            f"expected a message of kind {', '.join(one.name for one in most)}, got {kind}",
            "unknown kind",
        )
    size = memoryview(body).nbytes
    if size > most[kind]:
        raise Refused(
            f"{Kind(kind).name}: expected at most {most[kind]:,} bytes, got {size:,}", "too large"
        )
    if (session == 0) is not (kind in OUTSIDE):
        raise Refused(
            f"{Kind(kind).name}: expected {'no' if session else 'a'} session, got {session}",
            "another session",
        )
    return Frame(session, number, made(Kind(kind), numbers, body))

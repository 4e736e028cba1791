"""The table of what travels between a site and home: kinds of messages, their numbers, and why one is refused. No pickle.

A message is a head of fixed size and a body of raw bytes: rows and weights as they lie in memory, JSON where it is words.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import Any

import numpy as np

from equipoise.tree import ArraySpec

MAGIC = 0x45510003  # a protocol that changes gets another number
_HEAD = struct.Struct("<IIqqqqq")  # magic, kind, session, number, a, b, c
HEAD = _HEAD.size
WORDS = 1 << 20  # bytes of a body of words
PIECE = 1 << 18  # bytes that are sent at once: a larger body comes in pieces, each of which shows that the sender lives


@unique
class Kind(IntEnum):
    """``a``, ``b``, ``c`` are the numbers of a message; a group is one of the run's groups of envs."""

    # the site's
    HELLO = 1  # a: incarnation, b: nonce; {"site", "plan"}
    WANT = 2  # a: group, b: life, c: how many more places; for its next unrolls
    ROWS = 3  # a: group, b: sequence; the bytes of a block
    STATISTICS = 4  # a: number of the part that they belong to; the bytes of that part of the memory
    ASK = 5  # a: policy, b: version; weights that are newer
    LOST = 6  # a: group, b: the life that begins now; its actor is verified dead
    RESTARTED = 7  # a: group; it writes its oldest place a second time
    SAID = 8  # {"title", "message"}: what a worker told its driver
    FILE = 9  # a file of a checkpoint; {"title", "name"} is said next, with "step", or for rows of a replay "at"
    STEPPED = 10  # a: group, b: the ask that it answers, c: 1 where the episodes are new; the bytes of its rows
    UNSTEPPED = 11  # a: group, b: an ask that has no such answer, since its envs were lost
    KEPT = 12  # a: group, b: sequence; the rows of that block are complete, and wait here for a shard
    BROUGHT = 13  # a: group, b: sequence; the bytes of a block that waits here, for the checkpoint that is made
    ANSWERED = 14  # a: shard, b: request, c: life; its items, blocks and mass, and the bytes of what was drawn
    EMPTIED = 15  # a: shard, b: the life that begins now; it is verified dead, and its rows are lost
    # home's
    WELCOME = 32  # a: nonce, b: the session that begins
    EXPELLED = 33  # a: the session that is over, or 0 and b: what asks for a session must have a nonce above this one
    REFUSED = 34  # a: nonce; the words say why there is no session
    GRANT = 35  # a: group, c: life; [n + k] int64: the version of each of n policies at that moment, then k sequences
    WEIGHTS = 36  # a: policy, b: version; the bytes of its tensors
    CUT = 37  # a: the cut that workers are to save for, b: its step, c: 1 where it is the learners' turn
    LET_GO = 38  # the site's actors get no more places: once they have handed in what they have, they are to be handed over
    STOP = 39
    STEP = 41  # a: group, b: the ask, c: 1 where whole stacks are wanted; the actions' bytes, or none: begin new episodes
    HOLD = 42  # a: group, b: the cut for which its env worker may save
    KNOWN = 43  # a: number of a part; what home knows of that part, which a worker elsewhere writes
    ASKED = 44  # a: shard, b: request, c: life; the request, with its priorities, or with rows that are not at the site
    # both
    BEAT = 64
    PROBE = 65  # says nothing: whether it can be sent tells whether the other end is there
    PIECE = 66  # the next bytes of a body; the last ones come with the message itself
    TAKEN = 67  # a piece: the next one may come


AT_ONCE = frozenset({Kind.BEAT, Kind.TAKEN, Kind.STOP})  # come between the pieces of another message, too
BOTH = {Kind.BEAT: 0, Kind.PROBE: 0, Kind.PIECE: PIECE, Kind.TAKEN: 0}  # the most bytes of a body, at both ends
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
    """A message that is not of the protocol, or larger than its kind allows. ``reason``: one of ``REASONS``."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Tally:
    """How many connections and messages were refused, by reason, in memory that others may read. One process writes."""

    SPEC = ArraySpec((len(REASONS),), "int64")

    def __init__(self, counts: Any = None) -> None:
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
        return {reason: count for reason, count in zip(REASONS, self._counts.tolist(), strict=True) if count}


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    kind: Kind
    session: int
    number: int  # counts the sender's messages in the session
    a: int = 0
    b: int = 0
    c: int = 0
    body: Any = b""  # of the buffer protocol

    @property
    def head(self) -> bytes:
        return _HEAD.pack(MAGIC, self.kind, self.session, self.number, self.a, self.b, self.c)

    def words(self) -> dict[str, Any]:
        """The body as JSON; ``Refused`` where it is none."""
        try:
            found = json.loads(bytes(self.body))
        except (ValueError, RecursionError) as error:  # the second: of a thousand brackets and more
            raise Refused("no JSON", f"{self.kind.name}: expected JSON, got {bytes(self.body[:40])!r}") from error
        if not isinstance(found, dict):
            raise Refused("no JSON", f"{self.kind.name}: expected a JSON object, got {type(found).__name__}")
        return found


def words(**said: Any) -> bytes:
    return json.dumps(said).encode()


def parse(head: Any, body: Any, most: Mapping[Kind, int]) -> Frame:
    """Read a message; ``Refused`` where it is none. ``most``: the bytes of a body by kind, of those that may come.

    Nothing of the body is read or copied.
    """
    if len(head) != HEAD:
        raise Refused("no message", f"expected a head of {HEAD} bytes, got {len(head)}")
    magic, kind, session, number, a, b, c = _HEAD.unpack(head)
    if magic != MAGIC:
        raise Refused("no message", f"expected a message of protocol {MAGIC:#x}, got {magic:#x}")
    if kind not in most:
        raise Refused("unknown kind", f"expected a message of kind {', '.join(one.name for one in most)}, got {kind}")
    size = memoryview(body).nbytes
    if size > most[kind]:
        raise Refused("too large", f"{Kind(kind).name}: expected at most {most[kind]:,} bytes, got {size:,}")
    if (session == 0) is not (kind in OUTSIDE):
        raise Refused("another session", f"{Kind(kind).name}: expected {'no' if session else 'a'} session, got {session}")
    return Frame(Kind(kind), session, number, a, b, c, body)

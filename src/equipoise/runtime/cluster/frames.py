"""The messages between a site and home: a frozen dataclass for each kind, with named fields. No
pickle.

A message is a head of fixed size and a body of raw bytes: rows and weights as they lie in memory,
JSON if it is words.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum, unique
from operator import attrgetter
from typing import ClassVar

MAGIC = 0x45510003  # a protocol that changes gets another number
# of a head: magic, kind, session, number, the three numbers of a message
LAYOUT = struct.Struct("<IIqqqqq")
HEAD = LAYOUT.size
Body = bytes | memoryview


@unique
class Kind(IntEnum):
    """The number of each kind of message; ``Message`` has a class for each."""

    # the site's
    HELLO = 1
    WANT = 2
    ROWS = 3
    STATISTICS = 4
    ASK = 5
    LOST = 6
    RESTARTED = 7
    SAID = 8
    FILE = 9
    STEPPED = 10
    UNSTEPPED = 11
    KEPT = 12
    BROUGHT = 13
    ANSWERED = 14
    EMPTIED = 15
    # home's
    WELCOME = 32
    EXPELLED = 33
    REFUSED = 34
    GRANT = 35
    WEIGHTS = 36
    CUT = 37
    LET_GO = 38
    STOP = 39
    STEP = 41
    HOLD = 42
    KNOWN = 43
    ASKED = 44
    # both
    BEAT = 64
    PROBE = 65
    PIECE = 66
    TAKEN = 67


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a kind: at most three numbers with names, and a body. A group is one of the
    run's groups of envs.
    """

    kind: ClassVar[Kind]
    none: ClassVar[int] = 0  # a number that a kind has no name for

    @property
    def numbers(self) -> tuple[int, int, int]:
        """The three numbers in the order of the head; 0 if the kind has no name for one."""
        return _NUMBERS[type(self)](self)

    @property
    def body(self) -> Body:
        """The bytes after the head; b"" for a kind without a body."""
        return b""

    def head(self, session: int = 0, number: int = 0) -> bytes:
        """``number`` counts the sender's messages in the session."""
        return LAYOUT.pack(MAGIC, self.kind, session, number, *self.numbers)


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """A site asks for a session. Words: its name and the digest of its plan."""

    kind: ClassVar[Kind] = Kind.HELLO
    incarnation: int = 0
    nonce: int = 0
    body: Body = b""


@dataclass(frozen=True, slots=True)
class Want(Message):
    """Places for the next unrolls of a group."""

    kind: ClassVar[Kind] = Kind.WANT
    group: int = 0
    life: int = 0  # of its actor
    count: int = 0  # of places


@dataclass(frozen=True, slots=True)
class Rows(Message):
    """The bytes of a block."""

    kind: ClassVar[Kind] = Kind.ROWS
    group: int = 0
    sequence: int = 0  # of the block
    body: Body = b""


@dataclass(frozen=True, slots=True)
class Statistics(Message):
    """The bytes of a part of the memory that a worker of the site counts in."""

    kind: ClassVar[Kind] = Kind.STATISTICS
    part: int = 0  # its number
    body: Body = b""


@dataclass(frozen=True, slots=True)
class Ask(Message):
    """A request for weights that are newer."""

    kind: ClassVar[Kind] = Kind.ASK
    policy: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Lost(Message):
    """The actor of a group is verified dead."""

    kind: ClassVar[Kind] = Kind.LOST
    group: int = 0
    life: int = 0  # that begins now


@dataclass(frozen=True, slots=True)
class Restarted(Message):
    """The actor of a group writes its oldest place a second time."""

    kind: ClassVar[Kind] = Kind.RESTARTED
    group: int = 0


@dataclass(frozen=True, slots=True)
class Said(Message):
    """A message of a worker to its driver, or the name of the file that came before. Words."""

    kind: ClassVar[Kind] = Kind.SAID
    body: Body = b""


@dataclass(frozen=True, slots=True)
class File(Message):
    """A file of a checkpoint, or rows of a replay. ``Said`` names it next, with "step", or for rows
    "at".
    """

    kind: ClassVar[Kind] = Kind.FILE
    body: Body = b""


@dataclass(frozen=True, slots=True)
class Stepped(Message):
    """The rows of a step."""

    kind: ClassVar[Kind] = Kind.STEPPED
    group: int = 0
    ask: int = 0  # that it answers
    anew: int = 0  # 1 if the episodes are new
    body: Body = b""


@dataclass(frozen=True, slots=True)
class Unstepped(Message):
    """The step request cannot be answered because its envs died."""

    kind: ClassVar[Kind] = Kind.UNSTEPPED
    group: int = 0
    ask: int = 0


@dataclass(frozen=True, slots=True)
class Kept(Message):
    """The rows of a block are complete, and wait at the site for a shard."""

    kind: ClassVar[Kind] = Kind.KEPT
    group: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Brought(Message):
    """The bytes of a block that waits at the site, for the checkpoint that is made."""

    kind: ClassVar[Kind] = Kind.BROUGHT
    group: int = 0
    sequence: int = 0
    body: Body = b""


@dataclass(frozen=True, slots=True)
class Answered(Message):
    """An answer of a shard: its items, blocks and mass, and the bytes of what was drawn."""

    kind: ClassVar[Kind] = Kind.ANSWERED
    shard: int = 0
    request: int = 0
    life: int = 0
    body: Body = b""


@dataclass(frozen=True, slots=True)
class Emptied(Message):
    """A shard is verified dead, and its rows are lost."""

    kind: ClassVar[Kind] = Kind.EMPTIED
    shard: int = 0
    life: int = 0  # that begins now


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """A session begins."""

    kind: ClassVar[Kind] = Kind.WELCOME
    nonce: int = 0
    session: int = 0


@dataclass(frozen=True, slots=True)
class Expelled(Message):
    """A session is over, or a nonce is too low."""

    kind: ClassVar[Kind] = Kind.EXPELLED
    session: int = 0  # that is over, or 0
    nonce: int = 0  # a request for a session must have one above it


@dataclass(frozen=True, slots=True)
class Denied(Message):
    """There is no session. Words: why."""

    kind: ClassVar[Kind] = Kind.REFUSED
    nonce: int = 0  # -1: whatever it is
    body: Body = b""


@dataclass(frozen=True, slots=True)
class Grant(Message):
    """Places for the next unrolls of a group. [n + k (1 + p)] int64: the version of each of n
    policies now, k sequences, each followed by the p prompts that the learner issued for it.
    """

    kind: ClassVar[Kind] = Kind.GRANT
    group: int = 0
    life: int = 0
    body: Body = b""


@dataclass(frozen=True, slots=True)
class Weights(Message):
    """The bytes of the tensors of a policy."""

    kind: ClassVar[Kind] = Kind.WEIGHTS
    policy: int = 0
    version: int = 0
    body: Body = b""


@dataclass(frozen=True, slots=True)
class Cut(Message):
    """Workers are to save."""

    kind: ClassVar[Kind] = Kind.CUT
    cut: int = 0  # its number
    step: int = 0
    last: int = 0  # 1 if it is the learners' turn


@dataclass(frozen=True, slots=True)
class LetGo(Message):
    """The site's actors get no more places. They are handed over once they have handed in what they
    have.
    """

    kind: ClassVar[Kind] = Kind.LET_GO


@dataclass(frozen=True, slots=True)
class Stop(Message):
    """The run is over."""

    kind: ClassVar[Kind] = Kind.STOP


@dataclass(frozen=True, slots=True)
class Step(Message):
    """The actions of a step; no bytes: begin new episodes."""

    kind: ClassVar[Kind] = Kind.STEP
    group: int = 0
    ask: int = 0
    whole: int = 0  # 1 if whole stacks are wanted
    body: Body = b""


@dataclass(frozen=True, slots=True)
class Hold(Message):
    """The env worker of a group may save."""

    kind: ClassVar[Kind] = Kind.HOLD
    group: int = 0
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Known(Message):
    """Home's copy of a part of the memory, which a worker elsewhere writes."""

    kind: ClassVar[Kind] = Kind.KNOWN
    part: int = 0  # its number
    body: Body = b""


@dataclass(frozen=True, slots=True)
class Asked(Message):
    """A request to a shard, with its priorities, or with rows that are not at the site."""

    kind: ClassVar[Kind] = Kind.ASKED
    shard: int = 0
    request: int = 0
    life: int = 0
    body: Body = b""


@dataclass(frozen=True, slots=True)
class Beat(Message):
    """The sender lives."""

    kind: ClassVar[Kind] = Kind.BEAT


@dataclass(frozen=True, slots=True)
class Probe(Message):
    """Nothing: if it can be sent, the other end is there."""

    kind: ClassVar[Kind] = Kind.PROBE


@dataclass(frozen=True, slots=True)
class Piece(Message):
    """The next bytes of a body. The last ones come with the message itself."""

    kind: ClassVar[Kind] = Kind.PIECE
    body: Body = b""


@dataclass(frozen=True, slots=True)
class Taken(Message):
    """A piece was taken: the next one may come."""

    kind: ClassVar[Kind] = Kind.TAKEN


FROM_SITES = frozenset(kind.name for kind in Kind if kind < Kind.WELCOME)
_MESSAGES: dict[Kind, type[Message]] = {
    one.kind: one
    for one in list(globals().values())
    if isinstance(one, type) and issubclass(one, Message) and one is not Message
}
_NAMES = {
    kind: tuple(one.name for one in fields(made) if one.name != "body")
    for kind, made in _MESSAGES.items()
}
_NUMBERS: dict[type[Message], Callable[[Message], tuple[int, int, int]]] = {
    made: attrgetter(*(*_NAMES[kind], "none", "none", "none")[:3])
    for kind, made in _MESSAGES.items()
}
_BODIES = frozenset(
    kind for kind, made in _MESSAGES.items() if any(one.name == "body" for one in fields(made))
)


def made(kind: Kind, numbers: Sequence[int], body: Body) -> Message:
    """The message of a kind, by the numbers of its head. Numbers without a name are left out."""
    names = _NAMES[kind]
    more = {"body": body} if kind in _BODIES else {}
    return _MESSAGES[kind](**dict(zip(names, numbers, strict=False)), **more)

"""The parts of conversations of calls: samples as tokens, answers, and names of callers."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from equipoise.types.packed import Stop

_PRIME = (1 << 61) - 1
_BASE = secrets.randbelow(_PRIME - 512) + 256  # no caller can choose prompts with equal hashes
Group = tuple[str, object]
Seen = tuple[str, tuple[int, int], Group]
TAIL = 8  # most tokens at the end of a prompt that may merge with the answer's text


class NotPossible(Exception):
    """A request that a conversation cannot take."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


@dataclass(frozen=True, slots=True)
class Asked:
    """The end of a call's prompt as the tokenizer wrote it, which its next prompt may begin with.

    ``hashes``: of all its tokens, of all but the last one, and so on.
    """

    length: int
    hashes: Sequence[int]
    tail: Sequence[int]  # the last ``TAIL`` tokens

    @classmethod
    def of(cls, prompt: Sequence[int], hashes: Sequence[int]) -> Asked:
        """Return the end of a prompt with these ``prefixes``."""
        return cls(len(prompt), array("q", hashes[-TAIL - 1 :])[::-1], array("q", prompt[-TAIL:]))


@dataclass(slots=True, eq=False)
class Mark:
    """The place of an answer in its sample, and what recognises the calls that follow it."""

    id: str  # of the answer
    row: Row
    end: int  # tokens of the sample up to here
    places: Sequence[tuple[int, int]]  # lengths and hashes of the tokens so far
    text: str  # key of the messages so far
    messages: Sequence[Mapping[str, object]]  # after the conversation's first prompt
    stop: Stop
    asked: Asked
    claims: int = 0  # calls that followed it

    @property
    def seen(self) -> Seen:
        """What is equal for equal conversations: the messages, the tokens, and the group."""
        return self.text, self.places[0], self.row.conversation.group


@dataclass(slots=True, eq=False)
class Row:
    """One sample of a conversation, from the first token of its prompt on."""

    conversation: Conversation
    parent: Mark | None = None  # the answer that its first call followed with other tokens
    token: array[int] = field(default_factory=lambda: array("q"))
    logp: array[float] = field(default_factory=lambda: array("f"))
    version: array[int] = field(default_factory=lambda: array("q"))
    # (first, last + 1) of the drawn tokens of each answer
    spans: list[tuple[int, int]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)  # of each answer
    hash: int = 0  # of all tokens
    turn: Turn | None = None  # an answer that continues it and is being drawn

    def extend(self, given: Sequence[int], answer: Answer) -> None:
        """Append given tokens and then an answer."""
        self.give(given)
        begin = len(self.token)
        self.token.extend(answer.token)
        self.logp.extend(answer.logp)
        self.version.extend(answer.version)
        self.spans.append((begin, len(self.token)))
        self.hash = hashed(answer.token, self.hash)

    def give(self, tokens: Sequence[int]) -> None:
        """Append tokens that are not chosen."""
        self.token.extend(tokens)
        self.logp.extend([0.0] * len(tokens))
        self.version.extend([-1] * len(tokens))
        self.hash = hashed(tokens, self.hash)


@dataclass(slots=True, eq=False)
class Conversation:
    """The calls of one episode of an agent."""

    name: str
    group: tuple[str, object]
    named: bool  # by the caller
    touched: float  # seconds, when it was last called
    columns: Mapping[str, object] = field(default_factory=dict)  # for reward functions
    rows: list[Row] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)  # answers that are being drawn
    calls: int = 0  # answers so far, those that were dropped included
    reward: float | None = None
    ended: bool = False  # no call and no reward may come
    ids: list[str] = field(default_factory=list)  # of its answers
    prompt: object = None  # of its first call, as text or messages

    @property
    def answers(self) -> int:
        """The number of answers in its samples."""
        return sum(len(row.spans) for row in self.rows)


@dataclass(frozen=True, slots=True)
class Answer:
    """The drawn tokens of one answer."""

    token: Sequence[int]
    logp: Sequence[float]
    version: Sequence[int]
    stop: Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Where a call belongs, as far as the caller stated it.

    ``history``: keys of the messages up to each earlier answer, the longest first.
    """

    id: str
    conversation: str = ""
    group: str = ""
    columns: Mapping[str, object] = field(default_factory=dict)
    history: Sequence[str] = ()
    fresh: bool = False  # has it messages, and none of them is an answer?
    prompt: object = None


@dataclass(slots=True, eq=False)
class Turn:
    """One answer that is being drawn. ``prompt``: the tokens that the engine reads."""

    conversation: Conversation
    prompt: Sequence[int]
    row: Row | None  # the sample that it continues; None: another one begins
    parent: Mark | None  # the answer that it follows
    id: str
    asked: Asked
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of conversations."""

    group: int  # conversations of a group
    most: int  # open conversations
    calls: int  # answers of a conversation
    reward_s: float  # seconds without a call until the reward has to be there
    group_s: float  # seconds that a conversation waits for others of its group
    graded: bool = False  # a function grades conversations that have ended


def hashed(tokens: Sequence[int], start: int = 0) -> int:
    """Return the hash of tokens that follow a text with the hash ``start``."""
    for token in tokens:
        start = (start * _BASE + token + 1) % _PRIME
    return start


def prefixes(tokens: Sequence[int]) -> array[int]:
    """Return the hashes of all beginnings of a text, the empty one first."""
    found = array("q", [0])
    for token in tokens:
        found.append((found[-1] * _BASE + token + 1) % _PRIME)
    return found

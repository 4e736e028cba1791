"""Records of a store: queries, questions, answers, and the plan by which queries are asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, TypedDict, get_args

from equipoise.schema import MOST, Number, Schema

Choice = Literal["left", "right", "equal", "cannot_tell"]
Kind = Literal["clip", "text"]
Purpose = Literal["disagreement", "random", "newest", "gold", "repeat", "import"]
CHOICES: tuple[Choice, ...] = get_args(Choice)
KINDS: tuple[Kind, ...] = get_args(Kind)
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
# a choice on a screen that shows the right item on the left
MIRRORED: dict[Choice, Choice] = {"left": "right", "right": "left"}


class Message(TypedDict):
    """One message of a chat."""

    role: str
    content: str


Text = str | list[Message]


class Refused(ValueError):
    """An answer or an annotator that the store does not take now: the input itself is fine."""


class DiskFull(OSError):
    """The disk is full, and nothing was stored."""

    @classmethod
    def at(cls, path: Path) -> Self:
        return cls(f"{path}: nothing was stored, since the disk is full; make room")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the queries of a store are asked; it is fixed when the store is created.

    Args:
        answers_per_query: Answers by different annotators that a query needs.
        gold_share: Share of questions whose right answer is known, if there are such queries.
        repeat_share: Share of questions that were answered before, by this annotator or another.
        repeat_after: Number of later answers in the store before a query is asked again.
        lease_s: Seconds for which a question is held for the annotator who got it.
        seed: Seed of sides, gold questions and repeats.
    """

    answers_per_query: int = 1
    gold_share: float = 0.05
    repeat_share: float = 0.05
    repeat_after: int = 10
    lease_s: float = 600.0
    seed: int = 0


PLAN: Schema = {
    "answers_per_query": Number(1, 1000, whole=True),
    "gold_share": Number(0, 0.5),
    "repeat_share": Number(0, 0.5),
    "repeat_after": Number(0, 1_000_000, whole=True),
    "lease_s": Number(1, 7 * 86_400),
    "seed": Number(0, MOST, whole=True),
}


@dataclass(frozen=True, slots=True)
class Query:
    """A pair of items to compare. Items and prompt are SHA-256 hashes in hex.

    ``version``, ``step``: the version and the environment step of the policy that made the items.
    ``created``: seconds since 1970.
    """

    id: int
    kind: Kind
    prompt: str | None
    left: str
    right: str
    purpose: Purpose
    gold: Choice | None
    version: int | None
    step: int | None
    created: float


@dataclass(frozen=True, slots=True)
class Question:
    """A query as one annotator sees it: ``left`` and ``right`` are the items as shown.

    ``reason``: the purpose of the query, or "repeat". ``until``: the end of the lease, in seconds
    since 1970.
    """

    query: Query
    left: str
    right: str
    reason: Purpose
    until: float


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. ``choice`` is a side of the query, whichever side the screen showed it on.

    ``row``: the number of the answer in the store. ``swapped``: did the screen show the query's
    right item on the left? None if nobody knows. ``latency_s``: seconds until the answer, or None.
    ``repeat``: the annotator had answered this query before. ``time``: seconds since 1970.
    """

    row: int
    query: int
    annotator: str
    choice: Choice
    swapped: bool | None
    latency_s: float | None
    time: float
    repeat: bool


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """An answer from a file, as ``Answer``; None for what the file does not have."""

    annotator: str
    choice: Choice
    swapped: bool | None = None
    latency_s: float | None = None
    time: float | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair of texts from a file, as the bytes of ``items.text_bytes``, with its answers."""

    prompt: bytes | None
    left: bytes
    right: bytes
    answers: tuple[GivenAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A pair of stored clips that a run asks about. ``choice``: the answer, if a program gives it
    at once.
    """

    left: str
    right: str
    purpose: Purpose
    choice: Choice | None = None


@dataclass(frozen=True, slots=True)
class Annotator:
    """A person with a token; ``active`` until revoked."""

    name: str
    created: float
    active: bool


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of a store: queries by purpose, queries that need more answers, answers that count,
    and undone answers.
    """

    queries: dict[Purpose, int]
    open: int
    answers: int
    undone: int

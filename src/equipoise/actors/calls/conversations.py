"""Conversations of calls: which call continues which one, as tokens; their rewards; their groups.

A call whose prompt begins with all tokens of a sample, its own drawn ones included, continues the
sample: the tokens between are given, not chosen. Any other call of the conversation begins another
sample, all of whose prompt is given. So each drawn token is in exactly one sample, and is learned
from at most once. The samples of a conversation share its reward.

Without a name from the caller a call belongs to the conversation whose tokens it continues, or else
whose messages it continues, since a chat template may write earlier turns in other tokens.
"""

from __future__ import annotations

import math
import secrets
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from equipoise.actors.calls.ledger import Ledger
from equipoise.types.packed import Stop

LARGEST = 3.4e38  # reward, in the range of the learner's float32
MOST_CLOSED = 100_000  # names of conversations that are over, which are known for a while
_PRIME = (1 << 61) - 1
_BASE = secrets.randbelow(_PRIME - 512) + 256  # no caller can choose prompts with equal hashes


class NotPossible(Exception):
    """A request that a conversation cannot take."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


@dataclass(frozen=True, slots=True)
class Mark:
    """The place of an answer in its sample, and what recognises the calls that follow it."""

    id: str  # of the answer
    places: Sequence[tuple[int, int]]  # lengths and hashes of the tokens so far
    text: str  # key of the messages so far
    messages: Sequence[Mapping[str, object]]  # after the conversation's first prompt


@dataclass(slots=True, eq=False)
class Row:
    """One sample of a conversation, from the first token of its prompt on."""

    token: array[int] = field(default_factory=lambda: array("q"))
    logp: array[float] = field(default_factory=lambda: array("f"))
    version: array[int] = field(default_factory=lambda: array("q"))
    # (first, last + 1) of the drawn tokens of each answer
    spans: list[tuple[int, int]] = field(default_factory=list)
    hash: int = 0  # of all tokens
    stop: Stop = Stop.OPEN
    marks: list[Mark] = field(default_factory=list)  # of each answer
    turn: Turn | None = None  # an answer that continues it and is being drawn

    def extend(self, given: Sequence[int], answer: Answer) -> None:
        """Append given tokens and then an answer."""
        self.token.extend(given)
        self.logp.extend([0.0] * len(given))
        self.version.extend([-1] * len(given))
        begin = len(self.token)
        self.token.extend(answer.token)
        self.logp.extend(answer.logp)
        self.version.extend(answer.version)
        self.spans.append((begin, len(self.token)))
        self.hash = hashed((*given, *answer.token), self.hash)
        self.stop = answer.stop


@dataclass(slots=True, eq=False)
class Conversation:
    """The calls of one episode of an agent."""

    name: str
    group: tuple[str, object]
    named: bool  # by the caller
    touched: float  # seconds, when it was last called
    columns: Mapping[str, object] = field(default_factory=dict)  # for reward functions
    rows: list[Row] = field(default_factory=list)
    running: int = 0  # answers that are being drawn
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
    prompt: object = None


@dataclass(slots=True, eq=False)
class Turn:
    """One answer that is being drawn."""

    conversation: Conversation
    prompt: Sequence[int]
    row: Row | None  # the sample that it continues; None: another one begins
    id: str
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


class Conversations:
    """All open conversations. Times are given by the caller, in seconds of one clock."""

    def __init__(self, limits: Limits, ledger: Ledger) -> None:
        self._limits, self.ledger = limits, ledger
        self._open: dict[str, Conversation] = {}  # by name, while calls or a reward may come
        # by length and hash of the tokens up to each answer
        self._ends: dict[tuple[int, int], list[tuple[Conversation, Row]]] = {}
        self._lengths: Counter[int] = Counter()
        self._texts: dict[str, Conversation] = {}
        self._ids: dict[str, Conversation] = {}  # of calls
        self._closed: OrderedDict[str, str] = OrderedDict()  # why, by name or id of a call
        self.to_grade: deque[Conversation] = deque()  # ended, for a function
        # rewarded, by group, with the time of the reward
        self._waiting: dict[tuple[str, object], deque[tuple[float, Conversation]]] = {}
        self.groups: deque[list[Conversation]] = deque()  # complete

    def __len__(self) -> int:
        return len(self._open)

    # ------------------------------------------------------------------------------------ the calls

    def begin(self, prompt: Sequence[int], names: Names, samples: int, now: float) -> list[Turn]:
        """Return the turns of a call, one for each of its ``samples``.

        ``NotPossible`` if its conversation, or all together, have too many calls.
        """
        turns = list[Turn]()
        hashes = prefixes(prompt)
        known = self._open.get(names.conversation) if names.conversation else None
        for number in range(samples):
            conversation, row = self._place(prompt, hashes, names, known)
            if conversation is None:
                conversation = self._new(prompt, names, number if samples > 1 else None, now, turns)
                known = conversation if names.conversation else None
            elif conversation.calls >= self._limits.calls:
                self._undo(turns)
                raise NotPossible(
                    429,
                    f"conversation {conversation.name}: must have at most {self._limits.calls:,} "
                    "calls (source.turns), got one more; end it with POST /v1/reward",
                )
            elif row is None:
                self.ledger.add("forks")
            key = names.id if samples == 1 else f"{names.id}:{number}"
            turn = Turn(conversation, prompt, row, key)
            if row is not None:
                row.turn = turn
            conversation.touched = now
            conversation.running += 1
            conversation.calls += 1
            conversation.ids.append(key)
            self._ids[key] = conversation
            turns.append(turn)
        self.ledger.add("calls", samples)
        return turns

    def knows(self, prompt: Sequence[int], names: Names) -> bool:
        """Return whether a call belongs to an open conversation."""
        if names.conversation:
            return names.conversation in self._open
        return self._place(prompt, prefixes(prompt), names, None)[0] is not None

    def _undo(self, turns: Sequence[Turn]) -> None:
        """Take back turns of a call that is refused."""
        for turn in turns:
            turn.over = True
            turn.conversation.running -= 1
            turn.conversation.calls -= 1
            if turn.row is not None:
                turn.row.turn = None
            if not turn.conversation.calls:
                self._close(turn.conversation, "refused")

    def _place(
        self,
        prompt: Sequence[int],
        hashes: Sequence[int],
        names: Names,
        known: Conversation | None,
    ) -> tuple[Conversation | None, Row | None]:
        """Return the conversation of a call, and the sample that it continues."""
        if names.conversation and known is None:
            return None, None
        fork: Conversation | None = known
        for length in sorted(self._lengths, reverse=True):
            if length > len(prompt):
                continue
            for conversation, row in self._ends.get((length, hashes[length]), ()):
                if (known is None and conversation.named) or known not in (None, conversation):
                    continue
                if names.group and conversation.group != ("name", names.group):
                    continue
                if row.token[:length] != array("q", prompt[:length]):
                    continue
                if len(row.token) == length and row.turn is None:
                    return conversation, row
                fork = fork or conversation
        if fork is None and not names.conversation:
            fork = next((self._texts[key] for key in names.history if key in self._texts), None)
        return fork, None

    def _new(
        self,
        prompt: Sequence[int],
        names: Names,
        number: int | None,
        now: float,
        turns: Sequence[Turn],
    ) -> Conversation:
        if len(self._open) >= self._limits.most:
            self._undo(turns)
            raise NotPossible(
                429,
                f"conversations: must be at most {self._limits.most:,} open ones "
                "(source.conversations), got one more; end some with POST /v1/reward, or try again",
            )
        name = names.conversation or (names.id if number is None else f"{names.id}:{number}")
        group: tuple[str, object] = ("prompt", array("q", prompt).tobytes())
        if names.group:
            group = ("name", names.group)
        made = Conversation(
            name, group, bool(names.conversation), now, names.columns, prompt=names.prompt
        )
        self._open[name] = made
        self.ledger.add("conversations")
        return made

    def record(
        self,
        turn: Turn,
        answer: Answer,
        messages: Sequence[Mapping[str, object]] = (),
        key: str = "",
    ) -> None:
        """Add a whole answer to its sample. ``messages``: those after the conversation's first
        prompt, the answer last; ``key``: of all messages up to the answer's.
        """
        if turn.over:
            return
        conversation, row = turn.conversation, turn.row
        self._end(turn)
        if row is None:
            row = Row()
            conversation.rows.append(row)
        given = turn.prompt[len(row.token) :]
        before = hashed((*given, *answer.token[:-1]), row.hash)
        row.extend(given, answer)
        if conversation.ended:  # it was dropped meanwhile; its answers are counted
            return
        places = [(len(row.token), row.hash)]
        if answer.stop == Stop.EOS:  # a text that goes on without its end is another sample
            places.append((len(row.token) - 1, before))
        for place in places:
            self._ends.setdefault(place, []).append((conversation, row))
            self._lengths[place[0]] += 1
        if key:
            self._texts[key] = conversation
        row.marks.append(Mark(turn.id, places, key, messages))

    def drop(self, turn: Turn, reason: str) -> None:
        """Drop an answer that is not whole; its sample stays as it was."""
        if turn.over:
            return
        self._end(turn)
        self.ledger.add(reason)
        conversation = turn.conversation
        if not conversation.running and not conversation.rows and not conversation.ended:
            self._close(conversation, REASON_LEFT)

    def _end(self, turn: Turn) -> None:
        turn.over = True
        turn.conversation.running -= 1
        if turn.row is not None:
            turn.row.turn = None

    # ---------------------------------------------------------------------------------- the rewards

    def reward(self, name: str, value: float | None, now: float) -> Conversation:
        """Give a conversation its reward, by its own name or the id of one of its calls.

        ``value`` None: it has ended, and a function grades it. ``NotPossible``: 404 for an unknown
        name, 409 if it has a reward or an answer is being drawn, 400 for a number that is none.
        """
        found = self._open.get(name) or self._ids.get(name)
        if found is None:
            if (why := self._closed.get(name)) is not None:
                raise NotPossible(409, f"id: must name an open conversation, got one that {why}")
            raise NotPossible(
                404,
                "id: must be the id of an answer (chatcmpl-...) or of a conversation, got "
                f"{name[:80]!r}; a conversation is known until its reward, in this process",
            )
        if value is not None and not (math.isfinite(value) and abs(value) <= LARGEST):
            raise NotPossible(
                400, f"reward: must be a finite number of at most {LARGEST:g}, got {value}"
            )
        if value is None and not self._limits.graded:
            raise NotPossible(400, "reward: must be a number, since the run has no --reward")
        self._part(found, name)
        if found.running:
            raise NotPossible(
                409,
                f"id: must name a conversation whose answers are whole, got {found.name}, which "
                f"has {found.running} that are being drawn; wait for them",
            )
        if not found.rows:
            raise NotPossible(409, f"id: must name a conversation with answers, got {found.name}")
        self._finish(found, value, now)
        return found

    def _part(self, one: Conversation, id: str) -> None:
        """Give what follows the answer ``id`` to another conversation with the same tokens, if one
        waits there.

        Of conversations without names that are equal so far, a call may have continued either.
        Now that one ends here, the other one must have called.
        """
        for row in () if one.named else one.rows:
            number = next((n for n, mark in enumerate(row.marks) if mark.id == id), None)
            if number is None or (number + 1 == len(row.marks) and row.turn is None):
                continue
            length = row.spans[number][1]
            for other, twin in self._ends.get(row.marks[number].places[0], ()):
                same = twin is not row and len(twin.token) == length and twin.turn is None
                if same and not other.named and twin.token == row.token[:length]:
                    self._move(one, row, number + 1, other, twin)
                    return

    def _move(
        self, one: Conversation, row: Row, first: int, other: Conversation, twin: Row
    ) -> None:
        """Move the answers of a sample from number ``first`` on behind its twin."""
        length, moved = len(twin.token), row.marks[first:]
        for name in ("token", "logp", "version"):
            values = getattr(row, name)
            getattr(twin, name).extend(values[length:])
            del values[length:]
        for name in ("spans", "marks"):
            values = getattr(row, name)
            getattr(twin, name).extend(values[first:])
            del values[first:]
        row.hash, twin.hash = twin.hash, row.hash
        row.stop, twin.stop = twin.stop, row.stop
        ids = [mark.id for mark in moved]
        if (turn := row.turn) is not None:
            ids.append(turn.id)
            row.turn, twin.turn, turn.row, turn.conversation = None, turn, twin, other
            one.running, other.running = one.running - 1, other.running + 1
        for id in ids:
            one.ids.remove(id)
            other.ids.append(id)
            self._ids[id] = other
        one.calls, other.calls = one.calls - len(ids), other.calls + len(ids)
        other.touched = max(one.touched, other.touched)
        for mark in moved:
            for place in mark.places:
                pairs = self._ends[place]
                pairs[pairs.index((one, row))] = (other, twin)
            if self._texts.get(mark.text) is one:
                self._texts[mark.text] = other

    def _finish(self, one: Conversation, value: float | None, now: float) -> None:
        """Close a conversation to calls, and grade it or let it wait for its group."""
        self._close(one, "has its reward")
        one.reward = value
        if self._limits.graded:
            self.to_grade.append(one)
        else:
            self._gather(one, now)

    def graded(self, one: Conversation, value: float | None, now: float) -> None:
        """Add the reward of a function; None: it gave none."""
        if value is None or not math.isfinite(total := value + (one.reward or 0.0)):
            self.ledger.add("ungraded", one.answers)
            return
        one.reward = total
        self._gather(one, now)

    def _gather(self, one: Conversation, now: float) -> None:
        waiting = self._waiting.setdefault(one.group, deque())
        waiting.append((now, one))
        if len(waiting) == self._limits.group:
            self.groups.append([each for _, each in waiting])
            del self._waiting[one.group]

    def sweep(self, now: float) -> None:
        """Drop conversations without a reward, and form groups of those that waited too long."""
        late = [
            one
            for one in self._open.values()
            if not one.running and now - one.touched > self._limits.reward_s
        ]
        for one in late:
            if self._limits.graded and one.rows:
                self._finish(one, None, now)
            else:
                self.ledger.add("unrewarded", one.answers)
                self._close(one, f"had no reward within {self._limits.reward_s:g} s")
        for key in [
            key
            for key, waiting in self._waiting.items()
            if now - waiting[0][0] > self._limits.group_s
        ]:
            waiting = [one for _, one in self._waiting.pop(key)]
            if len(waiting) > 1:
                self.groups.append(waiting)
            else:
                self.ledger.add("alone", waiting[0].answers)

    def _close(self, one: Conversation, why: str) -> None:
        one.ended = True
        del self._open[one.name]
        marks = [mark for row in one.rows for mark in row.marks]
        for place in (place for mark in marks for place in mark.places):
            left = [pair for pair in self._ends.pop(place, ()) if pair[0] is not one]
            if left:
                self._ends[place] = left
            self._lengths[place[0]] -= 1
            if not self._lengths[place[0]]:
                del self._lengths[place[0]]
        for key in (mark.text for mark in marks):
            if self._texts.get(key) is one:
                del self._texts[key]
        for name in (one.name, *one.ids):
            self._ids.pop(name, None)
            self._closed[name] = why
        while len(self._closed) > MOST_CLOSED:
            self._closed.popitem(last=False)


REASON_LEFT = "lost its only call before the answer"


def hashed(tokens: Sequence[int], start: int = 0) -> int:
    """Return the hash of tokens that follow a text with the hash ``start``."""
    for token in tokens:
        start = (start * _BASE + token + 1) % _PRIME
    return start


def prefixes(tokens: Sequence[int]) -> list[int]:
    """Return the hashes of all beginnings of a text, the empty one first."""
    found = [0]
    for token in tokens:
        found.append((found[-1] * _BASE + token + 1) % _PRIME)
    return found

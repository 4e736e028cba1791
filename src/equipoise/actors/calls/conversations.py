"""Conversations of calls: which call continues which one, as tokens; their rewards; their groups.

A call whose prompt begins with all tokens of a sample, its own drawn ones included, continues the
sample: the tokens between are given, not chosen. Every other call of the conversation begins a new
sample, all of whose prompt is given. So each drawn token is in exactly one sample, and is learned
from at most once. The samples of a conversation share its reward.

Without a name from the caller a call belongs to the conversation whose tokens it continues, or else
whose messages it continues, since a chat template may write earlier turns in other tokens. If only
the tokens are others, the drawn ones take their place (``splicing``), and the sample goes on.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from equipoise.actors.calls.ledger import Ledger
from equipoise.actors.calls.records import (
    Answer,
    Asked,
    Conversation,
    Limits,
    Mark,
    Names,
    NotPossible,
    Row,
    Seen,
    Turn,
    hashed,
    prefixes,
)
from equipoise.actors.calls.splicing import Splicer
from equipoise.types.packed import Stop

LARGEST = 3.4e38  # reward, in the range of the learner's float32
MOST_CLOSED = 100_000  # names of conversations that are over, which are known for a while


class Conversations:
    """All open conversations. Times are given by the caller, in seconds of one clock."""

    def __init__(self, limits: Limits, ledger: Ledger, splicer: Splicer | None = None) -> None:
        self._limits, self.ledger, self._splicer = limits, ledger, splicer
        self._open: dict[str, Conversation] = {}  # by name, while calls or a reward may come
        # by length and hash of the tokens up to each answer
        self._ends: dict[tuple[int, int], list[Mark]] = {}
        self._lengths: Counter[int] = Counter()
        self._texts: dict[str, list[Mark]] = {}  # by key of the messages up to each answer
        self._ids: dict[str, Conversation] = {}  # of calls
        self._closed: OrderedDict[str, _Closed] = OrderedDict()  # by name or id of an answer
        self.to_grade: deque[Conversation] = deque()  # ended, for a function
        self._grading = 0  # ended, without the function's reward
        # rewarded, by group, with the time of the reward; the group that waits longest is first
        self._waiting: dict[tuple[str, object], deque[tuple[float, Conversation]]] = {}
        self._rewarded = 0  # conversations in ``_waiting``
        self.groups: deque[list[Conversation]] = deque()  # complete

    def __len__(self) -> int:
        return len(self._open)

    # ------------------------------------------------------------------------------------ the calls

    def begin(
        self,
        prompt: Sequence[int],
        names: Names,
        samples: int,
        now: float,
        hashes: Sequence[int] = (),
    ) -> list[Turn]:
        """Return the turns of a call, one for each of its ``samples``. ``hashes``: ``prefixes`` of
        the prompt, if they are known. All have one prompt, with drawn tokens where they fit.

        ``NotPossible`` if its conversation, or all together, have too many calls.
        """
        turns = list[Turn]()
        hashes = hashes or prefixes(prompt)
        asked = Asked.of(prompt, hashes)
        spliced = self._spliced(prompt, hashes, names)
        if spliced is not None:
            prompt, hashes = spliced, prefixes(spliced)
        for number in range(samples):
            place = self._place(prompt, hashes, names)
            if isinstance(place, Mark):
                conversation: Conversation | None = place.row.conversation
            else:
                conversation = place
            if conversation is None:
                conversation = self._new(prompt, names, number if samples > 1 else None, now, turns)
            elif conversation.calls >= self._limits.calls:
                self._undo(turns)
                raise NotPossible(
                    429,
                    f"conversation {conversation.name}: must have at most {self._limits.calls:,} "
                    "calls (source.turns), got one more; end it with POST /v1/reward",
                )
            mark = place if isinstance(place, Mark) else None
            row = None if mark is None or not _leaf(mark, prompt) else mark.row
            key = names.id if samples == 1 else f"{names.id}:{number}"
            turn = Turn(conversation, prompt, row, mark, key, asked)
            if row is not None:
                row.turn = turn
            elif conversation.calls:
                self.ledger.add("forks")
            if mark is not None:
                mark.claims += 1
            conversation.touched = now
            conversation.calls += 1
            conversation.turns.append(turn)
            conversation.ids.append(key)
            self._ids[key] = conversation
            turns.append(turn)
        self.ledger.add("calls", samples)
        if spliced is not None:
            self.ledger.add("spliced", samples)
        return turns

    def _spliced(
        self, prompt: Sequence[int], hashes: Sequence[int], names: Names
    ) -> Sequence[int] | None:
        """Return a prompt with the drawn tokens of the answer that it follows; None if it has them,
        or another text.
        """
        if self._splicer is None or not names.history:
            return None
        mark = self._place(prompt, hashes, names)
        if not isinstance(mark, Mark) or mark.text not in names.history:
            return None
        if mark.row.token[: mark.end] == array("q", prompt[: mark.end]):
            return None
        return self._splicer.splice(mark, prompt, hashes)

    def knows(self, prompt: Sequence[int], hashes: Sequence[int], names: Names) -> bool:
        """Return whether a call belongs to an open conversation. ``hashes``: ``prefixes``."""
        return self._place(prompt, hashes, names) is not None

    def _undo(self, turns: Sequence[Turn]) -> None:
        """Take back turns of a call that is refused."""
        for turn in turns:
            self._end(turn)
            turn.conversation.calls -= 1
            turn.conversation.ids.remove(turn.id)
            del self._ids[turn.id]
            if not turn.conversation.calls:
                self._close(turn.conversation, "was refused")

    def _place(
        self, prompt: Sequence[int], hashes: Sequence[int], names: Names
    ) -> Mark | Conversation | None:
        """Return the answer that a call follows, or its conversation alone, or None for a new one.

        The first that there is, where the latest answer is that of the call's newest messages:

        1. a sample that ends with the latest answer, which the call continues by its tokens
        2. the latest answer by its messages, if nothing followed it
        3. a sample that the call continues by its tokens, the longest
        4. an answer by its messages that nothing followed, and then any answer
        """
        known = self._open.get(names.conversation) if names.conversation else None
        if known is None and (names.conversation or names.fresh):
            return None
        latest, tokens = next(iter(names.history), ""), array("q", prompt)
        leaves, followed = list[Mark](), list[Mark]()
        for length in sorted(self._lengths, reverse=True):
            if length > len(prompt):
                continue
            for mark in self._ends.get((length, hashes[length]), ()):
                if self._fits(mark, names, known) and mark.row.token[:length] == tokens[:length]:
                    (leaves if _leaf(mark, prompt) else followed).append(mark)
        texts = [
            mark
            for key in names.history
            for mark in self._texts.get(key, ())
            if self._fits(mark, names, known)
        ]
        free = [mark for mark in texts if not mark.claims]
        wanted = (
            *(
                mark
                for mark in leaves
                if not mark.claims and (not latest or mark.text in ("", latest))
            ),
            *(mark for mark in free if mark.text == latest),
            *leaves,
            *free,
            *followed,
            *texts,
        )
        return next(iter(wanted), known)

    def _fits(self, mark: Mark, names: Names, known: Conversation | None) -> bool:
        """Return whether a call with these names may follow an answer."""
        one = mark.row.conversation
        if known is not None:
            return one is known
        return not one.named and (not names.group or one.group == ("name", names.group))

    def _new(
        self,
        prompt: Sequence[int],
        names: Names,
        number: int | None,
        now: float,
        turns: Sequence[Turn],
    ) -> Conversation:
        if len(self._open) + self._grading >= self._limits.most:
            self._undo(turns)
            raise NotPossible(
                429,
                f"conversations: must be at most {self._limits.most:,} that are open or being "
                "graded (source.conversations), got one more; end some with POST /v1/reward, or "
                "try again",
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
        self._end(turn, whole=True)
        if row is None:
            row = Row(conversation, turn.parent)
            conversation.rows.append(row)
        row.extend(turn.prompt[len(row.token) :], answer)
        end, before = len(row.token), row.token[: len(row.token) - 1]
        places = [(end, row.hash)]
        if (
            answer.stop == Stop.EOS and len(answer.token) > 1
        ):  # a text that goes on without its end is another sample
            places.append((end - 1, hashed(before)))
        mark = Mark(turn.id, row, end, places, key, messages, answer.stop, turn.asked)
        row.marks.append(mark)
        if conversation.ended:  # it was dropped meanwhile; its answers are counted
            return
        for place in places:
            self._ends.setdefault(place, []).append(mark)
            self._lengths[place[0]] += 1
        if key:
            self._texts.setdefault(key, []).append(mark)

    def drop(self, turn: Turn, reason: str) -> None:
        """Drop an answer that is not whole; its sample stays as it was."""
        if turn.over:
            return
        self._end(turn)
        self.ledger.add(reason)
        conversation = turn.conversation
        if not conversation.turns and not conversation.rows and not conversation.ended:
            self._close(conversation, "lost its only call before the answer")

    def _end(self, turn: Turn, *, whole: bool = False) -> None:
        turn.over = True
        turn.conversation.turns.remove(turn)
        if turn.row is not None:
            turn.row.turn = None
        if turn.parent is not None and not whole:
            turn.parent.claims -= 1

    # ---------------------------------------------------------------------------------- the rewards

    def reward(self, name: str, value: float | None, now: float) -> Conversation:
        """Give a conversation its reward, by its name or the id of a call in it.

        ``value`` None: it has ended, and a function grades it. ``NotPossible``: 404 for an unknown
        name, 409 if it has a reward or an answer is being drawn, 400 for a number that is none.
        """
        found = self._open.get(name) or self._ids.get(name)
        if found is None and (over := self._closed.get(name)) is not None:
            twin = None if over.seen is None else self._twin(over.seen, None)
            if twin is None:
                raise NotPossible(
                    409, f"id: must name an open conversation, got one that {over.why}"
                )
            found, over.seen = twin.row.conversation, None
        elif found is None:
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
        if found.turns:
            raise NotPossible(
                409,
                f"id: must name a conversation whose answers are whole, got {found.name}, which "
                f"has {len(found.turns)} that are being drawn; wait for them",
            )
        if not found.rows:
            raise NotPossible(409, f"id: must name a conversation with answers, got {found.name}")
        self._finish(found, value, now)
        return found

    def _part(self, one: Conversation, id: str) -> None:
        """Give what followed the answer ``id`` to another conversation that is equal so far.

        A call may follow either of two equal conversations without names. If one ends at an answer
        that calls followed, and the other's was not followed, the calls were the other's.
        """
        marks = (mark for row in one.rows for mark in row.marks)
        mark = next((mark for mark in marks if mark.id == id), None)
        if one.named or mark is None or not mark.claims:
            return
        if (twin := self._twin(mark.seen, one)) is not None:
            self._move(one, mark, twin.row.conversation, twin)

    def _twin(self, seen: Seen, one: Conversation | None) -> Mark | None:
        """Return an answer that nothing followed and that was seen alike, in another conversation
        than ``one`` without a name.
        """
        text, place, group = seen
        for twin in self._texts.get(text) or self._ends.get(place) or ():
            other = twin.row.conversation
            alike = other is not one and not other.named and other.group == group
            if alike and not twin.claims:
                return twin
        return None

    def _move(self, one: Conversation, mark: Mark, other: Conversation, twin: Mark) -> None:
        """Move what followed ``mark`` behind ``twin``."""
        row, first = mark.row, mark.row.marks.index(mark) + 1
        moved, turns = list[Mark](), list[Turn]()
        if row.marks[first:] or row.turn is not None:
            target = twin.row
            if not (
                target.marks[-1] is twin
                and target.turn is None
                and len(target.token) == twin.end
                and target.token == row.token[: mark.end]
            ):  # the same messages in other tokens: the tokens so far are given
                target = Row(other, twin)
                target.give(row.token[: mark.end])
                other.rows.append(target)
            moved += _cut(row, first, target)
            if (turn := row.turn) is not None:
                row.turn, target.turn, turn.row = None, turn, target
                turns.append(turn)
        parents = {mark, *moved}
        for each in [each for each in one.rows if each is not row]:
            if each.parent in parents:
                one.rows.remove(each)
                other.rows.append(each)
                each.conversation = other
                each.parent = twin if each.parent is mark else each.parent
                parents |= {*each.marks}
                moved += each.marks
        turns += [turn for turn in one.turns if turn.parent in parents and turn not in turns]
        for turn in turns:
            turn.parent = twin if turn.parent is mark else turn.parent
            turn.conversation = other
            one.turns.remove(turn)
            other.turns.append(turn)
        for id in (*(each.id for each in moved), *(turn.id for turn in turns)):
            one.ids.remove(id)
            other.ids.append(id)
            self._ids[id] = other
        one.calls, other.calls = (
            one.calls - len(moved) - len(turns),
            other.calls + len(moved) + len(turns),
        )
        twin.claims, mark.claims = mark.claims, 0
        other.touched = max(one.touched, other.touched)

    def _finish(self, one: Conversation, value: float | None, now: float) -> None:
        """Close a conversation to calls, and grade it or let it wait for its group."""
        self._close(one, "has its reward")
        one.reward = value
        if self._limits.graded:
            self._grading += 1
            self.to_grade.append(one)
        else:
            self._gather(one, now)

    def graded(self, one: Conversation, value: float | None, now: float) -> None:
        """Add the reward of a function; None: it gave none."""
        self._grading -= 1
        if value is None or not math.isfinite(total := value + (one.reward or 0.0)):
            self.ledger.add("ungraded", one.answers)
            return
        one.reward = total
        self._gather(one, now)

    def _gather(self, one: Conversation, now: float) -> None:
        waiting = self._waiting.setdefault(one.group, deque())
        waiting.append((now, one))
        self._rewarded += 1
        if len(waiting) == self._limits.group:
            self._release(one.group)
        elif self._rewarded > max(self._limits.most, self._limits.group):
            # so that prompts which never come again fill no memory
            self._release(next(iter(self._waiting)))

    def _release(self, group: tuple[str, object]) -> None:
        """Form a group of the conversations that wait. A single conversation is dropped."""
        waiting = [one for _, one in self._waiting.pop(group)]
        self._rewarded -= len(waiting)
        if len(waiting) > 1 or self._limits.group == 1:
            self.groups.append(waiting)
        else:
            self.ledger.add("alone", waiting[0].answers)

    def sweep(self, now: float) -> None:
        """Drop conversations without a reward, and form groups of the ones that waited long."""
        late = [
            one
            for one in self._open.values()
            if not one.turns and now - one.touched > self._limits.reward_s
        ]
        for one in late:
            if self._limits.graded and one.rows:
                self._finish(one, None, now)
            else:
                self.ledger.add("unrewarded", one.answers)
                self._close(one, f"had no reward within {self._limits.reward_s:g} s")
        for group, waiting in list(self._waiting.items()):
            if now - waiting[0][0] > self._limits.group_s:
                self._release(group)

    def _close(self, one: Conversation, why: str) -> None:
        one.ended = True
        del self._open[one.name]
        for mark in (mark for row in one.rows for mark in row.marks):
            for place in mark.places:
                _remove(self._ends, place, mark)
                self._lengths[place[0]] -= 1
                if not self._lengths[place[0]]:
                    del self._lengths[place[0]]
            if mark.text:
                _remove(self._texts, mark.text, mark)
        # an answer that calls followed may be the last one of an equal conversation
        marks = [] if one.named else [mark for row in one.rows for mark in row.marks]
        last = {mark.id: mark.seen for mark in marks if mark.claims}
        for name in (one.name, *one.ids):
            self._ids.pop(name, None)
            self._closed[name] = _Closed(why, last.get(name))
        while len(self._closed) > MOST_CLOSED:
            self._closed.popitem(last=False)


@dataclass(slots=True)
class _Closed:
    """A name that is over: why, and the answer if it may be the last one of another agent."""

    why: str
    seen: Seen | None


def _leaf(mark: Mark, prompt: Sequence[int]) -> bool:
    """Return whether a call with this prompt, which begins with the tokens up to an answer,
    continues the answer's sample.
    """
    row, length = mark.row, mark.end
    return (
        row.turn is None
        and len(row.token) == length <= len(prompt)
        and row.token == array("q", prompt[:length])
    )


def _cut(row: Row, first: int, target: Row) -> list[Mark]:
    """Move the answers of a sample from number ``first`` on, with the tokens between them, to the
    end of another one of the same length; return their marks.
    """
    length, moved = row.marks[first - 1].end, row.marks[first:]
    for mine, its in ((row.token, target.token), (row.version, target.version)):
        its.extend(mine[length:])
        del mine[length:]
    target.logp.extend(row.logp[length:])
    del row.logp[length:]
    target.spans += row.spans[first:]
    target.marks += moved
    for mark in moved:
        mark.row = target
    del row.spans[first:], row.marks[first:]
    row.hash, target.hash = hashed(row.token), hashed(target.token)
    return moved


T = TypeVar("T", bound=Hashable)


def _remove(index: dict[T, list[Mark]], key: T, mark: Mark) -> None:
    """Remove a mark from an index of lists."""
    index[key].remove(mark)
    if not index[key]:
        del index[key]

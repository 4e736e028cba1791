"""Agents without names, many of them equal: each reward goes to a conversation with the agent's own
answers, whatever the order of calls and ends.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from equipoise import tree
from equipoise.actors.calls.conversations import Conversations
from equipoise.actors.calls.ledger import Ledger
from equipoise.actors.calls.records import Answer, Limits, Names, NotPossible, Turn
from equipoise.types import Stop

END, USER, MODEL, HIDDEN = 0, 2, 3, 8  # tokens; the last one has no text
Message = tuple[int, tuple[int, ...]]


def rendered(messages: Sequence[Message]) -> list[int]:
    """Tokens of messages, as a chat template writes them."""
    return [one for role, text in messages for one in (role, *text, END)] + [MODEL]


class Agent:
    """An agent of one to three calls, whose answers have one or two tokens."""

    def __init__(self, draw: random.Random, number: int) -> None:
        self.messages: list[Message] = [(USER, (9,))]
        self.group, self.left, self.number = draw.choice("ab"), draw.randint(1, 3), number
        self.answers, self.calls = list[tuple[int, ...]](), 0
        self.turn: Turn | None = None

    @property
    def id(self) -> str:
        return f"{self.number}.{self.calls}"

    def call(self, book: Conversations) -> None:
        self.left, self.calls = self.left - 1, self.calls + 1
        history = [
            repr(self.messages[: n + 1])
            for n, (role, _) in enumerate(self.messages)
            if role == MODEL
        ]
        names = Names(id=self.id, group=self.group, history=history[::-1], fresh=not history)
        (self.turn,) = book.begin(rendered(self.messages), names, 1, 0.0)

    def answered(self, book: Conversations, draw: random.Random) -> None:
        tokens = [draw.choice((5, 6, HIDDEN)) for _ in range(draw.randint(0, 2))]
        ends = len(tokens) < 2
        tokens += [END] * ends
        stop = Stop.EOS if ends else Stop.LENGTH
        text = tuple(one for one in tokens if one in (5, 6))
        self.messages.append((MODEL, text))
        answer = Answer(tokens, [0.0] * len(tokens), [0] * len(tokens), stop)
        assert self.turn is not None
        book.record(self.turn, answer, [], repr(self.messages))
        self.answers.append(text)
        self.messages.append((USER, (7,)))
        self.turn = None


@pytest.mark.parametrize("seed", range(10))
def test_each_agent_gets_its_own_reward(seed: int) -> None:
    draw, ledger = random.Random(seed), Ledger(tree.zeros(Ledger.specs))
    limits = Limits(group=1, most=1000, calls=64, reward_s=1e9, group_s=1e9)
    book, agents, begun = Conversations(limits, ledger), list[Agent](), 0
    while begun < 200 or agents:
        while len(agents) < 8 and begun < 200:
            begun += 1
            agents.append(Agent(draw, begun))
        one = draw.choice(agents)
        if one.turn is not None:
            one.answered(book, draw)
        elif one.left:
            one.call(book)
        else:
            found = book.reward(one.id, 1.0, 0.0)
            assert found.group == ("name", one.group)
            marks = [mark for row in found.rows for mark in row.marks]
            assert sorted(mark.text for mark in marks) == sorted(
                repr(one.messages[: 2 * n + 2]) for n in range(len(one.answers))
            )
            for row in found.rows:  # each answer stands behind the tokens that it was drawn after
                for (begin, _), mark in zip(row.spans, row.marks, strict=True):
                    messages = one.messages[: [*map(repr, _begun(one))].index(mark.text) * 2 + 1]
                    assert row.token[:begin].tolist() == rendered(messages)
            with pytest.raises(NotPossible, match="has its reward"):
                book.reward(one.id, 1.0, 0.0)
            agents.remove(one)
    counts = ledger.counts()
    assert counts["calls"] == sum(len(row.spans) for group in book.groups for row in group[0].rows)
    assert not len(book)


def _begun(one: Agent) -> list[list[Message]]:
    return [one.messages[: 2 * n + 2] for n in range(len(one.answers))]

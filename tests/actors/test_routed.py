"""All policies of an actor write into one place: it is theirs with the first and the learner's with
the last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.actors.routed import PolicySlot, RoutedAgent, SharedBlock
from equipoise.types import Tick


class Ledger:
    def __init__(self, places: int) -> None:
        self.places = places
        self.said: list[str] = []

    def reserve(self, streams: Any) -> Any:
        self.said.append("reserve")
        if self.places == 0:
            return None
        self.places -= 1
        return {"a": "slot of a", "b": "slot of b"}

    def commit(self, slots: Any) -> None:
        assert set(slots) == {"a", "b"}
        self.said.append("commit")

    def restart(self, slots: Any) -> None:
        assert set(slots) == {"a", "b"}
        self.said.append("restart")


def test_reserved_with_the_first_committed_with_the_last() -> None:
    ledger = Ledger(1)
    block = SharedBlock(ledger, 2)
    a, b = PolicySlot(block, "a"), PolicySlot(block, "b")
    slots: Any = {name: one.reserve(np.arange(2)) for name, one in (("a", a), ("b", b))}
    assert ledger.said == ["reserve"] and slots == {"a": "slot of a", "b": "slot of b"}
    a.commit(slots["a"])
    assert ledger.said == ["reserve"]
    b.commit(slots["b"])
    assert ledger.said == ["reserve", "commit"]
    assert a.reserve(np.arange(2)) is None and b.reserve(np.arange(2)) is None
    ledger.places = 1
    assert (
        b.reserve(np.arange(2)) is not None
        and a.reserve(np.arange(2)) is not None
        and ledger.places == 0
    )


def test_it_is_restarted_once_for_all_and_stays_theirs() -> None:
    ledger = Ledger(1)
    block = SharedBlock(ledger, 2)
    a, b = PolicySlot(block, "a"), PolicySlot(block, "b")
    slots: Any = {name: one.reserve(np.arange(2)) for name, one in (("a", a), ("b", b))}
    for _ in range(2):
        a.restart(slots["a"])
        assert ledger.said == ["reserve"]
        b.restart(slots["b"])
        assert ledger.said.pop() == "restart" and ledger.said == ["reserve"]
    assert a.reserve(np.arange(2)) == slots["a"] and ledger.said == ["reserve"]
    a.commit(slots["a"])
    b.commit(slots["b"])
    assert ledger.said == ["reserve", "commit"]


class Chooser:
    """Acts where it may."""

    def __init__(self, streams: Any, blocked: bool = False) -> None:
        self.streams, self.blocked, self.asked = streams, blocked, 0

    def action(self) -> Any:
        self.asked += 1
        return Tick.BLOCKED if self.blocked else self.streams


def test_where_the_first_waits_nobody_has_acted() -> None:
    first, second = Chooser("a", blocked=True), Chooser("b")
    agent = RoutedAgent({"one": first, "two": second})  # type: ignore[dict-item]
    assert agent.action() is Tick.BLOCKED and second.asked == 0
    first.blocked = False
    assert agent.action() == {"one": "a", "two": "b"}

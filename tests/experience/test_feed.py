"""One limiter for several policies: a round is learned from by all of them, or does not count."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.experience.replay.feed import Branch, ReplayFeed


class Box:
    """A queue with one place: the next round is there once the last was finished."""

    def __init__(self) -> None:
        self.taken, self.finished = 0, 0

    def take(self) -> Any:
        if self.taken > self.finished:
            return None
        self.taken += 1
        return np.array([[0, self.taken]])

    def finish(self, keys: Any) -> None:
        assert keys[0, 1] == self.taken == self.finished + 1, (
            "a round is finished once, and before the next"
        )
        self.finished += 1


class Part(Branch):
    """A policy that has items after round ``begins``; ``lose`` takes all of them."""

    def __init__(self, rounds: ReplayFeed, policy: str, begins: int = 1) -> None:
        super().__init__(rounds, policy)
        self.begins, self.brought, self.lost, self.held = begins, 0, False, False

    def bring(self, keys: Any) -> None:
        self.brought, self.lost = int(keys[0, 1]), False

    def settled(self) -> bool:
        return not self.held

    def emptied(self) -> bool:
        return self.lost

    def items(self) -> int:
        return int(self.brought >= self.begins)

    def _ask(self, n: int) -> None: ...

    def _answer(self) -> Any:
        class Drawn:
            keys = np.zeros((1, 2))

        return Drawn()

    def learned(self, keys: Any, priority: Any) -> None: ...

    def save(self, to: Any) -> None: ...

    def restore(self, source: Any, learners: int) -> None: ...

    def close(self) -> None: ...


def made(*begins: int, updates: int = 2) -> tuple[Box, ReplayFeed, list[Part]]:
    box: Any = Box()
    rounds = ReplayFeed(box, updates=updates)
    return box, rounds, [Part(rounds, str(i), begin) for i, begin in enumerate(begins)]


def update(parts: list[Part]) -> bool:
    """All policies learn; False where one has to wait."""
    batches = [part.sample(1) for part in parts]
    if any(batch is None for batch in batches):
        return False
    for part in parts:
        part.finish(np.zeros((1, 2)))
    return True


def test_a_round_is_finished_after_the_last_update_of_all() -> None:
    box, rounds, parts = made(1, 1)
    assert update(parts) and (box.taken, box.finished, rounds.owed) == (1, 0, 1)
    assert parts[0].sample(1) is not None and parts[1].sample(1) is not None
    parts[0].finish(np.zeros((1, 2)))
    assert (box.finished, rounds.owed) == (0, 1), "the other policy still learns from it"
    parts[1].finish(np.zeros((1, 2)))
    assert (box.finished, rounds.owed, rounds.taken) == (1, 0, 1)


def test_rounds_that_one_policy_cannot_learn_from_are_released_for_all() -> None:
    """With one place in the queue the policy that can learn would keep the other from ever having
    rows.
    """
    box, rounds, parts = made(1, 4)
    for number in range(1, 11):
        assert update(parts), "it waits for ever"
        assert rounds.taken == (number + 1) // 2
    assert box.taken == 3 + 5


def test_where_one_policy_lost_its_rows_the_round_is_paid_from_the_next() -> None:
    box, rounds, parts = made(1, 1, updates=3)
    assert update(parts)
    parts[1].lost = True
    assert update(parts) and (box.taken, rounds.taken, rounds.owed) == (2, 1, 1), (
        "the next round does not count"
    )
    assert update(parts) and (box.finished, rounds.owed) == (2, 0)
    assert update(parts) and (box.taken, rounds.taken) == (3, 2)


def test_nobody_learns_before_every_store_has_taken_the_round() -> None:
    _, rounds, parts = made(1, 1)
    parts[1].held = True
    assert not update(parts) and rounds.taken == 0
    parts[1].held = False
    assert update(parts)

"""Partners with a method ``end``, and partners of which there are few."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from equipoise.actors.engine.conversing import Bounds
from equipoise.types import Stop
from tests.actors.decoders import small_decoder
from tests.actors.test_conversing import LENGTH, TOKENS, WAIT_S, engine_of, told


class Held:
    """Counts the partners that are at work, and how they ended."""

    lock = threading.Lock()
    open = most = 0
    ends: ClassVar[list[int]] = []

    def reset(self, row: Mapping[str, object]) -> str:
        with Held.lock:
            Held.open += 1
            Held.most = max(Held.most, Held.open)
        self.turns = 0
        return "ab"

    def step(self, text: str) -> tuple[str | None, float]:
        self.turns += 1
        return (None if self.turns == 3 else "<"), 0.25

    def end(self) -> float | None:
        with Held.lock:
            Held.open -= 1
        Held.ends.append(self.turns)
        return 10.0


class Breaks(Held):
    def step(self, text: str) -> tuple[str | None, float]:
        raise LookupError("no step")


class Refuses(Held):
    def end(self) -> Any:
        super().end()
        raise LookupError("no end")


class Later(Held):
    async def end(self) -> Any:  # type: ignore[override]
        return super().end()


@pytest.fixture(autouse=True)
def _none_held() -> None:
    Held.open = Held.most = 0
    Held.ends.clear()


def talked(make: Any, **settings: Any) -> Any:
    found = told(engine_of(small_decoder(words=TOKENS.size, length=LENGTH), make, **settings))
    ends = time.monotonic() + WAIT_S
    while len(Held.ends) < 8:
        assert time.monotonic() < ends
        time.sleep(0.005)
    assert Held.open == 0 and len(Held.ends) == 8
    return [one for _, one in sorted(found.items())]


def test_a_partner_ends_once_and_its_last_reward_counts_after_a_cut() -> None:
    for one in talked(Held):
        assert one.stop == Stop.EOS and one.conversation.reward == 0.75


@pytest.mark.parametrize("make", [Held, Later])
def test_after_a_cut_its_last_reward_counts(make: Any) -> None:
    bounds = Bounds(turns=2, turn_tokens=8, answer_bytes=100, step_s=WAIT_S)
    for one in talked(make, bounds=bounds):
        assert one.stop == Stop.LENGTH and one.conversation.reward == 10.5
        assert one.conversation.turns == 2


def test_a_partner_that_fails_also_ends() -> None:
    for one in talked(Breaks):
        assert one.stop == Stop.FAILED and "no step" in one.conversation.failure


def test_an_end_that_fails_costs_a_conversation_that_was_cut_alone() -> None:
    assert all(one.stop == Stop.EOS for one in talked(Refuses))
    Held.ends.clear()
    bounds = Bounds(turns=2, turn_tokens=8, answer_bytes=100, step_s=WAIT_S)
    for one in talked(Refuses, bounds=bounds):
        assert one.stop == Stop.FAILED and "no end" in one.conversation.failure


@pytest.mark.parametrize("lockstep", [False, True])
def test_conversations_wait_for_a_partner_if_there_are_few(lockstep: bool) -> None:
    found = talked(Held, seats=2, lockstep=lockstep)
    assert Held.most <= 4  # two may end while the next two begin
    free = talked_again(lockstep)
    for one, other in zip(found, free, strict=True):
        assert one.token.tolist() == other.token.tolist()


def talked_again(lockstep: bool) -> Any:
    Held.ends.clear()
    return talked(Held, lockstep=lockstep)

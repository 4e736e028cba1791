"""Whose turn it is, and what an env worker says first: after its start, a resume, and the death of
who acts for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equipoise import tree
from equipoise.actors.inference.exchange import EPOCH, EnvSide, Exchange, PolicySizes
from equipoise.actors.inference.stepper import PARTS, EnvWorker
from equipoise.clock import Clock
from equipoise.tree import ArraySpec
from equipoise.types import Tick, TimeStep
from tests.saved import Kept

STREAMS = {"main": np.arange(2), "other": np.arange(2, 3)}
SIZES: dict[str, Any] = {
    "groups": 1,
    "policies": {
        name: PolicySizes(
            obs=ArraySpec((1,), "float32"), action=ArraySpec((), "int64"), width=len(streams)
        )
        for name, streams in STREAMS.items()
    },
}


class Memory:
    def __init__(self, size: int) -> None:
        self.buffer = np.zeros(size, np.uint8).data


class Counting:
    """Streams of two policies, which say how many answers there were since the last reset; if slow,
    every other is None.
    """

    def __init__(self, slow: bool = False) -> None:
        self.count, self.said, self.loaded, self._slow, self._asked = 0, True, list[Any](), slow, 0
        self.resumed: dict[str, int] = {}

    def send(self, actions: Any) -> None:
        assert self.said, "an action before the answer to the last"
        self.said = False

    def recv(self) -> dict[str, TimeStep] | None:
        self._asked += 1
        if self._slow and self._asked % 2:
            return None
        self.count, self.said = self.count + 1, True
        return {name: self._rows(streams) for name, streams in STREAMS.items()}

    def _rows(self, streams: Any) -> TimeStep:
        flags, count = np.zeros(len(streams), np.bool_), len(streams)
        return TimeStep(
            obs=np.full((count, 1), self.count, np.float32),
            reward=np.zeros(count, np.float32),
            terminated=flags,
            truncated=flags,
            first=flags,
            valid=flags,
            stream=streams,
        )

    def load(self, state: Any) -> None:
        self.loaded.append(state)
        self.count = state.get("count", 0)

    def state(self) -> Any:
        return {"count": self.count}

    def close(self) -> None: ...


class Pair:
    """An env worker, and words as an inference worker writes them."""

    def __init__(self, slow: bool = False, state: Any = None) -> None:
        self.exchange = Exchange(Memory(tree.nbytes(Exchange.specs(**SIZES))), **SIZES)
        self.words, self.env = self.exchange.words, Counting(slow)
        env: Any = self.env
        self.rings, self.cut = 0, 0
        sides, clock = [EnvSide(self.exchange, 0, STREAMS)], Clock(PARTS)
        self.worker = EnvWorker([env], sides, wake=self._ring, cut=lambda: self.cut, clock=clock)
        if state is not None:
            self.worker.load(Kept({"0": state}))

    def _ring(self) -> None:
        self.rings += 1

    def said(self) -> tuple[int, int]:
        """The epoch and the number of the last answer."""
        return divmod(int(self.words["answered"][0]), 1 << EPOCH)

    def obs(self) -> list[Any]:
        """What each policy is told."""
        return [rows.obs.tolist() for rows in self.exchange.rows(0, STREAMS).values()]

    def act(self) -> None:
        self.words["asked"][0] = self.words["answered"][0]

    def die(self) -> None:
        """Who acts dies, and its successor begins."""
        self.exchange.lost(range(1))
        assert self.worker.tick() is Tick.STARVED, "not before the successor has begun"
        self.words["asked"][0] = self.words["epoch"][0] << EPOCH

    def tick(self) -> None:
        """Until it answered."""
        before = self.rings
        for _ in range(3):
            if self.worker.tick() is Tick.WORKED:
                break
        assert self.rings == before + 1


@pytest.mark.parametrize("slow", [False, True])
def test_it_answers_each_action_once(slow: bool) -> None:
    pair = Pair(slow)
    for n in range(1, 5):
        pair.tick()
        assert pair.said() == (0, n) and pair.words["anew"][0] == 1
        assert pair.obs() == [[[n], [n]], [[n]]]
        assert pair.worker.tick() is Tick.STARVED, "it is the other's turn"
        pair.act()


@pytest.mark.parametrize("slow", [False, True])
def test_after_the_death_of_who_acts_it_begins_new_episodes(slow: bool) -> None:
    pair = Pair(slow)
    pair.tick()
    pair.act()
    pair.tick()
    for epoch in (1, 2):
        pair.die()
        pair.tick()
        assert (
            pair.said() == (epoch, 1)
            and pair.words["anew"][0] == 1
            and pair.env.loaded == [{}] * epoch
        )
        assert pair.obs() == [[[1], [1]], [[1]]]


def test_envs_that_a_resume_brought_back_say_so_and_then_step() -> None:
    pair = Pair(state={"count": 7})
    pair.tick()
    assert pair.said() == (0, 1) and pair.words["anew"][0] == 0 and pair.env.count == 7, (
        "no rows: they were told before"
    )
    pair.act()
    pair.tick()
    assert pair.obs() == [[[8], [8]], [[8]]]
    pair.die()
    pair.tick()
    assert pair.env.loaded == [{"count": 7}, {}] and pair.words["anew"][0] == 1


def test_envs_that_a_resume_brought_back_are_of_no_use_to_a_successor() -> None:
    """Who acted died before it heard of them, and its successor knows nothing of their rows."""
    pair = Pair(state={"count": 7})
    pair.exchange.lost(range(1))
    pair.words["asked"][0] = 1 << EPOCH
    pair.tick()
    assert (
        pair.said() == (1, 1)
        and pair.words["anew"][0] == 1
        and pair.env.loaded == [{"count": 7}, {}]
    )


def test_it_may_be_saved_once_who_acts_holds_still_for_that_cut() -> None:
    pair = Pair()
    pair.tick()
    pair.cut = 3
    assert pair.worker.tick() is Tick.STARVED
    pair.words["held"][0] = 2
    assert pair.worker.tick() is Tick.STARVED, "of another cut"
    pair.words["held"][0] = 3
    assert pair.worker.tick() is pair.worker.ready is Tick.BLOCKED
    pair.worker.save(kept := Kept())
    assert kept.state() == {"0": {"count": 1}}

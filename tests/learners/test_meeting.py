"""The meeting of several learners, word by word: who waits for whom, where gloo finds them, and who
is seen outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from equipoise import tree
from equipoise.learners.addresses import Addresses
from equipoise.learners.learner import Learner
from equipoise.learners.meeting import ADDRESS, Seat, SharedMeeting
from equipoise.learners.parameters.flat import Flat
from equipoise.learners.pool import ALONE, LearnerLost
from equipoise.learners.worker import LearnerWorker, PolicyLearner
from equipoise.types import Array, Batch, Tick
from tests.learners.several import SEED, share, together
from tests.learners.test_learner import Quadratic, batch


def _nothing() -> None: ...


def meetings(
    size: int = 2, firsts: Sequence[int] = (0,) * 4, **options: Any
) -> tuple[Any, list[SharedMeeting], list[int]]:
    """The words, each learner's meeting, and the learners that rang. ``firsts``: the first learner
    of each one's machine.
    """
    words: Any = tree.zeros(SharedMeeting.specs(size))
    rung: list[int] = []
    made = [
        SharedMeeting(
            words,
            Seat(rank=rank, size=size, first=firsts[rank]),
            ring=lambda rank=rank: rung.append(rank),  # type: ignore[misc]
            pulse=_nothing,
            dump=lambda state: b"",
            parse=lambda data: None,
            **options,
        )
        for rank in range(size)
    ]
    return words, made, rung


def closed(version: int) -> bool:
    return True


def opened(version: int) -> bool:
    return False


def unasked(version: int) -> bool:
    raise AssertionError("the gate is the leader's to ask")


def test_no_batch_is_freed_before_the_leader_allows_it() -> None:
    words, (leader, other), rung = meetings()
    assert other.held(3, unasked), "the leader was not there yet"
    assert leader.held(3, closed)
    assert other.held(3, unasked), "a cut holds this version"
    assert not leader.held(3, opened)
    assert rung == [0], "the others are woken"
    assert not other.held(3, unasked)
    assert other.held(4, unasked), "the next version is asked for anew"
    assert not leader.held(3, opened)
    assert rung == [0] and int(words["passed"][0]) == 3


def test_on_another_machine_no_batch_is_freed_before_its_first_learner_has_published() -> None:
    """An actor there would begin with the free place, and with weights that are one version older
    than its token says.
    """
    _, (leader, second, third), rung = meetings(3, firsts=(0, 1, 1))
    assert not leader.held(3, opened)
    assert third.held(3, unasked), "learner 1, which publishes on its machine, was not there yet"
    assert not second.held(3, unasked)
    assert not third.held(3, unasked)
    assert rung == [0, 1], "the one that waited is woken"


def test_a_step_begins_once_all_have_their_batches() -> None:
    words, (leader, other), rung = meetings()
    made: list[str] = []
    assert not leader.step(1, lambda: made.append("leader"))
    assert not leader.step(1, lambda: made.append("leader"))
    assert not made and rung == [0], "once: what carries the word to another machine may sleep"
    assert other.step(1, lambda: made.append("other"))
    assert leader.step(1, lambda: made.append("leader"))
    assert made == ["other", "leader"] and rung == [0, 1]
    assert not other.step(2, lambda: made.append("other")), "the leader has no batch of version 2"
    words["ready"][0] = 0
    assert not other.step(2, lambda: made.append("other")) and made == ["other", "leader"]


def test_a_version_is_made_by_all_or_the_wait_for_it_ends() -> None:
    words, (leader, other), _ = meetings()
    words["done"][1] = 3
    leader.agree(2)
    assert int(words["done"][0]) == 3
    words["life"][0] += 1
    with pytest.raises(LearnerLost):
        leader.agree(3)
    assert leader.broken and other.broken


def test_a_lost_step_is_not_done() -> None:
    _, (leader, other), _ = meetings()

    def lost() -> None:
        raise LearnerLost("another learner is lost")

    assert not other.step(1, lost)
    assert leader.step(1, lost) is False
    assert leader.broken


def test_what_all_have_made_is_the_least_that_anybody_has() -> None:
    """A successor has no say: its word is 0 until it has met the others."""
    words, _, _ = meetings(3)
    words["done"][:] = 6, 0, 5
    words["life"][0] = 1
    words["seen"][:] = 1
    for rank in range(3):
        made = SharedMeeting(
            words,
            Seat(rank=rank, size=3, fresh=rank == 1),
            ring=_nothing,
            pulse=_nothing,
            dump=lambda state: b"",
            parse=lambda data: None,
        )
        assert made.broken
        assert made.rejoin() == 4
        assert not made.broken
    assert words["done"].tolist() == [5, 5, 5]


# ---------------------------------------------------------------------------------------- addresses


class Asked(Exception):
    """Somebody waits for what is not there."""


def store(words: Any) -> Addresses:
    def wait_for(there: Callable[[], bool]) -> None:
        if not there():
            raise Asked

    return Addresses(words, wait_for)


def test_an_address_is_what_its_learner_said() -> None:
    words: Any = tree.zeros(SharedMeeting.specs(3))
    one, other = store(words), store(words)
    with pytest.raises(Asked):
        other.get("0/1")
    one.set("0/1", b"a long address")
    assert other.get("0/1") == b"a long address"
    one.set("0/1", b"short")
    assert other.get("default/7/1") == b"short", "nothing is left of a longer one"
    with pytest.raises(Asked):
        other.wait(["0/1", "0/2"])
    one.set("0/2", bytes(range(256)) * 2)
    other.wait(["0/1", "0/2"])
    assert other.get("0/2") == bytes(range(256)) * 2
    assert other.get("0/1") == b"short"


def test_an_address_that_is_too_long_is_refused() -> None:
    words: Any = tree.zeros(SharedMeeting.specs(2))
    with pytest.raises(ValueError, match=f"at most {ADDRESS} bytes, got {ADDRESS + 1}"):
        store(words).set("0/1", bytes(ADDRESS + 1))
    store(words).set("0/1", b"x" * ADDRESS)
    assert store(words).get("0/1") == b"x" * ADDRESS


def test_an_address_holds_in_one_life() -> None:
    words: Any = tree.zeros(SharedMeeting.specs(2))
    mine = store(words)
    mine.set("0/0", b"before")
    words["life"][0] = 1
    with pytest.raises(Asked):
        mine.get("0/0")
    mine.set("0/0", b"of a learner that has not seen the death")
    with pytest.raises(Asked):
        mine.get("0/0")
    words["seen"][0] = 1
    mine.set("0/0", b"after")
    assert mine.get("0/0") == b"after"


# --------------------------------------------------------------------------------------- the worker


@dataclass
class Noted:
    """A weight store and a queue that keep what is done to them."""

    versions: list[int] = field(default_factory=list)

    def publish(self, version: int, params: Any) -> None:
        self.versions.append(version)

    def state(self) -> Any:
        return {}


class Shares:
    """The experience of one learner: its share of the same batch, with rows of other versions each
    time.
    """

    def __init__(self, rank: int, size: int, of: Callable[[int], Batch]) -> None:
        self._rank, self._size, self._of, self._taken = rank, size, of, 0
        self.finished = 0

    def coming(self) -> None: ...

    def sample(self, n: int) -> Batch:
        self._taken += 1
        return share(self._of(self._taken), self._rank, self._size)

    def learned(self, keys: Array, priority: Any) -> None: ...

    def finish(self, keys: Array) -> None:
        self.finished += 1


class Met:
    """A meeting of workers that are there already: only the pool is the real one."""

    broken = False

    def __init__(self, pool: Any) -> None:
        self.pool = pool

    def begin(self, version: int) -> None: ...

    def step(self, version: int, work: Callable[[], object]) -> bool:
        work()
        return True

    def agree(self, version: int) -> None: ...

    def held(self, version: int, gate: Callable[[int], bool]) -> bool:
        return gate(version)

    def freed(self, version: int) -> None: ...


def rows(update: int) -> Batch:
    """The batch of an update: the streams are of other versions, and the first learner has fewer
    real rows.
    """
    whole = batch()
    whole.data.mask[1:, :3] = False
    whole.data.reward.mul_(update)
    whole.data.version[:] = torch.tensor([update - 1] * 5 + [0])
    return whole


def run(
    rank: int, pool: Any, size: int, updates: int = 4
) -> tuple[list[int], list[int], list[Any]]:
    """One worker to its end -> the versions that it published to actors and to the host, and what
    it recorded.
    """
    algorithm = Quadratic()
    made = Learner(
        algorithm,
        algorithm.network(None),
        optimizer=algorithm.default_optimizer,
        schedule_updates=10,
        seed=SEED,
        batch=6,
        parameters=Flat(pool),
    )
    weights, host, records = Noted(), Noted(), list[Any]()
    experience: Any = Shares(rank, size, rows)
    stores: Any = {"weights": weights, "host": host}
    line = PolicyLearner(
        learner=made, experience=experience, batch=6 // size, publish_every=1, **stores
    )
    meeting: Any = Met(pool)
    queue: Any = weights
    worker = LearnerWorker(
        {"main": line},
        queue=queue,
        updates=updates,
        record_every=2,
        record=records.append,
        meeting=meeting,
        publishes=rank == 0,
    )
    worker.begin()
    while not worker.done:
        assert worker.tick() is Tick.WORKED
    assert experience.finished == updates
    return weights.versions, host.versions, records


def test_one_learner_publishes_and_records_what_all_found() -> None:
    (published, hosted, records), (*silent, none) = together(
        2, lambda rank, pool: run(rank, pool, 2)
    )
    assert published == [0, 1, 2, 3, 4] and hosted == [2, 4]
    assert silent == [[], []], "a store has one writer"
    assert none == []
    whole = run(0, ALONE, 1)[2]
    assert [record["version"] for record in records] == [2, 4]
    assert [record["lag_max"] for record in records] == [1, 3], (
        "the stream of version 0 is the other learner's"
    )
    for record, wanted in zip(records, whole, strict=True):
        assert record["lag_max"] == wanted["lag_max"]
        assert record["lag_mean"] == pytest.approx(wanted["lag_mean"])
        assert record["metrics"] == pytest.approx(wanted["metrics"], rel=1e-5)

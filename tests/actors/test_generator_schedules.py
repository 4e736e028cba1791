"""Random schedules of generators, learner, deaths, hand-overs and resumes: no token is older than
the bound, and no group is lost.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest

from equipoise import tree
from equipoise.actors import generator
from equipoise.actors.engine.engine import Partial, Sampled
from equipoise.actors.episodes import Episodes
from equipoise.actors.generator import PARTS, Generator, Writing
from equipoise.actors.lending import Lending, Seat, Taker
from equipoise.clock import Clock
from equipoise.experience.queue.queue import Plan, Queue
from equipoise.experience.queue.tokens import LocalChannel
from equipoise.sources.text import sample_row
from equipoise.types import HandedBlocks, Slot, Stop, TextSpec, stream_ids
from tests.experience.test_queue import Heap

NOTHING: Any = None  # is taken
GROUP, LIMIT, PROMPTS, STEPS = 2, 5, 7, 300
MOST_DROPPED = 2  # groups in a place
ROW = sample_row(TextSpec(model={}, eos=(0,), prompt=1, completion=LIMIT), dropped=MOST_DROPPED)


class Store:
    """Weights that are nothing but a version."""

    def __init__(self) -> None:
        self.version = 0

    def publish(self, version: int, params: Mapping[str, Any]) -> None:
        self.version = version

    def fetch(self, newer_than: int = -1) -> tuple[int, Mapping[str, Any]] | None:
        return (self.version, {}) if self.version > newer_than else None

    def look(self, newer_than: int = -1) -> Any:
        """At random it is rewritten while it is read."""
        found = self.fetch(newer_than)
        return None if found is None else (*found, lambda: self.version == found[0])


class Lengths:
    """An engine whose samples end at random and which stamps each token; tokens say by which group
    they were drawn.
    """

    def __init__(self, draw: random.Random) -> None:
        self.version, self._draw = -1, draw
        self._rows: dict[tuple[int, int], list[int]] = {}
        self.waiting = self.away = 0

    @property
    def live(self) -> int:
        return len(self._rows)

    def go_on(self, rest: Any) -> None:
        raise AssertionError("no conversation")

    def resume(self, sample: Partial, prompt: Sequence[int], *, limit: int) -> None:
        assert self.version >= 0 and len(sample.token) < limit == LIMIT
        assert (sample.token == sample.group).all(), "a token of another group"
        assert not len(sample.version) or self.version >= sample.version.max()
        self._rows[sample.group, sample.index] = sample.version.tolist()

    def withdraw(self, groups: Collection[int]) -> list[Partial]:
        rows = {key: one for key, one in self._rows.items() if key[0] in groups}
        self._rows = {key: one for key, one in self._rows.items() if key[0] not in groups}
        return [
            Partial(
                group,
                index,
                np.full(len(stamps), group),
                np.zeros(len(stamps), np.float32),
                np.array(stamps, np.int64),
            )
            for (group, index), stamps in rows.items()
        ]

    def submit(self, group: int, prompt: Sequence[int], samples: int, *, limit: int) -> None:
        assert self.version >= 0 and limit == LIMIT
        assert not any(one == group for one, _ in self._rows)
        self._rows |= {(group, index): [] for index in range(samples)}

    def step(self) -> list[Sampled]:
        done = []
        for (group, index), versions in list(self._rows.items()):
            versions.append(self.version)
            if len(versions) == LIMIT or self._draw.random() < 0.3:
                del self._rows[group, index]
                token, stamps = np.full(len(versions), group), np.array(versions)
                done.append(
                    Sampled(
                        group, index, token, np.zeros(len(versions), np.float32), stamps, Stop.EOS
                    )
                )
        return done

    def take(
        self, version: int, params: Mapping[str, Any], whole: Callable[[], bool]
    ) -> Iterator[None]:
        for _ in range(self._draw.randint(0, 4)):
            yield
        if whole():
            assert version > self.version
            self.version = version

    def close(self) -> None: ...


class Late:
    """A grader that answers whenever it likes, now and then with a failure."""

    def __init__(self, draw: random.Random) -> None:
        self._draw, self._waiting = draw, list[int]()

    def submit(self, group: int, number: int, samples: Sequence[Sampled]) -> None:
        assert [one.index for one in samples] == list(range(GROUP)) and {
            one.group for one in samples
        } == {group}
        self._waiting.append(group)

    def poll(self) -> Mapping[int, Sequence[float] | str]:
        found = [one for one in self._waiting if self._draw.random() < 0.5]
        self._waiting = [one for one in self._waiting if one not in found]
        return {one: "it failed" if self._draw.random() < 0.1 else self._rewards() for one in found}

    def terms(self) -> Mapping[int, Mapping[str, Sequence[float | None]]]:
        return {}

    def _rewards(self) -> list[float]:
        return [1.0, 1.0] if self._draw.random() < 0.4 else [0.0, 1.0]

    def fds(self) -> tuple[int, ...]:
        return ()

    def close(self) -> None: ...


class Prompts:
    def __len__(self) -> int:
        return PROMPTS

    def token(self, number: int) -> Sequence[int]:
        return [number]


class AtOnce:
    """A queue in which the generator that a block is handed to often ticks at that very moment."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    def hand_over(self, slots: Mapping[str, Slot], streams: Any) -> None:
        self._ring.driver.hand_over(slots, streams)
        if not self._ring.inside and self._ring.draw.random() < 0.5:
            self._ring.inside = True  # it hands nothing to one that is in the middle of a call
            self._ring.workers[int(streams[0]) // GROUP].tick()
            self._ring.inside = False

    def handed(self, streams: Any, known: Collection[int]) -> list[Mapping[str, Slot]]:
        return self._ring.driver.handed(streams, known)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ring.driver, name)


class Ring:
    """Generators and a learner over one queue; all that happens is drawn."""

    def __init__(self, seed: int, max_lag: int | None) -> None:
        self.draw, self.max_lag, self.store = random.Random(seed), max_lag, Store()
        self.now, self.inside = 0.0, False
        self.generators, self.per_batch = self.draw.randint(1, 3), self.draw.randint(1, 3)
        self.refills, self.at_once = self.draw.randint(0, MOST_DROPPED), self.draw.randint(1, 6)
        self.happened, self.groups, self.tokens = Counter[str](), Counter[int](), 0
        self.plan = Plan(
            rows={"main": ROW},
            unroll=1,
            batch=self.per_batch * GROUP,
            block=GROUP,
            envs=self.generators * GROUP,
            max_lag=max_lag,
        )
        specs = Lending.specs(self.generators)
        self.lending = Lending(tree.views(specs, Heap(tree.nbytes(specs)).buffer))
        self._open()
        self.driver.fill()
        self.workers = [self._generator(index) for index in range(self.generators)]

    def time(self) -> float:
        """Each look at the clock takes a part of what new weights may take of a tick,
        or all of it.
        """
        self.now += self.draw.random() ** 4 * 2 * generator.HELD_S
        return self.now

    def _open(self) -> None:
        self._memory, self._full = Heap(self.plan.nbytes), LocalChannel()
        self._free = [LocalChannel() for _ in range(self.plan.channels)]
        self.driver, self.learner, self.keys = self._queue(), self._queue(), NOTHING

    def _queue(self) -> Queue:
        return Queue(self.plan, self._memory, free=self._free, full=self._full)

    def _generator(self, index: int) -> Generator:
        return Generator(
            Lengths(self.draw),
            Writing(
                prompts=Prompts(),
                grader=Late(self.draw),
                policy="main",
                at_once=self.at_once * GROUP,
                limit=LIMIT,
                number=lambda block: block,
                order=lambda block, refills: (block + 3 * refills) % PROMPTS,
                refills=self.refills,
                # in lockstep each block is dealt to a generator by a fixed rule
                seat=None if self.max_lag == 0 else self._seat(index),
            ),
            blocks=self.driver,
            weights=self.store,
            episodes=Episodes(GROUP, Heap(tree.nbytes(Episodes.layout()))),
            streams=stream_ids(index, GROUP),
            clock=Clock(PARTS),
            note=lambda text: None,
        )

    def _seat(self, index: int) -> Seat:
        """The first generator and the others give samples to each other, as a lent learner does."""
        others = range(1, self.generators) if index == 0 else range(1)
        among = self.generators if index else 2
        takers = [Taker(one, stream_ids(one, GROUP), among) for one in others]
        return self.lending.seat(index, cast("HandedBlocks", AtOnce(self)), takers)

    def hands_over(self) -> None:
        """A generator hands over what it has, or dies while it does that."""
        if self.max_lag == 0:
            return
        index, others = self.draw.randrange(self.generators), list(range(self.generators))
        others.remove(index)
        if not others or not self.workers[index].drawing:
            return
        left = self.draw.choice((0, 1, 2, 100))

        def to() -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise InterruptedError
            return stream_ids(self.draw.choice(others), GROUP)

        try:
            self.happened["handed over"] += self.workers[index].hand_over(to)
            assert not self.workers[index].drawing
        except InterruptedError:
            self.generator_dies(index)

    def pauses(self) -> None:
        """A generator takes no places for a while, or gives nothing."""
        worker = self.workers[self.draw.randrange(self.generators)]
        worker.reserves, worker.gives = self.draw.random() < 0.6, self.draw.random() < 0.8

    def tick(self) -> None:
        worker, before = self.draw.choice(self.workers), self.lending.handed.sum()
        worker.tick()
        self.happened["given"] += int(self.lending.handed.sum() - before)
        self.happened["part"] += worker._taking is not None

    def takes(self) -> None:
        if self.keys is None and (keys := self.learner.take()) is not None:
            self.keys = keys
            self.check(self.learner.batches(keys)["main"].data)

    def check(self, data: Any) -> None:
        """What a learner sees of a batch."""
        behaviour = data.behaviour
        for column, (chosen, there) in enumerate(
            zip(behaviour["chosen"][0], data.mask[0], strict=True)
        ):
            version, group = (
                behaviour["version"][0, column][chosen],
                int(data.context["group"][column]),
            )
            age = self.store.version - int(version.min())
            assert age >= 0 and (self.max_lag is None or age <= self.max_lag), (
                f"a token is {age} versions old"
            )
            assert (data.action["token"][0, column][chosen] == group).all(), (
                "a token of another group"
            )
            block, refills = divmod(group, 1 + self.refills)
            assert int(data.context["refills"][column]) == refills
            number = (block + 3 * refills) % PROMPTS
            assert (
                int(data.context["task"][column])
                == int(data.context["prompt"][column, 0])
                == number
            )
            dropped = [(block + 3 * one) % PROMPTS for one in range(refills)]
            none = MOST_DROPPED - refills
            assert data.context["dropped"][column].tolist() == dropped + [0] * none
            rewards = data.context["dropped_reward"][column]
            assert (rewards[:refills] == 1.0).all() and rewards[refills:].isnan().all()
            self.tokens += int(chosen.sum())
            self.happened["lost"] += not bool(there)
        self.groups.update(int(one) for one in data.context["group"][::GROUP])

    def finishes(self) -> None:
        """An update, with its publication before the places are free."""
        if self.keys is not None:
            self.store.publish(self.store.version + 1, {})
            self.learner.finish(self.keys)
            self.keys = None
            self.happened["update"] += 1

    def generator_dies(self, index: int | None = None) -> None:
        index = self.draw.randrange(self.generators) if index is None else index
        self.driver.cancel(stream_ids(index, GROUP))
        while not self.driver.reconcile():
            pass
        self.workers[index] = self._generator(index)
        self.happened["death"] += 1

    def learner_dies(self) -> None:
        """It had published or not; what it had taken is learned from again, unless it was
        published.
        """
        if self.keys is None:
            return
        published = self.draw.random() < 0.5
        if published:
            self.store.publish(self.store.version + 1, {})
        else:
            self.groups.subtract(
                int(one)
                for one in self.learner.batches(self.keys)["main"].data.context["group"][::GROUP]
            )
        self.driver.orphaned()
        self.learner = self._queue()
        left = self.learner.take_over(self.store.version, freed=not published)
        while not self.driver.reconcile():
            pass
        self.keys = None
        if left is not None:
            self.learner.finish(left)
        self.happened["learner's death"] += 1

    def goes_on(self) -> None:
        """The run is killed after a checkpoint, and resumed in new memory."""
        if self.keys is not None:
            return
        for index in range(self.generators):
            self.driver.cancel(stream_ids(index, GROUP))
        while not self.driver.reconcile():
            pass
        state = tree.map(np.array, self.learner.state())
        self._open()
        self.driver.load(state)
        self.learner = self._queue()
        self.workers = [self._generator(index) for index in range(self.generators)]
        self.happened["resume"] += 1

    def go(self) -> None:
        rare = [
            (self.generator_dies, 0.02),
            (self.learner_dies, 0.01),
            (self.goes_on, 0.01),
            (self.hands_over, 0.05),
            (self.pauses, 0.05),
        ]
        for _ in range(STEPS):
            drawn = self.draw.random()
            for what, chance in rare:
                if drawn < chance:
                    what()
                    break
                drawn -= chance
            else:
                self.draw.choice((self.tick, self.tick, self.tick, self.takes, self.finishes))()
        self._goes_on_learning()
        stats = self.driver.stats()
        assert stats["inserted"] == stats["sampled"] + stats["dropped"] + stats["held"]
        assert all(count <= 1 for count in self.groups.values()), "a group is learned from twice"
        blocks = sorted(
            group // (1 + self.refills) for group, count in self.groups.items() if count
        )
        if self.max_lag is not None:
            assert blocks == list(range(len(blocks))), "a group is left out"

    def _goes_on_learning(self) -> None:
        """No block is left that nobody writes."""
        for worker in self.workers:
            worker.reserves = worker.gives = True
        enough = self.happened["update"] + (self.max_lag or 0) + 2
        for _ in range(2000):
            if self.happened["update"] >= enough:
                return
            for worker in self.workers:
                worker.tick()
            self.takes()
            self.finishes()
        raise AssertionError("nothing is learned any more")


def explored(seeds: range, max_lag: int | None) -> Counter[str]:
    happened = Counter[str]()
    for seed in seeds:
        ring = Ring(seed, max_lag)
        with mock.patch.object(generator, "perf_counter", ring.time):
            ring.go()
        happened += ring.happened
    return happened


LAGS = [0, 1, 4, None]


@pytest.mark.parametrize("max_lag", LAGS)
def test_no_token_is_older_than_the_bound_in_random_schedules(max_lag: int | None) -> None:
    happened = explored(range(35), max_lag)
    assert all(
        happened[name] >= 10 for name in ("update", "death", "learner's death", "resume", "lost")
    ), happened
    # in lockstep nothing is drawn when weights come
    assert (happened["part"] >= 10) == (max_lag != 0), happened
    for name in ("handed over", "given"):
        assert (happened[name] >= 30) == (max_lag != 0), happened


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("max_lag", LAGS)
def test_no_token_is_older_than_the_bound_in_ten_thousand_schedules(max_lag: int | None) -> None:
    explored(range(1000, 3500), max_lag)

"""The queue survives an actor that is killed at any instruction: nothing is lost, torn, doubled or
miscounted.

First instruction by instruction in one process, then with real processes and SIGKILL.
"""

from __future__ import annotations

import itertools
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from equipoise.experience.queue.queue import Plan
from equipoise.experience.queue.tokens import FREE, FULL, OPEN, READ
from equipoise.runtime.ipc import Lifeline, PipeChannel, Segment
from equipoise.runtime.process import forkserver
from equipoise.types import stream_ids
from tests.experience import hammer
from tests.experience.alone import POLICY, Alone
from tests.experience.hammer import BLOCK, ROW, UNROLL
from tests.experience.stepping import Stepper

ROWS = BLOCK * UNROLL  # of a block


class Heap:
    def __init__(self, size: int) -> None:
        self.buffer = np.zeros(size, np.uint8).data


def plan(*, actors: int, per_batch: int, max_lag: int | None) -> Plan:
    return Plan(
        rows={POLICY: ROW},
        unroll=UNROLL,
        batch=per_batch * BLOCK,
        block=BLOCK,
        envs=actors * BLOCK,
        max_lag=max_lag,
    )


class Ledger:
    """What must be true of the batches of a run, whoever was killed."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.version, self.sampled = plan, 0, set[int]()
        self._next = list(range(plan.blocks))  # by place: the sequence that has to come
        self.born: dict[int, int] = {}  # stamp -> the version when its block was reserved

    def enter(self, found: list[tuple[int, int, int]]) -> None:
        """One batch: (sequence, actor, stamp) of its blocks."""
        for sequence, _, stamp in found:
            place = sequence % self.plan.blocks
            assert sequence == self._next[place], (
                f"at place {place}: expected sequence {self._next[place]}, got {sequence}"
            )
            self._next[place] += self.plan.blocks
            assert stamp not in self.sampled, "sampled twice"
            self.sampled.add(stamp)
            if self.plan.max_lag is not None and stamp in self.born:
                assert self.version - self.born[stamp] <= self.plan.max_lag
        if self.plan.ordered:
            sequences = [sequence for sequence, _, _ in found]
            first = self.version * self.plan.per_batch
            assert sequences == list(range(first, first + self.plan.per_batch)), (
                "not in the order of reservation"
            )
        self.version += 1


class Ring:
    """A queue as its driver, its learner and its actors see it, each with an object of its own over
    one memory.
    """

    def __init__(self, *, actors: int, per_batch: int, max_lag: int | None) -> None:
        self.plan = plan(actors=actors, per_batch=per_batch, max_lag=max_lag)
        self.memory = Heap(self.plan.nbytes)
        self.channels, self.full = [PipeChannel() for _ in range(self.plan.channels)], PipeChannel()
        self.driver, self.learner = self.attach(), self.attach()
        self.actors = [self.attach() for _ in range(actors)]
        self.driver.fill()
        self.ledger = Ledger(self.plan)
        self.open: dict[int, Any] = {}  # actor -> its slot
        self.committed: set[int] = set()  # stamps
        self.dropped = 0  # blocks
        self.batch: Any = None  # in the learner's hands

    def attach(self) -> Alone:
        return Alone(self.plan, self.memory, free=self.channels, full=self.full)

    def close(self) -> None:
        for channel in (*self.channels, self.full):
            channel.close()

    def tokens(self, actor: int) -> list[int]:
        """Those that this actor may take."""
        channel = self.channels[actor % len(self.channels)]
        tokens = channel.drain()
        channel.put(tokens)
        return tokens

    # each of these returns the call, which a test may step through, and what to do when it has
    # returned

    def reserving(self, actor: int) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        def done(slot: Any) -> None:
            if slot is None:
                return
            held = {int(s.keys[0, 1]) for s in self.open.values()}
            assert int(slot.keys[0, 1]) not in held, "one block in two hands"
            self.open[actor] = slot

        return lambda: self.actors[actor].reserve(stream_ids(actor, BLOCK)), done

    def committing(self, actor: int) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        slot, stamp = self.open[actor], len(self.ledger.born) + 1
        self.ledger.born[stamp] = self.ledger.version
        hammer.write(slot, actor, stamp)
        del self.open[actor]

        def done(_: Any) -> None:
            self.committed.add(stamp)

        return lambda: self.actors[actor].commit(slot), done

    def sampling(self) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        def done(batch: Any) -> None:
            if batch is not None:
                self.batch = batch
                self.ledger.enter(hammer.read(batch))

        return lambda: self.learner.sample(self.plan.batch), done

    def finishing(self) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        batch, self.batch = self.batch, None
        hammer.read(batch)  # nobody wrote into it meanwhile
        return lambda: self.learner.finish(batch.keys), lambda _: None

    def reserve(self, actor: int) -> bool:
        do(self.reserving(actor))
        return actor in self.open

    def commit(self, actor: int) -> None:
        do(self.committing(actor))

    def consume(self) -> bool:
        """Sample and finish -> whether there was a batch."""
        do(self.sampling())
        if self.batch is None:
            return False
        do(self.finishing())
        return True

    def dead(self, actor: int) -> None:
        """Take note of what the actor had when it died; a new one gets a new object."""
        opened = int(((self.driver._word % 4 == OPEN) & (self.driver._tokens.owner == actor)).sum())
        assert opened == 1 if self.open.pop(actor, None) is not None else opened in (0, 1)
        self.dropped += opened
        self.actors[actor] = self.attach()

    def cancel(self, actor: int) -> None:
        self.driver.cancel(stream_ids(actor, BLOCK))

    def dies_with_a_token(self, actor: int) -> None:
        """Killed between taking a token and opening its block."""
        before = self.tokens(actor)
        with Stepper(self.reserving(actor)[0]) as call:
            while self.tokens(actor) == before:
                assert not call.advance(1), "no token was free"
        self.dead(actor)

    def check(self) -> None:
        """Everything goes on: all places can be filled, all are sampled, and the numbers agree."""
        for actor in list(self.open):
            self.commit(actor)
        while sum(self.reserve(actor) for actor in range(len(self.actors))):
            for actor in list(self.open):
                self.commit(actor)
        words = self.driver._word
        assert (words % 4 == FULL).all(), f"places are lost: {[divmod(int(w), 4) for w in words]}"
        assert self.driver.stats()["held"] == self.plan.blocks * ROWS
        self.balance()
        while self.consume():
            self.balance()
        assert (words % 4 == FREE).all()
        assert self.committed <= self.ledger.sampled, "a committed block was not sampled"
        tokens = sorted(token for i in range(len(self.channels)) for token in self.tokens(i))
        assert tokens == sorted((words // 4).tolist()), "tokens are not the free blocks"

    def balance(self) -> None:
        stats = self.driver.stats()
        assert stats["inserted"] == stats["sampled"] + stats["dropped"] + stats["held"], stats
        assert stats["sampled"] == len(self.ledger.sampled) * ROWS
        assert stats["dropped"] == self.dropped * ROWS


def do(call_and_done: tuple[Callable[[], Any], Callable[[Any], None]]) -> None:
    call, done = call_and_done
    done(call())


@pytest.fixture
def make_ring() -> Iterator[Callable[..., Ring]]:
    made: list[Ring] = []

    def make(**sizes: Any) -> Ring:
        made.append(Ring(**sizes))
        return made[-1]

    yield make
    for ring in made:
        ring.close()


SIZES = list(itertools.product((0, 1, 4, None), (1, 2, 3), (1, 2, 3)))


@pytest.mark.parametrize(("max_lag", "actors", "per_batch"), SIZES)
@pytest.mark.parametrize("what", ["reserving", "committing"])
def test_an_actor_is_killed_at_any_instruction(
    what: str, max_lag: int | None, actors: int, per_batch: int, make_ring: Any
) -> None:
    ring = make_ring(actors=actors, per_batch=per_batch, max_lag=max_lag)
    for n in itertools.count():
        able = [a for a in range(actors) if ring.tokens(a)]
        victim = able[n % len(able)]
        if what == "committing":
            assert ring.reserve(victim)
        for other in {*range(actors)} - {victim}:  # they are amid an unroll, but leave one block
            if len(ring.tokens(other)) > (len(ring.channels) == 1):
                ring.reserve(other)
        call, done = getattr(ring, what)(victim)
        with Stepper(call) as stepper:
            if stepper.advance(n):
                done(stepper.result)
                break
        ring.dead(victim)
        ring.cancel(victim)
        assert ring.driver.reconcile(), "nobody else was claiming anything"
        ring.check()
    ring.check()
    assert n > 5, "there are more instructions than that"


@pytest.mark.few(4)
@pytest.mark.parametrize("max_lag", [0, 1, 4, None])
@pytest.mark.parametrize("what", ["reserving", "committing", "sampling", "finishing"])
def test_others_stand_at_any_instruction_while_a_lost_token_is_sought(
    what: str, max_lag: int | None, make_ring: Any
) -> None:
    """Actor 1 or the learner is stopped anywhere, actor 0 dies with a token in its hand, the driver
    looks, they go on.
    """
    ring = make_ring(actors=3, per_batch=3, max_lag=max_lag)
    waited = 0
    for n in itertools.count():
        if what == "committing":
            ring.reserve(1)
        if what in ("sampling", "finishing"):
            for actor in range(3):
                ring.reserve(actor)
                ring.commit(actor)
        if what == "finishing":
            do(ring.sampling())
        call, done = getattr(ring, what)(*([1] if what in ("reserving", "committing") else []))
        with Stepper(call) as stepper:
            finished = stepper.advance(n)
            if ring.tokens(0):
                ring.dies_with_a_token(0)
            else:
                ring.dead(0)
            ring.cancel(0)
            waited += not [ring.driver.reconcile() for _ in range(3)][-1]
            stepper.advance()
            done(stepper.result)
        assert ring.driver.reconcile(), (
            "whoever might have had the token has been seen with empty hands"
        )
        if ring.batch is not None:
            do(ring.finishing())
        ring.check()
        if finished:
            break
    assert (waited > 0) == (what == "finishing" or (what == "reserving" and max_lag != 0)), (
        "it waits for those who may have it"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("max_lag", [0, 1, 4, None])
@pytest.mark.parametrize("had", ["a token", "an open block", "nothing"])
def test_others_go_on_while_the_driver_stands_at_any_instruction(
    had: str, max_lag: int | None, make_ring: Any
) -> None:
    """Actor 0 died; while the driver is stopped anywhere in ``cancel``, the others reserve, commit,
    sample and finish.
    """
    ring = make_ring(actors=3, per_batch=3, max_lag=max_lag)
    for n in itertools.count():
        for actor in range(3):
            ring.reserve(actor)
            ring.commit(actor)
        do(ring.sampling())
        if max_lag == 0:
            do(ring.finishing())
        ring.reserve(1)
        if had == "an open block":
            ring.reserve(0)
        if had == "a token":
            ring.dies_with_a_token(0)
        else:
            ring.dead(0)
        with Stepper(partial(ring.cancel, 0)) as driver:
            finished = driver.advance(n)
            ring.commit(1)
            ring.reserve(2)
            ring.reserve(1)
            if ring.batch is not None:
                do(ring.finishing())
            ring.consume()
            driver.advance()
        assert ring.driver.reconcile()
        ring.check()
        if finished:
            break
    assert n > 5, "there are more instructions than that"


@pytest.mark.thorough
@pytest.mark.parametrize("max_lag", [1, None])
def test_the_learner_begins_to_deal_while_the_driver_stands_at_any_instruction(
    max_lag: int | None, make_ring: Any
) -> None:
    """It stops between FREE and the token while the driver looks; that token is not lost."""
    ring = make_ring(actors=3, per_batch=3, max_lag=max_lag)
    for n in itertools.count():
        for actor in range(3):
            ring.reserve(actor)
            ring.commit(actor)
        do(ring.sampling())
        ring.dies_with_a_token(0)
        words = ring.driver._word.copy()
        with Stepper(partial(ring.cancel, 0)) as driver, Stepper(ring.finishing()[0]) as learner:
            finished = driver.advance(n)
            while (ring.driver._word[words % 4 == READ] % 4 == READ).all():
                assert not learner.advance(1)
            driver.advance()
            learner.advance()
        assert ring.driver.reconcile()
        ring.check()
        if finished:
            break


@pytest.mark.parametrize("max_lag", [1, 4, None])
def test_a_suspect_whose_holder_is_cancelled_meanwhile_is_dealt_once(
    max_lag: int | None, make_ring: Any
) -> None:
    """Actor 1 has a token in its hand when that of actor 0 is sought, opens the block, and dies as
    well.
    """
    ring = make_ring(actors=3, per_batch=3, max_lag=max_lag)
    ring.dies_with_a_token(0)
    before = ring.tokens(1)
    call, done = ring.reserving(1)
    with Stepper(call) as stepper:
        while ring.tokens(1) == before:
            stepper.advance(1)
        ring.cancel(0)
        assert not ring.driver.reconcile()
        stepper.advance()
        done(stepper.result)
    ring.dead(1)
    ring.cancel(1)
    assert ring.driver.reconcile()
    ring.check()


@pytest.mark.parametrize("case", range(24))
def test_any_order_of_everything(case: int, seed: int, make_ring: Any) -> None:
    """Actors, learner and driver take turns of a few instructions by chance, and actors are killed
    by chance.
    """
    rng = np.random.default_rng(seed)
    max_lag, actors, per_batch = (
        (0, 1, 4, None)[case % 4],
        int(rng.integers(1, 4)),
        int(rng.integers(1, 4)),
    )
    ring = make_ring(actors=actors, per_batch=per_batch, max_lag=max_lag)
    driver, learner = actors, actors + 1
    running: dict[int, tuple[Stepper, Callable[[Any], None]]] = {}
    dead: list[int] = []
    kills = 0

    def start(who: int) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        if who == driver and dead:
            actor = dead[0]
            return lambda: ring.cancel(actor), lambda _: dead.remove(actor)
        if who == driver:
            return ring.driver.reconcile, lambda _: None
        if who == learner:
            return ring.sampling() if ring.batch is None else ring.finishing()
        return ring.committing(who) if who in ring.open else ring.reserving(who)

    def turn(who: int, instructions: int) -> None:
        if who not in running:
            call, done = start(who)
            running[who] = Stepper(call), done
        stepper, done = running[who]
        if stepper.advance(instructions):
            del running[who]
            done(stepper.result)

    try:
        for _ in range(1500):
            who = int(rng.integers(actors + 2))
            if who in dead:
                continue
            if who < actors and rng.random() < 0.03:
                if who in running:
                    running.pop(who)[0].kill()
                ring.dead(who)
                dead.append(who)
                kills += 1
            else:
                turn(who, int(rng.choice([1, 2, 5, 20, 100])))
        for who in [*running]:
            turn(who, sys.maxsize)
    finally:
        for stepper, _ in running.values():
            stepper.kill()
    for actor in dead:
        ring.cancel(actor)
    assert ring.driver.reconcile(), "nobody is amid anything"
    if ring.batch is not None:
        do(ring.finishing())
    while ring.consume():
        pass
    ring.check()
    assert kills > 5 and ring.ledger.version > 3


# ----------------------------------------------------------------------------------- real processes


class Workshop:
    """Hammering actors in processes of their own; the test is their driver and the learner."""

    def __init__(self, *, actors: int, per_batch: int, max_lag: int | None) -> None:
        self.plan = plan(actors=actors, per_batch=per_batch, max_lag=max_lag)
        self.memory, self.progress = (
            Segment("queue", self.plan.nbytes),
            Segment("progress", actors * 8),
        )
        self.channels, self.full = [PipeChannel() for _ in range(self.plan.channels)], PipeChannel()
        self.queue = Alone(self.plan, self.memory, free=self.channels, full=self.full)
        self.queue.fill()
        self.lifeline = Lifeline()
        self.ledger = Ledger(self.plan)
        self.done = np.frombuffer(self.progress.buffer, np.int64, actors)
        self.births = itertools.count()
        self.processes = [self.start(actor) for actor in range(actors)]

    def start(self, actor: int) -> Any:
        """An actor whose stamps are above those of all that were born before it."""
        first = next(self.births) << 32
        self.done[actor] = first
        process = multiprocessing.get_context("forkserver").Process(
            target=hammer.main, args=(self.queue, actor, first, self.progress, self.lifeline)
        )
        process.start()
        return process

    def works(self, actor: int) -> bool:
        return int(self.done[actor]) & 0xFFFFFFFF > 0

    def kill(self, actor: int) -> None:
        self.processes[actor].kill()
        self.processes[actor].join()
        assert self.processes[actor].exitcode == -signal.SIGKILL
        self.queue.cancel(stream_ids(actor, BLOCK))

    def learn(self) -> bool:
        """A batch from sample to finish -> whether there was one."""
        batch = self.queue.sample(self.plan.batch)
        if batch is None:
            return False
        found = hammer.read(batch)
        self.ledger.enter(found)
        assert hammer.read(batch) == found, "somebody wrote into a batch of the learner's"
        self.queue.finish(batch.keys)
        return True

    def learn_until(
        self, condition: Callable[[], object], what: str, seconds: float = 60.0
    ) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if not self.learn():
                time.sleep(0.0002)
            self.queue.reconcile()
            if time.monotonic() > end:
                pytest.fail(f"waited {seconds} s for {what}: {self.queue.stats()}")

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
            process.close()
        resources: list[Any] = [
            self.memory,
            self.progress,
            self.full,
            *self.channels,
            self.lifeline,
        ]
        for resource in resources:
            resource.close()


@pytest.fixture
def workshop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Workshop]]:
    forkserver.prepare()
    main = sys.modules["__main__"]  # pytest's, which children would import again
    monkeypatch.delattr(main, "__file__", raising=False)
    monkeypatch.setattr(main, "__spec__", None)
    made: list[Workshop] = []

    def make(**sizes: Any) -> Workshop:
        made.append(Workshop(**sizes))
        return made[-1]

    yield make
    while made:  # which also lets go of the memory
        made.pop().close()


@pytest.mark.parametrize(
    ("max_lag", "kills"),
    [
        *((max_lag, 12) for max_lag in (0, 1, 4, None)),
        *(pytest.param(max_lag, 200, marks=pytest.mark.chaos) for max_lag in (0, 1, 4, None)),
    ],
)
def test_actors_that_hammer_the_queue_are_killed_and_replaced(
    max_lag: int | None, kills: int, workshop: Callable[..., Workshop], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shop = workshop(actors=3, per_batch=3 if max_lag == 0 else 2, max_lag=max_lag)
    for _ in range(kills):
        actor = int(rng.integers(3))
        shop.learn_until(partial(shop.works, actor), "the actor to commit")
        shop.learn_until(shop.learn, "a batch, after which blocks are free")
        moment = time.perf_counter() + rng.choice([0, 2e-5, 1e-4, 5e-4]) * rng.exponential()
        while time.perf_counter() < moment:
            pass
        shop.kill(actor)
        shop.processes[actor].close()
        shop.processes[actor] = shop.start(actor)
    shop.learn_until(lambda: all(shop.works(actor) for actor in range(3)), "all actors to commit")
    for actor in range(3):
        shop.kill(actor)
    assert shop.queue.reconcile(), "nobody lives who could have a token"
    while shop.learn():
        pass
    words, stats = shop.queue._word, shop.queue.stats()
    assert stats["open"] == 0
    assert stats["inserted"] == stats["sampled"] + stats["dropped"] + stats["held"]
    assert stats["sampled"] == shop.ledger.version * shop.plan.batch * UNROLL
    assert stats["dropped"] <= (kills + 3) * ROWS
    tokens = sorted(token for channel in shop.channels for token in channel.drain())
    assert tokens == sorted((words[words % 4 == FREE] // 4).tolist()), (
        "tokens are not the free blocks"
    )

"""Both halves of a shard's mailbox, over a way that loses messages: each request is done once."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise import tree
from equipoise.experience.queue.waiting import Waiting, mark, marked, put_back, raw
from equipoise.experience.replay.mailbox import Request, ShardMailbox
from equipoise.plans.memory_needed import queue_plan
from equipoise.runtime.cluster.keeping import REQUEST, RemoteLearner, RemoteShard
from equipoise.runtime.ipc import Heap
from equipoise.types import Slot
from tests.runtime.test_shards_apart import blue_of

STREAMS = np.array([6, 7])


class World:
    """A learner's mailbox at home, the shard's at a site, and what is under way between them."""

    def __init__(self, folder: Path) -> None:
        blue = blue_of(folder)
        self.plan, replay = queue_plan(blue), blue.replay("main", 0)
        memory = [
            Heap(name, tree.nbytes(ShardMailbox.specs(replay, 16))) for name in ("home", "site")
        ]
        self.home, self.site = (ShardMailbox(replay, 16, one) for one in memory)
        self.waiting = Waiting(self.plan, Heap("waiting", tree.nbytes(Waiting.specs(self.plan))))
        # the queue's, at home
        self.blocks = Waiting(self.plan, Heap("queue", tree.nbytes(Waiting.specs(self.plan))))
        self.remote = RemoteShard(self.plan, self.home, 1, self.blocks.block)
        self.learner = RemoteLearner(self.site, 1, self.waiting)
        self.done: list[list[int]] = []  # the requests that the shard did
        self.asked: deque[Any] = deque()
        self.answered: deque[Any] = deque()

    def request(self, *numbers: int) -> None:
        mail = self.home.shards[1]
        at = int(mail["asked"][0])
        mail["request"][at % len(mail["request"])] = numbers
        mail["asked"][0] = at + 1

    def work(self) -> None:
        """The shard does its next request, if there is one."""
        mail = self.site.shards[1]
        if mail["seen"][0] != mail["life"][0] or mail["answered"][0] == mail["asked"][0]:
            return
        request = mail["request"][int(mail["answered"][0]) % len(mail["request"])].tolist()
        self.done.append(request)
        if request[0] == Request.DRAW:
            _, buffer, begin, count = request
            batch = self.site.batches[buffer]
            batch["keys"][begin : begin + count, 0] = 2 * np.arange(count) + 1
            batch["probability"][begin : begin + count] = len(self.done)
        mail["items"][0], mail["mass"][0] = len(self.done), len(self.done) / 2
        mail["answered"][0] += 1

    def pass_on(self, chance: random.Random) -> None:
        self.asked.extend(self.remote.asks())
        self.answered.extend(self.learner.answers())
        if chance.random() < 0.05:  # the session ends, and all that is under way is lost
            self.asked.clear()
            self.answered.clear()
            self.remote.forget()
            self.learner.forget()
        if self.asked and chance.random() < 0.5:
            self.learner.ask(*self.asked.popleft())
        if self.answered and chance.random() < 0.5:
            self.remote.answer(*self.answered.popleft())
        if (life := self.learner.died()) is not None:
            self.remote.died(life)

    @property
    def settled(self) -> bool:
        return bool(self.home.shards[1]["answered"][0] == self.home.shards[1]["asked"][0])


def test_each_request_is_done_once_whatever_is_lost_on_the_way(tmp_path: Path, seed: int) -> None:
    world, chance = World(tmp_path), random.Random(seed)
    wanted: list[list[int]] = []
    for turn in range(200):
        count, before = chance.randrange(1, 16), len(wanted)
        wanted += [[Request.DRAW, turn % 2, 16 - count, count], [Request.LOOK, 0, 0, 0]]
        for request in wanted[before:]:
            world.request(*request)
        while not world.settled:
            world.work()
            world.pass_on(chance)
        batch = world.home.batches[turn % 2]
        assert (batch["keys"][16 - count :, 0] == 2 * np.arange(count) + 1).all()
        assert (batch["probability"][16 - count :] == before + 1).all()
        assert world.home.shards[1]["mass"][0] == len(wanted) / 2
    assert world.done == wanted


def test_a_successor_begins_with_what_the_learner_asks_once_it_knows(tmp_path: Path) -> None:
    world, never = World(tmp_path), random.Random(1)
    never.random = lambda: 0.4  # type: ignore[method-assign]  # nothing is lost
    world.request(Request.LOOK, 0, 0, 0)
    world.pass_on(never)
    world.site.lost(1)  # before the shard did it
    world.pass_on(never)
    home = world.home.shards[1]
    assert (home["life"][0], home["answered"][0]) == (1, 0)
    home["answered"][0], home["seen"][0] = home["asked"][0], 1  # as ``Sharded`` buries it
    world.request(Request.DRAW, 0, 0, 3)
    for _ in range(3):
        world.pass_on(never)
        world.work()
    assert world.settled
    assert world.done == [[Request.DRAW, 0, 0, 3]]


def test_rows_travel_with_a_request_only_where_the_site_has_them_not(tmp_path: Path) -> None:
    world = World(tmp_path)
    block = world.blocks.block(2)
    slots = {name: Slot(keys=np.zeros((2, 2), np.int64), data=data) for name, data in block.items()}
    mark(slots, STREAMS, 10)
    assert marked(block) == 10
    world.request(Request.INSERT, 2, 0, 0)
    ((_, _, body),) = world.remote.asks()
    assert len(body) == REQUEST
    rows = np.random.default_rng(0).integers(0, 2, len(raw(world.plan, block))).astype(np.uint8)
    put_back(world.plan, block, rows)
    assert marked(block) is None
    world.remote.forget()
    ((number, life, body),) = world.remote.asks()
    assert world.learner.ask(number, life, body) == 2
    assert (raw(world.plan, world.waiting.block(2)) == raw(world.plan, block)).all()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        np.array([9, 0, 0, 0]).tobytes(),
        np.array([1, 99, 0, 0]).tobytes(),
        np.array([1, 0, 0, 0]).tobytes() + b"x",
        np.array([2, 0, 9, 9]).tobytes(),
        np.array([3, 0, 1, 1]).tobytes(),
    ],
)
def test_what_is_no_request_is_refused(tmp_path: Path, body: bytes) -> None:
    world = World(tmp_path)
    with pytest.raises(ValueError, match="expected"):
        world.learner.ask(0, 0, body)
    assert world.site.shards[1]["asked"][0] == 0


@pytest.mark.parametrize(("number", "more"), [(1, 0), (0, 1), (0, -1)])
def test_what_is_no_answer_is_refused(tmp_path: Path, number: int, more: int) -> None:
    world = World(tmp_path)
    world.request(Request.LOOK, 0, 0, 0)
    list(world.remote.asks())
    with pytest.raises(ValueError, match="expected"):
        world.remote.answer(number, 0, bytes(24 + more))
    assert not world.settled

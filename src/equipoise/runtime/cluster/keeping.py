"""Shards on machines of actors: both halves of a shard's mailbox
(``experience/replay/mailbox.py``).

At home a ``RemoteShard`` takes the place of the shard: it passes on what the learner asks, and
writes what comes back. At the site a ``RemoteLearner`` takes the place of the learner. Rows that
wait at the site do not travel (``experience/queue/waiting.py``): a request to insert has only their
place.

Requests have the numbers of home's mailbox. A request that comes a second time, since a session
ended meanwhile, is not done again: its answer is read once more from where it lies, for what was
drawn lies there until it has come. A shard that died is buried by the learner, as on one machine:
home gets its next life, and the first request of that life begins it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from equipoise import tree
from equipoise.experience.layout import columns
from equipoise.experience.queue.outbound import block_bytes
from equipoise.experience.queue.queue import Plan
from equipoise.experience.queue.waiting import Waiting, marked, raw
from equipoise.experience.replay.mailbox import BUFFERS, Request, ShardMailbox
from equipoise.publishing import publish
from equipoise.runtime.cluster.carried import Carried
from equipoise.runtime.cluster.frames import Answered, Asked, Body, Emptied, Kind, Message
from equipoise.runtime.cluster.wire import Refused, lookup
from equipoise.types import Array, Trajectory

REQUEST = 4 * 8  # bytes: a kind and three numbers
SAID = 3 * 8  # bytes: the items of the shard, their mass, and the blocks that it took in


class RemoteShard:
    """Home's half, for one shard."""

    def __init__(
        self,
        plan: Plan,
        post: ShardMailbox,
        number: int,
        block: Callable[[int], Mapping[str, Trajectory]],
    ) -> None:
        """``number``: among the shards of ``post``; ``block``: of the queue, by its place."""
        self._plan, self._post, self._number, self._block = plan, post, number, block
        self._mail = post.shards[number]
        self.most = SAID + _drawn_bytes(post)
        self.forget()

    def forget(self) -> None:
        """A session has ended: its unanswered messages may not have come."""
        self._life = int(self._mail["seen"][0])
        self._passed = int(self._mail["answered"][0])

    def asks(self) -> Iterator[tuple[int, int, Body]]:
        """(request, life, bytes) of the requests that were not passed on; empty while the learner
        is to bury the shard.
        """
        mail, life = self._mail, int(self._mail["seen"][0])
        if life != int(mail["life"][0]):
            return
        if life != self._life:
            self.forget()
        while self._passed < mail["asked"][0]:
            number = self._passed
            self._passed += 1
            yield number, life, self._body(mail["request"][number % len(mail["request"])])

    def _body(self, request: Array) -> bytes:
        """A request, and the rows of it that are not at the site."""
        kind, *numbers = request.tolist()
        if kind == Request.INSERT and marked(block := self._block(numbers[0])) is None:
            return b"".join((request.tobytes(), raw(self._plan, block)))
        if kind == Request.UPDATE:
            given, n = self._post.priorities, numbers[2]
            parts = (request, given["keys"][:n], given["priority"][:n])
            return b"".join(one.tobytes() for one in parts)
        return bytes(request.tobytes())

    def answer(self, number: int, life: int, body: Body) -> bool:
        """Write the answer to a request -> is it news? ValueError, and the learner hears nothing,
        if it is no answer.
        """
        mail = self._mail
        if life != self._life or life != int(mail["life"][0]) or number < int(mail["answered"][0]):
            return False
        if number != int(mail["answered"][0]) or number >= self._passed:
            raise ValueError(
                f"expected the answer to request {int(mail['answered'][0])}, got that to {number}"
            )
        kind, *numbers = mail["request"][number % len(mail["request"])].tolist()
        drawn = _drawn(self._post, *numbers) if kind == Request.DRAW else []
        if len(body) != (size := SAID + sum(array.nbytes for array in drawn)):
            raise ValueError(f"expected {size:,} bytes of an answer, got {len(body):,}")
        items, inserted = np.frombuffer(body, np.int64, 2)
        at = SAID
        for array in drawn:
            array[...] = np.ndarray(array.shape, array.dtype, body, at)
            at += array.nbytes
        if drawn and ((keys := drawn[-1][:, 0]) % len(self._post.shards) != self._number).any():
            raise ValueError(f"expected items of shard {self._number}, got {keys.tolist()[:4]}")
        mail["items"][0], mail["inserted"][0] = items, inserted
        mail["mass"][0] = np.frombuffer(body, np.float64, 1, 16)[0]
        publish(mail["answered"], 0, number + 1)
        return True

    def died(self, life: int) -> bool:
        """The shard is dead, and its successor has this life -> is it news?"""
        if life <= int(self._mail["life"][0]):
            return False
        publish(self._mail["life"], 0, life)
        return True


class HomeShards(Carried):
    """Home's end, for the shards of one site."""

    def __init__(self, shards: Mapping[int, RemoteShard], answered: Callable[[], object]) -> None:
        """``shards``: by number; ``answered`` is called when a shard has an answer."""
        self._shards, self._answered = shards, answered
        self.most = {
            Kind.ANSWERED: max((one.most for one in shards.values()), default=0),
            Kind.EMPTIED: 0,
        }

    def take(self, message: Message) -> None:
        match message:
            case Answered(shard, request, life, body):
                try:
                    news = lookup(message, "shard", shard, self._shards).answer(request, life, body)
                except ValueError as error:
                    raise Refused(f"answered: {error}") from error
            case Emptied(shard, life):
                news = lookup(message, "shard", shard, self._shards).died(life)
            case _:
                news = False
        if news:
            self._answered()

    def ready(self) -> Iterator[Message]:
        for number, shard in self._shards.items():
            for request, life, body in shard.asks():
                yield Asked(number, request, life, body)

    def forget(self) -> None:
        for shard in self._shards.values():
            shard.forget()


class RemoteLearner:
    """The site's half, for one shard."""

    def __init__(self, post: ShardMailbox, number: int, waiting: Waiting) -> None:
        """``number``: among the shards of ``post``."""
        self._post, self._number, self._waiting = post, number, waiting
        self._mail = post.shards[number]
        self.most = REQUEST + max(
            block_bytes(waiting.plan), sum(one.nbytes for one in post.priorities.values())
        )
        self._told = 0  # requests whose answers home was sent
        self._life = 0  # of the shard, as home has it

    def forget(self) -> None:
        """A session has ended: its messages may not have come."""
        # home asks again for what it has no answer to
        self._life, self._told = 0, int(self._mail["asked"][0])

    def ask(self, number: int, life: int, body: Body) -> int | None:
        """Pass a request on to the shard, unless it has this one -> the place of a block that is to
        be taken in now.

        ValueError, and nothing is passed on, if it is no request.
        """
        mail = self._mail
        if life != int(mail["life"][0]):
            return None  # that shard is dead: the learner asks its successor for what it owes
        if life != int(mail["seen"][0]):
            self._told = number
            for name in ("asked", "answered"):
                publish(mail[name], 0, number)
        elif number < int(mail["asked"][0]):
            self._told = min(self._told, number)
            return None
        if number != int(mail["asked"][0]):
            raise ValueError(f"expected request {int(mail['asked'][0])}, got {number}")
        place = self._take(body)
        mail["request"][number % len(mail["request"])] = np.frombuffer(body, np.int64, 4)
        publish(mail["asked"], 0, number + 1)
        publish(mail["seen"], 0, life)
        return place

    def _take(self, body: Body) -> int | None:
        """Look at a request, and keep what came with it -> the place of the block, if it is one to
        be taken in.
        """
        if len(body) < REQUEST:
            raise ValueError(f"expected at least {REQUEST} bytes of a request, got {len(body)}")
        kind, first, second, third = np.frombuffer(body, np.int64, 4).tolist()
        given, rest, batch = self._post.priorities, len(body) - REQUEST, self._post.batch
        if kind == Request.INSERT and 0 <= first < self._waiting.plan.blocks:
            if rest:
                if rest != block_bytes(self._waiting.plan):
                    raise ValueError(
                        f"expected {block_bytes(self._waiting.plan):,} bytes of rows, got {rest:,}"
                    )
                self._waiting.write(first, body[REQUEST:])
            return int(first)
        if kind == Request.UPDATE and 0 <= first <= second <= third <= batch and rest == 24 * third:
            given["keys"][:third] = np.frombuffer(body, np.int64, 2 * third, REQUEST).reshape(
                third, 2
            )
            given["priority"][:third] = np.frombuffer(body, np.float64, third, REQUEST + 16 * third)
            return None
        drawn = (
            kind == Request.DRAW
            and 0 <= first < BUFFERS
            and min(second, third) >= 0
            and second + third <= batch
        )
        if (kind == Request.LOOK or drawn) and not rest:
            return None
        raise ValueError(
            f"expected a request, got {kind} of {first}, {second}, {third} with {rest:,} bytes"
        )

    def answers(self) -> Iterator[tuple[int, int, Body]]:
        """(request, life, bytes) of the shard's done work that home has not heard of."""
        mail = self._mail
        while self._told < mail["answered"][0] and mail["seen"][0] == mail["life"][0]:
            number = self._told
            self._told += 1
            yield (
                number,
                int(mail["seen"][0]),
                self._said(mail["request"][number % len(mail["request"])]),
            )

    def _said(self, request: Array) -> memoryview:
        kind, *numbers = request.tolist()
        drawn = _drawn(self._post, *numbers) if kind == Request.DRAW else []
        body = np.empty(SAID + sum(array.nbytes for array in drawn), np.uint8)
        body[:16].view(np.int64)[:] = self._mail["items"][0], self._mail["inserted"][0]
        body[16:SAID].view(np.float64)[:] = self._mail["mass"][0]
        at = SAID
        for array in drawn:
            np.ndarray(array.shape, array.dtype, body, at)[...] = array
            at += array.nbytes
        return body.data

    def died(self) -> int | None:
        """The life that a successor begins with, if home has not heard of it in this session."""
        life = int(self._mail["life"][0])
        if life == self._life:
            return None
        self._life = life
        return life


class SiteShards(Carried):
    """The site's end."""

    def __init__(
        self, learners: Mapping[int, RemoteLearner], taken: Callable[[int], object]
    ) -> None:
        """``learners``: by the number of the shard. ``taken`` is called with the place of a block
        that a shard takes in.
        """
        self._learners, self._taken = learners, taken
        self.most = {Kind.ASKED: max((one.most for one in learners.values()), default=0)}

    def take(self, message: Message) -> None:
        match message:
            case Asked(shard, request, life, body):
                learner = lookup(message, "shard", shard, self._learners)
                try:
                    place = learner.ask(request, life, body)
                except ValueError as error:
                    raise Refused(f"asked: {error}") from error
                if place is not None:
                    self._taken(place)

    def ready(self) -> Iterator[Message]:
        for number, learner in self._learners.items():
            for request, life, body in learner.answers():
                yield Answered(number, request, life, body)
            if (lost := learner.died()) is not None:
                yield Emptied(number, lost)

    def forget(self) -> None:
        for learner in self._learners.values():
            learner.forget()


def _drawn(post: ShardMailbox, buffer: int, begin: int, count: int) -> list[Array]:
    """The arrays of the items that a shard was asked to draw, as views; their keys last."""
    batch, end = post.batches[buffer], begin + count
    data = tree.leaves(columns(batch["data"], begin, end))
    return [*data, batch["probability"][begin:end], batch["keys"][begin:end]]


def _drawn_bytes(post: ShardMailbox) -> int:
    return sum(array.nbytes for array in _drawn(post, 0, 0, post.batch))

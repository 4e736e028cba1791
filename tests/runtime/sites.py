"""Home, sites and a hostile relay between them, ticked in one thread by a clock of their own."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from equipoise import tree
from equipoise.experience.layout import RowSpec
from equipoise.experience.queue.outbound import Outbound
from equipoise.experience.queue.queue import Plan
from equipoise.experience.queue.tokens import LocalChannel
from equipoise.experience.queue.unstacked import BlockPacker
from equipoise.runtime.cluster.blocks import HomeBlocks, Remote, SiteBlocks
from equipoise.runtime.cluster.parts import Arrays, HomeParts, SiteParts
from equipoise.runtime.cluster.proxy import Proxy, take_back
from equipoise.runtime.cluster.site import SiteEnd
from equipoise.runtime.cluster.weights import HomeWeights, Newest, SiteWeights
from equipoise.runtime.cluster.wire import Tally
from equipoise.runtime.ipc import Heap
from equipoise.tree import ArraySpec
from equipoise.types import Stack, stream_ids
from tests.experience import hammer
from tests.experience.alone import POLICY, Alone

SILENT = 40.0  # ticks
DIGEST = "the program"
FRAMES = 3
ROW = RowSpec(
    obs={"stamp": ArraySpec((), "int64"), "screen": ArraySpec((FRAMES, 2, 2), "uint8")},
    action=hammer.ROW.action,
    behaviour=hammer.ROW.behaviour,
    state=hammer.ROW.state,
    context=hammer.ROW.context,
)
STACKS = {POLICY: {"screen": Stack(frames=FRAMES, padding="zero")}}


class Store:
    """The weights of one policy, whose bytes say their version."""

    nbytes = 8

    def __init__(self, version: int = -1) -> None:
        self.version = version

    def fetch_bytes(self, newer_than: int) -> tuple[int, Any] | None:
        return (
            (self.version, np.array([self.version]).tobytes())
            if self.version > newer_than
            else None
        )

    def publish_bytes(self, version: int, data: Any) -> None:
        assert np.frombuffer(data, np.int64).tolist() == [version]
        self.version = version


@dataclass
class End:
    """``Link`` of one end."""

    inbox: deque[tuple[float, bytes, bytes]] = field(default_factory=deque)
    broken: bool = False
    way: Way | None = None
    to: list[End] = field(default_factory=list)

    def send(self, head: bytes, body: Any) -> bool:
        assert self.way is not None
        taken = [self.way.pass_on(end, head, bytes(body)) for end in self.to]
        return all(taken)

    def receive(self) -> tuple[bytes, bytes] | None:
        assert self.way is not None
        if not self.inbox or self.inbox[0][0] > self.way.clock.now:
            return None
        _, head, body = self.inbox.popleft()
        return head, body

    def closed(self) -> bool:
        said, self.broken = self.broken, False
        return said


class Clock:
    now = 0.0


class Way:
    """A connection that delays, drops what is under way when it is cut,
    and sometimes tells nobody.
    """

    def __init__(self, clock: Clock, chance: random.Random, delay: float) -> None:
        self.clock, self._chance, self._delay = clock, chance, delay
        self.home = End(way=self)
        self.down_until = 0.0

    def join(self) -> End:
        """The end of a site; a twin has one of its own, and both hear what home says."""
        end = End(way=self, to=[self.home])
        self.home.to.append(end)
        return end

    def pass_on(self, to: End, head: bytes, body: bytes) -> bool:
        if self.clock.now < self.down_until:
            return self._chance.random() < 0.5  # TCP takes what it will not deliver
        due = self.clock.now + self._chance.random() * self._delay
        if to.inbox:
            due = max(due, to.inbox[-1][0])
        to.inbox.append((due, head, body))
        return True

    def cut(self, ticks: float, *, told: bool) -> None:
        """Everything under way is lost, and more for so many ticks."""
        for end in (self.home, *self.home.to):
            end.inbox.clear()
            end.broken |= told
        self.down_until = self.clock.now + ticks


class Home:
    """The queue, its learner and its driver, and the proxy."""

    def __init__(
        self,
        plan: Plan,
        clock: Clock,
        proxy: type[Proxy] = Proxy,
        silent: float = SILENT,
        held: int = 1,
        blocks: type[HomeBlocks] = HomeBlocks,
    ) -> None:
        self.plan, self.clock = plan, clock
        self.queue = Alone(
            plan,
            Heap("queue", plan.nbytes),
            free=[LocalChannel() for _ in range(plan.channels)],
            full=LocalChannel(),
        )
        self.queue.fill()
        self.store = Store(0)
        self.fences = tree.zeros(Proxy.specs(plan.actors))
        self.cut: tuple[int, int, bool] | None = None
        # the statistics of each actor: its last stamp
        self.counts = np.zeros((plan.actors, 8), np.uint8)
        self.heard: list[tuple[str, Any]] = []
        self.lags: list[int] = []
        self.seen = set[int]()
        self.batches: list[list[tuple[int, int]]] = []  # (actor, stamp) of each
        self.remotes = dict[int, Remote]()
        self.proxy = proxy(Tally(self.fences["refused"]), lambda: self.cut, self, DIGEST, silent)
        self._held, self._blocks, self._newest, self._reconciling = (
            held,
            blocks,
            Newest([self.store]),
            False,
        )

    def expect(self, name: str, incarnation: int, groups: range, way: Way) -> None:
        plan = self.plan
        made = {
            a: Remote(a, _Named(self.queue), stream_ids(a, plan.block), self._held) for a in groups
        }
        self.remotes |= made
        blocks = self._blocks(
            plan,
            BlockPacker(plan, STACKS),
            made.values(),
            self._newest,
            self.fences,
            lambda: self.cut,
        )
        parts = HomeParts(dict(enumerate(map(Arrays, self.counts))), groups)
        self.proxy.expect(name, incarnation, way.home, [HomeWeights(self._newest), blocks, parts])

    def tick(self, *, drives: bool, learns: bool) -> None:
        self.proxy.tick(self.clock.now)
        if drives:
            if take_back(self.fences, lambda a: self.queue.cancel(stream_ids(a, self.plan.block))):
                self._reconciling = True
            if self._reconciling:
                self._reconciling = not self.queue.reconcile()
        if learns and (keys := self.queue.take()) is not None:
            batch = self.queue.batches(keys)[POLICY]
            for i, (_, actor, stamp) in enumerate(hammer.read(batch)):
                screens = np.asarray(batch.data.obs["screen"])[
                    :, i * hammer.BLOCK : (i + 1) * hammer.BLOCK
                ]
                assert screens.tobytes() == Machine.wrote.pop(stamp), (
                    "not the stacks that the actor wrote"
                )
                assert stamp not in self.seen, "learned from twice"
                self.seen.add(stamp)
                self.lags.append(self.store.version - stamp // 1_000_000)
                assert int(self.counts[actor].view(np.int64)[0]) >= stamp, (
                    "statistics after their rows"
                )
            self.batches.append([(actor, stamp) for _, actor, stamp in hammer.read(batch)])
            self.store.version += 1
            if (plan := self.plan).issues:
                self.queue.issue(keys, prompts_of(keys[:: plan.block, 1] + plan.blocks, plan))
            self.queue.finish(keys)

    def check(self) -> Mapping[str, float]:
        """Every row is accounted for."""
        found = self.queue.stats()
        assert found["inserted"] == found["sampled"] + found["dropped"] + found["held"]
        assert found["sampled"] == len(self.batches) * self.plan.batch * self.plan.unroll
        return found

    def said(self, site: str, title: str, message: Mapping[str, Any]) -> None:
        self.heard.append((title, message))

    def file(self, site: str, title: str, name: str, data: bytes, step: int | None = None) -> None:
        self.heard.append((title, (name, data)))

    def rows(self, site: str, title: str, name: str, at: int, data: bytes) -> None:
        raise AssertionError("no shard is here")

    def joined(self, site: str) -> None:
        self.heard.append((site, "joined"))

    def left(self, site: str, how: str) -> None:
        self.heard.append((site, how))


def prompts_of(sequences: Any, plan: Plan) -> Any:
    """The prompts [n, issues] that the learner issues for these blocks; it issues none for the
    first.
    """
    numbers = np.asarray(sequences)[:, None] * 10 + np.arange(plan.issues)
    return np.where(np.asarray(sequences)[:, None] < plan.blocks, -1, numbers)


class _Named:
    """The queue with a mapping of slots, as the proxy takes it."""

    def __init__(self, queue: Alone) -> None:
        self._queue = queue

    def reserve(self, streams: Any) -> Any:
        slot = self._queue.reserve(streams)
        return None if slot is None else {POLICY: slot}

    def commit(self, slots: Any) -> None:
        self._queue.commit(slots[POLICY])

    def restart(self, slots: Any) -> None:
        self._queue.restart(slots[POLICY])

    def issued(self, sequence: int) -> Any:
        return self._queue.issued(sequence)

    def block(self, place: int) -> Any:
        raise AssertionError("rows come to home here")


class Machine:
    """A site with its actors. A stamp is the version that its actor began with, times a million,
    plus a number of its own.
    """

    stamps = 0
    wrote: ClassVar[dict[int, bytes]] = {}  # the stacks of blocks that were handed in, by stamp

    def __init__(
        self,
        name: str,
        incarnation: int,
        plan: Plan,
        groups: range,
        way: Way,
        end: type[SiteEnd] = SiteEnd,
        silent: float = SILENT,
        held: int = 1,
        blocks: type[SiteBlocks] = SiteBlocks,
        weights: type[SiteWeights] = SiteWeights,
        asked: int = 0,
    ) -> None:
        """``held``: blocks that an actor writes side by side, and hands in in any order; ``asked``:
        see ``Outbound``.
        """
        self.plan, self.groups, self.way, self.held = plan, groups, way, held
        self.outbound = Outbound(
            plan, groups, Heap("site", tree.nbytes(Outbound.specs(plan, groups, held))), held, asked
        )
        self.store = Store()
        self.counts = {group: np.zeros(8, np.uint8) for group in groups}
        self.ended: list[str] = []
        self.cuts: list[tuple[int, int]] = []
        self.done: Counter[int] = Counter()  # unrolls that each actor handed in
        counted = {group: Arrays(self.counts[group]) for group in groups}
        parts = SiteParts(counted, {group: [group] for group in groups}, lambda: way.clock.now)
        stores = weights([self.store])
        self.blocks = blocks([self.outbound], STACKS, stores, 1, parts.of_group)
        self.end = end(
            name,
            incarnation,
            way.join(),
            [self.blocks, stores, parts],
            digest=DIGEST,
            ended=self.ended.append,
            cut=lambda number, step, last: self.cuts.append((number, step)),
            silent_s=silent,
        )
        # what each actor has, if it has something
        self.writing: dict[int, list[tuple[Any, int]]] = {}
        self.screens: dict[int, Any] = {}  # what the envs of a group show
        self._chance = np.random.default_rng(incarnation)

    def act(self, group: int) -> None:
        """One step of an actor: it begins an unroll, or hands one in."""
        has = self.writing.get(group, [])
        if (
            len(has) < self.held
            and (slots := self.outbound.reserve(stream_ids(group, self.plan.block))) is not None
        ):
            if self.plan.issues:
                sequence = int(slots[POLICY].keys[0, 1])
                wanted = prompts_of([sequence], self.plan)[0]
                assert (self.outbound.issued(sequence) == wanted).all(), "prompts of another block"
            Machine.stamps += 1
            self.writing[group] = [*has, (slots, self.store.version * 1_000_000 + Machine.stamps)]
            return
        if not has:
            return
        slots, stamp = has.pop(int(self._chance.integers(len(has))) if self.held > 1 else 0)
        if not has:
            del self.writing[group]
        hammer.write(slots[POLICY], group, stamp)
        self.wrote[stamp] = self._show(slots[POLICY].data.obs["screen"], group)
        counted = self.counts[group].view(np.int64)
        counted[0] = max(counted[0], stamp)  # of those that are written side by side the newest
        self.outbound.commit(slots)
        self.done[group] += 1

    def _show(self, rows: Any, group: int) -> bytes:
        """Write stacks, as they go on from the last unroll; episodes end at random, and some envs
        shuffle their frames.
        """
        chance, now = (
            self._chance,
            self.screens.setdefault(group, np.zeros(rows.shape[1:], rows.dtype)),
        )
        for t in range(len(rows)):
            if t:
                now[:, :-1] = now[:, 1:]
                now[chance.random(len(now)) < 0.1] = 0
                now[:, -1] = chance.integers(0, 256, now[:, -1].shape)
                now[chance.random(len(now)) < 0.05] = chance.integers(0, 256, now[0].shape)
            rows[t] = now
        return bytes(rows.tobytes())

    def restart(self, group: int) -> None:
        if group in self.writing and self.held == 1:
            self.outbound.restart(self.writing[group][0][0])

    def kill(self, group: int) -> None:
        """The actor dies, at any moment."""
        self.writing.pop(group, None)
        self.outbound.cancel(stream_ids(group, self.plan.block))

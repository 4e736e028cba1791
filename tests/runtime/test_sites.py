"""The protocol of sites and home under a relay that delays, cuts and lies: the lag keeps its bound,
no row is lost.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.experience.queue.outbound import VOID
from equipoise.experience.queue.queue import Plan
from equipoise.runtime.cluster import site
from equipoise.runtime.cluster.blocks import HomeBlocks, SiteBlocks
from equipoise.runtime.cluster.frames import Kind, Statistics
from equipoise.runtime.cluster.line import PIECES, Line
from equipoise.runtime.cluster.proxy import Proxy
from equipoise.runtime.cluster.site import SiteEnd
from equipoise.runtime.cluster.wire import PIECE, parse
from equipoise.types import stream_ids
from equipoise.workers.caller import CallerKind
from equipoise.workers.generator import GeneratorKind
from tests.experience.alone import POLICY
from tests.experience.hammer import BLOCK, UNROLL
from tests.runtime.machines import blue_of
from tests.runtime.sites import ROW, SILENT, Clock, Home, Machine, Way


def plan(*, actors: int = 4, per_batch: int = 2, max_lag: int | None = 1) -> Plan:
    return Plan(
        rows={POLICY: replace(ROW, issues=2)},
        unroll=UNROLL,
        batch=per_batch * BLOCK,
        block=BLOCK,
        envs=actors * BLOCK,
        max_lag=max_lag,
    )


class World:
    """Home and two sites, by one chance."""

    def __init__(
        self,
        seed: int,
        max_lag: int | None,
        *,
        delay: float,
        proxy: type[Proxy] = Proxy,
        end: type[SiteEnd] = SiteEnd,
        slow: int = 1,
        silent: float = SILENT,
        held: int = 1,
        home: type[HomeBlocks] = HomeBlocks,
        **site: Any,
    ) -> None:
        """``site``: classes that take the place of ``Machine``'s."""
        self.chance, self.clock, self.plan, self._end = (
            random.Random(seed),
            Clock(),
            plan(max_lag=max_lag),
            end,
        )
        self.home = Home(self.plan, self.clock, proxy, silent, held, home)
        self.ways = [Way(self.clock, self.chance, delay) for _ in range(2)]
        self.incarnations, self.twins, self._slow, self._silent = (
            [1, 1],
            list[Machine](),
            slow,
            silent,
        )
        self._held, self._made = held, site
        self.sites = [self._site(i) for i in range(2)]

    def _site(self, i: int) -> Machine:
        name, groups = f"site {i}", range(2 * i, 2 * i + 2)
        self.home.expect(name, self.incarnations[i], groups, self.ways[i])
        machine = Machine(
            name,
            self.incarnations[i],
            self.plan,
            groups,
            self.ways[i],
            self._end,
            self._silent,
            self._held,
            **self._made,
        )
        for group, counts in machine.counts.items():  # a site goes on with what home knows
            counts[:] = self.home.counts[group]
        return machine

    def replace(self, i: int) -> None:
        """A site is thought dead and started again; the old one lives on, with its half of the
        connection.
        """
        self.incarnations[i] += 1
        self.twins.append(self.sites[i])
        self.sites[i] = self._site(i)

    def tick(self, ticks: int = 1) -> None:
        for _ in range(ticks):
            self.clock.now += 1.0
            for machine in (*self.sites, *self.twins[-1:]):
                machine.end.tick(self.clock.now)
                for group in machine.groups:
                    if self.chance.random() < (1.0 / self._slow if group == 0 else 1.0):
                        machine.act(group)
            self.home.tick(drives=self.chance.random() < 0.5, learns=self.chance.random() < 0.5)

    def trouble(self) -> None:
        """One thing goes wrong."""
        i, kind = self.chance.randrange(2), self.chance.randrange(6)
        if kind == 0:
            self.ways[i].cut(0, told=True)
        elif kind == 1:
            self.ways[i].cut(self.chance.random() * 100, told=self.chance.random() < 0.5)
        elif kind == 2:
            self.sites[i].kill(self.chance.choice(self.sites[i].groups))
        elif kind == 3:
            self.sites[i].restart(self.chance.choice(self.sites[i].groups))
        elif kind == 4 and len(self.twins) < 3:
            self.replace(i)

    def settle(self) -> None:
        """Run without trouble: everything gets going again, and all rows are accounted for."""
        before = len(self.home.batches)
        self.tick(400)
        assert len(self.home.batches) > before + 5, "the run does not go on"
        self.home.check()


@pytest.mark.few(1)
@pytest.mark.parametrize("max_lag", [0, 1, 2, 4])
def test_the_lag_is_never_above_its_bound(max_lag: int) -> None:
    """One actor is twenty times slower. Messages that take long keep the lag below the bound; short
    ones let it come there.
    """
    for delay in (0.5, 200.0):
        world = World(max_lag, max_lag, delay=delay, slow=20, silent=1000.0)
        world.tick(2500)
        assert max(world.home.lags) <= max_lag
        assert max(world.home.lags) == max_lag or delay > 1.0
        assert world.home.check()["dropped"] == 0


def schedule(seed: int, max_lag: int | None, **broken: Any) -> None:
    """Delays, cuts with and without a word, killed actors, lost envs, sites that are thought dead
    and live on.
    """
    world = World(seed, max_lag, delay=8.0, **broken)
    for _ in range(12):
        world.tick(world.chance.randrange(60))
        world.trouble()
        world.home.check()
        assert max_lag is None or max(world.home.lags, default=0) <= max_lag
    world.settle()
    assert not world.home.proxy.refused["wrong numbers"], "a site asks for more than it may"


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("max_lag", [0, 1, 4, None])
def test_nothing_is_lost_whatever_goes_wrong(seed: int, max_lag: int | None) -> None:
    schedule(seed, max_lag)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("max_lag", [0, 4, None])
def test_nothing_is_lost_where_an_actor_writes_blocks_side_by_side(
    seed: int, max_lag: int | None
) -> None:
    """As generators of text do: a block that was begun later may be complete earlier."""
    schedule(seed, max_lag, held=3, asked=1 + seed % 3)


def test_an_actor_takes_no_more_places_than_it_begins_and_one_ahead() -> None:
    """A place that waits for a busy actor is one that an idle actor does not get."""
    machine = Machine(
        "site 0", 1, plan(), range(1), Way(Clock(), random.Random(0), 0.0), held=8, asked=2
    )
    outbound, streams = machine.outbound, stream_ids(0, BLOCK)
    words = outbound.words
    assert outbound.reserve(streams) is None and words["want"][0] == 2
    outbound.grant(0, [4, 6])
    first, second = outbound.reserve(streams), outbound.reserve(streams)
    assert first is not None and second is not None and words["want"][0] == 3
    assert outbound.reserve(streams) is None and words["want"][0] == 3
    outbound.grant(0, [8])
    assert outbound.reserve(streams) is not None and words["want"][0] == 4
    outbound.commit(first)
    assert words["want"][0] == 4, "one is asked for already"
    for _ in range(20):  # never more than there are slots to write
        if words["want"][0] > words["granted"][0]:
            outbound.grant(0, [int(words["granted"][0])])
        outbound.reserve(streams)
    assert words["want"][0] == words["full"][0] + 8


def test_a_generator_asks_for_the_groups_that_it_draws_at_once(tmp_path: Path) -> None:
    options: Any = {"envs_per_actor": 8, "actors": 2, "batch": 64, "unroll": 1, "max_lag": 2}
    settings = ["source.samples_at_once=32"]
    blue = blue_of(tmp_path, "sort", "grpo", recipe=True, settings=settings, **options)
    assert GeneratorKind().held(blue) == 12 and GeneratorKind().asks(blue) == 4
    assert CallerKind().asks(blue) == CallerKind().held(blue) == 24, "one writes them all"


def test_actors_on_two_machines_get_alike_many_places() -> None:
    """The first one that asks does not take all places of the queue."""
    world = World(0, 4, delay=0.5, held=8, asked=1)
    for machine in world.sites:
        machine.groups = range(0)  # they write nothing
    blocks, most = world.plan.blocks, dict[int, int]()
    for number in (0, 2):
        world.sites[number // 2].outbound.reserve(stream_ids(number, BLOCK))
        world.tick(50)
        most[number] = int(world.sites[number // 2].outbound.words["granted"][0])
    assert most == {0: 1, 2: 1} and blocks > 2


def test_an_actor_sees_all_places_at_once_that_home_gave_at_once() -> None:
    """So what a generator draws side by side does not depend on when messages come."""
    world = World(0, 4, delay=0.5, held=3)
    outbound, seen = world.sites[0].outbound, set[int]()
    for machine in world.sites:
        machine.groups = range(0)  # they write nothing
    outbound.reserve(stream_ids(0, BLOCK))
    for _ in range(50):
        world.tick()
        seen.add(int(outbound.words["granted"][0]))
    assert seen == {0, 3}


def test_a_block_that_is_void_before_it_is_begun_is_not_written() -> None:
    outbound = Machine(
        "site 0", 1, plan(), range(1), Way(Clock(), random.Random(0), 0.0), held=2
    ).outbound
    streams = stream_ids(0, BLOCK)
    assert outbound.reserve(streams) is None and outbound.words["want"][0] == 2
    # slots: one for each of those that are written, and one that is sent
    assert outbound.grant(0, [4, 6, 8, 9]) == 3
    outbound.void(0)
    assert outbound.reserve(streams) is None and outbound.words["full"][0] == 3
    while (found := outbound.complete(0)) is not None:
        assert found[1] == VOID
        outbound.sent(0, found[0])
    assert outbound.quiet


def test_what_a_dead_actor_had_begun_is_void_and_what_it_had_handed_in_is_sent() -> None:
    outbound = Machine(
        "site 0", 1, plan(), range(1), Way(Clock(), random.Random(0), 0.0), held=3
    ).outbound
    streams = stream_ids(0, BLOCK)
    outbound.reserve(streams)
    outbound.grant(0, [4, 6, 8])
    first, second = outbound.reserve(streams), outbound.reserve(streams)
    assert first is not None and second is not None
    outbound.commit(second)
    outbound.cancel(streams)
    sent = []
    while (found := outbound.complete(0)) is not None:
        sent.append(found[1])
        outbound.sent(0, found[0])
    assert sent == [VOID, 6, VOID] and outbound.quiet and outbound.words["lives"][0] == 1
    assert outbound.reserve(streams) is None and outbound.words["want"][0] == 3 + 3


@pytest.mark.slow
@pytest.mark.parametrize("max_lag", [0, 1, 4, None])
def test_nothing_is_lost_in_a_thousand_schedules(max_lag: int | None) -> None:
    for seed in range(100, 350):
        schedule(seed, max_lag)


class GrantsAtOnce(SiteBlocks):
    """A place is handed out before the weights of its version are here."""

    def _grant(self, group: Any) -> None:
        for granted in group.pending:
            granted.versions = granted.versions - 3
        super()._grant(group)


class SkipsAVersion(SiteBlocks):
    """Weights are taken for newer than they are."""

    def take(self, message: Any) -> None:
        version, *sequences = np.frombuffer(message.body, np.int64).tolist()
        super().take(replace(message, body=np.array([version - 1, *sequences]).tobytes()))


class CountsAfterwards(SiteBlocks):
    """Statistics follow the rows that they belong to."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._counted = lambda group: ()


class RemembersAtTheSite(SiteBlocks):
    """The rows of a session follow from those that were sent in the last one."""

    def forget(self) -> None:
        known = [group.last.known for group in self._groups.values()]
        super().forget()
        for group, was in zip(self._groups.values(), known, strict=True):
            group.last.known = was


class RemembersAtHome(HomeBlocks):
    """The same at home, which would refuse them."""

    def forget(self) -> None:
        super().forget()
        for remote in self._remotes.values():
            if remote.last is not None:
                remote.last.known = True


class AnySession(Line):
    """Every message is taken, whenever it was sent."""

    def receive(self, now: float) -> Any:
        while (found := self.link.receive()) is not None:
            frame = parse(*found, self._most)
            self._heard_at = now
            if frame.kind is not Kind.BEAT:
                return frame
        return None


class TakesAll(Proxy):
    def expect(self, name: str, *rest: Any) -> None:
        super().expect(name, *rest)
        self._sites[name].line.__class__ = AnySession


class TakesFencedRows(HomeBlocks):
    """What was granted before the session ended is still taken."""

    def _let_go(self, remote: Any) -> None:
        before = dict(remote.open)
        super()._let_go(remote)
        remote.open.update(before)


class SaysSoTooEarly(HomeBlocks):
    """The driver is told to take the blocks back while the proxy still grants them."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._cancelled = self._gone


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "broken",
    [
        (GrantsAtOnce,),
        (SkipsAVersion,),
        (CountsAfterwards,),
        (TakesFencedRows, TakesAll),
        (SaysSoTooEarly,),
        (RemembersAtTheSite, RemembersAtHome),
    ],
    ids=lambda broken: broken[0].__name__,
)
def test_a_protocol_that_is_broken_is_caught(broken: Any) -> None:
    names = {Proxy: "proxy", HomeBlocks: "home", SiteBlocks: "blocks"}
    made = {name: one for one in broken for base, name in names.items() if issubclass(one, base)}

    def hunt() -> None:
        for seed in range(20):
            schedule(seed, seed % 2, **made)

    with pytest.raises(AssertionError):
        hunt()


def test_the_same_actors_go_on_after_a_partition() -> None:
    world = World(0, 1, delay=2.0)
    world.tick(100)
    while not all(world.home.remotes[group].open for group in (0, 1)):
        world.tick()
    world.ways[0].cut(5 * SILENT, told=False)
    world.tick(int(5 * SILENT))
    said = [text for site, text in world.home.heard if site == "site 0"]
    assert said[0] == "joined" and "was silent for long" in said[1]
    dropped = world.home.check()["dropped"]
    assert dropped > 0
    done = dict(world.sites[0].done)
    world.settle()
    assert [text for site, text in world.home.heard if site == "site 0"][2:] == ["joined"]
    assert world.home.check()["dropped"] == dropped
    assert all(world.sites[0].done[group] > done[group] + 5 for group in (0, 1))


@pytest.mark.parametrize("hears", [True, False])
def test_a_site_goes_on_where_the_word_that_its_session_began_is_lost(
    hears: bool, monkeypatch: Any
) -> None:
    if not hears:  # that home's number is higher: it asks with the old one for ever
        monkeypatch.setattr(site, "AHEAD", 0)
    world = World(0, 1, delay=2.0)
    while not world.home.proxy._sites["site 0"].nonce:
        world.tick()
    assert not world.sites[0].end.joined
    world.ways[0].cut(0, told=False)
    world.tick(4 * int(SILENT))
    assert world.sites[0].end.joined is hears


def test_a_twin_that_was_thought_dead_is_told_and_never_heard() -> None:
    world = World(0, 1, delay=2.0)
    world.tick(50)
    world.replace(0)
    world.settle()
    assert world.twins[0].ended and "replaced by incarnation 2" in world.twins[0].ended[0]
    assert world.home.proxy._sites["site 0"].line.refused["another session"] > 0


def test_a_site_of_another_run_is_refused(monkeypatch: Any) -> None:
    world = World(0, 1, delay=2.0)
    monkeypatch.setattr(world.sites[0].end, "_digest", "another program")
    world.tick(50)
    assert "expected a site of the run" in world.sites[0].ended[0]
    assert [text for site, text in world.home.heard if site == "site 0"] == []


def test_a_cut_is_passed_on_to_every_site_also_to_one_that_joins_later() -> None:
    world = World(0, 1, delay=2.0)
    world.home.cut = 3, 500, False
    world.tick(50)
    assert [site.cuts for site in world.sites] == [[(3, 500)], [(3, 500)]]
    world.replace(1)
    world.tick(50)
    assert world.sites[1].cuts == [(3, 500)]


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("max_lag", [0, 1, 4, None])
def test_nobody_writes_from_the_moment_that_a_site_hears_of_a_cut(
    seed: int, max_lag: int | None
) -> None:
    """Whenever it comes, and whatever goes wrong: the learner saves a queue without an open block,
    and the run goes on.
    """
    world = World(seed, max_lag, delay=8.0)
    for number in range(1, 12):
        world.tick(world.chance.randrange(60))
        cut = number, 10 * number
        world.home.cut = *cut, False
        for _ in range(400):
            if all(cut in site.cuts for site in world.sites):
                break
            world.tick()
        rested = world.chance.randrange(40)
        if world.chance.random() < 0.3:
            world.trouble()
        for _ in range(rested):
            world.tick()
            assert not any(site.writing and cut in site.cuts for site in world.sites)
        world.home.cut = None
    world.settle()


def test_a_long_file_comes_whole_and_is_no_flood() -> None:
    world, data = World(0, 1, delay=3.0), bytes(range(256)) * (PIECE * 5 * PIECES // 256)
    world.tick(20)
    machine, parts = world.sites[0], list[int]()
    machine.end.files("actor 0", {"actor_000.safetensors": data}, then={"cut": 1})
    machine.end.say("actor 0", {"episode": 1})
    for _ in range(200):
        world.tick()
        coming = [
            parse(head, b"", dict.fromkeys(Kind, 0)).kind for _, head, _ in world.ways[0].home.inbox
        ]
        parts.append(coming.count(Kind.PIECE))
    assert 1 < max(parts) <= PIECES
    heard = [said for who, said in world.home.heard if who == "actor 0"]
    assert heard == [("actor_000.safetensors", data), {"cut": 1}, {"episode": 1}]


def test_a_file_is_not_gone_on_with_in_another_session() -> None:
    world = World(0, 1, delay=2.0)
    world.tick(20)
    world.sites[0].end.files("actor 0", {"a": bytes(PIECE * 5 * PIECES)}, then={"cut": 1})
    world.ways[0].cut(5 * SILENT, told=True)
    world.tick(int(5 * SILENT))
    world.settle()
    assert [said for who, said in world.home.heard if who == "actor 0"] == []
    world.sites[0].end.files("actor 0", {"b": b"whole"}, then={"cut": 2})
    world.tick(20)
    assert [said for who, said in world.home.heard if who == "actor 0"] == [
        ("b", b"whole"),
        {"cut": 2},
    ]


def test_a_site_cannot_write_what_workers_of_another_count() -> None:
    world = World(0, 1, delay=0.0)
    world.tick(20)
    before = world.home.counts[2].copy()
    line = world.sites[0].end.line
    line.send(Statistics(2, bytes(range(8))))
    world.home.proxy.tick(world.clock.now)
    assert world.home.proxy.refused["wrong numbers"] == 1 and (world.home.counts[2] == before).all()
    world.settle()

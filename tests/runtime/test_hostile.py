"""Garbage at both ends of the protocol: it is refused and counted, and it ends at most the session
that it came in.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from equipoise.runtime.cluster.blocks import HomeBlocks
from equipoise.runtime.cluster.frames import HEAD, LAYOUT, MAGIC, Kind, Piece, Said, Want, made
from equipoise.runtime.cluster.proxy import Proxy
from equipoise.runtime.cluster.proxy_worker import ProxyWorker
from equipoise.runtime.cluster.weights import SiteWeights
from equipoise.runtime.cluster.wire import (
    OUTSIDE,
    REASONS,
    WORDS,
    Refused,
    Tally,
    parse,
    read,
    words,
)
from equipoise.runtime.messages import CutBegun, Linked, Relayed, to_json
from tests.runtime.sites import DIGEST, End
from tests.runtime.test_sites import World

NUMBERS = (0, 1, -1, 2, 3, 7, 1 << 31, (1 << 63) - 1, -(1 << 63))
# lies about them are as good as the truth
CONTENT = (Kind.ROWS, Kind.STATISTICS, Kind.WEIGHTS, Kind.GRANT)
TEXTS = (
    b"",
    b"[]",
    b"{",
    b"null",
    b"1" * 5000,
    b'{"a": ' * 50_000,
    b"[" * 100_000,
    b"\xff\xfe",
    b'{"title": 1}',
    b'{"plan": []}',
    words(title="actor 0"),
    words(title="actor 0", message=7),
    words(title=None, name="x"),
    words(why=[]),
    words(why=None),
)


class Fuzzer:
    """Makes messages from others that were under way."""

    def __init__(self, chance: random.Random) -> None:
        self._chance, self.seen = chance, deque[tuple[bytes, bytes]](maxlen=1000)

    def message(self) -> tuple[bytes, bytes]:
        chance = self._chance
        if not self.seen or chance.random() < 0.1:
            return chance.randbytes(
                chance.choice((0, 1, HEAD - 1, HEAD, HEAD, HEAD + 1, 200))
            ), chance.randbytes(chance.randrange(64))
        # the last: its number is right
        head, body = self.seen[-1] if chance.random() < 0.5 else chance.choice(self.seen)
        fields = list(LAYOUT.unpack(head))
        what = chance.choice((0, 2, 3, 4, 6)) if fields[1] in CONTENT else chance.randrange(7)
        if what == 0:  # again, or late
            return head, body
        if what == 1:  # a number is another
            at = chance.randrange(2, 7)
            fields[at] = chance.choice((*NUMBERS, chance.getrandbits(62), fields[at] + 1))
        elif what == 2:  # the kind is another
            fields[1] = chance.choice((*(set(Kind) - {fields[1], *CONTENT}), 0, 10, 1 << 31))
            fields[3] += 1
        elif what == 3:  # the size is another
            body = (
                body[:-1]
                if chance.random() < 0.5 and body
                else body + bytes(chance.choice((1, 8, 1000)))
            )
            fields[3] += chance.randrange(1, 3)
        elif what == 4:  # the words are others
            fields[1], body = (
                chance.choice((Kind.SAID, Kind.HELLO, Kind.REFUSED)),
                chance.choice(TEXTS),
            )
            if fields[1] in OUTSIDE:
                fields[2] = 0
            else:
                fields[3] += 1
        elif what == 5:  # another group, block or version, in its turn
            fields[3] += 1
            fields[chance.randrange(4, 7)] = chance.choice((*NUMBERS, chance.randrange(6)))
        elif fields[1] not in CONTENT and body:  # one bit of the body
            changed = bytearray(body)
            changed[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
            body, fields[3] = bytes(changed), fields[3] + 1
        else:  # one bit of the head
            changed = bytearray(head)
            changed[chance.randrange(HEAD)] ^= 1 << chance.randrange(8)
            return bytes(changed), body
        return LAYOUT.pack(*fields), body


def tapped(end: End, fuzzer: Fuzzer, share: Callable[[], bool], thrown: Counter[str]) -> None:
    """Let messages that the fuzzer made stand between those that come to this end."""
    receive = end.receive

    def hear() -> tuple[bytes, bytes] | None:
        if share():
            thrown["messages"] += 1
            return fuzzer.message()
        found = receive()
        if found is not None:
            fuzzer.seen.append(found)
        return found

    end.receive = hear  # type: ignore[method-assign]


def fuzz(seed: int, count: int, *, at: str, **broken: Any) -> World:
    """Throw so many messages at home's end of site 0, or at site 0 -> the world after it."""
    world, thrown = World(seed, 1, delay=2.0, **broken), Counter[str]()
    chance, going = random.Random(seed + 1), True
    tapped(
        world.ways[0].home if at == "home" else world.ways[0].home.to[0],
        Fuzzer(chance),
        lambda: going and world.clock.now > 50 and chance.random() < 0.3,
        thrown,
    )
    while thrown["messages"] < count:
        world.tick(20)
        world.home.check()
        assert world.clock.now < 100 * count, "nothing is thrown any more"
    going = False
    assert [text for site, text in world.home.heard if site == "site 1"] == ["joined"], (
        "the other site was disturbed"
    )
    assert max(world.home.lags) <= 1
    world.settle()
    return world


@pytest.mark.parametrize("at", ["home", "site"])
@pytest.mark.parametrize(
    "count",
    [
        2_000,
        pytest.param(10_000, marks=pytest.mark.thorough),
        pytest.param(50_000, marks=pytest.mark.slow),
    ],
)
def test_garbage_ends_at_most_the_session_that_it_came_in(at: str, count: int, seed: int) -> None:
    world = fuzz(seed % 1000, count, at=at)
    tally = world.home.proxy.refused if at == "home" else world.sites[0].end.line.refused
    assert tally.total > count / 2
    reasons = {"no message", "unknown kind", "too large", "another session", "out of order"}
    assert (
        reasons | ({"no JSON", "wrong numbers"} if at == "home" else set())
        <= tally.by_reason().keys()
    )
    assert [text for site, text in world.home.heard if site == "site 0"][-1] == "joined"
    assert world.home.proxy._sites["site 1"].line.session


@pytest.mark.parametrize("count", [10_000, pytest.param(200_000, marks=pytest.mark.thorough)])
def test_nothing_but_a_message_or_a_refusal_comes_of_any_bytes(count: int, seed: int) -> None:
    """``parse`` and ``words``, for messages of every kind that are changed in every way."""
    fuzzer, most = (
        Fuzzer(random.Random(seed)),
        dict.fromkeys(Kind, 64) | {Kind.SAID: WORDS, Kind.HELLO: WORDS},
    )
    for kind in Kind:
        message = made(kind, (1, 2, 3), b"")
        fuzzer.seen.append(
            (message.head(0 if kind in OUTSIDE else 3, 1), words(title="actor 0", plan=DIGEST))
        )
    found = Counter[str]()
    for _ in range(count):
        head, body = fuzzer.message()
        try:
            frame = parse(head, body, most)
            assert (
                len(frame.message.body) <= most[frame.kind]
                and len(head) == HEAD
                and head[:4] == MAGIC.to_bytes(4, "little")
            )
            found["read"] += 1
            read(frame.message)
        except Refused as error:
            found[error.reason] += 1
    assert found["read"] > count / 10
    assert found.keys() - REASONS == {"read"}
    assert found.keys() >= {"no message", "unknown kind", "too large", "another session", "no JSON"}


class HasAny(dict[int, Any]):
    """A mapping that claims to have every number."""

    def __contains__(self, number: object) -> bool:
        return True


class TakesTheirWord(HomeBlocks):
    """The group of a message is not looked at."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._remotes = self._kept = HasAny(self._remotes)


class EndsTheWrongSession(Proxy):
    """A message that is refused ends the sessions of all sites."""

    def _take(self, site: Any, message: Any) -> None:
        try:
            super()._take(site, message)
        except Refused:
            for one in self._sites.values():
                one.line.end()
            raise


class BelievesHome(SiteWeights):
    """The policy of weights is not looked at."""

    def take(self, message: Any) -> None:
        self._stores[message.policy].publish_bytes(message.version, message.body)


@pytest.mark.parametrize(
    "broken", [TakesTheirWord, EndsTheWrongSession, BelievesHome], ids=lambda one: one.__name__
)
def test_an_end_that_believes_what_it_hears_is_caught(broken: Any) -> None:
    def hunt() -> None:
        names = {
            Proxy: ("home", "proxy"),
            HomeBlocks: ("home", "home"),
            SiteWeights: ("site", "weights"),
        }
        at, name = next(found for base, found in names.items() if issubclass(broken, base))
        for seed in range(5):
            fuzz(seed, 2500, at=at, **{name: broken})

    with pytest.raises((AssertionError, IndexError, KeyError, ValueError)):
        hunt()


def test_a_site_that_floods_its_home_ends_its_session() -> None:
    """Places without end, words without end, and a file without end."""
    for kind in (Want, Said, Piece):
        world = World(0, 1, delay=0.0)
        world.tick(20)
        line, here = world.sites[0].end.line, world.home.proxy._sites["site 0"].line
        session = line.session
        if kind is Want:
            for _ in range(10):
                line.send(Want(count=1))
        elif kind is Said:  # each piece is one that a file may have
            line.send(Said(bytes(WORDS + 1)))
        else:
            here._size = 1 << 32  # as if so much of a file had come
            line._send(Piece(), memoryview(b"more"))
        world.tick(2)
        assert world.home.proxy._sites["site 0"].line.session != session
        assert world.home.proxy.refused["wrong numbers" if kind is Want else "too large"] == 1
        world.settle()


def test_reasons_are_counted_where_others_read_them() -> None:
    world = World(0, 1, delay=0.0)
    tally = Tally(world.home.fences["refused"])
    assert tally.total == 0 and tally.by_reason() == {}
    world.sites[0].end.line.link.send(b"no head", b"")
    world.tick(5)
    assert tally.by_reason() == {"no message": 1} and tally["no message"] == tally.total == 1


@pytest.mark.parametrize(
    "message",
    [Linked(site="site 1", how=""), CutBegun(version=3), Relayed(title="learner", said={})],
)
def test_a_site_cannot_say_what_only_home_says(message: Any) -> None:
    home = SimpleNamespace(_titles={"site 0": ("actor 2",)})
    with pytest.raises(Refused, match=f"expected one of Note, .*, got '{type(message).__name__}'"):
        ProxyWorker.said(cast(ProxyWorker, home), "site 0", "actor 2", to_json(message))

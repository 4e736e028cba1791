"""Links over ZeroMQ: a message arrives whole, a closed connection is seen at once, and nobody
without the keys gets in.
"""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import zmq

from equipoise.curve import Keys
from equipoise.runtime.cluster.frames import Beat, Denied, Kind, Rows, Want
from equipoise.runtime.cluster.sockets import UNDER_WAY, Listener, SiteLink
from equipoise.runtime.cluster.wire import Tally
from tests.runtime.relay import Relay

LIMIT_S = 60.0
HEAD = Beat().head(1, 1)


def until(true: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    """Wait for what it returns."""
    deadline = time.monotonic() + limit_s
    while not (found := true()):
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.01)
    return found


def heard(home: Listener, look: Callable[[], Any]) -> Any:
    """Let home read what has come, and look."""
    home.collect()
    return look()


@pytest.fixture
def keys() -> tuple[Keys, Keys]:
    return Keys.made(), Keys.made()


@pytest.fixture
def home(keys: tuple[Keys, Keys]) -> Iterator[Listener]:
    most = {Kind.BEAT: 1 << 20, Kind.WANT: 0}
    listener = Listener("127.0.0.1", keys[0], keys[1].public, most, Tally(), groups=60)
    yield listener
    listener.close()


@pytest.fixture
def connect(home: Listener, keys: tuple[Keys, Keys]) -> Iterator[Callable[..., SiteLink]]:
    made: list[SiteLink] = []

    def one(
        name: str = "site",
        incarnation: int = 1,
        public: bytes = keys[0].public,
        mine: Keys = keys[1],
        groups: int = 1,
    ) -> SiteLink:
        made.append(
            SiteLink(name, incarnation, f"127.0.0.1:{home.port}", public, mine, groups=groups)
        )
        return made[-1]

    yield one
    for link in made:
        link.close()


def test_messages_go_both_ways_whole_and_in_order(
    home: Listener, connect: Callable[..., SiteLink]
) -> None:
    here, there = home.end("site", 1), connect()
    until(lambda: there.send(HEAD, b"0"))
    for n in range(1, 50):
        assert there.send(HEAD, bytes([n]) * 10_000)
    got = list[bytes]()

    def all_came() -> bool:
        home.collect()
        while (found := here.receive()) is not None:
            assert found[0] == HEAD
            got.append(bytes(found[1])[:1])
        return len(got) == 50

    until(all_came)
    assert got == [b"0", *(bytes([n]) for n in range(1, 50))]
    assert here.send(HEAD, b"answer")
    head, body = until(there.receive)
    assert head == HEAD and bytes(body) == b"answer"


def test_what_may_be_under_way_goes_by_the_groups_of_a_site(
    home: Listener, connect: Callable[..., SiteLink]
) -> None:
    """Home reads nothing meanwhile: its memory, the kernel's and the site's take what they may."""
    taken, data = {}, bytes(1 << 15)
    for groups in (1, 60):
        there = connect(f"site of {groups}", groups=groups)
        until(partial(there.send, HEAD, b""))
        taken[groups] = sum(there.send(HEAD, data) for _ in range(UNDER_WAY + 20 * 60))
    assert taken[60] == UNDER_WAY + 20 * 60 > taken[1] + 300


def test_a_site_that_is_killed_is_seen_at_once(
    home: Listener, connect: Callable[..., SiteLink]
) -> None:
    here, other = home.end("site", 1), home.end("other", 1)
    there, stays = connect(), connect("other")
    for link, end in ((there, here), (stays, other)):
        until(partial(link.send, HEAD, b""))
        until(partial(heard, home, end.receive))
    there.close()
    until(lambda: heard(home, here.closed))
    assert not other.closed()
    assert not here.send(HEAD, b"")


def test_home_that_is_gone_is_seen(home: Listener, connect: Callable[..., SiteLink]) -> None:
    home.end("site", 1)
    there = connect()
    until(lambda: there.send(HEAD, b""))
    home._socket.close()
    until(there.closed)
    until(lambda: not there.send(HEAD, b""))


def test_a_connection_that_gets_no_answer_is_given_up_and_made_again(
    home: Listener, keys: tuple[Keys, Keys]
) -> None:
    here, way = home.end("site", 1), Relay("127.0.0.1", home.port)
    way.fall_silent()
    there = SiteLink("site", 1, f"127.0.0.1:{way.port}", keys[0].public, keys[1], silent_s=1.0)
    try:
        until(lambda: way.ends)
        way.speak()
        # a handshake may take 30 s where nothing else is said
        until(lambda: there.send(HEAD, b"again"), 15.0)
        assert bytes(until(lambda: heard(home, here.receive))[1]) == b"again"
    finally:
        there.close()
        way.close()


@pytest.mark.parametrize("whose", ["server", "site"])
def test_the_keys_of_another_run_do_not_get_in(
    whose: str, home: Listener, connect: Callable[..., SiteLink]
) -> None:
    here, another = home.end("site", 1), Keys.made()
    there = connect(public=another.public) if whose == "server" else connect(mine=another)
    until(lambda: heard(home, lambda: home.refused["another key"]))
    assert not there.send(HEAD, b"let me in")
    assert here.receive() is None
    # the second: a handshake that the other end left
    assert home.refused.by_reason().keys() <= {"another key", "no key"}


@pytest.mark.parametrize("mechanism", ["NULL", "PLAIN"])
def test_who_has_no_key_does_not_get_in(mechanism: str, home: Listener) -> None:
    here = home.end("site", 1)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.setsockopt(zmq.IDENTITY, b"site.1")
        if mechanism == "PLAIN":
            stranger.plain_username, stranger.plain_password = b"site", b"1"
        stranger.connect(f"tcp://127.0.0.1:{home.port}")
        stranger.send_multipart([HEAD, b"let me in"])
        until(lambda: heard(home, lambda: home.refused["no key"]))
    assert here.receive() is None


# of ZMTP 3.0
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\0" + b"CURVE".ljust(20, b"\0") + bytes(32)


def throw(home: Listener, data: bytes) -> None:
    """Say this to home's port by TCP, and wait until home hangs up."""
    with (
        socket.create_connection(("127.0.0.1", home.port)) as raw,
        contextlib.suppress(ConnectionError),
    ):
        raw.sendall(data)
        with contextlib.suppress(OSError):  # home has hung up already
            raw.shutdown(socket.SHUT_WR)
        raw.settimeout(LIMIT_S)
        while raw.recv(4096):
            pass


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.0\r\n\r\n" * 100, "no ZeroMQ"),
        (b"x", "no ZeroMQ"),
        (GREETING + b"\x04\x19hello hello hello hello ...", "no key"),
        (GREETING.replace(b"CURVE", b"NULL\0"), "no key"),
    ],
    ids=["http", "a byte", "a broken handshake", "without a key"],
)
def test_what_is_no_zeromq_at_all_does_not_get_in(data: bytes, reason: str, home: Listener) -> None:
    here = home.end("site", 1)
    throw(home, data)
    until(lambda: heard(home, lambda: home.refused[reason]))
    assert here.receive() is None and home.refused.total == 1


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.thorough)])
def test_a_site_is_not_disturbed_by_what_others_throw_at_its_home(
    count: int, home: Listener, connect: Callable[..., SiteLink], seed: int
) -> None:
    """Random bytes, and handshakes that are broken at a random byte, while a site works."""
    chance, here, there = random.Random(seed), home.end("site", 1), connect()
    until(lambda: there.send(HEAD, b""))
    until(lambda: heard(home, here.receive))
    for n in range(count):
        data = bytearray(GREETING + chance.randbytes(chance.randrange(200)))
        if n % 2:
            data[: chance.randrange(64)] = chance.randbytes(chance.randrange(64))
        throw(home, bytes(data))
        assert there.send(HEAD, b"%d" % n)
        assert bytes(until(lambda: heard(home, here.receive))[1]) == b"%d" % n
        # home does not ask whether this site is still there
        assert not here.closed() and there.receive() is None
    until(lambda: heard(home, lambda: home.refused.total >= count))
    assert home.refused.total == count
    assert not here.closed() and not there.closed()


def test_a_message_above_the_limit_of_its_kind_is_not_kept(
    home: Listener, connect: Callable[..., SiteLink]
) -> None:
    here, there = home.end("site", 1), connect()
    until(lambda: there.send(Want().head(1, 1), b"!"))
    assert (
        there.send(Rows().head(1, 1), b"")
        and there.send(HEAD[:-1], b"")
        and there.send(HEAD, b"the last")
    )
    assert bytes(until(lambda: heard(home, here.receive))[1]) == b"the last"
    assert home.refused.by_reason() == {"too large": 1, "unknown kind": 1, "no message": 1}
    assert not there.closed()


def test_an_older_incarnation_is_told_that_it_was_replaced(
    home: Listener, connect: Callable[..., SiteLink]
) -> None:
    home.end("site", 1)
    here, twin = home.end("site", 2), connect()
    until(lambda: twin.send(HEAD, b""))
    head, body = until(lambda: heard(home, twin.receive))
    assert head == Denied(-1).head() and b"replaced" in bytes(body)
    assert here.receive() is None and home.refused["no site of this run"] >= 1


def test_a_message_above_all_limits_closes_its_connection_and_no_other(
    home: Listener, connect: Callable[..., SiteLink]
) -> None:
    here, other = home.end("site", 1), home.end("other", 1)
    there, stays = connect(), connect("other")
    for link, end in ((there, here), (stays, other)):
        until(partial(link.send, HEAD, b""))
        until(partial(heard, home, end.receive))
    assert there.send(HEAD, bytes(3 << 20))
    until(there.closed)
    assert stays.send(HEAD, b"still here")
    assert bytes(until(lambda: heard(home, other.receive))[1]) == b"still here"
    assert here.receive() is None and not stays.closed()

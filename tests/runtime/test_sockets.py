"""Links over ZeroMQ: a message arrives whole, a closed connection is seen at once, and nobody without the keys gets in."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from equipoise.runtime.cluster.sockets import Keys, Listener, SiteLink
from equipoise.runtime.cluster.wire import Frame, Kind

LIMIT_S = 60.0
HEAD = Frame(Kind.BEAT, 1, 1).head


def until(true: Callable[[], Any]) -> Any:
    """Wait for what it returns."""
    deadline = time.monotonic() + LIMIT_S
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
    listener = Listener("127.0.0.1", keys[0], keys[1].public, 1 << 20)
    yield listener
    listener.close()


@pytest.fixture
def connect(home: Listener, keys: tuple[Keys, Keys]) -> Iterator[Callable[..., SiteLink]]:
    made: list[SiteLink] = []

    def one(name: str = "site", incarnation: int = 1, public: bytes = keys[0].public, mine: Keys = keys[1]) -> SiteLink:
        made.append(SiteLink(name, incarnation, f"127.0.0.1:{home.port}", public, mine, 1 << 20))
        return made[-1]

    yield one
    for link in made:
        link.close()


def test_messages_go_both_ways_whole_and_in_order(home: Listener, connect: Callable[..., SiteLink]) -> None:
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


def test_a_site_that_is_killed_is_seen_at_once(home: Listener, connect: Callable[..., SiteLink]) -> None:
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


@pytest.mark.parametrize("whose", ["server", "site"])
def test_the_keys_of_another_run_do_not_get_in(whose: str, home: Listener, connect: Callable[..., SiteLink]) -> None:
    here, another = home.end("site", 1), Keys.made()
    there = connect(public=another.public) if whose == "server" else connect(mine=another)
    until(lambda: heard(home, lambda: home.failed))
    assert not there.send(HEAD, b"let me in")
    assert here.receive() is None


def test_what_is_no_zeromq_at_all_does_not_get_in(home: Listener) -> None:
    here = home.end("site", 1)
    with socket.create_connection(("127.0.0.1", home.port)) as raw:
        raw.sendall(b"GET / HTTP/1.0\r\n\r\n" * 100)
        raw.settimeout(LIMIT_S)
        with contextlib.suppress(ConnectionResetError):
            while raw.recv(4096):
                pass
    home.collect()
    assert here.receive() is None


def test_an_older_incarnation_is_told_that_it_was_replaced(home: Listener, connect: Callable[..., SiteLink]) -> None:
    home.end("site", 1)
    here, twin = home.end("site", 2), connect()
    until(lambda: twin.send(HEAD, b""))
    head, body = until(lambda: heard(home, twin.receive))
    assert head == Frame(Kind.REFUSED, 0, 0, -1).head and b"replaced" in bytes(body)
    assert here.receive() is None and home.refused["no site of this run"] >= 1


def test_a_message_that_is_too_large_is_not_taken(home: Listener, connect: Callable[..., SiteLink]) -> None:
    here, there = home.end("site", 1), connect()
    until(lambda: there.send(HEAD, b""))
    until(lambda: heard(home, here.receive))
    assert there.send(HEAD, bytes(3 << 20))
    until(there.closed)
    home.collect()
    assert here.receive() is None

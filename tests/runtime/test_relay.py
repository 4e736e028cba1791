"""The relay that other tests put between sites and home does what they take it for."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.runtime.relay import Relay

LIMIT_S = 60.0
QUIET_S = 0.3  # without a word


@pytest.fixture
def home() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(LIMIT_S)
        yield made


@pytest.fixture
def relay(home: socket.socket) -> Iterator[Relay]:
    made = Relay("127.0.0.1", home.getsockname()[1], 0.02)
    yield made
    made.close()


def connected(home: socket.socket, relay: Relay) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection through the relay."""
    there = socket.create_connection(("127.0.0.1", relay.port), LIMIT_S)
    here, _ = home.accept()
    here.settimeout(LIMIT_S)
    return there, here


def read(end: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count and (data := end.recv(1 << 16)):
        got += data
    return got


def silent(end: socket.socket) -> bool:
    end.settimeout(QUIET_S)
    try:
        return not end.recv(1) and False  # even the end of a connection is a word
    except TimeoutError:
        return True


def test_everything_arrives_late_whole_and_in_order(
    home: socket.socket, relay: Relay, seed: int
) -> None:
    data, begun = random.Random(seed).randbytes(1 << 20), time.monotonic()
    there, here = connected(home, relay)
    with there, here:
        for end, other in ((there, here), (here, there)):
            sender = threading.Thread(target=end.sendall, args=(data,))
            sender.start()
            assert read(other, len(data)) == data
            sender.join()
            for _ in range(10):
                end.sendall(b".")
                assert read(other, 1) == b"."
        assert time.monotonic() - begun > 20 * 0.02 / 4
        there.close()
        assert here.recv(1) == b""


def test_a_cut_is_told_to_both_ends_and_the_next_connection_works(
    home: socket.socket, relay: Relay
) -> None:
    there, here = connected(home, relay)
    with there, here:
        relay.cut()
        for end in (there, here):
            with contextlib.suppress(ConnectionError):
                assert end.recv(1) == b""
    there, here = connected(home, relay)
    with there, here:
        there.sendall(b"again")
        assert read(here, 5) == b"again"


def test_what_was_connected_in_the_silence_or_before_it_hears_nothing_ever(
    home: socket.socket, relay: Relay
) -> None:
    there, here = connected(home, relay)
    relay.fall_silent()
    during = socket.create_connection(("127.0.0.1", relay.port), LIMIT_S)
    with there, here, during:
        for end in (there, here, during):
            end.sendall(b"anybody?")
        assert all(silent(end) for end in (there, here, during))
        relay.speak()
        there.close()
        assert silent(here) and silent(during)
        there, here = connected(home, relay)
        with there, here:
            here.sendall(b"again")
            assert read(there, 5) == b"again"

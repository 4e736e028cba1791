"""The hub: strangers that send much keep nobody waiting, and its end takes no core."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise import frames
from equipoise.envs.worlds import hub as hubs
from equipoise.envs.worlds.addresses import Address
from tests.worlds.test_remote import HELLO


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[hubs.Hub]:
    made = hubs.Hub(Address(path=str(tmp_path / "w")), token=None, spaces=None, grace_s=20.0, heartbeat_s=0.05)
    yield made
    made.close()


def connected(hub: hubs.Hub) -> socket.socket:
    conn = socket.socket(socket.AF_UNIX)
    conn.settimeout(20)
    conn.connect(hub.address.path)
    return conn


def heard(conn: socket.socket) -> dict[str, Any]:
    splitter = frames.Splitter()
    while data := conn.recv(1 << 16):
        for body in splitter.feed(data):
            return frames.decode(body)
    raise AssertionError("the connection ended")


def test_one_who_sends_beats_for_ever_keeps_nobody_waiting(hub: hubs.Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "GREETING_S", 0.5)
    beats = frames.encode({"kind": "beat"}) * 1000

    def flood(conn: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is left
            while True:
                conn.sendall(beats)

    with connected(hub) as stranger, connected(hub) as world:
        thread = threading.Thread(target=flood, args=(stranger,))
        thread.start()
        try:
            world.sendall(frames.encode(HELLO))
            assert heard(world)["kind"] == "wait"
            thread.join(20)
            assert not thread.is_alive(), "it never says hello, so it is left"
        finally:
            with contextlib.suppress(OSError):
                stranger.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert any("expected a hello within" in one for one in hub.notes())


def test_the_end_takes_no_core(hub: hubs.Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, inner = list[float](), hub._look

    def noted(now: float) -> None:
        looks.append(time.monotonic())
        inner(now)

    monkeypatch.setattr(hub, "_look", noted)
    hub._orphans.add("one that may come again")
    hub.says_over = True
    hub.close()
    assert len(looks) < 50, "it waits for worlds, and does not spin"


def test_it_is_closed_after_its_thread_has_ended_by_itself(hub: hubs.Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is found alive may have ended a moment later, with all that it had."""
    alive = hub._thread.is_alive
    hub._closing = time.monotonic()
    hub._wake_write.send(b".")
    hub._thread.join()
    monkeypatch.setattr(hub._thread, "is_alive", lambda: True)  # as it was when it was asked
    hub.close()
    assert not alive() and hub._wake_write.fileno() == -1
    hub.close()


def test_several_may_close_it_at_once(hub: hubs.Hub) -> None:
    wrong = list[BaseException]()

    def close() -> None:
        try:
            hub.close()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and not hub._thread.is_alive()

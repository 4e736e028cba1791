"""The hub: strangers that send much keep nobody waiting, and its end takes no core."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise import frames
from equipoise.envs.worlds import hub as hubs
from equipoise.envs.worlds.addresses import Address
from equipoise.listening import PAUSE_S, accept
from tests.worlds.test_remote import HELLO

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[hubs.Hub]:
    made = hubs.Hub(
        Address(path=str(tmp_path / "w")), token=None, spaces=None, grace_s=20.0, heartbeat_s=0.05
    )
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


def test_one_who_sends_beats_for_ever_keeps_nobody_waiting(
    hub: hubs.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_it_is_closed_after_its_thread_has_ended_by_itself(
    hub: hubs.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_strangers_without_a_hello_keep_no_world_out(
    hub: hubs.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "GREETINGS", 8)
    with contextlib.ExitStack() as held:
        strangers = [held.enter_context(connected(hub)) for _ in range(30)]
        world = held.enter_context(connected(hub))
        world.sendall(frames.encode(HELLO))
        assert heard(world)["kind"] == "wait"
        assert heard(strangers[0])["code"] == "full", "the oldest makes room"


def test_a_world_that_the_run_knows_has_a_place_of_its_own(
    hub: hubs.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "WAITING", 2)
    hub._orphans.add("known")
    with contextlib.ExitStack() as held:

        def says(session: str) -> dict[str, Any]:
            conn = held.enter_context(connected(hub))
            conn.sendall(frames.encode(HELLO | {"session": session}))
            return heard(conn)

        assert [says(one)["kind"] for one in ("s0", "s1")] == ["wait", "wait"]
        assert says("new")["code"] == "full"
        assert says("known")["kind"] == "wait" and says("s1")["kind"] == "wait"


def test_it_takes_no_core_where_no_descriptor_is_left(
    hub: hubs.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection that cannot be accepted stays, so that the hub is told of it at once, again
    and again.
    """
    at: list[float] = []

    def counted(listening: socket.socket) -> socket.socket | None:
        at.append(time.monotonic())
        return accept(listening)

    monkeypatch.setattr(hubs, "accept", counted)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as world:
        os.close(lowest := os.dup(world.fileno()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            world.connect(hub.address.path)
            end = time.monotonic() + 20
            while len(at) < 6 and time.monotonic() < end:
                time.sleep(0.01)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(at) >= 6 and at[5] - at[0] > 4 * PAUSE_S, at
        world.settimeout(20)
        world.sendall(frames.encode(HELLO | {"version": 7}))
        assert heard(world)["code"] == "version"  # there is room again


@pytest.mark.parametrize(
    "space",
    [
        {"type": "Discrete", "n": 1 << 62, "start": 0, "dtype": "int64"},
        {"type": "MultiDiscrete", "nvec": [1 << 62, 3], "start": [0, 0], "dtype": "int64"},
        {
            "type": "Dict",
            "spaces": [
                ["a", {"type": "Discrete", "n": 200_000, "start": 0, "dtype": "int64"}],
                ["b", {"type": "Discrete", "n": 200_000, "start": 0, "dtype": "int64"}],
            ],
        },
    ],
)
@pytest.mark.parametrize("name", ["observation", "action"])
def test_a_space_of_more_values_than_a_policy_can_have(
    hub: hubs.Hub, name: str, space: dict[str, Any]
) -> None:
    with connected(hub) as world:
        world.sendall(frames.encode(HELLO | {name: space}))
        said = heard(world)
    assert said["code"] == "space" and "at most 262,144 values in all" in said["text"]


CLIENTS = {
    "py": "import sys; sys.path.insert(0, 'clients'); import world\n"
    "w = world.World({address!r}, world.box([1]), world.discrete(2)); print('in', flush=True); "
    "w.close()",
    "mjs": "import {{ World, box, discrete }} from './clients/world.mjs';\n"
    "const w = await World.connect({address!r}, {{ observation: box([1]), action: discrete(2), "
    "patience: 100 }});"
    "console.log('in'); w.close(); process.exit(0);",
}


@pytest.mark.parametrize("client", [*CLIENTS])
def test_a_client_waits_while_all_places_are_taken(tmp_path: Path, client: str) -> None:
    path = str(tmp_path / "w")
    script = CLIENTS[client].format(address=f"unix:{path}")
    words = (
        [sys.executable, "-c", script]
        if client == "py"
        else [shutil.which("node") or "", "--input-type=module", "-e", script]
    )
    if not words[0]:
        pytest.skip("node is not installed")
    welcome = {
        "kind": "welcome",
        "version": 1,
        "seen": -1,
        "life": "x",
        "stream": 0,
        "seed": 1,
        "grace_s": 5.0,
        "heartbeat_s": 1.0,
    }
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        server.settimeout(30)
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        conns = []
        try:
            for answer in [{"kind": "refuse", "code": "full", "text": "no place"}] * 3 + [welcome]:
                conn, _ = server.accept()
                conns.append(conn)
                conn.settimeout(30)
                assert heard(conn)["kind"] == "hello"
                conn.sendall(frames.encode(answer))
                if answer is not welcome:
                    conn.close()
            assert process.communicate(timeout=30)[0].strip() == "in"
        finally:
            for conn in conns:
                conn.close()
            process.kill()
            process.wait()

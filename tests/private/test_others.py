"""Each private name of multiprocessing, h11, Ray and Brax: it is there, and means what ``private/``
says.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import h11
import pytest

from equipoise.private import brax, ray
from equipoise.private import forkserver as private
from equipoise.private import h11 as private_h11
from equipoise.private.multiprocessing import folder

SERVER = private.ForkServer()


class Served(private.ServedProcess):
    server = SERVER


def parent_of(pid: int | None) -> int:
    found = re.search(r"PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1])


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_a_process_comes_from_the_server_of_its_class() -> None:
    assert private.pid(SERVER) is None
    SERVER.set_forkserver_preload([])
    try:
        ours, theirs = multiprocessing.Pipe()
        process = Served(target=_answer, args=(theirs,))
        process.start()
        child, parent = ours.recv()
        assert (
            child == process.pid
            and parent == private.pid(SERVER)
            and parent_of(parent) == os.getpid()
        )
        process.join(60)
        assert process.exitcode == 7
    finally:
        private.stop(SERVER)
    assert private.pid(SERVER) is None


def _answer(pipe: Any) -> None:
    pipe.send((os.getpid(), os.getppid()))
    os._exit(7)


def test_pythons_own_server() -> None:
    forkserver.ensure_running()
    assert parent_of(private.pid()) == os.getpid()
    place = folder()
    assert place is not None and any(Path(place).iterdir())  # the server's socket


def test_what_a_connection_received_is_looked_at() -> None:
    connection, seen = h11.Connection(h11.SERVER), list[bytes]()
    received = private_h11.watched(connection, lambda data: seen.append(bytes(data)))
    assert not received
    assert connection.next_event() is h11.NEED_DATA and seen == []
    connection.receive_data(b"GET / HTTP/1.1\r\nHost: ")
    assert (
        received
        and connection.next_event() is h11.NEED_DATA
        and seen == [b"GET / HTTP/1.1\r\nHost: "]
    )
    connection.receive_data(b"a\r\n\r\n")
    assert isinstance(connection.next_event(), h11.Request) and not received
    assert seen[1] == b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"

    def refuse(data: bytearray) -> None:
        raise h11.RemoteProtocolError("too long")

    refusing = h11.Connection(h11.SERVER)
    private_h11.watched(refusing, refuse)
    refusing.receive_data(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    with pytest.raises(h11.RemoteProtocolError, match="too long"):
        refusing.next_event()


@pytest.mark.ray
def test_draining_machines_are_named() -> None:
    real: Any = pytest.importorskip("ray")
    real.init(num_cpus=1, include_dashboard=False)
    try:
        assert ray.draining() == set()
    finally:
        real.shutdown()


@pytest.mark.jax
def test_brax_has_a_list_of_its_envs() -> None:
    real: Any = pytest.importorskip("brax.envs")
    found = brax.envs()
    assert "ant" in found and isinstance(real.get_environment("ant"), found["ant"])

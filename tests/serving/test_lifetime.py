"""The server's life: it follows the registry, goes on with a full disk, and ends without losing an
answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
import sqlite3
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from equipoise.client import Client
from equipoise.listening import listen_at
from equipoise.registry import Registry
from equipoise.serving.server import _drain
from tests.serving.servers import OBS, registry, serving

MASKED = {"obs": OBS, "action_mask": [1, 0, 1]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("served")
    registry(place, mask=1)
    return place


def test_frames_and_http_share_the_time_to_end() -> None:
    """The frames take all of it, so HTTP gets none."""

    async def ended() -> float:
        loop = asyncio.get_running_loop()
        end = loop.time() + 0.1

        async def drain(over: Any) -> None:
            while not over():
                await asyncio.sleep(0.01)

        service: Any = SimpleNamespace(batcher=[], draining=False)
        web: Any = SimpleNamespace(
            servers=[], server_state=SimpleNamespace(connections=set()), config=SimpleNamespace()
        )
        frame_server: Any = SimpleNamespace(
            connections=set(), drain=drain, stop_listening=lambda: None
        )
        await _drain(service, web, frame_server, loop.create_task(asyncio.sleep(0)), end)
        assert service.draining and web.should_exit
        return float(web.config.timeout_graceful_shutdown)

    assert asyncio.run(ended()) == 0.0


def test_a_server_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    """It accepts nobody, and no more may wait for it."""
    path = tmp_path / "hung.sock"
    with socket.socket(socket.AF_UNIX) as hung, contextlib.ExitStack() as stack:
        hung.bind(str(path))
        hung.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                one = stack.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                one.connect(str(path))
        with pytest.raises(OSError, match="expected a path on which nobody listens"):
            listen_at(path)
    assert path.exists()
    listen_at(path).close()  # the file of a dead one is replaced


def test_sigterm_under_load_loses_no_answer(folder: Path, tmp_path: Path) -> None:
    """Callers go on until their connection ends: each request was answered whole, or the connection
    ended before any of it.
    """
    with serving(tmp_path, "mask", registry=folder / "registry") as running:
        ids: list[str] = []
        hung: list[str] = []

        def call(place: str) -> None:
            with Client(place, timeout_s=15) as client:
                try:
                    while True:
                        ids.append(client.act(MASKED).id)
                except TimeoutError:
                    hung.append(place)
                except ConnectionError:
                    return

        callers = [
            threading.Thread(target=call, args=(place,))
            for place in [running.url, f"unix:{running.uds}"] * 4
        ]
        for one in callers:
            one.start()
        end = time.monotonic() + 20
        while len(ids) < 300:
            assert time.monotonic() < end
            time.sleep(0.005)
        running.process.send_signal(signal.SIGTERM)
        for one in callers:
            one.join(20)
        assert running.process.wait(20) == 0 and not hung
    file = sqlite3.connect(tmp_path / "mask.decisions")
    stored = {one for (one,) in file.execute("SELECT id FROM decisions")}
    file.close()
    assert len(ids) == len(set(ids)) and set(ids) <= stored
    assert not running.uds.exists()


@pytest.mark.thorough
def test_a_full_disk(folder: Path, tmp_path: Path) -> None:
    """The file may not grow any more: deterministic actions go on, nothing is explored, and an
    alarm says why.
    """
    with (
        serving(tmp_path, "mask", registry=folder / "registry") as running,
        Client(f"unix:{running.uds}") as client,
    ):
        assert client.act(MASKED, deterministic=False).fallback is None
        # less than a page
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))
        end = time.monotonic() + 60
        while not (state := client.state())["alarms"]:
            assert time.monotonic() < end
            assert client.act(MASKED).fallback is None
        assert "records are lost" in state["alarms"][0] and state["ready"]
        assert client.act(MASKED).fallback is None
        assert client.act(MASKED, deterministic=False).fallback == "unlogged"
        assert running.ask("POST", "/v1/outcome", {"id": "x"})[0] == 507
        page = running.ask("GET", "/metrics")[1].decode()
        assert "equipoise_alarms 1.0" in page and 'by="unlogged"' in page
        lost = float(page.partition("\nequipoise_records_lost_total ")[2].split()[0])
        assert lost > 0 and running.logged("decisions cannot be written")
        resource.prlimit(
            running.process.pid,
            resource.RLIMIT_FSIZE,
            (resource.RLIM_INFINITY, resource.RLIM_INFINITY),
        )
        while client.state()["alarms"]:  # there is room again
            assert time.monotonic() < end
            client.act(MASKED)
        assert client.act(MASKED, deterministic=False).fallback is None


@pytest.mark.thorough
def test_the_registry_is_followed(folder: Path, tmp_path: Path) -> None:
    made = registry(tmp_path, mlp=2)
    a, b = list(made.versions("mlp"))[::-1]
    with serving(tmp_path, "mlp") as running, Client(running.url) as client:

        def until(version: str) -> None:
            end = time.monotonic() + 20
            while client.act(OBS).version != version:
                assert time.monotonic() < end

        until(a)
        with client.episode("long") as episode:
            assert episode.act(OBS).version == a
            made.alias("mlp", "champion", b)
            until(b)
            assert episode.act(OBS).version == a
        made.rollback("mlp")
        until(a)
        # a version that is damaged is not served, and the old one goes on
        weights = made.resolve("mlp", b)[1] / "policy.onnx"
        weights.chmod(0o644)
        data = bytearray(weights.read_bytes())
        data[len(data) // 2] ^= 1
        weights.write_bytes(data)
        Path(made.path / "x").touch()
        _damaged(made, b)
        end = time.monotonic() + 20
        while not (alarms := client.state()["alarms"]):
            assert time.monotonic() < end
        assert "policy.onnx: expected the SHA-256" in alarms[0] and client.act(OBS).version == a
        assert len(running.logged("swapped")) == 2


def _damaged(made: Registry, version: str) -> None:
    """Name a damaged version the champion, which the registry itself refuses to do."""
    from unittest import mock

    with mock.patch("equipoise.registry.artifacts.problems", return_value=[]):
        made.alias("mlp", "champion", version)

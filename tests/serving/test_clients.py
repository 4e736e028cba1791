"""The clients in Python (sync and async) and in JavaScript, against a server."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from equipoise import client as clients
from equipoise.client import AsyncClient, Client, Decision, ServeError
from tests.serving.servers import OBS, Running, registry, serving

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    place = tmp_path_factory.mktemp("served")
    registry(place, lstm=1)
    with serving(place, "lstm") as running:
        yield running


@pytest.mark.few(2)
@pytest.mark.parametrize("uds", [False, True])
def test_python(uds: bool, server: Running) -> None:
    with Client(f"unix:{server.uds}" if uds else server.url) as client:
        with client.episode() as episode:
            one = [episode.act(np.array(OBS, np.float32)) for _ in range(3)]
            assert {type(d) for d in one} == {Decision} and one[0].session == episode.name
        with pytest.raises(ServeError, match="404: session: expected an open episode") as refused:
            client.act(OBS, session=episode.name)
        assert refused.value.status == 404
        two = [
            client.act(
                OBS, session="x", first=t == 0, done=t == 2, unit="me", deadline_ms=5000
            ).action
            for t in range(3)
        ]
        assert two == [d.action for d in one]
        client.outcome(one[0].id, reward=1.0, data={"clicks": [1]})
        assert client.state()["policy"] == "lstm"
        with pytest.raises(ServeError, match="400: body: |400: frame: "):
            client.act(OBS, sesion="x")  # type: ignore[call-arg]
        # the connection goes on after a refusal
        assert client.act(OBS, session="y", first=True, done=True).version


@pytest.mark.few(2)
@pytest.mark.parametrize("uds", [False, True])
def test_python_async(uds: bool, server: Running) -> None:
    async def play() -> None:
        async with AsyncClient(f"unix:{server.uds}" if uds else server.url) as client:
            told = await asyncio.gather(
                *[client.act(OBS, session=f"{uds}-{i}", first=True, done=True) for i in range(50)]
            )
            assert len({d.id for d in told}) == 50 and len({d.action for d in told}) == 1
            assert [d.session for d in told] == [f"{uds}-{i}" for i in range(50)]
            with pytest.raises(ServeError, match="404"):
                await client.end("nobody")
            await client.outcome(told[0].id, reward=0.0)
            assert (await client.state())["ready"]

    asyncio.run(play())


def test_a_client_says_what_is_wrong(tmp_path: Path) -> None:
    with (
        Client("http://127.0.0.1:9") as client,
        pytest.raises(ConnectionError, match=r"http://127.0.0.1:9: expected a server"),
    ):
        client.state()
    with (
        Client(f"unix:{tmp_path}/none") as client,
        pytest.raises(ConnectionError, match="none: expected a server"),
    ):
        client.state()
    with pytest.raises(
        ValueError,
        match="expected http://HOST:PORT, https://HOST:PORT or unix:PATH, got '127.0.0.1:80'",
    ):
        Client("127.0.0.1:80")


@pytest.mark.thorough
def test_a_restart_is_survived(tmp_path: Path) -> None:
    registry(tmp_path, mlp=1)
    with serving(tmp_path, "mlp") as first, Client(f"unix:{first.uds}") as client:
        before = client.act(OBS)
        first.process.terminate()
        first.process.wait(20)
        with serving(tmp_path, "mlp"):
            assert client.act(OBS).action == before.action


def test_a_client_of_a_process_with_many_files(server: Running) -> None:
    """Its descriptor is above 1023, which ``select`` refuses."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        while stack.enter_context(open(os.devnull)).fileno() < 1024:
            pass
        client = stack.enter_context(Client(f"unix:{server.uds}"))
        assert client.state()["ready"] and client.state()["ready"]


def test_its_msgpack_is_msgpack() -> None:
    values: list[Any] = [
        None,
        True,
        False,
        0,
        1,
        -1,
        127,
        128,
        -32,
        -33,
        255,
        70000,
        1 << 40,
        -(1 << 40),
        1.5,
        "",
        "é" * 40,
        "x" * 300,
        b"",
        b"x" * 300,
        [],
        list(range(20)),
        {},
        {"a": [1, {"b": None}]},
        {str(i): i for i in range(20)},
        [[]] * 70000,
    ]
    for value in values:
        packed = bytearray()
        clients._pack(value, packed)
        assert msgspec.msgpack.decode(packed) == value
        assert clients._unpack(msgspec.msgpack.encode(value), 0) == (
            value,
            len(msgspec.msgpack.encode(value)),
        )


def test_it_is_one_file_without_dependencies(tmp_path: Path) -> None:
    shutil.copy(ROOT / "src" / "equipoise" / "client.py", tmp_path)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import client; "
    code += "print(sorted({m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)))"
    done = subprocess.run(
        [sys.executable, "-S", "-I", "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert set(ast.literal_eval(done.stdout)) <= {"__main__", "client"}


def test_javascript(server: Running, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    (tmp_path / "try.mjs").write_text(f"""
import {{ Client, ServeError }} from "{ROOT}/clients/client.mjs";
const client = new Client("{server.url}");
const episode = client.episode("js");
const told = [];
for (let t = 0; t < 3; t++) told.push(await episode.act(new Float32Array({json.dumps(OBS)})));
await episode.end();
await client.outcome(told[0].id, {{ reward: 1 }});
let refused;
try {{ await client.act([1], {{ session: "js2", first: true }}); }}
catch (error) {{ refused = [error instanceof ServeError, error.status, error.message]; }}
let gone;
try {{ await new Client("http://127.0.0.1:9").state(); }} catch (error) {{ gone = error.message; }}
console.log(JSON.stringify({{ actions: told.map((d) => d.action), refused, gone, ready: (await client.state()).ready }}));
""")  # noqa: E501
    done = subprocess.run(
        [node, str(tmp_path / "try.mjs")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    with Client(server.url) as client, client.episode() as episode:
        assert said["actions"] == [episode.act(OBS).action for _ in range(3)]
    assert said["refused"][:2] == [True, 400] and "obs: expected shape [4]" in said["refused"][2]
    assert "expected a server that answers" in said["gone"] and said["ready"]

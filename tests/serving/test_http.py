"""The server as a process: HTTP, the unix socket, what is refused, limits, and how it ends."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import os
import re
import shlex
import socket
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from equipoise import frames
from equipoise.client import Client
from equipoise.registry import RegistryReader
from equipoise.serving.server import serve
from equipoise.serving.settings import Rules, Settings
from tests.serving.servers import OBS, Running, exchange, read_answer, registry, serving

MSGPACK = "application/msgpack"
MASKED = {"obs": OBS, "action_mask": [1, 0, 1]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("served")
    registry(place, mask=1, lstm=1)
    return place


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    limits = (
        "--max-body",
        "20000",
        "--max-connections",
        "40",
        "--allow-origin",
        "https://good.example",
    )
    with serving(folder, "mask", *limits) as running:
        yield running


@pytest.fixture(scope="module")
def recurrent(folder: Path) -> Iterator[Running]:
    with serving(folder, "lstm", "--max-sessions", "3") as running:
        yield running


def test_json_msgpack_and_frames_say_the_same(server: Running) -> None:
    status, said = server.ask("POST", "/v1/act", {"obs": MASKED})
    assert (
        status == 200
        and said["action"] in (0, 2)
        and said["propensity"] == 1.0
        and said["fallback"] is None
    )
    arrays = {"obs": np.array(OBS, np.float32), "action_mask": np.array([1, 0, 1], np.int8)}
    body = frames.encode({"obs": arrays})[4:]
    status, packed = server.ask("POST", "/v1/act", body, Content_Type=MSGPACK)
    assert status == 200
    answers = [said, msgspec.msgpack.decode(packed)]
    with Client(f"unix:{server.uds}") as client:
        framed = client.act(arrays)
        answers.append({name: getattr(framed, name) for name in said})
    assert len({one.pop("id") for one in answers}) == 3
    assert answers[0] == answers[1] == answers[2]


def test_no_torch_no_env(server: Running) -> None:
    assert server.logged("serving")[0]["torch"] is False
    loaded = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "onnxruntime" in loaded and "torch" not in loaded and "gymnasium" not in loaded


def packed_obs(obs: Any) -> bytes:
    return frames.encode({"obs": obs})[frames.HEAD.size :]


BAD = {
    "not json": (b"{", {}, 400, "body: "),
    "nothing": (b"", {}, 400, "body: "),
    "another key": ({"obss": 1}, {}, 400, "unknown field `obss`; did you mean 'obs'?"),
    "a wrong type": (
        {"obs": MASKED, "session": 3},
        {},
        400,
        "Expected `str | null`, got `int` - at `$.session`",
    ),
    "wrong keys": (
        {"obs": {"obs": OBS, "action_msk": [1, 1, 1]}},
        {},
        400,
        "obs: expected the keys ['action_mask', 'obs']",
    ),
    "a wrong shape": (
        {"obs": {**MASKED, "obs": [1.0, 2.0]}},
        {},
        400,
        "obs/obs: expected shape [4]",
    ),
    "a text": (
        {"obs": {**MASKED, "obs": ["a", 0, 0, 0]}},
        {},
        400,
        "obs/obs: expected float32 [4], got",
    ),
    "too large a number": (
        {"obs": {**MASKED, "obs": [1e39, 0, 0, 0]}},
        {},
        400,
        "obs/obs: expected finite numbers, got inf",
    ),
    "ragged": (
        {"obs": {**MASKED, "obs": [[1], [1, 2]]}},
        {},
        400,
        "obs/obs: expected float32 [4], got lists",
    ),
    "no action allowed": (
        {"obs": {**MASKED, "action_mask": [0, 0, 0]}},
        {},
        400,
        "obs/action_mask: expected at least one",
    ),
    "a batch": (
        {"obs": {"obs": [OBS, OBS], "action_mask": [[1, 1, 1]] * 2}},
        {},
        400,
        "expected one observation, got a batch",
    ),
    "an unknown version": (
        {"obs": MASKED, "version": "deadbeefdead"},
        {},
        404,
        "version: expected one that an alias of",
    ),
    "an unknown session": (
        {"obs": MASKED, "session": "nobody"},
        {},
        404,
        "session: expected an open episode, got 'nobody'",
    ),
    "another type": (
        {"obs": MASKED},
        {"Content_Type": "text/xml"},
        415,
        "Content-Type: expected application/json",
    ),
    "a foreign host": (
        {"obs": MASKED},
        {"Host": "evil.example"},
        403,
        "Host: expected one of 127.0.0.1, ::1, localhost",
    ),
    "a foreign page": (
        {"obs": MASKED},
        {"Origin": "https://evil.example"},
        403,
        "Origin: expected https://good.example, got",
    ),
    "a file's page": ({"obs": MASKED}, {"Origin": "null"}, 403, "Origin: expected"),
    "too long": ({"obs": [0.1] * 9999}, {}, 413, "body: expected at most 20,000 bytes, got"),
    "deep": (b'{"obs": ' + b"[" * 5000 + b"]" * 5000 + b"}", {}, 400, "body: "),
    "nan in msgpack": (
        packed_obs({**MASKED, "obs": np.array([np.nan, 0, 0, 0], np.float32)}),
        {"Content_Type": MSGPACK},
        400,
        "obs/obs: expected finite numbers, got nan",
    ),
    "a false array": (
        packed_obs({"dtype": "float32", "shape": [4], "data": b"123"}),
        {"Content_Type": MSGPACK},
        400,
        "obs.data: expected float32 [4] in 16 bytes, got 3 bytes",
    ),
}


@pytest.mark.few(len(BAD))
@pytest.mark.parametrize("name", BAD)
def test_bad_requests(name: str, server: Running) -> None:
    body, headers, status, sentence = BAD[name]
    got, said = server.ask("POST", "/v1/act", body, **headers)
    assert (got, sentence in said["error"]) == (status, True), said


def test_bad_frames(server: Running) -> None:
    def answered(sent: bytes) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(server.uds))
            connection.sendall(sent)
            size = int.from_bytes(connection.recv(4), "big")
            return frames.decode(connection.recv(size, socket.MSG_WAITALL))

    assert answered(struct.pack(">I", 30_000)) == {
        "n": 0,
        "status": 400,
        "error": "a frame of 30,000 bytes announced, expected at most 20,000",
    }
    assert "Expected" in answered(frames.encode({"op": "act", "n": "x", "obs": 1}))["error"]
    assert "op" in answered(frames.encode({"op": "acts", "obs": 1}))["error"]
    assert answered(frames.encode({"op": "act", "n": 7, "obs": [1]}))["n"] == 7
    assert answered(struct.pack(">I", 3) + b"\x01\x02\x03")["status"] == 400
    assert os.stat(server.uds).st_mode & 0o777 == 0o600


@pytest.mark.thorough
def test_a_slow_request(folder: Path, tmp_path: Path) -> None:
    """Nothing, half of the head, half of the body, half of a frame; also where it is not the first
    of its connection.
    """
    head = b"POST /v1/act HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with (
        serving(
            tmp_path, "mask", "--request-timeout", "2", registry=folder / "registry"
        ) as running,
        contextlib.ExitStack() as stack,
    ):

        def connected() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", running.port), 20))

        parts = [b"", head, head + b"Content-Length: 10\r\n\r\n{"]
        connections = [(connected(), part) for part in parts]
        for part in parts[1:]:
            connections.append((connected(), part))
            connections[-1][0].sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert read_answer(connections[-1][0])[0] == 200
        for connection, part in connections:
            connection.sendall(part)
        framed = stack.enter_context(socket.socket(socket.AF_UNIX))
        framed.settimeout(20)
        framed.connect(str(running.uds))
        framed.sendall(struct.pack(">I", 100) + b"a part")
        for connection, _ in connections:
            status, said, _ = read_answer(connection)
            assert status == 408 and "must be whole within 2 s" in said["error"]
            assert connection.recv(10) == b""
        answer = framed.recv(int.from_bytes(framed.recv(4), "big"), socket.MSG_WAITALL)
        assert frames.decode(answer) == {
            "n": 0,
            "status": 408,
            "error": "frame: must be whole within 2 s, got a part of it",
        }


def test_bytes_that_are_no_request(server: Running) -> None:
    status, said, _ = exchange(server.port, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
    assert status == 400 and "expected HTTP/1.1" in said["error"]
    status, _, _ = exchange(
        server.port,
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 400_000 + b"\r\n\r\n",
    )
    assert status == 431
    assert server.ask("GET", "/v1/act")[0] == 405 and server.ask("DELETE", "/v1/outcome")[0] == 405
    assert server.ask("GET", "/v1/nothing")[1] == {
        "error": "GET /v1/nothing: Not Found; /openapi.json lists the paths and methods"
    }


@pytest.mark.parametrize("path", ["/v1/act", "/readyz"])  # Starlette answers the second
def test_an_answer_is_one_packet(path: str, server: Running) -> None:
    """Nagle's algorithm would hold its second half for 40 ms."""
    body = json.dumps({"obs": MASKED}).encode() if path == "/v1/act" else b""
    asked = (
        f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        f"{len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(asked.encode() + body)
        head, _, said = connection.recv(1 << 16).partition(b"\r\n\r\n")
    assert (
        head.startswith(b"HTTP/1.1 200")
        and b"content-length: %d" % len(said) in head.lower()
        and said
    )


def test_connections_are_limited(server: Running) -> None:
    held = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(41)]
    try:
        assert read_answer(held[40])[0] == 503
    finally:
        for one in held:
            one.close()
    end = time.monotonic() + 10
    while server.ask("GET", "/healthz")[0] != 200:
        assert time.monotonic() < end


def test_pages_that_may_ask(server: Running) -> None:
    origin = {"Origin": "https://good.example"}
    head = f"Host: 127.0.0.1:{server.port}\r\nOrigin: https://good.example\r\n"
    asked = f"OPTIONS /v1/act HTTP/1.1\r\n{head}Access-Control-Request-Method: POST\r\n\r\n"
    status, _, headers = exchange(server.port, asked.encode())
    assert status == 204 and headers["access-control-allow-origin"] == origin["Origin"]
    assert "authorization" in headers["access-control-allow-headers"]
    assert server.ask("POST", "/v1/act", {"obs": MASKED}, **origin)[0] == 200
    own = f"http://127.0.0.1:{server.port}"
    assert server.ask("POST", "/v1/act", {"obs": MASKED}, Origin=own)[0] == 200


def test_what_it_says_of_itself(server: Running) -> None:
    assert server.ask("GET", "/healthz") == (200, {"alive": True})
    status, ready = server.ask("GET", "/readyz")
    assert status == 200 and ready["policy"] == "mask" and ready["alarms"] == []
    _, document = server.ask("GET", "/openapi.json")
    assert document["openapi"] == "3.1.0" and set(
        document["components"]["schemas"]["Act"]["required"]
    ) == {"obs"}
    assert document["paths"]["/v1/act"]["post"]["responses"]["200"]
    server.ask("POST", "/v1/act", {"obs": MASKED})
    page = server.ask("GET", "/metrics")[1].decode()
    assert (
        f'equipoise_decisions_total{{by="policy",version="{ready["versions"]["champion"]}"}}'
        in page
    )
    assert (
        "equipoise_decision_seconds_bucket" in page and "equipoise_records_lost_total 0.0" in page
    )


def test_its_page_has_the_version_a_form_and_a_curl_line_that_works(server: Running) -> None:
    ask = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()
    status, body, headers = exchange(server.port, ask)
    text = html.unescape(body.decode())
    version = server.ask("GET", "/readyz")[1]["versions"]["champion"]
    assert status == 200 and headers["content-type"].startswith("text/html")
    assert version in text and "The policy mask" in text and "<form>" in text
    (line,) = re.findall(r"<pre>(curl .*?)</pre>", text)
    words = shlex.split(line)
    assert words[1] == f"http://127.0.0.1:{server.port}/v1/act"
    status, said = server.ask("POST", "/v1/act", words[words.index("-d") + 1].encode())
    assert status == 200 and said["version"] == version
    (given,) = re.findall(r"<textarea[^>]*>(.*?)</textarea>", text)
    assert server.ask("POST", "/v1/act", {"obs": json.loads(given)})[0] == 200
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    for kind in ("script", "style"):
        (inside,) = re.findall(f"<{kind}>(.*?)</{kind}>", body.decode(), re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", text), "nothing from elsewhere"
    ask = f"GET /docs HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()
    status, _, headers = exchange(server.port, ask)
    assert (status, headers["location"]) == (302, "./")
    status, said = server.ask("GET", "/", Host="evil.example")
    assert status == 403 and "Host" in said["error"]


def test_outcomes_are_stored(server: Running, folder: Path) -> None:
    _, decision = server.ask("POST", "/v1/act", {"obs": MASKED, "unit": "me"})
    assert server.ask("POST", "/v1/outcome", {"id": decision["id"], "reward": 2.5})[0] == 200
    assert server.ask(
        "POST", "/v1/outcome", [{"id": "x", "data": [1, {"a": None}]}, {"id": "y"}]
    ) == (200, {"stored": 2})
    assert server.ask("POST", "/v1/outcome", {"reward": 1})[0] == 400
    file = sqlite3.connect(f"file:{folder / 'mask.decisions'}?mode=ro", uri=True)
    assert file.execute(
        "SELECT reward, unit FROM decisions JOIN outcomes USING (id)"
    ).fetchall() == [(2.5, "me")]
    assert file.execute("SELECT data FROM outcomes WHERE id = 'x'").fetchall() == [
        ('[1, {"a": null}]',)
    ]
    observation = file.execute("SELECT observation FROM decisions WHERE unit = 'me'").fetchone()[0]
    file.close()
    np.testing.assert_array_equal(
        frames.array(frames.decode(observation)["obs/obs"], "obs"), np.array([OBS], np.float32)
    )


def test_sessions_over_http(recurrent: Running) -> None:
    _, first = recurrent.ask("POST", "/v1/act", {"obs": OBS, "session": "a", "first": True})
    assert recurrent.ask("POST", "/v1/act", {"obs": OBS, "session": "a"})[0] == 200
    assert recurrent.ask("POST", "/v1/act", {"obs": OBS})[0] == 400
    again = recurrent.ask("POST", "/v1/act", {"obs": OBS, "session": "b", "first": True})[1]
    assert again["action"] == first["action"]
    assert (
        recurrent.ask("POST", "/v1/act", {"obs": OBS, "session": "c", "first": True, "done": True})[
            0
        ]
        == 200
    )
    assert recurrent.ask("POST", "/v1/act", {"obs": OBS, "session": "d", "first": True})[0] == 200
    assert recurrent.ask("POST", "/v1/act", {"obs": OBS, "session": "e", "first": True})[0] == 429
    assert [
        recurrent.ask("POST", "/v1/end", {"session": name})[0] for name in ("a", "b", "d", "d")
    ] == [200, 200, 200, 404]


def test_what_is_refused_at_the_start(folder: Path, server: Running, tmp_path: Path) -> None:
    reader = RegistryReader(folder / "registry")

    def refused(sentence: str, policy: str = "mask", **settings: Any) -> None:
        with pytest.raises((ValueError, OSError), match=re.escape(sentence)):
            serve(reader, Settings(policy=policy, **{"port": 0, **settings}))

    refused(
        "--host 0.0.0.0: must have a token if other machines can connect, got none", host="0.0.0.0"
    )
    refused("unknown policy 'musk'; did you mean 'mask'?", "musk")
    refused("policy: expected a name of letters", "../../etc")
    refused(f"{server.uds}: expected a path on which nobody listens", uds=server.uds)
    refused("expected a socket, or nothing, got another file", uds=server.log)
    refused("expected an address and a port that are free here", port=server.port)
    refused("expected a port or a unix socket to listen on, got neither", port=None)
    refused("expected a policy whose action is a Box", rules=Rules(low=0))
    refused(
        "expected a file for decisions that can be written", decisions=tmp_path / "nowhere" / "x"
    )
    assert server.ask("GET", "/healthz")[0] == 200 and server.uds.exists()


def test_the_command_says_it_in_a_line(folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "equipoise",
        "serve",
        str(folder / "registry"),
        "--policy",
        "mask",
        "--host",
        "0.0.0.0",
    ]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2 and done.stdout == ""
    assert (
        done.stderr.startswith("equipoise serve: --host 0.0.0.0: must have a token")
        and done.stderr.count("\n") == 1
    )


def test_a_token(folder: Path, tmp_path: Path) -> None:
    (folder / "token").write_text("0123456789abcdef-token\n")
    with serving(
        tmp_path,
        "mask",
        "--host",
        "127.0.0.2",
        "--token-file",
        str(folder / "token"),
        "--decisions",
        "none",
        registry=folder / "registry",
    ) as running:
        port, body = running.port, json.dumps({"obs": MASKED}).encode()

        def status(path: str, token: str | None, method: str = "POST") -> int:
            more = f"Authorization: Bearer {token}\r\n" if token else ""
            head = (
                f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.2:{port}\r\nContent-Length: "
                f"{len(body)}\r\n{more}\r\n"
            )
            with socket.create_connection(("127.0.0.2", port), 10) as connection:
                connection.sendall(head.encode() + body)
                return read_answer(connection)[0]

        assert [
            status("/v1/act", token)
            for token in (None, "0123456789abcdef-tokem", "0123456789abcdef-token")
        ] == [
            401,
            401,
            200,
        ]
        assert [
            status(path, None, "GET")
            for path in ("/", "/docs", "/metrics", "/openapi.json", "/v2/models/mask", "/readyz")
        ] == [401, 401, 401, 401, 401, 200]
        assert status("/healthz", None, "GET") == 200
        _, said, _ = exchange(
            port,
            f"GET /readyz HTTP/1.1\r\nHost: 127.0.0.2:{port}\r\n\r\n".encode(),
            host="127.0.0.2",
        )
        assert said == {"ready": True}
        with Client(running.url, token="0123456789abcdef-token") as client:
            assert client.act(MASKED).version and client.state()["versions"]

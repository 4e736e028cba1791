"""What a caller chooses is bounded: connections, headers, places of episodes, names, and how long
the loop is held.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import resource
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from uvicorn.server import ServerState

from equipoise import frames, hints
from equipoise.access import bearer_token
from equipoise.client import Client
from equipoise.files import BOM
from equipoise.serving import bounds
from equipoise.serving.frames_server import MOST_WAITING, TURN, Connection
from equipoise.serving.guard import Guard
from equipoise.serving.messages import Refused
from equipoise.serving.sessions import Sessions
from equipoise.serving.versions import Loaded
from equipoise.serving.waiting import Turns
from equipoise.web import CHUNKS_PER_TURN, fitting
from tests.outside.served import MOST_BODY, Line, Served, served
from tests.outside.server_door import HELD_S, MODEL
from tests.serving.servers import OBS, exchange, registry, serving

MASKED = {"obs": OBS, "action_mask": [1, 0, 1]}
COMMAS, INNER, VALUES = bounds.COMMAS - 8, bounds.INNER, bounds.MSGPACK_VALUES


@pytest.fixture
def server() -> Served:
    return served("mask")


def post(path: str, body: bytes, kind: str = "application/json", more: str = "") -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: "
        f"{kind}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def framed(path: str, message: dict[str, Any]) -> bytes:
    return post(path, frames.encode(message, 1 << 24)[4:], MSGPACK)


def chunked(rest: bytes) -> bytes:
    return b"POST /v1/act HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n" + rest


def health(headers: bytes) -> bytes:
    return b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers + b"\r\n"


def many(value: bytes, count: int) -> bytes:
    return b"[" + b",".join([value] * count) + b"]"


def packed(count: int, value: bytes) -> bytes:
    return b"\x82\xa2id\xa1x\xa4data\xdd" + count.to_bytes(4, "big") + value * count


def infer(rows: int, **more: Any) -> bytes:
    inputs = [
        {"name": "obs/obs", "shape": [rows, 4], "datatype": "FP32", "data": [0.1] * 4 * rows},
        {"name": "obs/action_mask", "shape": [rows, 3], "datatype": "INT8", "data": [1] * 3 * rows},
    ]
    return json.dumps({"inputs": inputs, **more}).encode()


MSGPACK, INFER = "application/msgpack", f"{MODEL}/infer"
LONG_TEXT = (
    b'{"obs":{"action_mask":[1],"obs":["' + b"x" * 1_000_000 + b'"' + b',""' * 100_000 + b"]}}"
)
TENSOR: dict[str, Any] = {"shape": [0], "datatype": "FP32"}
WORST = {
    "numbers": (post("/v1/act", b'{"obs":' + many(b"0.1234567890123456", COMMAS) + b"}"), 400),
    "lists": (post("/v1/act", b'{"obs":' + many(b"[]", INNER - 2) + b"}"), 400),
    "more lists": (post("/v1/act", b'{"obs":' + many(b"[]", COMMAS) + b"}"), 413),
    "all commas": (post("/v1/act", b"[" + b"0," * (bounds.JSON // 2 - 9) + b"0]"), 413),
    "digits": (post("/v1/act", b'{"obs":' + many(b"1" * 4000, 1000) + b"}"), 413),
    "many digits": (
        post("/v1/act", b'{"obs":' + many(b"1" * (bounds.LONG + 1), bounds.LONG_NUMBERS) + b"}"),
        400,
    ),
    "longer numbers": (
        post("/v1/act", b'{"obs":' + many(b"1" * bounds.DIGITS, 1 << 12) + b"}"),
        400,
    ),
    "more digits": (
        post("/v1/act", b'{"obs":' + many(b"1" * (bounds.LONG + 1), COMMAS) + b"}"),
        413,
    ),
    "integers": (post("/v1/act", b'{"obs":' + many(b"1" * bounds.LONG, COMMAS) + b"}"), 400),
    "one long text": (post("/v1/act", LONG_TEXT), 400),
    "a long key": (post("/v1/act", b'{"obs":{"' + b"k" * (bounds.JSON - 99) + b'":0}}'), 400),
    "a long field": (post("/v1/act", b'{"' + b"k" * (bounds.JSON - 99) + b'":0}'), 400),
    "many keys": (
        post("/v1/act", b'{"obs":{' + b",".join(b'"%d":0' % i for i in range(INNER - 2)) + b"}}"),
        400,
    ),
    "a long text": (
        post("/v1/outcome", b'{"id":"x","data":"' + b"\\u00e9" * bounds.ESCAPES + b'"}'),
        200,
    ),
    "more escapes": (
        post("/v1/outcome", b'{"id":"x","data":"' + b"\\u00e9" * (bounds.JSON // 6 - 9) + b'"}'),
        413,
    ),
    "letters": (
        post(
            "/v1/outcome",
            b'{"id":"x","data":"' + "\u00e9".encode() * (bounds.JSON // 2 - 99) + b'"}',
        ),
        200,
    ),
    "more letters": (
        post("/v1/outcome", b'{"id":"x","data":"' + b"e" * (MOST_BODY - 99) + b'"}'),
        413,
    ),
    "packed letters": (
        framed("/v1/outcome", {"id": "x", "data": "\u00e9" * (bounds.JSON // 2 - 99)}),
        200,
    ),
    "more packed letters": (
        framed("/v1/outcome", {"id": "x", "data": "\u00e9" * (MOST_BODY // 2 - 99)}),
        413,
    ),
    "packed bytes": (framed("/v1/outcome", {"id": "x", "data": b"e" * (MOST_BODY - 99)}), 400),
    "data": (
        post("/v1/outcome", b'{"id":"x","data":' + many(b"0.1234567890123456", COMMAS) + b"}"),
        200,
    ),
    "outcomes": (post("/v1/outcome", many(b'{"id":"x","data":{"a":1}}', 10_000)), 200),
    "packed numbers": (
        post("/v1/outcome", packed(VALUES - 72, b"\xcb" + b"\x3f" * 8), MSGPACK),
        200,
    ),
    "packed lists": (post("/v1/outcome", packed(INNER - 5, b"\x90"), MSGPACK), 200),
    "more packed": (post("/v1/outcome", packed(MOST_BODY - 99, b"\x00"), MSGPACK), 413),
    "more packed after a mark": (
        post("/v1/outcome", BOM + packed(MOST_BODY - 99, b"\x90"), MSGPACK),
        413,
    ),
    "packed keys": (post("/v1/outcome", packed(30_000, b"\x81\x92\x01\x02\x00"), MSGPACK), 413),
    "a large array": (
        post(
            "/v1/act", frames.encode({"obs": np.zeros(2_000_000, np.float32)}, 1 << 24)[4:], MSGPACK
        ),
        400,
    ),
    "rows": (post(INFER, infer(4096)), 200),
    "drawn rows": (post(INFER, infer(4096, parameters={"deterministic": False})), 200),
    "outputs": (post(INFER, infer(4096, outputs=[{"name": "action"}] * 2000)), 400),
    "a datatype": (post(INFER, infer(1).replace(b"FP32", b"FP32I6" * 50_000)), 400),
    "tensors": (
        post(
            INFER, json.dumps({"inputs": [TENSOR | {"name": str(i)} for i in range(9000)]}).encode()
        ),
        400,
    ),
    "headers": (health(b"a:b\r\n" * 50_000), 431),
    "short headers": (health(b"a:b\r\n" * 5_000), 431),
    "one header": (health(b"a: " + b"b" * 50_000 + b"\r\n"), 431),
    "a path": (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 431),
    "chunks": (chunked(b"1\r\n1\r\n" * 200_000), 400),
    "chunks of 70": (chunked((b"46\r\n" + b"[" * 70 + b"\r\n") * 4000 + b"0\r\n\r\n"), 413),
    "trailers": (chunked(b"0\r\n" + b"a:b\r\n" * 50_000 + b"\r\n"), 431),
}


@pytest.mark.few(len(WORST))
@pytest.mark.parametrize("name", WORST)
def test_no_request_holds_the_loop(name: str, server: Served) -> None:
    """In CPU time of the loop's thread: the best of some tries,
    since caches are cold in the first.
    """
    (data, status), said = WORST[name], None
    longest = []
    for _ in range(5):
        got, said = server.http(data)
        server.settle()
        assert got == status, said
        longest.append(server.loop.longest)
        if longest[-1] < HELD_S:
            break
    assert min(longest) < HELD_S, longest
    if status >= 400 and isinstance(said, dict):
        assert len(said["error"]) < 1500


@pytest.mark.thorough
def test_many_small_frames_take_turns(server: Served) -> None:
    status, _ = server.frame(b"\0\0\0\1\0" * 50_000)
    assert status == 400 and server.loop.longest < HELD_S
    status, _ = server.frame(frames.encode({"op": "act", "obs": MASKED}) * 1000)
    assert status == 200 and server.loop.longest < HELD_S
    deep, longest = (5000).to_bytes(4, "big") + b"\x91" * 5000, []
    for _ in range(3):  # frames of this size cost a millisecond each
        assert server.frame(deep * 500)[0] == 400
        longest.append(server.loop.longest)
    assert min(longest) < HELD_S, longest


def test_a_body_in_many_chunks_is_read_in_turns(server: Served) -> None:
    body = json.dumps({"obs": MASKED}).encode().ljust(70 * 2500)
    parts = b"".join(b"46\r\n%s\r\n" % body[at : at + 70] for at in range(0, len(body), 70))
    sent = chunked(parts + b"0\r\n\r\n").replace(
        b"\r\n", b"\r\nContent-Type: application/json\r\n", 1
    )

    async def ask() -> tuple[int, bytes]:
        line = Line()
        protocol: Any = server._config.http_protocol_class(
            config=server._config, server_state=ServerState(), app_state={}
        )  # type: ignore[call-arg]
        protocol.connection_made(line)
        protocol.data_received(sent)
        paused = line.paused
        assert protocol.chunks == CHUNKS_PER_TURN and paused
        protocol.data_received(health(b""))  # what comes meanwhile waits
        assert protocol.chunks == CHUNKS_PER_TURN
        turns = 0
        while line.got.count(b"HTTP/1.1 200") < 2 and not line.closed:
            await asyncio.sleep(0)
            turns += 1
        protocol.connection_lost(None)
        assert not line.paused and protocol.began is None
        return turns, bytes(line.got)

    turns, got = server.loop.run_until_complete(ask())
    assert turns >= 2500 // CHUNKS_PER_TURN and got.count(b"HTTP/1.1 200") == 2, got


def test_one_connection_has_a_bound_of_requests_that_wait(server: Served) -> None:
    """All outcomes of one piece of 256 kB waited at once, and one turn of the loop answered them
    all.
    """

    async def ask() -> tuple[int, bool]:
        line, connection, most = Line(), Connection(server.frames), 0
        asked = [frames.encode({"op": "outcome", "id": "x", "n": n}) for n in range(5000)]
        await server._feed(connection, line, b"".join(asked))
        while connection.waiting or connection._held:
            most = max(most, connection.waiting)
            await asyncio.sleep(0)
        connection.connection_lost(None)
        answers = map(frames.decode, frames.Splitter().feed(bytes(line.got)))
        assert sorted((one["n"], one["status"]) for one in answers) == [
            (n, 200) for n in range(5000)
        ]
        return most, line.paused

    for _ in range(3):
        most, paused = server.loop.run_until_complete(ask())
        assert most <= MOST_WAITING + TURN and not paused


def test_what_is_stored_at_once_is_answered_in_turns() -> None:
    async def ask() -> list[int]:
        loop, turns, done = asyncio.get_running_loop(), Turns(), list[int]()
        waiting = [loop.create_future() for _ in range(1000)]
        waiting[3].cancel()
        for one in waiting:
            turns.add(one, True)
        while not waiting[-1].done() or not done:
            done.append(sum(one.done() for one in waiting))
            await asyncio.sleep(0)
        turns.add(again := loop.create_future(), False)
        assert await again is False and all(one.cancelled() or one.result() for one in waiting)
        return done

    done = asyncio.run(ask())
    assert max(b - a for a, b in itertools.pairwise(done)) <= 256


def test_no_server_is_ready_without_a_champion(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = server.policy
    paths = ("/readyz", "/v2/health/ready", f"/v2/models/{name}/ready")
    asked = [f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in paths]
    assert [server.http(one)[0] for one in asked] == [200, 200, 200]
    monkeypatch.setattr(server.service.versions, "now", Loaded({}, "it is broken"))
    assert [server.http(one)[0] for one in asked] == [503, 503, 503]
    assert server.http(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")[0] == 200


FLAT = b"[0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]"
ODD = {
    "compressed": (
        post("/v1/act", b"x", more="Content-Encoding: gzip\r\n"),
        415,
        "Content-Encoding: expected",
    ),
    "compressed tensors": (
        post(INFER, b"x", more="Content-Encoding: deflate\r\n"),
        415,
        "got 'deflate'",
    ),
    "a charset": (
        post("/v1/act", b"{}", "application/json; charset=latin-1"),
        415,
        "the charset utf-8, got 'latin-1'",
    ),
    "utf-16": (
        post("/v1/act", json.dumps({"obs": MASKED}).encode("utf-16")),
        400,
        "this looks like UTF-16",
    ),
    "a method": (
        b"GET /v1/act HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        405,
        "GET /v1/act: Method Not Allowed",
    ),
    "nan": (framed("/v1/outcome", {"id": "x", "reward": float("nan")}), 400, "reward: expected"),
    "inf": (framed("/v1/outcome", {"id": "x", "time": float("inf")}), 400, "time: expected"),
    "nan within": (
        framed("/v1/outcome", {"id": "x", "data": [{"a": [0.1, float("nan")]}]}),
        400,
        "data: ",
    ),
    "no deadline": (
        framed("/v1/act", {"obs": MASKED, "deadline_ms": float("nan")}),
        400,
        "deadline_ms",
    ),
    "another nesting": (
        post(INFER, infer(2).replace(FLAT, b"[[1,2],[3,4],[5,6],[7,8]]")),
        400,
        "expected a flat list, or lists of that shape, got lists of the shape [4, 2]",
    ),
}


@pytest.mark.few(len(ODD))
@pytest.mark.parametrize("name", ODD)
def test_what_cannot_be_is_said(name: str, server: Served) -> None:
    data, status, sentence = ODD[name]
    got, said = server.http(data)
    said = said if isinstance(said, dict) else frames.decode(said)
    assert got == status and sentence in said["error"], said


def test_a_bom_and_a_charset_do_no_harm(server: Served) -> None:
    body = json.dumps({"obs": MASKED}).encode()
    assert server.http(post("/v1/act", b"\xef\xbb\xbf" + body))[0] == 200
    assert (
        server.http(
            post(
                "/v1/act", body, "application/json; charset=UTF-8", "Content-Encoding: identity\r\n"
            )
        )[0]
        == 200
    )


def test_the_time_of_each_path_is_counted(server: Served) -> None:
    server.http(post(INFER, infer(1)))
    page = server.http(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")[1].decode()
    assert (
        'equipoise_request_seconds_bucket{le="0.0001",path="/v2/infer"}' in page
        and 'path="/v2/infer",status="200"' in page
    )


def test_the_document_has_the_spaces_and_every_status(server: Served) -> None:
    import jsonschema

    document = server.openapi
    schema = {"$ref": "#/components/schemas/Act", "components": document["components"]}
    check = jsonschema.Draft202012Validator(schema).is_valid
    assert (
        check({"obs": MASKED})
        and not check({"obs": OBS})
        and not check({"obs": {**MASKED, "obs": [0.1]}})
    )
    statuses = {
        int(code)
        for path in document["paths"].values()
        for one in path.values()
        if "responses" in one
        for code in one["responses"]
    }
    assert statuses == {
        200,
        400,
        401,
        403,
        404,
        405,
        408,
        409,
        413,
        415,
        429,
        431,
        500,
        501,
        503,
        507,
    }


def test_a_caller_who_leaves_its_episodes_keeps_nobody_out() -> None:
    class Never:
        episodes = 0
        states = type("S", (), {"take": lambda self: -1, "give": lambda self, slot: None})()

    now = [0.0]
    sessions, version = Sessions(600.0, 100, lambda: now[0]), Never()
    sessions.begin("robot", version, None)  # type: ignore[arg-type]
    sessions.find("robot")
    for i in range(99):
        sessions.begin(str(i), version, None)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="at most 100 open episodes"):
        sessions.begin("x", version, None)  # type: ignore[arg-type]
    now[0] = 11.0
    for i in range(99):
        sessions.begin(f"y{i}", version, None)  # type: ignore[arg-type]
    assert sessions.find("robot").name == "robot" and len(sessions) == 100
    with pytest.raises(Refused, match="at most 100 open episodes"):
        sessions.begin("x", version, None)  # type: ignore[arg-type]


def test_a_long_name_is_like_no_other() -> None:
    began = time.thread_time()
    assert (
        hints.nearest("FP32I6" * 200_000, ["FP32"]) is None
        and hints.nearest("FP3", ["FP32", "FP32" * 100_000]) == "FP32"
    )
    assert time.thread_time() - began < 1.0


@pytest.mark.parametrize(
    "host",
    [
        "[::1]evil.com",
        "[::1]:80@evil.com",
        "localhost:x",
        "localhost:80@evil.com",
        "127.0.0.1/evil",
        "[::1",
        "",
    ],
)
def test_a_host_with_anything_more_is_refused(host: str) -> None:
    with pytest.raises(Refused, match="Host: expected one of"):
        Guard("127.0.0.1").check("/readyz", host.encode(), None, None)


@pytest.mark.parametrize("host", ["[::1]", "[::1]:8000", "LOCALHOST:1", "127.0.0.1", "::1"])
def test_a_host_of_this_machine_passes(host: str) -> None:
    assert Guard("127.0.0.1").check("/readyz", host.encode(), None, None) is None


def test_the_scheme_of_a_token_may_be_small() -> None:
    for said in ("Bearer", "bearer", "BEARER"):
        Guard("0.0.0.0", "t" * 16, hosts=["x"]).check(
            "/v1/act", b"x", None, f"{said} {'t' * 16}".encode()
        )
    assert (
        bearer_token("Basic abc") is None
        and bearer_token("t" * 16) is None
        and bearer_token("bearer  abc ") == "abc"
    )


def test_connections_fit_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    limits, given = [(1024, 4096)], list[Any]()
    monkeypatch.setattr(resource, "getrlimit", lambda what: limits[0])
    monkeypatch.setattr(resource, "setrlimit", lambda what, pair: given.append(pair))
    assert fitting(100, 2) == 100 and not given
    assert fitting(1024, 2) == 1024 and 2048 < given[0][0] <= 4096
    limits[0] = (256, 256)
    assert 20 < fitting(1024, 2) < 100
    limits[0] = (40, 40)
    with pytest.raises(OSError, match="open files .ulimit -n., got 40"):
        fitting(1024, 2)


@pytest.mark.thorough
def test_more_connections_than_descriptors(tmp_path: Path) -> None:
    """The server answers new callers, with 503 beyond what fits; its log stays short, and no
    decision is lost.
    """
    registry(tmp_path, mask=1)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))

    with (
        serving(tmp_path, "mask", preexec_fn=limit) as running,
        contextlib.ExitStack() as idle,
        Client(f"unix:{running.uds}") as client,
    ):
        assert client.act(MASKED).id
        for _ in range(200):
            with contextlib.suppress(OSError):
                idle.enter_context(socket.create_connection(("127.0.0.1", running.port), 5))
        assert (
            exchange(running.port, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 5)[0] == 503
        )
        told = client.act(MASKED)
        client.outcome(told.id, 1.0)
        lines = running.log.read_text().splitlines()
        assert (
            len(lines) < 30
            and running.logged("connections are refused")
            and "system resource" not in "".join(lines)
        )
        assert not client.state()["alarms"]


def test_a_client_behind_a_prefix() -> None:
    client = Client("http://h:1/lab/")
    assert client._wire.request("act", {"obs": 1}).startswith(
        b"POST /lab/v1/act HTTP/1.1\r\nHost: h:1\r\n"
    )
    for place in ("http://h/a b", "http://h/?x", "http://u@h/", "http://h/é"):
        with pytest.raises(ValueError, match="place: expected http://HOST:PORT"):
            Client(place)

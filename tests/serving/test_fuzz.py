"""Fuzz: requests and frames that are wrong in any way get no 5xx, and the server's memory stays
flat.
"""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from equipoise import frames
from equipoise.client import Client
from tests.serving.servers import OBS, Running, read_answer, registry, serving

PATHS = (
    "/v1/act",
    "/v1/outcome",
    "/v1/end",
    "/v2/models/mask/infer",
    "/v2/models/mask/versions/champion/infer",
    "/readyz",
    "/%00",
    "/v2/../x",
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1 << 62,
    1 << 70,
    1e308,
    0.5,
    "",
    "x",
    "é\u0000",
    [],
    [[]],
    [None],
    {},
    {"data": b"", "dtype": "float32"},
    {"dtype": "float32", "shape": [4], "data": "AAAA"},
    OBS,
    {"obs": OBS, "action_mask": [1, 1, 1]},
    ["nan"] * 4,
    [[1], [2, 3]],
)
KEYS = (
    "obs",
    "session",
    "first",
    "done",
    "unit",
    "deterministic",
    "version",
    "deadline_ms",
    "id",
    "reward",
    "data",
    "time",
    "n",
    "op",
    "x",
)
TENSOR = {"name": "obs/obs", "shape": [1, 4], "datatype": "FP32", "data": OBS}


def rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


def message(rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.1:
        return rng.choice(VALUES)
    if kind < 0.3:
        tensor = {
            **TENSOR,
            rng.choice(("name", "shape", "datatype", "data", "parameters")): rng.choice(VALUES),
        }
        return {
            "inputs": [tensor, rng.choice(VALUES)],
            rng.choice(("outputs", "parameters", "id")): rng.choice(VALUES),
        }
    said: dict[str, Any] = {"obs": {"obs": OBS, "action_mask": [1, 0, 1]}} if kind < 0.7 else {}
    for _ in range(rng.randrange(4)):
        said[rng.choice(KEYS)] = rng.choice(VALUES)
    return said


def damaged(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.6 or not data:
        return data
    at = rng.randrange(len(data))
    return rng.choice(
        (
            data[:at],
            data[:at] + rng.randbytes(rng.randrange(9)) + data[at:],
            data + rng.randbytes(3),
            rng.randbytes(at),
        )
    )


def packed(said: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(said)
    except (OverflowError, msgspec.MsgspecError):
        return b"\xcf"


def request(rng: random.Random) -> bytes:
    said = message(rng)
    kind = rng.choice(
        ("application/json", "application/msgpack", "text/x", "application/json; charset=utf-8")
    )
    body = damaged(
        packed(said) if kind == "application/msgpack" else json.dumps(said, default=repr).encode(),
        rng,
    )
    length = len(body) if rng.random() < 0.97 else rng.randrange(2000)
    more = rng.choice(
        (
            "",
            "",
            "",
            "Origin: x\r\n",
            "Inference-Header-Content-Length: 12\r\n",
            "Authorization: y\r\n",
            "Expect: 100-continue\r\n",
        )
    )
    host = "127.0.0.1" if rng.random() < 0.97 else rng.choice(("", "[", "[::1", "a:b:c", "\x80"))
    head = (
        f"{rng.choice(('POST', 'POST', 'POST', 'GET', 'PUT', 'OPTIONS'))} {rng.choice(PATHS)} "
        f"HTTP/1.1\r\nHost: {host}\r\n"
    )
    return (
        damaged(
            f"{head}Content-Type: {kind}\r\n{more}Content-Length: {length}\r\n\r\n".encode(
                "latin-1"
            ),
            rng,
        )
        + body
    )


def fuzz_http(running: Running, count: int, rng: random.Random) -> dict[int, int]:
    """How often each status came; 0: closed without an answer, or no answer within 5 s to what is
    not whole.
    """
    seen: dict[int, int] = {}
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", running.port), 10) as connection:
            connection.sendall(request(rng))
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(5)
            try:
                status = read_answer(connection)[0]
                status = read_answer(connection)[0] if status == 100 else status
            except TimeoutError:
                status = 0
            seen[status] = seen.get(status, 0) + 1
    return seen


def fuzz_frames(running: Running, count: int, rng: random.Random) -> dict[int, int]:
    seen: dict[int, int] = {}
    for _ in range(count):
        said = message(rng)
        if isinstance(said, dict) and rng.random() < 0.8:
            said |= {"op": rng.choice(("act", "outcome", "end", "state", "x")), "n": 3}
        body = damaged(packed(said), rng)
        size = len(body) if rng.random() < 0.97 else rng.choice((0, 1 << 31, len(body) + 5))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(running.uds))
            connection.sendall(size.to_bytes(4, "big") + body)
            connection.shutdown(socket.SHUT_WR)
            head = connection.recv(4, socket.MSG_WAITALL)
            status = 0
            if head:
                status = frames.decode(
                    connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
                )["status"]
            seen[status] = seen.get(status, 0) + 1
    return seen


@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.thorough)])
def test_no_error_of_the_server(count: int, tmp_path: Path, seed: int) -> None:
    registry(tmp_path, mask=1)
    rng = random.Random(seed)
    with serving(
        tmp_path, "mask", "--request-timeout", "1", "--max-sessions", "50", "--session-timeout", "1"
    ) as running:
        for fuzz in (fuzz_http, fuzz_frames):
            early = fuzz(running, count // 4, rng)
            before = rss_mb(running.process.pid)
            late = fuzz(running, count - count // 4, rng)
            grown = rss_mb(running.process.pid) - before
            statuses = {**early, **late}
            assert not [status for status in statuses if status >= 500], statuses
            assert {200, 400} <= set(statuses), statuses
            assert grown < 8, f"{grown:.1f} MB more after {count} requests"
        with Client(f"unix:{running.uds}") as client:
            assert (
                client.act({"obs": np.array(OBS, np.float32), "action_mask": [1, 0, 1]}).fallback
                is None
            )
        assert not [
            line
            for line in running.log.read_text().splitlines()
            if '"level": "error"' in line or "Traceback" in line
        ]

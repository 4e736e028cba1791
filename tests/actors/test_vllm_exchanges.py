"""The engine's requests to vLLM, and vLLM's answers, as they were recorded from vLLM 0.32.0.

A change of a request is seen here. The file is written by

    python tests/actors/test_vllm_exchanges.py http://127.0.0.1:8000 FOLDER

with a real server, started with VLLM_SERVER_DEV_MODE=1 and --logprobs-mode processed_logprobs, and
a folder of other weights of its model.
"""

from __future__ import annotations

import http.client
import json
import math
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from equipoise.actors.engine.vllm import Address, Draws, Server, ServerFailed, Written

FILE = Path(__file__).with_name("vllm_exchanges.json")
FOLDER = "/weights/v1"
DRAWS = Draws(
    text=[3, 4, 5, 6],
    samples=2,
    limit=40,
    temperature=0.7,
    seed=-5,
    eos=[1],
    stop=(),
    salt="run-1",
    extra={"equipoise": [-(2**53) - 3, 2, 3]},
)


def session(server: Server, folder: str) -> tuple[list[Written], list[float]]:
    """All requests that the engine makes."""
    server.check(["0.32"], 200, "finish")
    server.alive()
    server.pause(finish=False)
    server.load(folder, "run-1")
    server.forget()
    server.resume()
    logps = server.logps([3, 4, 5, 6, 7], "run-1")
    return server.draw(DRAWS, 64, lambda: None), logps


class Exchanges(BaseHTTPRequestHandler):
    """Answers as recorded, or records what another server answers."""

    recorded: list[dict[str, Any]]
    said: list[dict[str, Any]]
    behind: str = ""

    def log_message(self, *_: object) -> None: ...

    def answer(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = {
            "method": self.command,
            "path": self.path,
            "body": json.loads(data) if data else None,
        }
        self.said.append(asked)
        if self.behind:
            conn = http.client.HTTPConnection(self.behind, timeout=300)
            conn.request(self.command, self.path, data, {"Content-Type": "application/json"})
            found = conn.getresponse()
            answer = found.read().decode()
            self.recorded.append({**asked, "status": found.status, "answer": answer})
            conn.close()
        one = self.recorded[len(self.said) - 1]
        body = one["answer"].encode()
        self.send_response(one["status"])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer


@contextmanager
def answering(recorded: list[dict[str, Any]], behind: str = "") -> Iterator[Server]:
    Exchanges.recorded, Exchanges.said, Exchanges.behind = recorded, [], behind
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Exchanges)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield Server(Address("127.0.0.1", listening.server_port, False), None, 300.0)
    finally:
        listening.shutdown()
        listening.server_close()


def test_requests_are_those_that_were_recorded_and_answers_are_read() -> None:
    recorded = json.loads(FILE.read_text())
    with answering(recorded) as server:
        written, logps = session(server, FOLDER)
    for asked, one in zip(Exchanges.said, recorded, strict=True):
        assert asked == {name: one[name] for name in asked}
    assert server.model == "m" and not server.spans
    assert len(logps) == 4 and all(-20 < one < 0 for one in logps)
    assert len(written) == 2
    for one in written:
        assert len(one.token) == len(one.logp) <= DRAWS.limit and 1 not in one.token[:-1]
        assert one.finish == ("stop" if one.token[-1] == 1 else "length")
        assert all(map(math.isfinite, one.logp)) and max(one.logp) <= 0


@pytest.mark.parametrize("lost", [b"\n\ndata: [DONE]", b'"finish_reason":"', b'"token_ids":['])
def test_a_stream_that_lacks_a_part_is_no_answer(lost: bytes) -> None:
    recorded = json.loads(FILE.read_text())
    stream = recorded[-1]["answer"]
    at = stream.index(lost.decode())
    recorded[-1]["answer"] = stream[:at] if lost.startswith(b"\n") else stream[: at + 5]
    if lost.startswith(b"\n"):
        recorded[-1]["answer"] = stream[: stream.rindex("data: ", 0, at)]
    with answering(recorded) as server, pytest.raises(ServerFailed):
        session(server, FOLDER)


def record(url: str, folder: str) -> None:
    recorded: list[dict[str, Any]] = []
    with answering(recorded, urlsplit(url).netloc) as server:
        session(server, folder)
    for one in recorded:
        if one["path"].startswith("/server_info"):  # of which one setting is read
            mode = json.loads(one["answer"])["vllm_config"]["model_config"]["logprobs_mode"]
            config = {"model_config": {"logprobs_mode": mode}}
            one["answer"] = json.dumps({"vllm_config": config})
    text = json.dumps(recorded, indent=1).replace(json.dumps(folder), json.dumps(FOLDER))
    FILE.write_text(text + "\n")


if __name__ == "__main__":
    record(*sys.argv[1:])

"""Load for a served language model: clients that ask again at once, for ``chat_serving.py``.

    python benchmarks/chat_load.py PORT CLIENTS SECONDS [--stream]

Prints a line when all clients have asked, and a line of JSON at the end: the median seconds of an
answer, and parts of answers a second.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import statistics
import time

LIMIT, PROMPT = 128, "The quick brown"


def request(stream: bool) -> bytes:
    body: dict[str, object] = {"prompt": PROMPT, "max_tokens": LIMIT}
    body |= {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    data = json.dumps(body).encode()
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(data)
    ) + data


def load(port: int, clients: int, seconds: float, stream: bool) -> dict[str, float]:
    """Clients that ask again at once -> the seconds of answers, and the parts that came."""
    asked, selector = request(stream), selectors.DefaultSelector()
    got: dict[socket.socket, bytearray] = {}
    sent: dict[socket.socket, float] = {}
    for _ in range(clients):
        one = socket.create_connection(("127.0.0.1", port))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(one, selectors.EVENT_READ)
        got[one], sent[one] = bytearray(), time.perf_counter()
        one.sendall(asked)
    print("asked", flush=True)
    began = time.perf_counter()
    until, took, parts = began + seconds, list[float](), 0
    while (now := time.perf_counter()) < until:
        for key, _ in selector.select(0.1):
            assert isinstance(key.fileobj, socket.socket)
            one = key.fileobj
            data = one.recv(1 << 16)
            assert data, "the server closed a connection"
            got[one] += data
            parts += 1
            if not got[one].endswith(b"0\r\n\r\n" if stream else b"}}"):
                continue
            assert got[one].startswith(b"HTTP/1.1 200"), bytes(got[one])
            took.append(now - sent[one])
            got[one], sent[one] = bytearray(), now
            one.sendall(asked)
    for one in got:
        one.close()
    middle = statistics.median(took) if took else seconds
    return {"answer_p50_s": middle, "parts_per_s": parts / (now - began)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("clients", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--stream", action="store_true")
    given = parser.parse_args()
    print(json.dumps(load(given.port, given.clients, given.seconds, given.stream)))

"""Load for a server: requests over kept connections, closed loop or at a rate, with latencies from
when each was due.

    python benchmarks/load.py PLACE KIND [--clients 1] [--rate 300] [--seconds 5] [--warmup 1]
    [--lstm]

``PLACE``: HOST:PORT, or the path of a unix socket. ``KIND``: what the requests look like: ours, or
peers. Runs in a process of its own and prints one line of JSON: requests, errors, percentiles of
the latency in ms, requests/s. With ``--rate`` they are sent at fixed moments, whatever the answers
do, and a late answer counts from the moment at which its request was due.
"""

from __future__ import annotations

import argparse
import heapq
import json
import selectors
import socket
import statistics
import struct
import time
from collections import deque
from typing import Any

import msgspec

OBS = [0.01, -0.02, 0.03, 0.04]


class Caller:
    """One connection with at most one request under way."""

    def __init__(self, place: str, kind: str, number: int, lstm: bool) -> None:
        self.uds = "/" in place
        if self.uds:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(place)
        else:
            host, _, port = place.rpartition(":")
            self.socket = socket.create_connection((host, int(port)))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._got = b""
        self.due = 0.0
        session = f"bench-{number}-{time.monotonic_ns()}"
        if kind == "peers":
            self._first = self._more = _post("/act", {"obs": OBS, "session": session})
        else:
            of_session = {"session": session} if lstm else {}
            first, more = (
                {"obs": OBS, **of_session, **more} for more in ({"first": True} if lstm else {}, {})
            )
            self._first, self._more = (
                (_frame(one) if self.uds else _post("/v1/act", one)) for one in (first, more)
            )

    def send(self, due: float) -> None:
        self.due = due
        self.socket.sendall(self._first)
        self._first = self._more

    def receive(self) -> bool | None:
        """Was it a good answer? None where more has to come."""
        part = self.socket.recv(1 << 16)
        if not part:
            raise ConnectionError("the server closed the connection")
        got = self._got = self._got + part
        if self.uds:
            if len(got) < 4 or len(got) < 4 + int.from_bytes(got[:4], "big"):
                return None
            self._got = b""
            return msgspec.msgpack.decode(got[4:])["status"] == 200  # type: ignore[no-any-return]
        head, end, body = got.partition(b"\r\n\r\n")
        if not end:
            return None
        at = head.lower().find(b"content-length:")
        whole = (
            len(body) >= int(head[at + 15 :].split(b"\r\n", 1)[0])
            if at >= 0
            else body.endswith(b"0\r\n\r\n")
        )
        if not whole:
            return None
        self._got = b""
        return head[9:12] == b"200"


def _post(path: str, said: Any) -> bytes:
    body = json.dumps(said).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: "
        f"application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _frame(said: dict[str, Any]) -> bytes:
    body = msgspec.msgpack.encode({"op": "act", **said})
    return struct.pack(">I", len(body)) + body


def run(callers: list[Caller], rate: float | None, seconds: float, warmup: float) -> dict[str, Any]:
    """Ask for so long; what was due in the warm-up does not count."""
    # epoll's rounds a wait up to whole milliseconds, and the next request would be late
    waiting = selectors.SelectSelector()
    for caller in callers:
        waiting.register(caller.socket, selectors.EVENT_READ, caller)
    free, due, busy = list(callers), deque[float](), 0
    begin = time.perf_counter()
    sent, end, errors = 0, begin + warmup + seconds, 0
    latencies: list[tuple[float, float]] = []  # when it was due, how long it took
    while (now := time.perf_counter()) < end or busy:
        if rate is not None:
            while now < end and begin + sent / rate <= now:
                due.append(begin + sent / rate)
                sent += 1
        while free and now < end and (rate is None or due):
            free.pop().send(due.popleft() if rate is not None else time.perf_counter())
            busy += 1
        # Sleep only where the next moment is far: a timer wakes late
        left = (
            0.5
            if rate is None or now >= end
            else max(0.0, begin + sent / rate - time.perf_counter() - 0.0002)
        )
        for key, _ in waiting.select(left):
            answer = key.data.receive()
            if answer is None:
                continue
            latencies.append((key.data.due, time.perf_counter() - key.data.due))
            errors += not answer
            free.append(key.data)
            busy -= 1
        if now > end + 30:
            raise TimeoutError(f"{busy} requests had no answer 30 s after the last was sent")
    counted = [took for at, took in latencies if at >= begin + warmup]
    points = (
        statistics.quantiles(counted, n=1000, method="inclusive")
        if len(counted) > 1
        else [float("nan")] * 999
    )
    worst = heapq.nlargest(1, counted)
    return {
        "requests": len(counted),
        "errors": errors,
        "per_s": round(len(counted) / seconds, 1),
        "never_sent": len(due),
        **{
            f"p{name}_ms": round(1000 * points[at], 4)
            for name, at in (("50", 499), ("90", 899), ("99", 989))
        },
        "max_ms": round(1000 * worst[0], 3) if worst else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("place")
    parser.add_argument("kind", choices=("ours", "peers"))
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warmup", type=float, default=1.0)
    parser.add_argument(
        "--lstm", action="store_true", help="the policy has a memory: each client is a session"
    )
    a = parser.parse_args()
    callers = [Caller(a.place, a.kind, i, a.lstm) for i in range(a.clients)]
    print(json.dumps(run(callers, a.rate, a.seconds, a.warmup)))


if __name__ == "__main__":
    main()

"""What an answer on the page of ``equipoise label`` costs beside an endpoint that commits a row.

    .venv/bin/python benchmarks/feedback_page.py [--answers 40] [--rounds 20] [--json FILE]

Both servers run in processes of their own on the same HTTP server, with SQLite in WAL and
``synchronous = FULL`` on the same disk. Rounds alternate: the page, the bare endpoint. A round
sends ``--answers`` answers one after another on one connection; the page also gets each question,
which is not in the time. Printed are p50 and p95 of each round, and the ratio of the p95 of all
rounds.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import host
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from equipoise import web
from equipoise.feedback import Plan, Store
from equipoise.labeling.page import Page
from equipoise.listening import listen

MOST_RATIO = 3.0  # of the two p95
NAME = "bench"


def serve_page(place: Path, ports: Any) -> None:
    with Store.open(place) as store:
        listener = listen("127.0.0.1", 0)
        ports.put(listener.getsockname()[1])
        web.Server(web.config(Page(store, token="of-a-benchmark-only").app)).run([listener])


def serve_bare(place: Path, ports: Any) -> None:
    db = sqlite3.connect(place / "bare.sqlite", isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE answers (row INTEGER PRIMARY KEY, lease INTEGER, choice TEXT)")

    def commit(lease: int, choice: str) -> int | None:
        statement = "INSERT INTO answers (lease, choice) VALUES (?, ?)"
        return db.execute(statement, (lease, choice)).lastrowid

    async def answer(request: Request) -> JSONResponse:
        body = json.loads(await request.body())
        row = await run_in_threadpool(commit, body["lease"], body["choice"])
        return JSONResponse({"row": row})

    listener = listen("127.0.0.1", 0)
    ports.put(listener.getsockname()[1])
    app = Starlette(routes=[Route("/api/answer", answer, methods=["POST"])])
    web.Server(web.config(app)).run([listener])


class Client:
    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._headers = {"Cookie": f"equipoise_label_{port}={token}"}

    def ask(self, path: str, body: Any = None) -> Any:
        headers = self._headers | ({} if body is None else {"Content-Type": "application/json"})
        data = None if body is None else json.dumps(body)
        self._connection.request("GET" if body is None else "POST", path, data, headers)
        answer = self._connection.getresponse()
        found = json.loads(answer.read())
        assert answer.status == 200, found
        return found


def timed(client: Client, lease_of: Callable[[], int], answers: int) -> list[float]:
    """Seconds of each answer."""
    found = []
    for _ in range(answers):
        body = {"lease": lease_of(), "choice": "left", "latency_s": 1.0}
        began = time.perf_counter()
        client.ask("/api/answer", body)
        found.append(time.perf_counter() - began)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--answers", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with Store.create(place / "store", Plan()) as store:
            for n in range(given.answers * given.rounds + 10):
                store.add_query("text", store.add_text(f"a {n}"), store.add_text(f"b {n}"))
            token = store.add_annotator(NAME)
        clients = []
        servers = []
        for serve, where in ((serve_page, place / "store"), (serve_bare, place)):
            ports = context.Queue()
            servers.append(context.Process(target=serve, args=(where, ports), daemon=True))
            servers[-1].start()
            clients.append(Client(ports.get(timeout=60), token))
        page, bare = clients
        try:
            seconds: dict[str, list[list[float]]] = {"page": [], "bare": []}

            def lease_of() -> int:
                return int(page.ask("/api/question")["question"]["lease"])

            for _ in range(given.rounds):
                seconds["page"].append(timed(page, lease_of, given.answers))
                seconds["bare"].append(timed(bare, lambda: 1, given.answers))
                last = {name: np.percentile(rows[-1], (50, 95)) for name, rows in seconds.items()}
                print(
                    "   ".join(
                        f"{name} p50 {1e3 * p50:.2f} ms, p95 {1e3 * p95:.2f} ms"
                        for name, (p50, p95) in last.items()
                    ),
                    flush=True,
                )
        finally:
            for server in servers:
                server.terminate()
                server.join()
    p95 = {name: float(np.percentile(np.concatenate(rows), 95)) for name, rows in seconds.items()}
    ratio = p95["page"] / p95["bare"]
    print(f"p95 of an answer: {ratio:.2f} of a bare endpoint (at most {MOST_RATIO:g})")
    if given.json is not None:
        result = {"host": host(), "p95_s": p95, "ratio": ratio, "seconds": seconds}
        given.json.write_text(json.dumps(result))
    return int(ratio > MOST_RATIO)


if __name__ == "__main__":
    sys.exit(main())

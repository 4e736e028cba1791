"""What the tests of the server share: a registry of untrained policies, a server as a process, and
a raw HTTP request.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.registry import Registry
from tests.artifacts import artifact

OBS = [0.1, -0.2, 0.3, 0.4]


def registry(folder: Path, **kinds: int) -> Registry:
    """A registry with a policy of each kind, named as it, in so many versions; the first is the
    champion.
    """
    made = Registry(folder / "registry", create=True)
    for kind, count in kinds.items():
        versions = [
            made.add(artifact(folder / f"{kind}-{seed}", kind, seed), kind) for seed in range(count)
        ]
        made.alias(kind, "champion", versions[0])
    return made


@dataclass
class Running:
    """A server that listens."""

    process: subprocess.Popen[str]
    url: str
    uds: Path
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line["event"] == event]

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """(status, what the answer says): JSON as objects, anything else as bytes. Headers' names
        have _ for -.
        """
        data = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        given = {
            "Host": f"127.0.0.1:{self.port}",
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
        }
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        status, said, _ = exchange(
            self.port, f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data
        )
        return status, said


def exchange(
    port: int, sent: bytes, timeout: float = 10.0, host: str = "127.0.0.1"
) -> tuple[int, Any, dict[str, str]]:
    """(status, what it says, headers) of the answer to these bytes on a new connection; status 0:
    closed without one.
    """
    with socket.create_connection((host, port), timeout) as connection:
        connection.sendall(sent)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> tuple[int, Any, dict[str, str]]:
    got = b""
    while b"\r\n\r\n" not in got:
        try:
            part = connection.recv(1 << 16)
        except ConnectionResetError:
            part = b""
        if not part:
            return 0, got, {}
        got += part
    head, _, body = got.partition(b"\r\n\r\n")
    headers = {
        k.lower(): v.strip()
        for k, _, v in (line.partition(":") for line in head.decode().split("\r\n")[1:])
    }
    while len(body) < int(headers.get("content-length", 0)):
        part = connection.recv(1 << 16)
        assert part, (head, body)
        body += part
    body = body[: int(headers.get("content-length", 0))]
    said = json.loads(body) if headers.get("content-type") == "application/json" and body else body
    return int(head.split()[1]), said, headers


@contextlib.contextmanager
def serving(
    folder: Path, policy: str, *options: str, registry: Path | None = None, **more: Any
) -> Iterator[Running]:
    """``equipoise serve``, on free places; ended by SIGTERM, and it must end well."""
    uds, log = folder / f"{policy}.sock", folder / f"{policy}.log"
    command = [
        sys.executable,
        "-m",
        "equipoise",
        "serve",
        str(registry or folder / "registry"),
        "--policy",
        policy,
        "--port",
        "0",
    ]
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*command, "--uds", str(uds), *options],
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **more.pop("env", {})},
            **more,
        )
    try:
        assert process.stdout is not None
        found = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
        assert found, log.read_text()
        yield Running(process, found[0], uds, log)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, log.read_text()
    except BaseException as error:
        error.add_note(
            f"the server's exit status was {process.poll()}, its log: {log.read_text()[-3000:]}"
        )
        raise
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

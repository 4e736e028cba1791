"""``vllm_server.py`` as a process of a test, which ends with it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from equipoise.actors.engine.vllm import Address, Server
from equipoise.nets.decoder import DecoderConfig

VERSIONS = ("0.32", "0.33")


class Process:
    """A server that can be killed, stopped and started again at its port."""

    def __init__(self, file: Path, *arguments: str) -> None:
        self._command = [sys.executable, str(Path(__file__).with_name("vllm_server.py")), str(file)]
        self._arguments = arguments
        self.port = 0
        self.start()

    def start(self) -> None:
        again = ["--port", str(self.port)] if self.port else []
        self._process = subprocess.Popen(
            [*self._command, *self._arguments, *again],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def server(self, *, token: str | None = None, deadline_s: float = 60.0) -> Server:
        return Server(Address("127.0.0.1", self.port, False), token, deadline_s)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for one in (self._process.stdin, self._process.stdout):
            if one is not None:
                one.close()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)


@contextmanager
def served(
    directory: Path, config: DecoderConfig, eos: tuple[int, ...], *arguments: str, count: int = 1
) -> Iterator[list[Process]]:
    """Start ``count`` servers of a model."""
    file = directory / "config-of-server.json"
    file.write_text(json.dumps({**asdict(config), "eos": list(eos)}))
    started = list[Process]()
    try:
        for _ in range(count):
            started.append(Process(file, *arguments))
        yield started
    finally:
        for one in started:
            one.kill()

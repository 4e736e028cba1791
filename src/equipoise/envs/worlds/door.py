"""The door: a worker's half of the hub, by which its streams are dealt worlds; and the hubs that
this process has open.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise import phases
from equipoise.access import read_token
from equipoise.envs.hints import unknown
from equipoise.envs.worlds.addresses import Address
from equipoise.envs.worlds.hub import Hub
from equipoise.envs.worlds.protocol import Spaces
from equipoise.files import parse_json
from equipoise.frames import Splitter, decode, encode
from equipoise.schema import Number, Text, check

TOKEN = "EQUIPOISE_WORLD_TOKEN"
LOOK_S = 0.2  # a wait for the first world can be interrupted so often
ARGUMENTS = {
    "spec?": Text(4096),
    "token_file?": Text(4096),
    "grace_s?": Number(0.05, 86_400.0),
    "heartbeat_s?": Number(0.01, 3600.0),
}
GRACE_S, HEARTBEAT_S = 30.0, 2.0


@dataclass(frozen=True, slots=True)
class Dealt:
    """A world's connection, for a seat."""

    seat: int
    session: str
    name: str
    conn: socket.socket


class Door:
    """A connection with the hub of an address."""

    def __init__(self, target: str, arguments: Mapping[str, object]) -> None:
        """Wait until a file or the first world states the spaces.

        ValueError for an argument; OSError if the address cannot be listened at.
        """
        self.address = Address.of(target)
        self._held = contextlib.ExitStack()
        self._splitter, self._conns = Splitter(), deque[socket.socket]()
        try:
            self._conn = self._connected(target, arguments)
            self._held.callback(self._conn.close)
            said = self._spaces()
        except BaseException:
            self.close()
            raise
        self.spaces = Spaces.read(said)
        self.grace_s, self.heartbeat_s = float(said["grace_s"]), float(said["heartbeat_s"])

    def fileno(self) -> int:
        return self._conn.fileno()

    def want(self, seat: int, dealt: int) -> None:
        """Ask for a world for a seat; ``dealt``: how many it has been dealt so far."""
        self._conn.sendall(encode({"kind": "want", "seat": seat, "dealt": dealt}))

    def read(self) -> Iterator[Dealt]:
        """The worlds that were dealt, if readable. ConnectionError if the run has ended."""
        for said in self._messages():
            yield Dealt(said["seat"], said["session"], said["name"], self._conns.popleft())

    def close(self) -> None:
        self._held.close()
        while self._conns:
            self._conns.popleft().close()

    def _connected(self, target: str, arguments: Mapping[str, object]) -> socket.socket:
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._held.callback(conn.close)
        try:
            conn.connect(self.address.private)
        # no process listens yet: this process does
        except (FileNotFoundError, ConnectionRefusedError):
            self._held.enter_context(listening(target, arguments))
            conn.connect(self.address.private)
        return conn

    def _spaces(self) -> dict[str, Any]:
        self._conn.settimeout(LOOK_S)
        phases.say(f"waiting for a world that connects to {self.address} and states its spaces")
        while True:
            with contextlib.suppress(TimeoutError):
                for said in self._messages():
                    phases.say("")
                    self._conn.settimeout(None)
                    return said

    def _messages(self) -> Iterator[dict[str, Any]]:
        data, descriptors, _, _ = socket.recv_fds(self._conn, 1 << 16, 64)
        self._conns += [socket.socket(fileno=descriptor) for descriptor in descriptors]
        if not data:
            raise ConnectionResetError(
                f"{self.address}: the process that listens for worlds has ended"
            )
        for body in self._splitter.feed(data):
            yield decode(body)


# ------------------------------------------------------------------------------- the hubs open here

_lock = threading.Lock()
_open: dict[Address, tuple[Hub, int]] = {}  # with how many hold it


@contextlib.contextmanager
def listening(target: str, arguments: Mapping[str, object]) -> Iterator[Hub]:
    """Listen for worlds at an address, as long as anybody in this process does."""
    address = Address.of(target)
    with _lock:
        hub, holders = _open.get(address, (None, 0))
        if hub is None:
            hub = _made(target, address, arguments)
        _open[address] = hub, holders + 1
    try:
        yield hub
    finally:
        with _lock:
            hub, holders = _open.pop(address)
            if holders > 1:
                _open[address] = hub, holders - 1
        if holders == 1:
            hub.close()


def _made(target: str, address: Address, arguments: Mapping[str, Any]) -> Hub:
    known = [name.removesuffix("?") for name in ARGUMENTS]
    if wrong := [name for name in arguments if name not in known]:
        raise unknown("argument", wrong[0], known, f" of {target}")
    check(dict(arguments), ARGUMENTS, "env")
    token = read_token(TOKEN, arguments.get("token_file"), "env.token_file")
    spaces = None
    if (file := arguments.get("spec")) is not None:
        path = Path(file).expanduser()
        spaces = Spaces.read(parse_json(path.read_bytes(), path), f"{path}: ")
    times = {
        "grace_s": float(arguments.get("grace_s", GRACE_S)),
        "heartbeat_s": float(arguments.get("heartbeat_s", HEARTBEAT_S)),
    }
    return Hub(address, token=token, spaces=spaces, **times)

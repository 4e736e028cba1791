"""A client of ``equipoise serve``: one file without dependencies, over HTTP or the unix socket,
sync and async.

    from client import Client                                   # or: from equipoise.client import Client
    with Client("http://127.0.0.1:8000") as client:             # or "unix:/run/policy.sock", which is faster
        decision = client.act([0.0, 0.1, 0.0, 0.2])
        print(decision.action, decision.id)
        client.outcome(decision.id, reward=1.0)

        with client.episode("robot-7") as episode:              # of a policy with a memory: one name, one episode
            action = episode.act(obs).action

``AsyncClient`` has the same methods, to be awaited. Observations are numbers, lists, dicts, or
arrays. ``ServeError`` has the server's refusal and its reason; ConnectionError: the server cannot
be reached, or closed the connection.
"""  # noqa: E501

from __future__ import annotations

import asyncio
import json
import secrets
import select
import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypedDict, Unpack
from urllib.parse import urlsplit

PATHS = {
    "act": ("POST", "/v1/act"),
    "outcome": ("POST", "/v1/outcome"),
    "end": ("POST", "/v1/end"),
    "state": ("GET", "/readyz"),
}
MOST = 1 << 26  # bytes of an answer


class ServeError(Exception):
    """The server refused: ``status`` as in HTTP, and its sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(f"{status}: {sentence}")
        self.status, self.sentence = status, sentence


@dataclass(frozen=True, slots=True)
class Decision:
    """An action, with what evaluates it later."""

    id: str
    action: Any
    version: str  # of the policy
    propensity: float | None  # probability (``kind``) or density of the action; None: unknown
    kind: str
    deterministic: bool
    session: str | None
    fallback: str | None  # why the shield chose in place of the policy; None if it did not


class How(TypedDict, total=False):
    """The options of a request for an action, besides the observation."""

    session: str  # the name of an episode
    first: bool  # the episode begins
    done: bool  # the episode is over after this action
    unit: str  # the user or device that the decision is about; default: the session
    deterministic: bool  # False: explore
    version: str  # an alias, or digits of a version; default: the champion
    deadline_ms: float  # after it the server answers with a safe action


class Client:
    """A connection, which is opened with the first request and kept. For one thread at a time."""

    def __init__(
        self,
        place: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        """``place``: http://HOST:PORT, https://HOST:PORT or unix:PATH; HTTP also with a proxy's
        /PREFIX.
        """
        self._wire, self._timeout_s = _Wire(place, token), timeout_s
        self._socket: socket.socket | None = None

    def act(self, obs: Any, **how: Unpack[How]) -> Decision:
        """Ask for the action for one observation."""
        return Decision(**self._ask("act", {"obs": obs, **how}))

    def outcome(self, id: str, reward: float | None = None, data: Any = None) -> None:
        """Report the outcome of a decision; it is stored when this returns."""
        self._ask("outcome", {"id": id, "reward": reward, "data": data})

    def end(self, session: str) -> None:
        """End an episode without a further observation."""
        self._ask("end", {"session": session})

    def state(self) -> dict[str, Any]:
        """The served versions, and the problems ("alarms")."""
        return self._ask("state", {})

    def episode(self, name: str | None = None, **given: Unpack[How]) -> Episode:
        """An episode, for ``with``: it keeps ``first`` and ends itself. ``given``:
        to each ``act``.
        """
        return Episode(self, name, given)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, op: str, given: dict[str, Any]) -> dict[str, Any]:
        wire, data, got = self._wire, self._wire.request(op, given), bytearray()
        try:
            if self._socket is not None and _readable(self._socket):
                self.close()  # the server closed it meanwhile
            if self._socket is None:
                self._socket = wire.connect(self._timeout_s)
            self._socket.sendall(data)
            while (answer := wire.answer(got)) is None:
                part = self._socket.recv(1 << 16)
                if not part:
                    raise ConnectionError("the server closed the connection before it answered")
                got += part
        except OSError as error:
            self.close()
            wire.failed(error, self._timeout_s)
        # a Ctrl-C: the rest of this answer must not be read as the next one's
        except BaseException:
            self.close()
            raise
        if answer.last:
            self.close()
        return answer.said()


class Episode:
    """One episode of a session."""

    def __init__(self, client: Client, name: str | None, given: How) -> None:
        self.name = secrets.token_hex(8) if name is None else name
        self._client, self._given, self._open = client, given, False

    def act(self, obs: Any, **how: Unpack[How]) -> Decision:
        given: How = {**self._given, **how, "session": self.name, "first": not self._open}
        decision = self._client.act(obs, **given)
        self._open = not given.get("done", False)
        return decision

    def __enter__(self) -> Episode:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            self._client.end(self.name)
        self._open = False


class AsyncClient:
    """Any number of requests at once, each on a connection of its own; connections are kept."""

    def __init__(
        self,
        place: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        """As ``Client``."""
        self._wire, self._timeout_s = _Wire(place, token), timeout_s
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def act(self, obs: Any, **how: Unpack[How]) -> Decision:
        """As ``Client.act``."""
        return Decision(**await self._ask("act", {"obs": obs, **how}))

    async def outcome(self, id: str, reward: float | None = None, data: Any = None) -> None:
        """As ``Client.outcome``."""
        await self._ask("outcome", {"id": id, "reward": reward, "data": data})

    async def end(self, session: str) -> None:
        """As ``Client.end``."""
        await self._ask("end", {"session": session})

    async def state(self) -> dict[str, Any]:
        """As ``Client.state``."""
        return await self._ask("state", {})

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, op: str, given: dict[str, Any]) -> dict[str, Any]:
        try:
            return (await asyncio.wait_for(self._answer(op, given), self._timeout_s)).said()
        except OSError as error:
            self._wire.failed(error, self._timeout_s)

    async def _answer(self, op: str, given: dict[str, Any]) -> _Answer:
        data, got = self._wire.request(op, given), bytearray()
        # also after a reset
        while self._idle and (self._idle[-1][0].at_eof() or self._idle[-1][1].is_closing()):
            self._idle.pop()[1].close()
        reader, writer = self._idle.pop() if self._idle else await self._wire.open()
        try:
            writer.write(data)
            await writer.drain()
            while (answer := self._wire.answer(got)) is None:
                part = await reader.read(1 << 16)
                if not part:
                    raise ConnectionError("the server closed the connection before it answered")
                got += part
        except BaseException:
            writer.close()
            raise
        if answer.last:
            writer.close()
        else:
            self._idle.append((reader, writer))
        return answer


# ---------------------------------------------------------------------------- bytes of the protocol


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    message: dict[str, Any]
    last: bool = False  # the server closes the connection

    def said(self) -> dict[str, Any]:
        if "error" in self.message:
            raise ServeError(self.status, str(self.message["error"]))
        return self.message


class _Wire:
    """Requests to bytes and answers from bytes, for a place."""

    def __init__(self, place: str, token: str | None) -> None:
        self.place, self.path = (
            place,
            place[5:].removeprefix("//") if place.startswith("unix:") else None,
        )
        parts = urlsplit(place)
        prefix = parts.path.rstrip("/")
        odd = (
            " " in prefix
            or not (prefix.isascii() and prefix.isprintable())
            or parts.query
            or "@" in parts.netloc
        )
        if self.path is None and (
            parts.scheme not in ("http", "https") or not parts.hostname or odd
        ):
            raise ValueError(
                f"place: expected http://HOST:PORT, https://HOST:PORT or unix:PATH, got {place!r}"
            )
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ValueError("token: expected printable ASCII characters, got others")
        self._host, self._ssl = parts.hostname or "", parts.scheme == "https"
        self._port = parts.port or (443 if self._ssl else 80)
        more = f"\r\nAuthorization: Bearer {token}" if token is not None else ""
        more += "\r\nContent-Type: application/json\r\nContent-Length: "
        host = f" HTTP/1.1\r\nHost: {parts.netloc}{more}"
        self._heads = {
            op: f"{method} {prefix}{path}{host}".encode() for op, (method, path) in PATHS.items()
        }

    def connect(self, timeout_s: float) -> socket.socket:
        if self.path is not None:
            made = socket.socket(socket.AF_UNIX)
            made.settimeout(timeout_s)
            try:
                made.connect(self.path)
            except OSError:
                made.close()
                raise
            return made
        made = socket.create_connection((self._host, self._port), timeout_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return (
            ssl.create_default_context().wrap_socket(made, server_hostname=self._host)
            if self._ssl
            else made
        )

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.path is not None:
            return await asyncio.open_unix_connection(self.path)
        return await asyncio.open_connection(
            self._host, self._port, ssl=ssl.create_default_context() if self._ssl else None
        )

    def request(self, op: str, given: dict[str, Any]) -> bytes:
        if self.path is not None:
            body = bytearray()
            _pack({"op": op, **given}, body)
            return struct.pack(">I", len(body)) + body
        said = (
            b"" if op == "state" else json.dumps(given, default=_listed, allow_nan=False).encode()
        )
        return b"%s%d\r\n\r\n%s" % (self._heads[op], len(said), said)

    def answer(self, got: bytearray) -> _Answer | None:
        """The first whole answer, which is taken out; None if more has to come."""
        return self._http(got) if self.path is None else self._frame(got)

    def _http(self, got: bytearray) -> _Answer | None:
        end = got.find(b"\r\n\r\n")
        if end < 0:
            return None
        status, *lines = bytes(got[:end]).decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        try:
            code, size = int(status.split(" ", 2)[1]), int(headers.get("content-length", 0))
        except (ValueError, IndexError):
            raise ConnectionError(f"expected an answer of HTTP/1.1, got {status[:80]!r}") from None
        if size > MOST:
            raise ConnectionError(f"expected an answer of at most {MOST:,} bytes, got {size:,}")
        if len(got) < end + 4 + size:
            return None
        body = bytes(got[end + 4 : end + 4 + size])
        del got[: end + 4 + size]
        try:
            message = json.loads(body)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            message = {"error": f"expected a JSON object, got {body[:200]!r}"}
        return _Answer(code, message, last=headers.get("connection", "").lower() == "close")

    def _frame(self, got: bytearray) -> _Answer | None:
        if len(got) < 4:
            return None
        size = int.from_bytes(got[:4], "big")
        if size > MOST:
            raise ConnectionError(f"expected an answer of at most {MOST:,} bytes, got {size:,}")
        if len(got) < 4 + size:
            return None
        message: dict[str, Any] = _unpack(bytes(got[4 : 4 + size]), 0)[0]
        status, _ = message.pop("status"), message.pop("n")
        del got[: 4 + size]
        return _Answer(status, message)

    def failed(self, error: OSError, timeout_s: float) -> NoReturn:
        if isinstance(error, TimeoutError):
            raise TimeoutError(
                f"{self.place}: expected an answer within {timeout_s:g} s, got none"
            ) from error
        raise ConnectionError(
            f"{self.place}: expected a server ('equipoise serve'), got: {error}"
        ) from error


def _readable(opened: socket.socket) -> bool:
    """Has an unexpected answer come? ``select`` takes no descriptor above 1023, and Windows has no
    ``poll``.
    """
    if not hasattr(select, "poll"):
        return bool(select.select([opened], [], [], 0)[0])
    poll = select.poll()
    poll.register(opened, select.POLLIN)
    return bool(poll.poll(0))


def _listed(value: Any) -> Any:
    """Arrays and numpy's numbers as JSON has them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"expected numbers, lists, dicts or arrays, got {type(value).__name__}")


def _pack(value: Any, out: bytearray) -> None:
    """Append a value as msgpack; an array as {"dtype", "shape", "data"}."""
    if value is None or isinstance(value, bool):
        out.append(0xC0 if value is None else 0xC2 + value)
    elif isinstance(value, int):
        out += struct.pack(">Bq", 0xD3, value)
    elif isinstance(value, float):
        out += struct.pack(">Bd", 0xCB, value)
    elif isinstance(value, str | bytes):
        data, head = (value.encode(), 0xDB) if isinstance(value, str) else (value, 0xC6)
        out += struct.pack(">BI", head, len(data)) + data
    elif isinstance(value, list | tuple):
        out += struct.pack(">BI", 0xDD, len(value))
        for one in value:
            _pack(one, out)
    elif isinstance(value, Mapping):
        out += struct.pack(">BI", 0xDF, len(value))
        for key, one in value.items():
            _pack(key, out)
            _pack(one, out)
    elif hasattr(value, "tobytes") and getattr(value, "ndim", False):
        little = value.astype(value.dtype.newbyteorder("<"), copy=False)
        _pack(
            {"dtype": value.dtype.name, "shape": list(value.shape), "data": little.tobytes()}, out
        )
    else:
        _pack(_listed(value), out)


_FIXED = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = dict(
    zip(
        range(0xCA, 0xD4), [">f", ">d", ">B", ">H", ">I", ">Q", ">b", ">h", ">i", ">q"], strict=True
    )
)
# bytes of the size
_SIZES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}


def _unpack(data: bytes, at: int) -> tuple[Any, int]:
    """The msgpack value at a place, and the place after it."""
    head, at = data[at], at + 1
    if head < 0x80 or head >= 0xE0:
        return (head if head < 0x80 else head - 256), at
    if head in _FIXED:
        return _FIXED[head], at
    if (form := _NUMBERS.get(head)) is not None:
        return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
    if head < 0xC0:
        size = head & (0x1F if head >= 0xA0 else 0x0F)
    elif head in _SIZES:
        size, at = int.from_bytes(data[at : at + _SIZES[head]], "big"), at + _SIZES[head]
    else:
        raise ConnectionError(f"expected msgpack, got the byte {head:#04x}")
    if 0xA0 <= head < 0xC0 or 0xC4 <= head <= 0xC6 or 0xD9 <= head <= 0xDB:
        part = data[at : at + size]
        return (part if head <= 0xC6 and head >= 0xC4 else part.decode()), at + size
    is_map, items = head < 0x90 or head >= 0xDE, []
    for _ in range(2 * size if is_map else size):
        item, at = _unpack(data, at)
        items.append(item)
    return (dict(zip(items[::2], items[1::2], strict=True)) if is_map else items), at

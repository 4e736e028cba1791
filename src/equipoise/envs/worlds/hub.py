"""The hub: listens for worlds, takes their hellos, and deals each to a stream of an actor, to whose
process the socket goes.

One hub a run, in a thread of the process that drives it. Actors (and an evaluation) reach it by a
private unix socket:

| message to the hub | |
|---|---|
| attach | the caller has streams; it is told the spaces of the run, once a world has stated them |
| want seat, dealt | this stream has no world; ``dealt`` is how many the hub has dealt it so far |

| message from the hub | |
|---|---|
| spaces | what the first world stated, or a file; and how long a grace is |
| world seat, session, name | with the descriptor of a world's connection, behind its hello |

A world that comes again (the same ``session``) goes to the stream that it had, until that one wants
another. A world without a free stream waits here, and gets a message about it now and then. Streams
are served in the order in which their owners attached.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from equipoise.access import need_token
from equipoise.envs.worlds.addresses import Address
from equipoise.envs.worlds.protocol import HELLO_BYTES, Refused, Spaces, read_hello
from equipoise.frames import HEAD, BadFrame, Message, Splitter, decode, encode, length
from equipoise.listening import accept, listen_at

GREETING_S = 10.0  # in which a connection has to say hello
GREETINGS = 256  # most connections without a hello: a further one takes the place of the oldest
WAITING = 256  # most worlds of new sessions that wait; known sessions have places of their own
LINGER_S = 0.5  # at the end, for worlds whose actor has ended to come and hear of it
OVER = {"kind": "bye", "text": "the run is over"}
NOTES = 100  # kept until they are read


@dataclass(eq=False, slots=True)
class Greeting:
    """A connection without a hello so far. Nothing beyond it is read: that is the actor's."""

    conn: socket.socket
    until: float
    kept: bytearray = field(default_factory=bytearray)

    def read(self) -> Message | None:
        """The hello, once it is whole; None after a beat. EOFError at the end."""
        while True:
            size = HEAD.size
            if len(self.kept) >= size:
                size += length(self.kept[:size], HELLO_BYTES)
                if len(self.kept) == size:
                    message, self.kept = decode(self.kept[HEAD.size :]), bytearray()
                    # a beat may come before the hello
                    return None if message.get("kind") == "beat" else message
            try:
                data = self.conn.recv(size - len(self.kept))
            except BlockingIOError:
                return None
            if not data:
                raise EOFError
            self.kept += data


@dataclass(eq=False, slots=True)
class World:
    """A world that waits for a stream."""

    conn: socket.socket
    session: str
    name: str


@dataclass(eq=False, slots=True)
class Attached:
    """A process with streams for worlds."""

    conn: socket.socket
    splitter: Splitter = field(default_factory=Splitter)
    dealt: dict[int, int] = field(default_factory=dict)  # worlds so far, by seat
    wants: dict[int, None] = field(default_factory=dict)  # seats without a world, in order
    told: bool = False  # the spaces


class Hub:
    """Everything but ``close`` and ``notes`` happens in its thread."""

    def __init__(
        self,
        address: Address,
        *,
        token: str | None,
        spaces: Spaces | None,
        grace_s: float,
        heartbeat_s: float,
    ) -> None:
        """``spaces``: None for the first world's. ValueError without a token for other machines."""
        if not address.path:
            how = "set EQUIPOISE_WORLD_TOKEN, or env.token_file to a file with one"
            need_token(address.host, token, f"remote:{address}", how)
        self.address, self._token, self.spaces = address, token, spaces
        self._times = {"grace_s": grace_s, "heartbeat_s": heartbeat_s}
        self._heartbeat_s = heartbeat_s
        self._private_path = address.private
        self._public = address.listen()
        try:
            self._private = listen_at(self._private_path)
        except OSError:
            self._public.close()
            raise
        self._wake_read, self._wake_write = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._greetings: dict[Greeting, None] = {}
        self._waiting: dict[str, World] = {}  # by session
        self._attached: list[Attached] = []
        self._sessions: dict[str, tuple[Attached, int]] = {}
        self._orphans: set[str] = set()  # sessions whose process has ended: they will come again
        self._notes: deque[str] = deque(maxlen=NOTES)
        self._refused: set[str] = set()  # codes that were noted
        self._closing = 0.0  # when it ends; 0: not asked to
        self._ending = threading.Lock()
        # if True, send worlds on close that the run ended, so that they do not reconnect
        self.says_over = False
        woken = partial(self._wake_read.recv, 64)
        for listening, answer in (
            (self._public, self._accept),
            (self._private, self._attach),
            (self._wake_read, woken),
        ):
            listening.setblocking(False)
            self._selector.register(listening, selectors.EVENT_READ, answer)
        self._thread = threading.Thread(target=self._run, name=f"worlds at {address}", daemon=True)
        self._thread.start()

    def notes(self) -> list[str]:
        """The events since the last call, as sentences."""
        notes = []
        while self._notes:
            notes.append(self._notes.popleft())
        return notes

    def close(self) -> None:
        """Send the worlds that the run is over, and listen no more."""
        # Two threads may close it, and its own may have ended: only here the sockets close.
        with self._ending:
            if self._wake_write.fileno() < 0:
                return
            self._closing = time.monotonic() + LINGER_S * self.says_over
            self._wake_write.send(b".")
            self._thread.join()
            self._wake_read.close()
            self._wake_write.close()

    # ----------------------------------------------------------------------------------- its thread

    def _run(self) -> None:
        try:
            beat_at = 0.0
            while not self._closing or (
                self._orphans | {*self._sessions} and time.monotonic() < self._closing
            ):
                for key, _ in self._selector.select(
                    0.05 if self._closing else self._heartbeat_s / 2
                ):
                    key.data()
                if (now := time.monotonic()) >= beat_at or self._closing:
                    beat_at = now + self._heartbeat_s
                    self._look(now)
                self._deal()
        finally:
            for world in [*self._waiting.values()]:
                self._leave(world, OVER if self.says_over else None)
            for conn in [one.conn for one in self._greetings] + [
                one.conn for one in self._attached
            ]:
                conn.close()
            self._selector.close()
            self._public.close()
            self._private.close()
            for path in (self._private_path, self.address.path):
                if path:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)

    def _look(self, now: float) -> None:
        """Give up silent connections, and send news to the worlds that wait."""
        for greeting in [one for one in self._greetings if now > one.until]:
            self._refuse(
                greeting, Refused("frame", f"expected a hello within {GREETING_S:.0f} s, got none")
            )
        free = sum(len(one.wants) for one in self._attached)
        said = {
            "kind": "wait",
            "text": "expected a stream that is free, got none: the run has worlds enough for now",
        }
        for world in [*self._waiting.values()]:
            if self._closing and self.says_over:
                self._leave(world, OVER)
            elif not free:
                with self._or_gone(world):
                    world.conn.send(encode(said))

    @contextlib.contextmanager
    def _or_gone(self, world: World) -> Any:
        try:
            yield
        except OSError:  # the world has gone, or reads nothing
            self._leave(world, None)

    def _leave(self, world: World, last: Message | None) -> None:
        """A world that waits has gone, or is to go."""
        if self._waiting.get(world.session) is world:  # else it came again meanwhile
            del self._waiting[world.session]
            if last is not None:  # else it may come again, to the stream that it had
                self._sessions.pop(world.session, None)
        if last is not None:
            with contextlib.suppress(OSError):
                world.conn.send(encode(last))
        self._forget(world.conn)

    def _forget(self, conn: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):  # it is not registered any more
            self._selector.unregister(conn)
        conn.close()

    def _accept(self) -> None:
        if (conn := accept(self._public)) is None:
            return
        # a world sends its hello at once, so the oldest is the least likely to be a world
        if len(self._greetings) >= GREETINGS:
            full = Refused(
                "full", f"expected at most {GREETINGS} connections without a hello, got more"
            )
            self._refuse(next(iter(self._greetings)), full)
        conn.setblocking(False)
        if conn.family != socket.AF_UNIX:
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting = Greeting(conn, time.monotonic() + GREETING_S)
        self._greetings[greeting] = None
        self._selector.register(conn, selectors.EVENT_READ, lambda: self._greet(greeting))

    def _greet(self, greeting: Greeting) -> None:
        try:
            if (hello := greeting.read()) is None:
                return
            spaces = read_hello(hello, self._token, self.spaces)
            known = hello["session"] in self._sessions or hello["session"] in self._orphans
            if (
                not known
                and len(self._waiting) >= WAITING
                and hello["session"] not in self._waiting
            ):
                raise Refused(
                    "full",
                    f"expected at most {WAITING} worlds that wait, got more; connect again in a "
                    "while",
                )
        except (Refused, BadFrame) as error:
            self._refuse(
                greeting, error if isinstance(error, Refused) else Refused("frame", str(error))
            )
            return
        except (EOFError, OSError):
            self._drop(greeting)
            return
        if self.spaces is None:
            self.spaces = spaces
        world = World(greeting.conn, hello["session"], hello.get("name") or "a world")
        del self._greetings[greeting]
        self._orphans.discard(world.session)
        # the world came again while its first connection waits
        if (before := self._waiting.get(world.session)) is not None:
            self._leave(before, None)
        self._waiting[world.session] = world
        self._selector.modify(world.conn, selectors.EVENT_READ, lambda: self._waits(world))

    def _waits(self, world: World) -> None:
        """A world that waits can be read: it has gone, or has a message for its actor."""
        with self._or_gone(world):
            if not world.conn.recv(1, socket.MSG_PEEK):
                raise ConnectionResetError
            self._selector.unregister(world.conn)

    def _refuse(self, greeting: Greeting, refused: Refused) -> None:
        if refused.code not in self._refused:
            self._refused.add(refused.code)
            self._notes.append(
                f"warning: a world was refused at {self.address} ({refused}; reported once)"
            )
        with contextlib.suppress(OSError):
            greeting.conn.send(encode(refused.message))
        self._drop(greeting)

    def _drop(self, greeting: Greeting) -> None:
        self._greetings.pop(greeting, None)
        self._forget(greeting.conn)

    # ------------------------------------------------------------------------- callers with streams

    def _attach(self) -> None:
        if (conn := accept(self._private)) is None:
            return
        conn.setblocking(True)
        one = Attached(conn)
        self._attached.append(one)
        self._selector.register(conn, selectors.EVENT_READ, lambda: self._hear(one))

    def _hear(self, one: Attached) -> None:
        try:
            if not (data := one.conn.recv(1 << 16)):
                raise ConnectionResetError
            for body in one.splitter.feed(data):
                said = decode(body)
                if said["kind"] == "want" and one.dealt.get(said["seat"], 0) == said["dealt"]:
                    for session in [
                        key for key, owner in self._sessions.items() if owner == (one, said["seat"])
                    ]:
                        del self._sessions[session]
                    one.wants[said["seat"]] = None
        except OSError:
            self._detach(one)

    def _detach(self, one: Attached) -> None:
        if one in self._attached:
            self._attached.remove(one)
        for session in [session for session, owner in self._sessions.items() if owner[0] is one]:
            del self._sessions[session]
            self._orphans.add(session)
        self._forget(one.conn)

    def _deal(self) -> None:
        if self.spaces is not None:
            for one in [one for one in self._attached if not one.told]:
                one.told = True
                self._tell(one, {"kind": "spaces", **self.spaces.json, **self._times})
        # a world that comes again gets its old stream
        for world in [*self._waiting.values()]:
            if (owner := self._sessions.get(world.session)) is not None and owner[
                0
            ] in self._attached:
                self._hand(*owner, world)
        for one in [*self._attached]:
            for seat in [*one.wants]:
                if self._waiting and one in self._attached:
                    self._hand(one, seat, next(iter(self._waiting.values())))

    def _hand(self, one: Attached, seat: int, world: World) -> None:
        """Hand a world's connection to the process that has the stream."""
        said = {"kind": "world", "seat": seat, "session": world.session, "name": world.name}
        if self._tell(one, said, world.conn):
            del self._waiting[world.session]
            self._forget(world.conn)  # this process's copy
            self._sessions[world.session] = one, seat
            one.dealt[seat] = one.dealt.get(seat, 0) + 1
            one.wants.pop(seat, None)

    def _tell(self, one: Attached, message: Message, *conns: socket.socket) -> bool:
        try:
            frame = encode(message)
            sent = socket.send_fds(one.conn, [frame], [conn.fileno() for conn in conns])
            one.conn.sendall(frame[sent:])
        except OSError:
            self._detach(one)
            return False
        return True

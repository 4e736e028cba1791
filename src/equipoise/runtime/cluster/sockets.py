"""Links over ZeroMQ: one listener at home, one connection a site, encrypted and authenticated by
CURVE keys.

Framing, reconnection, heartbeats of the connection, bounds of what is under way and keys are the
library's. A site is known by its identity, "NAME.INCARNATION"; messages from any other are refused
and counted.

ZeroMQ closes a connection that announces a message above ``MAXMSGSIZE`` before it allocates any of
it; the session of that site ends. A message above the limit of its kind is refused here, before it
is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import zmq
from zmq.utils.monitor import parse_monitor_message

from equipoise import curve
from equipoise.curve import Keys
from equipoise.runtime.cluster.frames import Body, Denied, Kind, Probe
from equipoise.runtime.cluster.line import SILENT_S
from equipoise.runtime.cluster.wire import WORDS, Refused, Tally, parse, words

UNDER_WAY = 256  # messages of one site, each way, besides its groups' messages: more are a flood
OF_GROUP = 32  # the places, rows and counts of one group that may be under way
LAST_MS = 500  # that the last words of home may take to reach the sites
BEAT_MS = 500  # of a connection: ZeroMQ closes a silent one
SLACK = 1 << 10  # bytes of a message besides its body
DETACHED = zmq.EVENT_DISCONNECTED
FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
BEGUN = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED


class _Monitored:
    """A socket, and the events of its connections."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        kind: int,
        groups: int,
        silent_s: float,
        refused: Tally | None = None,
    ) -> None:
        self._refused = Tally() if refused is None else refused
        # descriptors of connections that have shown no key yet, the oldest first
        self._shaking: list[int] = []
        self._failed = False  # was the last event a handshake that failed?
        self.socket = context.socket(kind)
        socket = self.socket
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, UNDER_WAY + OF_GROUP * groups)
        socket.setsockopt(zmq.RCVHWM, UNDER_WAY + OF_GROUP * groups)
        socket.setsockopt(zmq.MAXMSGSIZE, WORDS + SLACK)
        socket.setsockopt(zmq.HEARTBEAT_IVL, BEAT_MS)
        silent_ms = int(800 * silent_s)  # before the line itself gives up
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, silent_ms)
        socket.setsockopt(zmq.HEARTBEAT_TTL, silent_ms)
        # else minutes, in which a link that is up again goes unseen
        socket.setsockopt(zmq.CONNECT_TIMEOUT, silent_ms)
        socket.setsockopt(zmq.HANDSHAKE_IVL, silent_ms)  # else 30 s
        self._events = socket.get_monitor_socket(DETACHED | FAILED | BEGUN)

    def detached(self) -> bool:
        """Has a connection that had shown its key ended since the last call?"""
        found = False
        while self._events.poll(0):
            said = parse_monitor_message(self._events.recv_multipart(zmq.NOBLOCK))
            found |= self._ends(said["event"], said["value"])
        return found

    def _ends(self, event: int, value: int) -> bool:
        """Count what gets no connection -> has another one ended?

        ZeroMQ does not report whose handshake succeeded: it counts as the newest connection's. If
        that is wrong, the end of a site's connection is seen by its silence. A connection that
        closes without a word of a handshake did not speak ZeroMQ.
        """
        failed, self._failed = self._failed, bool(event & FAILED)
        if event & zmq.EVENT_ACCEPTED:
            self._shaking.append(value)
        elif event & zmq.EVENT_HANDSHAKE_SUCCEEDED:
            del self._shaking[-1:]
        elif event & FAILED:
            another = (
                event & zmq.EVENT_HANDSHAKE_FAILED_AUTH
                or value == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
            )
            self._refused.add("another key" if another else "no key")
        elif event & DETACHED and value in self._shaking:
            self._shaking.remove(value)
            if not failed:
                self._refused.add("no ZeroMQ")
        else:
            return bool(event & DETACHED)
        return False

    def close(self, linger_ms: int = 0) -> None:
        """``linger_ms``: for what is still to be sent."""
        if self.socket.closed:
            return
        self.socket.disable_monitor()
        self._events.close(0)
        self.socket.close(linger_ms)


class Listener:
    """Home's socket. ``end`` is a site's ``Link``."""

    def __init__(
        self,
        address: str,
        keys: Keys,
        sites: bytes,
        most: Mapping[Kind, int],
        refused: Tally,
        *,
        groups: int = 0,
        port: int = 0,
        silent_s: float = SILENT_S,
    ) -> None:
        """``address``: of this machine, which sites can reach; ``sites``: the public key that all
        of them have.

        ``most``: the most bytes of each kind that may come. ``refused``: the counter of refused
        messages. ``groups``: the most that a site may have. ``port``: 0 for a free one.
        ``silent_s``: the time after which a silent connection is closed.
        """
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._guard = curve.guard(self._context, sites)
        self._most, self.refused = most, refused
        self._socket = _Monitored(self._context, zmq.ROUTER, groups, silent_s, refused)
        socket = self._socket.socket
        curve.serve(socket, keys)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.bind(f"tcp://{address}:{port or '*'}")
        self.port = int(str(socket.getsockopt_string(zmq.LAST_ENDPOINT)).rpartition(":")[2])
        self._ends: dict[bytes, HomeLink] = {}

    @property
    def fd(self) -> int:
        """Becomes readable when something may have come; read until there is nothing."""
        return int(self._socket.socket.getsockopt(zmq.FD))

    def end(self, name: str, incarnation: int) -> HomeLink:
        """The link of a site; an earlier incarnation's is of no more use."""
        prefix = f"{name}.".encode()
        for identity in [one for one in self._ends if one.startswith(prefix)]:
            del self._ends[identity]
        identity = prefix + str(incarnation).encode()
        self._ends[identity] = HomeLink(self, identity)
        return self._ends[identity]

    def collect(self) -> bool:
        """Hand what has come to the links -> may there be more? No more than the library keeps of
        one site is taken at once.
        """
        if self._socket.detached():
            for end in self._ends.values():
                end.gone |= not self.send(end.identity, Probe().head(), b"")
        for _ in range(UNDER_WAY):
            try:
                parts = self._socket.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return False
            identity = parts[0].bytes
            site = self._ends.get(identity)
            if site is None:
                self.refused.add("no site of this run")
                self.send(
                    identity,
                    Denied(-1).head(),
                    words(why="home has no such site: it was replaced"),
                )
            elif len(parts) != 3:
                self.refused.add("no message")
            else:
                head, body = parts[1].bytes, parts[2].buffer
                try:
                    parse(head, body, self._most)
                except Refused as error:
                    self.refused.add(error.reason)
                else:
                    site.inbox.append((head, body))
        return True

    def send(self, identity: bytes, head: bytes, body: Body) -> bool:
        try:
            self._socket.socket.send_multipart([identity, head, body], zmq.NOBLOCK)
        except (zmq.Again, zmq.ZMQError):  # it is not connected, or does not read what was sent
            return False
        return True

    def close(self) -> None:
        self._socket.close(LAST_MS)
        self._guard.stop()
        self._context.term()


class HomeLink:
    """``Link`` of one site."""

    def __init__(self, listener: Listener, identity: bytes) -> None:
        self._listener, self.identity = listener, identity
        self.inbox: deque[tuple[Body, Body]] = deque()
        self.gone = False

    def send(self, head: bytes, body: Body) -> bool:
        return self._listener.send(self.identity, head, body)

    def receive(self) -> tuple[Body, Body] | None:
        return self.inbox.popleft() if self.inbox else None

    def closed(self) -> bool:
        said, self.gone = self.gone, False
        return said


class SiteLink:
    """``Link`` of a site: its one connection to home, made again by itself."""

    def __init__(
        self,
        name: str,
        incarnation: int,
        address: str,
        home: bytes,
        keys: Keys,
        *,
        groups: int = 0,
        silent_s: float = SILENT_S,
    ) -> None:
        """``address``: HOST:PORT of home; ``home``: its public key; ``groups``, ``silent_s``: as of
        ``Listener``.
        """
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket = _Monitored(self._context, zmq.DEALER, groups, silent_s)
        socket = self._socket.socket
        socket.setsockopt(zmq.IDENTITY, f"{name}.{incarnation}".encode())
        # messages that cannot be sent now are not kept for later
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        curve.join(socket, home, keys)
        socket.connect(f"tcp://{address}")

    @property
    def fd(self) -> int:
        """Becomes readable when something may have come; read until there is nothing."""
        return int(self._socket.socket.getsockopt(zmq.FD))

    def send(self, head: bytes, body: Body) -> bool:
        try:
            self._socket.socket.send_multipart([head, body], zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> tuple[Body, Body] | None:
        while True:
            try:
                parts = self._socket.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            if len(parts) == 2:
                return parts[0].bytes, parts[1].buffer

    def closed(self) -> bool:
        return self._socket.detached()

    def close(self) -> None:
        self._socket.close()
        self._context.destroy(0)

"""A world for `equipoise train remote:tcp://HOST:PORT`: your game, robot or simulator, in one file
without dependencies.

    from world import EpisodeLost, RunOver, World, box, discrete

    world = World("tcp://127.0.0.1:7000", observation=box([4]), action=discrete(2))
    try:
        while True:
            try:
                action = world.reset(game.start())
                while True:
                    obs, reward, over = game.step(action)
                    if over:
                        world.end(obs, reward, terminated=True)
                        break
                    action = world.step(obs, reward)
            except EpisodeLost:
                pass  # the run gave the episode up: begin another
    except RunOver:
        pass  # training has ended

An observation is a number, (nested) lists of numbers, a dict of these for a Dict space, or an
array: one of numpy's, or ``array("float32", [84, 84], bytes)``. An action comes as a number or as
lists of numbers. If your game did another thing than it was told, say ``took=ACTION``. What was
lost, doubled or late on the way is mended here; a connection that breaks is made again, and the
episode goes on where it was. The protocol: docs/guides/protocol.md.
"""

import contextlib
import os
import secrets
import socket
import struct
import threading
import time

VERSION = 1
MOST = 1 << 26  # bytes of a frame


class EpisodeLost(Exception):
    """The run gave this episode up, since the world was away for longer than its grace, or for a
    value that it sent.
    """


class RunOver(Exception):
    """The run has ended."""


class _Full(ConnectionError):
    """The run has no place for this world yet."""


class Refused(Exception):
    """The run does not take this world: ``code`` is version, token, space, frame,
    observe or gap.
    """

    def __init__(self, code, text):
        super().__init__(code + ": " + text)
        self.code, self.text = code, text


def box(shape, low="-inf", high="inf", dtype="float32"):
    """A space of arrays. ``low``, ``high``: a number for all places, or nested lists."""
    return {"type": "Box", "shape": list(shape), "dtype": dtype, "low": low, "high": high}


def discrete(n, start=0):
    """A space of the whole numbers from ``start`` to ``start`` + n - 1."""
    return {"type": "Discrete", "n": n, "start": start, "dtype": "int64"}


def mapping(**spaces):
    """A space of maps with a space for each key; the key ``action_mask`` says which actions are
    allowed now.
    """
    return {"type": "Dict", "spaces": [[key, spaces[key]] for key in spaces]}


def array(dtype, shape, data):
    """An array of these bytes, little-endian, in C order."""
    return {"dtype": dtype, "shape": list(shape), "data": bytes(data)}


class World:
    """One world, in one stream of a run. ``stream``, ``seed``: which one, and a seed for its
    randomness.
    """

    def __init__(
        self, address, observation, action, name="", token=None, patience_s=60.0, timeout_s=5.0
    ):
        """Connects, and waits until the run has a stream free. ``token``: by default that in
        EQUIPOISE_WORLD_TOKEN.

        ``patience_s``: how long to try to connect before ConnectionError. ``timeout_s``: of a
        connection without a word.
        """
        self._address, self._patience_s, self._timeout_s = address, patience_s, timeout_s
        self._hello = {
            "kind": "hello",
            "version": VERSION,
            "session": secrets.token_hex(16),
            "name": name or f"pid {os.getpid()}",
            "observation": observation,
            "action": action,
        }
        token = token if token is not None else os.environ.get("EQUIPOISE_WORLD_TOKEN")
        if token:
            self._hello["token"] = token
        self.stream, self.seed = 0, 0
        self._seq = -1  # of the last observation
        self._frame = b""  # the last observation, in case it is lost
        # of this world in the run; another one knows nothing of what was said in it
        self._life = ""
        self._running = False  # an episode
        self._socket, self._bytes = None, b""
        self._lock = threading.Lock()  # of what is sent
        self._welcome = False  # by this connection: a beat before it would stand before the hello
        self._closed = threading.Event()
        self._heartbeat_s = 1.0
        self._connect()
        self._beats = threading.Thread(target=self._beat, daemon=True)
        self._beats.start()

    def reset(self, obs):
        """Begin an episode with its first observation -> the first action."""
        self._running = False
        answer = self._say({"obs": obs, "first": True})
        self._running = True
        return answer["action"]

    def step(self, obs, reward, took=None, info=None):
        """Say what followed from the last action -> the next one. ``took``: the action really
        taken, if it was another.

        ``info``: numbers by name, for ``--metrics``. Raises EpisodeLost where the run has given the
        episode up.
        """
        return self._say(_outcome(obs, reward, took, info))["action"]

    def end(self, obs, reward, terminated=False, truncated=False, took=None, info=None):
        """Say what followed from the last action of an episode. ``terminated``: by itself;
        ``truncated``: by a clock.
        """
        if not (terminated or truncated):
            raise ValueError("end: expected terminated or truncated to be true, got neither")
        outcome = _outcome(obs, reward, took, info)
        with contextlib.suppress(EpisodeLost):  # it is over anyway
            self._say(dict(outcome, terminated=bool(terminated), truncated=bool(truncated)))
        self._running = False

    def close(self):
        """Leave for good."""
        with contextlib.suppress(OSError):
            self._send(_frame({"kind": "bye"}))
        self._leave()
        self._beats.join()

    def _leave(self):
        self._closed.set()
        self._drop()

    # ------------------------------------------------------------------------- messages and numbers

    def _say(self, observation):
        """Send an observation, again as often as it is lost, until its answer comes."""
        self._seq += 1
        observation.update(kind="observe", seq=self._seq)
        self._frame = _frame(observation)
        self._again()
        while True:
            try:
                message = self._receive()
                if message["kind"] == "act" and message["seq"] == self._seq:
                    if message.get("lost"):
                        self._running = False
                        raise EpisodeLost(
                            "the run gave up the episode, for a value that it was sent"
                        )
                    return message
                if message["kind"] == "beat" and (
                    message["seen"] < self._seq or message["answered"] >= self._seq
                ):
                    self._again()  # it never came there, or its answer never came here
            except OSError:
                if not self._connect():  # the run knows nothing of this episode any more
                    running, self._running = self._running, False
                    if running or not observation.get("first"):
                        raise EpisodeLost(
                            "the run gave up the episode: the world was away for too long"
                        ) from None
                    self._seq = 0
                    observation["seq"] = 0
                    self._frame = _frame(observation)
                self._again()

    def _again(self):
        with contextlib.suppress(OSError):  # the next receive says so, too
            self._send(self._frame)

    def _connect(self):
        """Connect, as often as it takes -> does the run still know this world?"""
        until, pause_s = time.monotonic() + self._patience_s, 0.05
        while True:
            self._drop()
            try:
                self._open()
                self._send(_frame(self._hello))
                while True:
                    message = self._receive()
                    if message["kind"] == "welcome":
                        with self._lock:
                            self._welcome = self._socket is not None
                        self.stream, self.seed = message["stream"], message["seed"]
                        self._heartbeat_s = message["heartbeat_s"]
                        known, self._life = message["life"] == self._life, message["life"]
                        if not known:
                            self._seq = -1
                        return known
                    # "wait": no stream is free yet
                    until = max(until, time.monotonic() + self._patience_s)
            except OSError as error:
                if isinstance(error, _Full):
                    until = max(until, time.monotonic() + self._patience_s)
                if time.monotonic() > until:
                    self._leave()
                    raise ConnectionError(
                        f"{self._address}: expected a run that listens, got: {error}"
                    ) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    def _open(self):
        if self._address.startswith("unix:"):
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            made.settimeout(self._timeout_s)
            try:
                made.connect(self._address[len("unix:") :])
            except OSError:
                made.close()
                raise
        else:
            host, _, port = self._address[len("tcp://") :].rpartition(":")
            made = socket.create_connection((host.strip("[]"), int(port)), self._timeout_s)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._bytes = b""
        with self._lock:
            self._socket = made

    def _drop(self):
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._socket, self._welcome = None, False

    def _send(self, frame):
        with self._lock:
            if self._socket is None:
                raise ConnectionResetError("not connected")
            self._socket.sendall(frame)

    def _receive(self):
        """The next message. OSError where the connection has ended,
        or says nothing for too long.
        """
        while True:
            if len(self._bytes) >= 4:
                size = 4 + struct.unpack(">I", self._bytes[:4])[0]
                if size > MOST:
                    raise ConnectionResetError(f"a frame of {size} bytes")
                if len(self._bytes) >= size:
                    body, self._bytes = self._bytes[4:size], self._bytes[size:]
                    message = unpack(body)
                    if message["kind"] in ("refuse", "bye"):
                        if message.get("code") == "full":  # as "wait": it comes again
                            raise _Full(message["text"])
                        self._leave()
                        if message["kind"] == "refuse":
                            raise Refused(message["code"], message["text"])
                        raise RunOver(message.get("text", "the run is over"))
                    return message
            if self._socket is None:
                raise ConnectionResetError("not connected")
            self._socket.settimeout(max(self._timeout_s, 3 * self._heartbeat_s))
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError("the connection has ended")
            self._bytes += data

    def _beat(self):
        """Say now and then that this world lives, also while the game computes."""
        beat = _frame({"kind": "beat"})
        while not self._closed.wait(self._heartbeat_s / 2):
            with self._lock, contextlib.suppress(OSError):  # who waits for an answer connects again
                if self._welcome:
                    self._socket.sendall(beat)


def _outcome(obs, reward, took, info):
    outcome = {"obs": obs, "reward": float(reward)}
    if took is not None:
        outcome["took"] = took
    if info:
        outcome["info"] = info
    return outcome


def _frame(message):
    body = pack(message)
    return struct.pack(">I", len(body)) + body


# ------------------------------------------------------------------------------------------ msgpack


def pack(value):
    """A value as msgpack: None, bool, int, float, str, bytes, list, tuple, dict, or an array of
    numpy's.
    """
    parts = []
    _pack(value, parts.append)
    return b"".join(parts)


def _pack(value, put):
    kind = type(value)
    if kind is float:
        put(b"\xcb" + struct.pack(">d", value))
    elif kind is int:
        if 0 <= value < 128:
            put(bytes((value,)))
        elif value >= 0:
            put(b"\xcf" + struct.pack(">Q", value))
        else:
            put(b"\xd3" + struct.pack(">q", value))
    elif kind is str:
        data = value.encode()
        put(
            (
                bytes((0xA0 | len(data),))
                if len(data) < 32
                else b"\xdb" + struct.pack(">I", len(data))
            )
            + data
        )
    elif kind is bool:
        put(b"\xc3" if value else b"\xc2")
    elif value is None:
        put(b"\xc0")
    elif kind in (bytes, bytearray):
        put(b"\xc6" + struct.pack(">I", len(value)) + bytes(value))
    elif kind in (list, tuple):
        put(
            bytes((0x90 | len(value),))
            if len(value) < 16
            else b"\xdd" + struct.pack(">I", len(value))
        )
        for item in value:
            _pack(item, put)
    elif kind is dict:
        put(
            bytes((0x80 | len(value),))
            if len(value) < 16
            else b"\xdf" + struct.pack(">I", len(value))
        )
        for key in value:
            _pack(key, put)
            _pack(value[key], put)
    elif (
        hasattr(value, "dtype") and hasattr(value, "tobytes") and getattr(value, "shape", ()) != ()
    ):
        little = value.astype(value.dtype.newbyteorder("<"))
        _pack(array(value.dtype.name, value.shape, little.tobytes()), put)
    elif hasattr(value, "item"):  # a number of numpy's
        _pack(value.item(), put)
    else:
        raise TypeError("expected numbers, texts, bytes, lists or dicts, got " + kind.__name__)


_FIXED = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_SIZED = {
    0xC4: ">B",
    0xC5: ">H",
    0xC6: ">I",
    0xD9: ">B",
    0xDA: ">H",
    0xDB: ">I",
    0xDC: ">H",
    0xDD: ">I",
    0xDE: ">H",
    0xDF: ">I",
}


def unpack(data):
    """The value that msgpack bytes are."""
    return _unpack(data, 0)[0]


def _unpack(data, at):
    kind = data[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind >= 0xE0:
        return kind - 256, at
    if kind in _FIXED:
        size = struct.calcsize(_FIXED[kind])
        return struct.unpack_from(_FIXED[kind], data, at)[0], at + size
    if kind in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[kind], at
    if kind in _SIZED:
        size = struct.unpack_from(_SIZED[kind], data, at)[0]
        at += struct.calcsize(_SIZED[kind])
    elif kind < 0xC0:
        size = kind & (0x1F if kind >= 0xA0 else 0x0F)
    else:
        raise ValueError(f"expected msgpack without extensions, got the byte {kind:#x}")
    if 0xA0 <= kind < 0xC0 or 0xD9 <= kind <= 0xDB:
        return bytes(data[at : at + size]).decode(), at + size
    if 0xC4 <= kind <= 0xC6:
        return bytes(data[at : at + size]), at + size
    if kind >> 4 == 0x9 or kind in (0xDC, 0xDD):
        items = []
        for _ in range(size):
            item, at = _unpack(data, at)
            items.append(item)
        return items, at
    found = {}
    for _ in range(size):
        key, at = _unpack(data, at)
        found[key], at = _unpack(data, at)
    return found, at

"""Keys of links over ZeroMQ: CURVE pairs that a run makes for itself, and a guard for the owners of
one key.

Needs pyzmq (extra ``ray``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import zmq
from zmq.auth.thread import ThreadAuthenticator


@dataclass(frozen=True, slots=True)
class Keys:
    """CURVE keys in Z85; a run makes its own, and hands them to its workers by a way that is
    trusted already.
    """

    public: bytes
    secret: bytes = field(repr=False)

    @staticmethod
    def made() -> Keys:
        return Keys(*zmq.curve_keypair())


class OneKey:
    """Lets in peers with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._key


def guard(context: zmq.Context[zmq.Socket[bytes]], key: bytes) -> ThreadAuthenticator:
    """Let only peers with this public key into the context's servers. ``stop`` it at the end."""
    made = ThreadAuthenticator(context)
    made.start()
    made.configure_curve_callback(credentials_provider=OneKey(key))
    return made


def serve(socket: zmq.Socket[bytes], keys: Keys) -> None:
    """Let a socket accept encrypted connections."""
    socket.curve_server, socket.curve_publickey = True, keys.public
    socket.curve_secretkey = keys.secret


def join(socket: zmq.Socket[bytes], server: bytes, keys: Keys) -> None:
    """Let a socket connect to the owner of the public key ``server``, and show its own keys."""
    socket.curve_serverkey, socket.curve_publickey = server, keys.public
    socket.curve_secretkey = keys.secret

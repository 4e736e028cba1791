"""Private names of h11."""

from __future__ import annotations

from collections.abc import Callable

import h11
from h11._receivebuffer import ReceiveBuffer


class Received(ReceiveBuffer):
    """The bytes that a connection received and h11 has not read; false if there are none."""

    def __init__(self, look: Callable[[bytearray], object]) -> None:
        super().__init__()
        self._look = look

    def maybe_extract_lines(self) -> list[bytearray] | None:
        if not self._data:
            return None
        self._look(self._data)
        lines: list[bytearray] | None = super().maybe_extract_lines()
        return lines


def watched(connection: h11.Connection, look: Callable[[bytearray], object]) -> Received:
    """Have ``look`` called with all bytes that are there before h11 reads headers or trailers from
    them; ``look`` may raise.

    Call it on a new connection. h11 itself bounds what has not arrived whole, and nothing that has.
    Tried: 0.16. If it is gone: look at the bytes in ``LimitedProtocol.data_received`` (web.py),
    which has them before h11 has.
    """
    received = connection._receive_buffer = Received(look)
    return received

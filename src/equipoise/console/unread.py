"""Output without a reader, as behind ``| head -1``: it goes nowhere, and the command goes on to its
end.

The exit code is the same as with a reader: a check has found what it has found, and a run's product
is its directory.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

from equipoise.console.place import is_descriptor
from equipoise.runtime.process.log import STDERR, STDOUT


class Descriptor(io.FileIO):
    """A descriptor that becomes that of ``/dev/null`` once its reader has gone."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno(), inheritable=os.get_inheritable(self.fileno()))
            os.close(nowhere)
            return super().write(data)


def opened(descriptor: int, like: TextIO, *, close: bool = True) -> TextIO:
    """A text stream on a descriptor, with the encoding of ``like``; ``close``: the descriptor is
    closed with it.
    """
    buffer = io.BufferedWriter(Descriptor(descriptor, "wb", closefd=close))
    return io.TextIOWrapper(
        buffer, encoding=like.encoding, errors=like.errors, line_buffering=_by_line(like)
    )


def outlive_readers() -> None:
    """Let this process's stdout and stderr go nowhere once they have no reader."""
    if is_descriptor(sys.stdout, STDOUT):
        sys.stdout.flush()
        sys.stdout = opened(STDOUT, sys.stdout, close=False)
    if is_descriptor(sys.stderr, STDERR):
        sys.stderr.flush()
        sys.stderr = opened(STDERR, sys.stderr, close=False)


def _by_line(stream: TextIO) -> bool:
    return bool(getattr(stream, "line_buffering", False))

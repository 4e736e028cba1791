"""A proxy that loses, doubles, swaps and delays whole frames between worlds and a run, and breaks
connections.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from pathlib import Path

HELD_S = 0.03  # for which a frame is held at most, to be overtaken


class Proxy:
    """Listens at ``here`` and passes frames on to ``there``; ``faults``: {drop, double, swap or
    break: probability}.
    """

    def __init__(self, here: Path, there: Path, faults: dict[str, float], seed: int) -> None:
        self.done = dict.fromkeys(("drop", "double", "swap", "break"), 0)
        self._there, self._faults, self._seed = there, faults, seed
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(here))
        self._listening.listen()
        self._listening.settimeout(0.05)
        self._start(self._accept)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        number = 0
        while not self._closed.is_set():
            try:
                near, _ = self._listening.accept()
            except TimeoutError:
                continue
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(str(self._there))
            except OSError:
                far.close()
                near.close()
                continue
            near.settimeout(HELD_S)
            far.settimeout(HELD_S)
            number += 1
            for k, (one, other) in enumerate(((near, far), (far, near))):
                self._start(
                    self._pump, one, other, random.Random(self._seed * 1000 + 2 * number + k)
                )

    def _pump(self, one: socket.socket, other: socket.socket, dice: random.Random) -> None:
        kept, held = b"", b""
        try:
            while not self._closed.is_set():
                try:
                    data = one.recv(1 << 16)
                    if not data:
                        break
                    kept += data
                except TimeoutError:
                    other.sendall(held)
                    held = b""
                while len(kept) >= 4 and len(kept) >= (
                    size := 4 + struct.unpack(">I", kept[:4])[0]
                ):
                    frame, kept = kept[:size], kept[size:]
                    fault = next(
                        (name for name, share in self._faults.items() if dice.random() < share), ""
                    )
                    self.done |= {fault: self.done[fault] + 1} if fault else {}
                    if fault == "break":
                        return
                    if fault == "swap" and not held:
                        held = frame
                        continue
                    other.sendall({"drop": b"", "double": frame + frame}.get(fault, frame) + held)
                    held = b""
        except OSError:
            pass
        finally:
            for conn in (one, other):
                with contextlib.suppress(OSError):
                    conn.shutdown(socket.SHUT_RDWR)
                conn.close()

    def close(self) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join(10)
        self._listening.close()

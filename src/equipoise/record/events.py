"""TensorBoard's event files, written here: a scalar needs a few bytes of protobuf, its package a
second of imports.

The format: records (length, its checksum, data, its checksum) as TFRecord has them; the data is an
``Event`` message of tensorflow/core/util/event.proto. The tests read the files with TensorBoard's
own reader.
"""

from __future__ import annotations

import itertools
import math
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from equipoise.balance.shares import STATES
from equipoise.files import append_whole
from equipoise.record.report import Report
from equipoise.record.series import ROOMS, SERIES

VERSION = b"brain.Event:2"
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
# SessionLog.SessionStatus: TensorBoard forgets this step and later ones of earlier files
START = 1
_numbers = itertools.count()


class Events:
    """One event file in ``directory``; each ``write`` adds a whole record and flushes it."""

    def __init__(self, directory: Path, *, purge_step: int | None = None) -> None:
        """``purge_step``: the first step that is logged again, in place of the older files'
        values.
        """
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers):06d}"  # noqa: E501
        self.path = directory / name
        self._file = self.path.open("xb", buffering=0)
        self._record(field(3, BYTES, VERSION))
        if purge_step is not None:
            self._record(field(2, VARINT, purge_step) + field(7, BYTES, field(1, VARINT, START)))

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Scalars by their slashed names."""
        summary = b"".join(
            field(
                1,
                BYTES,
                field(1, BYTES, name.encode()) + field(2, FIXED32, struct.pack("<f", value)),
            )
            for name, value in values.items()
        )
        self._record(field(2, VARINT, step) + field(5, BYTES, summary))

    def close(self) -> None:
        self._file.close()

    def _record(self, message: bytes) -> None:
        data = field(1, FIXED64, struct.pack("<d", time.time())) + message
        length = struct.pack("<Q", len(data))
        record = (
            length
            + struct.pack("<I", masked_crc32c(length))
            + data
            + struct.pack("<I", masked_crc32c(data))
        )
        append_whole(self._file, record, self.path)


def scalars(report: Report) -> dict[str, float]:
    """The values that TensorBoard and W&B draw of a report: finite numbers by slashed names."""
    evaluation = report.evaluation
    found: dict[str, float | None] = {
        **{one.scalar: one.read(report) for one in SERIES if one.scalar},
        **{
            f"{room}/{name}": x
            for room, field in ROOMS.items()
            for name, x in getattr(report, field).items()
        },
        **{f"evaluation/{name}": x for name, x in (evaluation.info if evaluation else {}).items()},
    }
    for worker, shares in report.balance.items():
        for state in STATES:
            found[f"balance/{worker.replace(' ', '_')}/{state}"] = shares.share(state)
    return {
        name: value for name, value in found.items() if value is not None and math.isfinite(value)
    }


def field(number: int, wire: int, value: int | bytes) -> bytes:
    """One field of a protobuf message; ``value``: an int for VARINT, else the bytes themselves."""
    key = varint(number << 3 | wire)
    if isinstance(value, int):
        return key + varint(value)
    return key + (varint(len(value)) if wire == BYTES else b"") + value


def varint(value: int) -> bytes:
    """Encode a number that is not negative."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


CRC32C = _table()  # Castagnoli's polynomial, which zlib does not have


def masked_crc32c(data: bytes) -> int:
    """As TFRecord wants it: rotated, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

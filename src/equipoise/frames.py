"""Frames: messages over a stream socket. Each is 4 bytes of length (big-endian) and a msgpack map
with texts as keys.

An array is a map {"dtype": "float32", "shape": [2, 3], "data": bytes}, little-endian in C order.
Small arrays may also be plain lists or numbers. Nothing here trusts the other side: a length is
checked before any of the body is kept, and an array's bytes before an array is made of them.
``BadFrame`` has the expected and the given value. Needs msgspec (extra ``serve``).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

try:
    import msgspec
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "frames over sockets need msgspec, which is not installed: pip install 'equipoise[serve]' "
        "(or 'msgspec>=0.19')",
        name="msgspec",
    ) from error

HEAD = struct.Struct(">I")
MOST = 1 << 24  # bytes of a body, unless the caller sets another bound
DIMENSIONS = 32  # of an array
DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
Message = dict[str, Any]


class BadFrame(ValueError):
    """Bytes that are no frame, or a value that is no array. After the first kind the stream cannot
    be read any further.
    """


def encode(message: Mapping[str, Any], most: int = MOST) -> bytes:
    """A whole frame, head and body. numpy arrays become array maps, numpy's numbers plain ones."""
    body = _encoder.encode(message)
    if len(body) > most:
        raise BadFrame(f"a frame of {len(body):,} bytes, expected at most {most:,}")
    return HEAD.pack(len(body)) + body


def decode(body: bytes | bytearray | memoryview) -> Message:
    """The message of a frame's body. Array maps stay maps: ``array`` reads them if an array is
    expected.
    """
    try:
        message: Message = _decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise BadFrame(
            f"expected a msgpack map with texts as keys, got other bytes: {error}"
        ) from error
    return message


def length(head: bytes | bytearray | memoryview, most: int = MOST) -> int:
    """Bytes of the body that a head announces."""
    size: int = HEAD.unpack(head)[0]
    if size > most:
        raise BadFrame(f"a frame of {size:,} bytes announced, expected at most {most:,}")
    return size


class Splitter:
    """Cuts the bytes of a stream, fed as they come, into the bodies of frames."""

    def __init__(self, most: int = MOST) -> None:
        self.most, self._kept = most, bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that are whole now. Read all of them before the next ``feed``."""
        kept, at = self._kept, 0
        if (
            not kept
            and len(data) >= HEAD.size
            and len(data) - HEAD.size == length(data[: HEAD.size], self.most)
        ):
            yield data[HEAD.size :]  # the usual case, without a copy into what is kept
            return
        kept += data
        try:
            while len(kept) - at >= HEAD.size:
                size = length(kept[at : at + HEAD.size], self.most)
                if len(kept) - at - HEAD.size < size:
                    break
                at += HEAD.size + size
                yield bytes(kept[at - size : at])
        finally:
            del kept[:at]

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._kept)


def array(value: Any, place: str) -> np.ndarray:
    """Read an array map, a number, or nested lists of numbers; a map's array is a read-only view of
    its bytes.
    """
    if type(value) is dict:
        return _mapped(value, place)
    if not isinstance(value, (bool, int, float, list)):
        raise BadFrame(
            f"{place}: expected an array, numbers in lists, or a number, got {_short(value)}"
        )
    try:
        read = np.array(value)
    # lists of unequal lengths; a number beyond 64 bits
    except (ValueError, OverflowError) as error:
        raise BadFrame(f"{place}: expected numbers in lists of equal lengths: {error}") from error
    if read.dtype.kind not in "biuf" and read.size:
        raise BadFrame(f"{place}: expected numbers, got {_short(value)}")
    return read


def _mapped(value: Mapping[str, Any], place: str) -> np.ndarray:
    if value.keys() != {"dtype", "shape", "data"}:
        raise BadFrame(
            f"{place}: expected an array of the keys dtype, shape and data, got "
            f"{sorted(map(str, value))}"
        )
    dtype, shape, data = value["dtype"], value["shape"], value["data"]
    if dtype not in DTYPES:
        raise BadFrame(f"{place}.dtype: expected one of {', '.join(DTYPES)}, got {_short(dtype)}")
    whole = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not whole or len(shape) > DIMENSIONS:
        raise BadFrame(f"{place}.shape: expected at most {DIMENSIONS} sizes, got {_short(shape)}")
    kind = np.dtype(dtype).newbyteorder("<")
    if not isinstance(data, bytes) or len(data) != math.prod(shape) * kind.itemsize:
        got = f"{len(data):,} bytes" if isinstance(data, bytes) else _short(data)
        raise BadFrame(
            f"{place}.data: expected {dtype} {shape} in {math.prod(shape) * kind.itemsize:,} "
            f"bytes, got {got}"
        )
    flat = np.frombuffer(data, np.uint8) != 0 if dtype == "bool" else np.frombuffer(data, kind)
    try:
        return flat.reshape(shape)
    # [0, 1 << 62] has no bytes, and is no shape either
    except (ValueError, OverflowError) as error:
        raise BadFrame(
            f"{place}.shape: expected a shape that an array can have, got {shape}: {error}"
        ) from error


def _plain(value: Any) -> Any:
    """Types that msgspec does not have itself."""
    if isinstance(value, np.ndarray):
        if (name := value.dtype.name) not in DTYPES:
            raise BadFrame(f"expected an array of {', '.join(DTYPES)}, got {value.dtype}")
        little = value.astype(value.dtype.newbyteorder("<"), copy=False)
        return {"dtype": name, "shape": list(value.shape), "data": little.tobytes()}
    if isinstance(value, np.generic):
        return value.item()
    raise BadFrame(f"expected values that msgpack has, got {type(value).__name__}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_decoder = msgspec.msgpack.Decoder(Message)

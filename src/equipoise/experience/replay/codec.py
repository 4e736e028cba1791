"""Codecs: turn rows into bytes and back. Frames of mostly one colour, or that hardly change, become
small.

``lz4`` and ``zstd`` encode a row as it is; ``delta`` encodes the difference from an earlier row,
with LZ4.

One call decodes many rows into memory that is there, without the GIL, since LZ4's blocks of them
are joined into one. A block ends with literals, and after literals a block has a match, of at least
four bytes ("LZ4 Block Format Description"; liblz4 leaves its length at the least after the last
literals). So the last four bytes of a row are not encoded, and between two rows a match stands for
them: they come out wrong, and the caller puts the right ones there.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from equipoise.hints import install, nearest

LEVEL = 1  # level of zstd: a row is encoded once, on the learner's time

TAIL = 4  # bytes at the end of a row that are not encoded: LZ4's shortest match
# bytes of rows that may be decoded together: near the end of a block LZ4 has no match (9 were
# enough)
SHORTEST = 32
JOINT = b"\x01\x00"  # a match's offset: the byte before it, four times

Bytes = NDArray[np.uint8]


class Codec(Protocol):
    """Encodes and decodes rows, for one thread at a time."""

    keyed: bool  # True: differences from another row are encoded

    def encode(self, rows: Bytes) -> list[bytes]:
        """Encode rows [n, bytes], each contiguous, without the last ``TAIL`` bytes."""

    def decode(self, encoded: Sequence[bytes], out: Bytes) -> None:
        """Decode into ``out`` [n, bytes], contiguous; the last ``TAIL`` bytes of a row are
        undefined. n >= 1, and n == 1 if rows are shorter than ``SHORTEST``.
        """


class Lz4:
    keyed = False

    def __init__(self) -> None:
        self._block = _library("cramjam").lz4

    def encode(self, rows: Bytes) -> list[bytes]:
        return [bytes(self._block.compress_block(row, store_size=False)) for row in rows[:, :-TAIL]]

    def decode(self, encoded: Sequence[bytes], out: Bytes) -> None:
        self._block.decompress_block_into(JOINT.join(encoded), out, output_len=out.nbytes)


class Delta(Lz4):
    keyed = True


class Zstd:
    keyed = False

    def __init__(self) -> None:
        library = _library("zstandard")
        self._in = library.ZstdCompressor(level=LEVEL, write_checksum=False)
        self._out = library.ZstdDecompressor()

    def encode(self, rows: Bytes) -> list[bytes]:
        # Copied, since what the library returns is the shortened rest of an allocation as large as
        # the row.
        return [memoryview(self._in.compress(row.data)).tobytes() for row in rows[:, :-TAIL]]

    def decode(self, encoded: Sequence[bytes], out: Bytes) -> None:
        for row, into in zip(encoded, out[:, :-TAIL], strict=True):
            into[:] = np.frombuffer(self._out.decompress(row), np.uint8)


CODECS: Mapping[str, type[Codec]] = {"delta": Delta, "lz4": Lz4, "zstd": Zstd}
NONE = "none"


def chosen(setting: str, large: Collection[str], small: Collection[str]) -> dict[str, str]:
    """Parse ``replay.codec`` into {key: codec}: a name for all ``large`` keys, or
    "KEY=NAME,KEY=NAME".

    ValueError for an unknown codec or key, and for a key that is named twice.
    """
    if setting.strip() in ("", NONE):
        return {}
    pairs = [pair.strip().rpartition("=") for pair in setting.split(",")]
    if len(pairs) == 1 and not pairs[0][1]:
        if not large:
            raise ValueError(
                "replay.codec: expected none, since no key of a row is large enough to be "
                f"encoded, got {setting!r}"
            )
        found = dict.fromkeys(large, pairs[0][2])
    else:
        found = {key: name for key, _, name in pairs}
    for key, name in found.items():
        if len(names := [other for again, _, other in pairs if again == key]) > 1:
            raise ValueError(
                f"replay.codec: expected {key!r} once, got {' and '.join(names)} for it"
            )
        if name not in CODECS and name != NONE:
            raise ValueError(
                f"replay.codec: expected {_listed([*CODECS, NONE], name)}, got {name!r}"
            )
        if key in small:
            why = "is too small to have memory of its own and lies in the rows' records"
            raise ValueError(
                f"replay.codec: expected {_listed(large, key)}, got {key!r}, which {why}"
            )
        if key not in large:
            raise ValueError(f"replay.codec: expected {_listed(large, key)}, got {key!r}")
    return {key: name for key, name in found.items() if name != NONE}


def installed(names: Iterable[str]) -> None:
    """Raise ImportError, with the install command, if the library of a codec is missing."""
    for name in names:
        CODECS[name]()


def _listed(known: Collection[str], name: str) -> str:
    near = nearest(name, known)
    return f"one of {', '.join(sorted(known)) or 'no keys'}" + (
        f" (nearest: {near!r})" if near else ""
    )


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"replay.codec needs the package {name}: {install('codecs')} ({error})"
        ) from error

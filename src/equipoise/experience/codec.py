"""How a few consecutive rows of a stream become bytes and come back: frames that hardly change leave little.

A *piece* is such rows, [rows, bytes] uint8. ``lz4`` and ``zstd`` encode it as it is; ``delta`` takes each row's exclusive or
with the row before it, so that only what changed is left, and encodes that with LZ4.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from equipoise.envs.wrong import install, nearest

LEVEL = 1  # of zstd: a row is encoded once, on the learner's time

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Codec(Protocol):
    """For one thread at a time."""

    def encode(self, pieces: Bytes) -> list[bytes]: ...  # [n, rows, bytes], contiguous
    def decode(self, encoded: Sequence[bytes], out: Bytes) -> None: ...  # into [n, rows, bytes], contiguous


class Lz4:
    def __init__(self) -> None:
        self._block = _library("cramjam").lz4

    def encode(self, pieces: Bytes) -> list[bytes]:
        return [bytes(self._block.compress_block(piece, store_size=False)) for piece in pieces]

    def decode(self, encoded: Sequence[bytes], out: Bytes) -> None:
        decompress, size = self._block.decompress_block_into, out[0].nbytes if len(out) else 0
        for piece, into in zip(encoded, out, strict=True):
            decompress(piece, into, output_len=size)


class Delta(Lz4):
    def encode(self, pieces: Bytes) -> list[bytes]:
        changes = pieces.copy()
        changes[:, 1:] ^= pieces[:, :-1]
        return super().encode(changes)

    def decode(self, encoded: Sequence[bytes], out: Bytes) -> None:
        super().decode(encoded, out)
        for row in range(1, out.shape[1]):  # of all pieces at once: a call a row and piece would cost more than it does
            np.bitwise_xor(out[:, row], out[:, row - 1], out=out[:, row])


class Zstd:
    def __init__(self) -> None:
        library = _library("zstandard")
        self._in, self._out = library.ZstdCompressor(level=LEVEL, write_checksum=False), library.ZstdDecompressor()

    def encode(self, pieces: Bytes) -> list[bytes]:
        # Copied, since what the library returns is the shortened rest of an allocation as large as the piece.
        return [memoryview(self._in.compress(piece.data)).tobytes() for piece in pieces]

    def decode(self, encoded: Sequence[bytes], out: Bytes) -> None:
        for piece, into in zip(encoded, out, strict=True):
            np.copyto(into, np.frombuffer(self._out.decompress(piece), np.uint8).reshape(into.shape))


CODECS: Mapping[str, type[Codec]] = {"delta": Delta, "lz4": Lz4, "zstd": Zstd}
NONE = "none"


def chosen(said: str, large: Collection[str], small: Collection[str]) -> dict[str, str]:
    """The codec of each key that has one, of ``replay.codec``: a name for all ``large`` keys, or "KEY=NAME,KEY=NAME".

    ValueError for a codec or key that is not there.
    """
    if not said:
        return {}
    pairs = [pair.strip().rpartition("=") for pair in said.split(",")]
    if len(pairs) == 1 and not pairs[0][1]:
        if not large:
            raise ValueError(f"replay.codec: expected none, since no key of a row is large enough to be encoded, got {said!r}")
        found = dict.fromkeys(large, pairs[0][2])
    else:
        found = {key: name for key, _, name in pairs}
    for key, name in found.items():
        if name not in CODECS and name != NONE:
            raise ValueError(f"replay.codec: expected {_listed([*CODECS, NONE], name)}, got {name!r}")
        if key in small:
            why = "is too small to have memory of its own and lies in the rows' records"
            raise ValueError(f"replay.codec: expected {_listed(large, key)}, got {key!r}, which {why}")
        if key not in large:
            raise ValueError(f"replay.codec: expected {_listed(large, key)}, got {key!r}")
    return {key: name for key, name in found.items() if name != NONE}


def installed(names: Iterable[str]) -> None:
    """ImportError that says what to install, where the library of one of these codecs is not there."""
    for name in names:
        CODECS[name]()


def _listed(known: Collection[str], name: str) -> str:
    near = nearest(name, known)
    return f"one of {', '.join(sorted(known)) or 'no keys'}" + (f" (nearest: {near!r})" if near else "")


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"replay.codec needs the package {name}: {install('codecs')} ({error})") from error

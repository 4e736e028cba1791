"""Writing files so that a reader, or the next start after a crash, sees the old one or the new one and nothing between."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import tempfile
from collections.abc import Mapping
from enum import Enum
from io import RawIOBase
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """Dataclasses, enums, paths, arrays' scalars as what JSON has; nan and infinities as null, since JSON has none."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # numpy's and torch's
        return plain(value.tolist())
    raise TypeError(f"expected what JSON can say, got {value!r} of {type(value).__name__}")


def json_bytes(data: Any) -> bytes:
    return (json.dumps(plain(data), indent=2, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> Any:
    """ValueError that names the file where it is not JSON."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON, got {error}") from error


def append_whole(file: RawIOBase, data: bytes, path: Path) -> None:
    """Write at the end of an unbuffered file: all of it, or (on a full disk) nothing."""
    end = file.seek(0, os.SEEK_END)
    try:
        if (written := file.write(data)) != len(data):
            raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes could be written", str(path))
    except OSError:
        file.truncate(end)
        raise


def write_synced(path: Path, data: bytes) -> None:
    """A new file whose bytes are on the disk when this returns; its name is once its directory is synced, too."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(handle, left) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file: written beside it, synced, renamed over it."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp's 0600 would hide a run from the people it is shared with
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory last through a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

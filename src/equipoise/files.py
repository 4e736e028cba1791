"""Files: written so that a reader sees the old one or the new one and nothing between; JSON read
with care.

A JSON file may come from anywhere. ``parse_json`` bounds its size and its depth, and every error
names the file and the line.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard


def is_url(place: object) -> TypeGuard[str]:
    """Is this a URL, and no path?"""
    return isinstance(place, str) and "://" in place


def local_path(place: str | os.PathLike[str]) -> Path:
    """Return a path; ValueError for a URL, which would be a folder named "s3:" here."""
    if is_url(place):
        raise ValueError(f"{place}: must be a path on this machine, got a URL; try a copy of it")
    return Path(place)


def plain(value: Any) -> Any:
    """Dataclasses, enums, paths, arrays' scalars as JSON's types; nan and infinities as null, since
    JSON lacks them.
    """
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
        listed = value.tolist()
        # a longdouble's is itself
        return plain(float(listed) if type(listed) is type(value) else listed)
    raise TypeError(f"expected a value that JSON can hold, got {value!r} of {type(value).__name__}")


def json_bytes(data: Any) -> bytes:
    return (json.dumps(plain(data), indent=2, allow_nan=False) + "\n").encode()


LARGEST_JSON = 64 << 20  # bytes of a JSON file, or of a line of one
DEEPEST_JSON = 64  # levels of lists and objects
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]')
_WORDS = re.compile(r'"(?:[^"\\]|\\.)*"?|[^\s\[\]{}:,"]+')
BOM = b"\xef\xbb\xbf"  # the bytes that Excel and PowerShell write before the first line
# a number that may be too large for a float, or for an int of Python
_LONG = re.compile(r"\d{309}|[eE]\+?\d{3}")
MOST_DIGITS = 4300  # of a whole number: Python reads no more


def read_json(path: Path, most: int | None = None) -> Any:
    """The value in a JSON file; ValueError with the file and the line where it is damaged, too
    deep, or of too many bytes.
    """
    return parse_json(read_bounded(path, LARGEST_JSON if most is None else most), path)


def check_plain(path: Path) -> None:
    """Raise ValueError for a pipe, a socket, a device or a folder."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{path}: expected a plain file, got another kind of file")


def open_plain(path: Path) -> BinaryIO:
    """Open a plain file to read; ValueError for another kind of file, which is not opened."""
    check_plain(path)
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def read_bounded(path: Path, most: int) -> bytes:
    """The bytes of a plain file; ValueError if it is no plain file, or holds more than ``most``."""
    try:
        opened = open_plain(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: expected a plain file, got none") from None
    with opened as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path}: expected at most {most:,} bytes, got {path.stat().st_size:,}")
    return data


def parse_json(data: bytes, path: Path | str, line: int = 1, *, finite: bool = True) -> Any:
    """The value of a file's ``data``; ``line``: the number of its first line there; ``finite``:
    without nan.
    """
    data = data.removeprefix(BOM)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        at = line + data.count(b"\n", 0, error.start)
        raise ValueError(
            f"{path}, line {at}: expected JSON, got the byte {data[error.start]:#04x}, which is no "
            "UTF-8"
        ) from None
    if text.count("[") + text.count("{") > DEEPEST_JSON:
        _check_depth(text, path, line)
    hooks: dict[str, Any] = {"parse_constant": _number} if finite else {}
    if _LONG.search(text):
        hooks |= {"parse_int": _number} | ({"parse_float": _number} if finite else {})
    try:
        return json.loads(text, **hooks)
    except json.JSONDecodeError as error:
        said = error.msg[:1].lower() + error.msg[1:] if text.strip() else "nothing"
        raise ValueError(
            f"{path}, line {line + error.lineno - 1}: expected JSON, got {said}"
        ) from None
    except _NoNumber as error:
        found = next(one.start() for one in _WORDS.finditer(text) if one[0] == error.word)
        at = line + text.count("\n", 0, found)
        raise ValueError(f"{path}, line {at}: expected JSON, got {error}") from None


def _check_depth(text: str, path: Path | str, line: int) -> None:
    depth = 0
    for found in _BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if depth > DEEPEST_JSON:
            at = line + text.count("\n", 0, found.start())
            raise ValueError(
                f"{path}, line {at}: expected at most {DEEPEST_JSON} levels of lists and objects, "
                "got more"
            )


class _NoNumber(ValueError):
    def __init__(self, word: str, why: str) -> None:
        super().__init__(f"{word if len(word) <= 20 else word[:17] + '...'}, which {why}")
        self.word = word


def _number(word: str) -> int | float:
    """The finite number of a word of JSON."""
    if word.lstrip("-").isdigit():
        if len(word.lstrip("-")) > MOST_DIGITS:
            raise _NoNumber(word, f"has more than {MOST_DIGITS:,} digits")
        return int(word)
    if not math.isfinite(value := float(word)):
        raise _NoNumber(
            word, "is no number" if word.lstrip("-")[0] in "NI" else "is too large for a number"
        )
    return value


DEEPEST_KEY = 64  # parts of a dotted key: the time of tomllib grows with their square
_PART = r"""(?>[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DEEP_KEY = re.compile(rf"(?<![A-Za-z0-9_.-]){_PART}(?>[ \t]*\.[ \t]*{_PART}){{{DEEPEST_KEY}}}")


def parse_toml(data: bytes, path: Path | str) -> dict[str, Any]:
    """The tables that ``data`` of a file has; ValueError with the file and what is wrong in it."""
    try:
        text = data.decode()
        for number, line in enumerate(text.split("\n"), 1):
            if line.count(".") >= DEEPEST_KEY and _DEEP_KEY.search(line):
                raise ValueError(f"line {number} has a key of more than {DEEPEST_KEY} parts")
        return tomllib.loads(text)
    except ValueError as error:  # no UTF-8; no TOML; a number of more digits than Python reads
        raise ValueError(f"{path}: expected TOML, got a file with an error: {error}") from None
    except RecursionError:
        raise ValueError(
            f"{path}: expected TOML, got more levels of lists and tables than can be read"
        ) from None


def is_at(file: RawIOBase, path: Path) -> bool:
    """Return whether an open file is still the one at ``path``."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except (FileNotFoundError, NotADirectoryError):
        return False


def append_whole(file: RawIOBase, data: bytes, path: Path) -> None:
    """Write at the end of an unbuffered file: all of it, or (on a full disk) nothing.
    FileNotFoundError if the file is no longer at ``path``.
    """
    if not is_at(file, path):
        raise FileNotFoundError(
            errno.ENOENT, "it was removed, renamed or replaced while it was written to", str(path)
        )
    end = file.seek(0, os.SEEK_END)
    try:
        if (written := file.write(data)) != len(data):
            raise OSError(
                errno.ENOSPC, f"only {written} of {len(data)} bytes could be written", str(path)
            )
    except OSError:
        file.truncate(end)
        raise


def write_synced(path: Path, data: bytes) -> None:
    """A new file whose bytes are on the disk when this returns; its name is there only once its
    directory is also synced.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(handle, left) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, data: bytes, *, synced: bool = True) -> None:
    """Replace a file: written next to it, synced, renamed over it.

    Without ``synced`` a power cut may lose it; use that for a file that is renewed soon.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError(f"{path}: must be a file to write, got a device or a pipe")
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if synced:
                os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp's 0600 would hide a run from the people it is shared with
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # as of a full disk
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    if synced:
        sync_directory(path.parent)


def files_sha256(files: Sequence[Path]) -> str:
    """Return the hash of the hashes of files, in their order."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


@contextmanager
def new_folder(to: Path, *, present: str = "") -> Iterator[Path]:
    """Yield a folder to write into; it is renamed to ``to`` at the end.

    ``present``: if another process makes ``to`` first, and with this file, its folder is kept; "":
    OSError then.
    """
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))
    except OSError as error:
        raise OSError(
            f"{to}: must be a folder that can be made, got {error.strerror!r} at {error.filename}"
        ) from None
    try:
        yield aside
        aside.chmod(0o755)
        try:
            aside.rename(to)
        except OSError:
            if not (present and (to / present).is_file()):
                raise
        sync_directory(to.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory last through a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def numbered(name: str, learner: int) -> str:
    """The name of what a learner saves of its own, such as "experience": the first one's has no
    number.
    """
    return f"{name}_{learner}" if learner else name

"""Items of a query: texts and the arrays of clips as bytes, named by the SHA-256 of these bytes."""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from equipoise.feedback.records import DiskFull, Message, Text
from equipoise.files import parse_json, read_bounded, write_atomic
from equipoise.hints import shortened

Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]
LARGEST_SEGMENT = 64 << 20  # bytes
LARGEST_TEXT = 1 << 20  # bytes
MOST_MESSAGES = 1000
MOST_ARRAYS = 64
HASH = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
KEPT = "biuf"  # kinds of arrays: bools, integers, floats
WIDEST = 8  # bytes of one number


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write(path: Path, data: bytes) -> None:
    """Write a whole file; ``DiskFull`` if there is no room for it."""
    try:
        write_atomic(path, data)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull.at(path) from None


def check_hash(value: str, where: str) -> str:
    """Return the hash; ValueError if it is none."""
    if not HASH.fullmatch(value):
        raise ValueError(
            f"{where}: must be a SHA-256 in 64 hexadecimal digits, got {shortened(repr(value))}"
        )
    return value


def segment_bytes(arrays: Arrays) -> bytes:
    """Return the bytes of a clip's arrays; the same arrays have the same bytes."""
    if not 1 <= len(arrays) <= MOST_ARRAYS:
        raise ValueError(f"segment: must have 1 to {MOST_ARRAYS} arrays, got {len(arrays)}")
    found: dict[str, NDArray[np.generic]] = {}
    for name, array in arrays.items():
        if not NAME.fullmatch(name):
            raise ValueError(
                "segment: names of arrays must be 1 to 100 letters, digits, '_', '.' and '-', got "
                f"{shortened(repr(name))}"
            )
        if array.dtype.kind not in KEPT or array.dtype.itemsize > WIDEST:
            raise ValueError(
                f"segment.{name}: must be an array of bools, integers or floats of at most "
                f"{8 * WIDEST} bits, got {array.dtype}"
            )
        found[name] = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    if (size := sum(array.nbytes for array in found.values())) > LARGEST_SEGMENT - 65_536:
        raise ValueError(
            f"segment: must have at most {LARGEST_SEGMENT - 65_536:,} bytes, got {size:,}"
        )
    return safetensors.numpy.save(found)


def read_segment(path: Path, hash_: str) -> dict[str, NDArray[np.generic]]:
    """Read the arrays of a clip; ValueError for another file than was written."""
    data = read_bounded(path, LARGEST_SEGMENT)
    if (got := digest(data)) != hash_:
        raise ValueError(f"{path}: must have the SHA-256 of its name, got {got}; it is damaged")
    try:
        return dict(safetensors.numpy.load(data))
    except (SafetensorError, KeyError) as error:  # the second: a type that numpy lacks
        raise ValueError(f"{path}: must be a segment, got another file: {error}") from None


def text_bytes(text: Text, where: str = "text") -> bytes:
    """Return the bytes of a text or of the messages of a chat; ValueError naming ``where``."""
    value = checked_text(text, where)
    try:
        data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where}: must be text in UTF-8, got half of a character") from None
    if len(data) > LARGEST_TEXT:
        raise ValueError(f"{where}: must have at most {LARGEST_TEXT:,} bytes, got {len(data):,}")
    return data


def checked_text(value: object, where: str) -> Text:
    """Return a value from outside as a text or messages; ValueError naming ``where``."""
    if isinstance(value, list):
        return _messages(value, where)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(
            f"{where}: must be a text or a list of messages, got {shortened(repr(value))}"
        )
    return value


def parse_text(data: bytes, hash_: str, path: Path) -> Text:
    """Return the text of its bytes; ValueError for other bytes than were written."""
    if digest(data) != hash_:
        raise ValueError(
            f"{path}: text {hash_[:12]} must have this SHA-256, got {digest(data)[:12]}; it is "
            "damaged"
        )
    text: Text = parse_json(data, path)
    if text_bytes(text, str(path)) != data:
        raise ValueError(f"{path}: text {hash_[:12]} must be a text or messages, got other JSON")
    return text


def _messages(messages: list[object], where: str) -> list[Message]:
    if not 1 <= len(messages) <= MOST_MESSAGES:
        raise ValueError(f"{where}: must be 1 to {MOST_MESSAGES:,} messages, got {len(messages):,}")
    found: list[Message] = []
    for i, one in enumerate(messages):
        role, content = (one.get("role"), one.get("content")) if isinstance(one, dict) else (0, 0)
        if not isinstance(role, str) or not isinstance(content, str) or not role:
            raise ValueError(
                f"{where}[{i}]: must be a message with the texts role and content, got "
                f"{shortened(repr(one))}"
            )
        found.append({"role": role, "content": content})
    if not found[-1]["content"].strip():
        raise ValueError(f"{where}[{len(found) - 1}].content: must be a text, got an empty one")
    return found
